# SPDX-License-Identifier: BSD-3-Clause
"""One launch for all experts on a GPU. Needs CUDA: `pytest -m gpu tests/gpu/test_grouped.py`."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
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
                assert torch.equal(grouped_linear(*arguments), y)
                assert torch.equal(grouped_linear.reference(*arguments), y), dtype


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
