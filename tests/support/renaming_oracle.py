# SPDX-License-Identifier: BSD-3-Clause
"""What a quantized directory should load to: transformers itself, from the dequantized pieces."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from blockscale.core.pack import from_stored
from blockscale.core.parse import parse
from blockscale.files.stored_model import open_stored_model
from blockscale.ops.tensor import from_parts


def dequantized(path: Path, to: Path) -> Path:
    """A directory of ours, its quantized tensors as floats under their own names."""
    source = open_stored_model(path)
    tensors = source.read(sorted(source.plain()))
    for name, info in source.metadata.tensors.items():
        names = source.parts_of(name)
        stored = source.read(list(names.values()))
        shape = info.shape if info.layout == "plain" else None
        q = from_parts(parse(info.format), _width(info), {p: stored[n] for p, n in names.items()})
        tensors[name] = from_stored(q.dequantize(), info.layout, shape or info.shape).contiguous()
    to.mkdir()
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config.pop("quantization_config")
    (to / "config.json").write_text(json.dumps(config))
    return to


def _width(info: Any) -> int:
    shape = info.shape
    if info.layout == "transposed":
        return int(shape[-2])
    return int(torch.Size(shape[1:]).numel() if info.layout == "channels_last" else shape[-1])


def values(model: nn.Module, names: list[str]) -> dict[str, Tensor]:
    """{name: the float values} of parameters and buffers, quantized or not."""
    found: dict[str, Tensor] = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        value = getattr(model.get_submodule(owner), attribute)
        found[name] = (value.dequantize() if hasattr(value, "fmt") else value).detach().float()
    return found


def differing(a: nn.Module, b: nn.Module, names: list[str]) -> list[str]:
    """The names whose values are not equal."""
    left, right = values(a, names), values(b, names)
    return [name for name in names if not torch.equal(left[name], right[name])]
