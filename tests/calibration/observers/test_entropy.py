# SPDX-License-Identifier: BSD-3-Clause
"""The entropy threshold against a brute-force search: loops over numpy arrays, in float64."""

import numpy as np
import pytest
import torch

import blockscale as bs

LEVELS = {"int4": np.arange(8.0), "int8": np.arange(128.0)}
LEVELS["e2m1"] = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def histogram(values, edges):
    return np.histogram(values, edges)[0].astype(np.float64)


def divergence(counts, edges, codes, inside):
    """KL of the clipped distribution and its quantized form; codes: of every bin's middle."""
    p, q = counts[:inside].copy(), np.zeros(inside)
    full = [i for i in range(inside) if counts[i] > 0]
    p[full[-1]] += counts[inside:].sum()
    groups = {}
    for i in full:
        groups.setdefault("zero" if i == 0 else codes[i], []).append(i)
    for members in groups.values():
        mass = sum(counts[i] for i in members)
        width = sum(edges[i + 1] - edges[i] for i in members)
        for i in members:
            q[i] = mass * (edges[i + 1] - edges[i]) / width
    p, q = p / p.sum(), q / q.sum()
    return sum(p[i] * np.log(p[i] / q[i]) for i in full)


def brute_force(x, element):
    """(threshold, its divergence, all divergences) over the candidates in the docstring."""
    magnitudes = np.abs(x.double().numpy())
    amax = magnitudes.max()
    top = int(np.floor(np.log2(amax)))
    edges = [0.0] + [2.0 ** (top - 15 + i // 256) * (1 + i % 256 / 256) for i in range(1, 4097)]
    edges = np.array(edges)
    counts = histogram(magnitudes, edges)
    middles = (edges[1:] + edges[:-1]) / 2
    middles[0] = 0
    middles = np.minimum(middles, amax)
    levels = LEVELS[element]
    found = []
    for inside in range(4096, 1024, -16):
        threshold = min(edges[inside], amax)
        if np.count_nonzero(counts[:inside]) < len(levels) and found:
            continue
        steps = middles / (threshold / levels[-1])
        codes = np.abs(steps[:, None] - levels).argmin(1)  # no middle is on a tie, almost surely
        found.append((divergence(counts, edges, codes, inside), threshold))
    return min(found, key=lambda pair: pair[0])[1], found


def seeing(x, fmt):
    observer = bs.observers.make("entropy", fmt)
    observer.observe(x)
    return observer


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("element", ["int4", "e2m1", "int8"])
@pytest.mark.parametrize("name", ["normal", "heavy", "relu"])
def test_the_threshold_is_the_brute_force_one(element, name):
    normal = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    x = {"normal": normal, "heavy": normal**3, "relu": normal.relu()}[name]
    threshold, found = brute_force(x, element)
    low, high, _ = seeing(x, f"{element}:tensor:fp32").range()
    assert len({t for _, t in found}) > 30
    np.testing.assert_allclose(max(-low.item(), high.item()), threshold, rtol=1e-6)


def test_outliers_are_clipped_and_zeros_do_not_pull():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(50_000, generator=generator)
    plain = seeing(x, "int8").range().high.item()
    assert 3.5 < plain <= x.abs().max()
    outlier = seeing(torch.cat([x, torch.tensor([200.0])]), "int8").range().high.item()
    assert 3.5 < outlier < 10
    sparse = seeing(torch.cat([x, torch.zeros(400_000)]), "int8").range().high.item()
    assert sparse > 3.0


def test_what_is_exact_or_scarce_is_not_clipped():
    assert seeing(torch.arange(-127.0, 128.0), "int8").range().high == 127
    x = torch.randn(100, generator=torch.Generator().manual_seed(5)).abs()
    assert seeing(x, "int8").range().high == x.max()  # fewer values than codes
    few = torch.cat([torch.full((50,), 0.01), torch.tensor([1.0])])
    assert seeing(few, "int8").range().high == 1
    assert seeing(few, "int16").range().high == 1
    assert seeing(torch.zeros(10), "int8").range().high == 0


def test_both_sides_where_signs_matter():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20_000, generator=generator)
    x = torch.cat([x.clamp(min=-0.3), torch.tensor([90.0])])
    low, high, _ = seeing(x, "uint8:tensor:fp32:asym").range()
    assert low == x.min()
    assert 2.5 < high < 10
    mirrored = seeing(-x, "uint8:tensor:fp32:asym").range()
    assert mirrored.low == -high and mirrored.high == -low


@pytest.mark.slow
def test_each_block_has_its_own():
    x = torch.randn(3000, 3, generator=torch.Generator().manual_seed(4)) ** 3
    x = x * torch.tensor([1.0, 1000.0, 1e-20])
    high = torch.maximum(-seeing(x, "int4:channel-1:fp32").range().low,
                         seeing(x, "int4:channel-1:fp32").range().high)  # fmt: skip
    for i in range(3):
        low, alone, _ = seeing(x[:, i], "int4:tensor:fp32").range()
        assert high[0, i] == max(-low, alone)
