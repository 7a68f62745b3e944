# SPDX-License-Identifier: BSD-3-Clause
"""peft's LoRA model, which finds quantized layers and merges into them."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peft import PEFT_TYPE_TO_TUNER_MAPPING, PeftType, TaskType
from peft.tuners import tuners_utils
from peft.tuners.lora import layer as peft_layers
from peft.tuners.lora.model import LoraModel
from peft.utils import ModulesToSaveWrapper
from peft.utils.constants import INCLUDE_LINEAR_LAYERS_SHORTHAND, SEQ_CLS_HEAD_NAMES
from torch import nn

from blockscale.core.untrusted import kind_of
from blockscale.integrations.peft.float_layer import float_base, float_layer
from blockscale.integrations.peft.merging import (
    MergeLoss,
    MergesIntoCodes,
    check_mergeable,
    merge_losses,
    summary,
    unchanged,
)
from blockscale.integrations.peft.parts import check_part, check_whole, part_of, take_part
from blockscale.layers.kinds import QLinear
from blockscale.layers.layer import QLayer
from blockscale.layers.model import PLACED
from blockscale.layers.store import all_held


class QuantizedLoraModel(LoraModel):
    """What `get_peft_model` makes of a LoraConfig. Without quantized layers it is peft's own."""

    @staticmethod
    def _create_new_module(
        lora_config: Any, adapter_name: str, target: nn.Module, **kwargs: Any
    ) -> Any:
        custom = tuple(lora_config._custom_modules or ())
        if isinstance(target, QLayer) and not isinstance(target, custom):
            try:
                return wrap(target, adapter_name, lora_config, **kwargs)
            except ValueError as error:
                raise ValueError(f"{kwargs.get('target_name')}: {error}") from None
        layer = LoraModel._create_new_module(lora_config, adapter_name, target, **kwargs)
        if part_of(target) is not None:
            adopt(layer)
            take_part(layer, adapter_name)
        return layer

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        """Put an adapter in: "all-linear" covers quantized linear layers, and copies of layers
        that are to be trained (modules_to_save) are float.

        Raises ValueError, before anything is changed, for a quantized target that cannot train.
        """
        config = self.peft_config[adapter_name]
        check_targets(config, model)
        for module in model.modules():
            adopt(module)
        include_quantized(config, model)
        for name, module in model.named_modules():
            layer = getattr(module, "base_layer", module)  # of an adapter that is there already
            if self._check_target_module_exists(config, name):
                check_target(name, layer, config)
        with device_known(model), parts_known(model):
            super().inject_adapter(model, adapter_name, *args, **kwargs)
        for module in model.modules():
            if isinstance(module, ModulesToSaveWrapper):
                train_in_float(module, adapter_name)

    def merge_adapter(self, *args: Any, **kwargs: Any) -> None:
        """Merge as peft does. One warning says what rounding took; ValueError, before anything is
        merged, for a layer into which nothing can be."""
        self._check_codes()
        super().merge_adapter(*args, **kwargs)
        _tell(merge_losses(self.model), 3)

    def _unload_and_optionally_merge(self, merge: bool = True, *args: Any, **kwargs: Any) -> Any:
        if merge:
            self._check_codes()
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self._losses: dict[str, MergeLoss] = {}
        model: Any = super()._unload_and_optionally_merge(merge, *args, **kwargs)
        if merge:
            untied(model)
        _tell(self._losses, 4)
        return model

    def _replace_module(self, parent: Any, child_name: str, new_module: Any, child: Any) -> None:
        loss = getattr(child, "merge_loss", None)  # of a LoRA layer that gives way to its base
        if isinstance(loss, MergeLoss):
            self._losses[self._names[id(child)]] = loss
        super()._replace_module(parent, child_name, new_module, child)

    def _check_codes(self) -> None:
        for name, module in self.model.named_modules():
            if isinstance(module, MergesIntoCodes):
                try:
                    check_whole(module.base_layer)
                    if isinstance(module.base_layer, QLayer):
                        check_mergeable(module.base_layer)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None


