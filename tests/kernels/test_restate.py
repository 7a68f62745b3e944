# SPDX-License-Identifier: BSD-3-Clause
"""What exotic formats are restated as, and that their steps and offsets keep every bit."""

from dataclasses import replace

import pytest
import torch

from blockscale.core import reference
from blockscale.core.block import read_block
from blockscale.core.parse import parse
from blockscale.kernels.restate import (
    _offsets,
    _steps,
    choose_scales,
    for_decoding,
    for_encoding,
    in_blocks,
    in_rows,
    restated_parts,
)
from tests.kernels.restated import FORMATS, UNCHOSEN, given
from tests.support.same import same


@pytest.mark.parametrize(
    ("fmt", "decoding", "encoding"),
    [
        ("int4:group32:(int6:group16:fp16)", "int4:group32:fp32", True),
        ("e2m1:group16:e4m3/inv:recip", "e2m1:group16:fp32:recip", True),
        ("int4:group8:(uint6:group4:fp16):recip", "int4:group8:fp32:recip", False),
        ("int4:group32:fp16:signed", "int4:group32:fp16:full", True),
        ("int8:group8:e8m0/given", "int8:group8:e8m0/floor", True),
        ("int8:group8:pow2/given", "int8:group8:fp32", True),  # a given one is any number
        ("int4:flat64:fp32", "int4:flat64:fp32", True),
        ("uint4:group8:(uint6:group4:fp16):offset(uint6:group4:fp16)",
         "uint4:group8:fp32:offset(fp32)", True),
        ("uint4:group8:fp16:offset(token:fp16)", "uint4:group8:fp16:offset(fp32)", True),
        ("uint4:group8:fp16:offset(group16:bf16)", "uint4:group8:fp16:offset(fp32)", True),
        ("uint4:group8:fp16:asym(fp16)", None, False),
        ("uint4:group8:fp16:offset(group4:fp16)", None, False),  # several offsets in a block
        ("uint4:group8:fp16:offset(group12:fp16)", None, False),
        ("uint4:flat8:fp16:offset(group16:fp16)", None, False),
        ("uint4:flat8:fp16:offset(flat16:fp16)", "uint4:flat8:fp16:offset(fp32)", True),
        ("uint4:flat8:fp16:offset(flat12:fp16)", None, False),
        ("uint4:flat8:fp16:offset(tensor:fp16)", "uint4:flat8:fp16:offset(fp32)", True),
        ("e2m1:group16:e4m3", None, False),
        ("int4:group32:fp32", None, False),
        ("nf4:group64:fp32", None, False),
        ("uint4:group32:fp16:offset", None, False),
    ],
)  # fmt: skip
def test_what_formats_are_restated_as(fmt: str, decoding: str | None, encoding: bool) -> None:
    found = for_decoding(parse(fmt))
    assert found == (None if decoding is None else parse(decoding))
    assert for_encoding(parse(fmt)) == (found if encoding else None)


def test_blocks_within_rows() -> None:
    for flat, shape, expected in [
        ("flat64", (3, 128), "group64"),
        ("flat64", (3, 96), "group32"),
        ("flat7", (3, 96), "group1"),
        ("flat64", (8, 16), "group16"),
        ("flat64", (3, 0), "group64"),
        ("flat4@0", (4, 10), "channel1"),
        ("flat4@0", (10, 4), "group1"),
        ("tile2x2", (10, 4), "tile2x2"),
    ]:
        assert str(in_rows(read_block(flat), shape)) == expected


