# SPDX-License-Identifier: BSD-3-Clause
"""Files that may be anything: only regular ones are read, and only so much of them.

A pipe or a device in the place of a file would keep a reader waiting or fill the memory.
"""

import os
import stat
from pathlib import Path

from blockscale.core.untrusted.names import shown

_MESSAGE = 4000  # characters of an error, with all the names in it


class FileError(ValueError):
    """A file that cannot be used, and why; names in its message are printable."""

    def __init__(self, message: object = ""):
        super().__init__(shown(message, _MESSAGE))


def open_regular(path: str | Path) -> int:
    """A file descriptor to read a regular file from. Links to one are followed.

    Raises FileError for a pipe, a device, a folder and a file that is not there, at once, and
    OSError where the system does not let it be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        file = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(f"{path} does not exist") from None
    except ValueError as error:  # a name with a zero byte
        raise FileError(f"{path} is not a file name: {error}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileError(f"{path} is not a regular file: put a copy of the file there")
    except BaseException:
        os.close(file)
        raise
    return file


def read_regular(path: str | Path, most: int) -> bytes:
    """All of a regular file of at most `most` bytes. Raises FileError for others."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise FileError(f"{path} has {max(size, len(data)):,} bytes, at most {most:,} are read")
    return data
