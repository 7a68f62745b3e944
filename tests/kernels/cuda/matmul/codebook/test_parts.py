# SPDX-License-Identifier: BSD-3-Clause
"""Tables as sums of tables of bfloat16: how many, and what they lose."""

from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.codebook.parts import nearest_of, parts_of


@pytest.mark.parametrize(
    ("name", "count", "units"),
    [
        ("iq4_nl", 1, 0), ("fp4", 1, 1), ("nf4", 2, 24), ("log8f3", 2, 24), ("log8f6", 3, 1),
        ("book(-1,-0.5,0,0.5,1)", 1, 0), ("book(0.1,-0.77,3.14159)", 2, 24), ("book(0,1)", 1, 0),
    ],
)  # fmt: skip
def test_parts_add_up_to_the_values(name: str, count: int, units: float) -> None:
    element = parse(f"{name}:tensor:fp32").element.numbers(False)
    found = parts_of(element)
    assert len(found.tables) == count
    by = Fraction(found.multiplier)
    for code, value in enumerate(element.values):
        parts = [table[code] for table in found.tables]
        if value != value:
            assert all(part != part for part in parts)
            continue
        assert all(torch.tensor(part).bfloat16().item() == part for part in parts)
        lost = abs(sum(map(Fraction, parts)) / by - Fraction(value))
        assert lost <= units * Fraction(2) ** -24 * abs(Fraction(value)), (code, value)


@pytest.mark.parametrize(("name", "units"), [("nf4", 26200), ("iq4_nl", 0), ("fp4", 1)])
def test_one_bfloat16_for_each_value(name: str, units: float) -> None:
    element = parse(f"{name}:tensor:fp32").element.numbers(False)
    found = nearest_of(element, 64)
    assert found is not None and len(found.tables) == 1
    by = Fraction(found.multiplier)
    for value, near in zip(element.values, found.tables[0], strict=True):
        assert torch.tensor(near).bfloat16().item() == near
        lost = abs(Fraction(near) / by - Fraction(value))
        assert lost <= units * Fraction(2) ** -24 * abs(Fraction(value)), value


def test_what_a_result_does_not_hide_is_not_taken() -> None:
    """Tables of so many values that some lie between two bfloat16, and sums that lose the rest."""
    nf4 = parse("nf4:tensor:fp32").element.numbers(False)
    assert nearest_of(nf4, 6500) is not None and nearest_of(nf4, 6600) is None
    assert nearest_of(parse("log8f6:tensor:fp32").element.numbers(False), 64) is None
