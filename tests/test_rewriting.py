# SPDX-License-Identifier: BSD-3-Clause
"""Processes of one run share the rewriting of asserts, and find what pytest itself would make."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.assertion import rewrite

from tests.support import rewriting
from tests.support.rewriting import rewrite_all, rewrite_share, share

TEXT = "def test_sum():\n    one = 1\n    assert one + 1 == {}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    made = [tmp_path / f"test_{i}.py" for i in range(5)]
    for i, file in enumerate(made):
        file.write_text(TEXT.format(i), encoding="utf-8")
    return made


def written(file: Path) -> Any:
    """What pytest finds in its cache for the file, or None."""
    return rewrite._read_pyc(file, file.parent / "__pycache__" / f"{file.stem}{rewrite.PYC_TAIL}")


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_each_file_is_of_one_process(workers: int) -> None:
    files = [Path(str(i)) for i in range(11)]
    parts = [share(files, worker, workers) for worker in range(workers)]
    assert sorted((f for part in parts for f in part), key=files.index) == files
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_is_written_is_what_pytest_makes(
    files: list[Path], pytestconfig: pytest.Config
) -> None:
    assert rewrite_all(files[:3], pytestconfig) == 3
    for file in files[:3]:
        _, code = rewrite._rewrite_test(file, pytestconfig)
        assert written(file) == code
    assert written(files[3]) is None
    assert rewrite_all(files, pytestconfig) == 2  # the others are there
    with pytest.raises(AssertionError, match=r"assert \(1 \+ 1\) == 0"):
        space: dict[str, Any] = {}
        exec(written(files[0]), space)
        space["test_sum"]()


def test_what_changed_is_written_anew(files: list[Path], pytestconfig: pytest.Config) -> None:
    rewrite_all(files, pytestconfig)
    files[1].write_text(TEXT.format(2), encoding="utf-8")
    assert rewrite_all(files, pytestconfig) == 1
    files[2].write_text("def test_(:\n", encoding="utf-8")
    assert rewrite_all(files, pytestconfig) == 0  # collecting it says what is wrong


def run_of(folder: Path, *args: str, worker: str = "gw1", workers: int = 2) -> Any:
    """A configuration as xdist gives it to a process."""
    given = {"workerid": worker, "workercount": workers}
    return SimpleNamespace(
        workerinput=given, args=list(args), invocation_params=SimpleNamespace(dir=folder)
    )


def test_a_process_writes_its_share_alone(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    calls: list[list[Path]] = []
    monkeypatch.setattr(rewriting, "rewrite_all", lambda files, config: calls.append(files))
    folder = files[0].parent
    rewrite_share(run_of(folder, "."))
    rewrite_share(run_of(folder.parent, folder.name, f"{folder.name}/test_0.py::test_sum"))
    assert calls == [files[1::2]] * 2
    rewrite_share(run_of(folder, ".", workers=1))
    rewrite_share(SimpleNamespace(args=["."]))  # type: ignore[arg-type]  # without xdist
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rewrite_share(run_of(folder, "."))
    assert len(calls) == 2
