# SPDX-License-Identifier: BSD-3-Clause
"""Integer arithmetic is exact: sums against numpy's int64, where every bit can be told."""

import pytest
import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cpu.linear import as_integers, row_block
from blockscale.kernels.cpu.native import linear_weight
from tests.support.cpu_linear import NOTHING, packed, run, stored
from tests.support.cpu_linear_integers import NEVER_WRONG, exact, near, weight_of

POWERS = "int8:group32:e8m0/floor"


def whole(*shape: int, most: int = 127) -> Tensor:
    return torch.randint(-most, most + 1, shape).to(torch.int8)


def token_input(codes: Tensor) -> tuple[Tensor, Tensor]:
    """An x whose int8 codes by row are these, and the scale of each row."""
    codes[:, 0] = 127
    scale = torch.rand(codes.shape[0], 1) + 0.5
    x = codes.float() * scale
    chosen = reference.choose_qparams(x, parse("int8:token:fp32"))
    assert torch.equal(reference.quantize(x, chosen, parse("int8:token:fp32")), codes)
    return x, chosen.scale.double()


@pytest.mark.some(4)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 4, 7, 12, 13, 30])
def test_whole_rows(isa: str, bits: int, m: int) -> None:
    del isa
    fmt = f"int{bits}:channel0:fp32:full"
    k, n = 270, 67
    w = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (n, k)).to(torch.int8)
    scale = torch.rand(n, 1) + 0.5
    x, x_scale = token_input(whole(m, k))
    codes = reference.quantize(x, reference.QParams(x_scale.float()), parse("int8:token:fp32"))
    weight = weight_of(w, fmt, scale)
    near(run(x, weight, fmt, "int8:token:fp32"), exact(codes, w) * scale.double().T * x_scale)


@pytest.mark.some(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [200, 5600])
def test_many_rows(isa: str, k: int, threads: int) -> None:
    """Tile by tile in memory that each thread uses again; of a larger weight, all rows first."""
    del isa
    m, n = 131, 130
    w, scale = whole(n, k), torch.rand(n, 1) + 0.5
    codes = whole(m, k)
    x, x_scale = token_input(codes)
    weight = weight_of(w, "int8:channel0:fp32", scale)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = run(x, weight, "int8:channel0:fp32", "int8:token:fp32")
    finally:
        torch.set_num_threads(before)
    near(y, exact(codes, w) * scale.double().T * x_scale)


