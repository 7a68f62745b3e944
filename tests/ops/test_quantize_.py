"""What one may rely on when calling quantize_; test_quantize_models.py has the models."""

import copy
import io
import warnings

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.layers.store import QWeight

IDS, CHANNELS = torch.arange(15).reshape(3, 5), "int8:channel-1:fp32"
BAD_SCALE = bs.choose_qparams(torch.ones(2, 16), "nvfp4")[0]


def small() -> nn.Module:
    """Every kind of layer that quantize_ knows without transformers, and some that stay."""
    layers = [nn.Embedding(40, 64), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.2)]
    layers += [nn.Conv1d(5, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(512, 3)]
    return nn.Sequential(*layers)


def bits(state) -> dict:
    """Dtype, shape and bytes by name: equality that knows NaN, -0 and uint16."""
    named = {n: t for n, t in dict(state).items() if t is not None}
    data = {n: t.detach().contiguous().reshape(-1).view(torch.uint8) for n, t in named.items()}
    return {n: (t.dtype, tuple(t.shape), data[n].tolist()) for n, t in named.items()}


def unchanged(model: nn.Module):
    state = {n: t for n, t in model.state_dict().items() if not t.is_meta}
    return [(n, id(m)) for n, m in model.named_modules()], bits(state)


def quantized(recipe="int8_channel", model: nn.Module | None = None, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = model or small()
    bs.quantize_(model, recipe, **settings)
    return model


@pytest.mark.parametrize("name", CATALOG)
def test_codes_are_those_of_quantize(name: str) -> None:
    torch.manual_seed(0)
    plain, model = small(), quantized(name)
    matrices = {"0": plain[0].weight, "1": plain[1].weight, "8": plain[8].weight}
    matrices["5"] = plain[5].weight.movedim(1, -1).flatten(1)  # blocks run over channels
    for layer, matrix in matrices.items():
        q = bs.quantize(matrix, name)
        found = model.get_submodule(layer).weight
        stored = [q.packed, q.qparams.scale, q.zero_point, q.qparams.outer]
        assert bits(enumerate([found.codes, *found.parts])) == bits(enumerate(stored))
        assert found.nbytes == q.nbytes
    assert model(IDS).shape == (3, 3)


@pytest.mark.parametrize("move", ["half", "bfloat16", "to", "double", "cpu"])
def test_moving_a_model_keeps_scales(move: str) -> None:
    model = quantized(bs.Recipe("nvfp4", "int8"), input_scales={"1": torch.full((1, 1), 0.1)})
    stores = [m for m in model.modules() if hasattr(m, "parts")]
    before = [bits(m.named_buffers()) for m in stores]
    getattr(model, move)(*[torch.float16] * (move == "to"))
    assert [bits(m.named_buffers()) for m in stores] == before
    dtypes = {"bfloat16": torch.bfloat16, "double": torch.float64, "cpu": torch.float32}
    assert model[1].bias.dtype == model[1].weight.dtype == dtypes.get(move, torch.float16)
    assert model[1].dequantize_weight().dtype == model[1].bias.dtype
    if move != "double":  # float32 cannot hold a float64 input: an error, not a wrong number
        assert model.eval()(IDS).dtype == model[1].bias.dtype
    assert {b.device.type for b in copy.deepcopy(model).to("meta").buffers()} == {"meta"}


def test_copies_and_state_dicts() -> None:
    for recipe in ("mxfp4", bs.Recipe("uint16", "uint8", "nvfp4")):
        model, other = quantized(recipe).eval(), quantized(recipe, small())
        twin, file = copy.deepcopy(model), io.BytesIO()
        other.load_state_dict(model.state_dict())
        torch.save(model.state_dict(), file)
        file.seek(0)
        third = quantized(recipe, small())
        third.load_state_dict(torch.load(file), assign=True)
        for same in (twin, other.eval(), third.eval()):
            assert bits(same.state_dict()) == bits(model.state_dict())
            assert torch.equal(same(IDS), model(IDS))
        twin[1].weight.codes.zero_()
        assert bits(other.state_dict()) == bits(model.state_dict())


@pytest.mark.parametrize(("one", "other"), [("mxint8", "mxfp8"), ("mxfp8", "mxfp8_e5m2")])
def test_a_state_of_another_format_is_refused(one: str, other: str) -> None:
    """Equal shapes, other meaning; also as the plain dict that safetensors, DCP and FSDP give."""
    model, state = quantized(other), quantized(one).state_dict()
    for found in (state, dict(state)):
        with pytest.raises((RuntimeError, ValueError), match=r"format|torch\.int8"):
            model.load_state_dict(found)


def test_strict_changes_nothing() -> None:
    for extra, words in (
        (nn.LSTM(4, 4), r"9 \(LSTM\): there is no quantized LSTM"),
        (nn.MultiheadAttention(4, 2), "in_proj_weight"),
        (nn.Linear(4, 4, device="meta"), "its weight holds no data"),
        (nn.Linear(4, 4).double(), "its weight is float64"),
        (nn.Embedding(4, 4, max_norm=1.0), "its max_norm changes the weight at every call"),
    ):
        model = small().append(extra)
        before = unchanged(model)
        with pytest.raises(bs.SkippedError, match=words):
            bs.quantize_(model, "int8", strict=True)
        assert unchanged(model) == before
        assert bs.quantize_(model, bs.Recipe("int8", skip=["9"]), strict=True)["1"].weight
    with pytest.raises(bs.SkippedError, match=r"needs dimension 2[^$]*'nothing' matches nothing"):
        bs.quantize_(small(), bs.Recipe("int8:channel2:fp32", skip=["nothing"]), strict=True)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ({"1": torch.ones(1, 1), "8": torch.ones(3, 3)}, "the stored scale is float32 of shape"),
        ({"1": torch.ones(1, 1), "8": torch.ones(1, 1).half()}, "the stored scale is float32"),
        ({"1": (torch.ones(1, 1), torch.zeros(1, 1).int())}, "has no zero_point"),
        ({"1": 0.5}, "its scale is a Tensor, not a float"),
        ({"9": torch.ones(1, 1)}, "input_scales names '9'"),
        ({"0": torch.ones(1, 1)}, "'0'"),  # an embedding: its input is indices
        ({"5": BAD_SCALE}, "its scale is a Tensor, not QTensor"),
        ({"8": torch.ones(1, 7)}, r"512|shape"),  # the layer has 512 channels
    ],
)
def test_scales_that_do_not_fit_change_nothing(scales, words: str) -> None:
    model, recipe = small(), bs.Recipe("int8", "int8", rules={"8": {"input": CHANNELS}})
    before = unchanged(model)
    with pytest.raises(ValueError, match=words):
        bs.quantize_(model, recipe, input_scales=scales)
    assert unchanged(model) == before


