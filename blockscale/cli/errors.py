"""How a command ends badly: one message without a traceback, and an exit code."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

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

    return run


def _leave(message: str, code: int) -> NoReturn:
    print(f"blockscale: {message}", file=sys.stderr)
    raise typer.Exit(code) from None
