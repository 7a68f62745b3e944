# SPDX-License-Identifier: BSD-3-Clause
"""Values after a round trip, in one pass, and the gradient that passes it."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.core.reference import FLOATS, QParams
from blockscale.kernels.cuda.primitives import launch as launching
from blockscale.kernels.cuda.primitives.form import Form, floats, form, seed_numbers
from blockscale.kernels.cuda.primitives.plan import Plan, one_pass, with_scale
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import strided_like
from blockscale.kernels.registry import kernel


@kernel("fake_quantize", backend="cuda", supports=known)
@replayed()
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    f, like = form(by.fmt), x
    x = floats(x)
    values = torch.empty_like(x)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, None, values, by.seed)
    return strided_like(like, values)


@kernel("straight_through", backend="cuda", supports=known)
@replayed()
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    f, like = form(by.fmt), gradient
    if gradient.shape != x.shape:
        raise ValueError(
            f"expected a gradient of shape {tuple(x.shape)}, found {tuple(gradient.shape)}"
        )
    if gradient.dtype not in FLOATS:
        ones = torch.ones(x.shape, dtype=torch.float32, device=x.device)
        passes = straight_through(ones, x, by)
        return torch.where(passes != 0, gradient, 0.0)
    x, gradient = floats(x), floats(gradient)
    kept = torch.empty_like(gradient)
    parts = _given_parts(f, x, by)
    if x.numel():
        _run(f, x, parts, gradient, kept, None)
    return strided_like(like, kept)


def _given_parts(f: Form, x: Tensor, by: Quantizer) -> QParams | None:
    """A caller's scale, checked; None where it is to be chosen from x."""
    if by.scale is None:
        f.scale_shape(x.shape)  # raises if the block does not fit
        return None
    return f.given_parts(x, x.shape, by.scale, by.zero_point, by.outer, by.more)


def _run(
    f: Form,
    x: Tensor,
    parts: QParams | None,
    gradient: Tensor | None,
    out: Tensor,
    seed: Tensor | None,
) -> None:
    """Write values of x, or its gradient where that passes, to `out`.

    parts: the given scale, or None to choose one, in the same pass where a block fits a program
    """
    words, seeds = (None, 0) if gradient is not None else seed_numbers(f, seed, x)
    result = "values" if gradient is None else "gradient"
    if parts is None and not (f.one_outer and gradient is not None):
        planned = one_pass(f, x, result, seeds)
        if planned is not None:
            return _chosen(f, planned, x, gradient, out, words)
    parts = parts or f.per_block(launching.choose(f, x))
    launching.encode(with_scale(f, x, result, seeds), x, out, gradient, parts, words)
    return None


def _chosen(
    f: Form,
    planned: Plan,
    x: Tensor,
    gradient: Tensor | None,
    out: Tensor,
    words: Tensor | None,
) -> None:
    """As `_run`, with a plan that chooses scales, of which none is kept."""
    parts = None
    if f.one_outer:
        outer = torch.empty(1, dtype=torch.float32, device=x.device)
        parts = QParams(outer, outer)  # the first is not written
        gradient = launching.largest_numerator(f, x)
    launching.encode(planned, x, out, gradient, parts, words)
