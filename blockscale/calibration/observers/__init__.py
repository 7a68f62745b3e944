# SPDX-License-Identifier: BSD-3-Clause
"""Observers: they see tensors and choose the range of a scale. Each is found by its name."""

from collections.abc import Callable
from functools import cache

from blockscale.calibration.observer import Observer as Observer
from blockscale.core import import_all
from blockscale.core.format import Format
from blockscale.core.parse import parse

Spec = str | Callable[[Format], Observer]  # a class is a callable, too


def names() -> tuple[str, ...]:
    """The observers there are, in order."""
    return tuple(sorted(_classes()))


def make(spec: Spec, fmt: str | Format) -> Observer:
    """The observer `spec` for tensors in `fmt`, which has seen nothing yet.

    spec: a name, also with its setting (`percentile:99.9`); a subclass of Observer; or a callable
        that takes the format and returns an observer.
    Raises ValueError for a name or a setting that does not exist, TypeError for anything else.
    """
    form = parse(fmt)
    if not isinstance(spec, str):
        return _construct(spec, form)
    check(spec)
    name, colon, text = spec.partition(":")
    kind = _classes()[name]
    return kind(form, **(kind.read(text) if colon else {}))


def check(spec: Spec) -> None:
    """Raises ValueError where `spec` is the name of an observer that does not exist."""
    if isinstance(spec, str) and (name := spec.partition(":")[0]) not in _classes():
        raise ValueError(f"unknown observer {name!r}; choose from {', '.join(names())}")


def _construct(spec: object, fmt: Format) -> Observer:
    observer = spec(fmt) if callable(spec) else None
    if not isinstance(observer, Observer):
        raise TypeError(
            f"expected the name of an observer ({', '.join(names())}), an Observer class or a "
            f"function that takes a format and returns an Observer, found {spec!r}"
        )
    return observer


@cache
def _classes() -> dict[str, type[Observer]]:
    """The observers that the files define, by name."""
    modules = import_all(__name__, __path__)
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type)]
    own = {module.__name__ for module in modules}
    return {c.name: c for c in classes if issubclass(c, Observer) and c.__module__ in own}
