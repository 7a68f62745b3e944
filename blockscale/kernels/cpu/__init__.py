"""Kernels for the CPU: C++ in src/, compiled to `_native`; Python files named after their ops.

Nothing is loaded before `available` or `_native` is asked for. The environment variable
BLOCKSCALE_NATIVE names another library to take in the place of the installed one.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from blockscale.core.discover import import_all

_NAME = f"{__name__}._native"
_FOLDER = Path(__file__).parent
_loading = threading.Lock()


def available() -> str | None:
    """Load the kernels; the reason why they cannot run here, or None if they can.

    Raises ValueError if BLOCKSCALE_CPU_ISA names an instruction set that is not here.
    """
    native = load()
    if isinstance(native, str):
        return native
    native.isa()
    import_all(__name__, __path__)
    return None


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
    named = os.environ.get("BLOCKSCALE_NATIVE")
    try:
        if named:
            return _load_file(Path(named))
        native = importlib.import_module(_NAME)
    except ModuleNotFoundError:
        return f"the native library was not built: {_why_unbuilt()}"
    except ImportError as error:
        return f"the native library does not load: {error}"
    if stale(native):  # Python would pass it what it does not expect
        globals().pop("_native", None)  # importing it put it there
        remedy = f"run `make native`, or set BLOCKSCALE_NATIVE={native.__file__} to use it as it is"
        return f"the native library was not compiled from the C++ sources beside it: {remedy}"
    return native


def _load_file(path: Path) -> ModuleType:
    """Import a library from anywhere under the name that it was compiled for."""
    with _loading:  # the import system's own lock does not cover this
        loaded = sys.modules.get(_NAME)
        if loaded is not None and loaded.__file__ == str(path):
            return loaded
        return _execute(path)


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"BLOCKSCALE_NATIVE={str(path)!r} is no Python extension module")
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
