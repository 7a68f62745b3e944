# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in memory and, beyond the budget, in files that go away."""

import stat
from pathlib import Path

import pytest
import torch

from blockscale.calibration.blocks.kept import Kept


def folder(kept: Kept) -> Path:
    assert kept._folder is not None
    return Path(kept._folder.name)


def test_within_the_budget_nothing_is_written() -> None:
    x = torch.randn(4)
    with Kept(16) as kept:
        kept.put("x", x)
        assert kept.get("x").data_ptr() == x.data_ptr()
        assert kept._folder is None
        assert kept.held == 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_beyond_it_lies_in_a_private_folder(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4).T.to(dtype)
    with Kept(0) as kept:
        kept.put("x", x)
        where = folder(kept)
        assert stat.S_IMODE(where.stat().st_mode) == 0o700
        assert [file.suffix for file in where.iterdir()] == [".safetensors"]
        assert torch.equal(kept.get("x"), x)
        assert kept.held == 0
        kept.drop("x")
        assert not list(where.iterdir())
    assert not where.exists()


def test_the_folder_goes_where_something_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt), Kept(0) as kept:
        kept.put("x", torch.ones(3))
        where = folder(kept)
        raise KeyboardInterrupt
    assert not where.exists()


def test_what_is_dropped_makes_room() -> None:
    with Kept(16) as kept:
        kept.put("a", torch.ones(4))
        kept.put("b", torch.ones(4))
        assert (kept.on_disk("a"), kept.on_disk("b")) == (False, True)
        kept.drop("a")
        kept.put("c", torch.ones(4))
        assert not kept.on_disk("c")
        assert "a" not in kept
        assert "b" in kept
