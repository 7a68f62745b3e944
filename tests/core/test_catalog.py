# SPDX-License-Identifier: BSD-3-Clause
"""The named formats: names that a user can type, and spellings that read back."""

import re

import pytest

from blockscale.core.catalog import CATALOG
from blockscale.core.parse import formats, parse


def test_names_are_no_spellings() -> None:
    """A name has no colon, so that no name and no spelling are the same text."""
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in CATALOG)


def test_every_name_is_a_format_of_its_own() -> None:
    assert len(set(CATALOG.values())) == len(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_a_named_format_is_quantized_with(name: str) -> None:
    """It fits a matrix, and what is stored of an element has fewer bits than float32."""
    fmt = parse(name)
    assert fmt == formats()[name]
    assert fmt.bits_per_element((256, 256)) < 32
