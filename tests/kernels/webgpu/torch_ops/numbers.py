# SPDX-License-Identifier: BSD-3-Clause
"""Numbers that are hard, and comparisons with what torch computes on the CPU."""

import torch
from torch import Tensor

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def hard(dtype: torch.dtype = torch.float32, count: int = 2048) -> Tensor:
    """Any bits [count]: subnormals, zeros, infinities and NaN among them, ordinary ones as well."""
    generator = torch.Generator().manual_seed(count)
    whole = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    bits = whole.to(torch.int32).view(torch.float32)
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0, 2.0**-126]
    special += [2.0**-149, -(2.0**-149), 2.0**-127, 3.4028234663852886e38, 0.1, -0.3]
    ordinary = torch.randn(count, generator=generator)
    return torch.cat([torch.tensor(special), bits, ordinary]).to(dtype)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Each of some numbers with each, and any bits with any."""
    few, many = hard(dtype, 24), hard(dtype)
    a, b = torch.cartesian_prod(few, few).T
    other = many[torch.randperm(many.numel(), generator=torch.Generator().manual_seed(1))]
    return torch.cat([a, many]), torch.cat([b, other])


def same(found: Tensor, expected: Tensor) -> bool:
    """Equal to the bit, on the CPU; every NaN is one."""
    found = found.cpu()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not expected.dtype.is_floating_point:
        return torch.equal(found, expected)
    nan = torch.isnan(expected)
    signs = torch.equal(torch.signbit(found[~nan]), torch.signbit(expected[~nan]))
    return (
        torch.equal(torch.isnan(found), nan) and torch.equal(found[~nan], expected[~nan]) and signs
    )


def near(found: Tensor, expected: Tensor, ulps: float, least: float = 0.0) -> bool:
    """Within so many units in the last place of what float64 gives, or within `least`."""
    found = found.cpu()
    exact = expected.double()
    wide = found.double()
    finite = torch.isfinite(expected.to(found.dtype))
    if not torch.equal(torch.isfinite(found), finite):
        return False
    step = torch.finfo(found.dtype).eps * exact.abs().clamp_min(torch.finfo(found.dtype).tiny)
    off = (wide - exact).abs() <= ulps * step + least
    return bool((off | ~finite).all())
