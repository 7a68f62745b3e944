# SPDX-License-Identifier: BSD-3-Clause
"""What parts of a cache in codes sum up to, against float64: shapes, masks, what is not finite,
scales that multiply codes."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.cached_attention import PartSettings, both_readings
from tests.support.caches import cached, close, exact
from tests.support.cuda_attention import SMALL, by_kernel

FOLDED = ("mxfp4", "nvfp4_token", "int4:group8:(e4m3:token:fp32)",
           "e2m1:group16:(e5m2:token:fp32)")  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "new", "tokens", "recent", "depth", "width", "settings"),
    [
        (2, 1, 33, 1, 64, 64, SMALL),
        (4, 2, 64, 2, 64, 32, PartSettings(16, 1, 4, 2)),  # warps that have tokens of their own
        (8, 3, 31, 40, 32, 96, SMALL),  # 12 queries; recent ones in two parts
        (2, 1, 17, 1, 96, 160, PartSettings(32, 1, 1, 3)),  # words that are no power of two
    ],
)
def test_shapes(
    heads: int, new: int, tokens: int, recent: int, depth: int, width: int, settings: PartSettings
) -> None:
    keys, values, k, v, key, value = cached(
        "int4:group32:fp32", tokens, recent, depth=depth, width=width, values="int8:token:fp32",
        batch=1,
    )  # fmt: skip
    query = torch.randn(1, heads, new, depth)
    y = by_kernel(query, keys, values, k, v, None, 0.2, settings)
    close(y, exact(query, key, value, None, None, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_masks(kind: str, heads: int) -> None:
    """Of each head or of all; also where a row sees nothing, of a part or at all: zeros."""
    keys, values, k, v, key, value = cached("int4:group32:fp32", 45, 2)
    query = torch.randn(2, 4, 2, 64)
    seen = torch.rand(2, heads, 2, 47) < 0.6
    seen[0, 0, 1] = False
    seen[1, :, :, :32] = False
    added = torch.randn(2, heads, 2, 47)
    y = by_kernel(query, keys, values, k, v, seen if kind == "seen" else added, 0.125)
    of = (seen, None) if kind == "seen" else (None, added)
    close(y, exact(query, key, value, *of, 0.125))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN")  # numpy's, of the largest of nothing
def test_what_is_not_finite_stays_in_its_row() -> None:
    keys, values, k, v, _, _ = cached("int8_token", 40, 2)
    query = torch.randn(2, 4, 1, 64)
    query[0, 1] = math.nan
    v[1, 0, 1, 5] = math.nan
    expected = torch.zeros(2, 4, 1, 64, dtype=torch.bool)
    expected[0, 1] = True
    expected[1, :2, :, 5] = True
    assert torch.equal(by_kernel(query, keys, values, k, v, None, 0.125).isnan(), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FOLDED)
def test_folded_formats(fmt: str) -> None:
    """Three parts of codes, of which the last is short, and one of floats."""
    keys, values, k, v, key, value = cached(fmt, 70, 5, batch=1)
    assert all(each.fold for each in both_readings(keys, values))
    query = torch.randn(1, 4, 1, 64)
    y = by_kernel(query, keys, values, k, v, None, 0.125)
    close(y, exact(query, key, value, None, None, 0.125))
