"""Where a run writes until it is finished: a hidden directory beside the target.

.OUT.blockscale-HASH/       HASH names the plan: the recipe, the seed and the source files
    out/                    becomes OUT when all is done; a shard is NAME.partial until it is
    journal                 finished tensors
    lock                    held while a process works here
.OUT.blockscale-old-HASH    what OUT was, while a forced run puts the new one in its place
"""

import errno
import fcntl
import os
import shutil
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Self

from blockscale.files.directory.journal import Journal
from blockscale.files.metadata import FileError

_MARK = "blockscale"
_DIGITS = 8


def work_path(target: Path, digest: str) -> Path:
    """The work directory of the plan named `digest`."""
    return target.with_name(f".{target.name}.{_MARK}-{digest[:_DIGITS]}")


def old_path(target: Path, digest: str) -> Path:
    """Where the target waits while a new one takes its place."""
    return target.with_name(f".{target.name}.{_MARK}-old-{digest[:_DIGITS]}")


def leftovers(target: Path, digest: str) -> list[Path]:
    """What earlier runs for the same target left behind, this plan's work directory excepted."""
    beside = set(target.parent.glob(f".{escape(target.name)}.{_MARK}-*"))
    return sorted(beside - {work_path(target, digest)})


def allocated(path: Path) -> int:
    """Bytes of disk that the files below `path` take."""
    files = (file.stat() for file in path.rglob("*") if file.is_file())
    return sum(each.st_blocks * 512 for each in files)


class Workspace:
    """A work directory, locked while the context lasts. It stays there until `publish`."""

    def __init__(self, target: Path, digest: str):
        """target: absolute, its parent is made if it is not there."""
        self.target, self.path = target, work_path(target, digest)
        self.old = old_path(target, digest)
        self.out = self.path / "out"

    def __enter__(self) -> Self:
        self._lock = _locked(self.path)
        try:
            self.out.mkdir(exist_ok=True)
            self.journal = Journal(self.path / "journal")
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def partial(self, name: str) -> Path:
        """Where file `name` of the target is while it is being written."""
        return self.out / f"{name}.partial"

    def publish(self, force: bool) -> None:
        """Put `out` in the target's place, by renaming. Raises FileError if something is there."""
        old = self._move_aside() if force and os.path.lexists(self.target) else None
        try:
            self.out.rename(self.target)
        except OSError as error:
            if old is not None:
                old.rename(self.target)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise FileError(
                f"{self.target} appeared while the model was quantized. The result is complete: "
                f"run the same command with --force, or move {self.out} yourself"
            ) from None
        sync_folder(self.target.parent)
        if old is not None:
            _remove(old)
        _remove(self.path)

    def _move_aside(self) -> Path:
        """The target under a name that nothing has."""
        old = self.old
        while os.path.lexists(old):  # a killed run left it: its user may want it
            old = old.with_name(f"{old.name}-")
        self.target.rename(old)
        return old


def restore(target: Path, digest: str) -> bool:
    """Undo a forced run that was killed between its two renames. Returns whether there was one."""
    old = old_path(target, digest)
    if os.path.lexists(target) or not os.path.lexists(old):
        return False
    old.rename(target)
    return True


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked(path: Path) -> int:
    """Make the directory and lock it; the lock goes with the process, however it ends."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FileError(
                f"another process is writing {path}: wait for it, or write to another directory"
            ) from None
        # the process that held it may have finished and removed the directory
        if (path / "lock").exists() and (path / "lock").stat().st_ino == os.fstat(lock).st_ino:
            return lock
        os.close(lock)
