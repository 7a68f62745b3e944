# SPDX-License-Identifier: BSD-3-Clause
"""Calls that are repeated give the bits of calls that are not: in Triton's interpreter, which here
stands in for compiled kernels that are given addresses.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockscale.core.operand import Quantizer, quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from tests.kernels.cuda.replay_stand_in import (
    Counting,
    Passing,
    check,
    operand,
    outcomes,
    rounded,
    stored,
)
from tests.support.cuda_equal import DEVICE
from tests.support.same import same

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(DEVICE != "cpu", reason="tests/gpu/test_replay.py does this on a GPU"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt",
    [
        *("mxfp4", "nvfp4", pytest.param("int8:token:fp32", marks=pytest.mark.slow)),
        pytest.param("int6:group7:e8m0/tosa", marks=pytest.mark.slow),
        pytest.param("uint4:group32:fp16:asym", marks=pytest.mark.slow),
    ],
)
def test_primitives(cuda: Callable[..., Any], fmt: str) -> None:
    fmt = str(parse(fmt))
    a, b, c = torch.randn(3, 2, 64).unbind()
    assert check(cuda("choose_quantize"), (a, fmt, None), (b, fmt, None)) == "Recording"
    assert check(cuda("choose_qparams"), (a, fmt), (b, fmt)) == "Recording"
    chosen = Quantizer(None, None, None, fmt)
    assert check(cuda("fake_quantize"), (a, chosen), (b, chosen)) == "Recording"
    assert check(cuda("straight_through"), (a, b, chosen), (b, c, chosen)) == "Recording"
    (p, u), (q, v) = stored(a, fmt), stored(b, fmt)
    assert check(cuda("quantize"), (a, quantizer(u, fmt)), (c, quantizer(v, fmt))) == "Recording"
    first, second = operand(p, u, fmt, 64), operand(q, v, fmt, 64)
    assert (
        check(cuda("dequantize"), (first, torch.bfloat16), (second, torch.bfloat16)) == "Recording"
    )
    assert check(cuda("unpack"), (p, fmt, 64), (q, fmt, 64)) == "Recording"


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("m", "fmt", "input_fmt"),
    [
        (1, "int8:channel0:fp32", ""),
        (1, "nvfp4", ""),
        (18, "int4:group32:fp32", ""),
        (18, "mxfp4", "mxfp8"),
        (1, "mxfp4", "int8:token:fp32"),
        (18, "int8:channel0:fp32", "int8:token:fp32"),
        (3, "int8:tensor:fp32", "int8:tensor:fp32"),
    ],
)
def test_linear(cuda: Callable[..., Any], m: int, fmt: str, input_fmt: str) -> None:
    fmt, input_fmt = str(parse(fmt)), str(parse(input_fmt)) if input_fmt else ""
    calls = []
    for _ in range(2):
        x, w = torch.randn(m, 1, 128).bfloat16(), torch.randn(12, 128)
        codes, q = stored(w, fmt)
        bias = torch.randn(12).bfloat16()
        by = Quantizer(None, None, None, input_fmt)
        calls.append((x, operand(codes, q, fmt, 128), bias, by))
    assert check(cuda("linear"), *calls) == "Recording"


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("x", "asked"),
    [
        (torch.randn(4, 96), 0),
        (torch.randn(8, 96)[4:], 0),
        (nn.Parameter(torch.randn(4, 96), requires_grad=False), 0),
        (torch.randn(4, 96).bfloat16(), 1),
        (torch.randn(2, 2, 96), 1),
        (torch.randn(8, 96), 1),
        (torch.randn(96, 4).t(), 1),
        (torch.randn(4, 192)[:, :96], 1),
        (torch.randn(385)[1:].view(4, 96), 1),  # begins at 4 bytes
    ],
)
def test_what_is_of_another_kind(counted: tuple[Any, Counting], x: Tensor, asked: int) -> None:
    op, counting = counted
    expected = counting.run(*rounded(x))
    assert same(op(*rounded(x)), expected)
    assert counting.calls == asked


def test_other_arguments_are_other_kinds(counted: tuple[Any, Counting]) -> None:
    op, counting = counted
    x = torch.randn(4, 96)
    for i, fmt in enumerate(("mxint8", "int8:token:fp32")):
        op(x, Quantizer(None, None, None, str(parse(fmt))))
        assert counting.calls == i + 1
    scale = P.choose_qparams.reference(x, str(parse("mxfp4")))[0]
    op(x, Quantizer(scale, None, None, str(parse("mxfp4"))))
    assert counting.calls == 3


def test_those_who_watch_see_everything(
    counted: tuple[Any, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's hooks, of both kinds of knobs, and torch's modes."""
    from blockscale.kernels.cuda import replay

    op, counting = counted
    x = torch.randn(4, 96)
    hooks = replay.triton.knobs.runtime.launch_enter_hook
    hooks.add(print)
    op(*rounded(x))
    hooks.remove(print)
    assert counting.calls == 1
    monkeypatch.setattr(replay.triton.knobs.runtime, "launch_exit_hook", print)
    op(*rounded(x))
    assert counting.calls == 2
    monkeypatch.setattr(replay.triton.knobs.runtime, "launch_exit_hook", None)
    with Passing():
        op(*rounded(x))
    assert counting.calls == 3
    op(*rounded(x))
    assert counting.calls == 3


