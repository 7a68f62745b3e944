# SPDX-License-Identifier: BSD-3-Clause
"""Adapters merged into codes, and taken out again.

merge: dequantize in float32, add what the adapters add, quantize in the same format, with scales
chosen anew. It begins with the codes that were there before any merge, so that merging one adapter
after the other rounds once. unmerge: the codes that were there, bit for bit.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.tuners_utils import check_adapters_to_merge
from torch import Tensor, nn

from blockscale.core.pack import to_stored
from blockscale.integrations.peft.float_layer import float_base
from blockscale.integrations.peft.parts import check_whole, take_part
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight
from blockscale.ops.quantize import quantize

_KEPT = "blockscale: before merging"  # where a LoRA layer keeps it: peft's own small cache


@dataclass(frozen=True)
class MergeLoss:
    """What a merge into one layer lost to rounding.

    fmt: the weight's format
    changed: how many of `codes` differ after the merge
    added: the size of what the adapters add to the weight, ‖Δ‖; lost: how far the merged weight is
        from the exact sum, ‖Q(W + Δ) - (W + Δ)‖. Both are Frobenius norms.
    """

    fmt: str
    codes: int
    changed: int
    added: float
    lost: float

    @property
    def share(self) -> float:
        """lost / added: 0 where nothing was lost, 1 where as much was lost as was added."""
        return self.lost / self.added if self.added else 0.0


@dataclass(frozen=True)
class _Before:
    """A base layer before anything was merged into it, and what the merge lost."""

    weight: QWeight
    bias: Tensor | None
    loss: MergeLoss


class MergesIntoCodes:
    """What a LoRA layer does differently around a quantized layer; it stands before peft's class
    and has no state of its own."""

    base_layer: Any
    merged_adapters: list[str]
    lora_bias: dict[str, bool]
    _caches: dict[str, Any]

    @property
    def merge_loss(self) -> MergeLoss | None:
        """What the current merge lost; None where nothing is merged."""
        before = self._caches.get(_KEPT)
        return before.loss if before else None

    @property
    def weight(self) -> Tensor:
        """The base layer's weight for modules that read it: peft would return a `qweight`."""
        read: Tensor = self.get_base_layer().weight  # type: ignore[attr-defined]
        return read

    def update_layer(self, *args: Any, **kwargs: Any) -> None:
        """Add an adapter, or set one up anew, beside the dequantized layer."""
        with self._float_base() as base, unchanged(base):
            super().update_layer(*args, **kwargs)  # type: ignore[misc]
        take_part(self, args[0] if args else kwargs["adapter_name"])

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Merge adapters, by default the active ones, into the codes (see the module).

        safe_merge: what peft checks then is always checked here: a weight that is not finite is
            refused with ValueError, and the layer is as it was.

        Raises ValueError for a part of a layer.
        """
        check_whole(self.base_layer)
        if not isinstance(self.base_layer, QLayer):  # peft merges and unmerges the float layer
            super().merge(safe_merge=safe_merge, adapter_names=adapter_names)  # type: ignore[misc]
            return
        layer: Any = self
        names = check_adapters_to_merge(layer, adapter_names)
        if not names:
            return
        base, before, merged = self.base_layer, self._caches.get(_KEPT), self.merged_adapters
        now = base.qweight, _bias_values(base)
        try:
            self._put_back()
            self._merge_all([*merged, *names])
        except BaseException:
            _set(base, *now)
            self.merged_adapters = merged
            if before is not None:
                self._caches[_KEPT] = before
            raise

    def unmerge(self) -> None:
        """Put the codes back that were there before merging."""
        if not isinstance(self.base_layer, QLayer):
            super().unmerge()  # type: ignore[misc]
        elif not self.merged_adapters:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)  # as peft says it
        else:
            self._put_back()

    def _put_back(self) -> None:
        """The codes and the bias before any merge."""
        if (before := self._caches.pop(_KEPT, None)) is not None:
            _set(self.base_layer, before.weight, before.bias)
        self.merged_adapters = []

    def _merge_all(self, names: list[str]) -> None:
        """Let peft merge into floats, and quantize these. Nothing is merged before."""
        base = self.base_layer
        check_mergeable(base, biased=any(self.lora_bias.get(name) for name in names))
        with self._float_base(torch.float32) as copy:
            old = copy.weight.detach().clone()
            super().merge(safe_merge=True, adapter_names=names)  # type: ignore[misc]
        if not self.merged_adapters:
            return  # the layer has none of these adapters
        weight, bias = base.qweight, _bias_values(base)
        target = copy.weight.detach()
        delta = target - old
        if any(self.lora_bias.get(name) for name in self.merged_adapters):
            base.bias.data = copy.bias.detach().to(base.bias.dtype)
        _set(base, requantized(base, target))
        changes = int((weight.tensor.codes != base.qweight.tensor.codes).sum())
        error = base.dequantize_weight(torch.float32) - target
        loss = MergeLoss(weight.fmt, target.numel(), changes, _norm(delta), _norm(error))
        self._caches[_KEPT] = _Before(weight, bias, loss)

    @contextmanager
    def _float_base(self, dtype: torch.dtype | None = None) -> Iterator[Any]:
        """For a while, a float layer in the place of the quantized one."""
        base = self.base_layer
        copy = float_base(base, dtype) if isinstance(base, QLayer) else base
        try:
            self.base_layer = copy
            yield copy
        finally:
            self.base_layer = base


def merge_losses(model: nn.Module) -> dict[str, MergeLoss]:
    """{name of a LoRA layer: what its merge lost}, of a model whose adapters are merged now."""
    losses = {name: getattr(module, "merge_loss", None) for name, module in model.named_modules()}
    return {name: loss for name, loss in losses.items() if isinstance(loss, MergeLoss)}


def summary(losses: Mapping[str, MergeLoss]) -> str:
    """The text of one warning: totals, and the layers that lost most."""
    each = sorted(losses.items(), key=lambda item: -item[1].share)
    delta = sum(loss.added**2 for _, loss in each) ** 0.5
    error = sum(loss.lost**2 for _, loss in each) ** 0.5
    changes, codes = (sum(getattr(loss, part) for _, loss in each) for part in ("changed", "codes"))
    lines = [
        f"  {name} ({loss.fmt}): {loss.changed} of {loss.codes} codes changed, "
        f"{loss.share:.0%} of the change lost"
        for name, loss in each[:3]
    ]
    more = [f"  and {len(each) - 3} more layers"] if len(each) > 3 else []
    return "\n".join(
        [
            f"merged adapters into {len(each)} quantized layers, whose weights were rounded "
            f"again: {changes} of {codes} codes changed, and the rounding is "
            f"{error / delta:.0%} as large as what the adapters add; unmerged, or by "
            "merge_into_float of blockscale.integrations.peft, nothing is lost. Layers that "
            "lost most:",
            *lines,
            *more,
        ]
    )


def check_mergeable(layer: QLayer, biased: bool = False) -> None:
    """Raise ValueError if nothing can be merged into a layer's codes, or its bias."""
    fmt = layer.qweight.format
    if fmt.unchosen:
        raise ValueError(
            f"nothing can be merged into {fmt}: {fmt.unchosen}; leave the adapter unmerged"
        )
    if biased and layer.quantized_bias is not None:
        raise ValueError("lora_bias cannot be merged into a quantized bias: leave it unmerged")


