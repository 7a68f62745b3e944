"""What a run will do, decided from headers: nothing is read in full and nothing is written."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from os.path import normpath
from pathlib import Path
from typing import Any

from blockscale.core.ledger import Entry, Ledger, Status
from blockscale.core.recipe import BiasFormat, Recipe, Scheme
from blockscale.files.directory.eligibility import (
    LAYERS,
    Known,
    biased_layers,
    judge,
    known_of,
    why_not_slabs,
    why_not_vector,
)
from blockscale.files.directory.model_files import ModelFiles, find_files
from blockscale.files.header import StoredTensor, lay_out, sized
from blockscale.files.metadata import KEY, VERSION, FileError, Metadata, TensorInfo
from blockscale.files.stream import Reader

_TEXT = 1 << 20  # bytes for what is written besides: config, index, and the ledger's
_TEXT_PER_TENSOR = 1 << 10


@dataclass
class DirectoryLedger(Ledger):
    """The ledger of a directory: what became of every tensor and of every other file."""

    copied: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # {file: why}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return super().to_dict() | {"copied": list(self.copied), "left_out": dict(self.left_out)}


@dataclass(frozen=True)
class TensorPlan:
    """One tensor: quantized if `info` says how, else copied byte for byte."""

    name: str
    source: StoredTensor
    info: TensorInfo | None


@dataclass(frozen=True)
class ShardPlan:
    """One safetensors file: its first bytes, and where everything after them goes."""

    name: str
    tensors: tuple[TensorPlan, ...]
    header: bytes
    placed: Mapping[str, StoredTensor]
    stamp: tuple[int, int]  # size and time of the source file

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(tensor.nbytes for tensor in self.placed.values())


@dataclass(frozen=True)
class DirectoryPlan:
    """A whole run. `digest` names it: two runs with one digest write the same bytes."""

    files: ModelFiles
    recipe: Recipe
    seed: int
    shards: tuple[ShardPlan, ...]
    ledger: DirectoryLedger
    digest: str

    @property
    def size(self) -> int:
        """Bytes that the run writes, small texts rounded up."""
        copied = sum((self.files.root / name).stat().st_size for name in self.files.others)
        texts = _TEXT + _TEXT_PER_TENSOR * len(self.ledger)
        return sum(shard.size for shard in self.shards) + copied + texts


def stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is written again."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def make_plan(source: Path, recipe: Recipe, seed: int) -> DirectoryPlan:
    """Decide about every tensor of the model in `source`.

    Raises FileError for a directory that cannot be used, ValueError if nothing would be quantized,
    and for a format whose scales are not chosen (Format.unchosen).
    """
    files = find_files(source)
    known = known_of(files)
    biased = biased_layers(files, recipe, known) if recipe.has_biases else set()
    planned = [_plan_shard(files, name, recipe, known, biased) for name in files.shards]
    shards = tuple(shard for shard, _ in planned)
    entries = [entry for _, of_shard in planned for entry in of_shard]
    _check_names(files, shards)
    unmatched = recipe.unmatched([entry.name for entry in entries])
    ledger = DirectoryLedger(entries, unmatched, files.others, files.left_out)
    if not ledger.quantized:
        reasons = sorted({entry.reason for entry in entries})
        raise ValueError(
            f"the recipe quantizes nothing in {source}: {'; '.join(reasons) or 'it has no tensors'}"
        )
    return DirectoryPlan(files, recipe, seed, shards, ledger, _digest(recipe, seed, shards))


def _plan_shard(
    files: ModelFiles, name: str, recipe: Recipe, known: Known, biased: set[str]
) -> tuple[ShardPlan, list[Entry]]:
    path = files.root / name
    with Reader(path) as reader:
        if KEY in reader.metadata:
            raise FileError(f"{path} is already quantized by blockscale: quantize the float model")
        sources, described = reader.tensors, reader.metadata
    tied = {alias: to for alias, to in described.items() if to in sources and alias not in sources}
    metadata = Metadata(aliases=tied)  # as safetensors.torch.save_model writes them
    tensors, entries = [], []
    for each, source in sources.items():
        # a pattern covers what is below the names it matches: this name stands for the layer's too
        scheme, pattern = recipe.decide(each)
        layer, _, attribute = each.rpartition(".")
        if scheme.bias is not None and attribute == "bias" and layer in biased:
            entry, info = _decide_bias(each, source, scheme.bias)
        else:
            entry, info = _decide(each, source, scheme, pattern, known)
        if info is not None:
            metadata.tensors[each] = info
            if formats := _layer(entry):
                metadata.layers[each.removesuffix(".weight")] = formats
        tensors.append(TensorPlan(each, source, info))
        entries.append(entry)
    header, placed = lay_out(_written(path, tensors), described | metadata.encode())
    return ShardPlan(name, tuple(tensors), header, placed, stamp(path)), entries


def _decide(
    name: str, source: StoredTensor, scheme: Scheme, pattern: str | None, known: Known
) -> tuple[Entry, TensorInfo | None]:
    kind, status, layout, reason, fmt = judge(name, source, scheme, pattern, known)
    entry = _entry(name, kind, status, source, reason)
    if fmt is None:
        return entry, None
    if why := why_not_slabs(fmt):
        raise ValueError(f"{name} cannot be quantized in {fmt}: {why}")
    dtype = str(source.torch_dtype).removeprefix("torch.")
    info = TensorInfo(str(fmt), source.shape, dtype, layout)
    size = sum(sized(*part).nbytes for part in info.parts().values())
    entry = replace(entry, weight=info.format, bytes_after=size)
    if name.endswith(".weight") and kind in LAYERS:
        entry = replace(entry, input=_spelled(scheme.input), output=_spelled(scheme.output))
    return entry, info


def _decide_bias(
    name: str, source: StoredTensor, fmt: BiasFormat
) -> tuple[Entry, TensorInfo | None]:
    """The bias of a layer whose weight is quantized."""
    reason = why_not_vector(source, fmt)
    if reason:
        told = f"bias left in float: {reason}"
        return _entry(name, "bias", "skipped", source, told), None
    info = TensorInfo(str(fmt), source.shape, str(source.torch_dtype).removeprefix("torch."))
    size = sum(sized(*part).nbytes for part in info.parts().values())
    entry = _entry(name, "bias", "quantized", source)
    return replace(entry, bias=info.format, bytes_after=size), info


def _entry(name: str, kind: str, status: Status, source: StoredTensor, reason: str = "") -> Entry:
    return Entry(
        name,
        kind,
        status,
        reason=reason,
        elements=prod(source.shape),
        bytes_before=source.nbytes,
        bytes_after=source.nbytes,
    )


def _spelled(fmt: object) -> str:
    return "" if fmt is None else str(fmt)


def _layer(entry: Entry) -> dict[str, str]:
    """The formats of a layer's input and output, which `load` leaves unused for an embedding."""
    return {part: text for part, text in (("input", entry.input), ("output", entry.output)) if text}


