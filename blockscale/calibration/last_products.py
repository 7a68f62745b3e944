# SPDX-License-Identifier: BSD-3-Clause
"""Layers side by side have one input, such as query, key and value: its products are made once."""

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator

from torch import Tensor

from blockscale.calibration.input_stats import Product, product_of


class LastProducts:
    """The products of the input that was seen last, as long as somebody holds it unchanged.

    Of a longer input, which comes in pieces, they are added up.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Tensor] | None = None
        self._key: Hashable = None
        self._found: Product | None = None

    def of(
        self, x: Tensor, alike: Hashable, rows: Callable[[], Iterable[Tensor]]
    ) -> Iterator[Product]:
        """The product of x [...], from its rows if it is not the last one; none without rows.

        alike: equal for layers that make the same rows of one input
        """
        if x.is_inference():  # nobody could tell whether it was changed
            yield from map(product_of, rows())
            return
        key = alike, x._version
        if self._of is None or self._of() is not x or self._key != key:
            self._found = _added(map(product_of, rows()))
            self._of, self._key = weakref.ref(x), key
        if self._found is not None:
            yield self._found


def _added(products: Iterable[Product]) -> Product | None:
    """One product of all; their float32 sums are added up in float64."""
    found: Product | None = None
    for each in products:
        if found is None:
            found = each
        else:
            total = found.sum.double() + each.sum
            found = Product(total, found.rows + each.rows, found.skipped + each.skipped)
    return found
