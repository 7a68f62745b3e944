"""The application: every command that is found in blockscale/cli/commands/, by its name."""

from types import FunctionType
from typing import Annotated

import typer

import blockscale
from blockscale.cli import commands
from blockscale.cli.errors import tidy
from blockscale.core.discover import import_all

app = typer.Typer(
    name="blockscale",
    help="Number formats for PyTorch models: blocks of small elements share a scale.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help, which wraps paragraphs as they are
    pretty_exceptions_enable=False,  # a traceback of ours is a bug, and shows as Python shows it
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"blockscale {blockscale.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    del version


for _module in import_all(commands.__name__, commands.__path__):
    _name = _module.__name__.rpartition(".")[2]
    _command = getattr(_module, _name, None)
    if isinstance(_command, FunctionType):
        app.command(_name.replace("_", "-"))(tidy(_command))
