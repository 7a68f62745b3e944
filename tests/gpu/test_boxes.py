# SPDX-License-Identifier: BSD-3-Clause
"""Blocks along any dimensions: the Triton kernels on a GPU give the reference's bits.

Needs CUDA: `pytest -m gpu tests/gpu`.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.ops import primitives as P
from tests.support.cuda_boxes import boxes
from tests.support.cuda_equal import DTYPES, wrong
from tests.support.gpu_cuda_reference import hard_inputs
from tests.support.same import same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

KINDS = [  # (element, scale and options)
    ("int8", "fp32"), ("int4", "bf16:half"), ("e2m1", "e8m0/floor"), ("e4m3", "fp32:recip"),
    ("uint4", "fp16:asym"), ("e2m1", "e4m3"), ("e3m2", "e8m0/even"), ("ternary", "fp32"),
    ("binary", "fp32"), ("int8", "fp32:stochastic"), ("log4", "fp32"), ("int12", "fp32"),
    ("int6", "e8m0/tosa"), ("int2", "fp32"), ("int4", "(uint4:channel0:fp32)"),
]  # fmt: skip
BLOCKS = [
    ("block3x3x2x1", (13, 12, 5, 4)), ("block3x3x2x1", (32, 32, 3, 3)),
    ("block1x2x3x3", (16, 12, 3, 3)), ("block4x8x16", (17, 40, 64)), ("block4x8x16", (8, 21, 72)),
    ("block2x2x8", (10, 7, 96)), ("block2x2x8", (6, 5, 44)), ("block*x4x8", (5, 19, 40)),
    ("block2x*x4", (9, 6, 60)), ("block*x1x*", (7, 9, 33)), ("block2x3x7", (5, 7, 50)),
    ("block4x4x32", (9, 12, 256)), ("block2x2x2x2x2", (5, 4, 3, 6, 7)),
    ("block8x8x1", (17, 16, 48)),
    ("block2x2x1", (6, 7, 128)), ("block16x*", (37, 24)), ("block*x32", (24, 96)),
]  # fmt: skip


def hard(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers of every kind, those that are not finite only in the last third."""
    count = torch.Size(shape).numel()
    rows = hard_inputs(dtype)
    rows = torch.cat([rows[rows.isfinite().all(1)], rows[~rows.isfinite().all(1)]]).flatten()
    return rows.repeat(-(-count // rows.numel()))[:count].reshape(shape).contiguous()


def cases() -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Each block with every third kind, in one of the dtypes."""
    found = []
    for i, (block, shape) in enumerate(BLOCKS):
        for n in range(5):
            element, rest = KINDS[(i + 3 * n) % len(KINDS)]
            found.append((f"{element}:{block}:{rest}", shape, DTYPES[(i + n) % 3]))
    return found


@pytest.mark.parametrize(("fmt", "shape", "dtype"), cases())
def test_hard_inputs(fmt: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Then random ones, of which no block is poisoned."""
    decodes = DTYPES[(DTYPES.index(dtype) + 1) % 3]
    assert wrong(hard(shape, dtype), fmt, decodes=decodes) == []
    torch.manual_seed(0)
    assert wrong(torch.randn(shape).to(dtype), fmt, decodes=decodes) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("fmt", "shape"),
    [
        ("int8:block4x8x16:fp32", (64, 64, 64)), ("int4:block8x8x8:bf16", (66, 65, 72)),
        ("e4m3:block64x64x16:fp32", (65, 70, 40)), ("uint4:block40x*x40:fp32:asym", (50, 64, 60)),
        ("e2m1:block16x16x16:e4m3", (48, 40, 50)), ("ternary:block16x16x32:fp32", (32, 40, 70)),
        ("int8:block32x32x16:fp32:stochastic", (40, 64, 64)),
        ("binary:block64x64x16:fp32", (64, 65, 40)),
        ("e2m1:block4x4x8x8:e8m0/floor", (9, 8, 24, 64)), ("int8:block*x1x*:fp32", (300, 5, 200)),
    ],
)  # fmt: skip
def test_many_programs(fmt: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Blocks that a program holds, and some that are too large for one."""
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    assert wrong(x, fmt) == []
    x.view(-1)[7], x.view(-1)[x.numel() // 2] = torch.nan, -torch.inf
    assert wrong(x, fmt) == []


def test_empty_and_strided() -> None:
    fmt = "int4:block2x3x4:fp32"
    for shape in ((0, 5, 6), (3, 0, 6), (3, 5, 0)):
        assert wrong(torch.randn(shape), fmt) == [], shape
    x = torch.randn(6, 9, 8, 10)
    for each in (x.permute(2, 0, 3, 1), x[::2, :, 1::3], x.transpose(1, 3), x.expand(6, 9, 8, 10)):
        assert wrong(each, fmt) == []


GRAMMAR = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@GRAMMAR
@given(boxes())
def test_the_whole_grammar(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    assert wrong(x, fmt, torch.tensor([seed, first])) == []


def test_cuda_graph_and_replay() -> None:
    """Three times, of which the last ones are repeated launches (kernels/cuda/replay)."""
    for fmt in (
        "int8:block4x8x16:fp32",
        "e2m1:block3x3x2x1:e8m0/floor",
        "uint4:block2x*x8:fp32:asym",
    ):
        shape = (12, 12, 6, 8) if "3x3" in fmt else (16, 24, 48)
        by = Quantizer(None, None, None, fmt, None)
        x = torch.randn(shape, device="cuda")
        for _ in range(4):
            x = torch.randn(shape, device="cuda")
            found, values = P.choose_quantize(x, fmt, None), P.fake_quantize(x, by)
            with bs.use("reference"):
                wanted, expected = P.choose_quantize(x, fmt, None), P.fake_quantize(x, by)
            assert all(same(a, b) for a, b in zip(found, wanted, strict=True)), fmt
            assert same(values, expected), fmt
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values = P.fake_quantize(x, by)
        x.copy_(torch.randn(shape, device="cuda") * 3)
        graph.replay()
        with bs.use("reference"):
            assert same(values, P.fake_quantize(x, by)), fmt


def test_more_elements_than_int32_counts() -> None:
    """Against the same blocks in a slice at the end."""
    x = torch.randn(2400, 640, 1400, device="cuda", dtype=torch.bfloat16)
    assert x.numel() > 2**31
    fmt = "int8:block4x8x16:fp32"
    q = bs.quantize(x, fmt)
    tail = bs.quantize(x[-8:].clone(), fmt)
    assert torch.equal(q.codes[-8:], tail.codes)
    assert torch.equal(q.scale[-2:], tail.scale)
    values = q.dequantize(torch.bfloat16)
    assert torch.equal(values[-8:], tail.dequantize(torch.bfloat16))


@pytest.mark.parametrize("fmt", ["int8:block4x8x16:fp32", "int4:block3x3x8:fp32"])
@pytest.mark.parametrize("shape", [(16, 32, 256), (13, 35, 248)])
def test_neighbours_move_together(fmt: str, shape: tuple[int, ...]) -> None:
    """One instruction loads 16 bytes, also where blocks are partial: what the compiler is told of
    boxes has reached it."""
    from blockscale.kernels.cuda.primitives.encoding import encode_tile
    from blockscale.kernels.cuda.relaunch import direct

    kernel = direct(encode_tile)
    kernel.compiled.clear()
    P.fake_quantize(torch.randn(shape, device="cuda"), Quantizer(None, None, None, fmt, None))
    ((compiled, _),) = kernel.compiled.values()
    assert "ld.global.v4.b32" in compiled.asm["ptx"]