def _written(path: Path, tensors: Iterable[TensorPlan]) -> dict[str, StoredTensor]:
    """{stored name: what it takes}. Raises FileError where two tensors would get one name."""
    written: dict[str, StoredTensor] = {}
    for tensor in tensors:
        parts = {tensor.name: tensor.source}
        if tensor.info is not None:
            parts = {
                f"{tensor.name}.{part}": sized(*kind) for part, kind in tensor.info.parts().items()
            }
        if taken := sorted(written.keys() & parts.keys()):
            owner = taken[0].rpartition(".")[0]
            raise FileError(
                f"{path} has a tensor {taken[0]!r}, as would be called a part of {owner!r}, "
                f"quantized: skip {owner!r} in the recipe"
            )
        written |= parts
    return written


def _check_names(files: ModelFiles, shards: tuple[ShardPlan, ...]) -> None:
    """One tensor is in one shard, and where the index says."""
    where: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in where:
                raise FileError(
                    f"{files.root}: tensor {tensor.name!r} is in {where[tensor.name]} and in "
                    f"{shard.name}: remove the file that is not of this model"
                )
            where[tensor.name] = shard.name
    if files.index is not None:
        for name, shard_name in files.index["weight_map"].items():
            if where.get(name) != normpath(shard_name):
                raise FileError(
                    f"{files.root}: the index says {name!r} is in {shard_name}, which has it not"
                )


def _digest(recipe: Recipe, seed: int, shards: tuple[ShardPlan, ...]) -> str:
    sources = [
        (shard.name, shard.stamp, hashlib.sha256(shard.header).hexdigest()) for shard in shards
    ]
    text = json.dumps([VERSION, recipe.to_dict(), seed, sources])
    return hashlib.sha256(text.encode()).hexdigest()
