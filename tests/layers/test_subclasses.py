# SPDX-License-Identifier: BSD-3-Clause
"""What a subclass computes: as its parent, or something of its own."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.recipe import Scheme
from blockscale.layers.kinds import QEmbedding, QLinear, quantized_class
from blockscale.layers.layer import QLayer, parent_of
from blockscale.layers.subclasses import computes_as_parent, has_own_forward, same_meaning


class Same(nn.Linear):
    pass


class Further(Same):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Step(nn.Conv2d):
    def _conv_forward(self, *args: Tensor) -> Tensor:
        return super()._conv_forward(*args)


def test_what_is_its_own() -> None:
    assert not has_own_forward(Same, nn.Linear)
    assert has_own_forward(Further, nn.Linear)
    assert has_own_forward(Step, nn.Conv2d)
    assert [parent_of(each) for each in (Further, Step, nn.Embedding)] == [
        nn.Linear, nn.Conv2d, nn.Embedding,
    ]  # fmt: skip
    assert parent_of(nn.LSTM) is None


def test_classes_are_known_by_their_library_too() -> None:
    def of(name: str, module: str) -> type:
        return type(name, (nn.Linear,), {"__module__": module, "forward": lambda s, x: x})

    assert same_meaning(of("Linear", "timm.layers.linear"))
    assert same_meaning(of("FalconLinear", "transformers.models.falcon.modeling_falcon"))
    for other in [of("Linear", "mine"), of("FalconLinear", "mine"), of("Mlp", "timm.layers.mlp")]:
        assert not same_meaning(other)
        assert has_own_forward(other, nn.Linear)


def test_one_may_be_declared() -> None:
    @computes_as_parent
    class Spelled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T + self.bias

    model = nn.Sequential(Spelled(16, 8))
    ledger = bs.quantize_(model, bs.Recipe("int8_channel", input="int8_token"), strict=True)
    assert ledger["0"].input
    assert not ledger["0"].notes
    assert model(torch.ones(2, 16)).shape == (2, 8)
    with pytest.raises(
        ValueError, match="Sequential is not a subclass of a layer that can be quantized"
    ):
        computes_as_parent(nn.Sequential)
    with pytest.raises(ValueError, match="Linear is not a subclass"):
        computes_as_parent(nn.Linear)


# Subclasses of float layers keep their class, attributes and forward, with a quantized weight.

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers.models.bart.modeling_bart import (
        BartLearnedPositionalEmbedding as BartPositions,
    )
    from transformers.models.bit.modeling_bit import WeightStandardizedConv2d
    from transformers.models.falcon.modeling_falcon import FalconLinear
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding as Gemma3
    from transformers.models.idefics.modeling_idefics import IdeficsDecoupledLinear
    from transformers.models.lasr.modeling_lasr import LasrEncoderCTCHead
    from transformers.models.ovis2.modeling_ovis2 import Ovis2VisualEmbeddingTable
    from transformers.models.perceiver.modeling_perceiver import Conv2dSamePadding


class Plain(nn.Linear):
    """One that adds nothing but a method."""

    def doubled(self, x: Tensor) -> Tensor:
        return 2 * self(x)


class Masked(nn.Linear):
    """One that computes with its weight, and has a buffer, a parameter and a child."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mask", (torch.arange(inputs) % 2).float())
        self.gain = nn.Parameter(torch.full((outputs,), 1.5))
        self.extra = nn.Linear(inputs, outputs)
        self.note = "kept"

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = F.linear(x, self.weight * self.mask, self.bias) * self.gain
        return scale * y + self.extra(x)


