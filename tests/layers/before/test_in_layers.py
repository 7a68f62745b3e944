# SPDX-License-Identifier: BSD-3-Clause
"""Quantized layers with something before them. Whole numbers and powers of two: nothing rounds."""

import copy
import io
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.core.recipe import Scheme
from blockscale.layers.before import Before, Rotate, Scale, random_signs
from blockscale.layers.kinds import QTransposedLinear
from blockscale.layers.store import QWeight
from tests.layers.before.kinds import (
    DTYPES,
    K,
    kinds,
    powers,
    same,
    whole,
)

LOSSLESS = "int16:tensor:pow2/ceil"  # of what these tests put into it


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the bits."""
    with bs.use("reference"):
        yield


def with_before(layer: nn.Module, each: Before, recipe: object = LOSSLESS) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(layer))
    bs.quantize_(model, bs.Recipe.read(recipe), before={"0": copy.deepcopy(each)})
    return model[0]


def linear() -> nn.Linear:
    layer = nn.Linear(K, 6)
    layer.weight.data, layer.bias.data = whole(6, K), whole(6)
    return layer


CONVS = [
    nn.Conv2d(K, 3, 3, padding=1),
    nn.Conv2d(K, 3, (1, 2), stride=2, padding=1, padding_mode="reflect"),
    nn.Conv2d(K, 3, 3, dilation=2, padding="same", padding_mode="circular"),
    nn.Conv1d(K, 3, 3, padding=2, padding_mode="replicate"),
    nn.Conv1d(K, 3, 1, bias=False),
    nn.Conv3d(K, 3, (1, 2, 2), padding=1),
    nn.ConvTranspose1d(K, 3, 3, stride=2, output_padding=1),
    nn.ConvTranspose2d(K, 3, (3, 2), dilation=2, padding=1),
    nn.ConvTranspose3d(K, 3, 2, stride=2, bias=False),
]


@pytest.mark.some(10)
@pytest.mark.parametrize("layer", [linear(), *CONVS], ids=str)
def test_a_layer_computes_what_it_did(layer: nn.Module) -> None:
    """Through a format that loses nothing, input and weight: the float layer's bits, gradients."""
    for parameter in layer.parameters():
        parameter.data = whole(*parameter.shape)
    shape = (5, K) if isinstance(layer, nn.Linear) else (2, K, 6, 5, 4)[: layer.weight.ndim]
    recipe = bs.Recipe(LOSSLESS, input=LOSSLESS)
    for each in kinds():
        quantized = with_before(layer, each, recipe)
        x = whole(*shape).requires_grad_()
        y, expected = quantized(x), layer(x)
        same(y, expected)
        there = whole(*y.shape)
        same(*(torch.autograd.grad((out * there).sum(), x)[0] for out in (y, expected)))
        same(quantized.dequantize_weight(), layer.weight.detach())
        if len(shape) > 2:
            same(quantized(x[0]), expected[0])


def test_the_transposed_layer() -> None:
    weight = whole(K, 5)
    for each in kinds():
        q = bs.quantize(each.to_weight(weight.t()), LOSSLESS)
        layer = QTransposedLinear(
            QWeight(q, (K, 5), torch.float32, "transposed"), None, Scheme(q.format)
        )
        layer.set_before(each)
        x = whole(2, 3, K)
        same(layer(x), x @ weight)
        same(layer.dequantize_weight(), weight)
        assert layer.dequantize_weight(torch.float16).dtype == torch.float16


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [None, "int8_token", "mxfp8", "int4:group32:fp32"])
def test_the_layer_is_its_definition(fmt: str | None) -> None:
    """Before, then the input's format, then the product with the codes' values."""
    layer = nn.Linear(K, 6)
    for each, dtype in itertools.product(kinds(), DTYPES):
        plain = copy.deepcopy(layer).to(dtype)
        quantized = with_before(plain, each, bs.Recipe("int4:group8:fp32", input=fmt))
        dense = bs.quantize(each.to_weight(plain.weight.detach()), "int4:group8:fp32").dequantize()
        x = torch.randn(3, K, dtype=dtype)
        moved = each(x).float()
        values = moved if fmt is None else bs.fake_quantize(moved, fmt)
        same(quantized(x), F.linear(values, dense, plain.bias.float()).to(dtype))
        original = each.from_weight(dense).to(dtype)
        same(quantized.dequantize_weight(), original)


def test_static_inputs_are_those_after_it() -> None:
    each, x = Rotate(K, 8), whole(4, K)
    scale, _ = bs.choose_qparams(each(x), "int8")
    layer = with_before(linear(), each, bs.Recipe(LOSSLESS, input="int8"))
    dynamic = layer(x)
    layer.input.set_scale(scale)
    same(layer(x), dynamic)