def _tell(losses: Mapping[str, MergeLoss], stacklevel: int) -> None:
    """One warning, at the line that is so many calls above."""
    if losses:
        warnings.warn(f"blockscale: {summary(losses)}", stacklevel=stacklevel)


@contextmanager
def device_known(model: Any) -> Iterator[None]:
    """For a while, tell peft the device of a model without float parameters to read it from."""
    places = [module.qweight.device for module in model.modules() if isinstance(module, QLayer)]
    has_place = hasattr(model, "hf_device_map") or next(model.parameters(), None) is not None
    if has_place or not places:
        yield
        return
    model.hf_device_map = {"": places[0]}
    try:
        yield
    finally:
        del model.hf_device_map


def untied(model: Any) -> None:
    """Let a model's config say that its input and output table are two, if a merge made them so.

    peft looks where the weights lie in memory, which says nothing of codes.
    """
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if _weight_of(table) is not _weight_of(head):
        model.config.tie_word_embeddings = False
        warnings.warn(
            "blockscale: the input and the output embeddings shared one weight and have two "
            "after this merge: tie_word_embeddings is now False in the model's config",
            stacklevel=4,
        )


def _weight_of(layer: Any) -> Any:
    """A layer's weight: codes, or a parameter."""
    return layer.qweight if isinstance(layer, QLayer) else getattr(layer, "weight", None)


def train_in_float(wrapper: ModulesToSaveWrapper, adapter_name: str) -> None:
    """Dequantize a layer's copy that an adapter trains as a whole: codes do not train."""
    copies = wrapper.modules_to_save
    if adapter_name not in copies:
        return
    copy = copies[adapter_name]
    wants = adapter_name in wrapper.active_adapters
    if isinstance(copy, QLayer):
        copies[adapter_name] = float_layer(copy).requires_grad_(wants)
        return
    for name, module in list(copy.named_modules()):
        if isinstance(module, QLayer):
            parent, _, child = name.rpartition(".")
            setattr(copy.get_submodule(parent), child, float_layer(module).requires_grad_(wants))


# Which quantized layers a LoraConfig names.


def include_quantized(config: Any, model: nn.Module) -> None:
    """Let "all-linear" name quantized linear layers, where it would name the float ones."""
    targets = config.target_modules
    if not isinstance(targets, str) or targets.lower() != INCLUDE_LINEAR_LAYERS_SHORTHAND:
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
        for weight in _codes(model):
            if weight == name or weight.endswith(f".{name}"):
                layer = weight.removesuffix(".weight")
                raise ValueError(
                    f"target_parameters names {weight}, which is quantized: peft adds to such a "
                    f"parameter in place. Name layers in target_modules, or leave this one in "
                    f"float with skip=[{layer!r}] in the recipe"
                )
    for name, layer in model.named_modules():
        is_copied = any(name == e or name.endswith(f".{e}") for e in config.modules_to_save or ())
        if is_copied and any(map(part_of, layer.modules())):
            raise ValueError(
                f"modules_to_save names {name}, of which this process has a part "
                "(bs.parallel.shard_): leave it out of the plan, or name its layers in "
                "target_modules"
            )
    for name in _trained_tables(config, model):
        if isinstance(model.get_submodule(name), QLayer):
            raise ValueError(
                f"trainable_token_indices trains rows of {name}, which is quantized: leave it in "
                f"float with skip=[{name!r}] in the recipe, or name it in modules_to_save"
            )


def check_target(name: str, layer: nn.Module, config: Any) -> None:
    """Raise ValueError for a layer that FSDP2 has sharded, and for an adapter that a part of a
    layer cannot have."""
    if isinstance(layer, QLayer) and layer.qweight.sharded:
        raise ValueError(
            f"{name}: fully_shard has been called for it: put adapters in before, and FSDP2 shards "
            "them, too: bs.parallel.as_parameters_(model), get_peft_model, fully_shard"
        )
    if part_of(layer) is not None:
        check_part(name, config)


