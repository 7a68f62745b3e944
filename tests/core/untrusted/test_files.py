# SPDX-License-Identifier: BSD-3-Clause
"""Only regular files are read, and only so much of them: a pipe in their place keeps nobody
waiting, and a device fills no memory."""

import os
import socket

import pytest

from blockscale.core.untrusted.files import FileError, open_regular, read_regular


def test_a_file_and_a_link_to_it(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b", 5) == b"12345"
    with pytest.raises(FileError, match="has 5 bytes, of at most 4"):
        read_regular(tmp_path / "a", 4)


def test_pipes_devices_folders_and_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it waits for a writer that never comes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", "/dev/zero", "/dev/tty", tmp_path):
            if os.path.lexists(path):
                with pytest.raises(
                    (FileError, OSError), match=r"not a regular file|No such device"
                ):
                    read_regular(path, 10)
        with pytest.raises(OSError, match="No such device"):
            read_regular(tmp_path / "socket", 10)
    for path in (tmp_path / "no", tmp_path / "pipe" / "no", "a\0b"):
        with pytest.raises(FileError, match=r"does not exist|is no name of a file"):
            open_regular(path)


def test_a_file_that_says_it_is_empty():
    """/proc tells sizes of 0: what was read counts."""
    with pytest.raises(FileError, match="of at most 10"):
        read_regular("/proc/self/status", 10)


def test_messages_are_printable():
    text = str(FileError("\x1b[2J" + "a" * 10**6))
    assert text.isprintable() and len(text) < 5000
    assert isinstance(FileError("a"), ValueError) and str(FileError("a: é")) == "a: é"
