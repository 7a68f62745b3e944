# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks whose values are learned from each tensor and stored beside its codes, `book4`."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.elements.codebook import Codebook
from blockscale.core.rounding import Round

SPELLINGS = "book1 … book8 (learned)"
EXAMPLES: tuple[str, ...] = ()  # without a tensor they encode nothing: tests of their own


@dataclass(frozen=True)
class LearnedCodebook(Element):
    """`book4`: 2^4 values about -1 to 1 that are learned from each tensor, its part `book`.

    It encodes and decodes nothing by itself: see `element_of`.
    """

    bits: int = 4
    max = 1.0
    smallest = 1.0
    learned = True
    roundings_matter = False

    @property
    def name(self) -> str:
        return f"book{self.bits}"

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        return element_of(self, None).encode(y, rounding, zero_point, wide)

    def decode(self, codes: Tensor) -> Tensor:
        return element_of(self, None).decode(codes)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        return element_of(self, None).in_range(y, rounding, zero_point, wide)


def element_of(element: Element, book: Tensor | None) -> Element:
    """The element of a tensor with this part `book`: a learned one has its values, in any order.

    Raises ValueError for a learned one without a table, of another size, or with NaN or infinity.
    """
    if not isinstance(element, LearnedCodebook):
        return element
    if book is None:
        raise ValueError(
            f"{element.name}: its values are learned, and the tensor that holds them (`book`) "
            "is missing"
        )
    return _with_table(element, tuple(book.tolist()))


@lru_cache(64)
def _with_table(element: LearnedCodebook, table: tuple[float, ...]) -> Codebook:
    if len(table) != 2**element.bits or not all(map(math.isfinite, table)):
        count = 2**element.bits
        raise ValueError(f"{element.name}: expected {count} finite values, found {list(table)}")
    return Codebook(element.name, table, "zero")


def read(name: str) -> Element | None:
    """`book1` ... `book8`."""
    return LearnedCodebook(int(name[-1])) if re.fullmatch(r"book[1-8]", name) else None
