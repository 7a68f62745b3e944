"""peft's LoRA model, which finds quantized layers and merges into them."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peft.tuners.lora.model import LoraModel
from peft.utils import ModulesToSaveWrapper
from torch import nn

from blockscale.integrations.peft.float_layer import float_layer
from blockscale.integrations.peft.merging import (
    MergeLoss,
    MergesIntoCodes,
    check_mergeable,
    merge_losses,
    summary,
)
from blockscale.integrations.peft.targets import check_targets, include_quantized
from blockscale.integrations.peft.wrapping import adopt, wrap
from blockscale.layers.layer import QLayer


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
        return LoraModel._create_new_module(lora_config, adapter_name, target, **kwargs)

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
        with device_known(model):
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
        self._lost: dict[str, MergeLoss] = {}
        model: Any = super()._unload_and_optionally_merge(merge, *args, **kwargs)
        if merge:
            untied(model)
        _tell(self._lost, 4)
        return model

    def _replace_module(self, parent: Any, child_name: str, new_module: Any, child: Any) -> None:
        loss = getattr(child, "merge_loss", None)  # of a LoRA layer that gives way to its base
        if isinstance(loss, MergeLoss):
            self._lost[self._names[id(child)]] = loss
        super()._replace_module(parent, child_name, new_module, child)

    def _check_codes(self) -> None:
        for name, module in self.model.named_modules():
            if isinstance(module, MergesIntoCodes) and isinstance(module.base_layer, QLayer):
                try:
                    check_mergeable(module.base_layer)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None


def _tell(losses: Mapping[str, MergeLoss], stacklevel: int) -> None:
    """One warning, at the line that is so many calls above."""
    if losses:
        warnings.warn(f"blockscale: {summary(losses)}", stacklevel=stacklevel)


@contextmanager
def device_known(model: Any) -> Iterator[None]:
    """For a while, tell peft where a model is that has no parameter left in float to look at."""
    places = [module.qweight.device for module in model.modules() if isinstance(module, QLayer)]
    seen = hasattr(model, "hf_device_map") or next(model.parameters(), None) is not None
    if seen or not places:
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
    if _held(table) is not _held(head):
        model.config.tie_word_embeddings = False
        warnings.warn(
            "blockscale: the input and the output embeddings had one weight, and have two after "
            "this merge: tie_word_embeddings is False in the model's config now",
            stacklevel=4,
        )


def _held(layer: Any) -> Any:
    """What holds a layer's weight: codes, or a parameter."""
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
