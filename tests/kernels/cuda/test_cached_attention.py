# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in codes on CUDA, against float64: formats, dtypes, sinks, launches."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import blockscale as bs
from blockscale.kernels.cuda import relaunch
from blockscale.kernels.cuda.cached_attention import (
    PartSettings,
    _supports,
    add_parts,
    attend,
    attention,
    usual,
)
from tests.support.caches import across, cached, close, exact
from tests.support.cuda_attention import SMALL, by_kernel, on_device
from tests.support.cuda_equal import DEVICE

FORMATS = ("int8_token", "int4:group32:fp32", "uint4:group32:fp16:asym", "mxfp8", "e4m3:token:fp32",
           "int8:group64:fp16", "int2:group32:fp32")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_formats(fmt: str) -> None:
    """Three parts of codes, of which the last is short, and one of floats."""
    keys, values, k, v, key, value = cached(fmt, 70, 5, batch=1)
    query = torch.randn(1, 4, 1, 64)
    y = by_kernel(query, keys, values, k, v, None, 0.125)
    close(y, exact(query, key, value, None, None, 0.125))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    keys, values, k, v, key, value = cached("int8_token", 40, 3)
    query = torch.randn(2, 4, 1, 64).to(dtype)
    y = by_kernel(query, keys, values, k.to(dtype), v.to(dtype), None, 0.1)
    assert y.dtype == dtype
    key, value = (
        torch.cat([x[:, :, :40], x[:, :, 40:].to(dtype).float()], 2) for x in (key, value)
    )
    expected = exact(query.float(), key, value, None, None, 0.1)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert ((y.double() - expected).abs() <= rounding * expected.abs() + 1e-5).all()


def test_sinks() -> None:
    """A score of each head that takes its share and gives nothing; also where nothing is seen."""
    keys, values, k, v, key, value = cached("int8_token", 30, 3, batch=1)
    query, sinks = torch.randn(1, 8, 2, 64), torch.randn(8) * 4
    sinks[1], sinks[2], sinks[3] = 60.0, -60.0, -math.inf
    seen = torch.rand(1, 1, 2, 33) < 0.6
    seen[0, 0, 1] = False
    y = by_kernel(query, keys, values, k, v, seen, 0.125, SMALL, sinks)
    close(y, exact(query, key, value, seen, None, 0.125, sinks))


def test_what_goes_by_the_reference() -> None:
    keys, values, k, v, _, _ = cached("int8_token", 32, 2)
    query = torch.randn(2, 4, 1, 64)
    assert _supports((), (query, keys, values, k, v, None, 0.1))
    for call in (
        (torch.randn(2, 4, 33, 64), keys, values, k, v, None, 0.1),  # 66 queries of a head
        (torch.randn(2, 4, 3, 64), keys, values, k, v, None, 0.1),  # new ones that are not there
        (torch.randn(2, 3, 1, 64), keys, values, k, v, None, 0.1),
        (query.double(), keys, values, k, v, None, 0.1),
        (query, keys, values, k[:, :1], v, None, 0.1),
        (query, keys, values, k, v, torch.zeros(33), 0.1),
        (query, keys, values, k, v, torch.zeros(34, dtype=torch.int32), 0.1),
        (query, keys, values, k, v, torch.zeros(1, 1, 1, 1, 34), 0.1),
        (query, keys, values, k, v, None, 0.1, torch.zeros(2)),  # sinks of other heads
        (query, across("int4:group32:fp32", 32, 2, 2)[0], values, k, v, None, 0.1),  # 64 tokens
        (query, keys._replace(codes=keys.codes[:, :, :0]), values, k, v, None, 0.1),
    ):
        assert not _supports((), call)


def test_parts_keep_an_h200_busy() -> None:
    """A program for each processor, or two where each has eight steps; few tokens make one step."""
    assert usual(100, 1, 8).steps == 1
    for tokens, heads, programs in ((8192, 8, 132), (32768, 8, 264), (32768, 64, 264)):
        s = usual(tokens, 16, heads)
        parts = -(-tokens // (s.tokens * s.warps * s.steps))
        assert programs / 2 < heads * parts <= programs
    assert usual(32768, 160, 64).steps >= 1
    each = [usual(tokens, 16, heads, folded=True).steps for tokens, heads in
            ((100, 8), (8192, 8), (32768, 8), (8192, 64), (32768, 64))]  # fmt: skip
    assert each == [1, 5, 8, 11, 32]  # what was fastest on an H200
    each = [usual(tokens, 16, heads, channels=True)[1::2] for tokens, heads in
            ((100, 8), (8192, 8), (32768, 8), (8192, 64), (32768, 64))]  # fmt: skip
    assert each == [(1, 1), (2, 1), (8, 1), (16, 3), (64, 3)]


def test_the_op_takes_it() -> None:
    """By name: the call has the kernel's bits."""
    from blockscale.ops.attention import cached_attention

    keys, values, k, v, _, _ = cached("mxfp4", 24, 1, batch=1)
    query = torch.randn(1, 4, 1, 64)
    keys, values = on_device(keys, values)
    call = (query.to(DEVICE), keys, values, k.to(DEVICE), v.to(DEVICE), None, 0.125)
    with bs.use("cuda"):
        y = cached_attention(*call)
    expected = attention(*call[:3], call[3:5], None, 0.125, usual(24, 1, 2))
    assert torch.equal(y, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_steps_of_a_generation_are_one_kernel(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty steps, each with a recent token more and a mask that is longer: compiled once."""
    monkeypatch.setattr(relaunch, "_known", {})
    monkeypatch.setattr(relaunch, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    keys, values, k, v, _, _ = cached("int8:group8:fp32", 20, 23, batch=1, depth=16, width=16)
    query = torch.randn(1, 6, 1, 16)  # three of a head: sums of a part begin anywhere
    starts = []
    for kernel in (attend, add_parts):  # as they are, but that nothing runs
        monkeypatch.setattr(
            type(kernel), "__getitem__", lambda *_: lambda *a, **_n: starts.append(a)
        )
    for recent in range(3, 23):
        few = [x[:, :, :recent].contiguous() for x in (k, v)]
        mask = torch.zeros(1, 1, 1, 20 + recent) if masked else None
        by_kernel(query, keys, values, *few, mask, 0.125)
    assert len(starts) == 40 and len({len(each) for each in starts}) == 2
    for kernel in (attend, add_parts):
        assert len(relaunch.direct(kernel).compiled) == 1, kernel


def test_parts_are_equally_long() -> None:
    """As many programs as processors, or twice and four times as many: a part with fewer steps
    than others would leave its processor early. No tokens in codes are no error."""
    assert usual(8192, 16, 64) == PartSettings(32, 16, 4, 3)
    assert usual(32768, 16, 64) == PartSettings(32, 64, 4, 3)
    assert usual(8192, 16, 8) == PartSettings(32, 5, 4, 3)
    assert usual(8192, 16, 64, folded=True) == PartSettings(32, 11, 4, 3)
    assert usual(0, 16, 8).steps == usual(1, 0, 1).steps == 1
    for tokens in range(1, 5000, 37):
        steps = usual(tokens, 16, 64).steps
        parts = -(-tokens // (128 * steps))
        assert steps == -(-tokens // (128 * parts))
