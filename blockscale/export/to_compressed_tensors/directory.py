"""The files of a model's directory: config.json, the weights in shards, what lay beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from blockscale.files.directory.output import absolute, check_names, check_target

SHARD = 5_000_000_000  # bytes, as transformers splits
_INDEX = "model.safetensors.index.json"


def check_directory(directory: str | Path) -> Path:
    """The absolute path of a directory that is to be written, before any work is done for it.

    Raises ValueError if it is a file or holds something, its parent is no directory or cannot be
    written, something is mounted there, or its name leaves no room for those of a run.
    """
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a directory to write, e.g. {path}-quantized")
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} exists and is not empty: choose another, or remove it first")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory: create it first")
    goal = absolute(path)
    check_names(goal, (_INDEX,))
    check_target(goal, 0)
    return goal


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and the weights, in one file or in shards of SHARD bytes."""
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    shards = _shards(tensors)
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata)
        return
    where: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name, metadata)
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > SHARD:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        filled += tensor.nbytes
    return shards
