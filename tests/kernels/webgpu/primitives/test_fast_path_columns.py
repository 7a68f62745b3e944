# SPDX-License-Identifier: BSD-3-Clause
"""Blocks along columns, quantized in one pass, and that they are right."""

from itertools import product

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.primitives import fast_path, plan
from blockscale.kernels.webgpu.primitives import form as forms
from blockscale.kernels.webgpu.primitives.form import STEP, form
from blockscale.kernels.webgpu.primitives.plan import ColumnsPlan
from tests.support.webgpu_fast_path import reach_of, right, unruly

FULL, HALF, OTHER = torch.float32, torch.bfloat16, torch.float16
FORMATS = ("int8:group32@0:fp32", "int8:group32@0:e8m0/floor", "e4m3:group32@0:fp32",
           "int4:group32@0:fp32", "int8:group16@0:fp32", "nf4:group32@0:fp32")  # fmt: skip


def planned(fmt: str, x: torch.Tensor, what: str) -> ColumnsPlan | None:
    return plan.columns(form(str(parse(fmt))), x.dtype, tuple(x.shape), what)


def columns(rows: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Unruly numbers [rows, count], a kind to each column."""
    return unruly(count, rows, dtype).t().contiguous()


@pytest.fixture(autouse=True)
def _lavapipe_tells_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 8)


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("fmt", "dtype", "what"), list(product(FORMATS, (FULL, HALF), ("codes", "values")))
)
def test_what_is_made(fmt: str, dtype: torch.dtype, what: str) -> None:
    for rows, count in ((96, 64), (64, 256), (128, 40)):
        x = columns(rows, count, dtype)
        of_words = what == "values" or "int8" in fmt or "e4m3" in fmt or dtype == HALF
        assert (planned(fmt, x, what) is not None) == of_words
        assert right(x, fmt, what)


ELSE = [
    ("int8:group32@0:fp32", (48, 64), FULL),  # cut off
    ("int8:group32@0:fp32", (64, 30), FULL),  # rows that are no units
    ("int8:group32@0:fp32", (64, 64), OTHER),
    ("int8:group512@0:fp32", (512, 64), FULL),  # too long
    ("uint8:group32@0:fp32:asym", (64, 64), FULL),
    ("e2m1:group32@0:e4m3", (64, 64), FULL),
    ("ternary:group32@0:fp32", (64, 64), FULL),
    ("binary:group32@0:fp32", (64, 64), FULL),
    ("int8:group32@0:bf16", (64, 64), FULL),
    ("int8:group32@0:e8m0/floor:stochastic", (64, 64), FULL),
]


def test_all_else_is_left_to_other_ways() -> None:
    for fmt, shape, dtype in ELSE:
        for what in ("codes", "values"):
            assert planned(fmt, columns(*shape, dtype), what) is None, (fmt, shape, dtype, what)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["codes", "values"])
@pytest.mark.parametrize(("fmt", "shape", "dtype"), ELSE)
def test_all_else_stays_where_it_was(
    fmt: str, shape: tuple[int, int], dtype: torch.dtype, what: str
) -> None:
    assert right(columns(*shape, dtype), fmt, what)


@pytest.mark.parametrize("what", ["codes", "values"])
def test_tensors_in_pieces(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "largest", lambda bits, step=STEP: STEP // step * step or step)
    x = columns(128, 1024, FULL)
    assert planned(FORMATS[0], x, what) is not None
    assert right(x, FORMATS[0], what) and right(x, FORMATS[1], what)


def test_a_device_has_to_have_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(64, 64)
    assert planned(FORMATS[0], x, "codes") is not None
    with monkeypatch.context() as without:
        without.setitem(gpu().limits, "max-compute-workgroup-storage-size", 4096)
        assert planned(FORMATS[0], x, "codes") is None
    monkeypatch.setattr(fast_path, "refusal", lambda: "left out")
    assert planned(FORMATS[0], x, "codes") is None
