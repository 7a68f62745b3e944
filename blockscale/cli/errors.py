"""How a command ends badly: one message without a traceback, and an exit code."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

from blockscale.core.untrusted.names import shown_lines

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
    said = ("can't allocate memory", "std::bad_alloc", "can't start new thread")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def _leave(message: str, code: int) -> NoReturn:
    print(f"blockscale: {shown_lines(message)}", file=sys.stderr)
    raise typer.Exit(code) from None
