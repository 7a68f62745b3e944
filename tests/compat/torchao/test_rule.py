# SPDX-License-Identifier: BSD-3-Clause
"""Which combinations of a mapping, a domain and preserve_zero have a meaning."""

import itertools

import pytest

from blockscale.compat.torchao.dtypes import MappingType, ZeroPointDomain
from blockscale.compat.torchao.rule import Rule, read_rule

SYMMETRIC, NO_CLIPPING, ASYMMETRIC = MappingType
INT, FLOAT, NONE = ZeroPointDomain

# Those that torchao's separate functions compute, and no others.
MEANT = {
    (SYMMETRIC, INT, True), (NO_CLIPPING, INT, True), (ASYMMETRIC, INT, True),
    (ASYMMETRIC, INT, False), (ASYMMETRIC, FLOAT, False),
    (SYMMETRIC, NONE, True), (NO_CLIPPING, NONE, True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mapping", "domain", "preserve_zero"),
    list(itertools.product(MappingType, ZeroPointDomain, (True, False))),
)
def test_every_combination(
    mapping: MappingType, domain: ZeroPointDomain, preserve_zero: bool
) -> None:
    if (mapping, domain, preserve_zero) in MEANT:
        assert read_rule(mapping, domain, preserve_zero) == Rule(mapping, domain, preserve_zero)
    else:
        with pytest.raises(ValueError, match=r"pass preserve_zero=False|needs|use a symmetric"):
            read_rule(mapping, domain, preserve_zero)


def test_what_is_no_member() -> None:
    with pytest.raises(TypeError, match=r"expected a MappingType .*found 'SYMMETRIC'"):
        read_rule("SYMMETRIC", INT, True)
    with pytest.raises(TypeError, match=r"expected a ZeroPointDomain .*found"):
        read_rule(SYMMETRIC, SYMMETRIC, True)
