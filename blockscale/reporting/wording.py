# SPDX-License-Identifier: BSD-3-Clause
"""How sizes, shapes and families of names are written, everywhere the same."""

import re
from collections.abc import Sequence


def size(nbytes: float) -> str:
    """Bytes in the unit that suits: `90.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def shape(sizes: Sequence[int]) -> str:
    """A shape: `384 x 1536`, `scalar`."""
    return " x ".join(str(each) for each in sizes) or "scalar"


def family(name: str) -> str:
    """A name without its numbers, so that the layers of a stack share one: `layer.*.weight`."""
    return re.sub(r"\d+", "*", name)
