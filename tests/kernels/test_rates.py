# SPDX-License-Identifier: BSD-3-Clause
"""Rates: what is measured, never how much."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from blockscale.kernels import rates
from blockscale.kernels import rates as module
from blockscale.kernels.registry import unavailable


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "COPIED", 1 << 10)
    monkeypatch.setattr(module, "SIZE", 64)
    monkeypatch.setattr(module, "_ROUNDS", 3)


def test_units(small, monkeypatch):
    """A second for everything: rates are then the bytes and the operations."""
    monkeypatch.setattr(module, "_seconds", lambda run, device: run() is None or 1.0)
    found = module.rates("cpu")
    assert found.device == "cpu"
    assert found.copy == 2 << 10
    assert found.float32 == found.bfloat16 == 2 * 64**3
    assert found.int8 == (None if unavailable("cpu") else 2 * 64**3)


def test_what_is_timed_is_the_product(small):
    if unavailable("cpu") is not None:
        pytest.skip(str(unavailable("cpu")))
    torch.manual_seed(0)
    x, weight = torch.randn(64, 64), torch.randn(64, 64)
    product = module._int8(x, weight, "cpu")()
    assert torch.nn.functional.cosine_similarity(product, x @ weight.T).min() > 0.999
    assert module._int8(x, weight, "no such backend") is None


def test_medians(small, monkeypatch):
    clock = iter([0.0, 1.0, 0.0, 5.0, 0.0, 2.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    calls = []
    assert module._seconds(lambda: calls.append(1), "cpu") == 2.0
    assert len(calls) == 4


def test_other_devices():
    with pytest.raises(
        ValueError, match="cannot measure rates of device 'webgpu'; choose from cpu, cuda"
    ):
        module.rates("webgpu")


# Tables of measured choices: writers at once, what is broken, files that are none.


def _write(path: str, number: int) -> None:
    key, entry = ("cpu|a|b", {"a": number}) if number % 2 else ("k|f|d|3", ["tile", number])
    shape = str(number) if number % 2 else f"{number},1,1"
    rates.record({key: {shape: entry}}, Path(path))


@pytest.mark.slow
def test_processes_write_at_once_and_both_kinds_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "some" / "tune.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(path), i)) for i in range(1, 9)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    table = json.loads(path.read_text())
    assert {at: len(entries) for at, entries in table.items()} == {"cpu|a|b": 4, "k|f|d|3": 4}
    assert rates.read(path) == table
    assert sorted(each.name for each in path.parent.iterdir()) == ["tune.json", "tune.lock"]


GARBAGE = (
    "{", "[]", "", "[" * 10_000, "NaN", '{"a": 5}', '{"a": {"1,2": ["tile"]}}',
    '{"a": {"1,2,3": {"b": 1}}}', '{"a": {"1,2,3": ["tile", true]}}', '{"a": {}, "a": {}}',
    '{"cpu|a": {"1,2,3": ["tile"]}}', '{"cpu|a": {"1": ["tile"]}}', '{"cpu|a": {"0": {}}}',
    '{"cpu|a": {"1": {"b": 1.5}}}', '{"cpu|a": {"1": {"b": true}}}', '{"cpu|a": {"1": {"b": -1}}}',
    '{"cpu|a": {"1": {"b": 9223372036854775808}}}',
)  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_a_broken_table_is_neither_read_nor_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tune.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tune\.json is not a table of launch choices.*delete it"):
        rates.read(path)
    with pytest.raises(ValueError, match=r"tune\.json is not a table"):
        rates.record({"cpu|a": {"1": {}}}, path)
    assert path.read_text() == text


def test_pipes_devices_and_links_at_the_lock_are_refused(tmp_path: Path) -> None:
    path, victim = tmp_path / "tune.json", tmp_path / "victim"
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a regular file"):
        rates.read(path)
    path.unlink()
    victim.write_text("mine")
    path.with_suffix(".lock").symlink_to(victim)
    with pytest.raises(ValueError, match=r"tune\.lock cannot be locked"):
        rates.record({"cpu|a": {"1": {}}}, path)
    assert victim.read_text() == "mine" and not path.exists()


def test_the_variable_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", "/a/b.json")
    assert rates.cache_file() == Path("/a/b.json") and rates.override() == "/a/b.json"
    monkeypatch.delenv("BLOCKSCALE_TUNE_CACHE")
    assert rates.cache_file() == Path.home() / ".cache" / "blockscale" / "tune.json"
