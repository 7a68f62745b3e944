# SPDX-License-Identifier: BSD-3-Clause
"""The order in which x meets the codes, of every way to decode them, and x in parts."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.order import by_planes, for_few, for_fused, in_parts
from blockscale.kernels.cuda.matmul.reading import Reading, reading
from tests.support.cuda_equal import DEVICE

FORMATS = (
    *("mxfp4", "int8_channel", "fp8", "int2:group64:e8m0/floor", "binary:token:fp32"),
    *(
        "mxfp6",
        "int6:token:fp32",
        "int4:group32:fp32",
        "int4:group64:fp32",
        "int8:group16:fp32",
        "int2:group64:fp32",
    ),
)


def met(r: Reading) -> list[int]:
    """Codes of 16 words (8 of small blocks, 12 of 6 bits) as x must come.

    By threads of four; by products of the tensor core, whose right operand gives a thread t the
    rows 2 t, 2 t + 1 and, in a second register, 2 t + 8, 2 t + 9 (PTX ISA, mma.m16n8k16): the left
    operand's registers are pairs of codes as `decode` gives them, of the words that t reads.
    """
    if not r.planes:
        return list(r.pairs.order)
    count = r.planes
    found = []
    for t in range(4):
        if (
            not r.small_blocks
        ):  # words 4 t … 4 t + 3; a register of the first and the third, or the others
            for odd in range(2):
                for i in range(count // 2):
                    for word in (4 * t + odd, 4 * t + odd + 2):
                        found += [word * count + code for code in r.pairs.order[2 * i : 2 * i + 2]]
            continue
        for word in (t, t + 4) if r.words == 4 else (2 * t, 2 * t + 1):
            found += [word * count + code for code in r.pairs.order]
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize("name", FORMATS)
def test_x_meets_its_codes(name: str) -> None:
    k = 320
    r = reading(str(parse(name)), k)
    bits = r.element.bits
    step = 48 if bits == 6 else 16
    whole = (k * bits // 32 // step + 2) * step  # more than there is: zeros
    width = whole * 32 // bits
    for dtype, parts in ((torch.bfloat16, 1), (torch.float16, 2), (torch.float32, 3)):
        x = torch.randn(3, k, device=DEVICE).to(dtype)
        got = for_few(x, r, whole)
        assert got.shape == (width // 32, 3 * parts, 32)
        each = met(r)
        at = [first + i for first in range(0, width, len(each)) for i in each]
        assert sorted(at) == list(range(width))
        values = torch.cat([x.double(), torch.zeros(3, width - k, device=DEVICE).double()], 1)[
            :, at
        ]
        own = 64 if bits == 6 else len(each) // 4  # values of a thread, which it loads by eight
        got = got.double().reshape(-1, own // 8, parts, 3, 4, 8).sum(2)
        assert torch.equal(got.permute(2, 0, 3, 1, 4).reshape(3, width), values)


@pytest.mark.slow
@pytest.mark.parametrize("planes", [4, 8])
@pytest.mark.parametrize("k", [640, 1152, 1160])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_order(planes, k, dtype):
    """A permutation of each row, zeros after it; its parts add up to what it was."""
    x = torch.randn(5, k, device=DEVICE).to(dtype)
    out = for_fused(x, planes).float()
    width = -(-k // (16 * planes)) * 16 * planes
    out = out.reshape(-1, 5, width).sum(0)
    padded = torch.zeros(5, width, device=DEVICE)
    padded[:, :k] = x.float()
    groups = padded.reshape(5, -1, 16, planes).transpose(2, 3)
    assert torch.equal(out, groups.reshape(5, width))


@pytest.mark.parametrize(("planes", "slots"), [(8, 4), (8, 1), (4, 2), (4, 1), (16, 8), (32, 16)])
def test_order_by_slots(planes, slots):
    """Of four words at a time two pairs of codes of each are 16 neighbours, as hardware reads."""
    x = torch.randn(3, 1184, device=DEVICE).bfloat16()
    out = for_fused(x, planes, slots).float()
    padded = torch.zeros(3, out.shape[1], device=DEVICE)
    padded[:, :1184] = x.float()
    pairs = [(i, slots + i) if slots > 1 else (2 * i, 2 * i + 1) for i in range(planes // 2)]
    places = [
        word * planes + code
        for four in range(0, out.shape[1] // planes, 4)
        for product in range(planes // 4)
        for pair in pairs[2 * product : 2 * product + 2]
        for word in range(four, four + 4)
        for code in pair
    ]
    assert torch.equal(out, padded[:, places])


def test_order_keeps_what_is_not_finite():
    x = torch.zeros(3, 128, device=DEVICE)
    x[0, 5], x[1, 9] = float("nan"), float("inf")
    out = for_fused(x, 8).float().reshape(3, 3, 128)
    assert out[:, 0].isnan().any()
    assert not out[:, 1].isnan().any()
    assert out[:, 1].sum() == float("inf")


@pytest.mark.parametrize(
    ("dtype", "parts"), [(torch.bfloat16, 1), (torch.float16, 2), (torch.float32, 3)]
)
def test_parts_are_x(dtype: torch.dtype, parts: int) -> None:
    """Exactly, each of 8 bits; of strided rows too."""
    x = torch.randn(5, 2, 97, device=DEVICE).to(dtype)[:, 1]
    for each in (in_parts(x), in_parts(x.t().contiguous().t())):
        assert (each.shape, each.dtype) == ((parts * 5, 97), torch.bfloat16)
        assert torch.equal(each.double().reshape(parts, 5, 97).sum(0), x.double())


@pytest.mark.parametrize("planes", [4, 8, 32])
def test_planes(planes: int) -> None:
    """The i-th matrix has every word's i-th element, of all parts one after the other."""
    x = torch.randn(3, 160, device=DEVICE)
    each = by_planes(x, planes)
    assert each.shape == (planes, 9, 160 // planes)
    for i in range(planes):
        assert torch.equal(each[i].double().reshape(3, 3, -1).sum(0), x[:, i::planes].double())
