# SPDX-License-Identifier: BSD-3-Clause
"""Division and rounding together: of single numbers, and of pairs in each of their ways."""

from types import SimpleNamespace

import pytest
import torch

from blockscale.kernels.cuda.device.codes import makes_nibbles, stored_bits
from blockscale.kernels.cuda.spec import spec
from tests.support.cuda_device_inputs import midpoints, turning
from tests.support.cuda_equal import DTYPES, wrong

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.slow
@pytest.mark.parametrize(
    "element", ["int2", "int4", "e2m1", "e2m3", "e3m2", "e4m3", "log4", "int8"]
)
@pytest.mark.parametrize("scale", ["fp32", "e8m0/floor"])
def test_pairs_beside_every_midpoint(element: str, scale: str) -> None:
    """Two to an int32, whose halves take nothing from each other: numbers and their neighbours."""
    x = midpoints(f"{element}:tensor:fp32").bfloat16()
    x = x[x.isfinite() & (x.abs() < 1e30)]
    x = torch.cat([x, torch.zeros(-len(x) % 32, dtype=x.dtype)]).reshape(-1, 32)
    for rows in (x, x.flip(1), x.half()):
        assert wrong(rows.contiguous(), f"{element}:group16:{scale}") == [], rows.dtype


@pytest.mark.parametrize(
    ("element", "packs", "codes"),
    [("int4", True, 4), ("int4", False, 8), ("int8", False, 8), ("int12", False, 16)],
)
def test_how_far_two_codes_lie_apart(element: str, packs: bool, codes: int) -> None:
    numbers = spec(f"{element}:group16:fp32")
    tile = SimpleNamespace(result="codes", packs=packs)
    assert plain(stored_bits(numbers, tile)) == codes
    tile.result = "values"
    assert plain(stored_bits(numbers, tile)) == 16
    assert not plain(makes_nibbles(True, numbers, tile))


def plain(value: object) -> object:
    return getattr(value, "value", value)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["log4:token:fp32", "int2:token:fp32", "log3:token:bf16"])
def test_powers_of_two_turn_over_beside_these_numbers(fmt: str) -> None:
    """They are found by comparing; the largest number is the scale."""
    for dtype in DTYPES:
        assert wrong(turning(dtype, 24), fmt) == [], dtype
