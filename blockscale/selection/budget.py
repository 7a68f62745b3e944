# SPDX-License-Identifier: BSD-3-Clause
"""Budgets by name: bits a weight, bytes, seconds, or a quality that must be kept."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_UNITS = {
    "size": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30},
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "bits": {"": 1.0, "bits": 1.0},
    "quality": {"": 1.0},
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """A bound. name: "bits" a weight at most, "size" in bytes of all parameters at most, "latency"
    in seconds of a batch at most, or "quality" at least."""

    name: str
    value: float

    def __str__(self) -> str:
        """As an option of a command takes it."""
        if self.name == "bits":
            return f"{self.value:g}"
        unit = {"size": "B", "latency": "s"}.get(self.name, "")
        return f"{self.name}={self.value:.12g}{unit}"

    @classmethod
    def read(cls, given: "Budget | float | str | Mapping[str, float]") -> "Budget":
        """4.5, "4.5", {"size": 20e6}, "size=20MB", "latency=5ms" or "quality=0.99".

        Raises ValueError and TypeError for anything else.
        """
        if isinstance(given, Budget):
            return given
        if isinstance(given, Mapping):
            if len(given) != 1:
                raise ValueError(
                    f"a budget must have exactly one bound, got {len(given)}: {dict(given)!r}"
                )
            [(name, value)] = given.items()
            return _checked(name, value)
        if isinstance(given, str):
            return _spelled(given)
        return _checked("bits", given)


def _spelled(text: str) -> Budget:
    name, equals, rest = text.partition("=")
    name, rest = (name.strip(), rest.strip()) if equals else ("bits", name.strip())
    if name not in _UNITS:
        raise ValueError(_WRONG.format(text))
    found = re.fullmatch(r"([0-9][0-9.]*(?:e-?[0-9]+)?)\s*([A-Za-z]*)", rest)
    if found is None or found[1].count(".") > 1:
        raise ValueError(_WRONG.format(text))
    unit = found[2] or {"size": "B", "latency": "s"}.get(name, "")
    if unit not in _UNITS[name]:
        units = ", ".join(filter(None, _UNITS[name]))
        raise ValueError(f"budget {text!r}: unknown unit {unit!r} of a {name}; choose from {units}")
    return _checked(name, float(found[1]) * _UNITS[name][unit])


_WRONG = (
    "{0!r} is not a budget: pass bits per weight, such as 4.5, or one of size=20MB, "
    "latency=5ms, quality=0.99"
)


def _checked(name: str, value: float) -> Budget:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name not in _UNITS or not number:
        raise ValueError(_WRONG.format({name: value}))
    if not 0 < value < float("inf"):
        raise ValueError(f"a budget must be above 0 and finite, got {name}={value!r}")
    return Budget(name, float(value))
