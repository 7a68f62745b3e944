# SPDX-License-Identifier: BSD-3-Clause
"""What each integer op is in C: one family a file, found by itself."""

from collections.abc import Callable
from functools import cache
from typing import Any

from blockscale.core import import_all


@cache
def emitters() -> dict[str, Callable[..., Any]]:
    """{op without its prefix: what writes it}: each takes the writer, the node and its arguments
    by name, and gives the buffer of the result."""
    by_name: dict[str, Callable[..., Any]] = {}
    for module in import_all(__name__, __path__):
        by_name.update(module.OPS)
    return by_name
