# SPDX-License-Identifier: BSD-3-Clause
"""What peft's models do with quantized layers: train, save, load, merge, several adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.integrations.peft.networks import built
from tests.integrations.peft.training import (
    NF4,
    QUIET,
    codes_of,
    layers,
    lora,
    quantized,
    same,
    train,
    twins,
)

peft = pytest.importorskip("peft")
pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:blockscale. merged adapters"),
    pytest.mark.filterwarnings("ignore:Already following adapters were merged"),
]

import blockscale.integrations.peft as ours  # noqa: E402 - needs peft
from blockscale.integrations.peft.tuner import head_of, include_quantized  # noqa: E402
from blockscale.layers import model as swap  # noqa: E402


@pytest.mark.slow
def test_training_changes_adapters_and_no_codes() -> None:
    model, inputs = quantized("llama")
    wrapped = lora(model, init_lora_weights=True)
    before = codes_of(wrapped)
    losses = train(wrapped, inputs, 8)
    assert losses[-1] < losses[0] - 0.1
    assert same(codes_of(wrapped), before)
    named = wrapped.named_parameters()
    trained = [parameter for name, parameter in named if "lora_B" in name]
    assert len(trained) == 14 and all(bool(parameter.any()) for parameter in trained)


@pytest.mark.slow
def test_an_adapter_is_saved_and_loaded(tmp_path: Path) -> None:
    model, inputs = quantized("llama")
    wrapped = lora(model, use_dora=True)
    train(wrapped, inputs, 2)
    expected = wrapped(**inputs).logits
    wrapped.save_pretrained(tmp_path)
    files = {file.name for file in tmp_path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < 80_000  # no base weight
    loaded = peft.PeftModel.from_pretrained(quantized("llama")[0], tmp_path)
    assert torch.equal(loaded.eval()(**inputs).logits, expected)
    on_float = peft.PeftModel.from_pretrained(built("llama")[0].eval(), tmp_path)
    torch.testing.assert_close(on_float(**inputs).logits, expected, atol=0.5, rtol=0.5)


@pytest.mark.slow
def test_a_base_that_was_saved_and_loaded(tmp_path: Path) -> None:
    model, inputs = quantized("llama")
    bs.save(model, tmp_path / "base.safetensors")
    wrapped = lora(model)
    wrapped.save_pretrained(tmp_path / "adapter")
    base = bs.load(built("llama", 1)[0], tmp_path / "base.safetensors")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(loaded(**inputs).logits, wrapped(**inputs).logits)


@pytest.mark.slow
def test_several_adapters() -> None:
    model, inputs = quantized("llama")
    plain = model(**inputs).logits
    wrapped = lora(model, ["q_proj", "up_proj"])
    first = wrapped(**inputs).logits
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    wrapped.add_adapter("second", config)
    assert torch.equal(wrapped(**inputs).logits, first)
    wrapped.set_adapter("second")
    second = wrapped(**inputs).logits
    ids = inputs["input_ids"]
    mixed = wrapped(input_ids=ids, adapter_names=["default", "second"]).logits
    torch.testing.assert_close(mixed, torch.stack([first[0], second[1]]))
    wrapped.base_model.set_adapter(["default", "second"])
    both = wrapped(**inputs).logits
    wrapped.add_weighted_adapter(["default", "second"], [1.0, 1.0], "sum", combination_type="cat")
    wrapped.set_adapter("sum")
    torch.testing.assert_close(wrapped(**inputs).logits, both, atol=1e-4, rtol=1e-4)
    wrapped.set_adapter("default")
    wrapped.delete_adapter("sum")
    assert torch.equal(wrapped(**inputs).logits, first)
    with wrapped.disable_adapter():
        assert torch.equal(wrapped(**inputs).logits, plain)
    assert torch.equal(wrapped.unload()(**inputs).logits, plain)


def test_a_merged_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model, inputs = quantized("llama")
    merged = lora(model, use_rslora=True).merge_and_unload()
    assert type(merged) is type(model)
    bs.save(merged, tmp_path / "merged.safetensors")
    again = bs.load(built("llama", 1)[0].eval(), tmp_path / "merged.safetensors")
    assert torch.equal(again(**inputs).logits, merged(**inputs).logits)


@pytest.mark.slow
def test_layers_to_save_are_trained_in_float(tmp_path: Path) -> None:
    model, inputs = quantized("roberta")
    wrapped = lora(model, task_type="SEQ_CLS")
    named = {name for name, each in wrapped.named_parameters() if each.requires_grad}
    assert len([name for name in named if "classifier.modules_to_save.default" in name]) == 4
    assert train(wrapped, inputs, 6)[-1] < 1.0
    expected = wrapped(**inputs).logits
    wrapped.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(quantized("roberta")[0], tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, expected)
    assert not [name for name, each in loaded.named_parameters() if each.requires_grad]


def test_whole_layers_to_save() -> None:
    model, inputs = quantized("llama")
    before = codes_of(model)
    wrapped = lora(model, ["q_proj"], modules_to_save=["lm_head", "embed_tokens"])
    expected = wrapped(**inputs).logits
    torch.testing.assert_close(expected, lora(quantized("llama")[0], ["q_proj"])(**inputs).logits,
                               atol=3.0, rtol=1.0)  # fmt: skip
    head = wrapped.base_model.model.lm_head
    assert type(head.modules_to_save["default"]) is nn.Linear
    assert torch.equal(
        head.modules_to_save["default"].weight, head.original_module.qweight.dequantize()
    )
    train(wrapped, inputs, 2)
    merged = wrapped.unload()
    kept = {name: value for name, value in codes_of(merged).items() if name in before}
    assert same(kept, {name: before[name] for name in kept}) and "lm_head.weight" not in before


def test_a_tied_table_is_two_after_a_merge() -> None:
    model, inputs = quantized("gpt2")
    assert model.transformer.wte.qweight is model.lm_head.qweight
    wrapped = lora(model, ["wte"])
    unmerged = wrapped(**inputs).logits
    with pytest.warns(UserWarning, match="tie_word_embeddings is now False"):
        merged = wrapped.merge_and_unload()
    assert merged.config.tie_word_embeddings is False
    assert merged.transformer.wte.qweight is not merged.lm_head.qweight
    torch.testing.assert_close(merged(**inputs).logits, unmerged, atol=0.5, rtol=0.5)


def test_an_untouched_tie_stays_one() -> None:
    model, _ = quantized("gpt2")
    merged = lora(model, ["c_attn"], fan_in_fan_out=True).merge_and_unload()
    assert merged.config.tie_word_embeddings
    assert merged.transformer.wte.qweight is merged.lm_head.qweight


def test_a_model_without_any_parameter_left() -> None:
    model = nn.Sequential(nn.Linear(64, 6, bias=False))
    bs.quantize_(model, NF4)
    assert not list(model.parameters())
    wrapped = lora(model, ["0"])
    wrapped(torch.randn(2, 64)).sum().backward()
    assert not hasattr(model, "hf_device_map")


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant: bool) -> None:
    model, inputs = quantized("llama")
    wrapped = lora(model).train()
    wrapped(**inputs).loss.backward()
    expected = {name: each.grad for name, each in wrapped.named_parameters() if each.requires_grad}
    wrapped.zero_grad()
    wrapped.base_model.model.activation_checkpointing_enable({"use_reentrant": reentrant})
    wrapped(**inputs, use_cache=False).loss.backward()
    found = {name: each.grad for name, each in wrapped.named_parameters() if each.requires_grad}
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16(autocast: bool) -> None:
    model, inputs = quantized("llama", dtype=torch.bfloat16)
    config = peft.LoraConfig(target_modules="all-linear", r=4)
    wrapped = peft.get_peft_model(model, config, autocast_adapter_dtype=autocast)
    dtypes = {each.dtype for name, each in wrapped.named_parameters() if "lora_" in name}
    assert dtypes == {torch.float32 if autocast else torch.bfloat16}
    assert wrapped(**inputs).logits.dtype == torch.bfloat16
    losses = train(wrapped, inputs, 6)
    assert losses[-1] < losses[0]
    wrapped.merge_adapter()
    wrapped.unmerge_adapter()


@pytest.mark.slow
def test_prepared_for_training_in_few_bits() -> None:
    model, inputs = quantized("llama", dtype=torch.bfloat16)
    before = codes_of(model)
    ready = peft.prepare_model_for_kbit_training(model)
    now = codes_of(ready)
    cast = {name for name in before if now[name].dtype != before[name].dtype}
    assert cast == {name for name in before if "norm" in name}
    wrapped = lora(ready, init_lora_weights=True)
    losses = train(wrapped, inputs, 6)
    assert losses[-1] < losses[0]


def test_quantizing_after_lora_leaves_adapters_alone() -> None:
    model, inputs = built("llama")
    settings: Any = {"use_dora": True, "modules_to_save": ["lm_head"]}
    wrapped = lora(model, ["q_proj", "embed_tokens"], **settings)
    named = wrapped.named_parameters()
    adapters = {name: each for name, each in named if "lora_" in name or "to_save" in name}
    ledger = bs.quantize_(wrapped, NF4, strict=True)
    now = dict(wrapped.named_parameters())
    assert all(now[name] is each for name, each in adapters.items())
    for entry in ledger:
        inside = "lora_" in entry.name or "modules_to_save" in entry.name
        assert (entry.status == "quantized") is (not inside and "norm" not in entry.name), entry
        assert not inside or "is a trained adapter" in entry.reason
    attention = wrapped.base_model.model.model.layers[0].self_attn
    assert type(attention.q_proj).__name__ == "LoraLinear"
    assert type(wrapped.base_model.model.model.embed_tokens).__name__ == "LoraEmbedding"
    before = codes_of(wrapped)
    assert train(wrapped, inputs, 4)[-1] < 4.6
    assert same(codes_of(wrapped), before)
    wrapped.merge_adapter()
    wrapped.unmerge_adapter()
    assert same(codes_of(wrapped), before)


@pytest.mark.slow
def test_calibrating_after_lora() -> None:
    model, inputs = built("llama")
    wrapped = lora(model, ["q_proj"])
    batches = [{"input_ids": inputs["input_ids"]}]
    recipe = bs.Recipe("int8:channel0:fp32", "int8:tensor:fp32", skip=["*embed_tokens"])
    ledger = bs.calibrate(wrapped, batches, recipe, progress=False, strict=True)
    layer = wrapped.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.base_layer.input.static
    assert {e.status for e in ledger if "lora_" in e.name} == {"kept"}
    before = codes_of(wrapped)
    train(wrapped, inputs, 2)
    assert same(codes_of(wrapped), before)


def test_an_adapter_put_in_without_a_peft_model() -> None:
    """As transformers' add_adapter and diffusers do."""
    model, inputs = quantized("llama")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    plain = model(**inputs).logits
    peft.inject_adapter_in_model(config, model)
    assert type(model.model.layers[0].self_attn.q_proj).__name__ == "LoraLinear"
    assert not torch.equal(model(**inputs).logits, plain)
    other: Any = quantized("llama")[0]
    other.add_adapter(config)
    other(**inputs).loss.backward()
    assert other.model.layers[0].self_attn.q_proj.lora_A["default"].weight.grad is not None


