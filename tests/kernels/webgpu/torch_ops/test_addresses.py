# SPDX-License-Identifier: BSD-3-Clause
"""Dimensions that say the same are one; broadcast ones have no stride."""

import pytest
import torch

from blockscale.kernels.webgpu.torch_ops.addresses import addresses, broadcast, joint, merged
from blockscale.kernels.webgpu.torch_ops.copies import sent


def test_merged() -> None:
    assert merged((2, 3, 4), [(12, 4, 1)]) == [(24, 1)]
    assert merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == [(2, 12, 0), (12, 1, 1)]
    assert merged((2, 3, 4), [(1, 2, 6)]) == [(2, 1), (3, 2), (4, 6)]
    assert merged((1, 5, 1), [(9, 2, 7)]) == [(5, 2)]
    assert merged((), [()]) == []


def test_broadcast() -> None:
    assert broadcast((2, 3, 4), (3, 1), (5, 1)) == (0, 5, 0)
    assert broadcast((2,), (), ()) == (0,)


def test_joint() -> None:
    shapes = [(), (1,), (3,), (4, 1), (2, 1, 3), (2, 4, 1), (0,), (1, 1, 1, 1), (4, 0)]
    for a in shapes:
        for b in shapes:
            for c in ((), (1, 3)):
                try:
                    expected = tuple(torch.broadcast_shapes(a, b, c))
                except RuntimeError:
                    with pytest.raises(
                        RuntimeError, match="cannot be broadcast: sizes must be equal, or 1"
                    ):
                        joint(a, b, c)
                else:
                    assert joint(a, b, c) == expected


def test_straight_only_where_all_lies_alike(device: torch.device) -> None:
    del device
    x = sent(torch.ones(4, 6))
    assert addresses((4, 6), [x, x]).address == "straight"
    assert addresses((4, 6), [x], always=True).address == "strided"
    assert addresses((2, 4, 6), [x]).address == "strided"
    assert addresses((6, 4), [x.T]).address == "strided"  # type: ignore[list-item]
    assert addresses((3, 6), [x[1:]]).constants == (("OPERANDS", 1),)  # type: ignore[list-item]


def test_the_same_geometry_is_uploaded_once(device: torch.device) -> None:
    del device
    x, y = sent(torch.ones(4, 6)), sent(torch.ones(4, 6))
    first = addresses((6, 4), [x.T]).buffers["geometry"]  # type: ignore[list-item]
    assert addresses((6, 4), [y.T]).buffers["geometry"] is first  # type: ignore[list-item]
