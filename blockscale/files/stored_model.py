# SPDX-License-Identifier: BSD-3-Clause
"""What a file or a directory of ours holds, read from the headers alone.

Ours: written by `bs.save` or `bs.quantize_directory`. Other people's quantized checkpoints are read
and written in blockscale/export/.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockscale.core.untrusted import json_object, quote, read_json
from blockscale.core.work import Closing
from blockscale.files.header import LARGEST
from blockscale.files.metadata import AGAIN, PARTS, FileError, Metadata
from blockscale.files.stream import Reader
from blockscale.layers import before
from blockscale.layers.before import Before, BufferSpecs

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """A safetensors file, open. Raises FileError if it is missing, truncated or something else."""
    try:
        with safe_open(str(path), "pt") as file:
            yield file
    except SafetensorError as error:
        raise FileError(
            f"{path} is not a whole safetensors file ({error}): it may be truncated; copy or write "
            f"it again"
        ) from None
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None


class OpenFiles(Closing):
    """safetensors files that stay open from the first tensor read until `close`.

    Whoever opens a file parses the names of all its tensors, and maps it once more: that is for a
    model, not for each of its 50,000 tensors. A copy in another process opens its own.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}

    def tensor(self, path: Path, name: str) -> Tensor:
        """A tensor of a file. Raises FileError as `open_file` does."""
        if path not in self._files:
            self._files[path] = self._stack.enter_context(open_file(path))
        tensor: Tensor = self._files[path].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Give the files back; tensors that were read stay as they are."""
        self._files.clear()
        self._stack.close()

    def __reduce__(self) -> Any:
        return OpenFiles, ()


StoredKind = tuple[torch.dtype | None, tuple[int, ...]]  # dtype (None: not torch's) and shape


@dataclass(frozen=True)
class StoredModel:
    """The stored tensors of one file or of a directory's shards, by name, and what they mean."""

    path: Path
    files: Mapping[str, Path]  # {stored name: the file that it is in}
    kinds: Mapping[str, StoredKind]
    metadata: Metadata
    absent: frozenset[str] = frozenset()  # what need not be there: the model has it by itself
    held: OpenFiles | None = None  # files that whoever reads many tensors keeps open, and closes

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The stored tensors of these names."""
        with OpenFiles() if self.held is None else nullcontext(self.held) as files:
            return {name: files.tensor(self.files[name], name) for name in names}

    def parts_of(self, name: str) -> dict[str, str]:
        """{part: stored name} of a quantized tensor. Raises FileError if a part is not right."""
        expected = self.metadata.tensors[name].parts()
        return self._check_parts(name, expected, f"{name} is quantized")

    def before_parts(self, layer: str) -> dict[str, str]:
        """{buffer: stored name} of what transforms a layer's input. Raises FileError likewise."""
        spelling = self.metadata.before(layer)
        if spelling is None:
            return {}
        expected = before.stored_buffers(spelling, self.metadata.features(layer))
        return self._check_parts(
            f"{layer}.before", expected, f"{layer} has the transform {spelling}"
        )

    def before(self, layer: str) -> Before | None:
        """What transforms a layer's input. Raises FileError where its tensors are damaged."""
        spelling, stored = self.metadata.before(layer), self.before_parts(layer)
        if spelling is None:
            return None
        tensors = self.read(list(stored.values()))
        buffers = {part: tensors[name] for part, name in stored.items()}
        try:
            return before.restore(spelling, self.metadata.features(layer), buffers)
        except ValueError as error:
            raise FileError(f"{self.path}: {layer}.before: {error}") from None

    def _check_parts(self, name: str, expected: BufferSpecs, why: str) -> dict[str, str]:
        """{part: stored name}, if they are there and what they should be."""
        stored_names = {part: self._place(f"{name}.{part}") for part in expected}
        for part, (dtype, shape) in expected.items():
            stored = stored_names[part]
            if stored not in self.kinds:
                raise FileError(
                    f"{self.path}: {stored} is missing, though the file says {why}: {AGAIN}"
                )
            if self.kinds[stored] != (dtype, shape):
                kind = "{} {}".format(*self.kinds[stored])
                raise FileError(
                    f"{self.path}: {stored} should be {dtype} {shape}, but is {kind}: {AGAIN}"
                )
        return stored_names

    def _place(self, name: str) -> str:
        """Where a tensor is stored, which layers may share under several names."""
        return self.metadata.aliases.get(name, name)

    def quantizer_parts(self, name: str) -> dict[str, str]:
        """{part: stored name} of a static input or output, empty for a dynamic one."""
        places = {part: self._place(f"{name}.{part}") for part in PARTS}
        return {part: stored for part, stored in places.items() if stored in self.files}

    def plain(self) -> set[str]:
        """The names of stored tensors that belong to no quantized tensor or quantizer."""
        parts = {
            stored for name in self.metadata.tensors for stored in self.parts_of(name).values()
        }
        for layer in self.metadata.layers:
            for part in self.metadata.formats(layer):
                parts |= set(self.quantizer_parts(f"{layer}.{part}").values())
            parts |= set(self.before_parts(layer).values())
        return set(self.files) - parts


