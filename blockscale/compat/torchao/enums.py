# SPDX-License-Identifier: BSD-3-Clause
"""torchao's two enums. Its own members are accepted wherever ours are, by their name."""

from enum import Enum, auto
from typing import TypeVar

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
