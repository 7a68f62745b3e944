# SPDX-License-Identifier: BSD-3-Clause
"""The quantizer that transformers calls while it builds, fills and saves a model."""
# ruff: noqa: ARG002 - the signatures are transformers'

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from blockscale.core.ledger import Ledger  # noqa: TC001 - it is what users look for
from blockscale.core.recipe import Recipe
from blockscale.files.save import describe
from blockscale.integrations.config import METHOD, RecipeConfig, with_method
from blockscale.integrations.transformers.dealing import Distribution, deal_later
from blockscale.integrations.transformers.placement import dispatch_after, loading_places
from blockscale.integrations.transformers.quantizing import QuantizeStep, Quantizing
from blockscale.integrations.transformers.reading import CheckpointReading
from blockscale.integrations.transformers.saving import state_and_metadata

# A recipe as transformers' `quantization_config`.


class BlockscaleConfig(RecipeConfig, QuantizationConfigMixin):
    """A recipe, as transformers' `quantization_config` (integrations.config.RecipeConfig)."""

    quant_method: Any = METHOD


class BlockscaleQuantizer(HfQuantizer):
    """Quantizes a float checkpoint while it is read, or reads one that blockscale wrote.

    ledger: what became of every layer and parameter, where the model was quantized here
    """

    requires_calibration = False
    quantization_config: BlockscaleConfig

    def __init__(self, quantization_config: BlockscaleConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.ledger: Ledger | None = None
        self._quantizing: Quantizing | None = None
        self._reading: CheckpointReading | None = None
        self._distribution: Distribution | None = None
        self._places: dict[str, Any] | None = None  # where the model is to be
        self._is_word = False  # whether device_map is a word, such as "auto"

    def update_device_map(self, device_map: Any) -> Any:
        """Where the model is loaded; a word, such as "auto", becomes places later."""
        self._is_word = isinstance(device_map, str)
        if not isinstance(device_map, dict):
            return device_map
        self._places = dict(device_map)
        return loading_places(device_map)

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Turn the places that a word has become into those where the model is loaded.

        transformers asks again once it has them, and loads by this very dictionary.
        """
        if self._is_word and isinstance(device_map, dict):
            device_map.update(self.update_device_map(device_map))

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> nn.Module:
        self._distribution = Distribution(model)
        if self.pre_quantized:
            self._reading = CheckpointReading(model, checkpoint_files)
            self._distribution.parameters = self._reading.formats
        else:
            self._quantizing = Quantizing(model, self.quantization_config, checkpoint_files)
            self._distribution.parameters = self._quantizing.formats
        return model

    def update_weight_conversions(self, weight_conversions: Any, model: Any = None) -> Any:
        """The ways to rename and fuse a checkpoint's tensors, with those for codes and scales."""
        under_way = self._reading or self._quantizing
        if under_way is None:  # a model is saved
            return weight_conversions
        return under_way.conversions(weight_conversions)

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Whether a parameter is quantized when it arrives."""
        return self._quantizing is not None and self._quantizing.wants(param_name)

    def get_quantize_ops(self) -> QuantizeStep:
        """The step that quantizes what was read."""
        assert self._quantizing is not None  # or it would need no quantization
        return QuantizeStep(self._quantizing)

    def param_element_size(self, model: Any, param_name: str, param: Tensor) -> float:
        """Bytes of an element, by which `device_map="auto"` shares a model out."""
        for each in (self._quantizing, self._reading):
            size = None if each is None else each.element_size(param_name)
            if size is not None:
                return size
        return param.element_size()

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        with dispatch_after(model, self._places):
            if self._quantizing is not None:
                self.ledger = self._quantizing.finish()
            if self._reading is not None:
                self._reading.finish()
        if self._distribution is not None:
            self._distribution.finish()
        self._quantizing = self._reading = self._distribution = None
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What `save_pretrained` writes, and what the files say of it."""
        model.config.quantization_config = self.quantization_config
        return state_and_metadata(model)

    def is_serializable(self) -> bool:
        """Whether `save_pretrained` can write the model: always."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether adapters can be trained on the model."""
        return True

    @property
    def is_compileable(self) -> bool:
        """Whether `generate` may compile the model."""
        return True


# transformers learns the method "blockscale".
#
# transformers 5 finds methods in two tables, and nothing of a package that was not imported:
# there is no entry point. So one line has to be run before `from_pretrained`:
#
#     import blockscale.integrations.transformers  # noqa: ERA001
#
# The tables are keyed by `quant_method`. The config.json that we write says `method` in its place
# (docs/files.md): without that line transformers refuses the directory, where with a
# `quant_method` that it does not know it would fill the model with random weights. Two functions
# of transformers look that key up; here they learn to read `method` as well.


def register() -> None:
    """Put the config and the quantizer into transformers' tables; again, nothing happens."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    auto.register_quantization_config(METHOD)(BlockscaleConfig)
    auto.register_quantizer(METHOD)(BlockscaleQuantizer)
    _read_method(auto)
    deal_later()


def _read_method(module: Any) -> None:
    from_dict = module.AutoQuantizationConfig.from_dict
    supports = module.AutoHfQuantizer.supports_quant_method
    module.AutoQuantizationConfig.from_dict = staticmethod(
        lambda config, *args, **kwargs: from_dict(with_method(config), *args, **kwargs)
    )
    module.AutoHfQuantizer.supports_quant_method = staticmethod(
        lambda config: supports(with_method(config))
    )


# Models that were not quantized by transformers are saved as if they were.
#
# `save_pretrained` writes the state that it finds. Of a quantized model that would be codes which
# `from_pretrained` does not know, beside random numbers in the weights' places. With a quantizer in
# the model's `hf_quantizer` it writes what `from_pretrained` reads.


def attach(models: Iterable[Any], recipe: Recipe | None) -> None:
    """Give each of these models that holds codes a quantizer of `recipe`, unless it has one."""
    for model in models:
        if getattr(model, "hf_quantizer", None) is None and describe(model).tensors:
            model.hf_quantizer = BlockscaleQuantizer(BlockscaleConfig(recipe or Recipe()))