def test_formats_that_are_not_applied_are_named() -> None:
    """A recipe for inputs alone does nothing so far: that must not look like success."""
    for recipe in (bs.Recipe(input="int8"), bs.Recipe(output="mxfp8")):
        with pytest.raises(bs.SkippedError):
            bs.quantize_(small(), recipe, strict=True)
        with pytest.warns(UserWarning, match="1: skipped"):
            bs.quantize_(small(), recipe)


def test_the_warning_is_one_and_points_here() -> None:
    model = small().extend([nn.LSTM(4, 4), nn.GRU(4, 4)])
    with pytest.warns(UserWarning) as caught:
        bs.quantize_(model, bs.Recipe("int8", skip=["lm_head"]))
    assert [w.filename for w in caught] == [__file__]
    for words in (
        "9: skipped, there is no",
        "10: skipped",
        "pattern 'lm_head' of the recipe matches",
    ):
        assert words in str(caught[0].message)


def test_a_model_that_is_a_layer_or_quantized_already() -> None:
    for layer in (nn.Linear(4, 4), nn.Conv2d(4, 4, 1), quantized()[1]):
        with pytest.raises(ValueError, match="wrap it"):
            bs.quantize_(layer, "int8")
    model = quantized()
    before, again = unchanged(model), bs.quantize_(model, "mxfp4")
    assert unchanged(model) == before
    assert {again[n].reason for n in ("0", "1", "5", "8")} == {"already quantized"}
    stores = [m for m in model.modules() if isinstance(m, QWeight)]
    held = [*model.parameters(), *(t for store in stores for t in store.buffers())]
    assert again.bytes_after == again.bytes_before == sum(t.nbytes for t in held)


