"""Layers that compute their weight (weight_norm, spectral_norm) while a model is read.

They are folded before: the model has the weight as a parameter, and what the checkpoint holds are
parts of it. When they have arrived, the layer's own parametrization computes the weight of them.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers.core_model_loading import ConversionOps, WeightConverter

from blockscale.layers.computed.folding import Folding
from blockscale.layers.computed.plain import Computed, evaluating

_KNOWN = ("_WeightNorm", "_SpectralNorm")  # of torch.nn.utils.parametrizations


def computes_of_parts(module: nn.Module) -> bool:
    """Whether a layer's computed tensors can be computed of what a checkpoint holds, and on "meta"
    of nothing: each by one known parametrization."""
    lists: Any = getattr(module, "parametrizations", {})
    return parametrize.is_parametrized(module) and all(
        len(steps) == 1 and type(steps[0]).__name__ in _KNOWN for steps in lists.values()
    )


def converters(folding: Folding, prefix: str) -> list[WeightConverter]:
    """What computes the tensors of folded layers while they are read.

    prefix: of the model's base model, which names in a checkpoint have or have not
    """
    return [
        _converter(fold.names[0].removeprefix(f"{prefix}."), fold.module, tensor)
        for fold in folding.folds
        for tensor in fold.tensors
    ]


def _converter(layer: str, module: Any, tensor: Computed) -> WeightConverter:
    steps = module.parametrizations[tensor.name]
    prefix = f"{layer}.parametrizations.{tensor.name}."
    names = {rf"(?<![^.]){re.escape(prefix + part)}$": part for part in steps.state_dict()}
    return WeightConverter([*names], f"{layer}.{tensor.name}", [Compute(steps, names)])


class Compute(ConversionOps):
    """The step that computes a tensor when its parts are there.

    names: {source pattern: what it is in `steps`, e.g. `original0`}
    """

    def __init__(self, steps: nn.Module, names: Mapping[str, str]):
        self._steps, self._names = steps, names

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compute":
        return Compute(self._steps, self._names)

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, list[Tensor]], full_layer_name: str, **_: Any
    ) -> dict[str, Tensor]:
        """{pattern: [part]} -> {name: its value}; nothing where a part is missing, of which
        transformers tells."""
        parts = {self._names[pattern]: tensors[0] for pattern, tensors in input_dict.items()}
        if parts.keys() != {*self._names.values()}:
            return {}
        with torch.no_grad(), evaluating(self._steps):
            value: Tensor = torch.func.functional_call(self._steps, parts, ())
        return {full_layer_name: value.detach()}