# mamba: peft refuses all-linear there, for out_proj
EVERY = ("bert", "gpt2", "roberta")


def named(model: nn.Module, **settings: Any) -> list[str]:
    config = peft.LoraConfig(target_modules="all-linear", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # about fan_in_fan_out
        return sorted(peft.get_peft_model(model, config).targeted_module_names)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("task", [None, "SEQ_CLS"])
def test_all_linear_names_what_it_names_in_float(name: str, task: str | None) -> None:
    settings = {} if task is None or name != "roberta" else {"task_type": task}
    expected = named(built(name)[0], **settings)
    assert named(quantized(name)[0], **settings) == expected
    half = bs.Recipe(NF4, skip=["*.0.*"])
    assert named(quantized(name, half)[0], **settings) == expected


def test_all_linear_once_more_beside_an_adapter() -> None:
    model, _ = quantized("llama")
    wrapped = lora(model, ["q_proj"])
    wrapped.add_adapter("more", peft.LoraConfig(target_modules="ALL-linear", r=2))
    found = {name for name, module in wrapped.named_modules() if name.endswith("lora_A.more")}
    assert len(found) == 14


def test_no_quantized_layer_leaves_all_linear_to_peft() -> None:
    config = peft.LoraConfig(target_modules="all-linear")
    include_quantized(config, layers())
    assert config.target_modules == "all-linear"
    model, _ = quantized("bert")
    config = peft.LoraConfig(target_modules=["query"])
    include_quantized(config, model)
    assert config.target_modules == {"query"}


def test_the_head_is_the_layer_that_gives_logits() -> None:
    model: Any = quantized("llama")[0]
    config = peft.LoraConfig()
    assert head_of(model, config) is model.lm_head
    assert head_of(layers(), config) is None
    classes: Any = quantized("roberta")[0]
    assert head_of(classes, config) is None
    assert head_of(classes, peft.LoraConfig(task_type="SEQ_CLS")) is classes.classifier


def test_rows_of_a_quantized_table_do_not_train() -> None:
    model, _ = quantized("llama")
    with pytest.raises(ValueError, match=r"model.embed_tokens, which is quantized.*skip=\['model"):
        lora(model, ["q_proj"], trainable_token_indices=[1, 2])
    with pytest.raises(ValueError, match="trainable_token_indices trains rows of lm_head"):
        lora(model, ["q_proj"], trainable_token_indices={"lm_head": [1, 2]})
    assert not [name for name, _ in model.named_modules() if "lora" in name]
    model, inputs = quantized("llama", bs.Recipe(NF4, skip=["model.embed_tokens"]))
    lora(model, ["q_proj"], trainable_token_indices=[1, 2])(**inputs).loss.backward()


def test_parameters_that_are_codes_are_no_targets() -> None:
    model, _ = quantized("llama")
    with pytest.raises(ValueError, match=r"k_proj\.weight, which is quantized.*0\.self_attn\.k_pr"):
        lora(model, ["q_proj"], target_parameters=["self_attn.k_proj.weight"])

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.Parameter(nn.init.normal_(nn.Parameter(nn.Linear(64, 64).weight)))
            self.fc = nn.Linear(64, 64)

    held = nn.ModuleDict({"owner": Owner()})
    bs.quantize_(held, NF4)
    with pytest.raises(ValueError, match=r"owner\.experts, which is quantized"):
        lora(held, ["fc"], target_parameters=["owner.experts"])


def test_registered_once() -> None:
    ours.register()
    ours.register()
    assert peft.PEFT_TYPE_TO_TUNER_MAPPING[peft.PeftType.LORA] is ours.QuantizedLoraModel
    assert issubclass(ours.QuantizedLoraModel, peft.LoraModel)
    assert len([each for each in swap.PLACED if each.__module__.startswith(ours.__name__)]) == 1


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "fmt", ["nf4:group64:fp32", "mxfp4", "int8:channel0:fp32", "int4:group32:bf16:asym"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_the_product_with_the_dequantized_weight(fmt: str, dtype: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 48)).to(dtype)
    bs.quantize_(model, fmt)
    weight = model[0].qweight.dequantize(torch.float32)
    wrapped = lora(model, ["0"])
    wrapped.base_model.model[0].lora_B["default"].weight.data.zero_()
    x = torch.randn(5, 64, dtype=dtype, requires_grad=True)
    with bs.use("reference"):
        y = wrapped(x)
        gradient = torch.randn_like(y)
        y.backward(gradient)
    assert torch.equal(x.grad, (gradient.float() @ weight).to(dtype))
    layer = wrapped.base_model.model[0]
    b = layer.lora_B["default"].weight
    inner = (x.detach().to(b.dtype) @ layer.lora_A["default"].weight.T).T
    expected = (gradient.to(b.dtype).T * layer.scaling["default"]) @ inner.T
    torch.testing.assert_close(b.grad, expected)


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"use_rslora": True}, {"lora_bias": True}]
)
def test_convolutions_and_linear_layers(settings: dict[str, Any]) -> None:
    model, dense = twins()
    names = ["0", "2", "4"]
    torch.manual_seed(1)
    ours = lora(model, names, **settings)
    torch.manual_seed(1)
    theirs = lora(dense, names, **settings)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    mine, other = (dict(each.named_parameters()) for each in (ours, theirs))
    adapters = {name for name in other if "lora_" in name}
    assert adapters == {name for name in mine if "lora_" in name}
    for each in (ours, theirs):
        each.train()(x).square().sum().backward()
    for name in adapters:
        torch.testing.assert_close(mine[name].grad, other[name].grad, rtol=1e-4, atol=1e-4)


