# SPDX-License-Identifier: BSD-3-Clause
"""`use(batch_invariant=True)`: a row has the same bits alone and inside of any batch, or an error
says whose format forbids it."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels import registry
from blockscale.ops.batch_rows import check_rows, per_row, rows_in_order, shared_scale
from blockscale.ops.linear import linear
from blockscale.ops.op import OPS
from tests.support.batch_rows import PAIRS, differing, layer, rows

SOME = range(0, 512, 7)


@pytest.mark.some(11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("weight", "input"), PAIRS)
def test_rows_on_the_cpu(weight: str, input: str | None, dtype: torch.dtype) -> None:
    with bs.use("cpu", batch_invariant=True):
        assert differing(layer(weight, input), rows().to(dtype), SOME) == []


@pytest.mark.some(10)
@pytest.mark.parametrize(("weight", "input"), PAIRS)
def test_rows_of_the_reference(weight: str, input: str | None) -> None:
    with bs.use("reference", batch_invariant=True):
        assert differing(layer(weight, input), rows(), range(0, 512, 73)) == []


def test_without_it_rows_do_depend() -> None:
    """What the mode is for: else these tests would prove nothing."""
    with bs.use("cpu"):
        assert differing(layer("int4:group32:fp32", None), rows(), SOME)
        assert differing(layer("nvfp4", "nvfp4"), rows(), SOME)


@pytest.mark.parametrize("fmt", ["int4:group32:fp32", "nvfp4", "int8_channel"])
def test_the_result_is_that_of_linear(fmt: str) -> None:
    """Within the op's bound of the sums in any other order, and of float64."""
    model, x = layer(fmt, None), torch.randn(70, 192)
    with torch.no_grad(), bs.use(batch_invariant=True):
        y = model(x)
    w = model[0].dequantize_weight(torch.float32).double()
    size = x.double().abs() @ w.abs().T + model[0].bias.abs()
    exact = F.linear(x.double(), w, model[0].bias.double())
    assert bool(((y - exact).abs() <= 64 * 2.0**-24 * size).all())


def test_sums_of_the_cpu_run_along_k() -> None:
    """One product after the other, as numerics.md says: by hand, in float32 by fused steps."""
    model, x = layer("int8_channel", None, 4, 70), torch.randn(5, 70)
    w = model[0].dequantize_weight(torch.float32)
    sums = torch.zeros(5, 4)
    for i in range(70):  # a product of two float32 is a float64, and so is its sum, nearly always
        sums = (x[:, i, None].double() * w[:, i].double() + sums.double()).float()
    with torch.no_grad(), bs.use("cpu", batch_invariant=True):
        assert torch.equal(model(x), sums + model[0].bias)


def test_convolutions_run_an_image_at_a_time() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2))
    bs.quantize_(model, bs.Recipe("int8_channel", input="int8:token:fp32"))
    x = torch.randn(7, 3, 9, 9)
    for backend in ("cpu", "reference"):
        with torch.no_grad(), bs.use(backend, batch_invariant=True):
            y = model(x)
            assert all(torch.equal(model(x[i : i + 1]), y[i : i + 1]) for i in range(7))
            assert model(x[:0]).shape == y[:0].shape


def test_bags_do_not_depend_on_each_other() -> None:
    model = nn.Sequential(nn.EmbeddingBag(50, 24, mode="mean"))
    bs.quantize_(model, bs.Recipe("int8_channel"))
    bags = torch.randint(0, 50, (64, 9))
    with torch.no_grad(), bs.use(batch_invariant=True):
        y = model(bags)
        assert all(torch.equal(model(bags[i : i + 1]), y[i : i + 1]) for i in range(64))


def test_whose_scale_rows_share() -> None:
    shared = {
        "nvfp4": "outer scale",
        "nvfp4_token": "",
        "int8": "scale",
        "int8_token": "",
        "mxfp4": "",
        "int8:tile16x32:fp32": "scale",
        "int8:flat32:fp32": "scale",
        "uint4:group32:fp32:offset(int8:tensor:fp32)": "offset's scale",
    }
    assert {fmt: shared_scale(parse(fmt), 2, 1) for fmt in shared} == shared
    assert shared_scale(parse("int8:group32@-2:fp32"), 3, 2) == "scale"  # tokens of a sequence
    assert shared_scale(parse("int8"), 1, 0) == ""  # one row alone
    assert shared_scale(parse("nvfp4"), 2, 1, outer=False) == ""


