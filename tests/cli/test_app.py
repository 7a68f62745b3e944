# SPDX-License-Identifier: BSD-3-Clause
"""The command line as a whole: every command is found, and has help and JSON."""

import pkgutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import blockscale
from blockscale.cli import commands
from blockscale.cli.app import app, tidy
from tests.support import fresh
from tests.support.file_models import tiny_tensors, write_model


def run(*args):
    return CliRunner().invoke(app, list(args))


def test_a_command_is_a_file_of_its_name():
    files = {m.name.replace("_", "-") for m in pkgutil.iter_modules(commands.__path__)}
    assert {command.name for command in app.registered_commands} == files


def test_help_and_version():
    result = run("--help")
    assert result.exit_code == 0
    for command in ("quantize", "inspect", "compare", "formats"):
        assert f"\n  {command} " in result.stdout
        assert run(command, "-h").exit_code == 0
    assert run("--version").stdout == f"blockscale {blockscale.__version__}\n"
    for module in ("app", "tables", "progress", "errors"):
        assert f"\n  {module} " not in result.stdout


@pytest.mark.parametrize("command", [None, *sorted(c.name for c in app.registered_commands)])
def test_help_fits_80_columns(command):
    """Every command and every option has one line: nothing is wrapped, nothing cut by dots."""
    words = [command, "--help"] if command else ["--help"]
    lines = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    start = next(i for i, line in enumerate(lines) if line in ("Arguments:", "Options:"))
    rows = [line for line in lines[start:] if line and not line.endswith(":")]
    assert len(rows) >= 2
    for row in rows:
        assert row.startswith("  ") and row[2] != " ", f"wrapped: {row}"
        assert not row.endswith("..."), f"cut: {row}"


@pytest.mark.slow
def test_every_command_has_json():
    for command in app.registered_commands:
        assert "--json" in run(command.name, "--help").stdout, command.name


@pytest.mark.slow
def test_a_module_that_runs():
    """As `torchrun -m blockscale.cli` starts it."""
    code = "import runpy; runpy.run_module('blockscale.cli', run_name='__main__', alter_sys=True)"
    found = fresh.run(code, "--version", ready=fresh.WITH_OURS, check=True)
    assert found.stdout == f"blockscale {blockscale.__version__}\n"


ROOT = Path(__file__).parents[2]


def ending(error, capsys):
    """The exit code of a command that raises `error`, and what it says."""

    @tidy
    def command():
        raise error

    with pytest.raises(typer.Exit) as ended:
        command()
    captured = capsys.readouterr()
    assert captured.out == ""
    return ended.value.exit_code, captured.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("no format"), 1, "blockscale: no format\n"),
        (FileNotFoundError(2, "No such file", "a/b"), 1, "blockscale: a/b: No such file\n"),
        (OSError("the disk is full"), 1, "blockscale: the disk is full\n"),
        (KeyboardInterrupt(), 130, "blockscale: interrupted\n"),
        (ValueError("a:\n  \x1b[2J\u202e"), 1, "blockscale: a:\n  \\x1b[2J\\u202e\n"),
    ],
)
def test_messages(error, code, text, capsys):
    assert ending(error, capsys) == (code, text)


def test_a_command_keeps_its_signature():
    """Options and help are read from it."""

    @tidy
    def command(one: int, two: str = "") -> None:
        """About."""

    assert command.__doc__ == "About."
    assert command.__wrapped__.__annotations__ == {"one": int, "two": str, "return": None}


@pytest.mark.slow
def test_a_reader_that_stops_reading():
    code = """
import os, runpy
reader, writer = os.pipe()
if not os.fork():  # head -n 1
    os.close(writer)
    os.write(1, os.fdopen(reader).readline().encode())
    os._exit(0)
os.close(reader)
os.dup2(writer, 1)
runpy.run_module("blockscale", run_name="__main__", alter_sys=True)
"""
    done = fresh.run(code, "formats", "--json", cwd=ROOT, ready=fresh.WITH_OURS)
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_bugs_stay_tracebacks(tmp_path, monkeypatch):
    from blockscale.cli.commands import quantize

    def fail(*args, **kwargs):
        raise KeyError("bug")

    model = write_model(tmp_path / "model", tiny_tensors(), 2)
    args = ["quantize", str(model), str(tmp_path / "out"), "-r", "int8"]
    monkeypatch.setattr(quantize, "quantize_directory", fail)
    assert isinstance(CliRunner().invoke(app, args).exception, KeyError)


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_a_lack_of_memory_is_one_message(kind, capsys):
    """Of our kernels, and of torch, whose error is a RuntimeError."""
    text = (
        "blockscale: no memory for 4 MB" if kind is MemoryError else "x: can't allocate memory: 4"
    )

    def command() -> None:
        raise kind(text)

    with pytest.raises(typer.Exit) as caught:
        tidy(command)()
    assert caught.value.exit_code == 1
    said = capsys.readouterr().err
    assert said == f"blockscale: not enough memory: {text.removeprefix('blockscale: ')}\n"


def test_other_runtime_errors_stay_tracebacks():
    def command() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        tidy(command)()
