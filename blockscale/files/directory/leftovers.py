# SPDX-License-Identifier: BSD-3-Clause
"""What runs that were killed have left: found, told apart, and deleted where nothing is lost."""

import fcntl
import os
import pwd
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockscale.core.untrusted import FileError
from blockscale.files.directory.beside import beside, read_name
from blockscale.files.directory.folder import (
    disk_bytes,
    hold_lock,
    is_held,
    is_own,
    mounts_in,
)
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.swap import discard, is_done
from blockscale.files.directory.workspace import is_finished

_RECENT = 600.0  # seconds: what changed since may be written by a process that holds no lock
_WHAT = {
    "work": "an unfinished run",
    "old": "the previous output",
    "gone": "a half-deleted folder",
    "again": "a copy made by verify",
    "partial": "an unfinished file",
    "new": "an unfinished export",
}


@dataclass(frozen=True)
class Leftover:
    """path: of a file or folder; what: it is; nbytes: of disk; seconds: since its last change;
    owner: of the system's users; keep: why it is not to be deleted, empty where it can be."""

    path: Path
    what: str
    nbytes: int
    seconds: float
    owner: str
    keep: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return vars(self) | {"path": str(self.path)}


def find_leftovers(path: str | Path) -> list[Leftover]:
    """What lies beside an output, which need not be there, and, where it is a folder, inside it.

    Raises FileError if the folder that the output would lie in is not there.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100 - a link is an output, too
    if not target.parent.is_dir():
        raise FileError(
            f"{target.parent} is not a directory: name an output, or the directory of one"
        )
    paths = beside(target)
    if target.is_dir():
        paths += sorted(each for each in target.iterdir() if read_name(each))
    return [each for path in paths if (each := _look(path)) is not None]


def _look(path: Path) -> Leftover | None:
    """What a leftover is; None for one that is gone meanwhile."""
    side_file = read_name(path)
    assert side_file is not None, path
    try:
        status = path.lstat()
        time_of_change = _last_change(path)
        what = _WHAT[side_file.kind]
        if side_file.kind == "work" and is_finished(path, LEDGER):
            what = "a finished run that was not moved into place"
        owner = _owner(status.st_uid)
        seconds = max(time.time() - time_of_change, 0.0)
        keep = _why_kept(path, side_file.kind, seconds)
        return Leftover(path, what, disk_bytes(path), seconds, owner, keep)
    except FileNotFoundError:
        return None


def _why_kept(path: Path, kind: str, seconds: float) -> str:
    """Why something is not to be deleted, or nothing."""
    if not is_own(path):
        return "it belongs to another user"
    if kind != "old" and (path.is_symlink() or not (path.is_dir() or path.is_file())):
        return "it is a link or a device, which blockscale did not make"
    if is_held(path):
        return "a process is writing it, or the disk does not support locks"
    if kind == "old" and not is_done(path):
        return "it may be the only copy: look at it, and move it back or delete it yourself"
    if kind == "work" and is_finished(path, LEDGER):
        return "it is complete: run the same command again (--force), or move its folder elsewhere"
    if kind in ("partial", "new") and seconds < _RECENT:
        return f"it changed less than {_RECENT / 60:.0f} minutes ago: it may be in use"
    if mounts_in(path):
        return "something is mounted in it"
    return ""


def delete(leftover: Leftover) -> bool:
    """Delete what can be, looked at once more under its lock. Returns whether it is gone."""
    path = leftover.path
    side_file = read_name(path)
    now = _look(path)
    if side_file is None or now is None or now.keep:
        return now is None
    if side_file.kind in ("work", "again"):
        with hold_lock(path):
            if _keeps(path, side_file.kind):
                return False
            discard(path)
    elif path.is_file() and not path.is_symlink():
        return _delete_file(path)
    else:
        discard(path)
    return True


def _keeps(path: Path, kind: str) -> bool:
    """Whether a folder whose lock this process has became complete before it had it."""
    return kind == "work" and is_finished(path, LEDGER)


def _delete_file(path: Path) -> bool:
    """Delete a file that no process has locked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            path.unlink()
            return True
    except (BlockingIOError, FileNotFoundError):
        return not os.path.lexists(path)
    finally:
        os.close(descriptor)
    return False


def _last_change(path: Path) -> float:
    """Seconds since 1970 of the last change of a file, or of anything in a folder of ours."""
    latest = path.lstat().st_mtime
    if not is_own(path) or path.is_symlink():
        return latest
    for folder, _, names in os.walk(path, followlinks=False):
        for name in names:
            with suppress(FileNotFoundError):
                latest = max(latest, (Path(folder) / name).lstat().st_mtime)
    return latest


def _owner(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
