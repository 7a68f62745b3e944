# SPDX-License-Identifier: BSD-3-Clause
"""AutoRound (Intel's SignRound): learned rounding, or with 0 steps its search. Package auto-round.

Its `datasets` is needed only for corpora that it downloads: where that package is missing, an empty
one stands in its place.
"""

import importlib.util
import logging
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.language_model.peers import linears
from benchmarks.language_model.settings import Setting


class _Absent(types.ModuleType):
    """A package of which every public name is `object`."""

    __version__ = "0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


if importlib.util.find_spec("datasets") is None:
    sys.modules["datasets"] = _Absent("datasets")
    sys.modules["datasets"].__spec__ = ModuleSpec("datasets", None)

from auto_round import AutoRound  # noqa: E402 - after what it imports

logging.getLogger("autoround").setLevel(logging.ERROR)


class _Tokenizer:
    """Stands where a tokenizer is asked for: the calibration tokens are tokens already."""

    model_max_length = 1 << 20


def quantize(model: nn.Module, setting: Setting, train: Tensor) -> tuple[nn.Module, float]:
    """AutoRound's own defaults, but for the steps, the group and the data."""
    scheme, *more = setting.weight.split()
    options: dict[str, Any] = {"sym": False} if "asym" in more else {}
    for part in more:
        if part.startswith("group"):
            options["group_size"] = int(part.removeprefix("group"))
    device = str(train.device)
    quantizer = AutoRound(
        model, tokenizer=_Tokenizer(), scheme=scheme, iters=int(setting.algorithm.split()[0]),
        nsamples=len(train), seqlen=train.shape[1], batch_size=8, dataset=list(train.split(1)),
        device_map=device, disable_model_free=True, amp=False, **options,
    )  # fmt: skip
    with torch.enable_grad():
        done, _ = quantizer.quantize()
    done = done.to(device).float()
    stored = count = 0.0
    for layer in linears_of(done).values():
        weight = layer.weight.detach()
        stored += weight.numel() * layer.bits + scale_bits(layer)
        count += weight.numel()
    return done.eval(), stored / count


def linears_of(model: nn.Module) -> dict[str, Any]:
    """{name: layer with a weight and AutoRound's attributes}, those inside its wrappers too."""
    names = linears(model)
    return {n: layer for n, layer in names.items() if getattr(layer, "bits", 16) < 16}


def scale_bits(layer: Any) -> float:
    """Bits of a layer's scales and zero points as its files have them: a byte for each e8m0 or e4m3
    scale, two for others, a code's bits for each zero point."""
    floats = layer.data_type.startswith(("mx", "nv", "opt_rtn_nv", "rtn_nv"))
    zero = layer.bits if isinstance(layer.zp, Tensor) else 0
    return layer.scale.numel() * ((8 if floats or "_mx" in layer.data_type else 16) + zero)
