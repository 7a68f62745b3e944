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

    It encodes and decodes nothing by itself: see `with_book`.
    """

    bits: int = 4
    max = 1.0
    smallest = 1.0
    learned = True
    roundings_matter = False

    @property
    def name(self) -> str:
        return f"book{self.bits}"

    def with_book(self, book: Tensor | None) -> Element:
        """The values of the table, in any order."""
        if book is None:
            raise ValueError(
                f"{self.name}: its values are learned, and the tensor that holds them (`book`) "
                "is missing"
            )
        return _with_table(self, tuple(book.tolist()))

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        return self.with_book(None).encode(y, rounding, zero_point, wide)

    def decode(self, codes: Tensor) -> Tensor:
        return self.with_book(None).decode(codes)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        return self.with_book(None).in_range(y, rounding, zero_point, wide)


@lru_cache(64)
def _with_table(element: LearnedCodebook, table: tuple[float, ...]) -> Codebook:
    if len(table) != 2**element.bits or not all(map(math.isfinite, table)):
        count = 2**element.bits
        raise ValueError(f"{element.name}: expected {count} finite values, found {list(table)}")
    return Codebook(element.name, table, "zero")


def read(name: str) -> Element | None:
    """`book1` ... `book8`."""
    return LearnedCodebook(int(name[-1])) if re.fullmatch(r"book[1-8]", name) else None
