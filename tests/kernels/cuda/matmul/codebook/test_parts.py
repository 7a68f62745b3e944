"""Tables as sums of tables of bfloat16: how many, and what they lose."""

from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.codebook.parts import parts_of


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
