# SPDX-License-Identifier: BSD-3-Clause
"""torchao's dtypes and members, and how qparams are chosen by them, checked."""

from enum import Enum, auto
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

# Which codes each target dtype has, how they are stored, and the checks on dtypes.

# torchao's two enums. Its own members are accepted wherever ours are, by their name.

E = TypeVar("E", bound=Enum)


class MappingType(Enum):
    """How the range of a block becomes a scale.

    SYMMETRIC:                 amax / ((quant_max - quant_min) / 2), so amax / 127.5 for int8
    SYMMETRIC_NO_CLIPPING_ERR: the larger of min / quant_min and max / quant_max: nothing saturates
    ASYMMETRIC:                (max - min) / (quant_max - quant_min), with a zero point
    """

    SYMMETRIC = auto()
    SYMMETRIC_NO_CLIPPING_ERR = auto()
    ASYMMETRIC = auto()


class ZeroPointDomain(Enum):
    """What a zero point is.

    INT:   an integer, added to the rounded code
    FLOAT: the value of the middle code, (quant_max + quant_min + 1) / 2 (tinygemm's int4 kernels)
    NONE:  there is none
    """

    INT = auto()
    FLOAT = auto()
    NONE = auto()


def read_member(kind: type[E], value: object) -> E:
    """The member of `kind` that has `value`'s name. Raises TypeError with the names there are."""
    name = getattr(value, "name", None)
    for member in kind:
        if member.name == name:
            return member
    names = ", ".join(member.name for member in kind)
    raise TypeError(f"expected a {kind.__name__} ({names}), found {value!r}")


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
NATIVE = (torch.uint8, torch.int8, torch.int16, torch.int32)

# torch can name 1 to 7 bits but not compute with them: their codes are stored in a byte each.
# torchao does so for the unsigned ones and crashes for the signed ones.
_UNSIGNED = {getattr(torch, f"uint{bits}"): bits for bits in range(1, 8)}
_SIGNED = {getattr(torch, f"int{bits}"): bits for bits in range(1, 8)}
SUB_BYTE: dict[torch.dtype, torch.dtype] = {
    **dict.fromkeys(_UNSIGNED, torch.uint8),
    **dict.fromkeys(_SIGNED, torch.int8),
}

BOUNDS: dict[torch.dtype, tuple[float, float]] = {
    **{dtype: (0, 2**bits - 1) for dtype, bits in _UNSIGNED.items()},
    **{dtype: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for dtype, bits in _SIGNED.items()},
    **{dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max) for dtype in NATIVE},
    **{dtype: (torch.finfo(dtype).min, torch.finfo(dtype).max) for dtype in FLOAT8},
}


def limits(
    dtype: torch.dtype, quant_min: float | None, quant_max: float | None
) -> tuple[float, float]:
    """The smallest and largest code: as given, or all that `dtype` has.

    Raises ValueError for a dtype without codes and for limits out of order or outside the dtype.
    """
    if dtype not in BOUNDS:
        raise ValueError(
            f"{dtype} has no codes: use uint1 ... uint8, int1 ... int8, int16, int32 or a float8"
        )
    lowest, highest = BOUNDS[dtype]
    low = lowest if quant_min is None else quant_min
    high = highest if quant_max is None else quant_max
    if not lowest <= low < high <= highest:
        raise ValueError(
            f"quant_min {low} and quant_max {high} do not fit {dtype}, which holds {lowest} "
            f"... {highest}: choose quant_min < quant_max in that range"
        )
    return low, high


def stored_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that holds codes of `dtype`."""
    return SUB_BYTE.get(dtype, dtype)


def check_float(tensor: Tensor, name: str) -> None:
    """Raises TypeError unless `tensor` is float32, float16 or bfloat16."""
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name} is {tensor.dtype}, expected float32, float16 or bfloat16: "
            f"convert it first, e.g. {name}.float()"
        )


def check_float_dtype(dtype: torch.dtype, name: str) -> None:
    """Raises ValueError unless `dtype` is float32, float16 or bfloat16."""
    if dtype not in FLOATS:
        raise ValueError(f"{name} is {dtype}, expected float32, float16 or bfloat16")


def check_codes(codes: Tensor, dtype: torch.dtype) -> None:
    """Raises TypeError unless `codes` can hold codes of `dtype`.

    As in torchao, codes of less than a byte may come in any integer dtype.
    """
    if dtype in SUB_BYTE:
        if codes.dtype.is_floating_point or codes.dtype.is_complex or codes.dtype == torch.bool:
            raise TypeError(
                f"input is {codes.dtype}, expected an integer dtype that holds codes of {dtype}"
            )
    elif codes.dtype != dtype:
        raise TypeError(
            f"input is {codes.dtype}, but input_dtype is {dtype}: pass the dtype of the codes"
        )


def check_holds(dtype: torch.dtype, low: float, high: float) -> None:
    """Raises ValueError if zero points of low ... high would wrap around in `dtype`."""
    if dtype.is_floating_point:
        return
    info = torch.iinfo(dtype)
    if low < info.min or high > info.max:
        raise ValueError(
            f"zero_point_dtype {dtype} holds {info.min} ... {info.max}, but zero points here "
            f"may be {low} ... {high}: use torch.int32"
        )


def check_reaches(dtype: torch.dtype, low: float, high: float) -> None:
    """Raises ValueError if codes of low ... high overflow the dtype they are computed in."""
    info = torch.finfo(dtype)
    if low < info.min or high > info.max:
        raise ValueError(
            f"codes of {low} ... {high} overflow {dtype}, in which this input and scale are "
            f"computed: convert the input to float32, or set quant_min and quant_max"
        )


# How qparams are chosen: torchao's mapping, zero point domain and preserve_zero, checked.


class Rule(NamedTuple):
    """A combination that has a meaning.

    preserve_zero: the range is widened to hold 0, so that 0 has an exact code
    """

    mapping: MappingType
    domain: ZeroPointDomain
    preserve_zero: bool


def read_rule(mapping_type: Enum, zero_point_domain: Enum, preserve_zero: bool) -> Rule:
    """The rule of these arguments, torchao's members or ours.

    Raises TypeError for other objects, ValueError for combinations without a meaning.
    """
    mapping = read_member(MappingType, mapping_type)
    domain = read_member(ZeroPointDomain, zero_point_domain)
    asymmetric = mapping is MappingType.ASYMMETRIC
    if domain is ZeroPointDomain.FLOAT and preserve_zero:
        raise ValueError(
            "ZeroPointDomain.FLOAT has no exact code for zero: "
            "pass preserve_zero=False if that is acceptable"
        )
    if not preserve_zero and not asymmetric:
        raise ValueError(f"preserve_zero=False needs MappingType.ASYMMETRIC, not {mapping.name}")
    if domain is ZeroPointDomain.NONE and asymmetric:
        raise ValueError(
            "MappingType.ASYMMETRIC needs a zero point and ZeroPointDomain.NONE has none: "
            "use a symmetric mapping, or ZeroPointDomain.INT"
        )
    return Rule(mapping, domain, preserve_zero)