class Padded(nn.Conv1d):
    """One whose step before the product is its own."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(F.pad(x, (2, 0)), weight, bias)


IDS, ROWS, IMAGE = torch.tensor([[1, 3, 0, 7]]), torch.randn(3, 16), torch.randn(2, 8, 9, 9)
CASES = {
    "plain": (lambda: Plain(16, 8), ROWS),
    "masked": (lambda: Masked(16, 8), ROWS),
    "padded": (lambda: Padded(8, 4, 3), torch.randn(2, 8, 9)),
    "falcon": (lambda: FalconLinear(16, 8), ROWS),
    "gemma": (lambda: Gemma3(10, 16, 0, 3.0), IDS),
    "bart": (lambda: BartPositions(10, 16), IDS),
    "standardized": (lambda: WeightStandardizedConv2d(8, 4, 3), IMAGE),
    "same padding": (lambda: Conv2dSamePadding(8, 4, 3), IMAGE),
    "transposed input": (lambda: LasrEncoderCTCHead(8, 4, 1), torch.randn(2, 9, 8)),
    "soft table": (lambda: Ovis2VisualEmbeddingTable(10, 16), torch.randn(3, 10).softmax(-1)),
    "two in one": (lambda: IdeficsDecoupledLinear(16, 8, 4), ROWS),
}


class Holds(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def both(name: str, recipe="int8_channel") -> tuple[nn.Module, nn.Module, Tensor]:
    """A quantized subclass in a model, the same with the values as floats, and an input."""
    torch.manual_seed(0)
    make, x = CASES[name]
    layer = make().eval()
    model, twin = Holds(copy.deepcopy(layer)), copy.deepcopy(layer)
    bs.quantize_(model, recipe, strict=True)
    for path, each in model.layer.named_modules():
        if isinstance(each, QLayer):
            twin.get_submodule(path).weight.data = each.dequantize_weight()
    return model, twin, x


@pytest.mark.some(3)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_class_does_of_the_dequantized_weight(name: str) -> None:
    model, twin, x = both(name)
    layer, kind = model.layer, type(twin)
    assert isinstance(layer, kind)
    assert isinstance(layer, QLayer)
    assert (type(layer).__name__, type(layer).__module__) == (kind.__name__, kind.__module__)
    torch.testing.assert_close(layer(x), twin(x), rtol=0, atol=1e-6)
    assert {n for n in vars(twin) if not n.startswith("_")} <= set(vars(layer))


FAST = ("plain", "masked", "gemma", "standardized")


@pytest.mark.some(8)
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_files_copies_pickles_and_programs(name: str, tmp_path) -> None:
    model, _, x = both(name)
    y = model(x)
    bs.save(model, tmp_path / "it.safetensors")
    with torch.device("meta"):
        empty = Holds(CASES[name][0]().eval())
    plain = bs.load(Holds(CASES[name][0]().eval()), tmp_path / "it.safetensors")
    others = [plain, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    if name != "gemma":  # whose factor is in no file
        others += [bs.load(empty, tmp_path / "it.safetensors")] if name != "masked" else []
    for other in others:
        assert type(other.layer) is type(model.layer)
        assert torch.equal(other(x), y)
    other.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), y, rtol=0, atol=1e-6)
    program = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(program(x), y, rtol=0, atol=1e-6)


def test_inputs_and_outputs_are_quantized_where_nothing_is_its_own() -> None:
    recipe = bs.Recipe("int8_channel", input="int8_token", output="mxfp8")
    for name in ("plain", "falcon"):
        model, twin, x = both(name, recipe)
        plain = QLinear(model.layer.qweight, model.layer.bias, Scheme(*recipe_scheme(recipe)))
        assert torch.equal(model(x), plain(x))
        assert not torch.equal(model(x), twin(x))
    assert torch.equal(both("plain")[0].layer.doubled(ROWS), 2 * both("plain")[0](ROWS))


def recipe_scheme(recipe: bs.Recipe) -> tuple:
    scheme = recipe.default
    return scheme.weight, scheme.input, scheme.output


def test_where_the_forward_is_its_own_they_stay_in_float_with_a_note() -> None:
    model = Holds(Masked(16, 8))
    with pytest.warns(UserWarning, match="layer: input and output left in float: Masked has its"):
        ledger = bs.quantize_(model, bs.Recipe("int8_channel", "int8_token", output="mxfp8"))
    assert (ledger["layer"].input, ledger["layer"].output) == ("", "")
    assert ledger["layer.extra"].input  # a layer of its own
    ledger = bs.quantize_(Holds(CASES["gemma"][0]()), bs.Recipe("int8_channel", "int8_token"))
    assert ledger["layer"].reason == "its input is indices, which have no format"
    assert not ledger["layer"].notes


def test_other_arguments_and_super_reach_the_forward() -> None:
    model, twin, x = both("masked")
    torch.testing.assert_close(model.layer(x, scale=2.0), twin(x, scale=2.0), rtol=0, atol=1e-6)
    assert model.layer.note == "kept"
    assert issubclass(quantized_class(CASES["gemma"][0]()), QEmbedding)


def test_a_quantized_one_is_left_alone_and_its_weight_is_not_written_to() -> None:
    model, _, x = both("plain")
    y = model(x)
    assert quantized_class(model.layer) is None
    assert bs.quantize_(model, "int4")["layer"].reason == "already quantized"
    with pytest.raises(RuntimeError, match=r"layer\.weight, which is quantized"):
        model.layer.weight.mul_(3)
    assert torch.equal(model(x), y)


class Named(nn.Embedding):
    """One that has a bias, which no quantized table has."""

    def __init__(self) -> None:
        super().__init__(9, 16)
        self.bias = nn.Parameter(torch.ones(16))

    def forward(self, indices: Tensor) -> Tensor:
        return super().forward(indices) + self.bias


def test_settings_that_every_table_has_are_no_names_of_ours() -> None:
    class Plain(nn.Embedding):
        """Its attributes are nn.Embedding's, `max_norm` and `sparse` among them."""

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input + 2)

    model = nn.Sequential(Plain(8, 32))
    assert bs.quantize_(model, "mxfp4", strict=True)["0"].status == "quantized"
    assert model[0].max_norm is None
    assert not model[0].sparse