def test_an_embedding_and_a_transposed_linear_layer() -> None:
    model, inputs = quantized("gpt2")
    plain = model(**inputs).logits
    wrapped = lora(model, ["wte", "c_attn"], init_lora_weights=True, fan_in_fan_out=True)
    block = wrapped.base_model.model.transformer
    assert type(block.wte).__name__ == "LoraEmbedding"
    assert block.h[0].attn.c_attn.fan_in_fan_out
    assert torch.equal(wrapped(**inputs).logits, plain)  # B is zero
    table, adapter = block.wte.base_layer, block.wte
    adapter.lora_embedding_A["default"].data.normal_()
    ids = torch.tensor([[3, 1, 3]])
    delta = adapter.get_delta_weight("default")
    torch.testing.assert_close(adapter(ids), table(ids) + delta[ids])


def test_conv1d_sets_fan_in_fan_out_as_for_the_float_layer() -> None:
    model, _ = quantized("gpt2")
    with pytest.warns(UserWarning, match="Setting fan_in_fan_out to True"):
        wrapped = lora(model, ["c_attn"])
    assert wrapped.peft_config["default"].fan_in_fan_out


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_what_would_change_the_base_weight_is_refused(init: str) -> None:
    model, inputs = quantized("llama")
    before, plain = codes_of(model), model(**inputs).logits
    with pytest.raises(ValueError, match=r"q_proj: this init_lora_weights changes the base weight"):
        lora(model, ["q_proj"], init_lora_weights=init)
    assert same(codes_of(model), before)
    assert torch.equal(model(**inputs).logits, plain)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_the_remedy_that_it_names(init: str) -> None:
    """The adapter first, then quantize_: the base is what is left of the weight."""
    model = layers()
    wrapped = lora(model, ["4"], init_lora_weights=init)
    x = torch.randn(2, 3, 4, 4)
    exact = wrapped(x)
    bs.quantize_(wrapped, "int8:channel0:fp32")
    assert type(wrapped.base_model.model[4]).__name__ == "LoraLinear"
    torch.testing.assert_close(wrapped(x), exact, rtol=0.1, atol=0.1)


def test_layers_without_lora_say_so() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 2))
    bs.quantize_(model, "int8:channel1:fp32")
    with pytest.raises(ValueError, match=r"^0: LoRA supports .*QConv, found QConvT"):
        lora(model, ["0"])


def test_a_custom_module_of_the_user_comes_first() -> None:
    class Mine(nn.Module):
        def __init__(self, base: nn.Module, name: str, **settings: Any):
            super().__init__()
            self.lora_base = base

        def forward(self, x: torch.Tensor) -> Any:
            return self.lora_base(x) + 1

    model, _ = twins()
    config = peft.LoraConfig(target_modules=["4"])
    config._register_custom_module({type(model[4]): Mine})
    assert isinstance(peft.get_peft_model(model, config).base_model.model[4], Mine)
