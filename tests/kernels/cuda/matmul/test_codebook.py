# SPDX-License-Identifier: BSD-3-Clause
"""Tables as sums of tables of bfloat16: how many, and what they lose."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.element import ElementNumbers
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import ptx, ptx_pairs
from blockscale.kernels.cuda.matmul.codebook import is_table, nearest_of, parts_of
from tests.kernels.cuda.matmul.ptx_machine import execute, halves


@pytest.mark.slow
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


def tables(name: str) -> list[ElementNumbers]:
    element = parse(f"{name}:tensor:fp32").element.numbers(False)
    return [replace(element, values=table) for table in parts_of(element).tables]


def word(codes: list[int]) -> int:
    return sum(code << 4 * i for i, code in enumerate(codes))


@pytest.mark.parametrize("name", ["nf4", "fp4", "iq4_nl", "log4f1", "log4f2"])
def test_every_code_in_every_place(name: str) -> None:
    for element in tables(name):
        for start in range(16):
            one, other = ([(start + i * step) % 16 for i in range(8)] for step in (1, 3))
            for only in (None, range(4), range(4, 8)):
                places = only or range(8)
                text = ptx.decode_words(element, None, only)
                found = execute(text, len(places), [word(one), word(other)])
                for register, i in zip(found, places, strict=True):
                    want = [element.values[one[i]], element.values[other[i]]]
                    assert halves(register).tolist() == want, (start, i)


@pytest.mark.parametrize("last", ["", "scale"])
def test_every_code_in_every_pair(last: str) -> None:
    for element in [each for name in ("nf4", "fp4") for each in tables(name)]:
        order, text = ptx_pairs.order_of(element), ptx_pairs.decode(element, None, last)
        for start in range(16):
            each = [[(start + i * step) % 16 for i in range(8)] for step in (1, 5)]
            got = execute(text, 8, [*map(word, each), 0x40804080])
            values = torch.cat([halves(register) for register in got]).tolist()
            by = 4 if last else 1
            assert values == [by * element.values[codes[i]] for codes in each for i in order]


def test_what_is_no_table_of_bfloat16_is_refused() -> None:
    whole = parse("nf4:tensor:fp32").element.numbers(False)
    assert not is_table(whole)  # 0.6961928 has more bits
    assert not is_table(parse("int4:tensor:fp32").element.numbers(False))
    with pytest.raises(ValueError, match="or a table of 16 bfloat16"):
        ptx.decode_words(whole)
    with pytest.raises(ValueError, match="tables have no zero points, 'offset' was asked for"):
        ptx_pairs.decode(tables("iq4_nl")[0], None, "offset")
