# SPDX-License-Identifier: BSD-3-Clause
"""Where a run writes until it is finished: a hidden directory beside the target.

.OUT.blockscale-HASH/       HASH names the plan: the recipe, the seed and the source files
    out/                    becomes OUT when all is done; a shard is NAME.partial until it is
    journal                 finished tensors
    journal.R               those of rank R, where several processes work
    lock                    held while a process works here
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from blockscale.core.untrusted import FileError
from blockscale.core.work import Closing
from blockscale.files.directory.beside import old_path, work_path
from blockscale.files.directory.folder import hold_lock, is_own
from blockscale.files.directory.journal import Journal
from blockscale.files.directory.swap import (
    JOURNAL,
    OUT,
    check_movable,
    discard,
    is_done,
    put_in_place,
)

PARTIAL = ".partial"  # behind the name of a file that is being written


class Workspace(Closing):
    """A work directory, locked while the context lasts. It stays there until `publish`."""

    def __init__(self, target: Path, digest: str):
        """target: absolute, its parent is made if it is not there."""
        self.target, self._digest = target, digest
        self.path = work_path(target, digest)
        self.out = self.path / OUT

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(hold_lock(self.path))
            check_movable(self.target, self.path)
            if self.out.is_symlink():
                raise FileError(
                    f"{self.out} is a link, expected the working files of a run: delete it"
                )
            old = old_path(self.target, self._digest)
            if is_own(old) and is_done(old):  # killed when all but deleting it was done
                discard(old)
            self.out.mkdir(exist_ok=True)
            self.journal = Journal(self.path / JOURNAL)
            self.join_journals()
            self._stack = stack.pop_all()
        return self

    def join_journals(self) -> None:
        """Take over what the ranks of this run, or of an earlier one, have finished."""
        for path in sorted(self.path.glob(f"{JOURNAL}.*")):
            if path.suffix[1:].isdigit():
                self.journal.absorb(path)

    def close(self) -> None:
        """Let go of the lock."""
        self._stack.close()

    def partial(self, name: str) -> Path:
        """Where file `name` of the target is while it is being written."""
        return self.out / f"{name}{PARTIAL}"

    def drop_all_but(self, names: set[str]) -> None:
        """Delete what an earlier run has put into `out` and this one has not: {file, relative}."""
        for path in sorted(self.out.rglob("*"), reverse=True):  # folders after what is in them
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(self.out).as_posix() not in names:
                path.unlink()

    def publish(self, force: int) -> None:
        """Put `out` in the target's place, by renaming. Raises FileError if something is there."""
        put_in_place(self.target, self._digest, bool(force))


def is_finished(work: Path, ledger: str) -> bool:
    """Whether a work directory holds a result that is complete and not in its place yet."""
    return os.path.lexists(work / OUT / ledger)