def test_one_that_uses_our_names_is_refused() -> None:
    with pytest.raises(bs.SkippedError, match="for themselves: bias"):
        bs.quantize_(Holds(Named()), "int8", strict=True)
    layer = Plain(16, 8)
    layer.output = nn.ReLU()
    with pytest.raises(bs.SkippedError, match="for themselves: output"):
        bs.quantize_(Holds(layer), "int8", strict=True)


class StaticSame(nn.Conv2d):
    """As EfficientNet-Lite's: what the product gets is not what the layer is called with."""

    def forward(self, x: Tensor) -> Tensor:
        settings = (self.stride, self.padding, self.dilation, self.groups)
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, *settings)


@pytest.mark.slow
def test_what_graphs_quantize_and_modules_do_not_is_said() -> None:
    """And is so: static scales of what F.conv2d gets, which are those of the padded image."""
    torch.manual_seed(0)
    model, image = nn.Sequential(StaticSame(3, 8, 3, stride=2)).eval(), torch.randn(2, 3, 9, 9) - 3
    recipe = bs.Recipe("int8_channel", "int8:tensor:fp32:full")
    program = torch.export.export(model, (image,))
    told = r"input left in float: StaticSame has its own forward; bs\.graph\.prepare\(torch\.export"
    with pytest.warns(UserWarning, match=told):
        ledger = bs.calibrate(copy.deepcopy(model), [image], recipe, "min_max", progress=False)
    assert not ledger["0"].input
    prepared = bs.graph.prepare(program, recipe, observer="min_max")
    bs.calibrate(prepared, [image], progress=False)
    graph = bs.graph.convert(prepared)
    seen = bs.fake_quantize(F.pad(image, (0, 1, 0, 1)).movedim(1, -1), recipe.default.input)
    weight = bs.fake_quantize(model[0].weight.movedim(1, -1), "int8_channel").movedim(-1, 1)
    expected = F.conv2d(seen.movedim(-1, 1), weight, model[0].bias, 2)
    torch.testing.assert_close(graph(image), expected)


@pytest.mark.slow
def test_calibration_and_training_know_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Plain(16, 16), Masked(16, 8))
    data = [torch.randn(4, 16) for _ in range(3)]
    with pytest.warns(UserWarning, match="Masked has its own forward"):
        ledger = bs.calibrate(
            model, data, bs.Recipe("int4", input="int8"), weight="gptq", progress=False
        )
    assert ledger["0"].details == "static input by mse, weight by gptq"
    assert not ledger["1"].input
    assert model(data[0]).isfinite().all()
    with pytest.warns(UserWarning, match="Plain can be quantized, but not trained"):
        bs.prepare_qat(nn.Sequential(Plain(16, 16), nn.Linear(16, 8)), "int8")