def test_one_tensor_twice_is_no_recording(cuda: Callable[..., Any]) -> None:
    """Of x as its own gradient nobody could tell which of the two a kernel reads."""
    op = cuda("straight_through")
    op.recordings.clear()
    by = Quantizer(None, None, None, str(parse("mxfp4")))
    a, b = torch.randn(2, 4, 96).mul(4).unbind()
    for _ in range(3):
        assert same(op(a, a, by), op.run(a, a, by))
    assert outcomes(op) == ["called once"]
    for _ in range(3):
        assert same(op(a, b, by), op.run(a, b, by))
    assert outcomes(op) == ["Recording"]


def test_memory_is_bounded(cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.kernels.cuda import replay

    monkeypatch.setattr(replay, "_MOST", 3)
    op = cuda("fake_quantize")
    for rows in range(1, 9):
        op(*rounded(torch.randn(rows, 32)))
        assert len(op.recordings) <= 3


def test_measured_choices_are_taken_at_once(counted: tuple[Any, Counting]) -> None:
    from blockscale.kernels.cuda import tables as tune

    op, counting = counted
    tune.record({"weight|x|y|3.6": {"1,2,3": ["dense"]}})
    op(*rounded(torch.randn(4, 96)))
    assert counting.calls == 1


def test_an_error_is_raised_each_time_and_leaves_no_trace(cuda: Callable[..., Any]) -> None:
    op = cuda("quantize")
    op.recordings.clear()
    x, wrong = torch.randn(4, 96), torch.zeros(4, 2, dtype=torch.uint8)
    for _ in range(4):
        with pytest.raises(ValueError, match=r"expected torch.uint8 of shape \(4, 3\)"):
            op(x, Quantizer(wrong, None, None, str(parse("mxfp4"))))
    assert outcomes(op) == ["called once"]


def test_how_float8_is_summed_is_asked_each_time(
    cuda: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = cuda("linear")
    op.recordings.clear()
    fmt, input_fmt = "e4m3:channel0:fp32", "e4m3:token:fp32"
    codes, q = stored(torch.randn(16, 32), fmt)
    call = torch.randn(2, 32).bfloat16(), operand(codes, q, fmt, 32), None
    for i, exact in enumerate(("exact", "", "exact")):
        monkeypatch.setenv("BLOCKSCALE_FLOAT8_SUMS", exact)
        op(*call, Quantizer(None, None, None, input_fmt))
        assert len(op.recordings) == min(i + 1, 2)
