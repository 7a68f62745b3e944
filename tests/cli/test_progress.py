# SPDX-License-Identifier: BSD-3-Clause
"""Progress on stderr: lines now and then where there is no terminal."""

import io

import pytest
from rich.console import Console

import blockscale as bs
from blockscale.cli import progress
from blockscale.cli.progress import Bar, check_outputs, write_recipe


def lines(capsys, **options):
    """What is said of a run of 300 bytes of which 100 were done earlier."""
    with Bar(**options) as bar:
        bar.start(300, 100)
        bar.advance("a", 50)
        bar.advance("b", 150)
        bar.say("careful")
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_lines_now_and_then(capsys, monkeypatch):
    now = iter([0.0, 0.0, 1.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert lines(capsys) == [
        "going on: 100 B of 300 B were finished by an earlier run",
        "100% of 300 B, 20 B/s",
        "careful",
    ]


def test_quiet(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    assert len(lines(capsys)) == 4
    assert lines(capsys, quiet=True) == [
        "going on: 100 B of 300 B were finished by an earlier run",
        "careful",
    ]


def test_speed_is_of_this_run(monkeypatch):
    now = iter([0.0, 5.0, 7.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    bar = Bar(quiet=True)
    bar.start(1000, 600)
    bar.advance("a", 100)
    assert bar.speed == 50.0


def test_names_on_a_terminal(monkeypatch):
    """Markup in a name was a traceback, and escapes went to the terminal as they were."""
    held = io.StringIO()
    console = Console(file=held, force_terminal=True, width=200)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with Bar() as bar:
        bar.start(100)
        bar.advance("a[/red]\x1b]0;title\x07\u202e\n", 50)
        bar._bar.refresh()
        bar.say("two\nlines\x1b[2J")
    text = held.getvalue()
    assert r"a[/red]\x1b]0;title\x07\u202e\n" in text and r"lines\x1b[2J" in text
    assert "\x1b]0" not in text and "\x1b[2J" not in text and "\u202e" not in text


# Files beside what is printed.


def test_a_recipe_is_read_back(tmp_path):
    recipe = bs.Recipe("mxfp4", rules={"a": "int8"})
    write_recipe(tmp_path / "recipe.json", recipe)
    assert bs.Recipe.read(tmp_path / "recipe.json") == recipe
    write_recipe(None, recipe)
    assert [each.name for each in tmp_path.iterdir()] == ["recipe.json"]


def test_places(tmp_path):
    check_outputs(None, None)
    check_outputs(tmp_path / "a.json", tmp_path / "b.json")
    with pytest.raises(ValueError, match="is a directory"):
        check_outputs(tmp_path, None)
    with pytest.raises(ValueError, match="create it first"):
        check_outputs(None, tmp_path / "no" / "a.json")