def test_a_tensor_seen_in_blocks() -> None:
    assert in_blocks((6, 8), read_block("tile2x4")) == [3, 2, 2, 4]
    assert in_blocks((6, 8), read_block("token")) == [6, 1, 1, 8]
    assert in_blocks((6, 8), read_block("flat16")) == [3, 16]
    assert in_blocks((6, 8), read_block("flat4@0")) == [1, 4, 12, 1]
    assert in_blocks((6, 8), read_block("group3")) is None
    assert in_blocks((6, 8), read_block("flat10")) is None


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
@pytest.mark.parametrize("odd", [False, True])
def test_steps_and_offsets_are_the_references(fmt: str, odd: bool) -> None:
    form = parse(fmt)
    for shape in ((8, 96), (4, 40), (3, 4, 64)):
        for seed in range(5):
            qparams = given(fmt, shape, seed, odd)
            if qparams.outer is not None:
                assert same(_steps(qparams, form), reference.step_of(qparams, form))
            if qparams.offset is not None:
                expected = form.offset.value(qparams.offset, qparams.offset_outer)
                assert same(_offsets(qparams, form), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", [*FORMATS, *UNCHOSEN])
def test_restated_parts_give_the_same_values(fmt: str) -> None:
    form = parse(fmt)
    for shape in ((8, 96), (4, 40), (3, 4, 64), (5, 20)):
        plain = for_decoding(form)
        plain = replace(plain, block=in_rows(plain.block, shape))
        qparams, x = given(fmt, shape, 3, odd=True), torch.randn(shape)
        codes = reference.quantize(x, qparams, form, torch.tensor(1))
        parts = restated_parts(qparams, form, plain, shape)
        assert {n: tuple(p.shape) for n, p in parts._asdict().items() if p is not None} == {
            n: own for n, (_, own) in plain.stored(shape).items()
        }
        expected = reference.dequantize(codes, qparams, form, torch.float32)
        assert same(reference.dequantize(codes, parts, plain, torch.float32), expected)
        if for_encoding(form) is not None:
            again = reference.quantize(x, parts, plain, torch.tensor(1))
            assert torch.equal(again, codes)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
def test_chosen_scales_are_the_references(fmt: str) -> None:
    form = parse(fmt)
    asked = []

    def scale_of(x: torch.Tensor, plain) -> torch.Tensor:
        asked.append(plain)
        return reference.choose_qparams(x, plain).scale

    for shape in ((8, 96), (3, 4, 64)):
        x = torch.randn(shape)
        for each in (
            x,
            x.bfloat16(),
            x * 1e-39,
            torch.zeros(shape),
            x.masked_fill(x > 1, torch.nan),
        ):
            found, expected = (
                choose_scales(each, form, scale_of),
                reference.choose_qparams(each, form),
            )
            for mine, theirs in zip(found, expected, strict=True):
                assert mine is theirs is None or same(mine, theirs)
    assert bool(asked) == form.element.uses_range


@pytest.mark.parametrize("fmt", ["e2m1:group16:ue5m3", "e2m1:group16:e4m3/four_six"])
def test_blocks_of_zeros_and_nan_are_no_slow_way(fmt: str, monkeypatch) -> None:
    """A row of padding, or one NaN, made the reference choose the scales of all others."""
    form, x = parse(fmt), torch.randn(8, 96)
    x[0], x[1, :16], x[2, 3], x[3, 70], x[4] = 0.0, -0.0, torch.nan, torch.inf, x[4] * 1e-42
    expected = reference.choose_qparams(x, form)

    def scale_of(x: torch.Tensor, plain) -> torch.Tensor:
        """int2 under fp32 or e8m0: what kernels tell of magnitudes."""
        blocks = x.reshape(*x.shape[:-1], -1, 16)
        if str(plain.scale).startswith("e8m0"):
            return torch.where(blocks.isfinite().all(-1), 127, 255).to(torch.uint8)
        return torch.where(blocks.isfinite(), blocks.abs(), 0.0).amax(-1).clamp(min=2.0**-126)

    monkeypatch.setattr(reference, "ranges", None)
    found = choose_scales(x, form, scale_of)
    assert same(found.scale, expected.scale)
    if found.outer is not None:
        assert same(found.outer, expected.outer)


def test_an_offset_is_never_infinite() -> None:
    """Its scale was rounded up: the largest code would be beyond float32."""
    form = parse("int2:tensor:e8m0/ceil:offset(int6:tensor:fp32)")
    qparams = reference.choose_qparams(torch.tensor([0.0, torch.finfo(torch.float32).max]), form)
    assert qparams.offset_outer is not None and (31 * qparams.offset_outer).isinf().all()
    expected = form.offset.value(qparams.offset, qparams.offset_outer)
    assert same(_offsets(qparams, form), expected) and expected.isfinite().all()
