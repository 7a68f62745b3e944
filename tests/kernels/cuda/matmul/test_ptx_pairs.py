# SPDX-License-Identifier: BSD-3-Clause
"""The PTX that decodes pairs of one word, run by an interpreter of PTX: every code and order."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.arithmetic.precision import pow2
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import ptx_pairs
from tests.kernels.cuda.matmul.ptx_machine import ELEMENTS, decoded, execute, halves


@pytest.mark.slow
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_in_every_pair(name: str, below: bool) -> None:
    """below: zero points of signed codes are below 0, and must not carry from one half to the
    other."""
    element = parse(f"{name}:tensor:fp32").element
    numbers = element.numbers(True)
    count, codes = 32 // element.bits, 1 << element.bits
    values = torch.stack([decoded(name, pattern) for pattern in range(codes)])
    order = ptx_pairs.order_of(numbers)
    assert sorted(order) == list(range(count))
    four, zero = 0x40804080, 5 if codes > 8 else 1
    zero = -zero if below and numbers.signed else zero
    minus = halves(0)[0] - zero - ptx_pairs.bias_of(numbers)
    given = {
        "": [],
        "scale": [four],
        "offset": [(minus.view(torch.int32).item() >> 16 & 0xFFFF) * 0x10001],
        "zero": [zero & 0xFFFFFFFF, (zero + 1) & 0xFFFFFFFF],  # one of each word
    }
    lasts = ["", "scale"]
    if numbers.family == "integer":
        lasts += ["offset", "zero"] if numbers.bits < 8 else ["offset"]
    for last in lasts:
        ptx = ptx_pairs.decode(numbers, None, last)
        for start in range(0, codes, count if last == "" else 5 * count):
            places = [[(start + i * step) % codes for i in range(count)] for step in (1, 3)]
            words = [sum(c << i * element.bits for i, c in enumerate(each)) for each in places]
            got = [halves(r) for r in execute(ptx, count, [*words, *given[last]])]
            for word, each in enumerate(places):
                mine = torch.cat(got[word * count // 2 : (word + 1) * count // 2])
                want = values[[each[i] for i in order]]
                if last == "scale":
                    want = want * 4
                elif last:
                    want = want - zero - (word if last == "zero" else 0)
                assert torch.equal(mine.nan_to_num(nan=1e9), want.nan_to_num(nan=1e9)), (
                    name,
                    start,
                )


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["e2m3", "e3m2", "int6", "log6", "uint6", "e3m2r4"])
def test_every_code_of_six_bits(name: str) -> None:
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    values = torch.stack([decoded(name, pattern) for pattern in range(64)])
    for scaled, step in ((False, 1), (True, 5)):
        found = ptx_pairs.six(numbers, scaled)
        assert sorted(found.order) == list(range(64))
        codes = [step * i % 64 for i in range(64)]
        stream = sum(c << 6 * i for i, c in enumerate(codes))
        words = [stream >> 32 * i & 0xFFFFFFFF for i in range(12)]
        got = execute(found.program, 32, [*words, 0x40804080, 0x3F003F00][: 14 if scaled else 12])
        want = values[[codes[i] for i in found.order]]
        if scaled:
            want = torch.cat([want[:32] * 4, want[32:] / 2])
        values_got = torch.cat([halves(r) for r in got])
        assert torch.equal(values_got.nan_to_num(1e9), want.nan_to_num(1e9))


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "int6", "log6"])
def test_turns_of_six_bits(name: str) -> None:
    """Codes i and 16 + i of two rows of 32, which have a factor each."""
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    values = torch.stack([decoded(name, pattern) for pattern in range(64)])
    rows = [list(range(32)), [(7 * i + 32) % 64 for i in range(32)]]
    streams = [sum(c << 6 * i for i, c in enumerate(codes)) for codes in rows]
    words = [stream >> 32 * j & 0xFFFFFFFF for j in range(6) for stream in streams]
    for half in range(2):
        for scaled in (False, True):
            ptx = ptx_pairs.six_turn(numbers, half, scaled)
            got = torch.cat(
                [halves(r) for r in execute(ptx, 16, [*words, 0x40803F00][: 12 + scaled])]
            )
            pairs = [(i, 16 + i) for i in range(8 * half, 8 * half + 8)]
            want = torch.cat([values[[codes[i] for pair in pairs for i in pair]] for codes in rows])
            if scaled:
                want = want * torch.tensor([0.5] * 16 + [4.0] * 16)
            assert torch.equal(got.nan_to_num(1e9), want.nan_to_num(1e9)), (half, scaled)


@pytest.mark.parametrize("name", ["e2m1", "e3m0", "log4", "e1m2"])
def test_exponents_that_make_up_for_a_bias(name: str) -> None:
    numbers = parse(f"{name}:tensor:fp32").element.numbers(True)
    found = ptx_pairs.pairs(numbers, None, "scale", True)
    codes = [(5 * i) % 16 for i in range(8)]
    word = sum(c << 4 * i for i, c in enumerate(codes))
    values = torch.stack([decoded(name, c) for c in codes])[list(ptx_pairs.order_of(numbers))]
    for byte in (0, 1, 2, 60, 127, found.limit):
        scale = execute(found.fast_scale, 2, [byte * 0x01010101])[0]
        got = torch.cat([halves(r) for r in execute(found.fast, 8, [word, word, scale])])
        want = values * pow2(torch.tensor([byte - 127], dtype=torch.int32))
        assert torch.equal(got, torch.cat([want, want]).to(torch.bfloat16).float()), (name, byte)


def test_an_unknown_family_is_refused() -> None:
    """Not taken for an integer of as many bits, whatever is asked of it."""
    four, six = (
        replace(parse(f"{name}:tensor:fp32").element.numbers(True), family="unheard")
        for name in ("int4", "int6")
    )
    for refused in (
        lambda: ptx_pairs.decode(four, None, ""),
        lambda: ptx_pairs.pairs(four, None, "scale", True),
        lambda: ptx_pairs.six(six, False),
        lambda: ptx_pairs.six_turn(six, 0, True),
    ):
        with pytest.raises(ValueError, match="no PTX decodes elements of the family 'unheard'"):
            refused()
