# SPDX-License-Identifier: BSD-3-Clause
"""The primitives: what they are given as ops, gradients, and what torch's wrappers do to them."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from tests.support.op_samples import FORMATS, K, Made, bits
from tests.support.oracle import Oracle, QParams


def samples(made: Made) -> dict[str, list[tuple]]:
    x, fmt = made.x, made.fmt
    return {
        "choose_qparams": [(x, fmt)],
        "choose_beside": [(x, torch.full((1,) * x.ndim, 0.01), fmt)],
        "choose_quantize": [(x, fmt, made.seed)],
        "quantize": [(x, made.given), (x, made.chosen)],
        "dequantize": [(made.packed, made.dtype)],
        "fake_quantize": [(x, made.chosen), (x, made.given)],
        "straight_through": [(x * 2, x, made.chosen), (x * 2, x, made.given)],
        "pack": [(P.unpack.reference(made.packed.codes, fmt, K), fmt)],
        "unpack": [(made.packed.codes, fmt, K)],
    }


# (format, stored scale, outer, zero point) of a static scale of [1, 1]
GIVEN = [
    ("int8:tensor:fp32", [0.1], None, None),
    ("int4:tensor:fp32:full:toward_zero", [0.3], None, None),
    ("uint8:tensor:bf16:asym:nearest_away", [0.125], None, [100]),
    ("int3:tensor:fp32:asym:up", [1.7], None, [-3]),
    ("int8:tensor:e8m0/floor", [120], None, None),
    ("e4m3:tensor:fp32", [0.013], None, None),
    ("e5m2:tensor:pow2/ceil:down", [0.5], None, None),
    ("e2m1:tensor:e4m3:recip", [0x3C], [0.7], None),
    ("log4:tensor:fp32", [0.9], None, None),
    ("binary:tensor:fp32", [0.35], None, None),
    ("ternary:tensor:fp16:stochastic", [0.25], None, None),
]


def boundaries(oracle: Oracle, step: float, zero: int) -> Tensor:
    """Numbers on, just inside and just outside every place where the mask may change."""
    edges = [s * (float(oracle.levels) + n) - zero for s in (1, -1) for n in (-1, 0, 1)]
    steps = [e + d / 4 for e in edges for d in range(-7, 8)]
    steps += [e * (1 + d / 32) for e in edges for d in range(-12, 13)]
    x = (torch.tensor(steps, dtype=torch.float64) * step).float()
    ulps = [torch.nextafter(x, torch.tensor(s * math.inf)) for s in (1, -1)]
    odd = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, 1e-45])
    return torch.cat([x, *ulps, odd])[None]


@pytest.mark.some(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("fmt", "scale", "outer", "zero"), GIVEN)
def test_gradient(fmt: str, scale, outer, zero, dtype: torch.dtype) -> None:
    """numerics.md, section 5, from the rational oracle: for a given and for a chosen scale."""
    oracle, form = Oracle(fmt), parse(fmt)
    given = QParams(scale, outer, zero)
    x = boundaries(oracle, oracle.steps(given, (1, 1))[0], zero[0] if zero else 0).to(dtype)
    for values, chosen in ((x, given), (x, None), (x[x.float().abs() < 1e30][None], None)):
        flat, shape = values.double().flatten().tolist(), tuple(values.shape)
        parts = chosen or oracle.choose(flat, shape)
        mask = torch.tensor(oracle.in_range(flat, shape, parts)).reshape(shape)
        stored = [None, None, None]
        if chosen:
            stored[0] = torch.tensor([scale]).to(form.scale.dtype)
            stored[1] = None if zero is None else torch.tensor([zero], dtype=torch.int32)
            stored[2] = None if outer is None else torch.tensor([outer])
        wanted, seed = values.clone().requires_grad_(), torch.tensor(9)
        gradient = torch.randn(shape).to(dtype)
        P.fake_quantize(wanted, Quantizer(*stored, fmt, seed)).backward(gradient)
        assert bits(wanted.grad) == bits(torch.where(mask, gradient, 0.0))


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_strides_change_nothing(fmt: str) -> None:
    wide = torch.randn(2 * K, 10)
    for x in (wide[::2, ::2].t(), wide[:, 3:8].t()[:, :K], wide[:1, :5].t().expand(5, K)):
        seed, plain = torch.tensor([1, 2]), x.contiguous()
        assert bits(P.choose_quantize(x, fmt, seed)) == bits(P.choose_quantize(plain, fmt, seed))
        grads = []
        for each in (x, plain):
            wanted = each.clone().requires_grad_()
            P.fake_quantize(wanted, Quantizer(None, None, None, fmt, seed)).backward(
                wide.t()[:5, :K]
            )
            grads.append(wanted.grad)
        assert bits(grads[0]) == bits(grads[1])


def test_torch_wrappers() -> None:
    """Autocast casts nothing, checkpoint draws the same numbers, vmap takes each sample alone."""
    x = torch.randn(4, 3, K, requires_grad=True)
    for fmt in ("int8:token:fp32", "e2m1:group16:e4m3", FORMATS[-1]):
        plain = bs.fake_quantize(x, fmt, seed=3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert bits(bs.fake_quantize(x, fmt, seed=3)) == bits(plain)
        grads = []
        for run in (lambda f, v: f(v), lambda f, v: checkpoint(f, v, use_reentrant=False)):
            torch.manual_seed(5)
            y = run(lambda v, fmt=fmt: v * bs.fake_quantize(v, fmt), x)
            grads.append(torch.autograd.grad(y.sum(), x)[0])
        assert bits(grads[0]) == bits(grads[1]), fmt
    each = torch.stack([bs.fake_quantize(v, "int8") for v in x])
    assert bits(torch.func.vmap(lambda v: bs.fake_quantize(v, "int8"))(x)) == bits(each)
