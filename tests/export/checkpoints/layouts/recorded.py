# SPDX-License-Identifier: BSD-3-Clause
"""What producers stored and dequantized (tests/recorded/record_layouts.py), as files to read."""

import json
import pathlib
from functools import cache
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

RECORDED = pathlib.Path(__file__).parents[3] / "recorded"


@cache
def cases(producer: str) -> dict[str, tuple[dict[str, Tensor], Tensor, dict[str, Any]]]:
    """{case: (stored tensors, values of a.weight, configuration)}"""
    with safe_open(str(RECORDED / f"layouts_{producer}.safetensors"), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        configs = {case: json.loads(text) for case, text in sorted(file.metadata().items())}
    return {
        case: (
            {n.split("|")[2]: t for n, t in tensors.items() if n.startswith(f"{case}|stored|")},
            tensors[f"{case}|values|a.weight"],
            config,
        )
        for case, config in configs.items()
    }


def directory(
    path: pathlib.Path, stored: dict[str, Tensor], config: dict[str, Any]
) -> pathlib.Path:
    """A directory as the producer leaves it; quanto's map is a file of its own."""
    path.mkdir(exist_ok=True)
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    save_file(stored, path / "model.safetensors")
    if "modules" in config:
        (path / "quanto_qmap.json").write_text(json.dumps(config["modules"]))
    elif "mlx" in config:
        (path / "config.json").write_text(json.dumps({"quantization": config["mlx"]}))
    elif config:
        (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    return path


def same(a: Tensor, b: Tensor) -> bool:
    """Equal values and signs of zero, NaN where NaN is."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    numbers = ~(a.isnan() & b.isnan())
    return torch.equal(a[numbers], b[numbers]) and torch.equal(
        a[numbers].signbit(), b[numbers].signbit()
    )
