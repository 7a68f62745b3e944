# SPDX-License-Identifier: BSD-3-Clause
"""What a quantized layer does to its input before it quantizes it, undone in its weight.

One kind of `Before` a file of this folder, found by its name: the class in it that has the file's
name as its `name`. Saved models say by `fmt` which one a layer has; here that is read back.
"""

from collections.abc import Mapping
from functools import cache

from torch import Tensor

from blockscale.core import import_all
from blockscale.layers.before.before import Before as Before
from blockscale.layers.before.before import BufferSpecs as BufferSpecs
from blockscale.layers.before.order import Order as Order
from blockscale.layers.before.rotate import Rotate as Rotate
from blockscale.layers.before.rotate import random_signs as random_signs
from blockscale.layers.before.scale import Scale as Scale


@cache
def kinds() -> dict[str, type[Before]]:
    """{name: class} of every kind there is."""
    return {
        kind.name: kind
        for module in import_all(__name__, __path__)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Before)
        and getattr(kind, "name", None) == module.__name__.rpartition(".")[2]
    }


def stored_buffers(fmt: str, features: int) -> BufferSpecs:
    """{buffer: dtype and shape} of the Before spelled `fmt` for `features` features.

    Raises ValueError for a spelling that there is not, or that does not fit.
    """
    name, colon, settings = fmt.partition(":")
    buffers = None
    if name in kinds():
        buffers = kinds()[name].stored_buffers(settings if colon else None, features)
    if buffers is None:
        simple_first = sorted(kinds().values(), key=lambda each: (":" in each.SPELLINGS, each.name))
        choices = ", ".join(each.SPELLINGS for each in simple_first)
        raise ValueError(f"unknown transform {fmt!r}; choose from {choices}")
    return buffers


def restore(fmt: str, features: int, buffers: Mapping[str, Tensor]) -> Before:
    """The Before spelled `fmt` with these buffers. Raises ValueError where they do not fit."""
    stored_buffers(fmt, features)  # raises for what is no spelling
    name, colon, settings = fmt.partition(":")
    return kinds()[name].restore(settings if colon else None, features, buffers)
