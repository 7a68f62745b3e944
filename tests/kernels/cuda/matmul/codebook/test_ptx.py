# SPDX-License-Identifier: BSD-3-Clause
"""The PTX that looks codes up in tables, run by an interpreter: every code in every place."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.element import ElementNumbers
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import ptx, ptx_pairs
from blockscale.kernels.cuda.matmul.codebook.parts import parts_of
from blockscale.kernels.cuda.matmul.codebook.ptx import is_table
from tests.kernels.cuda.matmul.ptx_machine import execute, halves


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
