"""Which layers a LoraConfig finds in a quantized model: those that it finds in the float one."""

from typing import Any

import pytest
from torch import nn

import blockscale as bs
from tests.integrations.peft.networks import built
from tests.integrations.peft.training import NF4, QUIET, layers, lora, quantized

peft = pytest.importorskip("peft")
pytestmark = QUIET

from blockscale.integrations.peft.targets import head_of, include_quantized  # noqa: E402

# mamba: peft refuses all-linear there, for out_proj
EVERY = ("bert", "gpt2", "roberta")


def named(model: nn.Module, **settings: Any) -> list[str]:
    config = peft.LoraConfig(target_modules="all-linear", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # about fan_in_fan_out
        return sorted(peft.get_peft_model(model, config).targeted_module_names)


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
    with pytest.raises(ValueError, match=r"model\.embed_tokens, which is quantized.*skip=\['model"):
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
