"""Formats, tensors and views brought together: memory, checks and launches.

Everything that depends only on (format, shape, dtype) is computed once and cached. No launch waits
for the device, and none takes memory but what torch's allocator gives, so CUDA graphs hold them.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams, Ranges
from blockscale.core.scale import TwoLevel
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.primitives import programs, ranges, tuning
from blockscale.kernels.cuda.primitives.view import Layout, Tile, View, groups, layout, packs, view
from blockscale.kernels.cuda.replay.direct import cdiv, direct
from blockscale.kernels.cuda.spec import Spec, of_gradient, spec
from blockscale.kernels.operand import Device, Storage, in_order


class Form(Storage):
    """A format as kernels take it."""

    def __init__(self, fmt: Format):
        super().__init__(fmt)
        self.spec = spec(fmt.spelling)
        self.inner = fmt.scale.inner if isinstance(fmt.scale, TwoLevel) else None
        self.means = self.spec.statistic in ("mean", "mean_above")
        # one outer scale of everything: found by a pass of its own
        self.one_outer = self.inner is not None and self.inner.block.name == "tensor"

    def checked_codes(
        self, packed: Tensor, shape: tuple[int, ...], device: Device = None
    ) -> Tensor:
        """As `Storage.checked_codes`; `device` is that of the codes, which kernels must reach."""
        on_device(packed)
        return super().checked_codes(packed, shape, device or packed.device)

    def given_parts(
        self, x: Tensor, shape: Sequence[int], scale: Tensor, zero: Tensor | None,
        outer: Tensor | None,
    ) -> QParams:  # fmt: skip
        """A caller's scale for a tensor of `shape`, on x's device and as `per_block` gives it.

        Raises ValueError if it does not fit.
        """
        shape = torch.Size(shape)
        return self.per_block(self.checked_parts(shape, scale, zero, outer, x.device))

    def per_block(self, parts: QParams) -> QParams:
        """The same with an outer scale for each block, unless there is only one at all."""
        if self.inner is None or self.one_outer:
            return parts
        assert parts.outer is not None
        shape = parts.scale.shape
        outer = self.inner.block.expand(parts.outer, shape).expand(shape).contiguous()
        return parts._replace(outer=outer)


@cache
def form(spelling: str) -> Form:
    """The format of this name or spelling for the kernels."""
    return Form(parse(spelling))


def floats(x: Tensor) -> Tensor:
    """x in order. Raises TypeError as the reference does, ValueError if not on a GPU."""
    if x.dtype not in FLOATS:
        reference.widen(x)
    on_device(x)
    return in_order(x, 4)  # kernels may read 32 bits


def on_device(x: Tensor) -> None:
    """Raises ValueError if the kernels cannot reach x's memory."""
    if not (x.is_cuda or (interpreting() and x.is_cpu)):
        raise ValueError(f"expected a tensor on a CUDA device, found one on {x.device}")


class Plan(NamedTuple):
    """A launch without its tensors."""

    spec: Spec
    view: View
    options: dict[str, Any]


@lru_cache(4096)
def plan(
    spelling: str, shape: tuple[int, ...], result: str, given: bool, seeds: int, size: int
) -> Plan | None:
    """How to compute `result` of numbers of `size` bytes, or such numbers; None if blocks are too
    large to choose their scale in one pass."""
    fmt = form(spelling)
    at = layout(shape, fmt.format.block)
    merged, packed = result in ("largest", "extremes"), result == "codes" and fmt.bits <= 4
    e = fmt.spec.element
    powers = e.family == "minifloat" and not e.mbits  # rounding those takes more registers
    lean = size == 2 and result == "codes" and not (fmt.means or fmt.drawn or powers)
    heavy = "" if not fmt.means else "signs" if e.family == "binary" and size == 4 else "means"
    if powers and (size == 2 or result == "codes"):
        heavy = "powers"
    elif size == 2 and result == "values" and at.bm > 1:
        heavy = "tile"
    setting = tuning.setting(at, given=given, merged=merged, packed=packed, lean=lean, heavy=heavy)
    found = view(at, setting.elements, whole=not given, unit=setting.unit)
    if found is None:
        return None
    numbers = of_gradient(fmt.spec) if result == "gradient" else fmt.spec
    options = {"num_warps": setting.warps, "enable_fp_fusion": False}
    if setting.registers:
        options["maxnreg"] = setting.registers
    return Plan(numbers, _completed(found, at, fmt, shape, result, given, seeds), options)


