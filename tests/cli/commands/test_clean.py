# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale clean`: what is left is listed, and deleted when told."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from blockscale.cli.app import app
from blockscale.cli.commands import clean
from blockscale.files.directory.beside import gone_path, old_path, work_path


def run(*args: object, **options: object) -> Result:
    return CliRunner().invoke(app, ["clean", *map(str, args)], **options)  # type: ignore[arg-type]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A run that is not finished, and what may be the only copy of the output."""
    out = tmp_path / "out"
    for path in (work_path(out, "0" * 8), old_path(out, "1" * 8)):
        path.mkdir(mode=0o700)
        (path / "file").write_text("x")
    return out


def test_nothing_is_deleted_unasked(left: Path) -> None:
    found = run(left)
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == str(work_path(left, "0" * 8)) and lines[2] == str(old_path(left, "1" * 8))
    assert lines[1].startswith("    an unfinished run, ") and "can be deleted" in lines[1]
    assert "stays: it may be the only copy" in lines[3]
    assert lines[4].startswith("1 of these, ") and lines[4].endswith("can be deleted: say --yes")
    assert len(list(left.parent.iterdir())) == 2


def test_yes(left: Path) -> None:
    found = run(left, "--yes")
    assert found.stdout.splitlines()[-1] == f"deleted {work_path(left, '0' * 8)}"
    assert [each.name for each in left.parent.iterdir()] == [old_path(left, "1" * 8).name]
    assert "can be deleted" not in run(left, "--yes").stdout
    (left.parent / old_path(left, "1" * 8) / "file").unlink()
    old_path(left, "1" * 8).rmdir()
    assert run(left).stdout == f"nothing is left beside {left}, nor in it\n"


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 2)])
def test_asking(answer: str, count: int, left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "_is_asked", lambda: True)
    assert "Delete 1 of these" in run(left, input=answer).stdout
    assert len(list(left.parent.iterdir())) == count


def test_json(left: Path) -> None:
    data = json.loads(run(left, "--json").stdout)["leftovers"]
    assert [each["deleted"] for each in data] == [False, False] and not data[0]["keep"]
    data = json.loads(run(left, "--json", "--yes").stdout)["leftovers"]
    assert [each["deleted"] for each in data] == [True, False]
    assert data[0]["nbytes"] > 0 and data[0]["what"] == "an unfinished run"


def test_names_are_printable(tmp_path: Path) -> None:
    out = tmp_path / "[red]\x1b[2J"
    gone_path(out, "0" * 8).mkdir()
    found = run(tmp_path, "--yes")
    assert "\x1b" not in found.stdout and "[red]\\x1b[2J" in found.stdout


def test_no_folder(tmp_path: Path) -> None:
    found = run(tmp_path / "a" / "b")
    assert found.exit_code == 1 and "is not a directory: name an output" in found.stderr
