# SPDX-License-Identifier: BSD-3-Clause
"""Chosen scales over finite numbers, many at a time: what kernels count in wide registers."""

import pytest
import torch
from torch import Tensor

from blockscale.core.parse import parse
from tests.kernels.cpu.equal import wrong
from tests.support.cpu_primitives import DTYPES, rough
from tests.support.cpu_quantize import SMALL, edges
from tests.support.some import crossed


def turning_points(element: str) -> Tensor:
    """Rows of 96 finite numbers at and beside all midpoints, the largest value in every 16."""
    top = parse(f"{element}:tensor:fp32").element.max
    x = edges(element)
    x = x[x.abs() <= top]
    x = torch.cat([x, torch.full((-x.numel() % 90,), top * 0.3)]).reshape(-1, 6, 15)
    return torch.cat([x, torch.full_like(x[..., :1], top)], -1).reshape(-1, 96)


LOGS = ("log4f1", "log5f2", "log6f2", "log6f3", "log8f1", "log8f2", "log8f3", "log8f4")


@pytest.mark.slow
@pytest.mark.parametrize("element", [*SMALL, *LOGS])
def test_midpoints_under_chosen_scales(element: str) -> None:
    """Steps are powers of two, or 1: every midpoint stays one."""
    for i, under in enumerate(("token:pow2/floor", "group16:fp32", "group32:e8m0/floor")):
        x = turning_points(element).to(list(DTYPES.values())[i % 2])
        assert wrong(x, f"{element}:{under}") == [], under
    assert wrong(turning_points(element).bfloat16(), f"{element}:group32:e8m0/floor") == []


FEW_BITS = ("e2m1", "e1m2", "e3m0", "log4", "log3", "e2m0", "e1m1", "e2m1r1", "e4m0", "log5")
TABLES = ("nf4", "fp4", "iq4_nl", "log4f1", "book(-1,-0.5,0,0.5,1)", "log6f3", "log8f3")


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("element", "scale"),
    crossed(4, [*FEW_BITS, *TABLES], ["e8m0/floor", "e8m0/even", "pow2/ceil", "fp32"]),
)
def test_every_bfloat16(element: str, scale: str) -> None:
    """Blocks of one binade, and blocks of all of them; the smallest and largest scales too."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = x.nan_to_num(0, 0, 0).reshape(256, 256)
    for block in ("group32", "token"):
        assert wrong(x, f"{element}:{block}:{scale}") == [], block
    assert wrong(x.t().contiguous(), f"{element}:group64:{scale}") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [15, 16, 17, 63, 64, 65, 79, 80, 127, 129, 191, 192, 193, 2047, 2113]
)
def test_lengths(size: int) -> None:
    """Around whole registers, of codes of every width."""
    for bits in range(1, 9):
        element = f"uint{bits}:token:fp32:asym" if bits == 1 else f"int{bits}:token:fp32"
        for seed, dtype in enumerate(DTYPES.values()):
            x = rough((3, size), 10 + seed).to(dtype)
            assert wrong(x, element) == [], (element, dtype)
            table = f"log{bits}f1:token:fp32" if bits > 3 else "book(-1,0,1):token:fp32"
            assert wrong(x, table) == [], (table, dtype)
    for fmt in (
        "binary:token:fp32",
        "ternary:token:fp32",
        "int8:channel1:fp32",
        "e2m1:group16:e4m3",
        "uint4:token:fp32:offset",
        "nf4:group16:fp16:offset",
    ):
        assert wrong(rough((5, size), 1), fmt) == [], fmt
