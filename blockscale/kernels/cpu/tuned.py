# SPDX-License-Identifier: BSD-3-Clause
"""Measured choices for the CPU's kernels: those shipped, and what this machine added.

What can be chosen, within what bounds and what holds unmeasured, says `src/tuning.h`. A
machine is known by its processor's vendor and family, the instruction set in use and the threads:
kernels/rates.py has the tables' form.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from blockscale.kernels import rates
from blockscale.kernels.processor import family

SHIPPED = Path(__file__).parent / "tuned.json"


def key(isa: str) -> str:
    """What choices hold for besides the threads."""
    return f"{rates.CPU}{family()}|{isa}"


def lookup(isa: str, threads: int) -> dict[str, int]:
    """The choices for the nearest number of threads; {} on a machine that nobody has measured.

    Raises ValueError for a file that is no table.
    """
    at = key(isa)
    entries: dict[str, Any] = {**rates.read(SHIPPED).get(at, {}), **_own().get(at, {})}
    nearest = min(entries, key=lambda each: abs(math.log(int(each) / threads)), default=None)
    return {} if nearest is None else dict(entries[nearest])


def apply(native: Any) -> None:
    """Set what was measured, for the threads of this moment.

    native: the library. Raises ValueError for a table that has what the library does not.
    """
    choices = lookup(native.isa(), torch.get_num_threads())
    try:
        native.set_tuning(choices)
    except ValueError as error:
        raise ValueError(
            f"{rates.cache_file()} is not a table of launch choices ({error}): delete it"
        ) from None


def record(native: Any, choices: Mapping[str, int], path: Path | None = None) -> None:
    """Keep choices for this machine at its number of threads, and use them from now on.

    path: the table, by default this machine's
    """
    threads = str(torch.get_num_threads())
    rates.record({key(native.isa()): {threads: dict(choices)}}, path)
    native.set_tuning(dict(choices))


def _own() -> rates.Table:
    """This machine's table; none for a user without a home or with one that he may not read."""
    try:
        return rates.read(rates.cache_file())
    except (PermissionError, RuntimeError):
        if rates.override():
            raise
        return {}
