"""Which quantized layers a LoraConfig names."""

from collections.abc import Iterator
from typing import Any

from peft import TaskType
from peft.tuners import tuners_utils
from peft.utils.constants import INCLUDE_LINEAR_LAYERS_SHORTHAND, SEQ_CLS_HEAD_NAMES
from torch import nn

from blockscale.layers.layer import QLayer
from blockscale.layers.linear import QLinear
from blockscale.layers.parameters.hold import all_held


def include_quantized(config: Any, model: nn.Module) -> None:
    """Let "all-linear" name quantized linear layers, where it would name the float ones."""
    wanted = config.target_modules
    if not isinstance(wanted, str) or wanted.lower() != INCLUDE_LINEAR_LAYERS_SHORTHAND:
        return
    names = {name for name, module in model.named_modules() if isinstance(module, QLinear)}
    if not names:
        return
    tuners_utils._maybe_include_all_linear_layers(config, model)  # names those in float
    for name, module in model.named_modules():
        if module is head_of(model, config) and name in names:
            names.remove(name)
        if isinstance(module, tuners_utils.BaseTunerLayer):
            names = {each for each in names if not each.startswith(f"{name}.")}
    config.target_modules = {*config.target_modules, *names}


def head_of(model: nn.Module, config: Any) -> nn.Module | None:
    """The layer that "all-linear" leaves out: what gives the logits. As peft finds it."""
    if not isinstance(model, tuners_utils.PreTrainedModel):
        return None
    head: nn.Module | None = model.get_output_embeddings()
    if head is not None or config.task_type != TaskType.SEQ_CLS:
        return head
    heads = (getattr(model, name, None) for name in SEQ_CLS_HEAD_NAMES)
    return next((head for head in heads if head is not None), None)


def check_targets(config: Any, model: nn.Module) -> None:
    """Raise ValueError for what a config wants to train inside of codes."""
    for name in config.target_parameters or ():
        for held in _codes(model):
            if held == name or held.endswith(f".{name}"):
                layer = held.removesuffix(".weight")
                raise ValueError(
                    f"target_parameters names {held}, which is quantized: peft adds to such a "
                    f"parameter in place. Name layers in target_modules, or leave this one in "
                    f"float with skip=[{layer!r}] in the recipe"
                )
    for name in _trained_tables(config, model):
        if isinstance(model.get_submodule(name), QLayer):
            raise ValueError(
                f"trainable_token_indices trains rows of {name}, which is quantized: leave it in "
                f"float with skip=[{name!r}] in the recipe, or name it in modules_to_save"
            )


def _codes(model: nn.Module) -> Iterator[str]:
    """Names under which parameters were that are codes now."""
    layers = ((name, module) for name, module in model.named_modules())
    yield from (f"{name}.weight" for name, module in layers if isinstance(module, QLayer))
    yield from (name for name, _ in all_held(model))


def _trained_tables(config: Any, model: nn.Module) -> list[str]:
    """Names of the layers of which rows are to be trained."""
    wanted = getattr(config, "trainable_token_indices", None)
    if wanted is None:
        return []
    names = [name for name, _ in model.named_modules()]
    if isinstance(wanted, dict):
        return [name for name in names if any(name.endswith(each) for each in wanted)]
    table: Any = getattr(model, "get_input_embeddings", lambda: None)()
    return [name for name, module in model.named_modules() if module is table]
