# SPDX-License-Identifier: BSD-3-Clause
"""Codes of each width are stored, packed or not, wherever their blocks lie."""

import pytest
import torch

from tests.support.cuda_equal import DTYPES, wrong
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


ELEMENTS = ("binary", "int2", "int3", "int4", "e2m3", "int8", "int12")
BLOCKS = ("group16", "group4@0", "tile2x16", "group5")


@pytest.mark.some(3)
@pytest.mark.parametrize(("element", "block"), crossed(4, ELEMENTS, BLOCKS))
def test_every_width(element: str, block: str) -> None:
    """In rows that fill words of packed codes, and in rows that do not; single and paired."""
    for columns, dtype in ((32, DTYPES[1]), (21, DTYPES[0])):
        assert wrong(torch.randn(4, columns).to(dtype), f"{element}:{block}:fp32") == [], columns
