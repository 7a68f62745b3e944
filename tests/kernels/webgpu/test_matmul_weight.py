# SPDX-License-Identifier: BSD-3-Clause
"""How weights are read: which formats are decoded, and by which parts of shaders."""

import pytest
import torch

from blockscale.core import pack
from blockscale.core.parse import parse
from blockscale.kernels.webgpu import matmul_weight
from blockscale.kernels.webgpu.matmul_weight import decodes, limits_of, right_of
from tests.kernels.webgpu.exact import check, stored

HALVES = (
    *("e2m1:group32:e8m0/floor", "e4m3:tensor:fp32", "e5m2:group32:fp32"),
    *(
        pytest.param(f"{element}:group32:fp32", marks=pytest.mark.slow)
        for element in ("e3m2", "e2m3", "e3m4", "e4m0")
    ),
)


@pytest.mark.parametrize("fmt", ["mxfp4", "fp8", "nf4", "int4:flat32:fp32", "int8:tile16x32:fp32"])
def test_formats_that_are_decoded(fmt: str) -> None:
    assert decodes(parse(fmt), 64)


def test_formats_that_become_floats_first() -> None:
    for fmt in ("int16", "int4:flat32@0:fp32", "int4:group6:fp32"):
        assert not decodes(parse(fmt), 64)
    assert not decodes(parse("int4:flat32:fp32"), 48)


@pytest.mark.parametrize(
    ("fmt", "size", "chunk"),
    [("int4", 64, "words"), ("int4", 48, "any"), ("mxfp6", 64, "any"),
     ("int8:group4:fp32", 64, "words"), ("int4:group4:fp32", 64, "any")],
)  # fmt: skip
def test_how_few_rows_read(fmt: str, size: int, chunk: str) -> None:
    assert right_of(stored(torch.randn(2, size), fmt)).chunk == chunk


@pytest.mark.slow
@pytest.mark.parametrize("fmt", HALVES)
def test_minifloats_as_float16_have_their_values(fmt: str, monkeypatch) -> None:
    """Every code, by products with ones: through float16 and through a table."""
    w = stored(torch.zeros(1 << parse(fmt).bits, 32), fmt)
    codes = torch.arange(w.codes.shape[0]).to(torch.uint8)[:, None].expand(-1, 32).contiguous()
    element = parse(fmt).element
    w = w._replace(codes=pack.pack(element.from_bits(codes), element))
    if w.scale.dtype == torch.float32:
        w.scale.fill_(0.375)
    else:
        w.scale.fill_(130)
    ways = set()
    for exact in (True, False):
        monkeypatch.setattr(matmul_weight, "widened_exactly", lambda exact=exact: exact)
        again = w._replace(codes=w.codes.clone())
        ways.add(right_of(again).roles.decode)
        for rows in (1, 5):
            check(torch.eye(rows, 32), again)
    assert ways == {"halves", "table"}


def test_limits_leave_room_for_an_elements_values() -> None:
    for fmt in ("int8", "mxfp4", "nf4", "uint4"):
        limits = limits_of(parse(fmt))
        assert limits.value * limits.step <= limits.weight


def test_a_device_that_flushes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    download = matmul_weight.download

    def flushing(*args) -> torch.Tensor:
        found = download(*args)
        return torch.where(found.abs() < 2.0**-14, torch.zeros(()), found)

    monkeypatch.setattr(matmul_weight, "download", flushing)
    assert not matmul_weight.widened_exactly.__wrapped__()


def test_the_answer_is_kept() -> None:
    assert matmul_weight.widened_exactly() is matmul_weight.widened_exactly()