def _completed(
    found: View, at: Layout, fmt: Form, shape: tuple[int, ...], result: str, given: bool, seeds: int
) -> View:
    uk = found.numbers[6]
    last = shape[-1] if shape else 1
    packing = packs(at, found.tile, uk, fmt.bits, last)
    tile = replace(
        found.tile,
        packs=packing,
        chooses=not given,
        keeps=not given and result in ("codes", "scale"),
        result=result,
        seeds=seeds,
        quads=seeds == 1 and groups(at, found.tile, uk, 4),
        pairs=result in ("codes", "values") and paired(at, fmt, found.tile, uk),
    )
    return replace(found, tile=tile)


def paired(at: Layout, fmt: Form, tile: Tile, uk: int) -> bool:
    """Whether kernels may take neighbours two and two, which for means share a unit."""
    shared = tile.kind != "column" or not fmt.means
    return fmt.bits <= 8 and shared and groups(at, tile, uk, 2)


def one_pass(f: Form, x: Tensor, result: str, seeds: int) -> Plan | None:
    """A plan that also chooses scales, or None if one pass is not enough."""
    if f.inner is not None and not f.one_outer:
        return None
    return plan(f.format.spelling, tuple(x.shape), result, False, seeds, x.itemsize)


def with_scale(f: Form, x: Tensor, result: str, seeds: int) -> Plan:
    """A plan that reads scales."""
    found = plan(f.format.spelling, tuple(x.shape), result, True, seeds, x.itemsize)
    assert found is not None
    return found


def guard(x: Tensor) -> Any:
    """A context in which kernels start on x's device."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def launch(kernel: Any, plan: Plan, x: Tensor, *arguments: Any) -> None:
    """Start a kernel with the plan's view on x's device."""
    with guard(x):
        direct(kernel)[(plan.view.programs,)](
            *arguments, plan.view.numbers, spec=plan.spec, tile=plan.view.tile, **plan.options
        )


def seed_numbers(fmt: Form, seed: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """The seed for kernels and how many numbers it holds; None, 0 where none is needed."""
    checked = fmt.checked_seed(seed, anywhere=True)
    if checked is None:
        return None, 0
    return checked.to(x.device, non_blocking=True).contiguous(), checked.numel()


def choose(fmt: Form, x: Tensor) -> QParams:
    """The scale of x, whose elements are in order and at least one."""
    found = one_pass(fmt, x, "scale", 0)
    if found is not None:
        parts = fmt.new_parts(x.shape, x.device)
        work = largest_numerator(fmt, x) if fmt.one_outer else None
        encode(found, x, None, work, parts, None)
        return parts
    if fmt.means:
        return reference.choose_qparams(x, fmt.format)
    return _finished(fmt, x, _merged(fmt, x))


def largest_numerator(fmt: Form, x: Tensor) -> Tensor:
    """The bits of what the outer scale is chosen from, int32 [1]."""
    found = plan(fmt.format.spelling, tuple(x.shape), "largest", False, 0, x.itemsize)
    assert found is not None
    work = torch.zeros(1, dtype=torch.int32, device=x.device)
    launch(ranges.largest_numerator, found, x, x, work)
    return work


def _merged(fmt: Form, x: Tensor) -> Tensor:
    """The extremes of each block, int32 [3, blocks]."""
    found = plan(fmt.format.spelling, tuple(x.shape), "extremes", True, 0, x.itemsize)
    assert found is not None
    count = torch.Size(fmt.scale_shape(x.shape)).numel()
    work = torch.zeros(3, count, dtype=torch.int32, device=x.device)
    launch(ranges.merge_extremes, found, x, x, work, count)
    return work


def _finished(fmt: Form, x: Tensor, work: Tensor) -> QParams:
    shape, count = fmt.scale_shape(x.shape), work.shape[1]
    if fmt.inner is not None:
        high, low = work[0].view(torch.float32), -work[1].view(torch.float32)
        poisoned = work[2] >= 0x7F800000
        found = Ranges(low.reshape(shape), high.reshape(shape), poisoned.reshape(shape))
        return reference.qparams_from_range(*found, fmt.format)
    parts = fmt.new_parts(x.shape, x.device)
    with guard(x):
        direct(ranges.finish)[(cdiv(count, 256),)](
            work, parts.scale, parts.zero_point, count, spec=fmt.spec, columns=256,
            enable_fp_fusion=False,
        )  # fmt: skip
    return parts


def encode(
    found: Plan, x: Tensor, out: Tensor | None, extra: Tensor | None, parts: QParams | None,
    seed: Tensor | None,
) -> None:  # fmt: skip
    """Run `encode_tile`. extra: the gradient, or the largest numerator."""
    scale, outer, zero = parts or (None, None, None)
    outer_count = outer.numel() if outer is not None else 1
    launch(programs.encode_tile, found, x, x, out, extra, scale, outer, zero, seed, outer_count)
