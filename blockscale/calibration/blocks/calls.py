# SPDX-License-Identifier: BSD-3-Clause
"""What a block was called with and what it gave, taken apart: tensors are kept elsewhere."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from blockscale.calibration.blocks.task import Call

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


class Parts(NamedTuple):
    """Nested tuples, lists and dicts: the leaves, a Key in the place of each tensor, and how they
    were nested."""

    leaves: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(cls, value: Any, key: Callable[[int, Tensor], Key]) -> "Parts":
        """A value taken apart; key(place, tensor): keeps a tensor. Caches of keys and values are
        left out: a block that is called a second time would find what it wrote the first time."""
        leaves, spec = pytree.tree_flatten(value, is_leaf=is_cache)
        kept = [
            key(i, leaf) if isinstance(leaf, Tensor) else None if is_cache(leaf) else leaf
            for i, leaf in enumerate(leaves)
        ]
        return cls(tuple(kept), spec)

    def put_together(self, tensor: Callable[[Key], Any]) -> Any:
        """The value again; tensor(key): what stands for a Key."""
        leaves = [tensor(leaf) if isinstance(leaf, Key) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def kept(self) -> list[Key]:
        """Where its tensors are kept, each once."""
        return list(dict.fromkeys(leaf for leaf in self.leaves if isinstance(leaf, Key)))


class Sequenced(Sequence[Item]):
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


def as_call(value: Any) -> Call:
    """(args, kwargs) as a Call."""
    return Call(*value)


def digest(tensor: Tensor) -> Hashable:
    """The same for tensors of equal bits, shape, dtype and device."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8).cpu()
    told = hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).hexdigest()
    return told, tuple(tensor.shape), tensor.dtype, tensor.device


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
