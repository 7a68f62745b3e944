# SPDX-License-Identifier: BSD-3-Clause
"""Binning from bits, and growing: against numpy.histogram of the final range."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.histogram import (
    BINS,
    CAPACITY,
    Histogram,
    KeptValues,
    pinned,
    round_trips,
)
from blockscale.core import reference
from blockscale.core.block import Blocks
from tests.calibration.observers.seen import FORMATS as SEEN_FORMATS
from tests.calibration.observers.seen import draw

EDGES = [0.0, 2.0**-149, 2.0**-126, 2.0**-126 - 2.0**-149, 1.0, 1 - 2.0**-24, 1 + 2.0**-23]
EDGES += [1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-23, 2.0**-15, 2.0**-16, (2 - 2.0**-23) * 2.0**127]


class Counting(Histogram):
    name = "counting"


def counted(fmt, *batches):
    observer = Counting(fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


def by_numpy(values, amax):
    """Counts of |values| in 256 bins an octave, 16 octaves up to that of amax, from scratch."""
    values = np.abs(np.asarray(values, np.float64))
    top = max(int(np.floor(np.log2(amax))) if amax else -127, -127)
    if top > -127 and 2.0**top > amax:  # log2 rounds up just below a power of two
        top -= 1
    edges = [0.0]
    for place in range(1, BINS + 1):
        octave = top - 15 + place // 256
        step = place % 256 / 256
        if octave < -126:  # the subnormals have the width of the smallest octave
            octave, step = -126, step - 1 if octave == -127 else -1.0
        edges.append(2.0**octave * (1 + step))
    edges[-1] = np.inf
    keep = [i for i in range(BINS + 1) if i == 0 or edges[i] > edges[i - 1]]
    counts = np.zeros(BINS, np.int64)
    found, _ = np.histogram(values, np.array(edges)[keep])
    counts[[i - 1 for i in keep[1:]]] = found
    return counts


@pytest.mark.parametrize("amax", [1.0, 1.9999999, 2.0, 3.3e38, 2.0**-112, 2.0**-120, 1e-40])
def test_bins_are_numpy_s(amax):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3000, generator=generator) * torch.rand(3000, generator=generator) ** 20 * amax
    x = torch.cat([x, torch.tensor([e for e in EDGES if e <= amax] + [amax])])
    found = counted("int8", x).counts.flatten().numpy()
    np.testing.assert_array_equal(found, by_numpy(x, float(torch.tensor(amax))))


def test_every_boundary_and_its_neighbours():
    edges = counted("int8", torch.tensor(1.5)).edges().flatten()
    assert edges[0] == 0 and edges[-1] == 2 and bool((edges.diff() > 0).all())
    below = torch.nextafter(edges[1:], torch.tensor(0.0))
    counts = counted("int8", torch.cat([edges[:-1], below])).counts.flatten()
    assert counts.tolist() == [2] * BINS  # each has its lower edge and the float below its upper


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(floats | st.sampled_from(EDGES), min_size=1, max_size=8), min_size=1))
def test_growing_is_counting_from_the_start(batches):
    tensors = [torch.tensor(batch) for batch in batches]
    whole = torch.cat(tensors)
    grown = counted("int8:tensor:fp32:full", *tensors)
    amax = float(whole.abs().max())
    signs = torch.signbit(whole)
    for side, chosen in enumerate((whole[~signs], whole[signs])):
        found = grown.counts[0, 0, side].numpy()
        np.testing.assert_array_equal(found, by_numpy(chosen, amax))


@pytest.mark.some(2)
@pytest.mark.parametrize("block", ["tensor", "channel-1", "channel0", "token", "group3", "tile2x4"])
def test_each_block_has_its_own(block):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, generator=generator) * torch.logspace(-9, 9, 8)
    y = x.flip(0, 1) * 1000
    observer = counted(f"int8:{block}:fp32", x, y)
    shape = observer.format.block.scale_shape(x.shape)
    owner = torch.arange(observer.low.numel()).reshape(shape)
    owner = observer.format.block.expand(owner, x.shape).expand(x.shape)
    counts = observer.counts.reshape(-1, BINS).numpy()
    for i in range(len(counts)):
        mine = torch.cat([x[owner == i], y[owner == i]])
        np.testing.assert_array_equal(counts[i], by_numpy(mine, float(mine.abs().max())))


def test_sides_follow_the_format():
    for fmt, sides in (
        ("int8:tensor:fp32", 1), ("e4m3:tensor:fp32", 1), ("uint8:tensor:fp32", 2),
        ("int8:tensor:fp32:asym", 2), ("int8:tensor:fp32:half", 2), ("int8:tensor:fp32:down", 2),
        ("int8:tensor:fp32:toward_zero", 1),
    ):  # fmt: skip
        assert Counting(fmt).sides == sides


def test_weights_are_summed_beside_the_counts():
    x = torch.tensor([[1.0, 2.0], [-1.0, torch.nan]])
    observer = Counting("int8:tensor:fp32", weighted=True)
    observer.observe(x, weight=torch.tensor([0.5, 3.0]))
    observer.observe(torch.tensor([[1.0]]))
    bins = observer.bins()
    assert bins.mass[bins.mass > 0].tolist() == [2.0, 3.0]  # 0.5 + 0.5 + 1, and 3
    assert observer.counts.sum() == 4
    for bad in (-1.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match="finite and >= 0"):
            observer.observe(x, weight=torch.tensor(bad))
    with pytest.raises(RuntimeError, match="expand"):
        observer.observe(x, weight=torch.ones(3))
    assert int(observer.samples) == 5


def test_too_many_blocks_are_refused_before_memory_is_taken():
    observer = bs.observers.make("mse", "int8:group16:fp32")
    with pytest.raises(
        ValueError, match=r"histograms of 262144 blocks would take 8\.0 GiB.*min_max"
    ):
        observer.observe(torch.zeros(1024, 4096))
    assert observer.shape is None and int(observer.samples) == 0


# What a format makes of values under candidate ranges is what the reference makes of them.

FORMATS = [
    "int4:token:fp32", "uint4:token:fp16:asym", "e2m1:token:e8m0/floor", "int8:token:pow2/ceil",
    "int4:token:fp32:full", "log4:token:bf16", "int8:token:fp32:up",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_candidate_is_the_reference_s_round_trip(name: str) -> None:
    x, fmt = torch.randn(5, 12), bs.parse(name)
    low, high = Blocks(x, fmt.block).range()
    fractions = torch.tensor([1.0, 0.5, 2.0, 0.0])[:, None, None]
    found = round_trips(x, fractions * low, fractions * high, fmt)
    assert found.shape == (4, 5, 12)
    for each, fraction in zip(found, fractions, strict=True):
        nowhere = torch.zeros_like(low, dtype=torch.bool)
        qparams = reference.qparams_from_range(fraction * low, fraction * high, nowhere, fmt)
        assert torch.equal(each, reference.fake_quantize(x, qparams, fmt))


def test_the_outer_scale_stays_where_one_block_alone_sets_it() -> None:
    fmt = bs.parse("e2m1:group4:e4m3")
    x = torch.tensor([[1.0, 0, 0, 0, -6.0, 0, 0, 0, 3.0, 0, 0, 0]])
    low, high = Blocks(x, fmt.block).range()
    assert pinned(low, high, fmt).tolist() == [[False, True, False]]
    outer = reference.choose_qparams(x, fmt).outer
    shrunk = torch.where(pinned(low, high, fmt), 1.0, 0.1)
    nowhere = torch.zeros_like(low, dtype=torch.bool)
    again = reference.qparams_from_range(low * shrunk, high * shrunk, nowhere, fmt)
    assert torch.equal(again.outer, outer)


def test_nothing_is_pinned_without_an_outer_scale() -> None:
    x = torch.randn(2, 8)
    for name in ("int4:group4:fp32", "mxfp4", "e2m1:tensor:e4m3"):  # or where one block is alone
        fmt = bs.parse(name)
        assert not bool(pinned(*Blocks(x, fmt.block).range(), fmt).any())


# Values kept as they are, then a histogram: what a format does to them.


def of(fmt: str, *batches: torch.Tensor) -> KeptValues:
    values = KeptValues(fmt)
    for x in batches:
        values.observe(x)
    return values


def measured(x: torch.Tensor, fmt: str) -> float:
    """The error of the scales that the format itself chooses, element by element."""
    plain = str(bs.parse(fmt).deterministic)
    return float((bs.fake_quantize(x, plain).double() - x).square().mean())


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", SEEN_FORMATS)
def test_the_error_is_exact_while_everything_is_kept(fmt: str) -> None:
    x = draw(24, 48) * torch.linspace(0.1, 9, 48)
    values = of(fmt, x[:8], x[8:]) if "group" not in fmt else of(fmt, x)
    assert values.exact
    low, high, _ = bs.core.reference.ranges(x, values.format)
    points = values.points()
    assert points.mass.sum() == x.numel()
    # a two-level scale is multiplied by reciprocals in another order: the last bit may differ
    found = points.mean_squared_error(low, high, values.format)
    assert found == pytest.approx(measured(x, fmt), rel=1e-5 if "e4m3" in fmt else 1e-12)


def test_blocks_of_unequal_numbers() -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0], [torch.inf, torch.nan, 4.0], [7.0, torch.nan, 5.0]])
    points = of("int8:channel-1:fp32", x).points()
    assert points.mass.sum(1).tolist() == [2, 0, 3]
    assert points.value[points.mass > 0].tolist() == [1, 7, 3, 4, 5]


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint4:channel-1:fp32:asym"])
def test_the_histogram_is_off_by_half_a_bin(fmt: str) -> None:
    """The root mean square is a distance to the codes: it moves no farther than the values do."""
    x = draw(CAPACITY // 8 + 1, 8) ** 3
    values = of(fmt, x)
    assert not values.exact
    assert values.kept.numel() == 0
    low, high, _ = bs.core.reference.ranges(x, values.format)
    found = values.points().mean_squared_error(low, high, values.format) ** 0.5
    off = (x.double().square().mean() * 2.0**-18 + (x.abs().max() * 2.0**-14) ** 2).sqrt()
    assert abs(found - measured(x, fmt) ** 0.5) <= off


def test_what_is_kept_is_given_up_at_once() -> None:
    values = of("int8:tensor:fp32", draw(CAPACITY))
    assert values.kept.numel() == values.owner.numel() == CAPACITY
    other = of("int8:tensor:fp32", draw(1))
    assert values.merge_(other).kept.numel() == 0
    assert not values.exact
