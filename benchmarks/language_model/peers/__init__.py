# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries' quantizers, each on the same model: one a file, named as its library.

Each has `quantize(model, setting, train) -> (model, bits)`: the model, a copy that it may change,
with dequantized weights in float32 (or modules that quantize their inputs too), and the bits that
codes, scales and zero points take for each weight.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

from torch import Tensor, nn

from benchmarks.language_model.model import FLOAT

if TYPE_CHECKING:
    from benchmarks.language_model.settings import Setting

PACKAGES = ("auto-round", "gguf", "pywhispercpp", "torchao")


def quantize(model: nn.Module, setting: "Setting", train: Tensor) -> tuple[nn.Module, float]:
    """By the library that the setting names. Raises ImportError where it is not installed."""
    name = setting.by.replace("-", "_")
    return importlib.import_module(f"{__name__}.{name}").quantize(model, setting, train)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """{name: layer} of all that is quantized."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name not in FLOAT
    }


def versions() -> dict[str, str]:
    """{library: its version} of those installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