def requantized(layer: QLayer, weight: Tensor) -> QWeight:
    """A weight [as the float layer has it] in the format of a layer's codes, behind its `before`.

    weight: float32
    """
    old = layer.qweight
    stored = to_stored(weight, old.layout)
    if layer.before is not None:
        stored = layer.before.to_weight(stored)
    new = QWeight(quantize(stored, old.format), tuple(old.shape), old.dtype, old.layout)
    new.name = old.name
    return new


@contextmanager
def unchanged(layer: nn.Module) -> Iterator[None]:
    """Raise ValueError if the block changes a float layer's weight.

    Some ways to begin an adapter (PiSSA, OLoRA, LoftQ, CorDA, LoRA-GA, KaSA) take it out of the
    base weight, which they change.
    """
    weight: Any = layer.weight
    if weight.is_meta:  # low_cpu_mem_usage: the adapter's numbers come later
        yield
        return
    before = weight.detach().clone()
    yield
    after: Any = layer.weight
    if not bool(((before == after) | (before.isnan() & after.isnan())).all()):
        raise ValueError(
            "this init_lora_weights changes the base weight, which is quantized here: add "
            "the adapter to the float model, and quantize that afterwards with bs.quantize_"
        )


def _bias_values(layer: QLayer) -> Tensor | None:
    bias = layer._parameters.get("bias")
    return None if bias is None else bias.detach().clone()


def _set(layer: QLayer, weight: QWeight, bias: Tensor | None = None) -> None:
    """Another weight, and the values of the float bias if they are given.

    It may have been away while the model was cast and moved.
    """
    now = layer.qweight
    if weight is not now:
        weight = weight.to(now.device)
        weight.dtype = now.dtype
        layer._modules["weight"] = weight
    if bias is not None:
        layer._parameters["bias"].data = bias.to(layer._parameters["bias"])  # type: ignore[union-attr]


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))
