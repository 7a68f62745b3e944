"""One family of elements a file; each has `read(name)` and `SPELLINGS`, a line for errors."""

from functools import cache

from blockscale.core.discover import import_all
from blockscale.core.element import Element

FAMILIES = import_all(__name__, __path__)


@cache
def read_element(name: str) -> Element:
    """The element spelled `name`. Raises ValueError with the list of what there is."""
    for family in FAMILIES:
        found: Element | None = family.read(name)
        if found is not None:
            return found
    known = "; ".join(family.SPELLINGS for family in FAMILIES)
    raise ValueError(f"no element {name!r}; there are {known}")
