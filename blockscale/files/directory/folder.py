# SPDX-License-Identifier: BSD-3-Clause
"""Folders beside an output: made for this user alone, locked, measured and deleted."""

import errno
import fcntl
import os
import shutil
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blockscale.core.untrusted import FileError

LOCK = "lock"
# What `flock` says on a file system without locks: NFS without lockd, Lustre without -o flock.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_MOUNTS = Path("/proc/self/mountinfo")


def is_own(path: Path) -> bool:
    """Whether something is there, links not followed, that this user has made."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def is_empty_folder(path: Path) -> bool:
    """Whether it is a folder, not a link to one, with nothing in it."""
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def disk_bytes(path: Path) -> int:
    """Bytes of disk that a file, or all that lies below a folder of this user, takes.

    Links are not followed: anybody may have put one there.
    """
    if not is_own(path):
        return 0
    size = path.lstat().st_blocks * 512 if not path.is_dir() or path.is_symlink() else 0
    if path.is_symlink():
        return size
    for folder, _, names in os.walk(path, followlinks=False):
        for name in names:
            with suppress(FileNotFoundError):  # renamed by a run that is at work
                size += (Path(folder) / name).lstat().st_blocks * 512
    return size


def mounts_in(path: Path) -> list[Path]:
    """Where other disks, or other folders, are mounted at a path and below it, as Linux tells."""
    real = Path(os.path.abspath(path))  # noqa: PTH100 - a link is none
    if real.is_symlink():
        return []
    real = Path(os.path.realpath(real.parent)) / real.name
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return [real] if os.path.ismount(real) else []
    points = (Path(os.fsdecode(_unescape(line.split(b" ")[4]))) for line in lines)
    return sorted({point for point in points if point == real or real in point.parents})


def _unescape(field: bytes) -> bytes:
    """A field of mountinfo, where blanks, tabs, line ends and backslashes are octal."""
    for code in (b"040", b"011", b"012", b"134"):
        field = field.replace(b"\\" + code, bytes([int(code, 8)]))
    return field


def remove(path: Path) -> None:
    """Delete a file of any kind, a link (not what it leads to) or a folder, if there is one.

    Raises FileError for a folder in which something is mounted, which would be deleted with it.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        if mounts := mounts_in(path):
            raise FileError(f"{mounts[0]} is a mount point: unmount it, then delete {path}")
        shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder of our own, which is made if it is not there.

    The lock goes with the process, however it ends. Where the disk has no locks, a warning says
    that nothing keeps another run away. Raises FileError where another process has the lock, and
    for a folder that is a link, another user's, or writable for others.
    """
    lock = _lock(path)
    try:
        yield
    finally:
        os.close(lock)


def is_held(path: Path) -> bool:
    """Whether a process has the lock of a folder, or of a file; so, too, where none can tell."""
    file = path / LOCK if path.is_dir() else path
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def make_own(path: Path) -> None:
    """Make a folder that only this user can change, or find it so.

    Its name can be computed by anybody: what somebody else has put there is not gone on with.
    Raises FileError for a link, another's folder and one that others can write to.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        what = "is a link or a file, expected the working folder of a run"
    elif status.st_uid != os.geteuid():
        what = f"belongs to another user ({status.st_uid})"
    elif status.st_mode & 0o022:
        what = "is writable by other users"
    else:
        return
    raise FileError(f"{path} {what}: look at what is in it, delete it, and run the command again")


def _lock(path: Path) -> int:
    while True:
        make_own(path)
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            _take(lock, path)
        except BaseException:
            os.close(lock)
            raise
        # the process that held it may have finished and removed the folder
        with suppress(FileNotFoundError):
            if (path / LOCK).stat().st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)


def _take(lock: int, path: Path) -> None:
    """Lock an open file of a folder, where the disk has locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(
            f"another process is writing {path}: wait for it, or write to another directory"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"the disk of {path} has no locks ({os.strerror(error.errno)}), so nothing keeps "
            "another run of this command away: start no second one before this one ends",
            stacklevel=2,
        )
