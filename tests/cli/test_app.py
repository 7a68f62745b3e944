"""The command line as a whole: every command is found, and has help and JSON."""

import pkgutil
import subprocess
import sys

from typer.testing import CliRunner

import blockscale
from blockscale.cli import commands
from blockscale.cli.app import app


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


def test_every_command_has_json():
    for command in app.registered_commands:
        assert "--json" in run(command.name, "--help").stdout, command.name


def test_a_module_that_runs():
    """As `torchrun -m blockscale.cli` starts it."""
    found = subprocess.run(
        [sys.executable, "-m", "blockscale.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"blockscale {blockscale.__version__}\n"