@pytest.mark.some(4)
@pytest.mark.parametrize("k", [64, 65536, 70000, 140000])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_the_largest_sums(isa: str, k: int, sign: int) -> None:
    """All codes at ±127 and -128; sign 0: half of each, and what is left of the sum is small."""
    del isa
    fmt = "int8:channel0:fp32:full"
    w = torch.full((3, k), 127, dtype=torch.int8)
    w[1], w[2, ::2] = -128, -128
    codes = torch.full((2, k), 127 * (sign or 1), dtype=torch.int8)
    if sign == 0:
        codes[:, k // 2 :] = -127
        codes[:, 5] = 126
    scale = torch.tensor([[0.75], [1.0], [0.5]])
    x = codes.float()  # its scale is 1
    y = run(x, weight_of(w, fmt, scale), fmt, "int8:token:fp32")
    expected = exact(codes, w) * scale.double().T
    if k <= 65536:
        near(y, expected)
    else:  # sums of two parts and more, each of them exact
        parts = exact(codes[:, :65536], w[:, :65536]).abs() * scale.double().T
        assert ((y.double() - expected).abs() <= NEVER_WRONG * parts).all()


@pytest.mark.parametrize("m", [1, 5, 6, 19])
def test_powers_of_two_are_exact_to_the_last_bit(isa: str, m: int) -> None:
    """Blocks of both, scales 2^n: float32 sums of few bits do not round at all."""
    del isa
    k, n = 96, 40
    x_codes, w_codes = whole(m, k, most=15), whole(n, k, most=15)
    x_codes[:, ::32] = 15  # decides the scale of each block
    powers = torch.randint(-2, 3, (m, 3))
    x = x_codes.float() * torch.pow(2.0, powers.repeat_interleave(32, 1).float())
    w_bytes = torch.randint(131, 136, (n, 3)).to(torch.uint8)
    steps = torch.pow(2.0, w_bytes.double() - 127 - 6).repeat_interleave(32, 1)
    y = run(x, weight_of(w_codes, POWERS, w_bytes), POWERS, POWERS)
    assert torch.equal(y.double(), x.double() @ (w_codes.double() * steps).T)


@pytest.mark.parametrize(
    "fmt",
    [
        *("uint4:group32:pow2/ceil:asym", "uint8:channel0:pow2/ceil:asym"),
        *("int8:group16:pow2/ceil:asym", "uint5:channel0:pow2/ceil"),
    ],
)
def test_zero_points(isa: str, fmt: str) -> None:
    del isa
    form = parse(fmt)
    k, n, m = 96, 35, 8
    size = form.block.scale_shape((n, k))
    low, high = (int(v) for v in form.element.limits(True))
    w = torch.randint(low, high + 1, (n, k)).to(form.element.code_dtype)
    zero = torch.randint(low, high + 1, size).to(torch.int32) if form.asym else None
    w[3] = low if zero is None else int(zero[3, 0])  # this row means 0 or nearly
    x_codes = whole(m, k)
    x_codes[:, 0] = 127
    x = x_codes.float()
    weight = weight_of(w, fmt, torch.ones(size), zero)
    y = run(x, weight, fmt, "int8:token:fp32")
    offset = 0 if zero is None else form.block.expand(zero, (n, k)).long()
    near(y, exact(x_codes, w.long() - offset))


def test_integers_are_really_used() -> None:
    """The tests above would pass with float32 sums of few bits: ask the native call itself."""
    used = {
        ("int8:channel0:fp32", "int8:token:fp32", 64): True,
        ("int4:group32:fp32", "int8:group64:fp32", 128): True,
        ("int8:group64:e8m0/floor", "int8:group32:e8m0/floor", 128): True,
        ("ternary:channel0:fp32", "int4:token:fp32", 33): True,
        ("uint8:tensor:fp32:asym", "int8:tensor:fp32", 100): True,
        ("int8:group24:fp32", "int8:token:fp32", 64): False,
        ("int8:group48:fp32", "int8:group32:fp32", 96): False,
        ("int16:tensor:fp32", "int8:token:fp32", 64): False,
        ("e2m1:group32:e8m0/floor", "int8:token:fp32", 64): False,
        ("int8:channel0:fp32", "e4m3:token:fp32", 64): False,
        ("int8:channel0:fp32", "uint8:token:fp32", 64): True,
        ("int8:channel0:fp32", "uint8:token:fp32:asym", 64): True,
        ("uint4:group32:fp32:asym", "uint8:tensor:fp32:asym", 70): True,
        ("int8:group16:e8m0/floor", "int4:group32:fp32:asym", 64): True,
        ("int8:channel0:fp32", "uint3:tensor:e8m0/ceil", 65): True,
        ("int8:channel0:fp32", "uint8:token:fp32:offset", 64): False,
        ("int8:channel0:fp32", "uint8:group24:fp32:asym", 64): False,
        ("uint4:group32:fp32:offset", "int8:token:fp32", 64): False,
        ("int4:group32:fp32", "int8:token:fp32:offset", 64): False,
        ("nf4:group32:fp32", "int8:token:fp32", 64): False,
        ("int8:channel0:fp32", "int8:channel-1:fp32", 64): False,
    }
    for (fmt, input_fmt, k), expected in used.items():
        x, y = torch.randn(3, k), torch.empty(3, 5)
        weight = stored(torch.randn(5, k), fmt)  # what is prepared reads it as long as it lives
        ready = linear_weight(packed(weight, fmt, k))
        block = row_block(input_fmt, 2)
        found = block is not None and as_integers(
            ready, x, block, Quantizer(*NOTHING, input_fmt), None, y
        )
        assert found == expected, (fmt, input_fmt)


def test_steps_out_of_range_leave_integers() -> None:
    """NaN and huge steps: float arithmetic knows what they mean. Blocks of zeros do not matter."""
    fmt = "int8:channel0:fp32"
    x, codes, scale = torch.randn(3, 32), whole(4, 32), torch.ones(4, 1)
    for bad in (torch.nan, torch.inf, 1e30, 1e-30):
        scale[2] = bad
        weight = weight_of(codes, fmt, scale.clone())
        y = run(x, weight, fmt, "int8:token:fp32")
        q = reference.choose_qparams(x, parse("int8:token:fp32"))
        values = reference.fake_quantize(x, q, parse("int8:token:fp32")).double()
        expected = values @ (codes.double() * scale.double()).T
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=0, equal_nan=True)
