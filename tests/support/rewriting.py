# SPDX-License-Identifier: BSD-3-Clause
"""Asserts of test files rewritten once for all processes of a run, where no cache has them yet.

In a fresh clone, such as CI's, pytest's rewriting of eight hundred files is half of the processor
time that collecting them takes, and each process of xdist would do it for itself, file by file at
the same time as the others. Here each first does its share, from a place of its own; then they
collect, and find in `__pycache__` what the others wrote. Nothing else changes: what a process does
not find it rewrites as pytest always does.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key


def share(files: Sequence[Path], worker: int, workers: int) -> list[Path]:
    """The part of the files that is this process's to rewrite: each file is one process's."""
    return list(files[worker::workers])


def rewrite_all(files: Sequence[Path], config: pytest.Config) -> int:
    """Write the rewritten code of those files whose cache does not hold it; returns how many.

    A file that cannot be parsed is left to the collection, which says so.
    """
    state: Any = config.stash[assertstate_key]
    done = 0
    for file in files:
        pyc = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, pyc) is not None:
            continue
        try:
            digest, code = rewrite._rewrite_test(file, config)
        except (SyntaxError, ValueError):
            continue
        pyc.parent.mkdir(exist_ok=True)
        done += rewrite._write_pyc(state, code, digest, pyc)
    return done


def rewrite_share(config: pytest.Config) -> int:
    """This process's share of the test files below the folders that are asked for, where xdist
    runs several processes; returns how many it wrote."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    workers = int(worker.get("workercount", 1))
    if workers < 2 or sys.dont_write_bytecode:
        return 0
    places = (arg.partition("::")[0] for arg in config.args)
    folders = [config.invocation_params.dir / place for place in places]
    files = sorted({file for folder in folders for file in folder.rglob("test_*.py")})
    return rewrite_all(share(files, int(worker["workerid"].removeprefix("gw")), workers), config)
