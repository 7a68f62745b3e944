# SPDX-License-Identifier: BSD-3-Clause
"""The rooms of the C++: who may include whom, and how large files and folders are."""

import re
from pathlib import Path

import pytest

import blockscale.kernels.cpu as cpu

SRC = Path(cpu.__file__).parent / "src"
# each may include itself and those before it
ROOMS = ("simd", "primitives", "integer", "linear", "fused")
FILES = sorted(path for path in SRC.rglob("*") if path.suffix in (".cpp", ".h"))


def included(path: Path) -> list[Path]:
    """The files of src/ that one includes, but for what the build generates."""
    names = re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)
    return [(path.parent / name).resolve() for name in names if name != "build.h"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_one_file(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500  # tests/test_size.py: KERNEL_FILE
    inside = path.is_relative_to(SRC / "isa")
    for other in included(path):
        assert other.exists(), other
        if not other.is_relative_to(SRC / "isa"):
            continue
        assert inside, f"{other} is compiled for one instruction set; only isa/ may include it"
        room, whose = (f.relative_to(SRC / "isa").parts[0] for f in (path, other))
        assert ROOMS.index(whose) <= ROOMS.index(room), f"{room} includes {whose}"


def test_every_folder_has_its_line() -> None:
    assert sorted(path.name for path in (SRC / "isa").iterdir()) == sorted(ROOMS)
    for folder in (SRC, *(SRC / "isa" / room for room in ROOMS)):
        assert any(path.is_file() for path in folder.iterdir()), folder


def test_no_cycle() -> None:
    """No file includes itself by way of others."""

    done: set[Path] = set()

    def reached(path: Path, above: tuple[Path, ...]) -> None:
        assert path not in above, " -> ".join(each.name for each in (*above, path))
        if path not in done:  # all that it includes is without one
            for other in included(path):
                reached(other, (*above, path))
            done.add(path)

    for path in FILES:
        reached(path, ())


def test_what_is_compiled_for_each_set_has_no_code_of_the_standard_library() -> None:
    """The linker keeps one copy of an inline function, perhaps another instruction set's."""
    for path in FILES:
        if path.is_relative_to(SRC / "isa"):
            headers = re.findall(r"^#include <([^>]+)>", path.read_text(), re.M)
            assert set(headers) <= {"cstdint", "cstring", "cstdlib", "immintrin.h", "arm_neon.h"}, (
                path
            )


def test_copies_of_a_known_size_are_loads_and_stores() -> None:
    """By `copy<N>` of bits.h: with -D_FORTIFY_SOURCE=3 each memcpy may be a call."""
    for path in FILES:
        if path.is_relative_to(SRC / "isa"):
            found = re.findall(
                r"\bmemcpy\([^;]*, (?:\d+|sizeof[^,;]*|k[A-Z]\w*)\);", path.read_text()
            )
            assert not found, f"{path.name}: {found}"


def test_every_enumeration_is_switched_over_in_full() -> None:
    """Without `default`, -Werror=switch refuses a case that nobody has said the meaning of."""
    assert "-Werror=switch" in cpu._native.build()["flags"]
    for path in FILES:
        code = re.sub(r"//.*", "", path.read_text())
        assert not re.search(r"\bdefault\s*:", code), path
