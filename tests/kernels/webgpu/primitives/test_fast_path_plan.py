# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors the kernels of the fast path take, and how much an invocation takes of them."""

from functools import partial

import pytest
import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import ARITHMETIC
from blockscale.kernels.webgpu.primitives import fast_path_plan, fast_path_sums
from blockscale.kernels.webgpu.primitives.fast_path_plan import Settings
from blockscale.kernels.webgpu.primitives.form import form
from tests.kernels.webgpu.equal import hard
from tests.support.webgpu_fast_path import FULL, HALF, OTHER, ROWS, TILES, planned, reach_of, right


@pytest.fixture(autouse=True)
def _lavapipe_tells_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 8)


def test_what_an_invocation_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    reach_of(monkeypatch, 32)
    f = form("int8:group32:fp32")
    found = fast_path_plan.plan(f, FULL, (64, 64), "codes")
    assert found is not None and found.given == Settings(4, together=True) and found.team == 2
    assert found.blocks_a_group == 128
    found = fast_path_plan.plan(f, HALF, (64, 64), "values")
    assert found is not None and found.given == Settings(2) and found.team == 2
    found = fast_path_plan.plan(form(ROWS), FULL, (64, 16384), "codes")
    assert found is not None and found.given == Settings(8) and found.group == found.team == 512
    found = fast_path_plan.plan(form(TILES), HALF, (64, 64), "codes")
    assert found is not None and found.tile == 4 and found.step % (32 * 64) == 0
    found = fast_path_plan.plan(form("nvfp4"), FULL, (64, 64), "outer")
    assert found is not None and found.given == Settings(1, 8)


@pytest.mark.parametrize("what", ["values", "codes"])
@pytest.mark.parametrize(
    ("fmt", "shape", "dtype"),
    [
        ("mxfp8", (4, 64), OTHER),
        ("int8:group32:bf16", (4, 64), FULL),
        ("int8:group32:fp32:full", (4, 64), FULL),
        ("int8:group32:fp32:recip", (4, 64), FULL),
        ("int8:group32:fp32:stochastic", (4, 64), FULL),
        ("int8:group32:e8m0/floor:down", (4, 64), FULL),
        ("uint8:group32:fp32:asym:stochastic", (4, 64), FULL),
        ("uint4:group32:fp16:offset", (4, 64), FULL),
        ("int16:group32:fp32", (4, 64), FULL),
        ("book(-1,1):group32:fp32", (4, 64), FULL),  # its threshold is 0
        ("fp4:group32:fp32", (4, 64), FULL),  # two of its thresholds are close
        ("iq4_nl:group32:fp32", (4, 64), FULL),  # its ends differ
        ("ternary:group32:fp16", (4, 64), FULL),
        ("mxfp8", (4, 60), FULL),  # cut off
        ("mxfp8", (60,), FULL),
        ("mxfp8", (1,), FULL),
        ("mxfp8", (2, 12), FULL),  # three units are no power of two
        ("int8:tile3x32:fp32", (4, 64), FULL),
    ],
)
def test_all_else_stays_where_it_was(
    what: str, fmt: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = hard(shape, dtype)
    assert planned(fmt, x, what) is None
    assert right(x, fmt, what)


def test_a_team_is_within_reach_however_many_blocks_it_takes() -> None:
    x = torch.zeros(4, 256)
    fits = partial(planned, "mxint8", x, "codes")  # of whose scales four are a word
    assert fits(Settings(4)) and not fits(Settings(2)) and fits(Settings(2, 2))
    assert planned("int8:group128:fp32", x, "codes", Settings(1)) is not None  # beyond reach


def test_a_device_has_to_have_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, 64)
    assert planned("mxfp8", x, "codes") is not None
    reach_of(monkeypatch, 2)
    assert planned("mxfp8", x, "codes") is None and planned("mxfp8", x, "values") is not None
    with monkeypatch.context() as without:
        without.setattr(gpu(), "features", frozenset())
        assert planned("mxfp8", x, "values") is None
    with monkeypatch.context() as without:
        without.setitem(gpu().limits, "max-compute-invocations-per-workgroup", 128)
        assert planned("mxfp8", x, "values") is None
    rows = torch.zeros(2, 16384)
    assert planned(ROWS, rows, "values") is not None
    with monkeypatch.context() as without:
        without.setitem(gpu().limits, "max-compute-workgroup-storage-size", 6000)
        assert planned(ROWS, rows, "values") is None
        assert planned("mxfp8", x, "values") is not None  # neighbours do not meet there
    with monkeypatch.context() as without:
        without.setattr(fast_path_sums, "refusal", lambda: "left out")
        assert planned("mxfp8", x, "values") is None
    with monkeypatch.context() as without:
        without.setattr(fast_path_plan, "largest", lambda bits, step: 0)
        assert planned("mxfp8", x, "values") is None
    monkeypatch.setenv(ARITHMETIC, "native")
    assert planned("mxfp8", x, "values") is None


def test_neighbours_of_a_subgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 4 <= fast_path_plan.reach() <= 32
