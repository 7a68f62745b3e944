# SPDX-License-Identifier: BSD-3-Clause
"""Files appear whole or not at all: they are written beside their place and renamed.

Whoever writes one file does it through here: our own files (save.py), those of other people
(blockscale/export/) and the results of benchmarks. Directories have directory/workspace.py.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4


def check_place(path: str | Path, example: str) -> Path:
    """The path of a file that is to be written, before any work is done for it.

    example: a usual name for such a file, for the error.
    Raises ValueError if `path` is a directory or lies in none.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a directory: name the file to write, e.g. {path / example}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory: create it first")
    return path


def check_new(path: Path, overwrite: bool) -> None:
    """Raises FileExistsError if a file is there already, unless `overwrite` says to replace it."""
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: remove it, or pass overwrite=True")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The name under which to write what becomes `path` when the context ends without an error.

    An error inside leaves `path` as it was, and nothing beside it. Raises OSError if the place
    cannot be written. The file is locked meanwhile, so that `blockscale clean` leaves it alone.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")
    with ExitStack() as locks:
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            _lock(descriptor, locks)
            # What the umask lets others do; some writers make a new file that others cannot read.
            mode = os.fstat(descriptor).st_mode
            yield temporary
            temporary.chmod(mode)
            new = os.open(temporary, os.O_RDONLY)
            _lock(new, locks)  # the same file, or the writer's own
            os.fsync(new)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _lock(file: int, locks: ExitStack) -> None:
    """Lock an open file until the end, where the disk has locks; no other process waits for it."""
    locks.callback(os.close, file)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
