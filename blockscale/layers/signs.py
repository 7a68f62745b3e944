# SPDX-License-Identifier: BSD-3-Clause
"""Unsigned formats on values that have a sign: everything below 0 becomes 0, which is said."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.ops.quantize import fake_quantize


def lost_signs(what: str, low: Tensor, fmt: Format) -> list[str]:
    """A note that `what` has values below 0 which its format cannot hold; none if all is well.

    low: the smallest value of each block, or of all [...].
    """
    if fmt.element.signed or not bool((low < 0).any()) or _reaches_below_zero(fmt):
        return []
    return [
        f"its {what} has values below 0, which {fmt} cannot hold: they become 0; give it a zero "
        f"point (asym) or a signed element"
    ]


@cache
def _reaches_below_zero(fmt: Format) -> bool:
    """Whether a value below 0 can stay one: asked of the format itself, whatever its parts."""
    whole = replace(fmt.deterministic, block=read_block("tensor"))
    return bool(fake_quantize(torch.tensor([[-1.0, 1.0]]), whole)[0, 0] < 0)
