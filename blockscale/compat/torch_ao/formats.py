# SPDX-License-Identifier: BSD-3-Clause
"""What an observer or fake quantizer of torch.ao does to a tensor, as a Format."""

import warnings
from typing import Any

import torch
from torch import nn

from blockscale.core.block import read_block
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.integer_scales import with_power_of_2_scale
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.core.scale import FLOAT_SCALES

_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
_INTEGERS = (
    torch.qint8, torch.quint8, torch.quint4x2, torch.int8, torch.uint8, torch.int16, torch.uint16,
)  # fmt: skip
_RANGES = {  # where the observer itself has none (placeholders)
    torch.qint8: (-128, 127), torch.int8: (-128, 127),
    torch.quint8: (0, 255), torch.uint8: (0, 255), torch.quint4x2: (0, 15),
    torch.int16: (-(2**15), 2**15 - 1), torch.uint16: (0, 2**16 - 1),
}  # fmt: skip


def to_format(observer: nn.Module) -> Format | None:
    """A torch.ao observer or fake quantizer, theirs or ours -> its Format; None: values stay float.

    The format quantizes with torch.ao's bits: under float scales by its 127.5 rule (`half`) and
    its multiplication by a reciprocal (`recip`), except that scales may be smaller than torch.ao's
    `eps`, 2^-23. With power_of_2_scale it is the same rule and the same range that is rounded to a
    power of two, by the format as by our observers. One that was made with a format as its dtype
    gives that.

    Raises ValueError for what no Format says: ranges that are not those of an integer type, float
    zero points, fixed scales, float16.
    """
    if isinstance(observer, nn.Identity):
        return None
    fake = getattr(observer, "activation_post_process", observer)
    if isinstance(own := getattr(fake, "format", None), Format):
        return own
    dtype, qscheme = getattr(fake, "dtype", None), getattr(fake, "qscheme", None)
    if dtype is torch.float32:
        return None
    if dtype not in _INTEGERS or not hasattr(fake, "quant_min"):
        raise ValueError(
            f"{_name(fake)} of dtype {dtype} has no integers that a Format could describe"
        )
    if hasattr(fake, "scale"):
        raise ValueError(f"{_name(fake)} has a fixed scale: pass it to quantize_ as input_scales")
    if qscheme not in (*_TENSOR, *_CHANNEL):
        raise ValueError(f"{_name(fake)}: {qscheme} has no integer zero point")
    element, options = _element(fake, qscheme in _SYMMETRIC)
    axis = getattr(fake, "ch_axis", 0)
    block = read_block(f"channel{axis}" if qscheme in _CHANNEL else "tensor")
    fmt = Format(element, block, FLOAT_SCALES["fp32"], recip=True, **options)
    return with_power_of_2_scale(fmt) if getattr(fake, "power_of_2_scale", False) else fmt


def _element(fake: Any, symmetric: bool) -> tuple[Integer, dict[str, Any]]:
    """The integers between the observer's limits, once its zero point is taken off."""
    low, high = fake.quant_min, fake.quant_max
    if low is None or high is None:
        low, high = _RANGES[fake.dtype]
    zero = _middle(fake, low, high) if symmetric else 0
    low, high = low - zero, high - zero
    bits = high.bit_length()
    if symmetric and high == 2**bits - 1 and low in (-high, -high - 1) and bits:
        return Integer(bits + 1), {"span": "half" if low < -high else ""}
    if not symmetric and (low, high) == (0, 2**bits - 1) and bits:
        return Integer(bits, signed=False), {"asym": True}
    if not symmetric and (low, high) == (-(2**bits), 2**bits - 1) and bits:
        return Integer(bits + 1), {"asym": True}
    kind = "symmetric" if symmetric else "affine"
    raise ValueError(
        f"{_name(fake)}: the {kind} range {low} ... {high} is not that of an integer type, such as "
        f"{'-127 ... 127, -128 ... 127' if symmetric else '0 ... 255, -128 ... 127'}"
    )


def _middle(fake: Any, low: int, high: int) -> int:
    """The zero point of torch.ao's symmetric schemes."""
    if fake.dtype in (torch.quint8, torch.uint8):
        return (low + high) // 2 if getattr(fake, "has_customized_qrange", False) else 128
    return 2**15 if fake.dtype is torch.uint16 else 0


def _name(observer: nn.Module) -> str:
    return type(observer).__name__


# One QConfig of torch.ao as the formats of a layer.


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
