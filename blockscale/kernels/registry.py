# SPDX-License-Identifier: BSD-3-Clause
"""Which kernel computes an op where. A kernel is only ever a faster spelling of the reference.

A backend is a folder `blockscale/kernels/<backend>/` whose `__init__` has `available()`, which says
why the backend cannot run here (None if it can), and imports its kernels when first asked for. It
may have `takes(device)`: whether tensors on a device of that type can go there; without it, those
on the device that has the backend's name. And it may have `run_reference`, below. The kernels
register themselves with `@kernel`. Nothing is probed or imported before the first op runs.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor

from blockscale import kernels
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.parse import parse

Formats = tuple[Format, ...]
Supports = Callable[[Formats, tuple[Any, ...]], bool]


class ByFormats:
    """A `supports` that looks at nothing but the formats of a call: asked once for each of them."""

    def __init__(self, supports: Callable[[Formats], bool]):
        self._supports = supports

    def __call__(self, formats: Formats, arguments: tuple[Any, ...]) -> bool:
        """Whether kernels can run a call with these formats."""
        del arguments
        return self._supports(formats)


@dataclass(frozen=True)
class Kernel:
    """`run` takes the op's arguments; `supports(formats, arguments)` says whether it can.

    formats: all of the call, in the order of the arguments that have them
    """

    op: str
    backend: str
    supports: Supports
    run: Callable[..., Any]


class Choice(NamedTuple):
    """What `use` says.

    backend: "auto", "reference" or a backend's name; must: nothing may take its place
    batch_invariant: each row's result is to have the same bits whatever else is in the batch
    """

    backend: str
    must: bool
    batch_invariant: bool = False


KERNELS: dict[tuple[str, str], list[Kernel]] = {}
_AUTO = Choice("auto", must=False)
_choice: ContextVar[Choice] = ContextVar("blockscale_backend", default=_AUTO)
_settled: dict[tuple[str, str, tuple[str, ...]], Kernel] = {}  # (op, device, spellings): by "auto"
_known_pairs: set[tuple[str, str]] = set()  # (backend, device) that were seen to go together
_warned: set[tuple[str, ...]] = set()
UNORDERED: set[str] = set()  # ops whose float sums no kernel, nor the reference, can keep in order


@cache
def backends() -> tuple[str, ...]:
    """The backends that this version has: the folders beside this file, by name."""
    return tuple(sorted(each.name for each in pkgutil.iter_modules(kernels.__path__) if each.ispkg))


def kernel(
    op: str, *, backend: str, supports: Supports, last: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as `op` on `backend`; later ones are asked first.

    last: it is asked after all others
    """
    if backend not in backends():
        raise ValueError(f"unknown backend {backend!r}; choose from {', '.join(backends())}")

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        kernels = KERNELS.setdefault((op, backend), [])
        kernels.insert(0 if last else len(kernels), Kernel(op, backend, supports, run))
        _settled.clear()
        return run

    return register


@cache
def unavailable(backend: str) -> str | None:
    """Load the backend; the reason why it cannot run here, or None if it can."""
    if backend not in backends():
        return f"this version of blockscale has no {backend} kernels"
    reason: str | None = _module(backend).available()
    return reason


@cache
def _module(backend: str) -> ModuleType:
    return importlib.import_module(f"{kernels.__name__}.{backend}")


def _takes(backend: str, device: str) -> bool:
    """Whether tensors on a device of this type can go to the backend."""
    takes = _takes_of(backend)
    return device == backend if takes is None else takes(device)


@cache
def _takes_of(backend: str) -> Callable[[str], bool] | None:
    takes: Callable[[str], bool] | None = getattr(_module(backend), "takes", None)
    return takes


@contextmanager
def use(
    backend: str | None = None, *, fallback: bool = False, batch_invariant: bool | None = None
) -> Iterator[None]:
    """How ops run inside a `with` block. What is left out stays as it is around the block.

    backend: "reference", "auto" or a backend's name. "auto" (the default) takes a kernel of the
        tensor's device where there is one, else the reference. Any other name is kept to, and an
        op that it cannot run raises RuntimeError; with `fallback` it is only preferred, and what
        it cannot run goes as with "auto", with a warning
    batch_invariant: linear layers and convolutions give each row of their input (each image of a
        convolution's) the same bits alone and among any others, on one machine: their float sums
        keep one order, whatever the number of rows. What cannot be kept so raises RuntimeError,
        such as inputs with one dynamic scale for all rows (docs/numerics.md, 7.2)

    Raises ValueError for an unknown name and, without `fallback`, RuntimeError for a backend that
    cannot run here.
    """
    before = _choice.get()
    if batch_invariant is None:
        batch_invariant = before.batch_invariant
    if backend is None:
        with as_chosen(before._replace(batch_invariant=batch_invariant)):
            yield
        return
    choices = ("auto", "reference", *backends())
    if backend not in choices:
        raise ValueError(f"unknown backend {backend!r}; choose from {', '.join(choices)}")
    is_backend = backend in backends()
    if is_backend and (reason := unavailable(backend)) is not None:
        text = f"cannot use {backend!r}: {reason}; 'auto' and 'reference' always work"
        if not fallback:
            raise RuntimeError(text)
        _warn_once((backend, "preferred"), text)
    with as_chosen(Choice(backend, is_backend and not fallback, batch_invariant)):
        yield


def choice() -> Choice:
    """What `use` says here. Other threads start with "auto"."""
    return _choice.get()


def batch_invariant() -> bool:
    """Whether each row's result is to have the same bits whatever else is in the batch."""
    return _choice.get().batch_invariant