def open_stored_model(path: str | Path) -> StoredModel:
    """A file, or a directory with an index or any safetensors files.

    Raises FileError if there is none, or one is truncated, unknown or of a newer version.
    """
    path = Path(path)
    files = shards(path)
    headers = read_headers(path, files)
    if path.is_dir() and (path / INDEX).exists():
        stored = {name: file.relative_to(path).as_posix() for name, file in headers.files.items()}
        check_index(path / INDEX, stored)
    return headers


def read_headers(path: Path, shards: Sequence[Path]) -> StoredModel:
    """What these safetensors files hold, which are all of a model. Raises FileError likewise."""
    files: dict[str, Path] = {}
    kinds: dict[str, StoredKind] = {}
    parts: list[Metadata] = []
    for shard in shards:
        with Reader(shard) as file:
            metadata = Metadata.decode(file.metadata, shard)
            for name, tensor in file.tensors.items():
                if name in files:
                    raise FileError(f"{name} is both in {files[name]} and in {shard}: remove one")
                kinds[name], files[name] = (tensor.torch_dtype, tensor.shape), shard
        if metadata is not None:
            parts.append(metadata)
    return StoredModel(path, files, kinds, Metadata.merge(parts))


def shards(path: Path) -> list[Path]:
    """The safetensors files of a file or directory. Raises FileError if one is missing."""
    if not path.is_dir():
        return [path]
    index = path / INDEX
    if index.exists():
        files = [path / name for name in sorted(set(read_index(index).values()))]
    elif (path / SINGLE).is_file():  # others beside it, such as an adapter's, are not the model's
        files = [path / SINGLE]
    else:
        files = sorted(path.glob("*.safetensors"))
    for shard in files:
        if not shard.is_file():
            raise FileError(f"{shard} is missing, though {INDEX} names it")
    if not files:
        raise FileError(f"{path} holds no safetensors file")
    return files


def read_index(index: Path) -> dict[str, str]:
    """{tensor: the file that an index says it is in, relative to the index and in its folder}.

    Raises FileError if it is no index, or names what is no safetensors file or lies elsewhere.
    """
    try:
        data = json_object(read_json(index, most=LARGEST), index)
        names = json_object(data["weight_map"], "its weight_map")
        if not names or not all(isinstance(name, str) for name in names.values()):
            raise ValueError("it names no files")
    except KeyError:
        raise FileError(f"{index} is damaged (it has no weight_map)") from None
    except ValueError as error:
        raise FileError(f"{index} is damaged ({error})") from None
    for name in set(names.values()):
        if (
            ".." in name.replace("\\", "/").split("/")
            or name.startswith(("/", "\\"))
            or name[1:2] == ":"
        ):
            raise FileError(f"{index} names {quote(name)}, which is not inside the directory")
        if not name.endswith(".safetensors") or not name.isprintable():
            raise FileError(f"{index} names {quote(name)}, which is not a *.safetensors file")
    return {tensor: PurePosixPath(name).as_posix() for tensor, name in names.items()}


def check_index(index: Path, stored: Mapping[str, str]) -> None:
    """Raise FileError where an index does not say what is stored: {tensor: the file it is in}."""
    index_files = read_index(index)
    for name in index_files.keys() | stored.keys():
        if index_files.get(name) != stored.get(name):
            place = f"is in {index_files[name]}" if name in index_files else "is nowhere"
            there = f"is in {stored[name]}" if name in stored else "is in none of them"
            raise FileError(
                f"{index} says that {quote(name)} {place}, but it {there}: download or copy the "
                f"model again"
            )
