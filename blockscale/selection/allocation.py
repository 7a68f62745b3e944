# SPDX-License-Identifier: BSD-3-Clause
"""The choice of one candidate for each layer under budgets: an integer program, solved exactly."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Budgets by name: bits a weight, bytes, seconds, or a quality that must be kept.

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
    def read(cls, source: "Budget | float | str | Mapping[str, float]") -> "Budget":
        """4.5, "4.5", {"size": 20e6}, "size=20MB", "latency=5ms" or "quality=0.99".

        Raises ValueError and TypeError for anything else.
        """
        if isinstance(source, Budget):
            return source
        if isinstance(source, Mapping):
            if len(source) != 1:
                raise ValueError(
                    f"a budget must have exactly one bound, got {len(source)}: {dict(source)!r}"
                )
            [(name, value)] = source.items()
            return _check_budget(name, value)
        if isinstance(source, str):
            return _parse_budget(source)
        return _check_budget("bits", source)


def _parse_budget(text: str) -> Budget:
    name, equals, rest = text.partition("=")
    name, rest = (name.strip(), rest.strip()) if equals else ("bits", name.strip())
    if name not in _UNITS:
        raise ValueError(_WRONG.format(text))
    match = re.fullmatch(r"([0-9][0-9.]*(?:e-?[0-9]+)?)\s*([A-Za-z]*)", rest)
    if match is None or match[1].count(".") > 1:
        raise ValueError(_WRONG.format(text))
    unit = match[2] or {"size": "B", "latency": "s"}.get(name, "")
    if unit not in _UNITS[name]:
        units = ", ".join(filter(None, _UNITS[name]))
        raise ValueError(f"budget {text!r}: unknown unit {unit!r} of a {name}; choose from {units}")
    return _check_budget(name, float(match[1]) * _UNITS[name][unit])


_WRONG = (
    "{0!r} is not a budget: pass bits per weight, such as 4.5, or one of size=20MB, "
    "latency=5ms, quality=0.99"
)


def _check_budget(name: str, value: float) -> Budget:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name not in _UNITS or not number:
        raise ValueError(_WRONG.format({name: value}))
    if not 0 < value < float("inf"):
        raise ValueError(f"a budget must be above 0 and finite, got {name}={value!r}")
    return Budget(name, float(value))


_SECONDS = 60.0  # that the solver may take; a layer's program takes a fraction of one
_SLACK = 2e-6  # the solver lets a constraint be missed by 1e-6
_SCALE = 1e4  # of the objective: the solver's own tolerances are absolute, about 1e-6


@dataclass(frozen=True)
class Option:
    """One candidate of one layer.

    damage: what it does to the model, of any unit that adds up; bits: that it stores, in all;
    seconds: that the layer then takes, in all
    """

    damage: float
    bits: float
    seconds: float = 0.0


@dataclass(frozen=True)
class Allocation:
    """The place of each layer's choice among its options, and what they add up to.

    gap: how far, as a share of `damage`, the best may still be below; 0 where it is proven
    """

    choices: tuple[int, ...]
    damage: float
    bits: float
    seconds: float
    gap: float


def allocate(
    layers: Sequence[Sequence[Option]], bits: float, seconds: float | None = None
) -> Allocation:
    """The options, one of each layer, with the least damage in all within both budgets.

    bits: of all layers together; seconds: likewise, None for any
    Raises ValueError where no choice keeps to the budgets, and RuntimeError without scipy.
    """
    _check(layers, bits, seconds)
    bound = _reachable(layers, bits) if seconds is None else None
    rest = [
        [i for i in _efficient(own, seconds is not None) if bound is None or own[i].damage <= bound]
        for own in layers
    ]
    options = [[layers[k][i] for i in own] for k, own in enumerate(rest)]
    result = _allocation(layers, rest, *_solve(options, bits, seconds))
    if result.bits > bits or (seconds is not None and result.seconds > seconds):
        tighter = None if seconds is None else seconds * (1 - _SLACK)  # its sums are not exact
        result = _allocation(layers, rest, *_solve(options, bits * (1 - _SLACK), tighter))
    return result


def _allocation(
    layers: Sequence[Sequence[Option]], members: list[list[int]], solution: list[int], gap: float
) -> Allocation:
    results = tuple(own[i] for own, i in zip(members, solution, strict=True))
    candidates = [own[i] for own, i in zip(layers, results, strict=True)]
    return Allocation(
        results,
        sum(each.damage for each in candidates),
        sum(each.bits for each in candidates),
        sum(each.seconds for each in candidates),
        gap,
    )


def _check(layers: Sequence[Sequence[Option]], bits: float, seconds: float | None) -> None:
    """Raise ValueError where a budget alone cannot be kept."""
    if not layers or not all(layers):
        raise ValueError("no layer to choose formats for, or a layer without candidates")
    for what, budget, least in (
        ("bits", bits, sum(min(o.bits for o in own) for own in layers)),
        ("seconds", seconds, sum(min(o.seconds for o in own) for own in layers)),
    ):
        if budget is not None and least > budget * (1 + 1e-12):
            raise ValueError(
                f"no choice of formats fits the budget of {budget:.6g} {what}: the candidates "
                f"need at least {least:.6g}; raise the budget, or add smaller candidates"
            )


def _efficient(own: Sequence[Option], with_time: bool) -> list[int]:
    """The options that no other one of the layer is as good as in everything."""

    def figures(o: Option) -> tuple[float, ...]:
        return (o.damage, o.bits, o.seconds) if with_time else (o.damage, o.bits)

    order = sorted(range(len(own)), key=lambda i: figures(own[i]))
    numbers: list[int] = []
    for i in order:
        mine = figures(own[i])
        if not any(
            all(a <= b for a, b in zip(figures(own[j]), mine, strict=True)) for j in numbers
        ):
            numbers.append(i)
    return numbers


def _reachable(layers: Sequence[Sequence[Option]], bits: float) -> float:
    """Damage that some choice within the budget has: each step takes what helps most for a bit."""
    at = [min(range(len(own)), key=lambda i, o=own: (o[i].bits, o[i].damage)) for own in layers]  # type: ignore[misc]
    rest = bits - sum(own[i].bits for own, i in zip(layers, at, strict=True))
    while True:
        steps = [
            ((own[at[k]].damage - o.damage) / (o.bits - own[at[k]].bits), k, i)
            for k, own in enumerate(layers)
            for i, o in enumerate(own)
            if o.damage < own[at[k]].damage and 0 < o.bits - own[at[k]].bits <= rest
        ]
        if not steps:
            break
        _, k, i = max(steps)
        rest -= layers[k][i].bits - layers[k][at[k]].bits
        at[k] = i
    return sum(own[i].damage for own, i in zip(layers, at, strict=True))


def _solve(
    layers: list[list[Option]], bits: float, seconds: float | None
) -> tuple[list[int], float]:
    """The places of the best options, and the gap."""
    optimize, numpy = _solver()
    flat = [(k, option) for k, own in enumerate(layers) for option in own]
    damage = numpy.array([option.damage for _, option in flat])
    scale = max(float(sum(min(o.damage for o in own) for own in layers)), 1e-300)
    scale = max(scale, float(damage.max()) * 1e-9)
    rows = [numpy.array([float(k == each) for k, _ in flat]) for each in range(len(layers))]
    low, high = [1.0] * len(layers), [1.0] * len(layers)
    for budget, values in (
        (bits, [option.bits for _, option in flat]),
        (seconds, [option.seconds for _, option in flat]),
    ):
        if budget is not None:
            rows.append(numpy.array(values) / max(budget, 1e-300))
            low, high = [*low, 0.0], [*high, 1.0]
    result = optimize.milp(
        damage * (_SCALE / scale),
        constraints=optimize.LinearConstraint(numpy.array(rows), low, high),
        integrality=numpy.ones(len(flat)),
        bounds=optimize.Bounds(0, 1),
        options={"time_limit": _SECONDS, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise ValueError(
            f"no choice of formats fits both budgets ({result.message}): raise one of them, or "
            "add smaller candidates"
        )
    indices = [i for i, share in enumerate(result.x) if share > 0.5]
    starts = [sum(len(own) for own in layers[:k]) for k in range(len(layers))]
    return [i - starts[flat[i][0]] for i in indices], float(result.mip_gap or 0.0)


def _solver() -> Any:
    """scipy's optimizers and numpy. Raises RuntimeError where scipy is missing."""
    try:
        from scipy import optimize  # type: ignore[import-untyped]
    except ImportError:
        raise RuntimeError(
            "the choice of formats needs scipy, which is not installed: pip install "
            "'blockscale[search]'"
        ) from None
    import numpy

    return optimize, numpy
