# SPDX-License-Identifier: BSD-3-Clause
"""The parts of the campaign: each file here has `PARTS`."""

import importlib
import pkgutil

from attack.part import Part


def parts() -> tuple[Part, ...]:
    """All of them, by the names of their files."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__))
    found = (importlib.import_module(f"{__name__}.{name}").PARTS for name in names)
    return tuple(part for some in found for part in some)