@pytest.mark.parametrize(
    ("fmt", "instead"),
    [("nvfp4", "nvfp4_token"), ("int8", "int8_token"), ("int8:tile16x32:fp32", "int8_token")],
)
def test_what_takes_the_place_of_a_format(fmt: str, instead: str) -> None:
    assert per_row(parse(fmt)) == parse(instead)
    check_rows("x", parse(instead), 2, 1)
    with pytest.raises(RuntimeError, match=f"x is quantized by {fmt}.*with {instead} in its place"):
        check_rows("x", parse(fmt), 2, 1)


def test_rounding_by_chance_is_refused() -> None:
    with pytest.raises(RuntimeError, match="leave 'stochastic' out"):
        check_rows("x", parse("int8:token:fp32:stochastic"), 2, 1)


def test_a_layer_is_refused_by_its_name() -> None:
    model = nn.Sequential()
    model.add_module("up", nn.Linear(64, 32))
    bs.quantize_(model, bs.Recipe("nvfp4", input="nvfp4"))
    with bs.use(batch_invariant=True), pytest.raises(RuntimeError) as error:
        model(torch.randn(2, 64))
    assert "the input of the layer 'up' is quantized by nvfp4" in str(error.value)
    assert "nvfp4_token" in str(error.value)
    bs.quantize_(outputs := nn.Sequential(nn.Linear(64, 32)), bs.Recipe("int8", output="int8"))
    with bs.use(batch_invariant=True), pytest.raises(RuntimeError, match="the output of the layer"):
        outputs(torch.randn(2, 64))


def test_an_op_refuses_without_a_layer() -> None:
    q = bs.quantize(torch.randn(4, 64), "int8_channel")
    by = Quantizer(None, None, None, "int8:tensor:fp32")
    with bs.use(batch_invariant=True), pytest.raises(RuntimeError, match="the input of linear"):
        linear(torch.randn(2, 64), q.operand, None, by)


def test_a_static_scale_is_taken() -> None:
    model = nn.Sequential(nn.Linear(192, 48))
    bs.calibrate(model, [torch.randn(8, 192)], bs.Recipe("int8_channel", input="int8"))
    with torch.no_grad(), bs.use("cpu", batch_invariant=True):
        assert differing(model, rows(), range(0, 512, 73)) == []


def test_float_sums_of_graphs_are_refused() -> None:
    sums = {name for name, each in OPS.items() if each.ulps}
    assert sums == {
        "cached_attention",
        "linear",
        "conv",
        "conv_transpose",
        "grouped_linear",
    }  # a new op has to say how it keeps rows
    assert {"fused_linear", "fused_softmax", "fused_residual_rms_norm"} <= registry.UNORDERED
    with bs.use(batch_invariant=True), pytest.raises(RuntimeError, match="fused_softmax sums"):
        registry.find("fused_softmax", (), "cpu", ())
    with bs.use(batch_invariant=True):  # of which nothing is rounded
        assert bs.quantize(torch.ones(2, 4), "int8").dequantize().eq(1).all()


def test_blocks_inside_blocks_and_other_threads() -> None:
    seen = []
    assert not registry.batch_invariant()
    with bs.use(batch_invariant=True):
        with bs.use("reference"):
            assert registry.choice() == registry.Choice("reference", False, True)
            with bs.use(batch_invariant=False):
                assert registry.choice() == registry.Choice("reference", False, False)
        thread = threading.Thread(target=lambda: seen.append(registry.batch_invariant()))
        thread.start()
        thread.join()
        assert registry.batch_invariant()
    assert seen == [False]
    assert not registry.batch_invariant()


def test_rows_in_order_keeps_shapes() -> None:
    x, w, b = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5)
    y = rows_in_order(x, w, b)
    assert y.shape == (2, 3, 5)
    assert torch.allclose(y, F.linear(x, w, b), atol=1e-5)
    assert rows_in_order(x[0, 0], w, None).shape == (5,)
    assert rows_in_order(x[:0], w, b).shape == (0, 3, 5)
