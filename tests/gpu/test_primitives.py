# SPDX-License-Identifier: BSD-3-Clause
"""The Triton kernels on a GPU give the reference's bits. Needs CUDA: `pytest -m gpu tests/gpu`."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DTYPES, has_kernels, wrong
from tests.support.cuda_formats import CODE_SCALES
from tests.support.gpu_cuda_reference import SPELLINGS, hard_inputs
from tests.support.gpu_primitives import graded
from tests.support.rational_cases import cases
from tests.support.same import same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

MORE = [
    "int8:group48:fp32", "int4:group24@0:bf16", "e2m1:tile8x16:e8m0/floor", "e2m3:tile3x5:fp32",
    "int8:channel1:fp32:asym", "uint4:channel0:fp16:asym", "int6:group32:fp32", "int3:group8:fp32",
    "e4m3:group128:fp32", "e5m2:token:bf16:recip", "int8:group32:fp32:stochastic",
    "e2m1:group32:e8m0/even:stochastic", "int4:token:e4m3", "e3m2:tile4x4:(e5m2:channel0:fp32)",
    "uint2:group16:fp32", "uint1:group16:fp32:asym", "log8:group16:fp32", "int16:token:fp32",
    *CODE_SCALES,
]  # fmt: skip


@pytest.mark.parametrize("fmt", [*SPELLINGS, *MORE])
def test_hard_inputs(fmt: str) -> None:
    """In one of the three dtypes, decoded to the next."""
    i = [*SPELLINGS, *MORE].index(fmt)
    assert wrong(hard_inputs(DTYPES[i % 3]), fmt, decodes=DTYPES[(i + 1) % 3]) == []


@pytest.mark.parametrize(
    "fmt", ["e5m2:token:bf16:recip", "e4m3:group32:bf16", "e5m2:group32:bf16:nearest_away"]
)
def test_bfloat16_scales_beyond_float16(fmt: str) -> None:
    """Numbers of every dtype decoded to every other: a compiler's float16 would lose the scales."""
    for dtype in DTYPES:
        for decodes in DTYPES:
            assert wrong(hard_inputs(dtype), fmt, decodes=decodes) == [], (dtype, decodes)


@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp8", "mxfp6", "nvfp4", "int8:group128:fp32", "int4"])
def test_rows_that_fill_vectors(fmt: str) -> None:
    for dtype in DTYPES:
        x = hard_inputs(dtype).repeat(3, 2)[:, :384].contiguous()
        assert wrong(x, fmt) == [], dtype


PAIRED = [
    "mxfp4", "mxfp6", "mxfp6_e2m3", "mxfp8", "mxfp8_e5m2", "nvfp4", "int4", "mxint8",
    "e2m1:group32@0:e8m0/ceil", "e3m2:group16:e8m0/even", "e2m3:group32:e8m0/nearest",
    "int8:group32:fp32", "e4m3:tile32x32:fp32", "ternary:group32:fp32", "int4:tile16x32:bf16",
    "binary:token:fp32", "uint4:group32:fp32:asym", "int8:group32@0:fp32:stochastic",
    "binary:group32:fp32", "int2:group32:e8m0/floor", "log4:group32:fp32", "e2m1:group32:fp32",
    "e2m1:group32:e8m0/floor:stochastic", "e2m3:group16:e8m0/floor:stochastic",
    "nvfp4_e5m3", "int8:group32:ue4m3", "log4:group32:ue5m3", "ternary:group16:ue6m2",
]  # fmt: skip


@pytest.mark.parametrize("fmt", PAIRED)
def test_pairs(fmt: str) -> None:
    """Numbers of 16 bits, two in a register, as in most programs; then with some not finite."""
    for dtype in DTYPES[1:]:
        x = graded(dtype)
        assert wrong(x, fmt) == [], dtype
        x[5, 7], x[100, 3] = torch.nan, -torch.inf
        assert wrong(x, fmt) == [], dtype


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "e4m3:channel0:fp32", "uint4:token:fp32:asym"])
def test_blocks_larger_than_a_program(fmt: str) -> None:
    assert wrong(torch.randn(5, 40_001), fmt) == []


GRAMMAR = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@GRAMMAR
@given(cases())
def test_the_whole_grammar(case: tuple[str, Tensor, int, int]) -> None:
    fmt, x, seed, first = case
    if has_kernels(fmt):
        assert wrong(x, fmt, torch.tensor([seed, first])) == []


def random_floats(count: int) -> Tensor:
    """Any bit pattern of float32."""
    return (
        torch.randint(-(2**31), 2**31, (count,), device="cuda").to(torch.int32).view(torch.float32)
    )


