# SPDX-License-Identifier: BSD-3-Clause
"""What a block was called with and what it gave, taken apart: tensors are kept elsewhere."""

import hashlib
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, overload

import safetensors.torch
import torch
from torch import Tensor, nn

from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.core.torch_private import pytree
from blockscale.core.work import Closing, Progress
from blockscale.layers.assembly import Supplied
from blockscale.layers.plan import Plan
from blockscale.ops.tensor import QTensor

# Tensors that are kept for a while: in memory, and beyond a budget in files.


class TensorStore(Closing):
    """Tensors by key. What exceeds `budget` bytes lies in safetensors files, one a tensor, in a
    temporary directory that only its user can read and that `close` deletes.
    """

    def __init__(self, budget: float):
        self.budget, self.bytes_in_memory = budget, 0
        self._in_memory: dict[Hashable, Tensor] = {}
        self._on_disk: dict[Hashable, tuple[Path, torch.device]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = count()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._in_memory or key in self._on_disk

    def add(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a tensor, in the place of what had its key."""
        self.drop(key)
        tensor = tensor.detach()
        if self.bytes_in_memory + tensor.nbytes <= self.budget:
            self._in_memory[key] = tensor
            self.bytes_in_memory += tensor.nbytes
            return
        if self._folder is None:  # mkdtemp: nobody else can read it
            self._folder = tempfile.TemporaryDirectory(prefix="blockscale-blocks-")
        path = Path(self._folder.name) / f"{next(self._numbers)}.safetensors"
        safetensors.torch.save_file({"x": tensor.contiguous()}, path)
        self._on_disk[key] = path, tensor.device

    def get(self, key: Hashable) -> Tensor:
        """A tensor: the one that was put in, or one read from its file."""
        if key in self._in_memory:
            return self._in_memory[key]
        path, device = self._on_disk[key]
        return safetensors.torch.load_file(path)["x"].to(device)

    def on_disk(self, key: Hashable) -> bool:
        """Whether `get` reads it from a file, a new tensor each time."""
        return key in self._on_disk

    def drop(self, key: Hashable) -> None:
        """Keep it no longer, if it is there."""
        if key in self._in_memory:
            self.bytes_in_memory -= self._in_memory.pop(key).nbytes
        elif key in self._on_disk:
            self._on_disk.pop(key)[0].unlink()

    def close(self) -> None:
        """Keep nothing any longer."""
        self._in_memory, self._on_disk, self.bytes_in_memory = {}, {}, 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


# What an algorithm that looks at a whole block is given, and what it gives back.


class BlockCall(NamedTuple):
    """One call of a block: `block(*args, **kwargs)`; shared tensors (masks) are one object."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class BlockTask:
    """One block, its calls over all batches, and what it should give for each.

    name:    its dotted name in the model
    module:  the float block, in evaluation mode; it is left as it was found
    plans:   the layers in it whose weights are to be chosen, in the order of their first call;
             plan.name is the name in the whole model
    places:  {plan.name: what is chosen for it}: Before modules and static inputs are there
    calls:   as the quantized blocks before leave them (or the float ones: sequential=False);
             reading calls[i] may read from disk
    targets: targets[i]: the first tensor of what the float block gives in the float model
    grams:   {plan.name: X^T X / rows [k, k]} of the layers' inputs under `calls`
    seed:    of anything random, the user's
    progress: is told of each step
    ranks:   processes that have other calls of the block: calls[i] is that of their batch
             ranks.number(i), and grams are known to a layer's owner alone
    """

    name: str
    module: nn.Module
    plans: Sequence[Plan]
    places: Mapping[str, Supplied]
    calls: Sequence[BlockCall]
    targets: Sequence[Tensor]
    grams: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    progress: Progress | None = None
    ranks: Ranks = ALONE


class BlockAlgorithm(Protocol):
    """Chooses the codes of all weights of a block at once, from what the block should give.

    An attribute `steps`, if it has one, is how often it tells `task.progress` of one for a block:
    they are counted beside the batches. Calls may lie in several processes (`task.ranks`): one that
    adds up what it learns over all of them has an attribute `dealt` that is True; others are
    refused there.
    """

    name: ClassVar[str]
    needs_gram: bool

    def quantize_block(self, task: BlockTask) -> dict[str, tuple[QTensor, list[str]]]:
        """{plan.name: its codes, and notes for the ledger}, for every plan of the task.

        Raises ValueError for a format it cannot serve, NaN and infinity, before it begins.
        """


Item = TypeVar("Item")


class Key(NamedTuple):
    """Where a tensor is kept: whose it is, and which of them. block: that gave it, -1 for none."""

    owner: int
    block: int
    which: Hashable


class Shape(NamedTuple):
    """What is known of a tensor that is not there yet."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device


class NestedTensors(NamedTuple):
    """Nested tuples, lists and dicts: the leaves, a Key in the place of each tensor, and how they
    were nested."""

    leaves: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(cls, value: Any, key: Callable[[int, Tensor], Key]) -> "NestedTensors":
        """A value taken apart; key(place, tensor): keeps a tensor. Caches of keys and values are
        left out: a block that is called a second time would find what it wrote the first time."""
        leaves, spec = pytree.tree_flatten(value, is_leaf=is_cache)
        rest = [
            key(i, leaf) if isinstance(leaf, Tensor) else None if is_cache(leaf) else leaf
            for i, leaf in enumerate(leaves)
        ]
        return cls(tuple(rest), spec)

    def put_together(self, tensor: Callable[[Key], Any]) -> Any:
        """The value again; tensor(key): what stands for a Key."""
        leaves = [tensor(leaf) if isinstance(leaf, Key) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def keys(self) -> list[Key]:
        """Where its tensors are kept, each once."""
        return list(dict.fromkeys(leaf for leaf in self.leaves if isinstance(leaf, Key)))


class LazySequence(Sequence[Item]):
    """`count` items that are made when they are read."""

    def __init__(self, count: int, item: Callable[[int], Item]):
        self._count, self._item = count, item

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        places = range(self._count)[index]
        return self._item(places) if isinstance(places, int) else [self._item(i) for i in places]


def is_cache(value: object) -> bool:
    """Whether this is a cache of keys and values, such as transformers' DynamicCache."""
    kind = type(value)
    return callable(getattr(kind, "update", None)) and hasattr(kind, "get_seq_length")


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of what a block gave."""
    leaves = pytree.tree_leaves(value, is_leaf=is_cache)
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of what a block gave."""
    leaves = pytree.tree_leaves(value, is_leaf=is_cache)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def as_call(value: Any) -> BlockCall:
    """(args, kwargs) as a call."""
    return BlockCall(*value)


def digest(tensor: Tensor) -> Hashable:
    """The same for tensors of equal bits, shape, dtype and device."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8).cpu()
    text = hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).hexdigest()
    return text, tuple(tensor.shape), tensor.dtype, tensor.device


def ghost(shape: Shape) -> Tensor:
    """A tensor of this shape without memory of its own, NaN where its dtype has that: whatever a
    model computes from it is NaN as well and so can be told from what blocks have no part in."""
    value = float("nan") if shape.dtype.is_floating_point else 0
    return torch.full((), value, dtype=shape.dtype, device=shape.device).expand(shape.size)


def holds_nan(tensor: Tensor) -> bool:
    """Whether any element is NaN."""
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def version(tensor: Tensor) -> int:
    """It grows whenever a tensor is changed in place; inference tensors do not count."""
    return -1 if tensor.is_inference() else tensor._version


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether all elements are, NaN and NaN included."""
    return torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())


def apart(x: Tensor, y: Tensor) -> float:
    """The largest difference, in parts of the largest element."""
    if not x.is_floating_point():
        return float(not equal(x, y))
    size = float(x.double().abs().amax())
    return float((x.double() - y.double()).abs().amax()) / size if size > 0 else 0.0
