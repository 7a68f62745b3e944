# SPDX-License-Identifier: BSD-3-Clause
"""One QConfig of torch.ao as the formats of a layer."""

import warnings
from typing import Any

from blockscale.compat.torch_ao.formats import to_format
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme


def to_scheme(qconfig: Any, place: str = "qconfig", outputs: bool = False) -> Scheme:
    """A QConfig, theirs or ours, or None for float -> the formats of a layer.

    Its parts may also be Formats, names or spellings: QConfig(activation="mxfp8", weight="bfp8").
    place: what error messages call it; outputs: as in `to_recipe`.

    Raises ValueError for what no Format says.
    """
    if qconfig is None:
        return Scheme()
    weight, _ = _read(qconfig.weight, f"{place}: weight", "channel0")
    fmt, dynamic = _read(qconfig.activation, f"{place}: activation", "channel-1")
    if fmt is None:
        return Scheme(weight)
    if weight is None:
        raise ValueError(f"{place}: activations are quantized only along with a weight")
    return Scheme(weight, fmt, fmt if outputs and not dynamic else None)


def _read(constructor: Any, place: str, by_channel: str) -> tuple[Format | None, bool]:
    """The format of one part, None for float, and whether its scale is chosen at run time.

    by_channel: the block of observers by channel that has a meaning here.
    """
    if constructor is None:
        return None, False
    try:
        if isinstance(constructor, str | Format):
            return parse(constructor), False
        made = instance(constructor)
        fmt = to_format(made)
        theirs = not hasattr(made, "format")
        if fmt is not None and theirs and fmt.block.name not in ("tensor", by_channel):
            raise ValueError(f"its channels are {fmt.block}, expected {by_channel}")
        return fmt, bool(getattr(made, "is_dynamic", False))
    except (ValueError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from error


def instance(constructor: Any) -> Any:
    """What a part of a QConfig constructs, made only to be read."""
    with warnings.catch_warnings():
        # torch.ao's advice to whoever wrote reduce_range, and not to who reads it
        warnings.filterwarnings("ignore", "Please use quant_min and quant_max", UserWarning)
        return constructor()
