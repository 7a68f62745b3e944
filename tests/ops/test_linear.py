# SPDX-License-Identifier: BSD-3-Clause
"""Quantized linear layers are their definition: fl32 matmul of dequantized parts (numerics, 7)."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED
from blockscale.core.parse import CATALOG
from tests.support.op_samples import Made
from tests.support.some import crossed

N, K = 6, 40  # K leaves partial blocks in groups of 16, 32, 64 and 128
INPUTS = (
    None,
    "int8",
    "uint8",
    "int8_token",
    "mxfp8",
    "nvfp4",
    "int8:channel-1:fp32",
    "uint4:group16:bf16:asym:recip",
    "binary:token:fp32",
)
SHAPES = ((K,), (3, K), (2, 3, K), (2, 1, 2, K), (0, K), (2, 0, K))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def samples(made: Made) -> dict[str, list[tuple]]:
    x = made.x
    return {
        "linear": [
            (x, made.packed, None, UNQUANTIZED),
            (x[None], made.packed, torch.randn(5), made.own),
        ]
    }


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the op's own bits."""
    with bs.use("reference"):
        yield


def layer(weight: str, given: str | None = None, dtype=torch.float32, bias: bool = True):
    """A quantized layer, and what its weight means."""
    float_layer = nn.Linear(K, N, bias=bias).to(dtype)
    dense = bs.quantize(float_layer.weight, weight).dequantize()
    model = nn.Sequential(float_layer)
    bs.quantize_(model, bs.Recipe(weight, given))
    return model[0], dense


def define(x: Tensor, dense: Tensor, bias: Tensor | None, fmt: str | None, scale=()) -> Tensor:
    """The definition in plain torch, differentiable through fake_quantize alone."""
    values = x.float() if fmt is None else bs.fake_quantize(x.float(), fmt, *scale)
    return F.linear(values, dense, None if bias is None else bias.float()).to(x.dtype)


def whole(*shape: int, dtype=torch.float32) -> Tensor:
    """Small integers: sums of them are exact, in any order."""
    return torch.randint(-4, 5, shape).to(dtype)


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("name", CATALOG)
def test_every_weight_format(name: str) -> None:
    for dtype, bias in itertools.product(DTYPES, (True, False)):
        quantized, dense = layer(name, dtype=dtype, bias=bias)
        same(quantized.dequantize_weight(torch.float32), dense)
        same(quantized.dequantize_weight(), dense.to(dtype))
        for shape in SHAPES:
            x = torch.randn(shape, dtype=dtype)
            same(quantized(x), define(x, dense, quantized.bias, None))


@pytest.mark.parametrize(("fmt", "weight"), crossed(3, INPUTS, ["mxfp4", "uint8", "int8_channel"]))
def test_every_input_format(fmt: str | None, weight: str) -> None:
    for dtype in DTYPES:
        quantized, dense = layer(weight, fmt, dtype)
        for shape in SHAPES:
            x = torch.randn(shape, dtype=dtype)
            same(quantized(x), define(x, dense, quantized.bias, fmt))


def test_output_format() -> None:
    model = nn.Sequential(nn.Linear(K, N))
    dense = bs.quantize(model[0].weight, "int8_channel").dequantize()
    bs.quantize_(model, bs.Recipe("int8_channel", "int8_token", "mxfp4"))
    x = torch.randn(3, K)
    y = define(x, dense, model[0].bias, "int8_token")
    same(model(x), bs.fake_quantize(y, "mxfp4"))


@pytest.mark.parametrize(
    ("shape", "dtype"), crossed(3, [(3, K), (2, 3, K), (0, K), (2, 0, K), (K,)], DTYPES), ids=str
)
def test_gradients_are_those_of_the_definition(shape, dtype) -> None:
    """Weights and inputs under powers of two, whole gradients: no sum rounds, so bits are equal."""
    inputs = (None, "int4:tensor:pow2/floor", "mxfp4", "uint4:token:pow2/floor:asym", "mxint8")
    for fmt in inputs:  # the floor rule saturates, so that the mask matters
        quantized, dense = layer("int4:group16:e8m0/floor", fmt, dtype)
        quantized.bias.data = whole(N, dtype=dtype)
        x = whole(*shape[::-1]) if fmt is None else torch.randn(shape[::-1])
        x = x.to(dtype).permute(*reversed(range(len(shape)))).requires_grad_()
        gradient, wanted = whole(*shape[:-1], N, dtype=dtype), (x, quantized.bias)
        y, expected = quantized(x), define(x, dense, quantized.bias, fmt)
        found = torch.autograd.grad(y, wanted, gradient)
        for each, other in zip(found, torch.autograd.grad(expected, wanted, gradient), strict=True):
            same(each, other)
        same(y, quantized(x.contiguous()))


def test_what_wants_no_gradient_gets_none() -> None:
    quantized, _ = layer("int8_channel", "int8")
    quantized(torch.randn(3, K)).sum().backward()  # the bias alone
    assert torch.equal(quantized.bias.grad, torch.full((N,), 3.0))
    quantized.bias.requires_grad_(False)
    quantized.bias.grad = None
    x = torch.randn(3, K, requires_grad=True)
    quantized(x).sum().backward()
    assert quantized.bias.grad is None
    assert x.grad is not None
    assert not quantized(x.detach()).requires_grad
    assert not any(b.requires_grad for b in quantized.buffers())


