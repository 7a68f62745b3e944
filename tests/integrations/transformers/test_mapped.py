"""Pages of files that are mapped: let go, and there again."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from blockscale.integrations.transformers import mapped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps is Linux's")


def resident() -> int:
    """kB of files that are this process's now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssFile")).split()[1])


def test_pages_go_and_come_again(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "a b.safetensors"
    save_file({"x": torch.arange(1 << 23, dtype=torch.int32)}, path)
    link.symlink_to(path)
    with safe_open(str(link), "pt") as file:
        x = file.get_slice("x")[...]
        total, before = int(x.sum()), resident()
        mapped.let_go(x, frozenset())
        assert resident() > before - 1000
        mapped.let_go(x, mapped.real_paths([str(link)]))
        assert resident() < before - 30_000
        assert int(x.sum()) == total


def test_other_memory_stays(tmp_path: Path) -> None:
    x = torch.arange(1 << 20)
    mapped.let_go(x, mapped.real_paths([str(tmp_path / "x")]))
    mapped.let_go(torch.empty(0), frozenset())
    mapped.let_go(torch.empty(3, device="meta"), frozenset())
    assert torch.equal(x, torch.arange(1 << 20))


def test_memory_is_given_back_now_and_then() -> None:
    assert mapped.give_back(100) == 100
    assert mapped.give_back(1 << 26) == 0
