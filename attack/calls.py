# SPDX-License-Identifier: BSD-3-Clause
"""The calls that change files, one of which is killed or fails (shim.cpp)."""

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.cpp")
_BUILT = Path(__file__).parents[1] / "build" / "attack" / "shim.so"

# how a call ends: its number in shim.cpp, and an error
MODES = {
    "before": (1, 0),
    "after": (2, 0),
    "torn": (3, 0),
    "ENOSPC": (4, errno.ENOSPC),
    "EIO": (4, errno.EIO),
    "EACCES": (4, errno.EACCES),
    "short": (5, 0),
}


def built() -> str:
    """The path of the shim, compiled if it is older than its source; "" without a compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    fresh = _BUILT.exists() and _BUILT.stat().st_mtime >= _SOURCE.stat().st_mtime
    if not fresh and compiler:
        _BUILT.parent.mkdir(parents=True, exist_ok=True)
        partial = _BUILT.with_suffix(f".{os.getpid()}")  # campaigns may start side by side
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(partial), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        partial.replace(_BUILT)
    return str(_BUILT) if _BUILT.exists() else ""


def missing() -> str | None:
    """Why no call can be counted here, or None."""
    if str(_BUILT) in os.environ.get("LD_PRELOAD", ""):
        return None
    return "there is no C++ compiler, or it is not run by `make attack`"


def plan(below: Path, call: int = -1, mode: str = "before") -> None:
    """From now on, count the calls below a folder; the one of this number does not end as it should."""
    how, error = MODES[mode]
    _library().attack_plan(os.fsencode(below), call, how, error)


def stop() -> int:
    """Count no longer; how many there were."""
    count = _library().attack_count()
    _library().attack_plan(b"", -1, 0, 0)
    return int(count)


def hit() -> str:
    """The name of the call that was chosen, once it has come."""
    return str(_library().attack_hit().decode())


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.attack_plan.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    library.attack_count.restype = ctypes.c_long
    library.attack_hit.restype = ctypes.c_char_p
    return library
