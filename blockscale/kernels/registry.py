"""Which kernel computes an op where. A kernel is only ever a faster spelling of the reference.

A backend is a folder `blockscale/kernels/<backend>/` whose `__init__` has `available()`, which says
why the backend cannot run here (None if it can), and imports its kernels when first asked for. The
kernels register themselves with `@kernel`. Nothing is probed or imported before the first op runs.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockscale.core.format import Format

BACKENDS = ("cpu", "cuda", "webgpu")
CHOICES = ("auto", "reference", *BACKENDS)

Supports = Callable[[Format, tuple[Any, ...]], bool]


@dataclass(frozen=True)
class Kernel:
    """`run` takes the op's arguments; `supports(format, arguments)` says whether it can."""

    op: str
    backend: str
    supports: Supports
    run: Callable[..., Any]


KERNELS: dict[tuple[str, str], list[Kernel]] = {}
_choice: ContextVar[str] = ContextVar("blockscale_backend", default="auto")
_warned: set[tuple[str, ...]] = set()


def kernel(
    op: str, *, backend: str, supports: Supports
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as `op` on `backend`; later ones are asked first."""
    if backend not in BACKENDS:
        raise ValueError(f"no backend {backend!r}; there are {', '.join(BACKENDS)}")

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS.setdefault((op, backend), []).append(Kernel(op, backend, supports, run))
        return run

    return register


@cache
def unavailable(backend: str) -> str | None:
    """Load the backend; the reason why it cannot run here, or None if it can."""
    if not _exists(backend):
        return f"this version of blockscale has no {backend} kernels"
    reason: str | None = importlib.import_module(f"blockscale.kernels.{backend}").available()
    return reason


@cache
def _exists(backend: str) -> bool:
    """Whether this version has kernels for the backend at all."""
    return importlib.util.find_spec(f"blockscale.kernels.{backend}") is not None


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Run ops on one backend inside a `with` block: "reference", "auto", "cpu", "cuda", "webgpu".

    "auto" (the default) takes a kernel of the tensor's device where there is one, else the
    reference; any other name is kept to, and an op that it cannot run raises RuntimeError.
    Raises ValueError for an unknown name and RuntimeError for a backend that cannot run here.
    """
    if backend not in CHOICES:
        raise ValueError(f"no backend {backend!r}; there are {', '.join(CHOICES)}")
    if backend in BACKENDS and (reason := unavailable(backend)) is not None:
        raise RuntimeError(f"cannot use {backend!r}: {reason}; 'auto' and 'reference' always work")
    with as_chosen(backend):
        yield


def choice() -> str:
    """What `use` says here. Other threads start with "auto"."""
    return _choice.get()


@contextmanager
def as_chosen(backend: str) -> Iterator[None]:
    """Run with a choice that `use` made earlier, perhaps in another thread."""
    token = _choice.set(backend)
    try:
        yield
    finally:
        _choice.reset(token)


def find(op: str, fmt: Format, device: str, arguments: tuple[Any, ...]) -> Kernel | None:
    """The kernel that runs this call, or None for the reference.

    Raises RuntimeError if a backend was pinned with `use` and has no kernel for it.
    """
    choice = _choice.get()
    if choice == "reference":
        return None
    backend = device if choice == "auto" else choice
    if backend not in BACKENDS:
        return None
    if (reason := unavailable(backend)) is not None:
        if _exists(backend):
            text = f"the slow reference runs in the place of {backend} kernels: {reason}"
            _warn_once((backend,), text)
        return None
    for candidate in reversed(KERNELS.get((op, backend), ())):
        if candidate.supports(fmt, arguments):
            return candidate
    if choice != "auto":
        raise RuntimeError(f"use({backend!r}): no {backend} kernel runs {op} for {fmt} here")
    text = f"no {backend} kernel runs {op} for {fmt} on these tensors"
    _warn_once((op, backend, str(fmt)), f"{text}: using the reference, which is slow")
    return None


def _warn_once(key: tuple[str, ...], text: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, stacklevel=3)
