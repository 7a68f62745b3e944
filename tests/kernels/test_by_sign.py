# SPDX-License-Identifier: BSD-3-Clause
"""`if4` by kernels of its two grids: the reference's bits, and no slow way in any op."""

import gc
import math
import warnings

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels import cpu
from blockscale.kernels.by_sign import grids
from blockscale.kernels.registry import KERNELS
from blockscale.ops import primitives as P
from tests.kernels.restated import awkward, runs
from tests.support.same import same
from tests.support.set_aside import set_aside
from tests.support.some import crossed

if isinstance(native := cpu.load(), str):
    pytest.skip(native, allow_module_level=True)

from blockscale.kernels.cpu.linear import OPS

IF4 = "if4:group16:e4m3"
FORMATS = (
    IF4,
    "if4:group16:(e4m3:token:fp32)",
    "if4:group16:fp32:recip",
    "if4:token:fp16",
    "if4:flat16:bf16",
    "if4:flat24:fp32",
    "if4:tile2x8:e5m2/inv",
)
SHAPES = ((4, 48), (3, 5, 20), (2, 16), (0, 16))


@pytest.fixture(autouse=True)
def _no_reference():
    """A call that no kernel runs warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """Ordinary numbers; NaN, infinities and zeros; subnormals; ties between the grids' values."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator)
    ties = torch.randint(-14, 15, shape, generator=generator) * 3.0 / 7.0
    return [x, awkward(shape), x * 1e-42, x.bfloat16(), torch.zeros(shape), ties, x * 1e38]


@pytest.mark.parametrize(("fmt", "shape"), crossed(12, FORMATS, SHAPES))
def test_bits_are_the_references(fmt: str, shape: tuple[int, ...]) -> None:
    for x in inputs(shape):
        with bs.use("reference"):
            q, faked = bs.quantize(x, fmt), bs.fake_quantize(x, fmt)
            values, halves = q.dequantize(), q.dequantize(torch.float16)
            kept = P.straight_through(torch.ones_like(x), x, Quantizer(None, None, None, fmt, None))
        assert same(bs.fake_quantize(x, fmt), faked)
        mine = bs.quantize(x, fmt)
        for part, theirs in zip(P.to_list(mine.qparams), P.to_list(q.qparams), strict=True):
            assert same(part, theirs)
        assert same(mine.operand.codes, q.operand.codes)
        assert same(q.dequantize(), values) and same(q.dequantize(torch.float16), halves)
        got = P.straight_through(torch.ones_like(x), x, Quantizer(None, None, None, fmt, None))
        assert same(got, kept)


def test_every_code_under_scales_of_both_signs() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(4, 1)
    scale = torch.tensor([[0.3], [-0.3], [math.nan], [-math.inf]])
    packed = P.pack(codes, "if4:group16:fp32")
    stored = Operand(packed, scale, None, None, "if4:group16:fp32", 16)
    with bs.use("reference"):
        expected = P.dequantize(stored, torch.float32)
    assert same(P.dequantize(stored, torch.float32), expected)
    assert torch.equal(P.unpack(packed, "if4:group16:fp32", 16), codes)


def test_two_grids() -> None:
    floats, written, read = grids(IF4, encode=True)
    assert floats == parse("e2m1:group16:fp32")
    assert len(written.element.table) == 15 and len(read.element.table) == 16
    assert grids("nvfp4", encode=True) is None
    recip = "if4:group16:e4m3:recip"  # its reciprocals are not those of its steps
    assert grids(recip, encode=False) is not None and grids(recip, encode=True) is None
    assert not runs("cpu", "quantize", recip) and runs("cpu", "dequantize", recip)


@pytest.mark.parametrize(
    ("weight", "given"),
    [
        (IF4, None),
        (IF4, "if4:group16:(e4m3:token:fp32)"),
        ("nvfp4", IF4),
        (IF4, "nvfp4_token"),
        ("if4:flat16:fp16", "e2m1:group16:e4m3/four_six"),
    ],
)
def test_products_are_near_the_references(weight: str, given: str | None) -> None:
    torch.manual_seed(0)
    for model, x in (
        (torch.nn.Linear(64, 24), torch.randn(5, 64)),
        (torch.nn.Conv2d(16, 8, 3), torch.randn(2, 16, 6, 6)),
        (torch.nn.ConvTranspose2d(16, 8, 3), torch.randn(2, 16, 4, 4)),
    ):
        made = torch.nn.Sequential(model)
        bs.quantize_(made, bs.Recipe(weight, given))
        with torch.no_grad(), bs.use("reference"):
            expected = made(x)
        with torch.no_grad():
            torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-5)


def test_a_row_alone_has_its_bits() -> None:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(64, 24))
    bs.quantize_(made, bs.Recipe(IF4, "if4:group16:(e4m3:token:fp32)"))
    x = torch.randn(7, 64)
    with torch.no_grad(), bs.use(batch_invariant=True):
        assert torch.equal(made(x)[3:4], made(x[3:4]))


def test_an_embedding_is_the_references() -> None:
    torch.manual_seed(0)
    for fmt in (IF4, "if4:tensor:fp32"):
        made = torch.nn.Sequential(torch.nn.Embedding(10, 32))
        bs.quantize_(made, bs.Recipe(fmt))
        indices = torch.tensor([[3, 3], [9, 0]])
        with bs.use("reference"):
            expected = made(indices)
        assert same(made(indices), expected)
        with pytest.raises(IndexError, match="out of range"):
            made(torch.tensor([10]))


def test_what_is_kept_beside_a_weight_goes_with_it_and_follows_it() -> None:
    joint = next(
        each for each in registered("linear") if type(each).__module__.endswith("by_sign")
    )._joint
    made = torch.nn.Sequential(torch.nn.Linear(64, 24))
    bs.quantize_(made, bs.Recipe(IF4))
    set_aside()
    x, before = torch.randn(1, 64), len(joint)
    first = made(x)
    made(x)
    assert len(joint) == before + 1
    weight = made[0].weight
    weight.operand.codes.zero_()
    assert not torch.equal(made(x), first)
    del made, weight, first
    gc.collect()
    assert len(joint) == before


def registered(op: str) -> list[object]:
    """What the kernels of an op on the CPU are methods of."""
    owners = (getattr(kernel.run, "__self__", None) for kernel in KERNELS[op, "cpu"])
    return [owner for owner in owners if owner is not None and owner is not OPS]


def test_errors_of_blocks_of_both_grids() -> None:
    fmt, x = parse(IF4), awkward((6, 48))
    qparams = bs.quantize(torch.randn(6, 48), IF4).qparams  # signs of both kinds
    assert qparams.scale.ge(128).any() and qparams.scale.lt(128).any()
    assert same(P.block_errors(x, qparams, fmt), reference.block_errors(x, qparams, fmt))
