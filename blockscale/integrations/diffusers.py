# SPDX-License-Identifier: BSD-3-Clause
"""Blockscale in diffusers' `from_pretrained` and `save_pretrained` (docs/transformers.md).

Importing this is all that diffusers needs to read what blockscale wrote.
"""
# ruff: noqa: ARG002 - the signatures are diffusers'

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffusers.quantizers import auto
from diffusers.quantizers.base import DiffusersQuantizer
from diffusers.quantizers.quantization_config import QuantizationConfigMixin
from torch import Tensor, nn

from blockscale.core.ledger import Ledger  # noqa: TC001 - it is what users look for
from blockscale.core.recipe import Recipe
from blockscale.files.load import fill
from blockscale.files.match import match_quantized, shared_names
from blockscale.files.metadata import FileError
from blockscale.files.save import describe, described_state
from blockscale.files.stored_model import StoredModel, read_headers
from blockscale.integrations.config import METHOD, RecipeConfig, with_method
from blockscale.integrations.stand_in import stand_in
from blockscale.layers.apply import quantize_
from blockscale.layers.computed import folded_for

# A recipe as diffusers' `quantization_config`.


class Method(str):
    """The name of the method, which diffusers reads as it does its own, an enum's."""

    @property
    def value(self) -> str:
        """The name."""
        return str(self)


class BlockscaleConfig(RecipeConfig, QuantizationConfigMixin):
    """A recipe, as diffusers' `quantization_config` (integrations.config.RecipeConfig)."""

    quant_method: Any = Method(METHOD)


# The quantizer that diffusers calls while it builds, fills and saves a model.


class BlockscaleQuantizer(DiffusersQuantizer):
    """Quantizes a float model that diffusers has read, or reads one that blockscale wrote.

    ledger: what became of every layer and parameter, where the model was quantized here
    """

    use_keep_in_fp32_modules = True
    quantization_config: BlockscaleConfig

    def __init__(self, quantization_config: BlockscaleConfig, **kwargs: Any):
        super().__init__(quantization_config, **kwargs)
        self.ledger: Ledger | None = None
        self._source: StoredModel | None = None
        self._model: Any = None

    def belongs_to(self, model: Any) -> None:
        """`save_pretrained` of this model writes what the quantizer says."""
        self._model = model
        model.register_to_config(quantization_config=self.quantization_config)

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Raises ValueError for several devices: accelerate's hooks on layers would be lost."""
        if isinstance(device_map, dict) and (len({*device_map.values()}) > 1):
            raise ValueError(
                f"device_map names {len({*device_map.values()})} devices: a model of diffusers is "
                f"quantized on one, e.g. device_map={{'': 'cuda'}}"
            )

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: Any) -> list[str]:
        """What the files hold under the names that the model has. Raises FileError where they are
        quantized and config.json does not say so, or the other way."""
        paths = [Path(file) for file in checkpoint_files]
        if any(path.suffix != ".safetensors" for path in paths):
            if self.pre_quantized:
                raise FileError(
                    f"{paths[0]} is not a safetensors file, and codes are read from those "
                    "alone: write it by save_pretrained with safe_serialization=True"
                )
            return loaded_keys
        source = read_headers(paths[0] if len(paths) == 1 else paths[0].parent, paths)
        if bool(source.metadata.tensors) != self.pre_quantized:
            result, text = ("codes", "no ") if source.metadata.tensors else ("no codes", "")
            raise FileError(
                f"{source.path} holds {result}, but its config.json has {text}quantization_config: "
                f"copy the directory again"
            )
        if not self.pre_quantized:
            return loaded_keys
        self._source = source
        return [*source.plain(), *source.metadata.tensors, *source.metadata.aliases]

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> None:
        if self._source is None:
            return
        names = [*self._source.metadata.tensors, *self._source.metadata.aliases]
        with folded_for(model, names):
            pass  # and they stay so
        result = match_quantized(model, self._source, shared_names(model))
        for name in _names((result.weights, result.parameters)):
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            old: Tensor = getattr(module, attribute)
            module._parameters[attribute] = stand_in(old.shape, old.dtype, "cpu")

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if self._source is None:
            config = self.quantization_config
            self.ledger = quantize_(model, config.recipe, strict=config.strict, seed=config.seed)
            config.recipe = config.recipe.uncalibrated()[0]  # what config.json will say was done
        else:
            fill(model, self._source)
        self._source = None
        self.belongs_to(model)
        return model

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Any], safe_serialization: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What `save_pretrained` writes, and what the files say of it."""
        if not safe_serialization:
            raise ValueError("codes are written to safetensors: leave safe_serialization=True")
        tensors, metadata = described_state(self._model)
        return tensors, metadata.encode()

    @property
    def is_serializable(self) -> bool:
        """Whether `save_pretrained` can write the model: always."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether adapters can be trained on the model."""
        return True


def _names(results: Sequence[dict[str, list[str]]]) -> list[str]:
    return [name for matches in results for names in matches.values() for name in names]


# diffusers learns the method "blockscale", as transformers does (integrations.transformers).
#
# It finds methods in two tables as well. Its config.json says `method`, too, so that a diffusers
# that knows no blockscale refuses the directory.


def register() -> None:
    """Put the config and the quantizer into diffusers' tables; again, nothing happens."""
    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[METHOD] = BlockscaleConfig
    auto.AUTO_QUANTIZER_MAPPING[METHOD] = BlockscaleQuantizer
    _read_method(auto.DiffusersAutoQuantizer)


def _read_method(kind: Any) -> None:
    from_dict = kind.from_dict
    kind.from_dict = staticmethod(lambda config: from_dict(with_method(config)))


# Models that were not quantized by diffusers are saved as if they were.
#
# `save_pretrained` writes the state that it finds: codes that `from_pretrained` does not know. With
# a quantizer in the model's `hf_quantizer` it writes what `from_pretrained` reads.


def attach(models: Iterable[Any], recipe: Recipe | None) -> None:
    """Give each of these models that holds codes a quantizer of `recipe`, unless it has one."""
    for model in models:
        if getattr(model, "hf_quantizer", None) is None and describe(model).tensors:
            quantizer = BlockscaleQuantizer(BlockscaleConfig(recipe or Recipe()))
            quantizer.belongs_to(model)
            model.hf_quantizer = quantizer


register()
