"""Few rows: the order in which x meets the codes. The products: tests/gpu/test_linear_few.py."""

import pytest
import torch

from blockscale.core.parse import parse

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


@pytest.fixture(autouse=True)
def _interpreted() -> None:
    from blockscale.kernels import cuda

    if cuda.available() is not None or not cuda.interpreting():
        pytest.skip("for Triton's interpreter")


def met(r, small: bool) -> list[int]:
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
        if not small:  # words 4 t … 4 t + 3; a register of the first and the third, or the others
            for odd in range(2):
                for i in range(count // 2):
                    for word in (4 * t + odd, 4 * t + odd + 2):
                        found += [word * count + code for code in r.pairs.order[2 * i : 2 * i + 2]]
            continue
        for word in (t, t + 4) if r.words == 4 else (2 * t, 2 * t + 1):
            found += [word * count + code for code in r.pairs.order]
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_x_meets_its_codes(name: str) -> None:
    from blockscale.kernels.cuda.matmul.linear_few import ordered, small
    from blockscale.kernels.cuda.matmul.linear_reading import reading

    k = 320
    r = reading(str(parse(name)), k)
    bits = r.element.bits
    step = 48 if bits == 6 else 16
    whole = (k * bits // 32 // step + 2) * step  # more than there is: zeros
    width = whole * 32 // bits
    for dtype, parts in ((torch.bfloat16, 1), (torch.float16, 2), (torch.float32, 3)):
        x = torch.randn(3, k).to(dtype)
        got = ordered(x, r, whole)
        assert got.shape == (width // 32, 3 * parts, 32)
        each = met(r, small(r))
        at = [first + i for first in range(0, width, len(each)) for i in each]
        assert sorted(at) == list(range(width))
        values = torch.cat([x.double(), torch.zeros(3, width - k).double()], 1)[:, at]
        own = 64 if bits == 6 else len(each) // 4  # values of a thread, which it loads by eight
        got = got.double().reshape(-1, own // 8, parts, 3, 4, 8).sum(2)
        assert torch.equal(got.permute(2, 0, 3, 1, 4).reshape(3, width), values)


def test_what_is_taken() -> None:
    from blockscale.kernels.cuda.matmul.linear_few import takes
    from blockscale.kernels.cuda.matmul.linear_reading import reading

    def fits(name: str, words: int = 32) -> bool:
        return takes(reading(str(parse(name)), 4096), words)

    assert all(fits(name, 48 if name in ("mxfp6", "int6:token:fp32") else 32) for name in FORMATS)
    assert fits("uint4:group32:fp32:asym")
    assert not fits("uint8:group32:fp32:asym")  # zero points of 8 bits are no offsets of 128
    assert not fits("int4:group16:fp32")  # two words for four threads
    assert not fits("mxfp6")  # steps of 48 words
    assert not fits("e3m2:group16:e8m0/floor", 48)
    assert not fits("int8:group4:e8m0/floor")  # two words would have two scales
