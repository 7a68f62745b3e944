# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the primitives started on tensors: choosing scales and encoding.

No launch waits for the device, and none takes memory but what torch's allocator gives, so CUDA
graphs hold them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.reference import QParams, Ranges
from blockscale.kernels.cuda.primitives import encoding, ranges
from blockscale.kernels.cuda.primitives.extremes import NOTHING
from blockscale.kernels.cuda.primitives.plan import Form, LaunchPlan, one_pass
from blockscale.kernels.cuda.primitives.plan import plan as plan_for
from blockscale.kernels.cuda.relaunch import cdiv, direct


def guard(x: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels start on x's device."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def launch(kernel: Any, plan: LaunchPlan, x: Tensor, *arguments: Any) -> None:
    """Start a kernel as planned on x's device. arguments: its own, in order, before its Extents"""
    with guard(x):
        direct(kernel)[(plan.tiling.programs,)](
            *arguments, plan.tiling.extents, spec=plan.spec, tile=plan.tiling.tile, **plan.options
        )


def choose(fmt: Form, x: Tensor) -> QParams:
    """The scale of x, which is contiguous and not empty."""
    plan = one_pass(fmt, x, "scale", 0)
    if plan is not None:
        parts = fmt.new_parts(x.shape, x.device)
        work = largest_numerator(fmt, x) if fmt.inner else None
        encode(plan, x, None, work, parts, None)
        return parts
    if fmt.means:
        return reference.choose_qparams(x, fmt.format)
    return _finish(fmt, x, _merged(fmt, x))


def largest_numerator(fmt: Form, x: Tensor) -> Tensor:
    """The bits of the numbers that outer scales are chosen from, int32 [outer scales]."""
    plan = plan_for(fmt.format.spelling, tuple(x.shape), "largest", False, 0, x.itemsize)
    assert plan is not None
    work = torch.zeros(outer_count(fmt, x), dtype=torch.int32, device=x.device)
    launch(ranges.largest_numerator, plan, x, x, work, plan.row)
    return work


def outer_count(fmt: Form, x: Tensor) -> int:
    """How many outer scales a tensor of this shape has."""
    assert fmt.outer_shape is not None
    return torch.Size(fmt.outer_shape(fmt.scale_shape(x.shape))).numel()


def _merged(fmt: Form, x: Tensor) -> Tensor:
    """The extremes of each block, int32 [3, blocks] (ranges.merge_extremes)."""
    plan = plan_for(fmt.format.spelling, tuple(x.shape), "extremes", True, 0, x.itemsize)
    assert plan is not None
    count = torch.Size(fmt.scale_shape(x.shape)).numel()
    if fmt.spec.offset:
        work = torch.full((3, count), NOTHING.value, dtype=torch.int32, device=x.device)
    else:
        work = torch.zeros(3, count, dtype=torch.int32, device=x.device)
    launch(ranges.merge_extremes, plan, x, x, work, count)
    return work


def _finish(fmt: Form, x: Tensor, work: Tensor) -> QParams:
    """The scale of x from the extremes of its blocks; the reference chooses two levels' scales."""
    shape, count = fmt.scale_shape(x.shape), work.shape[1]
    if fmt.inner is not None:
        low, high = _as_range(fmt, work)
        has_nan = work[2] >= 0x7F800000
        of_blocks = Ranges(low.reshape(shape), high.reshape(shape), has_nan.reshape(shape))
        return reference.qparams_from_range(*of_blocks, fmt.format)
    parts = fmt.new_parts(x.shape, x.device)
    with guard(x):
        direct(ranges.finish)[(cdiv(count, 256),)](
            work, parts.scale, parts.zero_point, parts.offset, count, spec=fmt.spec, columns=256,
            enable_fp_fusion=False,
        )  # fmt: skip
    return parts


def _as_range(fmt: Form, work: Tensor) -> tuple[Tensor, Tensor]:
    """As extremes.as_range, on the host."""
    if not fmt.spec.offset:
        return -work[1].view(torch.float32), work[0].view(torch.float32)
    patterns = work[:2] ^ ((work[:2] >> 31) & 0x7FFFFFFF)
    ends = patterns.view(torch.float32).masked_fill(work[:2] == NOTHING.value, 0.0)
    return 0.0 - ends[1], ends[0]  # never -0


def encode(
    plan: LaunchPlan, x: Tensor, out: Tensor | None, extra: Tensor | None, parts: QParams | None,
    seed: Tensor | None,
) -> None:  # fmt: skip
    """Run the kernel `encode_tile` on x, which is contiguous and not empty.

    out: memory for codes or values, or None where scales alone are asked for
    extra: the gradient, or `largest_numerator`
    parts: the scales, given or memory for them; None where they are chosen and not kept
    seed: of `form.seed_numbers`
    """
    scale, outer, zero, offset = parts[:4] if parts else (None,) * 4
    every = outer.numel() if outer is not None and not plan.tiling.tile.outers else plan.row
    launch(
        encoding.encode_tile, plan, x, x, out, extra, scale, outer, zero, offset, seed,
        every,
    )  # fmt: skip
