# SPDX-License-Identifier: BSD-3-Clause
"""The founding document's cases, on buffers and on textures, with equality.

Its own tests pass a result that is twice too large (docs/webgpu.md).
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.webgpu import textures
from blockscale.ops import primitives as P
from tests.kernels.webgpu import founding
from tests.kernels.webgpu.founding import CHOSEN, DTYPES, GIVEN, KINDS, Chosen, Given
from tests.kernels.webgpu.here import here
from tests.support.same import same

STORAGES = ("buffer", "texture")
BY = {"division": "", "reciprocal": ":recip"}


def parts_of(case: Given) -> QParams:
    blocks = [n // b for n, b in zip(case.shape, case.block, strict=True)]
    scale = torch.tensor(case.scales).reshape(blocks)
    return QParams(scale, None, torch.tensor(case.zeros, dtype=torch.int32).reshape(blocks))


def numbers(case: Given, kind: str, dtype: torch.dtype) -> Tensor:
    block = parse(f"int8:{founding.spelled(case.block)}:fp32").block
    scale = block.expand(parts_of(case).scale, case.shape)
    return founding.numbers(kind, case.shape, scale).to(dtype)


def quantized(x: Tensor, fmt: str, parts: QParams, storage: str) -> Tensor:
    if storage == "texture":
        return textures.quantize(textures.texture(x), fmt, parts).codes.tensor()
    with bs.use("webgpu"):
        return P.quantize(x, quantizer(parts, fmt))


def typed(*ways: str) -> list[Any]:
    """(case, dtype, way): the fast tests take every case in float32, one in the other dtypes."""
    return [
        pytest.param(
            case, dtype, way, id=f"{len(case.shape)}d-{dtype}-{way}",
            marks=[pytest.mark.slow] * (dtype != DTYPES[0] and (case, way) != (GIVEN[1], ways[0])),
        )
        for case, dtype, way in itertools.product(GIVEN, DTYPES, ways)
    ]  # fmt: skip


@pytest.mark.some(16)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("case", "dtype", "by"), typed(*BY))
def test_quantize(case: Given, dtype: torch.dtype, by: str, storage: str) -> None:
    fmt = f"int8:{founding.spelled(case.block)}:fp32:asym{BY[by]}"
    for kind in KINDS:
        x = numbers(case, kind, dtype)
        found = quantized(x, fmt, parts_of(case), storage)
        expected = torch.from_numpy(founding.quantized(x, case, by))
        assert found.dtype == torch.int8
        assert torch.equal(found, expected), kind
        if kind == "clipping":  # what ExecuTorch's numbers never reach
            assert {int(found.min()), int(found.max())} == {-128, 127}


@pytest.mark.some(2)
@pytest.mark.parametrize("case", GIVEN, ids=lambda case: f"{len(case.shape)}d")
def test_torchao_gives_the_same_codes(case: Given) -> None:
    """By the reciprocal, as the document's shader does; numpy and torchao agree, too."""
    affine = pytest.importorskip("torchao.quantization.quant_primitives")
    parts = parts_of(case)
    fmt = f"int8:{founding.spelled(case.block)}:fp32:asym:recip"
    for kind in ("uniform", "negative", "clipping", "subnormal", "ties"):
        x = numbers(case, kind, torch.float32)
        expected = affine.quantize_affine(
            x, case.block, parts.scale, parts.zero_point, torch.int8, -128, 127
        )
        for storage in STORAGES:
            assert torch.equal(quantized(x, fmt, parts, storage), expected), (kind, storage)


@pytest.mark.some(2)
@pytest.mark.parametrize(("case", "dtype", "storage"), typed(*STORAGES))
def test_dequantize(case: Given, dtype: torch.dtype, storage: str) -> None:
    fmt = f"int8:{founding.spelled(case.block)}:fp32:asym"
    made = torch.Generator().manual_seed(3)
    codes = torch.randint(-128, 128, case.shape, generator=made).to(torch.int8)
    expected = founding.dequantized(codes.numpy(), case, dtype)
    packed = operand(codes, parts_of(case), fmt, case.shape[-1])
    if storage == "texture":
        found = textures.dequantize(textures.quantized(packed), dtype).tensor()
    else:
        with bs.use("webgpu"):
            found = P.dequantize(packed, dtype)
    assert same(found, expected)


def name(case: Chosen) -> str:
    return f"{'x'.join(map(str, case.shape))}/{'x'.join(map(str, case.block))}/{case.mapping}"


def choices() -> list[Any]:
    """All cases; fast are the smallest and the largest of rows alone, and every other one else."""
    rows = [case for case in CHOSEN if case.shape in founding.ROWS]
    slow = [*rows[1:-1], *[case for case in CHOSEN if case.shape not in founding.ROWS][1::2]]
    return [pytest.param(case, marks=[pytest.mark.slow] * (case in slow)) for case in CHOSEN]


@pytest.mark.some(12)
@pytest.mark.parametrize("case", choices(), ids=name)
def test_choose_qparams(case: Chosen) -> None:
    fmt = founding.format_of(case)
    large = torch.Size(case.shape).numel() > 10_000
    for kind, dtype in itertools.product(KINDS, DTYPES):
        if large and (kind, dtype) not in (("negative", torch.float32), ("special", DTYPES[2])):
            continue
        x = founding.numbers(kind, case.shape, torch.ones(case.shape)).to(dtype)
        scale, zero = founding.chosen(x, case)
        with bs.use("webgpu"):
            buffers = P.from_list(P.choose_qparams(x, fmt), parse(fmt))
        for parts in (buffers, textures.choose_qparams(textures.texture(x), fmt)):
            assert torch.equal(here(parts.scale).reshape(-1), torch.from_numpy(scale)), kind
            if case.mapping == founding.A:
                assert parts.zero_point is not None
                assert torch.equal(here(parts.zero_point).reshape(-1), torch.from_numpy(zero)), kind


def test_these_tests_refuse_what_the_document_s_own_accept() -> None:
    """|expected - found| <= 1 + |found|: a result twice too large passes there."""
    case = GIVEN[3]
    x = numbers(case, "uniform", torch.float32)
    expected = torch.from_numpy(founding.quantized(x, case, "reciprocal")).int()
    assert torch.allclose(expected.float(), 2 * expected.float(), rtol=1, atol=1)
    assert not torch.equal(expected, 2 * expected)
