# SPDX-License-Identifier: BSD-3-Clause
"""bs.calibrate quantizes the whole model, or leaves it as it was."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from tests.calibration.networks import STATIC, Net, deep, ids, net, quietly, state_of


class Wrong:
    """A weight algorithm that fails at one layer, also as Ctrl-C would."""

    name, needs_gram = "wrong", True

    def __init__(self, layer: str, error: BaseException):
        self.layer, self.error = layer, error

    def quantize(self, weight: Tensor, fmt: bs.Format, gram: Any, layer: str) -> Any:
        if layer == self.layer:
            raise self.error
        return bs.quantize(weight, fmt), []


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "error", [RuntimeError("no"), KeyboardInterrupt()], ids=["error", "ctrl-c"]
)
@pytest.mark.parametrize("where", ["model", "algorithm", "swap"])
def test_a_failure_leaves_the_model_as_it_was(
    where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = net(), {}
    model.norm.eval()  # modes are mixed, and come back mixed
    model.table.weight.requires_grad_(False)
    model.twice.register_forward_hook(lambda *_: None)
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error

    if where == "model":
        model.dead.register_forward_pre_hook(fail)
    elif where == "algorithm":
        options["weight"] = Wrong("gpt", error)
    else:
        set_before = nn.Module.__setattr__

        def set_and_fail(self: nn.Module, name: str, value: object) -> None:
            set_before(self, name, value)
            if (
                name == "twice"
                and isinstance(value, nn.Module)
                and not isinstance(value, nn.Linear)
            ):
                raise error

        monkeypatch.setattr(Net, "__setattr__", set_and_fail)
    before = state_of(model)
    with pytest.raises(type(error)) as caught:
        quietly(model, deep(ids(2, 2, 2, 2)), **options)
    assert state_of(model) == before
    assert torch.is_grad_enabled()
    if where == "model" and isinstance(error, RuntimeError):
        assert caught.value.__notes__ == [
            "at batch 2, a mapping, given as keyword arguments: ids, deep"
        ]


def test_modes_and_statistics_come_back() -> None:
    model = net()
    model.norm.eval()
    modes = {n: m.training for n, m in model.named_modules() if not n.count(".")}
    buffers = {n: b.clone() for n, b in model.norm.named_buffers()}
    quietly(model, deep(ids(2)), "int8")
    assert {n: m.training for n, m in model.named_modules() if n in modes} == modes
    assert all(torch.equal(b, buffers[n]) for n, b in model.norm.named_buffers())


def test_layers_without_data() -> None:
    model, batches = net(), ids(2, 3)
    before = state_of(model)
    words = r"^strict: 1 of 5 layers saw no data in 2 batches; nothing was changed\.\n  dead\nPass"
    with pytest.raises(bs.SkippedError, match=words):
        quietly(model, batches, strict=True)
    assert state_of(model) == before
    with pytest.warns(UserWarning, match="dead: saw no data in 2 batches") as caught:
        ledger = calibrate(model, batches, STATIC, progress=False)
    assert [w.filename for w in caught] == [__file__]
    assert ledger["dead"].details == "dynamic input, dynamic output"
    assert not model.dead.input.static
    assert model.twice.input.static
    assert torch.isfinite(model(batches[0], deep=True)).all()


def test_strict_refuses_what_is_skipped_before_any_data_is_read() -> None:
    def never() -> Iterator[Tensor]:
        raise AssertionError("it read a batch")
        yield

    with pytest.raises(bs.SkippedError, match="max_norm"):
        quietly(nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), never(), "int8", strict=True)
    with pytest.raises(ValueError, match="unknown observer 'most'"):
        quietly(net(), never(), STATIC, "most")
    with pytest.raises(ValueError, match="unknown weight algorithm 'most'"):
        quietly(net(), never(), STATIC, weight="most")
    with pytest.raises(ValueError, match="wrap it"):
        quietly(nn.Linear(4, 4), never(), "int8")


def test_shared_and_tied_layers() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight
            self.one = nn.Linear(4, 4)
            self.other = self.one

        def forward(self, i: Tensor) -> Tensor:
            return self.head(self.other(10 * self.one(self.table(i))))

    model, i = Tied(), torch.arange(6)
    largest = (10 * model.one(model.table(i))).abs().max()
    ledger = quietly(model, [i], bs.Recipe("int8_channel", "int8"), "min_max", weight="gptq")
    assert model.one is model.other
    torch.testing.assert_close(model.one.input.parts[0].flatten()[0], largest.detach() / 127)
    assert model.head.weight is model.table.weight
    assert model.head.input.static
    assert ledger["other"].reason == "the same layer as one"


def test_an_observer_that_does_not_exist_is_an_error_also_where_none_is_needed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    with pytest.raises(ValueError, match="unknown observer 'nope'"):
        bs.calibrate(model, [torch.randn(2, 8)], "int8_channel", observer="nope")
    assert type(model[0]) is torch.nn.Linear


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "options",
    [
        {"weight": "gptq"},
        {"weight": "signround:5"},
        {"transform": "smoothquant"},
        {"transform": "awq", "weight": "search", "blocks": False},
    ],
    ids=str,
)
def test_batches_without_rows_say_nothing(options: dict[str, Any]) -> None:
    """Among others they change nothing; alone they are no data, which the ledger says."""
    x = torch.randn(6, 16)
    recipe = bs.Recipe("int4:group16:fp32", "int8", "int8:channel-1:fp32")

    def blocks() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)))

    with_none, without, unseen = blocks(), blocks(), blocks()
    quietly(with_none, [x[:0], x], recipe, **options)
    quietly(without, [x], recipe, **options)
    for name, value in without.state_dict().items():
        assert torch.equal(with_none.state_dict()[name], value), name
    with pytest.warns(UserWarning, match=r"0\.0: saw no data in 1 batches"):
        quietly(unseen, [x[:0]], recipe, **options)
    assert unseen(x[:0]).shape == (0, 16)


@pytest.mark.parametrize(
    ("sequential", "told"),
    [
        ("once", "'once' is gone.*use sequential=True, or 'layers'"),
        ("always", "unknown sequential 'always'; choose from True, False, 'layers'"),
    ],
)
def test_words_that_sequential_has_not(sequential: str, told: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    with pytest.raises(ValueError, match=told):
        bs.calibrate(model, [torch.randn(2, 8)], "int8_channel", sequential=sequential)
    assert type(model[0]) is torch.nn.Linear


# A recipe that says how it is calibrated, as presets do.


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return BertModel(config).eval()


def tokens() -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(0, 64, (4, 16), generator=draw)} for _ in range(2)]


def first(given: Any) -> Tensor:
    return given[0] if not hasattr(given, "logits") else given.logits


LEAST = {4: 12.0, 8: 25.0}  # dB of what the float model gives, of tiny models of random weights


@pytest.mark.some(10)
@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize(
    "name",
    [name for name, each in bs.presets().items() if each.of == "recipe" and name != "edge-int8"],
)
def test_each_preset_on_a_model_of_its_family(
    name: str, family: str, request: pytest.FixtureRequest
) -> None:
    model = copy.deepcopy(request.getfixturevalue(family))
    recipe, batches = bs.preset(name), tokens()
    with torch.no_grad():
        expected = first(model(**batches[0]))
    ledger = quietly(model, batches, name)
    with torch.no_grad():
        got = first(model(**batches[0]))
    sqnr = 10 * torch.log10(expected.square().sum() / (got - expected).square().sum())
    assert sqnr > LEAST[recipe.weight.bits]
    assert ledger.notes == ()
    layers = [entry for entry in ledger if entry.kind == "Linear" and entry.status == "quantized"]
    assert len(layers) >= 6
    for entry in layers:
        assert (entry.weight, entry.input or None) == (
            str(recipe.weight), None if recipe.input is None else str(recipe.input)
        )  # fmt: skip
        how = bs.presets()[name].calibration
        if how is not None and how.weight is not None:
            assert f"weight by {how.weight.partition(':')[0]}" in entry.details
        if how is not None and how.transform is not None:
            assert how.transform in entry.details
    ends = [e.name for e in ledger.quantized if "lm_head" in e.name or "embed_tokens" in e.name]
    assert ends == []


@pytest.mark.slow
def test_edge_int8_on_a_small_cnn_is_integers_alone() -> None:
    from blockscale.graph import to_integer, with_integer_bias

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10),
    ).eval()  # fmt: skip
    images = torch.randn(32, 1, 8, 8)
    ledger = quietly(model, [images], "edge-int8")
    assert all("mse" in entry.details for entry in ledger if entry.status == "quantized")
    integer = to_integer(model, images)
    assert integer.exact
    with torch.no_grad():
        assert torch.equal(integer(images), with_integer_bias(model)(images))


@pytest.mark.slow
def test_arguments_come_before_the_recipes_own_and_stand_in_it(llama: nn.Module) -> None:
    from transformers import LlamaForCausalLM  # noqa: F401 - saves know its class

    model = copy.deepcopy(llama)
    ledger = quietly(model, tokens(), "w4a16", weight="hqq")
    assert "weight by hqq" in ledger["model.layers.0.mlp.up_proj"].details
    assert "awq" in ledger["model.layers.0.mlp.up_proj"].details
    held = model.hf_quantizer.quantization_config.recipe
    assert held.preset == "w4a16"
    assert held.calibration.to_dict() == {"transform": "awq", "weight": "hqq"}


@pytest.mark.slow
def test_a_preset_is_what_its_parts_are(llama: nn.Module) -> None:
    one, other = copy.deepcopy(llama), copy.deepcopy(llama)
    quietly(one, tokens(), "w4a4-nvfp4")
    plain = bs.Recipe("nvfp4", "nvfp4_token", skip=["lm_head", "model.embed_tokens"])
    quietly(other, tokens(), plain, weight="gptq:absmax", transform="smoothquant")
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a if isinstance(a[k], Tensor))


def test_unknown_methods_of_a_recipe_are_named() -> None:
    recipe = bs.Recipe("int8", calibration={"weight": "gtpq"})
    with pytest.raises(ValueError, match="unknown weight algorithm 'gtpq'; choose from absmax"):
        bs.calibrate(net(), [ids()], recipe)
