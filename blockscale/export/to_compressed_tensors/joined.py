"""Layers that servers join (core.weights.fused): what they must agree in to be written."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.weights.fused import groups, told_disagreement
from blockscale.layers.layer import QLayer
from blockscale.ops.tensor import QTensor


class Numbers(NamedTuple):
    """What one layer that was joined keeps once: its outer scale, and that of a static input."""

    outer: Tensor | None
    input: Tensor | None
    zero: Tensor | None


def disagreements(layers: Mapping[str, QLayer]) -> list[str]:
    """Why layers cannot be written for servers that join them, a sentence for each group."""
    told = []
    for group in groups(layers):
        numbers = {name: _numbers(layers[name]) for name in group}
        outers = {name: each.outer for name, each in numbers.items() if each.outer is not None}
        if _differ(list(outers.values())):
            told.append(told_disagreement(outers))
        for what, part in (("static input scales", "input"), ("zero points of inputs", "zero")):
            some = {n: of for n, e in numbers.items() if (of := getattr(e, part)) is not None}
            if _differ(list(some.values())):
                last = ", ".join(name.rpartition(".")[2] for name in some)
                parent = group[0].rpartition(".")[0] or "the model"
                told.append(
                    f"{last} of {parent} have different {what}, and servers that join these layers "
                    f"keep one: calibrate them on the same input, without transforms of their own"
                )
    return told


def sharing(layers: Mapping[str, QLayer]) -> dict[str, list[QTensor]]:
    """{layer: the weights that share its outer scale}, of layers that agree."""
    found: dict[str, list[QTensor]] = {}
    for group in groups(layers):
        some = [name for name in group if _numbers(layers[name]).outer is not None]
        weights = [layers[name].qweight.tensor for name in some]
        for name in some:
            found[name] = weights
    return found


def _numbers(layer: QLayer) -> Numbers:
    qparams, given = layer.qweight.qparams, layer.input
    outer = None if qparams is None or qparams.outer is None else qparams.outer
    outer = None if outer is None or outer.numel() != 1 else outer
    if given is None:
        return Numbers(outer, None, None)
    parts = given._buffers
    scale = parts["outer"] if parts["scale"] is None else parts["scale"]
    return Numbers(outer, scale, parts["zero_point"])


def _differ(numbers: list[Tensor]) -> bool:
    return any(not torch.equal(numbers[0].cpu(), each.cpu()) for each in numbers[1:])
