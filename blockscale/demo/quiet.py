# SPDX-License-Identifier: BSD-3-Clause
"""What other programs' runtimes write to the terminal, kept until it is needed."""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings, and what Python and native code write to standard error, from the terminal;
    where an error ends the block it is written after all."""
    with tempfile.TemporaryFile("w+") as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            with redirect_stderr(kept):
                yield
        except BaseException:
            os.dup2(terminal, 2)
            kept.seek(0)
            sys.stderr.write(kept.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
