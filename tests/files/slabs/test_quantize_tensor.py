# SPDX-License-Identifier: BSD-3-Clause
"""A tensor that is quantized slab by slab has the bits of the whole."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core import reference
from blockscale.core.block import WHOLE, Blocks, read_block
from blockscale.core.pack import pack
from blockscale.core.parse import formats, parse
from blockscale.core.shared_scales import SummedBlocks
from blockscale.files.metadata import TensorInfo
from blockscale.files.slabs.pool import Pool
from blockscale.files.slabs.quantize_tensor import TensorQuantizer
from blockscale.kernels.registry import use
from tests.support.some import crossed
from tests.support.strategies import SHAPES, spellings, tensors

MORE = [
    "int8:channel1:fp32",
    "int8:channel1:fp16:asym",
    "int4:group4@0:bf16",
    "uint8:tensor:fp32:asym:stochastic",
    "int8:tile3x5:e8m0/tosa:full",
    "e2m1:group16:(uint8:channel1:fp32)",
    "e2m1:group4@0:(uint8:group3@0:fp32):stochastic",
    "e2m1:group8:(e4m3:channel0:fp32)",
    "uint4:group8:e4m3:asym",
    "int8:tensor:e4m3",
    "binary:channel1:fp32",
    "binary:group16:e4m3",
    "ternary:tensor:fp32",
    "log4:channel0:pow2/nearest:stochastic",
    "nf4:group8:fp32",
    "nf4:flat10:fp32",  # whole rows of 70, not of 128
    "fp4:flat140:fp16",  # two rows of 70
    "iq4_nl:flat32:(uint8:tensor:fp32)",
    "nf4:flat8:(int8:flat4:fp32)",
    "int8:flat2@0:fp32",
    "uint4:group32:fp16:offset",
    "uint4:channel1:fp32:offset",
    "int8:tensor:e8m0:offset(bf16):stochastic",
    "uint4:group8:(uint6:group8:fp16):offset(uint6:group8:fp16)",
    "uint4:group8:(uint6:tensor:fp16):offset(int6:tensor:fp16)",
    "uint4:group8@0:fp32:offset(uint6:tensor:fp16)",
    "int4:group8:(int6:group4:fp16)",
    "e2m1:group8:e4m3/inv",
    "e2m1:group8:e4m3/four_six",
    "e2m1:group16:(e4m3:channel0:fp32)/four_six",
    "uint4:group16:fp16:asym(fp16)",
    "int4:group8:fp16:signed",
    "int8:block2x*:fp32",
    "log8f3:channel0:fp32",
]
pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")


def whole(x, fmt, seed):
    """What the reference stores for the whole tensor, by part."""
    qparams = reference.choose_qparams(x, fmt)
    codes = reference.quantize(x, qparams, fmt, torch.tensor(seed))
    found = {"codes": pack(codes, fmt.element), **qparams._asdict()}
    return {part: tensor for part, tensor in found.items() if tensor is not None}


def assembled(x, fmt, seed, elements, run):
    """The same from slabs; every byte is written exactly once."""

    def read(cuts, slab):
        y = x.reshape(cuts.shape)
        if not y.ndim:
            return y
        rows = slice(slab.start, slab.stop)
        return y[slab.matrix : slab.matrix + 1, rows] if cuts.dim else y[rows]

    quantizer = TensorQuantizer(read, tuple(x.shape), fmt, seed, elements, run)
    parts: dict[str, dict[int, torch.Tensor]] = {}
    for part, row, rows in quantizer.pieces():
        assert row not in parts.setdefault(part, {})
        parts[part][row] = rows
    result = {}
    for part, (dtype, stored) in TensorInfo(str(fmt), tuple(x.shape)).parts().items():
        pieces = [parts[part][row] for row in sorted(parts[part])]
        joined = torch.cat(pieces) if x.ndim else pieces[0]
        if x.ndim:
            ends = list(itertools.accumulate(len(piece) for piece in pieces))
            assert len(ends) == 1 or sorted(parts[part]) == [0, *ends[:-1]]
        assert joined.dtype == dtype
        result[part] = joined.reshape(stored)
    return result, quantizer.notes


def check(x, fmt, elements, seed=7, run=map):
    found, notes = assembled(x, fmt, seed, elements, run)
    expected = whole(x, fmt, seed)
    assert found.keys() == expected.keys()
    for part, tensor in expected.items():
        assert found[part].shape == tensor.shape, part
        bits = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[tensor.dtype.itemsize]
        assert torch.equal(found[part].contiguous().view(bits), tensor.contiguous().view(bits)), (
            part
        )
    return notes


@pytest.mark.some(12)
@pytest.mark.parametrize(
    ("name", "shape"), crossed(3, [*formats(), *MORE], [(37, 70), (64, 128), (5, 6, 40)])
)
def test_slabs_equal_the_whole(name, shape):
    x = torch.randn(shape).bfloat16() * 10 ** torch.randn(shape)
    x[1, 3] = math.nan
    x[-1, 2] = -math.inf
    for elements in (1, 200, 700, 10**6):
        check(x, parse(name), elements)


@pytest.mark.parametrize("name", ["uint4:tensor:fp32:offset", "int8:channel1:e8m0:offset"])
def test_ranges_without_zero_merge(name):
    x = torch.rand(12, 8) + torch.tensor([3.0, -5.0]).repeat(4)
    x[:4] = math.nan  # slabs without a finite value have no range
    check(x, parse(name), 8)
    check(torch.full((6, 4), math.inf), parse(name), 4)


def test_flat_blocks_that_hold_whole_rows_are_cut():
    for name, shape, several in [
        ("nf4:flat10:fp32", (37, 70), True),
        ("nf4:flat140:fp32", (37, 70), True),
        ("nf4:flat64:fp32", (37, 70), False),
        ("nf4:flat10:fp32", (3, 5, 70), True),
        ("nf4:flat10:(int8:flat4:fp32)", (37, 70), False),
    ]:
        quantizer = TensorQuantizer(lambda *_: None, shape, parse(name), 0, 70)
        assert (len(quantizer._cuts.slabs) > 1) == several, (name, shape)


@pytest.mark.some(8)
@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_threads_change_nothing(name):
    x = torch.randn(64, 128)
    before = torch.get_num_threads()
    with Pool() as pool:
        check(x, parse(name), 300, run=pool.map)
    assert torch.get_num_threads() == before


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_empty_tensors(name):
    for shape in ((0, 32), (4, 0), (0, 0)):
        check(torch.zeros(shape), parse(name), 16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no cpu kernel runs")  # of the reference, too
@given(st.data())
@settings(max_examples=120)
def test_any_format(data):
    shape = data.draw(SHAPES)
    spelling = data.draw(spellings(len(shape)))
    check(data.draw(tensors(spelling, shape)), parse(spelling), data.draw(st.integers(1, 12)))


def test_notes():
    x = torch.randn(8, 64)
    assert check(x, parse("int8_channel"), 64) == ()
    x[3, 1] = math.nan
    x[4, 1] = math.inf
    for name in ("int8", "int8_channel", "nvfp4", "mxfp4", "int8:channel1:fp32"):
        assert check(x, parse(name), 64) == ("2 of 512 weights are NaN or infinite",)
    x = torch.full((8, 64), 1e-30)
    assert check(x, parse("int8:channel0:fp16"), 64) == (
        "8 of 8 scales are outside the range of fp16",
    )
    x = torch.ones(8, 64)
    x[2:] = 1e-9
    assert check(x, parse("nvfp4"), 64) == ("24 of 32 scales are outside the range of e4m3",)


def streamed(x: torch.Tensor, block: str, rows: int) -> SummedBlocks:
    """The blocks of x [n, k] in slabs of `rows`."""
    by = read_block(block)

    def counted(power, above):
        for start in range(0, len(x), rows):
            own = slice(0, 1) if by.sizes_for(2)[0] == WHOLE else slice(start, start + rows)
            limit = None if above is None else above[own]
            yield (own,), Blocks(x[start : start + rows], by).magnitudes(power[own], limit)

    low, high = Blocks(x, by).range()
    return SummedBlocks(reference.Ranges(low, high, low > high), counted)


@pytest.mark.some(3)
@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("block", ["tensor", "channel1"])
@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e38])
def test_the_means_are_those_of_the_whole(block: str, rows: int, scale: float) -> None:
    x = torch.randn(10, 6) * scale
    x[2, 1], x[7, 3], x[9] = torch.nan, torch.inf, 0.0
    whole, pieces = Blocks(x, read_block(block)), streamed(x, block, rows)
    mean = whole.mean_magnitude()
    assert torch.equal(pieces.mean_magnitude(), mean)
    assert bool((mean > 0).all())
    above = mean * 0.7
    assert torch.equal(pieces.mean_magnitude(above), whole.mean_magnitude(above))
    assert not torch.equal(pieces.mean_magnitude(above), mean)


def test_nothing_finite_has_the_mean_zero() -> None:
    x = torch.full((4, 3), torch.nan)
    assert streamed(x, "channel1", 2).mean_magnitude().tolist() == [[0.0, 0.0, 0.0]]


def test_blocks_that_slabs_cut_cannot_compare_two_scales():
    fmt = parse("e2m1:channel1:e4m3/four_six")
    check(torch.randn(12, 8), fmt, 10**6)
    with pytest.raises(ValueError, match=r"do not lie in slabs of rows.*in memory"):
        check(torch.randn(12, 8), fmt, 8)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "name", [*formats(), "int8:block*x*:fp32", "e2m1:group16:(e4m3:block*x*:fp32)"]
)
@pytest.mark.parametrize("shape", [(40, 64), (3, 40, 64)])
def test_finite_weights_go_to_kernels_alone(name, shape, monkeypatch):
    """The reference takes twenty times as long: it is for numbers that are not finite."""
    x, fmt = torch.randn(shape).bfloat16(), parse(name)
    expected = whole(x, fmt, 7)
    for each in ("ranges", "extremes"):
        monkeypatch.setattr(reference, each, None)
    found, _ = assembled(x, fmt, 7, 700, map)
    assert all(torch.equal(found[part], expected[part]) for part in expected)


@pytest.mark.some(12)
@pytest.mark.parametrize(
    "name", ["nvfp4", "int8", "uint8:group8:fp32", "int4:group8:fp16", "mxfp4"]
)
@pytest.mark.parametrize("shape", [(40, 64), (3, 40, 64)])
def test_notes_are_those_of_the_reference(name, shape):
    x = torch.randn(shape) * 10 ** (20 * torch.randn(shape))
    x[1, 3], x[2] = math.inf, 0.0
    seen = [assembled(x, parse(name), 7, elements, map)[1] for elements in (300, 10**6)]
    with use("reference"):
        assert seen == [assembled(x, parse(name), 7, 300, map)[1]] * 2
    assert seen[0]
