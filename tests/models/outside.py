# SPDX-License-Identifier: BSD-3-Clause
"""torchvision and timm, from .venv/models: a folder that is on the path only where a test asks.

torchvision's compiled part is made for another build of torch, so that importing it the usual way
fails, and with it transformers, which imports torchvision wherever it finds one. `.venv/models`
therefore lies beside the environment, not in it, and what torchvision expects of its compiled part
is two ops, declared here. No model of the zoo calls them.
"""

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).parents[2]
MISSING = "needs {name}, which is not here: run `make test`, which installs requirements/models.txt"

_OPS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def folder() -> Path | None:
    """Where torchvision and timm are, or None: in .venv of the checkout or of this Python."""
    places = (ROOT / ".venv" / "models", Path(sys.prefix) / "models")
    return next((place for place in places if (place / "torchvision").is_dir()), None)


def missing(name: str) -> str:
    """Why `name` cannot be imported here; empty if it can."""
    if importlib.util.find_spec(name) is not None:
        return ""
    there = folder()
    return "" if there and (there / name).is_dir() else MISSING.format(name=name)


@cache
def torchvision() -> ModuleType:
    """The module, with its models. Raises ImportError where it is not installed."""
    return _imported("torchvision")


@cache
def timm() -> ModuleType:
    """The module, with its models. Raises ImportError where it is not installed."""
    torchvision()  # timm imports it
    return _imported("timm")


@cache
def _ops() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for schema in _OPS:
        library.define(schema)
    return library


def _imported(name: str) -> ModuleType:
    """Import it, the folder on the path for no longer than that."""
    there = folder()
    if there is None:
        return importlib.import_module(name)
    _hold_transformers()
    _ops()
    sys.path.append(str(there))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(there))


def _hold_transformers() -> None:
    """Ask transformers for its optional packages now, while torchvision is none of them."""
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()
    import_utils.is_timm_available()
