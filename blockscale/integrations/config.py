# SPDX-License-Identifier: BSD-3-Clause
"""The `quantization_config` that a user passes to `from_pretrained` and that config.json stores.

Each library has a subclass, which is also of the library's own base class and adds nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockscale.core.format import Format
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.metadata import KEY, VERSION, FileError
from blockscale.files.stored_model import StoredModel, open_stored_model

METHOD = KEY  # "blockscale"
_OPTIONS = ("strict", "seed")
_KNOWN = {"quant_method", "method", "version", "recipe", *_OPTIONS}


class RecipeConfig:
    """A recipe, as a `quantization_config` of transformers or diffusers.

    recipe: what `bs.quantize_` takes: a Recipe, a preset's name, a Format, a name or spelling,
        JSON, the path of a JSON file, or a mapping as of `Recipe.to_dict`. There is no data to
        calibrate with: a warning says so where the recipe asks for it.
    strict: raise SkippedError, before any weight is read, if something that the recipe covers
        cannot be quantized, a pattern matches nothing or a calibration is asked for.
    seed: for stochastic rounding of weights.

    Raises ValueError for a recipe that does not parse.
    """

    quant_method: Any = METHOD

    def __init__(
        self,
        recipe: Recipe | Format | Mapping[str, Any] | str | Path,
        strict: bool = False,
        seed: int | None = None,
    ):
        self.recipe = Recipe.read(recipe)
        self.strict, self.seed = bool(strict), seed

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which `from_dict` reads back.

        It has `method` and no `quant_method`, as docs/files.md explains: a transformers that knows
        no blockscale refuses it, and does not fill the weights with random numbers.
        """
        options = {name: getattr(self, name) for name in _OPTIONS if getattr(self, name)}
        return {"method": METHOD, "version": VERSION, "recipe": self.recipe.to_dict(), **options}

    def to_diff_dict(self) -> dict[str, Any]:
        """The same: there are no defaults to leave out."""
        return self.to_dict()

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        """The config that `to_dict`, or the `quantization_config` of a config.json, describes.

        Raises ValueError for other methods and unknown keys, FileError for a newer version.
        """
        method = config_dict.get("quant_method", config_dict.get("method", METHOD))
        if method != METHOD:
            raise ValueError(
                f"quantization_config has quant_method {method!r}, expected {METHOD!r}"
            )
        if (version := config_dict.get("version", VERSION)) != VERSION:
            raise FileError(
                f"quantization_config: version {version!r} of the file format, and this "
                f"blockscale reads version {VERSION}: install a newer blockscale"
            )
        if unknown := sorted(set(config_dict) - _KNOWN):
            choices = ", ".join(sorted(_KNOWN))
            raise ValueError(
                f"quantization_config: unknown key {unknown[0]!r}; choose from {choices}"
            )
        if "recipe" not in config_dict:
            raise ValueError("quantization_config has no recipe: name one, e.g. 'mxfp4'")
        arguments = {name: config_dict[name] for name in _OPTIONS if name in config_dict}
        config = cls(config_dict["recipe"], **arguments)
        return (config, kwargs) if return_unused_kwargs else config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecipeConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))


def with_method(config: Any) -> Any:
    """A `quantization_config` of ours with `quant_method`, by which libraries look quantizers up;
    others as they are."""
    ours = isinstance(config, dict) and config.get("method") == METHOD
    return {"quant_method": METHOD, **config} if ours else config


def quantized_copy(source: str, config: Mapping[str, Any], folder: Path) -> StoredModel:
    """A directory in float, quantized by the recipe of a `quantization_config` into `folder`, where
    it stays for the next start. The name there is the digest of recipe, seed and files.

    Raises ValueError for a config without a recipe, and what quantize_directory raises.
    """
    by = RecipeConfig.from_dict(dict(config))
    options: dict[str, Any] = {"strict": by.strict, "seed": by.seed or 0}
    goal = folder / plan_directory(source, folder / "model", by.recipe, **options).digest
    if not goal.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        quantize_directory(source, goal, by.recipe, **options)
    return open_stored_model(goal)