REFUSED = [
    (nn.Linear(K, 2), Scale(powers(12)), "scale is for 12 features, and the layer has 24"),
    (nn.Linear(K, 2), Rotate(48, 8), "rotate:8 is for 48 features, and the layer has 24"),
    (nn.Conv1d(K, 4, 3), Scale(powers(3 * K)), "scale is for 72 features, and the layer has 24"),
    (nn.Conv2d(K, 4, 3, groups=2), Scale(powers()), "its 2 groups read different channels"),
    (
        nn.ConvTranspose2d(K, 4, 3, groups=4),
        Scale(powers()),
        "its 4 groups read different channels",
    ),
    (
        nn.ConvTranspose1d(K, 4, 3),
        Scale(powers(4)),
        "scale is for 4 features, and the layer has 24",
    ),
    (nn.Embedding(9, K), Scale(powers()), "input is indices"),
]


@pytest.mark.parametrize(("layer", "each", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_does_not_fit_is_refused(layer: nn.Module, each: Before, words: str) -> None:
    model = nn.Sequential(layer)
    bs.quantize_(model, LOSSLESS)
    with pytest.raises(ValueError, match=words):
        model[0].set_before(each)
    assert model[0].before is None
    float_model = nn.Sequential(layer)
    with pytest.raises(ValueError, match=words):
        bs.quantize_(float_model, LOSSLESS, before={"0": each})
    assert float_model[0] is layer


def test_each_layer_gets_its_own() -> None:
    """One module may be meant for two layers, which may move to two devices."""
    each = Scale(powers())
    layer, other = with_before(linear(), each), with_before(linear(), each)
    layer.set_before(each)
    other.set_before(each)
    layer.to("meta")
    assert not other.before.factor.is_meta
    assert not each.factor.is_meta


def test_a_layer_without_one_is_as_it_was() -> None:
    model = nn.Sequential(linear())
    bs.quantize_(model, LOSSLESS)
    assert model[0].before is None
    assert not [name for name, _ in model.named_modules() if "before" in name]
    assert sorted(model.state_dict()) == [
        "0.bias", "0.weight._extra_state", "0.weight.codes", "0.weight.scale",
    ]  # fmt: skip
    x = whole(2, K)
    assert model[0].prepare_input(x) is x


def test_copies_pickles_and_states() -> None:
    for each in kinds():
        layer, x = with_before(linear(), each), whole(3, K)
        expected = layer(x)
        same(copy.deepcopy(layer)(x), expected)
        same(pickle.loads(pickle.dumps(layer))(x), expected)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = with_before(nn.Linear(K, 6), Scale(torch.ones(K)) if each.fmt == "scale" else each)
        other.load_state_dict(torch.load(file, weights_only=True))
        same(other(x), expected)
        fresh = nn.Sequential(nn.Linear(K, 6))
        bs.quantize_(fresh, LOSSLESS)
        with pytest.raises(RuntimeError, match="before"):
            fresh[0].load_state_dict(layer.state_dict())


def test_a_state_of_another_kind_is_refused() -> None:
    """Many have the same shapes: rotate:4 and rotate:8 hold nothing at all."""
    layer, other = with_before(linear(), Rotate(K, 8)), with_before(linear(), Rotate(K, 4))
    with pytest.raises(
        RuntimeError,
        match=("rotate:4, and the state was saved with rotate:8"),
    ):
        other.load_state_dict(layer.state_dict())


def test_conversions_move_it_and_keep_its_dtype() -> None:
    layer = with_before(linear(), Scale(torch.rand(K) + 0.5))
    factor = layer.before.factor.clone()
    for convert in (nn.Module.half, nn.Module.double, nn.Module.bfloat16):
        convert(layer)
        same(layer.before.factor, factor)
    assert layer.to("meta").before.factor.is_meta


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("each", [Scale(powers()), Rotate(K, 8, random_signs(K, 1))], ids=str)
def test_compile_and_export_with_any_number_of_rows(each: Before) -> None:
    torch._dynamo.reset()
    layer = with_before(linear(), each, bs.Recipe(LOSSLESS, input="int8_token")).eval()
    rows = torch.export.Dim("rows", min=2, max=99)
    program = torch.export.export(layer, (whole(4, K),), dynamic_shapes=({0: rows},))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (4, 7):
        x = whole(count, K)
        same(program.module()(x), layer(x))
        same(compiled(x), layer(x))


@pytest.mark.slow
def test_a_convolution_compiles() -> None:
    torch._dynamo.reset()
    conv, x = nn.Conv1d(K, 3, 3, padding=1), whole(2, K, 5)
    conv.weight.data = whole(3, K, 3)
    layer = with_before(conv, Rotate(K, 8), bs.Recipe(LOSSLESS, input="int8_token")).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(compiled(x), layer(x))
