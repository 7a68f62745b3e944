# SPDX-License-Identifier: BSD-3-Clause
"""torch's own prepare_fx and prepare_qat_fx with formats of ours, then programs of codes."""

import copy
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.ao import quantization as ao
from torch.ao.quantization import quantize_fx

import blockscale as bs
from blockscale.compat import torch_ao as T
from blockscale.graph.adoption.observed import schema_name
from blockscale.graph.qparams import QuantParams
from tests.compat.torch_ao.prepared import CONFIGS, with_quantized_weights
from tests.graph.adoption.cases import adopted, graph_of, left
from tests.graph.pt2e.flow import exported
from tests.support.op_samples import bits


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.act = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.up = nn.ConvTranspose2d(8, 8, 1, groups=2)
        self.fc, self.last = nn.Linear(128, 16), nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        y = self.up(self.act(self.bn(self.conv(images)))).flatten(1)
        return self.last(torch.relu(self.fc(y)))


class Block(nn.Module):
    """A tiny transformer's block, as torch.fx traces it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 16)
        self.norm, self.other = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        x = x + self.out(scores @ v)
        return x + self.down(nn.functional.gelu(self.up(self.other(x))))


def images() -> Any:
    torch.manual_seed(1)
    return (torch.randn(4, 3, 6, 6),)


def tokens() -> Any:
    return (torch.arange(10).reshape(2, 5),)


MODELS: dict[str, tuple[Any, Any]] = {"cnn": (CNN, images), "transformer": (Block, tokens)}


def mapping_of(qconfig: Any, qat: bool) -> Any:
    mapping = T.QConfigMapping().set_global(qconfig)  # torch.ao trains embeddings in one scheme
    return mapping.set_object_type(nn.Embedding, None) if qat else mapping


def prepared(model: str, qconfig: Any, *, qat: bool) -> tuple[fx.GraphModule, Any]:
    kind, example = MODELS[model]
    x, mapping = example(), mapping_of(qconfig, qat)
    if not qat:
        made = quantize_fx.prepare_fx(kind().eval(), mapping, x)
        made(*x)
    else:
        made = quantize_fx.prepare_qat_fx(kind().train(), mapping, x)
        optimizer = torch.optim.SGD(made.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            made(*x).square().mean().backward()
            optimizer.step()
    return made.eval().apply(T.disable_observer), x


CASES = [("transformer", "blocks", False), ("transformer", "static", True)]
CASES += [("cnn", name, qat) for name in CONFIGS for qat in (False, True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize(("model", "name", "qat"), CASES)
def test_the_bits_of_what_was_prepared(model: str, name: str, qat: bool) -> None:
    observed, x = prepared(model, CONFIGS[name], qat=qat)
    before = str(observed.graph)
    with torch.no_grad(), bs.use("reference"):
        expected = with_quantized_weights(observed, CONFIGS[name])(*x)
        program = bs.graph.from_quantize_fx(observed, x)
        fused = bs.graph.fuse(program)
        assert torch.equal(program.module()(*x), expected)
        assert torch.equal(fused(*x), expected)
    assert str(observed.graph) == before
    kinds = nn.Linear | nn.modules.conv._ConvNd
    layers = [n for n, m in observed.named_modules() if isinstance(m, kinds)]
    names = dict(fused.named_buffers())
    assert {f"{n.removesuffix('.0')}.weight.codes" for n in layers} <= {
        n.replace(".0.weight", ".weight") for n in names
    }
    fmt = str(CONFIGS[name].weight().format)
    weights = [node for node in fused.graph.nodes if fmt in map(str, node.args)]
    assert weights
    for convert in (quantize_fx.convert_fx, quantize_fx.convert_to_reference_fx):
        with pytest.raises(ValueError, match=r"no qscheme for .*bs\.graph\.from_quantize_fx"):
            convert(copy.deepcopy(observed))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_formats_that_torch_ao_has() -> None:
    """convert_fx takes them as its own observers, with the same results."""
    affine = "uint8:tensor:fp32:asym:recip"
    ours = T.QConfig(
        T.MinMaxObserver.with_args(dtype=affine),
        T.MinMaxObserver.with_args(dtype="int8:channel0:fp32:half:recip"),
    )
    theirs = ao.QConfig(
        ao.MinMaxObserver,
        ao.PerChannelMinMaxObserver.with_args(
            dtype=torch.qint8, qscheme=torch.per_channel_symmetric
        ),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).eval()
    x, found = images(), []
    for qconfig in (ours, theirs):
        mapping = T.QConfigMapping().set_global(qconfig)
        found.append(quantize_fx.prepare_fx(copy.deepcopy(model), mapping, x))
        found[-1](*x)
    a, b = found
    engine = torch.backends.quantized.engine
    with torch.no_grad(), bs.use("reference"):
        converted = quantize_fx.convert_to_reference_fx(copy.deepcopy(a))
        reference = quantize_fx.convert_to_reference_fx(copy.deepcopy(b))
        assert torch.equal(converted(*x), reference(*x))
        programs = [bs.graph.from_quantize_fx(each, x).module()(*x) for each in (a, b)]
        assert torch.equal(*programs)
        if engine != "none":
            lowered = [quantize_fx.convert_fx(each)(*x) for each in (a, b)]
            assert torch.equal(*lowered)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_what_torch_ao_leaves_out_is_said() -> None:
    mapping, x = T.QConfigMapping().set_global(T.QConfig("bfp8", "bfp8")), (torch.randn(2, 3, 8),)
    observed = quantize_fx.prepare_fx(Recurrent().eval(), mapping, x)
    with pytest.warns(UserWarning, match=r"observes nothing of rnn \(LSTM\), whose QConfig"):
        program = bs.graph.from_quantize_fx(observed, x)
    names = dict(bs.graph.fuse(program).named_buffers())
    assert "fc.weight.codes" in names
    assert not any("rnn" in name and name.endswith("codes") for name in names)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_torch_ao_s_own_qconfig() -> None:
    """Constructors that do not know their part: weights are stored as their layers do in any case,
    and a convolution that trained otherwise is an error."""
    fake = T.FakeQuantize.with_args(dtype="mxfp4")
    mapping, x = T.QConfigMapping().set_global(ao.QConfig(fake, fake)), images()
    observed = quantize_fx.prepare_fx(CNN().eval(), mapping, x)
    with torch.no_grad(), bs.use("reference"):
        program = bs.graph.from_quantize_fx(observed, x)
        expected = with_quantized_weights(observed, ao.QConfig(fake, fake))(*x)
        assert torch.equal(program.module()(*x), expected)
    trained = quantize_fx.prepare_qat_fx(CNN().train(), mapping, x).eval()
    with pytest.raises(ValueError, match=r"ConvBn.*2d has trained with its weight in e2m1:group32"):
        bs.graph.from_quantize_fx(trained, x)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_static_scale_without_data() -> None:
    mapping = T.QConfigMapping().set_global(T.QConfig("int8", "int8_channel"))
    observed = quantize_fx.prepare_fx(CNN().eval(), mapping, images())
    with pytest.raises(ValueError, match=r"images: 'moving_average' .* saw no data"):
        bs.graph.from_quantize_fx(observed, images())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.filterwarnings("ignore:QConfig must specify a FixedQParams")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*Triggered internally")
@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_the_same_as_our_own_flow(tmp_path: Any) -> None:
    """Rows of features: prepare and convert of ours, which quantize inputs; and in a file."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).eval(), (torch.randn(4, 64),)
    qconfig = T.QConfig("bfp8", "mxfp4")
    observed = quantize_fx.prepare_fx(
        copy.deepcopy(model), T.QConfigMapping().set_global(qconfig), x
    )
    own = T.convert(T.prepare(copy.deepcopy(model), qconfig, outputs=True))
    with torch.no_grad(), bs.use("reference"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = bs.graph.from_quantize_fx(observed, x)
        once, twice = bs.graph.fuse(program)(*x), own(*x)
        bs.quantize_(model, bs.Recipe("mxfp4", "bfp8"))
        assert torch.equal(once, bs.fake_quantize(model(bs.fake_quantize(*x, "bfp8")), "bfp8"))
        assert torch.equal(once, twice)  # bfp8 of bfp8 changes nothing
    lowered = bs.graph.lower(bs.graph.fuse(program), "reference")
    assert lowered.get_buffer("0.weight.codes").dtype == torch.uint8


# Whole programs that torchao's own quantizers made, taken over to the bit.


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    for _ in range(3):
        net(torch.randn(8, 3, 6, 6))
    return net.eval()


@cache
def program() -> torch.fx.GraphModule:
    return exported(model(), (torch.zeros(4, 3, 6, 6),))


def converted(dynamic: bool, fold: bool = True):
    """What torchao's X86InductorQuantizer makes of it."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
    )
    batch = torch.randn(4, 3, 6, 6)
    prepared = prepare_pt2e(copy.deepcopy(program()), quantizer)
    prepared(batch)
    return convert_pt2e(prepared, fold_quantize=fold), batch


@pytest.mark.some(5)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_convert_pt2e_gives(dynamic: bool, fold: bool) -> None:
    graph, batch = converted(dynamic, fold)
    # Without oneDNN, which with AVX2 adds a depthwise convolution in another order where the
    # strides of its weight differ, though its shape and values do not.
    alone = torch.backends.mkldnn.flags(enabled=False)
    with warnings.catch_warnings(), bs.use("reference"), torch.no_grad(), alone:
        expected = [bits(graph(x)) for x in (batch, batch[:2] * 3)]
        made = adopted(graph)
        assert [bits(made(x)) for x in (batch, batch[:2] * 3)] == expected
    assert not [name for name in left(made) if "choose_qparams" not in name]
    names = dict(made.named_buffers())
    for layer in ("5", "7") if dynamic else ("0", "3", "5", "7"):
        assert names[f"{layer}.weight.codes"].dtype == torch.int8, sorted(names)
        scale = names[f"{layer}.weight.scale"]
        assert scale.ndim == names[f"{layer}.weight.codes"].ndim
        assert scale.shape[0] == scale.numel()
    assert not any(n.endswith("weight") for n, _ in made.named_parameters() if n[0] in "57")
    for node in made.graph.nodes:
        if "blockscale.dequantize" in str(node.target):
            params = QuantParams.of(node)  # each scale fits its format and its tensor
            assert params.is_per_tensor or params.channel_axis == 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fuse_takes_it() -> None:
    graph, batch = converted(False)
    with bs.use("reference"), torch.no_grad():
        expected = bits(graph(batch))
        fused = bs.graph.fuse(graph)
        assert bits(fused(batch)) == expected
    assert not left(fused)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fuse_takes_what_our_quantizer_gave() -> None:
    from tests.graph.pt2e.flow import through_pt2e

    batch = torch.randn(4, 3, 6, 6)
    with bs.use("reference"), torch.no_grad():
        graph = through_pt2e(model(), bs.Recipe("int8_channel", "uint8"), [(batch,)])
        expected = bits(graph(batch))
        fused = bs.graph.fuse(graph)
        assert bits(fused(batch)) == expected
    assert not any(n.endswith("weight") for n, _ in fused.named_parameters() if n[0] in "0357")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_float_graph_stays() -> None:
    graph = graph_of(lambda x: torch.relu(x) + 1, torch.randn(3, 4))
    before = str(adopted(graph).graph)
    assert before == str(graph.graph)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_of_schemas() -> None:
    graph = graph_of(lambda x: torch.relu(x) + 1, torch.randn(3, 4))
    assert [schema_name(n) for n in graph.graph.nodes] == ["", "aten::relu", "aten::add.Tensor", ""]
