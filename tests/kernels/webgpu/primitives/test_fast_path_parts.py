# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks as cells: every number falls into one whose codes are right, or there are none."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.primitives.fast_path import cells
from blockscale.kernels.webgpu.spec import float_of


@pytest.mark.parametrize("name", ["nf4", "iq4_nl", "book(-1,-0.5,0,0.25,1)"])
def test_codes_by_cells(name: str) -> None:
    fmt = parse(f"{name}:group32:fp32")
    found = cells(lowered(fmt).element)
    assert found is not None
    table, count, first = found["CELL_TABLE"], found["CELLS"], found["CELL_OF_ZERO"]
    assert isinstance(table, tuple) and isinstance(count, int) and isinstance(first, int)
    values = fmt.element.decode(torch.arange(2**fmt.element.bits, dtype=torch.uint8))
    values = values[values.isfinite()]
    y = torch.linspace(float(values.min()), float(values.max()), 20001)
    exact = torch.tensor([float_of(word) for word in table[:count]])
    near = exact[exact < 1e20].view(torch.int32)
    y = torch.cat([y, *((near + k).view(torch.float32) for k in (-1, 0, 1))])
    y = y[y.abs() <= values.abs().max()]
    a_one = found["CELLS_A_ONE"]
    assert isinstance(a_one, int)
    place = (y.double() * float_of(a_one)).round().long() + first  # to even, as sums round
    place = place % 2**32
    both = torch.tensor(table[count : 2 * count])[place]
    codes = torch.where(y > exact[place], both >> 4, both & 15)
    assert torch.equal(codes, fmt.element.encode(y, None, None, False).long())


@pytest.mark.parametrize(
    "name",
    [
        "int4",
        "dynamic8",  # of 8 bits
        "fp4",  # -0.0026 and 0.0026 are close
        "book(-1,1)",  # its threshold is 0
        "book(-1000,-0.002,-0.001,0.0005,1000)",  # would need too many
    ],
)
def test_tables_that_have_none(name: str) -> None:
    assert cells(lowered(f"{name}:group32:fp32").element) is None