@contextmanager
def as_chosen(choice: Choice) -> Iterator[None]:
    """Run with a choice that `use` made earlier, perhaps in another thread."""
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


@cache
def _parse_all(spellings: tuple[str, ...]) -> Formats:
    return tuple(parse(spelling) for spelling in spellings if spelling)


def find(
    op: str,
    spellings: tuple[str, ...],
    device: str,
    arguments: tuple[Any, ...],
    *,
    composite: bool = False,
) -> Kernel | None:
    """The kernel that runs this call, or None for the reference.

    spellings: of the call's formats; empty ones are left out
    device: the type of the device that its tensors are on
    composite: the reference is made of ops that find their own kernels, so that it is no slow way
        to go: nothing is warned of, and no backend has to have a kernel of its own

    Raises RuntimeError if a backend must run it, by `use`, and has no kernel for it.
    """
    choice = _choice.get()
    if choice.batch_invariant and op in UNORDERED:
        raise _order_error(op)
    if choice is _AUTO and (kernel := _settled.get((op, device, spellings))) is not None:
        return kernel
    if composite:
        return _of_composite(op, spellings, device, arguments, choice.backend)
    if choice is _AUTO:
        return _of_device(op, spellings, device, arguments)
    backend, must, _ = choice
    if backend == "reference":
        return None
    if backend != "auto" and (must or _prefers(backend, device)):
        kernel = supporting(op, backend, spellings, arguments)
        if kernel is not None:
            return kernel
        text = f"no {backend} kernel runs {op}{_of(spellings)}"
        if must:
            raise RuntimeError(f"use({backend!r}): {text} here")
        if backend != device:
            text += " on these tensors: using 'auto' instead"
            _warn_once((op, backend, *spellings), text)
    return _of_device(op, spellings, device, arguments)


def _order_error(op: str) -> RuntimeError:
    return RuntimeError(
        f"use(batch_invariant=True): {op} sums floats in an order that depends on the batch; "
        "run the model that the graph was made of, whose layers keep it, or turn it off"
    )


def _of_composite(
    op: str, spellings: tuple[str, ...], device: str, arguments: tuple[Any, ...], choice: str
) -> Kernel | None:
    """A kernel of the backend that was chosen, else of the device's; None where there is none."""
    if choice == "reference":
        return None
    backend = None if choice in ("auto", device) else choice
    if backend is not None and (kernel := _kernel_on(op, spellings, backend, device, arguments)):
        return kernel
    kernel = _kernel_on(op, spellings, device, device, arguments)
    if kernel is not None and choice == "auto" and _by_formats_alone(kernel):
        _settled[op, device, spellings] = kernel
    return kernel


def _kernel_on(
    op: str, spellings: tuple[str, ...], backend: str, device: str, arguments: tuple[Any, ...]
) -> Kernel | None:
    """The kernel of a backend that can be asked, if it has one."""
    if (backend, device) not in _known_pairs:
        if backend not in backends() or not _prefers(backend, device):
            return None
        _known_pairs.add((backend, device))
    return supporting(op, backend, spellings, arguments)


def _prefers(backend: str, device: str) -> bool:
    """Whether a backend that is only preferred can be asked."""
    return unavailable(backend) is None and _takes(backend, device)


def _of_device(
    op: str, spellings: tuple[str, ...], device: str, arguments: tuple[Any, ...]
) -> Kernel | None:
    """As with "auto"."""
    if device not in backends():
        return None
    if (reason := unavailable(device)) is not None:
        text = f"the slow reference runs instead of {device} kernels: {reason}"
        _warn_once((device,), text)
        return None
    kernel = supporting(op, device, spellings, arguments)
    if kernel is None:
        text = f"no {device} kernel runs {op}{_of(spellings)} on these tensors"
        _warn_once((op, device, *spellings), f"{text}: using the reference, which is slow")
    elif _by_formats_alone(kernel):
        _settled[op, device, spellings] = kernel
    return kernel


def _by_formats_alone(kernel: Kernel) -> bool:
    """Whether it and all that are registered before it look at nothing but formats."""
    kernels = KERNELS[kernel.op, kernel.backend]
    since = kernels[kernels.index(kernel) :]
    return all(type(each.supports) is ByFormats for each in since)


def run_reference(reference: Callable[..., Any], device: str, args: tuple[Any, ...]) -> Any:
    """Run an op's reference for tensors on a device of this type, where no kernel runs it.

    A backend whose floats are not IEEE's has a `run_reference` of its own, which runs it elsewhere.
    """
    elsewhere = getattr(_module(device), "run_reference", None) if device in backends() else None
    with subnormals_kept(_elements(args)):
        return reference(*args) if elsewhere is None else elsewhere(reference, args)


def _elements(args: tuple[Any, ...] | list[Any]) -> int:
    """Of all tensors among an op's arguments."""
    nested = (each for each in args if isinstance(each, tuple | list))
    own = sum(each.numel() for each in args if isinstance(each, Tensor))
    return own + sum(_elements(each) for each in nested)


def supporting(
    op: str, backend: str, spellings: tuple[str, ...], arguments: tuple[Any, ...]
) -> Kernel | None:
    """The kernel that is asked first and supports the call."""
    formats = _parse_all(spellings)
    for candidate in reversed(KERNELS.get((op, backend), ())):
        if candidate.supports(formats, arguments):
            return candidate
    return None


def _of(spellings: tuple[str, ...]) -> str:
    """The formats of a call, for a sentence."""
    formats = [str(each) for each in _parse_all(spellings)]
    return f" for {' and '.join(formats)}" if formats else ""


def _warn_once(key: tuple[str, ...], text: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, stacklevel=4)
