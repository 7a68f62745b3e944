# SPDX-License-Identifier: BSD-3-Clause
"""The application: every command that is found in blockscale/cli/commands/, by its name."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Annotated, NoReturn, ParamSpec

import typer

import blockscale
from blockscale.cli import commands
from blockscale.core import import_all
from blockscale.core.untrusted import shown_lines

# How a command ends badly: one message without a traceback, and an exit code.


P = ParamSpec("P")
_INTERRUPTED = 130  # as shells have it: 128 + SIGINT


def tidy(command: Callable[P, None]) -> Callable[P, None]:
    """`command`, whose errors about what a user gave it become a message and exit code 1.

    Every other exception is a bug of ours, and stays a traceback.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            _leave("interrupted", _INTERRUPTED)
        except BrokenPipeError:  # `blockscale inspect … | head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename is not None else ""
            _leave(f"{place}{error.strerror or error}", 1)
        except ValueError as error:
            _leave(str(error), 1)
        except (MemoryError, RuntimeError) as error:
            if not _lacks_memory(error):
                raise
            _leave(f"not enough memory: {str(error).removeprefix('blockscale: ')}", 1)

    return run


def _lacks_memory(error: BaseException) -> bool:
    """Whether it is Python's, our kernels' or torch's (a RuntimeError) word for that."""
    texts = ("can't allocate memory", "std::bad_alloc", "can't start new thread")
    return isinstance(error, MemoryError) or any(words in str(error) for words in texts)


def _leave(message: str, code: int) -> NoReturn:
    print(f"blockscale: {shown_lines(message)}", file=sys.stderr)
    raise typer.Exit(code) from None


app = typer.Typer(
    name="blockscale",
    help="Quantize PyTorch models in block-scaled number formats.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help, which wraps paragraphs as they are
    pretty_exceptions_enable=False,  # a traceback of ours is a bug, and shows as Python shows it
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(show: bool) -> None:
    if show:
        print(f"blockscale {blockscale.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del version


for _module in import_all(commands.__name__, commands.__path__):
    _name = _module.__name__.rpartition(".")[2]
    _command = getattr(_module, _name, None)
    if isinstance(_command, FunctionType):
        app.command(_name.replace("_", "-"))(tidy(_command))