def test_lazy_modules_are_skipped_as_such() -> None:
    for lazy in (nn.LazyLinear(3), nn.LazyConv2d(3, 1)):
        with pytest.warns(UserWarning, match=r"1: skipped, .*(lazy|no data|initialized)"):
            bs.quantize_(nn.Sequential(nn.Linear(4, 4), lazy), "int8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = bs.quantize_(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), "int8")
    assert ledger["0"].status == "quantized"


def test_hooks_still_run_and_can_be_removed() -> None:
    for quantize in (False, True):
        linear, calls = nn.Linear(4, 4), []
        model, kw = nn.Sequential(linear), {"with_kwargs": True}

        def say(word: str, calls=calls):
            return lambda *arguments: calls.append((word, len(arguments)))

        handles = [
            linear.register_forward_pre_hook(say("pre")),
            linear.register_forward_pre_hook(say("pre"), **kw),
            linear.register_forward_hook(say("post")),
            linear.register_forward_hook(say("post"), **kw),
            linear.register_full_backward_hook(say("back")),
        ]
        if quantize:
            bs.quantize_(model, "int8")
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        assert calls == [("pre", 2), ("pre", 3), ("post", 3), ("post", 4), ("back", 3)]
        for handle in handles:
            handle.remove()
        model(torch.randn(2, 4)).sum()
        assert len(calls) == 5


def test_odd_weights_are_noted_and_stay_what_they_are() -> None:
    model = nn.Sequential(*[nn.Linear(8, 2, bias=False) for _ in range(5)])
    weights = [torch.zeros(2, 8), torch.full((2, 8), -0.0), torch.full((2, 8), 1e-45)]
    weights += [torch.tensor([[torch.nan] * 8, [1.0] * 8]), torch.full((2, 8), -3e38)]
    for layer, weight in zip(model, weights, strict=True):
        layer.weight.data = weight.clone()
    for name in ("mxfp4", "int8_channel", "nvfp4", "int4:group3:fp16"):
        twin = copy.deepcopy(model)
        with pytest.warns(UserWarning, match="3: 8 of 16 weights are NaN or infinite") as caught:
            ledger = bs.quantize_(twin, name)
        assert len(caught) == 1
        found = {str(i): layer.dequantize_weight() for i, layer in enumerate(twin)}
        assert bits(found) == bits(
            {str(i): bs.fake_quantize(w, name) for i, w in enumerate(weights)}
        )
        assert ledger["0"].notes == ()


def test_seeds_of_weights() -> None:
    """One seed repeats a run, and does not repeat the same noise in every layer."""

    def run(seed: int) -> list[Tensor]:
        layers = [nn.Linear(16, 16) for _ in range(2)]
        layers[1].weight.data = layers[0].weight.data = torch.linspace(-1, 1, 256).view(16, 16)
        model = quantized("int4:token:fp32:stochastic", nn.Sequential(*layers), seed=seed)
        return [layer.weight.codes for layer in model]

    first, again, other = run(3), run(3), run(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(*first)


def test_compile_and_export_of_a_model() -> None:
    recipe = bs.Recipe("nvfp4", "mxfp8", "int8", rules={"8": {"input": "int8", "output": "uint4"}})
    model = quantized(recipe, input_scales={"8": torch.full((1, 1), 0.1)}).eval()
    with torch.no_grad():
        batch = torch.export.Dim("batch", min=2, max=9)
        program = torch.export.export(model, (IDS,), dynamic_shapes=({0: batch},))
        torch._dynamo.reset()
        for run in (program.module(), torch.compile(model, fullgraph=True, backend="aot_eager")):
            assert all(torch.equal(run(ids), model(ids)) for ids in (IDS, IDS[:2]))
