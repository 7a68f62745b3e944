# SPDX-License-Identifier: BSD-3-Clause
"""What a layer may become: the formats of its weight and of its input."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe, Scheme

# Weights of 2 to 8 bits, of which all have kernels on every backend. Of each number of bits the
# ones that lose least on normal numbers at 2.25, 3.25, 3.5, 4.25, 4.5, 5.25, 6.25 and 8.25 bits
# with their scales (docs/formats.md).
DEFAULT = (
    "int2:group64:fp16",
    "int3:group64:fp16",
    "int3:group32:fp16",
    "mxfp4",
    "nf4:group64:fp16",
    "iq4_nl:group32:fp16",
    "nvfp4",
    "int5:group64:fp16",
    "int6:group64:fp16",
    "int8:group64:fp16",
    "int8_channel",
)


@dataclass(frozen=True)
class Candidate:
    """A name, and the scheme that it stands for: weights alone, or weights and inputs."""

    name: str
    scheme: Scheme

    @property
    def rule(self) -> dict[str, str]:
        """What a recipe's rule says of it."""
        parts = {"weight": self.scheme.weight, "input": self.scheme.input}
        return {part: str(fmt) for part, fmt in parts.items() if fmt is not None}

    def recipe(self, skip: tuple[str, ...] = ()) -> Recipe:
        """Every layer as this candidate."""
        return Recipe(self.scheme.weight, input=self.scheme.input, skip=skip)


def read(given: Iterable[Any] | None) -> tuple[Candidate, ...]:
    """The candidates, each once, by default DEFAULT.

    given: names or spellings of weights' formats; "WEIGHT x INPUT" or {"weight": …, "input": …}
        where inputs are quantized, too
    Raises ValueError where one does not parse or there is none, TypeError for anything else.
    """
    if isinstance(given, str | Format | Mapping):
        raise TypeError(f"candidates must be a list of formats: write [{given!r}]")
    every = [_read(each) for each in (DEFAULT if given is None else given)]
    found = {each.scheme: each for each in reversed(every)}  # the first name of a scheme
    if not found:
        raise ValueError("candidates is empty: name at least one format")
    return tuple(each for each in every if found.pop(each.scheme, None) is not None)


def _read(given: Any) -> Candidate:
    if isinstance(given, Candidate):
        return given
    if isinstance(given, Format):
        return Candidate(str(given), Scheme(given))
    if isinstance(given, str):
        weight, between, taken = given.partition(" x ")
        scheme = Scheme(parse(weight.strip()), parse(taken.strip()) if between else None)
        return Candidate(given, scheme)
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - {"weight", "input"}):
            raise ValueError(
                f"unknown key {unknown[0]!r} of a candidate; choose from weight, input"
            )
        recipe = Recipe(given.get("weight"), input=given.get("input"))
        given = recipe.default
    if not isinstance(given, Scheme):
        raise TypeError(f"expected a candidate's format, found a {type(given).__name__}")
    if given.weight is None:
        raise ValueError("a candidate needs a weight's format")
    both = [str(fmt) for fmt in (given.weight, given.input) if fmt is not None]
    return Candidate(" x ".join(both), Scheme(given.weight, given.input))
