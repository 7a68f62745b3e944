# SPDX-License-Identifier: BSD-3-Clause
"""Small model directories as Hugging Face writes them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG = {"architectures": ["Tiny"], "model_type": "tiny", "torch_dtype": "bfloat16"}


def tiny_tensors() -> dict[str, Tensor]:
    """Every dtype, rank and odd size that a file can hold."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "embed.weight": random(50, 40, dtype=torch.bfloat16),
        "layers.0.proj.weight": random(33, 40),
        "layers.0.proj.bias": random(33),
        "layers.0.norm.weight": random(40, dtype=torch.float16),
        "layers.1.proj.weight": random(33, 40, dtype=torch.float16),
        "layers.1.proj.bias": random(33),
        "conv.weight": random(6, 4, 3, 3, dtype=torch.bfloat16),
        "conv1d.weight": random(6, 4, 5),
        "experts": random(3, 20, 40, dtype=torch.bfloat16),
        "cls_token": random(1, 1, 40),
        "double.weight": random(4, 8, dtype=torch.float64),
        "steps": torch.tensor(7),
        "positions": torch.arange(12).reshape(1, 12),
        "mask.weight": torch.ones(3, 3, dtype=torch.bool),
        "eight.weight": random(4, 8).to(torch.float8_e4m3fn),
        "empty.weight": torch.zeros(0, 8),
        "head.weight": random(50, 40, dtype=torch.bfloat16),
    }


def write_model(
    folder: Path,
    tensors: dict[str, Tensor],
    shards: int = 1,
    config: dict | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """A directory with `tensors` in one file, or in `shards` of them with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (folder / "tokenizer.json").write_text('{"tokens": []}')
    metadata = {"format": "pt"} | (metadata or {})
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return folder
    names = list(tensors)
    where = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[index::shards]}
        save_file(part, folder / file, metadata)
        where |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index_text = {"metadata": {"total_size": size, "owner": "test"}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_text))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """{relative name: bytes} of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
