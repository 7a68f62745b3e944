# SPDX-License-Identifier: BSD-3-Clause
"""Import every module of an open folder, so that adding to it takes one new file."""

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType


def import_all(package: str, path: Iterable[str]) -> list[ModuleType]:
    """Import `package`'s own modules in name order and return them."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names]
