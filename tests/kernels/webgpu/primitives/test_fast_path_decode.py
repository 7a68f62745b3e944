# SPDX-License-Identifier: BSD-3-Clause
"""Which codes are decoded several units at a time, and that their values are right."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.primitives import fast_path
from blockscale.kernels.webgpu.primitives import form as forms
from blockscale.kernels.webgpu.primitives.form import STEP, form, geometry
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import hard
from tests.support.same import same

FULL, HALF, OTHER = torch.float32, torch.bfloat16, torch.float16
MEASURED = [
    ("mxfp8", FULL, 4), ("mxfp8", HALF, 2), ("mxfp4", FULL, 4), ("mxfp4", HALF, 2),
    ("mxfp6", FULL, 4), ("mxint8", HALF, 2), ("nvfp4", FULL, 2), ("nvfp4", HALF, 2),
    ("int8:group32:fp32", FULL, 4), ("int8:group32:bf16", HALF, 2), ("int4", FULL, 4),
    ("int4", HALF, 2), ("uint8:group32:fp32:asym", FULL, 8), ("nf4", FULL, 4), ("nf4", HALF, 2),
    ("fp4:group64:fp16", FULL, 4), ("ternary:group32:fp32", FULL, 4),
    ("binary:group32:fp32", HALF, 2), ("bfp16", HALF, 2), ("int12:group24:e8m0", HALF, 2),
    ("nf4:group32:e8m0/floor", HALF, 2),
]  # fmt: skip


def same_values(shape: tuple[int, ...], fmt: str, dtype: torch.dtype, spoilt: bool = False) -> bool:
    """Whether codes of hard numbers have the reference's values.

    spoilt: every code, and every scale that can be stored, many of which no numbers choose
    """
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(hard(shape, torch.float32), fmt, None)
        if spoilt:
            made = torch.Generator().manual_seed(1)
            bits = torch.randint(0, 256, packed.view(torch.uint8).shape, generator=made)
            packed = bits.to(torch.uint8).view(packed.dtype).reshape(packed.shape)
            word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[parts[0].itemsize]
            ends = torch.iinfo(word)
            scale = torch.randint(ends.min, ends.max, parts[0].shape, generator=made, dtype=word)
            parts[0] = scale.view(parts[0].dtype)
        by = operand(packed, P.from_list(parts, parse(fmt)), fmt, shape[-1])
        expected = P.dequantize(by, dtype)
    with bs.use("webgpu"):
        return same(P.dequantize(by, dtype), expected)


@pytest.mark.some(8)
@pytest.mark.parametrize(("fmt", "dtype", "units"), MEASURED)
def test_what_was_measured(fmt: str, dtype: torch.dtype, units: int) -> None:
    block = geometry((4096,), parse(fmt).block).block
    for shape in ((3, 7 * block), (2, 3, 16, 128), (block,), (1, 1, 9 * block)):
        assert fast_path.units(form(fmt), shape, dtype) == units
        assert same_values(shape, fmt, dtype)
    assert same_values((16, 256 * 4), fmt, dtype, spoilt=True)


@pytest.mark.parametrize("over", [-128, 0, 128])
def test_the_last_workgroup_is_seldom_full(over: int) -> None:
    for fmt, dtype, units in (("int4", HALF, 2), ("uint8:group32:fp32:asym", FULL, 8)):
        shape = (256 * units * 16 // dtype.itemsize + over,)
        assert fast_path.units(form(fmt), shape, dtype) == units
        assert same_values(shape, fmt, dtype)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("fmt", "shape", "dtype"),
    [
        ("mxfp8", (4, 64), OTHER),
        ("uint8:group32:fp32:asym(fp16)", (4, 64), FULL),
        ("uint4:group32:fp16:offset", (4, 64), FULL),
        ("int8:group2:fp32", (4, 64), FULL),  # units have several scales
        ("int8:tensor:fp32", (3, 7), FULL),  # units that are not full
        ("int4:token:fp32", (4, 7), FULL),  # rows that end within a byte
    ],
)
def test_all_else_stays_where_it_was(fmt: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert fast_path.units(form(fmt), shape, dtype) is None
    assert same_values(shape, fmt, dtype)


@pytest.mark.parametrize(
    ("fmt", "shape"), [("int8:tile2x32:fp32", (6, 64)), ("int8:group32:fp32", (4, 60))]
)
def test_boxes_and_what_is_cut_off(fmt: str, shape: tuple[int, ...]) -> None:
    for dtype in (FULL, HALF):
        unit = 16 // dtype.itemsize
        taken = shape[-1] % unit == 0
        assert (fast_path.units(form(fmt), shape, dtype) is not None) == taken
        assert same_values(shape, fmt, dtype)


def test_where_floats_are_a_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARITHMETIC, "native")
    assert fast_path.units(form("mxfp8"), (4, 64), FULL) is None


@pytest.mark.parametrize(("fmt", "dtype"), [("int4", HALF), ("mxfp8", FULL)])
def test_tensors_in_pieces(fmt: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "largest", lambda bits, step=STEP: STEP)
    assert same_values((2, STEP + 512), fmt, dtype)


def test_nothing_is_decoded_to_nothing() -> None:
    assert same_values((0, 32), "mxfp8", FULL)
