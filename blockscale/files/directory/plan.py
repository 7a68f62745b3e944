# SPDX-License-Identifier: BSD-3-Clause
"""What a run will do, decided from headers: nothing is read in full and nothing is written."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blockscale.core.joined_weights import Member, group_note, sharing
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.pack import stored_shape
from blockscale.core.parse import parse
from blockscale.core.profiles.knobs import Profile
from blockscale.core.recipe import Recipe
from blockscale.core.weight_scheme import for_rows
from blockscale.files.directory.computed import ComputedWeight
from blockscale.files.directory.decide import decide, layer_formats, tied_formats
from blockscale.files.directory.eligibility import LAYERS, DirectoryFacts, biased_layers, known_of
from blockscale.files.directory.model_files import ModelFiles, find_files
from blockscale.files.directory.stacks import stacked
from blockscale.files.header import StoredTensor, lay_out, tensor_of
from blockscale.files.metadata import KEY, VERSION, FileError, Metadata, TensorInfo
from blockscale.files.stored_model import INDEX, check_index
from blockscale.files.stream import Reader, headers_kept

Stamp = tuple[int, int, int, int]  # size, times of writing and of any change, inode
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
    """One tensor: quantized if `info` says how, else copied byte for byte.

    weight: what it is computed from, where the source has it in parts
    profile: how its codes are chosen, where that is not the contract's
    outer_group: the names of all tensors that share its outer scale, itself among them, or none
    """

    name: str
    source: StoredTensor
    info: TensorInfo | None
    weight: ComputedWeight | None = None
    profile: Profile | None = None
    outer_group: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShardPlan:
    """One safetensors file: its first bytes, and where everything after them goes."""

    name: str
    tensors: tuple[TensorPlan, ...]
    header: bytes
    layout: Mapping[str, StoredTensor]
    stamp: Stamp  # of the source file

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(tensor.nbytes for tensor in self.layout.values())


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
        other_files = sum((self.files.root / name).stat().st_size for name in self.files.others)
        texts = _TEXT + _TEXT_PER_TENSOR * len(self.ledger)
        return sum(shard.size for shard in self.shards) + other_files + texts


def stamp(path: Path) -> Stamp:
    """What changes when a file is written again, or another takes its place.

    The time of the last change of any kind is the system's own: no program sets it back, as it may
    the time of writing.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def make_plan(
    source: Path, recipe: Recipe, seed: int, notes: tuple[str, ...] = ()
) -> DirectoryPlan:
    """Decide about every tensor of the model in `source`; notes are for the ledger.

    Raises FileError for a directory that cannot be used, ValueError if nothing would be quantized,
    and for a format whose scales are not chosen (Format.unchosen).
    """
    with headers_kept():
        files = find_files(source)
        facts = known_of(files, recipe)
        biased = biased_layers(files, recipe, facts) if recipe.has_biases else set()
        plans = [_plan_shard(files, name, recipe, facts, biased) for name in files.shards]
    shards, entries = join(
        [shard for shard, _ in plans],
        [entry for _, of_shard in plans for entry in of_shard],
        recipe, facts,
    )  # fmt: skip
    _check_names(files, shards)
    others = [name for tied in facts.tied.values() for name in tied]
    patterns = recipe.unmatched(
        [*(entry.name for entry in entries), *facts.computed_weights, *others]
    )
    ledger = DirectoryLedger(entries, patterns, files.others, files.left_out, notes=notes)
    if not ledger.quantized:
        reasons = sorted({entry.reason for entry in entries})
        raise ValueError(
            f"the recipe quantizes nothing in {source}: {'; '.join(reasons) or 'it has no tensors'}"
        )
    return DirectoryPlan(files, recipe, seed, shards, ledger, _digest(recipe, seed, shards))


def _plan_shard(
    files: ModelFiles, name: str, recipe: Recipe, facts: DirectoryFacts, biased: set[str]
) -> tuple[ShardPlan, list[Entry]]:
    path = files.root / name
    with Reader(path) as reader:
        if KEY in reader.metadata:
            raise FileError(f"{path} is already quantized by blockscale: quantize the float model")
        sources, description = reader.tensors, reader.metadata
    tied = {
        alias: to for alias, to in description.items() if to in sources and alias not in sources
    }
    metadata = Metadata(aliases=tied)  # as safetensors.torch.save_model writes them
    tensors, entries = [], []
    for each, source in facts.view(name, sources).items():
        entry, info = decide(each, source, recipe, facts, biased)
        if info is not None:
            metadata.tensors[each] = info
            if formats := layer_formats(entry):
                layer = entry.kind in LAYERS
                metadata.layers[each.removesuffix(".weight") if layer else each] = formats
            for other in facts.tied.get(each, ()):
                if formats := tied_formats(other, recipe):
                    metadata.aliases[other] = each
                    metadata.layers[other.removesuffix(".weight")] = formats
        profile = recipe.decide(each)[0].profile if entry.weight else None
        if profile is not None and info is not None:
            profile = for_rows(profile, stored_shape(info.shape, info.layout))
        tensors.append(TensorPlan(each, source, info, facts.computed_weights.get(each), profile))
        entries.append(entry)
    header, layout = lay_out(_stored_names(path, tensors), description | metadata.encode())
    return ShardPlan(name, tuple(tensors), header, layout, stamp(path)), entries


