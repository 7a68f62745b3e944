# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for the CPU: C++ in src/, compiled to `_native`; Python files named after their ops.

Nothing is loaded before `available` or `_native` is asked for. The environment variable
BLOCKSCALE_NATIVE names another library to take in the place of the installed one, compiled from the
same sources.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from blockscale.core import import_all
from blockscale.core.untrusted import FileError, read_regular
from blockscale.kernels.cpu import tuned

_NAME = f"{__name__}._native"
_FOLDER = Path(__file__).parent
_LARGEST = 2**30  # bytes of a library, with what sanitizers and debuggers need
_loading = threading.Lock()


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can.

    Raises ValueError if BLOCKSCALE_CPU_ISA names an instruction set that is not here, and for a
    table of measured choices that is none.
    """
    native = load()
    if isinstance(native, str):
        return native
    if not native.isas():
        names = ", ".join(native.compiled_isas())
        return (
            f"the native library was compiled only for {names}, which this processor does not "
            "support: build it here (`make native`), or for every processor with `pip "
            "install -C cmake.define.BLOCKSCALE_ISA=all`"
        )
    native.isa()
    import_all(__name__, __path__)
    tuned.apply(native)
    return None


if TYPE_CHECKING:
    _native: Any  # `__getattr__` gives it


def __getattr__(name: str) -> Any:
    """`from blockscale.kernels.cpu import _native` goes through `load`."""
    if name != "_native":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    native = load()
    if isinstance(native, str):
        raise ImportError(native)
    return native


@cache
def load() -> ModuleType | str:
    """The native library, or the reason why it is not there."""
    override = os.environ.get("BLOCKSCALE_NATIVE")
    try:
        if override:
            return _load_file(Path(override))
        native = importlib.import_module(_NAME)
    except ModuleNotFoundError:
        return f"the native library was not built: {_why_unbuilt()}"
    except ImportError as error:
        return f"the native library cannot be loaded: {error}"
    if stale(native):  # Python would pass it what it does not expect
        globals().pop("_native", None)  # importing it put it there
        return (
            f"the native library {native.__file__} was not compiled from the C++ sources beside "
            f"it: run `make native`"
        )
    return native


def _load_file(path: Path) -> ModuleType:
    """Import a library from anywhere under the name that it was compiled for."""
    with _loading:  # the import system's own lock does not cover this
        module = sys.modules.get(_NAME)
        if module is not None and module.__file__ == str(path):
            return module
        _check_library(path)
        return _execute(path)


def _check_library(path: Path) -> None:
    """Raise ImportError for what is not this library, before any of its code runs."""
    if not path.name.endswith(tuple(EXTENSION_SUFFIXES)):
        raise ImportError(f"BLOCKSCALE_NATIVE={str(path)!r} is not a Python extension module")
    try:
        data = read_regular(path, _LARGEST)
    except (FileError, OSError) as error:
        raise ImportError(f"{path}: {error}") from None
    if b"PyInit__native" not in data or (_sources() or "").encode() not in data:
        raise ImportError(
            f"{path}: it was not compiled from the C++ sources in {_FOLDER / 'src'}: run `make "
            f"native` or `make sanitize`"
        )


def _execute(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None and spec.loader is not None  # it has just been given
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_NAME] = globals()["_native"] = module  # as importing a submodule does
    return module


def _why_unbuilt() -> str:
    """What CMakeLists.txt wrote when it left the library out."""
    reason = _FOLDER / "_unbuilt.txt"
    if reason.exists():
        return f"{reason.read_text().strip()} and install blockscale again"
    return "install blockscale again with `pip install -v`, which shows why"


def stale(native: ModuleType) -> bool:
    """Whether src/ lies here and is not what the library was compiled from."""
    digest = _sources()
    return digest is not None and native.build()["sources"] != digest


def _sources() -> str | None:
    """What identifies the C++ sources (CMakeLists.txt computes the same); None without them."""
    folder = _FOLDER / "src"
    files = (p for p in folder.rglob("*") if p.suffix in (".cpp", ".h"))
    names = sorted(p.relative_to(folder).as_posix() for p in files)
    lines = [f"{n} {hashlib.sha256((folder / n).read_bytes()).hexdigest()}\n" for n in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None
