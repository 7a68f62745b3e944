# SPDX-License-Identifier: BSD-3-Clause
"""Calls taken apart and put together, ghosts, digests."""

import pytest
import torch
from torch import Tensor

from blockscale.calibration.blocks.calls import (
    Key,
    Parts,
    Sequenced,
    Shape,
    apart,
    digest,
    equal,
    first_tensor,
    ghost,
    holds_nan,
    is_cache,
    tensors,
)


class Cache:
    """As transformers' caches are."""

    def update(self) -> None: ...

    def get_seq_length(self) -> int:
        return 0


def test_parts_come_together_again() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    kept: dict[Key, Tensor] = {}

    def key(place: int, tensor: Tensor) -> Key:
        made = Key(0, -1, place)
        kept[made] = tensor
        return made

    value = ((x, None), {"mask": y, "flags": [True, 3], "cache": Cache()})
    parts = Parts.of(value, key)
    (first, none), more = parts.put_together(kept.__getitem__)
    assert first is x
    assert none is None
    assert more["mask"] is y
    assert more["flags"] == [True, 3]
    assert more["cache"] is None  # a second call would find what the first one wrote
    assert len(parts.kept) == 2


def test_tensors_are_found() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    assert first_tensor({"a": None, "b": (x, y)}) is x
    assert [id(t) for t in tensors(((x,), y))] == [id(x), id(y)]
    assert first_tensor((None, 3)) is None
    assert is_cache(Cache())
    assert not is_cache({})


def test_digests_tell_bits_shapes_and_dtypes_apart() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0])
    others = [-x, x.reshape(2, 2), x.to(torch.bfloat16), x.view(torch.int32), x[:3]]
    assert digest(x) == digest(x.clone())
    assert digest(x.reshape(2, 2).T) == digest(x.reshape(2, 2).T.contiguous())
    assert digest(x) not in [digest(each) for each in others]
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_ghosts_have_no_memory_and_haunt_what_is_computed(dtype: torch.dtype) -> None:
    x = ghost(Shape(torch.Size((1000, 1000)), dtype, torch.device("cpu")))
    assert (x.shape, x.dtype, x.untyped_storage().nbytes()) == ((1000, 1000), dtype, x.itemsize)
    if dtype.is_floating_point:
        assert holds_nan((x[:2, :2] + 1).reshape(4))
    assert not holds_nan(torch.ones(2, dtype=dtype))


def test_nearness() -> None:
    x = torch.tensor([1.0, torch.nan, 4.0])
    assert equal(x, x.clone())
    assert not equal(x, x + 1)
    assert apart(torch.tensor([4.0, 1.0]), torch.tensor([4.0, 2.0])) == 0.25
    assert apart(torch.tensor([1]), torch.tensor([2])) == 1.0
    assert apart(torch.zeros(2), torch.zeros(2)) == 0.0


def test_sequenced_makes_items_when_they_are_read() -> None:
    read: list[int] = []
    items = Sequenced(4, lambda i: read.append(i) or i * 10)
    assert (len(items), items[1], items[-1], items[1:3]) == (4, 10, 30, [10, 20])
    assert list(items) == [0, 10, 20, 30]
    with pytest.raises(IndexError):
        items[4]
    assert read == [1, 3, 1, 2, 0, 1, 2, 3]
