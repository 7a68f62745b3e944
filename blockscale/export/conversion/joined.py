# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of layers that readers join: one outer scale for all, or none is written.

vLLM keeps the largest outer scale of query, key and value (blockscale.core.weights.fused): codes
that were chosen under another one would mean other numbers there.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.recipe import Recipe
from blockscale.core.weights.fused import groups, partners, shares, told_disagreement, top_of
from blockscale.export.conversion.exact import CodesNeededError, carried
from blockscale.export.conversion.source import Source
from blockscale.export.writers.writer import Writer, layer_of
from blockscale.layers.joined import largest
from blockscale.layers.saturation import block_ranges
from blockscale.ops.tensor import QTensor


class Step(Protocol):
    """What becomes of one tensor (plan.Step)."""

    source: str
    name: str
    shape: tuple[int, ...]
    how: str
    wanted: Format | None
    more: dict[str, Any]

    def become(self, value: QTensor | Tensor) -> QTensor | Tensor:
        """The tensor as it is to be written."""


def settle_joined(
    source: Source, steps: Sequence[Step], writer: Writer, recipe: Recipe | None
) -> dict[str, str]:
    """{name: why it cannot be written} of tensors whose outer scales differ and must not.

    recipe: the formats in which such tensors are quantized again, sharing one
    """
    refused: dict[str, str] = {}
    if not writer.joins:
        return refused
    by_layer = {layer_of(step.name): step for step in steps}
    for group in groups(by_layer):
        members = [by_layer[layer] for layer in group]
        some = [step for step in members if _has_outer(step.wanted, step.shape)]
        outers = {step.name: _outer_of(source, step) for step in some}
        if len(some) < 2 or _same(list(outers.values())):
            continue
        told = told_disagreement({layer_of(n): outer for n, outer in outers.items()})
        if recipe is None:
            refused |= dict.fromkeys(outers, told)
            continue
        for step in some:
            wanted = recipe.decide(layer_of(step.name))[0].weight
            reason = writer.holds(wanted, step.shape) if wanted else "the recipe has none for it"
            if reason:
                refused[step.name] = f"{told}; the recipe's format: {reason}"
                continue
            step.how, step.wanted = "requantized", wanted
            step.more.setdefault("reason", told)
    if not refused:
        _share_tops(source, [step for step in steps if step.how == "requantized"])
    return refused


def _share_tops(source: Source, steps: Sequence[Step]) -> None:
    """Let those that are quantized again share their outer scale."""
    by_layer = {layer_of(step.name): step for step in steps}
    kinds = {
        layer: (str(step.wanted), step.shape[-1])
        for layer, step in by_layer.items()
        if _has_outer(step.wanted, step.shape)
    }
    sharing, _ = partners(by_layer, kinds, True)
    for group in dict.fromkeys(sharing.values()):
        top = largest([_top_of(source, by_layer[layer]) for layer in group])
        for layer in group:
            by_layer[layer].more["top"] = top


def _has_outer(fmt: Format | None, shape: Sequence[int]) -> bool:
    return fmt is not None and not shares(fmt, shape)


def _outer_of(source: Source, step: Step) -> Tensor | None:
    """The outer scale of a tensor as it would be written; None if it is to be chosen."""
    if step.how != "exact" or step.wanted is None:
        return None
    value = source.view.without_codes(step.name)
    try:
        value = value if isinstance(value, Tensor) else carried(value, step.wanted)
    except CodesNeededError:
        value = step.become(source.read(step.name))
    return value.qparams.outer if isinstance(value, QTensor) else None


def _same(outers: Sequence[Tensor | None]) -> bool:
    first, *others = outers
    if first is None:
        return all(each is None for each in others)
    return all(each is not None and torch.equal(first, each) for each in others)


def _top_of(source: Source, step: Step) -> Tensor:
    value = source.read(step.name)
    wanted = step.wanted
    assert isinstance(value, QTensor) and wanted is not None
    return top_of(block_ranges(value.dequantize(), wanted), wanted)
