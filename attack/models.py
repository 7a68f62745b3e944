# SPDX-License-Identifier: BSD-3-Clause
"""Small models, and what stands on a disk."""

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights = {
        f"layers.{i}.proj.weight": torch.randn(24, 32, generator=generator) for i in range(3)
    }
    return weights | {
        "layers.0.norm.weight": torch.ones(32, dtype=torch.bfloat16),
        "experts": torch.randn(2, 8, 32, generator=generator).to(torch.bfloat16),
        "steps": torch.tensor(7),
    }


def write_directory(folder: Path, shards: int = 2) -> Path:
    """A model as Hugging Face stores it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "tiny", "torch_dtype": "float32"})
    )
    (folder / "tokenizer.json").write_text('{"tokens": []}')
    all_tensors, where = tensors(), {}
    names = list(all_tensors)
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = {name: all_tensors[name] for name in names[index::shards]}
        save_file(part, folder / file, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )
    for file in folder.iterdir():  # ledgers tell of it
        os.utime(file, ns=(0, 0))
    return folder


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 24), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


class Block(nn.Module):
    """One of a decoder's."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.proj(x))


class Decoder(nn.Module):
    """Blocks of one kind, which are calibrated one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def decoder() -> nn.Module:
    torch.manual_seed(0)
    return Decoder().eval()


def snapshot(folder: Path) -> dict[str, str]:
    """{relative name: what it is and holds} of everything below, links not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link {os.readlink(path)}"  # noqa: PTH115
        elif path.is_file():
            found[name] = hashlib.sha256(_said(path)).hexdigest()
        else:
            found[name] = "folder" if path.is_dir() else "device"
    return found


def _said(path: Path) -> bytes:
    """What a file holds. The safetensors library writes metadata in another order each time."""
    data = path.read_bytes()
    if path.suffix != ".safetensors" or path.name.startswith("model"):
        return data  # a directory's are written by us, and have one order
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size]) if 8 < size <= len(data) else {}
    return json.dumps(header, sort_keys=True).encode() + data[size:]
