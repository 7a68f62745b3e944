# SPDX-License-Identifier: BSD-3-Clause
"""What a number means: formats and their reference. No device, no files."""

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def import_all(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import an open folder's own modules in name order, so that adding to it takes one new file.

    package, path: `__name__` and `__path__` of the folder
    """
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names]
