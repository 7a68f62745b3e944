# SPDX-License-Identifier: BSD-3-Clause
"""The files of a Hugging Face style model directory: weights, config, and everything else."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from blockscale.core.untrusted import LARGEST, SETTINGS, json_object, quote, read_json
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import INDEX, read_index, shards
from blockscale.files.stream import Reader

CONFIG = "config.json"
LEDGER = "blockscale_ledger.json"
_LONGEST = 255  # bytes of a name, on the disks of Linux and macOS

# The float weights once more, for other frameworks: beside quantized ones they only take space.
OTHER_WEIGHTS = (
    "pytorch_model*.bin", "pytorch_model*.bin.index.json", "consolidated*.pth", "consolidated*.pt",
    "consolidated*.safetensors", "*.ckpt", "*.h5", "*.h5.index.json", "*.msgpack",
    "*.msgpack.index.json", "rust_model.ot", "*.onnx", "*.onnx_data", "*.onnx.data",
    "openvino_*.bin", "openvino_*.xml", "*.gguf", "*.tflite",
)  # fmt: skip


@dataclass(frozen=True)
class ModelFiles:
    """What a model's directory holds; names are relative to `root`."""

    root: Path
    shards: tuple[str, ...]
    index: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    others: tuple[str, ...] = ()  # to be copied
    left_out: dict[str, str] = field(default_factory=dict)  # {name: why it is not}


def find_files(path: Path) -> ModelFiles:
    """Look at a model's directory.

    Raises FileError if it is none, holds no safetensors weights, or holds them twice or quantized.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise FileError(
            f"{path} {what}: name the directory that holds config.json and *.safetensors"
        )
    index = _read_json(path / INDEX, most=LARGEST)
    if index is not None and not isinstance(index.get("metadata"), dict | None):
        raise FileError(f"{path / INDEX} is damaged (its metadata are not an object)")
    weights = _shards(path, index)
    config = _read_json(path / CONFIG, unique_keys=False, finite=False)  # Mamba's has Infinity
    if quantized := (config or {}).get("quantization_config"):
        is_ours = isinstance(quantized, dict)
        method = is_ours and (quantized.get("quant_method") or quantized.get("method"))
        raise FileError(
            f"{path / CONFIG} says that the weights are already quantized, by {method or '?'}: "
            f"quantize the float model"
        )
    others, left_out = [], {}
    for name, reason in _others(path, weights):
        if reason:
            left_out[name] = reason
        else:
            others.append(name)
    return ModelFiles(path, weights, index, config, tuple(others), left_out)


def _read_json(
    path: Path, *, most: int = SETTINGS, unique_keys: bool = True, finite: bool = True
) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        data = read_json(path, most=most, unique_keys=unique_keys, finite=finite)
    except FileError as error:
        raise FileError(f"{error}: download or copy it again") from None
    return json_object(data, path)


def _shards(path: Path, index: dict[str, Any] | None) -> tuple[str, ...]:
    """The weight files: those of the index, else model.safetensors, else every *.safetensors."""
    single = path / "model.safetensors"
    if index is None and single.is_file():
        return (single.name,)
    if index is None and not any(path.glob("*.safetensors")):
        there = sorted(each.name for each in path.iterdir())
        raise FileError(
            f"{path} holds no *.safetensors, only {', '.join(there[:8]) or 'nothing'}"
            f"{' …' * (len(there) > 8)}: write it with save_pretrained, which makes safetensors"
        )
    if index is not None:
        _check_lengths(path)
    names = [os.path.relpath(shard, path) for shard in shards(path)]
    if outside := [
        name for name in names if Path(name).parts[0] == ".." or Path(name).is_absolute()
    ]:
        raise FileError(f"{path / INDEX} names {outside[0]!r}, which is not inside the directory")
    if single.is_file() and single.name not in names:
        raise FileError(
            f"{path} holds both model.safetensors and {INDEX}, which names other files: "
            "remove the one that does not belong to the model"
        )
    return tuple(names)


def _check_lengths(path: Path) -> None:
    """Raise FileError where an index names a file whose name no disk takes."""
    for name in set(read_index(path / INDEX).values()):
        if max(len(os.fsencode(part)) for part in name.split("/")) > _LONGEST:
            raise FileError(
                f"{path / INDEX} names {quote(name)}, which is too long for a file: at most "
                f"{_LONGEST} bytes"
            )


def _others(root: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(name, why it is left out or "") of every file that is not a shard."""
    own = {*names, INDEX, CONFIG}
    tensors: set[str] | None = None
    for path in _walk(root, frozenset()):
        name = path.relative_to(root).as_posix()
        if name in own:
            continue
        if path.is_dir():
            yield name, "a hidden folder, such as .git or a download cache"
        elif not path.exists():
            raise FileError(f"{path} is a broken link: remove it, or download what it points to")
        elif not path.is_file():
            yield name, "not a regular file"
        elif name == LEDGER:
            yield name, "this run writes its own"
        elif any(fnmatch(path.name, pattern) for pattern in OTHER_WEIGHTS):
            yield name, "the float weights in another format"
        elif path.parent == root and path.suffix == ".safetensors":
            tensors = tensors if tensors is not None else set(_tensors(root, names))
            same = set(_tensors(root, (name,))) <= tensors
            yield name, "a second copy of the weights" if same else ""
        else:
            yield name, ""


def _tensors(root: Path, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        with Reader(root / name) as reader:
            yield from reader.tensors


def _walk(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Every file below, through links (Hugging Face's cache is links), and hidden folders."""
    real = Path(os.path.realpath(folder))
    if real in above:
        raise FileError(f"{folder} is a link to a folder that it lies in: remove it")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            yield from _walk(path, above | {real})
        else:
            yield path
