# SPDX-License-Identifier: BSD-3-Clause
"""One launch for all experts on a GPU. Needs CUDA: `pytest -m gpu tests/gpu/test_grouped.py`."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.core.stacks import matrix, parts, parts_of
from blockscale.integrations.vllm.experts import ExpertMatrices, Experts, Joined
from blockscale.kernels.cuda.grouped import beside, grouped
from blockscale.kernels.cuda.linear import multiply
from blockscale.kernels.cuda.matmul import fused, hopper
from blockscale.kernels.cuda.matmul.choice import WayChoice
from blockscale.kernels.cuda.matmul.fused import FusedSettings
from blockscale.kernels.cuda.matmul.operands import Values, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.layers.kinds import QLinear
from blockscale.layers.store import QWeight
from blockscale.ops.grouped_linear import grouped_linear, waits
from blockscale.ops.primitives import dequantize

pytestmark = pytest.mark.gpu

STEPS = (
    "mxfp4",
    "nvfp4",
    "int8_channel",
    "int4:group128:fp32",
    "mxfp8",
    "fp8",
    "e4m3:tile128x128:fp32",
)
SMALL = ("int4:group32:fp32", "uint4:group64:fp32:asym", "int8:group32:fp32")
ENDS = {
    "few": [1, 1, 2, 3, 3, 5, 5, 8],
    "uneven": [0, 150, 150, 151, 300, 300, 301, 320],
    "many": [257 * (i + 1) for i in range(8)],
}


def stack(spelling: str, parts: int = 1, n: int = 384, k: int = 512) -> Operand:
    torch.manual_seed(0)
    x = torch.randn(8, n, k) * torch.linspace(0.5, 4, 8).reshape(-1, 1, 1)
    whole: Operand = bs.quantize(x.cuda(), of_stack(parse(spelling), x.shape, parts)).operand
    return whole


def off(y: Tensor, x: Tensor, whole: Operand, ends: list[int], bias: Tensor) -> float:
    """How many times the bound of float32 sums and one rounding y is off."""
    dense, start, worst = dequantize(whole, torch.float32).double(), 0, 0.0
    for index, end in enumerate(ends):
        rows = x[start:end].double()
        exact = rows @ dense[index].T + bias[index].double()
        size = rows.abs() @ dense[index].abs().T + bias[index].abs()
        bound = 64 * 2.0**-24 * size + 2.0**-8 * exact.abs()
        if end > start:
            worst = max(worst, ((y[start:end].double() - exact).abs() / bound).max().item())
        start = end
    return worst


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", [*STEPS, *SMALL])
def test_products(spelling: str, parts: int, name: str) -> None:
    """Within the bound of `linear`; of steps along k, the bits of each matrix alone where `linear`
    keeps to one order of sums; rows of nobody are 0."""
    n = 512 if "tile" in spelling else 384  # parts are whole tiles
    whole, ends = stack(spelling, parts, n), ENDS[name]
    bias = torch.randn(8, n).cuda()
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        x = torch.randn(ends[-1] + 3, 512).cuda().to(dtype)
        assert not waits(x, whole)
        arguments = x, whole, torch.tensor(ends).cuda(), bias
        y = grouped_linear(*arguments)
        assert not y[ends[-1] :].any()
        assert off(y, x, whole, ends, bias) <= 1, dtype
        if spelling in STEPS:
            with bs.use("cuda", batch_invariant=True):
                same = grouped_linear(*arguments)
                assert torch.equal(grouped_linear.reference(*arguments), same), dtype
            r = reading(parts_of(whole).fmt, 512)
            if beside(x, whole, r, dtype) is None:  # else as in `test_beside_products`
                assert torch.equal(same, y)


LOW, HIGH = FusedSettings(64, 64, 3), FusedSettings(128, 128)
FUSED = {
    "low": (LOW,), "shared": (FusedSettings(128, 64, 2),), "two": (HIGH, LOW),
    "split": (FusedSettings(192, 128),), "three": (FusedSettings(256, 128), HIGH, LOW),
}  # fmt: skip
RAGGED = {
    "empty ones": [0, 70, 70, 71, 333, 333, 600, 600],
    "one has all": [0, 0, 0, 0, 0, 500, 500, 500],
    "one row each": [1, 2, 3, 4, 5, 6, 7, 8],
    "whole tiles": [128, 256, 256, 512, 640, 640, 896, 1024],
}


@pytest.mark.skipif(
    not torch.cuda.is_available() or hopper.unusable(0) is not None,
    reason="needs a Hopper and a Triton that the kernel was tested with",
)
@pytest.mark.parametrize("tiles", FUSED)
@pytest.mark.parametrize("spelling", [*STEPS, *SMALL, "uint4:group32:fp32:asym"])
def test_beside_products(spelling: str, tiles: str) -> None:
    """Codes decoded beside a Hopper's tensor cores: the bits of the same kernel with each matrix
    alone, within the bound; rows of nobody are 0, wherever matrices end."""
    settings, k = FUSED[tiles], 1152
    whole = stack(spelling, 2, 512 if "tile" in spelling else 272, k)
    of = parts_of(whole)
    r = reading(of.fmt, k)
    if not all(fused.takes(r, each) for each in settings):
        pytest.skip(f"{tiles}: no tiles for {spelling}")
    bias = torch.randn(8, whole.codes.shape[1]).cuda().bfloat16()
    for ends in RAGGED.values():
        x = torch.randn(ends[-1] + 40, k).cuda().bfloat16()
        row, at = torch.rand(x.shape[0]).cuda() + 0.5, torch.tensor(ends).cuda()
        y = grouped(x, whole, at, of.fmt, r, row, bias, x.dtype, settings)
        assert not y[ends[-1] :].any()
        start, way = 0, WayChoice("fused", settings[0])
        for index, end in enumerate(ends):
            if end > start:
                own = Values(x[start:end].clone(), row[start:end].clone())
                halves = parts(matrix(whole, index))  # of nvfp4 with outer scales of their own
                added = bias[index].chunk(len(halves))
                alone = [
                    multiply(own, Weight(*half[:4]), half.fmt, b, x.dtype, way)
                    for half, b in zip(halves, added, strict=True)
                ]
                assert torch.equal(y[start:end], torch.cat(alone, 1)), (ends, index)
            start = end


def test_many_rows_go_beside_products() -> None:
    """As it is chosen, and within the bound of sums in tensor cores."""
    whole = stack("mxfp4")
    x = torch.randn(2100, 512).cuda().bfloat16()
    r = reading(parts_of(whole).fmt, 512)
    chosen = beside(x, whole, r, x.dtype)
    assert (chosen is None) == (hopper.unusable(0) is not None)
    assert beside(x.half(), whole, r, torch.float16) is None
    assert beside(x[:64], whole, r, x.dtype) is None
    with bs.use(batch_invariant=True):
        assert beside(x, whole, r, x.dtype) is None
    ends, bias = ENDS["many"], torch.zeros(8, 384).cuda()
    y = grouped_linear(x, whole, torch.tensor(ends).cuda())
    assert off(y, x, whole, ends, bias) <= 1
    assert not y[ends[-1] :].any()


def test_quantized_inputs() -> None:
    whole, ends = stack("mxfp4"), ENDS["uneven"]
    x, bias = torch.randn(320, 512).cuda().bfloat16(), torch.zeros(8, 384).cuda()
    for name in ("mxfp8", "int8_token"):
        by = Quantizer(None, None, None, str(parse(name)))
        y = grouped_linear(x, whole, torch.tensor(ends).cuda(), None, by)
        assert off(y, bs.fake_quantize(x.float(), name), whole, ends, bias) <= 1


@pytest.mark.parametrize("spelling", ["mxfp4", "nvfp4", "int4:group32:fp32"])
def test_a_cuda_graph_takes_any_ends(spelling: str) -> None:
    """Nothing waits for them: one graph serves every way the tokens are routed."""
    whole, x = stack(spelling, 2), torch.randn(64, 512).cuda().bfloat16()
    ends = torch.tensor([8 * (i + 1) for i in range(8)]).cuda()
    torch.cuda.synchronize()
    grouped_linear(x, whole, ends)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_linear(x, whole, ends)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = grouped_linear(x, whole, ends)
    for places in ([0, 0, 64, 64, 64, 64, 64, 64], [1, 2, 3, 4, 5, 6, 7, 8], [60] * 7 + [63]):
        ends.copy_(torch.tensor(places))
        graph.replay()
        assert torch.equal(y, grouped_linear(x, whole, ends))
        assert not y[places[-1] :].any()


def test_ends_that_do_not_fit_write_nowhere_else() -> None:
    """They cannot be looked at, so they are cut off: no row of anybody else's memory changes."""
    whole, x = stack("mxfp4"), torch.randn(32, 512).cuda().bfloat16()
    around = torch.zeros(1 << 20, device="cuda")
    for places in ([40] * 8, [-5, 2**40, 3, 2, 1, 0, 99, 12], [16, 8, 16, 8, 16, 8, 16, 32]):
        y = grouped_linear(x, whole, torch.tensor(places).cuda())
        torch.cuda.synchronize()
        assert y.shape == (32, 384)
    assert not around.any()
    with pytest.raises(ValueError, match="x is on cuda:0, its ends on cpu"):
        grouped_linear(x, whole, torch.tensor([4 * (i + 1) for i in range(8)]))


