# SPDX-License-Identifier: BSD-3-Clause
"""How qparams are chosen: torchao's mapping, zero point domain and preserve_zero, checked."""

from enum import Enum
from typing import NamedTuple

from blockscale.compat.torchao.dtypes import MappingType, ZeroPointDomain, read_member


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
