# SPDX-License-Identifier: BSD-3-Clause
"""Weights of one code an element with scales beside them, which several producers store alike."""

from collections.abc import Mapping
from functools import partial

import torch

from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import BYTES, FLOATS, assembled, block_of
from blockscale.export.checkpoints.layout import Kinds, Weight

_FLOAT8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def float8(kind: str, parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    """A weight of float8 `codes` under `scale`; None where the codes are no float8.

    The block is told by the shapes alone, never by a configuration.
    """
    (dtype, shape), (scale_dtype, scale) = kinds[parts["codes"]], kinds[parts["scale"]]
    element = _FLOAT8.get(dtype) if dtype is not None else None
    if element is None:
        return None
    block = block_of(shape, scale)
    token = "e8m0/given" if scale_dtype in BYTES else FLOATS.get(scale_dtype or torch.bool)
    if block is None or token is None:
        told = f"{parts['scale']} is {scale_dtype} {list(scale)}, which matches no block of codes"
        return Weight(kind, shape, parts, None, f"{told} {list(shape)}: it fits no block")
    spelling = f"{element}:{block}:{token}"
    decode = partial(assembled, spelling, shape)
    return Weight(kind, shape, parts, str(parse(spelling)), decode=decode)