def test_a_mixture_in_a_cuda_graph() -> None:
    """transformers' own experts, which sort tokens and multiply by the whole stack."""
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=96, hidden_size=128, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_experts=16, num_experts_per_tok=4,
        moe_intermediate_size=128,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval().to("cuda", torch.bfloat16)
    bs.quantize_(model, "mxfp4")
    experts = model.model.layers[0].mlp
    x = torch.randn(1, 12, 128).cuda().bfloat16()
    with torch.no_grad():
        expected = experts(x)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                experts(x)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            y = experts(x)
        graph.replay()
    first = lambda made: made[0] if isinstance(made, tuple) else made  # noqa: E731
    torch.testing.assert_close(first(y), first(expected), rtol=0, atol=0)


def layers_one_by_one(rows: int, columns: int, fmt: str, by: str | None) -> list[Joined]:
    """A layer for each of 8 experts, as files have them; of two, where rows are gate and up."""
    form, own = parse(fmt), None if by is None else parse(by)
    halves = 2 if rows > columns else 1
    return [
        Joined([
            QLinear(
                QWeight.quantize(torch.randn(rows // halves, columns).cuda(), form),
                None, Scheme(form, own),
            ).cuda()
            for _ in range(halves)
        ])
        for _ in range(8)
    ]  # fmt: skip


def silu(y: Tensor) -> Tensor:
    gate, up = y.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("by", [None, "mxfp8", "int8_token"])
@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "int4:group32:fp32", "fp8", "int8_channel"])
def test_a_servers_experts_in_a_cuda_graph(fmt: str, by: str | None) -> None:
    """Files have them one by one, vLLM captures them: a graph of one stack serves other tokens, and
    what would look at ends says so instead of failing in torch."""
    torch.manual_seed(0)
    layers = [layers_one_by_one(*shape, fmt, by) for shape in ((256, 128), (128, 128))]
    experts = Experts(*(ExpertMatrices.of_layers(each) for each in layers), 8)
    assert not experts.up.apart
    assert not experts.down.apart
    apart = Experts(*(ExpertMatrices(None, each) for each in layers), 8)
    x = torch.randn(12, 128).cuda().bfloat16()
    weights, ids = torch.rand(12, 2).cuda(), torch.randint(-1, 8, (12, 2)).cuda()
    experts(x, weights, ids, silu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = experts(x, weights, ids, silu)
    for others in (torch.full((12, 2), 3), torch.randint(-1, 8, (12, 2)), torch.full((12, 2), -1)):
        ids.copy_(others)
        graph.replay()
        assert torch.equal(y, experts(x, weights, ids, silu))
        exact = apart(x.float(), weights, ids, silu)
        torch.testing.assert_close(
            y.float(), exact, rtol=0.05, atol=0.05 * float(exact.abs().max())
        )
    text = "computed one after another .* serve with --enforce-eager"
    with pytest.raises(RuntimeError, match=text), torch.cuda.graph(torch.cuda.CUDAGraph()):
        apart(x, weights, ids, silu)