@pytest.mark.parametrize("fmt", ["int8:{}:fp32", "e4m3:{}:fp32", "int16:{}:bf16", "e7m0:{}:fp32"])
def test_division_of_any_two_floats(fmt: str) -> None:
    """Scales of any bits; numbers of any bits, and quotients beside those where codes turn over."""
    for _ in range(4):
        rows = 2**14
        scale = random_floats(rows)[:, None]
        spelled = fmt.format("token")
        if "bf16" in fmt:
            scale = scale.to(torch.bfloat16)
        halves = torch.randint(-600, 600, (rows, 128), device="cuda") / 2
        ties = halves * scale.float() * 2.0 ** torch.randint(-9, 2, (rows, 128), device="cuda")
        beside = (ties.view(torch.int32) + torch.randint(-2, 3, (rows, 128), device="cuda")).int()
        x = torch.cat([random_floats(rows * 128).reshape(rows, 128), beside.view(torch.float32)], 1)
        with bs.use("cuda"):
            found = P.quantize(x, Quantizer(scale, None, None, spelled, None))
        with bs.use("reference"):
            expected = P.quantize(x, Quantizer(scale, None, None, spelled, None))
        assert same(found, expected)


@pytest.mark.parametrize("fmt", ["int8:token:fp32", "int4:token:bf16", "int16:token:fp16"])
def test_scales_that_nothing_chooses(fmt: str) -> None:
    """Zeros of both signs, infinities, NaN and the ends of the range, as given scales."""
    ends = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0**-149, -3.0, 2.0**101, 3e38]
    scale = torch.tensor(ends, device="cuda")[:, None].to(parse(fmt).scale.dtype)
    x = torch.cat([random_floats(1000), torch.tensor([0.0, -0.0, 2.0**-149], device="cuda")])
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan], device="cuda")])
    assert wrong(x.repeat(len(ends), 1).cpu(), fmt, given=QParams(scale.cpu())) == []


def test_more_elements_than_int32_counts() -> None:
    rows, columns = 2**15 + 3, 2**16
    x = torch.randn(64, columns, device="cuda", dtype=torch.bfloat16).repeat(rows // 64 + 1, 1)[
        :rows
    ]
    assert x.numel() > 2**31
    for fmt in ("mxfp4", "int8:group32@0:fp32", "int8:tensor:fp32"):
        q = bs.quantize(x, fmt)
        tail = bs.quantize(x[-67:].clone(), fmt, scale=q.scale[-67:] if fmt == "mxfp4" else None)
        if fmt == "mxfp4":
            assert torch.equal(q.codes[-67:], tail.codes)
        values = q.dequantize(torch.bfloat16)
        assert (values[-64:] - x[-64:]).abs().max() < 2
        del q, values


def test_cuda_graph() -> None:
    """No launch waits for the device, and replaying computes with what the memory then holds."""
    for fmt in ("nvfp4", "int8:token:fp32", "uint8:tensor:fp32:asym", "e4m3:group32:e8m0/floor"):
        x = torch.randn(64, 512, device="cuda")
        for _ in range(2):
            P.choose_quantize(x, fmt, None)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = P.choose_quantize(x, fmt, None)
            values = P.fake_quantize(x, Quantizer(None, None, None, fmt, None))
        x.copy_(torch.randn(64, 512, device="cuda") * 3)
        graph.replay()
        with bs.use("reference"):
            expected = P.choose_quantize(x, fmt, None)
            wanted = P.fake_quantize(x, Quantizer(None, None, None, fmt, None))
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), fmt
        assert same(values, wanted), fmt


def test_compiled_without_graph_breaks() -> None:
    def step(x: Tensor) -> Tensor:
        return bs.fake_quantize(x * 2, "mxfp4") * 4

    x = torch.randn(64, 512, device="cuda")
    assert same(torch.compile(step, fullgraph=True)(x), step(x))


def test_gradient_passes_on_the_gpu() -> None:
    x = (torch.randn(64, 512, device="cuda") * 100).requires_grad_()
    bs.fake_quantize(x, "int8:token:fp32", scale=torch.ones(64, 1, device="cuda")).sum().backward()
    inside = reference.in_range(
        x, QParams(torch.ones(64, 1, device="cuda")), bs.parse("int8_token")
    )
    assert torch.equal(x.grad, inside.float())


@pytest.mark.parametrize(
    "fmt",
    ["e2m1:group16:e4m3/four_six", "if4:group16:e4m3", "if4:group16:(e4m3:token:fp32)"],
)
def test_blocks_that_compare_two_scales(fmt: str) -> None:
    """The kernel of blocks' errors adds up float64 as the CPU does: a last bit decides."""
    generator = torch.Generator().manual_seed(3)
    for dtype in DTYPES:
        x = torch.randn(256, 512, generator=generator).to(dtype)
        assert wrong(x, fmt) == [], dtype
        assert wrong(hard_inputs(dtype).repeat(1, 2)[:, :96].contiguous(), fmt) == [], dtype
    given = reference.choose_qparams(x, parse(fmt).plain)
    on_gpu = QParams(*(None if part is None else part.cuda() for part in given))
    found = P.block_errors(x.cuda().float(), on_gpu, parse(fmt).plain.deterministic)
    assert same(found.cpu(), P.block_errors(x.float(), given, parse(fmt).plain.deterministic))
