# SPDX-License-Identifier: BSD-3-Clause
"""Codes of rows that end within a byte take a second kernel, which packs them."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda import quantize as kernels
from blockscale.kernels.cuda.linear import OPS
from blockscale.kernels.cuda.primitives.plan import form
from blockscale.kernels.cuda.spec import known
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE, wrong
from tests.support.same import same

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("fmt", "columns", "second"),
    [
        ("int4:group16:fp32", 32, False),
        ("int4:group16:fp32", 31, True),
        ("int3:group16:fp32", 32, True),
        ("int8:group16:fp32", 31, False),
        ("int12:group16:fp32", 16, True),
    ],
)
def test_which_codes_are_packed_later(
    fmt: str, columns: int, second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, columns)
    assert wrong(x, fmt) == []
    packed = []
    later = kernels.pack_patterns

    def watched(f, patterns):
        if sys._getframe(1).f_code.co_name != "pack":  # the op, which the comparison calls
            packed.append(patterns.shape)
        return later(f, patterns)

    monkeypatch.setattr(kernels, "pack_patterns", watched)
    assert wrong(x, fmt) == []
    assert bool(packed) == second
    assert set(packed) <= {x.shape}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 80), (2, 3, 48), (33,)])
@pytest.mark.parametrize(
    "fmt", ["nvfp4_token", "uint4:group32:(uint6:token:fp32):asym"], ids=lambda fmt: fmt[:6]
)
def test_outer_scales_of_rows_are_chosen_by_kernels(
    fmt: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by the reference, from ranges; each from its own row alone."""
    x = torch.randn(shape, device=DEVICE)
    x.view(-1)[3], x[0] = torch.nan, x[0] * 1000
    fmt = str(parse(fmt))
    assert wrong(x, fmt) == []
    with bs.use("reference"):
        expected = P.choose_quantize(x, fmt, None)

    def never(*_: object) -> None:
        raise AssertionError("the reference was asked")

    monkeypatch.setattr(reference, "qparams_from_range", never)
    assert all(map(torch.equal, kernels.choose_quantize(x, fmt, None), expected))


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    [
        "int8:tensor:fp32", "binary:tensor:fp32", "uint8:token:fp32:asym", "nvfp4",
        "int4:group32:(uint4:channel0:fp32)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 0), (2, 64), (2, 40_000)], ids=str)
def test_scales(fmt: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device=DEVICE)
    with bs.use("reference"):
        expected = P.choose_qparams(x, fmt)
    with bs.use("cuda"):
        found = P.choose_qparams(x, fmt)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_every_named_format_is_taken() -> None:
    """But for those that are restated with float scales (kernels/restate.py)."""
    unknown = {name for name, fmt in bs.formats().items() if not known((fmt,), ())}
    assert unknown == {"nvfp4_e5m3"}


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", ["mxfp4", "int8:token:fp32", "uint3:group7:fp16:asym", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(fmt: str, dtype: torch.dtype) -> None:
    x = torch.randn(4, 48) * torch.tensor([[1.0], [1e-30], [1e30], [300.0]])
    assert wrong(x, fmt, decodes=dtype) == []


# numpy, in which the interpreter computes, tells of infinities and NaN


def test_strides_of_values_follow_the_input() -> None:
    for x in (
        torch.randn(6, 40).t(),
        torch.randn(2, 8, 4).permute(2, 0, 1),
        torch.randn(8, 9)[::2],
    ):
        assert wrong(x, "int4:group4:fp32") == []


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", ["int4:tensor:fp32", "binary:tensor:fp32", "int8:tensor:fp32"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), (3, 5)], ids=str)
def test_there_and_back(fmt: str, shape: tuple[int, ...]) -> None:
    element = parse(fmt).element
    patterns = torch.randint(0, 2**element.bits, shape).to(torch.uint8)
    codes = element.from_bits(patterns).to(DEVICE)
    with bs.use("cuda"):
        packed = P.pack(codes, fmt)
        assert torch.equal(P.unpack(packed, fmt, shape[-1]), codes)
    with bs.use("reference"):
        assert torch.equal(P.pack(codes, fmt), packed)


def test_how_a_bit_pattern_is_read_is_asked_of_its_family() -> None:
    kinds = {"int4": "signed", "uint4": "plain", "e2m1": "plain", "binary": "binary"}
    for name, kind in kinds.items():
        assert kernels._kind(form(f"{name}:tensor:fp32")) == kind
    known = form("int4:tensor:fp32")
    element = replace(known.spec.element, family="unheard")
    unknown = SimpleNamespace(spec=replace(known.spec, element=element), format=known.format)
    with pytest.raises(TypeError, match="unpacks elements of the family 'unheard'"):
        kernels._kind(unknown)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt",
    ["nvfp4", "nvfp4_token", "nvfp4_e5m3", "e2m1:group32:fp32", "uint4:group8:fp32:asym",
     "nf4:group8:bf16",
     "e2m1:group16:e4m3:recip", "uint4:group16:fp16:offset", "e4m3:group16:e8m0/floor",
     "int12:group16:fp32"],
)  # fmt: skip
def test_errors_of_blocks(fmt: str) -> None:
    """In float64, in one order: a last bit decides between two scales (numerics.md, 3.5)."""
    format_, generator = parse(fmt), torch.Generator().manual_seed(1)
    for shape in ((3, 96), (2, 2, 70), (40,)):
        x = torch.randn(shape, generator=generator)
        rough = x.clone()
        rough.view(-1)[::9], rough.view(-1)[1::17] = 2.0**-140, 0.0
        rough.view(-1)[30], rough.view(-1)[-1] = math.nan, math.inf
        for each in (x, rough, x.bfloat16(), x * 1e-42):
            given = reference.choose_qparams(x * 1.5, format_)
            expected = reference.block_errors(each.float(), given, format_)
            on_device = reference.QParams(*(None if p is None else p.to(DEVICE) for p in given))
            found = kernels.block_errors(each.to(DEVICE), quantizer(on_device, format_))
            assert found is not None and same(found.cpu().reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("fmt", "shape"),
    [
        ("int4:tile2x8:fp32", (4, 16)),
        ("int4:channel1:fp32", (4, 16)),
        ("int4:group48:fp32", (2, 96)),  # no power of two
        ("int4:token:fp32", (2, 4096)),  # parts of blocks
        ("nvfp4", (0, 16)),
    ],
)
def test_errors_of_blocks_that_are_not_for_the_kernel(fmt: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    given = reference.choose_qparams(x, parse(fmt))
    on_device = reference.QParams(*(None if p is None else p.to(DEVICE) for p in given))
    assert kernels.block_errors(x.to(DEVICE), quantizer(on_device, parse(fmt))) is None


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["e2m1:group16:e4m3/four_six", "if4:group16:e4m3"])
def test_formats_that_compare_ask_the_kernel(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, asked = torch.randn(8, 64), []
    by_kernel = OPS._block_errors

    def watched(*args):
        asked.append(by_kernel(*args))
        return asked[-1]

    monkeypatch.setattr(OPS, "_block_errors", watched)
    assert wrong(x, fmt) == []
    assert len(asked) >= 2 and all(errors is not None for errors in asked)