@contextmanager
def parts_known(model: Any) -> Iterator[None]:
    """For a while, hide the mesh from peft where layers are parts of ours: it would make DTensors
    of adapters, as it does beside transformers' own parts."""
    meshes = vars(model)
    if meshes.get("_device_mesh") is None or not any(map(part_of, model.modules())):
        yield
        return
    mesh = meshes["_device_mesh"]
    model._device_mesh = None
    try:
        yield
    finally:
        model._device_mesh = mesh


def _codes(model: nn.Module) -> Iterator[str]:
    """Names of the parameters that codes replaced."""
    layers = ((name, module) for name, module in model.named_modules())
    yield from (f"{name}.weight" for name, module in layers if isinstance(module, QLayer))
    yield from (name for name, _ in all_held(model))


def _trained_tables(config: Any, model: nn.Module) -> list[str]:
    """Names of the layers of which rows are to be trained."""
    indices = getattr(config, "trainable_token_indices", None)
    if indices is None:
        return []
    names = [name for name, _ in model.named_modules()]
    if isinstance(indices, dict):
        return [name for name in names if any(name.endswith(each) for each in indices)]
    table: Any = getattr(model, "get_input_embeddings", lambda: None)()
    return [name for name, module in model.named_modules() if module is table]


# Make peft's LoRA know quantized layers.


def register() -> None:
    """Let `get_peft_model`, `PeftModel.from_pretrained`, transformers' `add_adapter` and diffusers
    build LoRA on quantized layers. Harmless where it was done before."""
    PEFT_TYPE_TO_TUNER_MAPPING[PeftType.LORA] = QuantizedLoraModel
    if adopt not in PLACED:
        PLACED.append(adopt)


# LoRA layers around quantized layers: peft's own, which merge into codes.


class LoraLinear(MergesIntoCodes, peft_layers.Linear):
    """Around QLinear and QTransposedLinear."""


class LoraEmbedding(MergesIntoCodes, peft_layers.Embedding):
    """Around QEmbedding."""


class LoraConv1d(MergesIntoCodes, peft_layers.Conv1d):
    """Around QConv of one dimension."""


class LoraConv2d(MergesIntoCodes, peft_layers.Conv2d):
    """Around QConv of two dimensions."""


class LoraConv3d(MergesIntoCodes, peft_layers.Conv3d):
    """Around QConv of three dimensions."""


_OURS: dict[type[nn.Module], type[nn.Module]] = {
    peft_layers.Linear: LoraLinear,
    peft_layers.Embedding: LoraEmbedding,
    peft_layers.Conv1d: LoraConv1d,
    peft_layers.Conv2d: LoraConv2d,
    peft_layers.Conv3d: LoraConv3d,
}


def wrap(target: QLayer, adapter_name: str, config: Any, **kwargs: Any) -> nn.Module:
    """The LoRA layer that peft makes for the float layer, around `target` instead.

    Raises ValueError for layers that LoRA does not know, and for settings that would change the
    base weight.
    """
    if kwargs.get("parameter_name") is not None:
        raise ValueError(
            f"target_parameters names the codes of {kind_of(target)}: name the layer "
            f"itself in target_modules"
        )
    stand_in = float_base(target)
    with unchanged(stand_in):
        lora: Any = peft_layers.dispatch_default(stand_in, adapter_name, config, **kwargs)
    if type(lora) not in _OURS:
        raise ValueError(f"peft has no LoRA for the float layer of {type(target).__name__}")
    lora.base_layer = target
    adopt(lora)
    take_part(lora, adapter_name)
    result: nn.Module = lora
    return result


def adopt(layer: nn.Module) -> None:
    """Give a LoRA layer of peft, whose base layer is quantized now or a part, the class that knows
    it."""
    ours = _OURS.get(type(layer))
    if ours is not None and (isinstance(layer.base_layer, QLayer) or part_of(layer.base_layer)):
        layer.__class__ = ours
