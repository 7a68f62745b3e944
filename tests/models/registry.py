# SPDX-License-Identifier: BSD-3-Clause
"""The zoo: architectures that nobody here wrote, built small, each with a sample input.

An entry is a name, a way to build the model with random weights, and a way to make its input. The
files of `zoo/` hold them by family; nothing outside is imported before a model is built.
"""

import importlib
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import outside

Inputs = dict[str, Any]  # by the names of forward's parameters
_ENTRIES: dict[str, "Model"] = {}


@dataclass(frozen=True)
class Model:
    """One architecture.

    library: who wrote it, as an import name: transformers, timm, torchvision, torch, ...
    make: builds it, with random weights; sample: makes an input for it, by parameters' names
    skip: patterns that a recipe must leave in float, {pattern: why}
    """

    name: str
    library: str
    make: Callable[[], nn.Module]
    sample: Callable[[], Inputs]
    skip: Mapping[str, str]

    @property
    def missing(self) -> str:
        """Why it cannot be built here; empty if it can."""
        return outside.missing(self.library)

    def build(self, seed: int = 0) -> nn.Module:
        """The float model in eval mode, the same weights for the same seed."""
        _seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self.make().eval()
        _move_from_zero(model, seed)
        return model

    def inputs(self) -> Inputs:
        """A sample input, always the same."""
        _seed(1)
        return self.sample()


def add(
    name: str,
    library: str,
    make: Callable[[], nn.Module],
    sample: Callable[[], Inputs],
    skip: Mapping[str, str] | None = None,
) -> None:
    """Put a model into the zoo. Raises ValueError for a name that is taken."""
    if name in _ENTRIES:
        raise ValueError(f"the zoo has a model {name!r} already")
    _ENTRIES[name] = Model(name, library, make, sample, skip or {})


@cache
def models() -> dict[str, Model]:
    """All models, in the order of their names: files of `zoo/` are imported in any order."""
    for path in sorted((Path(__file__).parent / "zoo").glob("*.py")):
        importlib.import_module(f"tests.models.zoo.{path.stem}")
    return dict(sorted(_ENTRIES.items()))


def tensors(output: Any) -> list[Tensor]:
    """The floating point tensors in what a model gives, in order, whatever holds them."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() or output.is_complex() else []
    if isinstance(output, Mapping):
        return [each for value in output.values() for each in tensors(value)]
    if isinstance(output, list | tuple):
        return [each for value in output for each in tensors(value)]
    inside = getattr(output, "layers", None)  # caches of transformers
    return [] if inside is None else [each for one in inside for each in tensors(vars(one))]


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - libraries draw from the global state
    torch.manual_seed(seed)


def _move_from_zero(model: nn.Module, seed: int) -> None:
    """Parameters that start as zeros get small numbers: a model of zeros would compare equal to
    anything. Those that start as ones, such as norms, stay."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() and not parameter.any():
                parameter.normal_(0, 0.02, generator=generator)
