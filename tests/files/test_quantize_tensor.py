"""Slab by slab gives the bits of the reference on the whole tensor."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core import reference
from blockscale.core.pack import pack
from blockscale.core.parse import formats, parse
from blockscale.core.philox import named_seed
from blockscale.files.metadata import TensorInfo
from blockscale.files.slabs.pool import Pool
from blockscale.files.slabs.quantize_tensor import TensorQuantizer
from blockscale.files.slabs.slabs import SLAB, block_sizes, cut, flat_shape
from blockscale.kernels.registry import choice, use
from tests.strategies import SHAPES, spellings, tensors

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
]


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


@pytest.mark.parametrize("name", [*formats(), *MORE])
@pytest.mark.parametrize("shape", [(37, 70), (64, 128), (5, 6, 40)])
def test_slabs_equal_the_whole(name, shape):
    x = torch.randn(shape).bfloat16() * 10 ** torch.randn(shape)
    x[1, 3] = math.nan
    x[-1, 2] = -math.inf
    for elements in (1, 200, 700, 10**6):
        check(x, parse(name), elements)


@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_threads_change_nothing(name):
    x = torch.randn(64, 128)
    before = torch.get_num_threads()
    with Pool() as pool:
        check(x, parse(name), 300, run=pool.map)
    assert torch.get_num_threads() == before


def test_a_pool_keeps_to_a_backend():
    with Pool() as pool:
        assert list(pool.map(lambda item: choice().backend, range(3))) == ["auto"] * 3
        with use("reference"):
            assert list(pool.map(lambda item: choice().backend, range(3))) == ["reference"] * 3


def test_a_pool_keeps_order_and_passes_errors_on():
    torch.set_num_threads(2)
    begun = []

    def work(item):
        begun.append(item)
        if item == 7:
            raise ValueError("seven")
        return -item

    with Pool() as pool:
        assert list(pool.map(work, range(5))) == [0, -1, -2, -3, -4]
        with pytest.raises(ValueError, match="seven"):
            list(pool.map(work, range(1000)))
        assert max(begun) < 20  # it runs ahead by a few


@pytest.mark.parametrize("name", [*formats(), *MORE])
def test_empty_tensors(name):
    for shape in ((0, 32), (4, 0), (0, 0)):
        check(torch.zeros(shape), parse(name), 16)


@given(st.data())
@settings(max_examples=300)
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


@pytest.mark.parametrize("name", [*formats(), "int8:channel1:fp32", "e4m3:tile128x128:fp32"])
@pytest.mark.parametrize("shape", [(150000, 4096), (64, 5120, 16384), (4096, 9 * 4096)])
def test_slabs_are_small(name, shape):
    """However large a tensor is; a tile is 128 rows high, and cannot be less."""
    fmt = parse(name)
    shape = flat_shape(shape, fmt)
    cuts = cut(shape, block_sizes(fmt, len(shape)), SLAB)
    assert cuts.elements <= max(SLAB, 128 * shape[-1] * ("tile" in name))
    rows = sum(slab.stop - slab.start for slab in cuts.slabs)
    assert rows == math.prod(shape[: cuts.dim + 1])


def test_flat_shapes():
    assert flat_shape((3, 4, 64), parse("mxfp4")) == (12, 64)
    assert flat_shape((3, 4, 64), parse("nvfp4")) == (12, 64)
    assert flat_shape((3, 4, 64), parse("int8")) == (12, 64)
    for spelling in ("int8:channel0:fp32", "int8:tile2x2:fp32", "int8:group4@2:fp32"):
        assert flat_shape((3, 4, 64), parse(spelling)) == (3, 4, 64)


def test_a_seed_belongs_to_a_name():
    assert named_seed(0, "a.weight") == named_seed(0, "a.weight") == 285011324014053570
    seeds = {named_seed(seed, name) for seed in (0, 1) for name in ("a", "b", "1:a")}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
