# SPDX-License-Identifier: BSD-3-Clause
"""Which tests run first, and until when: what .ci/run asks for of the slow ones.

`--first COMMIT` puts the tests of what changed since that commit first: those that changed
themselves or belong to a file that did, then those of the same room, then the others, then the
planted bugs of files that did not change. `--seconds N` skips what has not begun by then, and the
summary names it.
"""

import hashlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REASON = "no time was left (--seconds)"


def changed_since(commit: str) -> set[str]:
    """The files, as paths in the repository, that differ from a commit; raises if there is none."""
    command = ["git", "diff", "--name-only", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"--first {commit}: git says {done.stderr.strip()}")
    return set(done.stdout.splitlines())


def room(path: str) -> str:
    """blockscale/export/to_onnx/x.py, tests/export/test_y.py -> export; kernels are by backend."""
    parts = path.split("/")[1:-1]
    return "/".join(parts[: 2 if parts[:1] == ["kernels"] else 1])


def rank(test: str, changed: set[str], parameters: Iterable[Any] = ()) -> int:
    """0 for tests of what changed, 1 for its room, 2 for others, 3 for bugs in what did not.

    test: the path of its file in the repository; parameters: the values of its case.
    """
    for bug in parameters:
        if isinstance(bug, dict) and "file" in bug and "replace" in bug:
            return 0 if bug["file"] in changed else 3
    mirrored = test.replace("tests/", "blockscale/", 1).replace("/test_", "/")
    if test in changed or mirrored in changed:
        return 0
    code = {path for path in changed if path.startswith(("blockscale/", "tests/"))}
    return 1 if room(test) in {room(path) for path in code} - {""} else 2


def changed_first(items: list[pytest.Item], commit: str) -> None:
    """Sort tests by rank; of equal rank by file, in an order that each set of changes has of its
    own, so that what is left out for lack of time is not always the same."""
    changed = changed_since(commit)
    seed = "".join(sorted(changed))

    def key(item: pytest.Item) -> tuple[int, bytes]:
        path = Path(item.path).relative_to(ROOT).as_posix()
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        return rank(path, changed, parameters), hashlib.sha256(f"{seed}{path}".encode()).digest()

    items.sort(key=key)


class Clock:
    """A pytest plugin that skips what has not begun after so many seconds."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test before its fixtures are made."""
        if time.monotonic() > self._end:
            pytest.skip(REASON)


def left_out(skipped: Sequence[Any]) -> list[str]:
    """Lines for the summary: each file, and how many of its tests had no time."""
    reports = [each for each in skipped if REASON in str(each.longrepr)]
    files = Counter(each.nodeid.partition("::")[0] for each in reports)
    return [f"{count:5} of {name}" for name, count in sorted(files.items())]
