# SPDX-License-Identifier: BSD-3-Clause
"""Every source file says its licence in its first line (tests/support/headers.py writes it)."""

from pathlib import Path

import pytest

from tests.support import headers


def test_every_source_file_has_its_licence() -> None:
    files = headers.sources()
    assert len(files) > 1000
    missing = [str(f.relative_to(headers.ROOT)) for f in files if not headers.has_one(f)]
    assert not missing, f"`make fix` writes the line of the licence: {missing}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""What it is."""\n'),
        ("a.py", "#!/usr/bin/env python3\nprint()\n"),
        ("a.h", "// What it is.\n"),
        ("a.css", "a { color: red }\n"),
    ],
)
def test_a_header_is_written_once_and_keeps_the_rest(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert not headers.has_one(path)
    headers.write(path)
    assert headers.has_one(path)
    lines = path.read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if headers.LICENCE not in line) == text
    assert lines[0].startswith("#!") == text.startswith("#!")


def test_a_licence_further_down_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"x = 1\n# {headers.LICENCE}\n")
    assert not headers.has_one(path)
