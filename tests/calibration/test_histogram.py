# SPDX-License-Identifier: BSD-3-Clause
"""Binning from bits, and growing: against numpy.histogram of the final range."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.calibration.histogram import BINS, Histogram

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
        with pytest.raises(ValueError, match="finite and at least 0"):
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
