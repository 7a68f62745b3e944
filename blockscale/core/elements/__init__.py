# SPDX-License-Identifier: BSD-3-Clause
"""The families of elements: one a file of this folder, found by itself. A file defines

read(name)  the element of that name, or None if the family has no such element
SPELLINGS   the names it reads, as error messages and docs/formats.md tell them
EXAMPLES    names of its elements, on which the tests of all elements run: every kind that it
            has, and the smallest and the largest
"""

from functools import lru_cache

from blockscale.core import import_all
from blockscale.core.element import Element
from blockscale.core.untrusted import quote

FAMILIES = import_all(__name__, __path__)


@lru_cache(maxsize=4096)
def read_element(name: str) -> Element:
    """The element spelled `name`. Raises ValueError with the list of what there is."""
    for family in FAMILIES:
        element: Element | None = family.read(name)
        if element is not None:
            return element
    choices = "; ".join(family.SPELLINGS for family in FAMILIES)
    raise ValueError(f"unknown element {quote(name)}; choose from {choices}")