@pytest.mark.parametrize("fmt", ["int8", "int8:channel-1:fp32"])
def test_a_scale_that_wants_a_gradient_gets_one_or_an_error(fmt: str) -> None:
    """A learned step (LSQ, TQT) that silently stays what it is looks like training that fails."""
    x, scale = torch.randn(2, K), bs.choose_qparams(torch.randn(2, K), fmt)[0]
    scale.requires_grad_()
    try:
        bs.fake_quantize(x, fmt, scale).sum().backward()
    except RuntimeError:
        return
    assert scale.grad is not None


@pytest.mark.parametrize("fmt", ["int8", "uint8", "int8:channel-1:fp32", "e2m1:channel-1:e4m3"])
def test_static_input(fmt: str) -> None:
    """A scale from an input of any rank serves inputs of every rank, also where they saturate."""
    seen, quantized_, (quantized, dense) = torch.randn(K), [], layer("int8_channel", fmt)
    for shape in ((K,), (1, K), (1, 1, K)):
        assert quantized.input.static == (shape != (K,))
        quantized.input.set_scale(*bs.choose_qparams(seen.reshape(shape), fmt))
        quantized_.append([quantized(torch.ones(s)) for s in SHAPES])
    for others in quantized_[1:]:
        for each, first in zip(others, quantized_[0], strict=True):
            same(each, first)
    scale = bs.choose_qparams(seen[None], fmt)
    x = (torch.randn(4, K) * 2).requires_grad_()
    y, expected = quantized(x), define(x, dense, quantized.bias, fmt, scale)
    same(y, expected)
    grads = [torch.autograd.grad(each.sum(), x)[0] for each in (y, expected)]
    same(*grads)
    assert (grads[0] == 0).any()  # where it saturates


@pytest.mark.parametrize("fmt", ["int8", "e2m1:channel-1:e4m3", "e2m1:tensor:(uint4:tensor:fp32)"])
def test_static_output(fmt: str) -> None:
    model = nn.Sequential(nn.Linear(K, N))
    bs.quantize_(model, bs.Recipe("int8_channel", output=fmt))
    x = torch.randn(3, K)
    y = F.linear(x, model[0].dequantize_weight(), model[0].bias)
    scale = bs.choose_qparams(y, fmt)
    model[0].output.set_scale(*scale)
    same(model(x), bs.fake_quantize(y, fmt, *scale))


@pytest.mark.parametrize("fmt", ["mxfp4", "int8_token", "int8:channel0:fp32", "int8:tile1x8:fp32"])
def test_a_block_that_depends_on_the_rows_has_no_static_scale(fmt: str) -> None:
    quantized, _ = layer("int8_channel", fmt)
    with pytest.raises(ValueError, match="a static scale needs the block 'tensor' or 'channel-1'"):
        quantized.input.set_scale(bs.choose_qparams(torch.randn(3, K), fmt)[0])
    assert not quantized.input.static


def test_stochastic_input_follows_torch_manual_seed() -> None:
    for dtype in DTYPES:
        quantized, dense = layer("int8_channel", "int4:token:fp32:stochastic", dtype)
        x, runs = torch.randn(3, K, dtype=dtype), []
        for _ in range(2):
            torch.manual_seed(4)
            runs.append(quantized(x))
        torch.manual_seed(4)
        expected = define(x, dense, quantized.bias, "int4:token:fp32:stochastic")
        same(runs[0], runs[1])
        same(runs[0], expected)  # in float32 until the end, like every other input format


def test_autocast_does_not_reach_inside() -> None:
    """`cast once to x's dtype`: the matmul of an op stays in float32 (numerics.md, section 7)."""
    for fmt in (None, "int8_token"):
        quantized, _ = layer("int8_channel", fmt)
        x = torch.randn(3, K)
        expected = quantized(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(quantized(x), expected)


@pytest.mark.slow
def test_compile_and_export_with_any_number_of_rows() -> None:
    rows = torch.export.Dim("rows", min=2, max=99)
    for weight, fmt in (("nvfp4", "mxfp8"), ("uint4", None), ("int8_channel", "int8")):
        torch._dynamo.reset()
        quantized, _ = layer(weight, fmt)
        quantized.eval()
        program = torch.export.export(quantized, (torch.randn(4, K),), dynamic_shapes=({0: rows},))
        compiled = torch.compile(quantized, fullgraph=True, backend="aot_eager", dynamic=True)
        for count in (4, 7, 64):
            x = torch.randn(count, K)
            same(program.module()(x), quantized(x))
            same(compiled(x), quantized(x))


def test_messages() -> None:
    quantized, _ = layer("int8_channel", "int8")
    with pytest.raises(ValueError, match=r"expected an input \[\.\.\., 40\], found \(3, 39\)"):
        quantized(torch.randn(3, 39))
    with pytest.raises(TypeError, match="expected float32, bfloat16 or float16, found float64"):
        quantized(torch.randn(3, K, dtype=torch.float64))
    assert "in_features=40, out_features=6" in repr(quantized)
    assert copy.deepcopy(quantized).weight.fmt == "int8:channel0:fp32"
