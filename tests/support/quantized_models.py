# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/integrations/transformers/test_models.py: `quantized`, `quietly`.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

import blockscale as bs


def quietly(call: Callable[[], Any]) -> Any:
    """What a call gives; what it skips is said by warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return call()


def quantized(kind: Any, path: Path, recipe: str = "mxfp4") -> nn.Module:
    """The float model, loaded and then quantized by blockscale itself."""
    model: nn.Module = kind.from_pretrained(path)
    quietly(lambda: bs.quantize_(model, recipe))
    return model