def join(
    shards: Sequence[ShardPlan], entries: Sequence[Entry], recipe: Recipe, facts: DirectoryFacts
) -> tuple[tuple[ShardPlan, ...], list[Entry]]:
    """The tensors that share their outer scale know each other, and their entries say so."""
    tensors = {tensor.name: tensor for shard in shards for tensor in shard.tensors}
    layers = {name.removesuffix(".weight"): name for name in tensors}
    members: dict[str, Member] = {}
    for layer, name in layers.items():
        tensor, info = tensors[name], tensors[name].info
        if info is not None and not name.endswith(".bias"):
            parts = stacked(name, info.shape, facts.types).parts_that_share
            stored = stored_shape(info.shape, info.layout)
            members[layer] = Member(parse(info.format), stored, tensor.profile, parts)
    groups, alone = sharing(layers, members, recipe.fused)
    outer_groups = {layers[a]: tuple(layers[b] for b in group) for a, group in groups.items()}
    about = {
        layers[layer]: group_note(layer, groups.get(layer, ()), alone.get(layer, ""))
        for layer in {*groups, *alone}
    }

    def with_peers(tensor: TensorPlan) -> TensorPlan:
        others = outer_groups.get(tensor.name, ())
        return replace(tensor, outer_group=others) if others else tensor

    def with_details(entry: Entry) -> Entry:
        details = ", ".join(filter(None, [entry.details, about.get(entry.name, "")]))
        return entry if details == entry.details else replace(entry, details=details)

    new_shards = [replace(shard, tensors=tuple(map(with_peers, shard.tensors))) for shard in shards]
    return tuple(new_shards), [with_details(entry) for entry in entries]


def _stored_names(path: Path, tensors: Iterable[TensorPlan]) -> dict[str, StoredTensor]:
    """{stored name: what it takes}. Raises FileError where two tensors would get one name."""
    stored: dict[str, StoredTensor] = {}
    for tensor in tensors:
        parts = {tensor.name: tensor.source}
        if tensor.info is not None:
            parts = {
                f"{tensor.name}.{part}": tensor_of(*kind)
                for part, kind in tensor.info.parts().items()
            }
        if twice := sorted(stored.keys() & parts.keys()):
            owner = twice[0].rpartition(".")[0]
            raise FileError(
                f"{path} has a tensor {twice[0]!r}, a name that a part of the quantized "
                f"{owner!r} needs: skip {owner!r} in the recipe"
            )
        stored |= parts
    return stored


def _check_names(files: ModelFiles, shards: tuple[ShardPlan, ...]) -> None:
    """One tensor is in one shard, and where the index says."""
    where: dict[str, str] = {}
    for name, shard in (pair for each in shards for pair in _sources(each)):
        if name in where:
            raise FileError(
                f"{files.root}: tensor {name!r} is in {where[name]} and in {shard}: remove "
                "the file that does not belong to this model"
            )
        where[name] = shard
    if files.index is not None:
        check_index(files.root / INDEX, where)


def _sources(shard: ShardPlan) -> Iterator[tuple[str, str]]:
    """(name, the file that has it) of what a shard's tensors are made of."""
    for tensor in shard.tensors:
        if tensor.weight is None:
            yield tensor.name, shard.name
        else:
            yield from zip(tensor.weight.definition.parts, tensor.weight.files, strict=True)


def _digest(recipe: Recipe, seed: int, shards: tuple[ShardPlan, ...]) -> str:
    sources = [
        (shard.name, shard.stamp, hashlib.sha256(shard.header).hexdigest()) for shard in shards
    ]
    outer_groups = sorted(
        {tensor.outer_group for shard in shards for tensor in shard.tensors} - {()}
    )
    data = [VERSION, recipe.to_dict(), seed, sources] + [outer_groups] * bool(outer_groups)
    text = json.dumps(data)
    return hashlib.sha256(text.encode()).hexdigest()
