# SPDX-License-Identifier: BSD-3-Clause
"""Programs of ordinary blocks and others beside them, and scales that nothing keeps."""

import pytest
import torch

from tests.support.cuda_equal import DTYPES, wrong
from tests.support.some import crossed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.slow
@pytest.mark.usefixtures("settings_of_a_gpu")
@pytest.mark.parametrize("fmt", ["int8:token:fp32", "e4m3:token:fp32", "ternary:token:fp32"])
def test_each_program_takes_its_own_branch(fmt: str) -> None:
    """One program's rows are ordinary, another's hold zeros, NaN or tiny numbers."""
    x = torch.randn(200, 64)
    x[130], x[150, 3], x[199] = 0, torch.nan, x[199] * 2.0**-120
    for dtype in DTYPES[:2]:
        assert wrong(x.to(dtype), fmt) == [], dtype


ELEMENTS = ("binary", "int2", "int3", "int4", "e2m3", "int8", "int12")
BLOCKS = ("group16", "group4@0", "tile2x16", "group5")


@pytest.mark.slow
@pytest.mark.parametrize(("element", "block"), crossed(4, ELEMENTS, BLOCKS))
def test_every_width(element: str, block: str) -> None:
    """In rows that fill words of packed codes, and in rows that do not; single and paired."""
    for columns, dtype in ((32, DTYPES[1]), (21, DTYPES[0])):
        assert wrong(torch.randn(4, columns).to(dtype), f"{element}:{block}:fp32") == [], columns
