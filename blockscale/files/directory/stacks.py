# SPDX-License-Identifier: BSD-3-Clause
"""Which way a directory's stacks of matrices lie, and of how many matrices they are made.

A stored tensor may hold several matrices: the experts of a mixture [E, n, k], or a query, a key and
a value projection one below another. Each is quantized as if it were alone, as it is in a model
where it is: formats with a number for a whole tensor get one for each matrix
(core.joined_weights). What names and shapes do not say, the model's type does (config.json).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from blockscale.layers.parameters import PLAIN, Stack, joined_stack

# Types whose experts are [E, inputs, outputs]: `use_experts_implementation(is_transposed=True)` in
# transformers 5.23 (gpt_oss, aria, openai_privacy_filter), and llama4, which calls torch.bmm
TRANSPOSED = ("gpt_oss", "llama4", "llama4_text", "aria", "aria_text", "openai_privacy_filter")
# Types that have them either way, by who wrote them (conversion_mapping.py, check_dims)
EITHER_WAY = ("qwen3_vl_moe", "qwen3_vl_moe_text")
# Types whose experts are one matrix [E * n, k] (modeling_dbrx.py, DbrxExpertGLU)
JOINED = ("dbrx",)
# {type: {end of a name: matrices}}: what transformers cuts when it loads it (Chunk along rows in
# conversion_mapping.py 5.23); tests/files/directory/test_stacks.py compares
CUT: Mapping[str, Mapping[str, int]] = {
    "radio": {"attn.qkv.weight": 3},
    "hrm_text": {"mlp.gate_up_proj.weight": 2, "attn.gqkv_proj.weight": 4},
    "dinov2": {"mlp.weights_in.weight": 2},
    "dinov2_with_registers": {"mlp.weights_in.weight": 2},
    "nomic_bert": {"attn.Wqkv.weight": 3},
    "gte": {"attention.qkv_proj.weight": 3, "mlp.up_gate_proj.weight": 2},
    "jina_embeddings_v3": {"mixer.Wqkv.weight": 3},
    "qianfan_ocr": {"attn.qkv.weight": 3},
    "sapiens2": {"ffn.w12.weight": 2},
    "rf_detr": {"self_attn.in_proj_weight": 3},
    "kimi_k25": {"wqkv.weight": 3},
    "nemo_speechlm": {"attn.w_qkv.weight": 3},
}


class Types(NamedTuple):
    """What config.json says: the types of the model and of those inside it, sizes by name."""

    names: frozenset[str] = frozenset()
    hidden: frozenset[int] = frozenset()
    experts: int = 0


def types_of(config: Mapping[str, Any] | None) -> Types:
    """Of a config, and of the configs inside it."""
    every = list(_inside(config or {}))
    names = frozenset(str(each["model_type"]) for each in every if "model_type" in each)
    hidden = frozenset(n for each in every if isinstance(n := each.get("hidden_size"), int))
    experts = [n for each in every if isinstance(n := each.get("moe_num_experts"), int)]
    return Types(names, hidden, max(experts, default=0))


def _inside(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _inside(value)


def stacked(name: str, shape: Sequence[int], types: Types) -> Stack:
    """How a tensor of two or three dimensions lies, and of how many matrices each of it is made."""
    if len(shape) == 3:
        return Stack("transposed") if _transposed(name, shape, types) else PLAIN
    if ".experts." in name and types.names & {*JOINED} and types.experts:
        return joined_stack(name.rpartition(".")[2], types.experts)
    for kind in types.names & {*CUT}:
        for end, parts in CUT[kind].items():
            if name.endswith(end) and shape[0] % parts == 0:
                return Stack(parts=parts, fused=True)
    return PLAIN


def _transposed(name: str, shape: Sequence[int], types: Types) -> bool:
    """Whether a stack is [E, inputs, outputs]."""
    if "expert" not in name:
        return False
    if types.names & {*TRANSPOSED}:
        return True
    inputs_last = shape[2] in types.hidden, shape[1] in types.hidden
    down = name.rpartition(".")[2].startswith("down")
    return bool(types.names & {*EITHER_WAY}) and inputs_last == (
        (True, False) if down else (False, True)
    )
