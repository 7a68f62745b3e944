# SPDX-License-Identifier: BSD-3-Clause
"""Calls taken apart and put together, ghosts, digests."""

import stat
from pathlib import Path

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.block_calls import (
    BlockCall,
    BlockTask,
    Key,
    LazySequence,
    NestedTensors,
    Shape,
    TensorStore,
    apart,
    digest,
    equal,
    first_tensor,
    ghost,
    holds_nan,
    is_cache,
    tensors,
)
from blockscale.layers.assembly import Supplied
from blockscale.layers.plan import plan_layers
from tests.calibration.walk.networks import GROUPS, Block, Plain


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
    parts = NestedTensors.of(value, key)
    (first, none), more = parts.put_together(kept.__getitem__)
    assert first is x
    assert none is None
    assert more["mask"] is y
    assert more["flags"] == [True, 3]
    assert more["cache"] is None  # a second call would find what the first one wrote
    assert len(parts.keys) == 2


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
    items = LazySequence(4, lambda i: read.append(i) or i * 10)
    assert (len(items), items[1], items[-1], items[1:3]) == (4, 10, 30, [10, 20])
    assert list(items) == [0, 10, 20, 30]
    with pytest.raises(IndexError):
        items[4]
    assert read == [1, 3, 1, 2, 0, 1, 2, 3]


# Tensors in memory and, beyond the budget, in files that go away.


def folder(kept: TensorStore) -> Path:
    assert kept._folder is not None
    return Path(kept._folder.name)


def test_within_the_budget_nothing_is_written() -> None:
    x = torch.randn(4)
    with TensorStore(16) as kept:
        kept.add("x", x)
        assert kept.get("x").data_ptr() == x.data_ptr()
        assert kept._folder is None
        assert kept.bytes_in_memory == 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_beyond_it_lies_in_a_private_folder(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4).T.to(dtype)
    with TensorStore(0) as kept:
        kept.add("x", x)
        where = folder(kept)
        assert stat.S_IMODE(where.stat().st_mode) == 0o700
        assert [file.suffix for file in where.iterdir()] == [".safetensors"]
        assert torch.equal(kept.get("x"), x)
        assert kept.bytes_in_memory == 0
        kept.drop("x")
        assert not list(where.iterdir())
    assert not where.exists()


def test_the_folder_goes_where_something_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt), TensorStore(0) as kept:
        kept.add("x", torch.ones(3))
        where = folder(kept)
        raise KeyboardInterrupt
    assert not where.exists()


def test_what_is_dropped_makes_room() -> None:
    with TensorStore(16) as kept:
        kept.add("a", torch.ones(4))
        kept.add("b", torch.ones(4))
        assert (kept.on_disk("a"), kept.on_disk("b")) == (False, True)
        kept.drop("a")
        kept.add("c", torch.ones(4))
        assert not kept.on_disk("c")
        assert "a" not in kept
        assert "b" in kept


# What a block algorithm is given by hand, without a walk.


def test_a_task_made_by_hand() -> None:
    torch.manual_seed(0)
    block = Block(16).eval()
    plans = plan_layers(block, bs.Recipe(GROUPS))
    x = torch.randn(2, 3, 16)
    with torch.no_grad():
        target = block(x)[0]
    places = {plan.name: Supplied() for plan in plans}
    task = BlockTask("", block, plans, places, [BlockCall((x,), {})], [target])
    algorithm = Plain()
    made = algorithm.quantize_block(task)
    assert sorted(made) == sorted(plan.name for plan in plans)
    assert torch.equal(algorithm.tasks[0]["gave"][0], target)
    assert (task.grams, task.seed, task.progress) == ({}, 0, None)
