# SPDX-License-Identifier: BSD-3-Clause
"""Other people's files: `bs.export.<target>` is the function of the module `to_<target>` here.

A module `to_<target>` defines a function `<target>`, which writes a model as that target has it.
Where it needs a package that may be missing, it imports it inside and also defines `unavailable()`:
the reason why the target cannot be written here, or None. `audit` reads what others and we wrote,
`convert_checkpoint` makes one producer's quantized files those of another, and `quantize_onnx`
quantizes the ONNX files of others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from blockscale.core import import_all
from blockscale.export.auditing import audit as audit
from blockscale.export.conversion import convert_checkpoint as convert_checkpoint
from blockscale.export.onnx_files import quantize_onnx as quantize_onnx


class FileTarget(NamedTuple):
    """A kind of file that models can be written to.

    about: the first line of its function's documentation
    unavailable: the reason why it cannot be written here, such as a missing package, or None
    """

    name: str
    about: str
    unavailable: str | None


def targets() -> tuple[FileTarget, ...]:
    """What there is, in the order of names; `bs.export.<name>` writes it."""
    return tuple(
        FileTarget(name, (function.__doc__ or "").partition("\n")[0], _reason(name))
        for name, function in _FUNCTIONS.items()
    )


def _reason(name: str) -> str | None:
    ask: Callable[[], str | None] | None = getattr(_MODULES[name], "unavailable", None)
    return None if ask is None else ask()


def __getattr__(name: str) -> NoReturn:
    """What is not here: Python asks for it when nothing has the name."""
    choices = ", ".join(_FUNCTIONS)
    raise AttributeError(f"module {__name__!r} has no target {name!r}; choose from {choices}")


_MODULES = {
    module.__name__.rpartition(".to_")[2]: module
    for module in import_all(__name__, __path__)
    if ".to_" in module.__name__
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(module, name) for name, module in _MODULES.items()
}
globals().update(_FUNCTIONS)
