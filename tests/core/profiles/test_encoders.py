# SPDX-License-Identifier: BSD-3-Clause
"""Rows of blocks as numbers lie in memory, and back."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.core.profiles import encoders
from blockscale.core.profiles.encoders import (
    Padded,
    first_largest,
    in_blocks,
    nearest_int,
    ordered_sum,
    put_back,
    square_root,
    whole,
)
from blockscale.core.reference import QParams


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        ("group8", (12, 8)),
        ("flat16", (6, 16)),
        ("channel0", (2, 48)),
        ("tensor", (1, 96)),
    ],
)
def test_rows_are_blocks(block: str, shape: tuple[int, int]) -> None:
    fmt = parse(f"int8:{block}:fp32:full")
    x = torch.randn(2, 3, 16).bfloat16()
    blocks = in_blocks(x, fmt)
    assert tuple(blocks.shape) == shape and blocks.dtype == torch.bfloat16
    assert torch.equal(blocks.reshape(x.shape), x)
    scale = torch.arange(shape[0]) + 1.0
    codes, qparams = put_back(x, fmt, torch.ones(shape), scale=scale)
    assert codes.dtype == torch.int8 and codes.shape == x.shape
    assert qparams.scale.flatten().tolist() == scale.tolist()
    expanded = fmt.block.expand(qparams.scale, x.shape).expand(x.shape).reshape(shape)
    assert torch.equal(expanded, scale[:, None].expand(shape))


@pytest.mark.parametrize("block", ["group8@0", "tile4x4", "channel1", "flat8@0"])
def test_other_blocks_are_refused(block: str) -> None:
    with pytest.raises(ValueError, match="are not runs of consecutive numbers"):
        in_blocks(torch.zeros(8, 8), parse(f"int8:{block}:fp32"))


def test_blocks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks of 64 do not divide a tensor of \(3, 50\)"):
        in_blocks(torch.zeros(3, 50), parse("int8:flat64:fp32"))


def test_a_number_for_every_block() -> None:
    assert whole(torch.zeros(2, 1), 7.0).tolist() == [[7.0], [7.0]]


def test_rows_are_padded_with_zeros_to_whole_groups() -> None:
    seen = []

    def encoder(x: torch.Tensor, fmt: bs.Format) -> tuple[torch.Tensor, QParams]:
        seen.append(x)
        return put_back(x, fmt, x, scale=in_blocks(x, fmt)[:, 0])

    fmt = parse("int8:group8:fp32")
    for columns, whole_columns in ((16, 16), (13, 16), (3, 8)):
        x = torch.arange(2 * columns).reshape(2, columns).float()
        codes, qparams = Padded(encoder)(x, fmt)
        assert seen[-1].shape == (2, whole_columns) and not seen[-1][:, columns:].any()
        assert torch.equal(codes, x.to(torch.int8)) and codes.is_contiguous()
        assert qparams.scale.shape == (2, whole_columns // 8)


# Of numbers of one magnitude, the first decides about the sign.


def test_the_first_of_equals() -> None:
    x = torch.tensor([[1.0, -2.0, 2.0, 0.0], [-1.0, 2.0, -2.0, -0.0], [1.0, 1.0, 3.0, 0.0]])
    largest, size = first_largest(x)
    assert largest.tolist() == [1.0, -2.0, 3.0, 0.0]
    assert size.tolist() == [1.0, 2.0, 3.0, 0.0]


# Cutting into super-blocks and putting together: any shape, in chunks.


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "iq4_xs"])
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 2, 256)
    profile = bs.profile(f"gguf.{name}")
    whole = bs.quantize(x, profile)
    monkeypatch.setattr(encoders, "_CHUNK", 3)
    again = bs.quantize(x, profile)
    assert torch.equal(again.packed, whole.packed)
    for part in whole.format.parts:
        assert torch.equal(getattr(again.qparams, part), getattr(whole.qparams, part))


def test_nothing_to_encode() -> None:
    q = bs.quantize(torch.zeros(0, 256), bs.profile("gguf.q4_k"))
    assert q.shape == (0, 256)
    found = {part: tuple(getattr(q.qparams, part).shape) for part in q.format.parts}
    assert found == {part: shape for part, (_, shape) in q.format.stored((0, 256)).items()}


# Float32 as compiled C has it, against numpy's, one number at a time.


def test_a_sum_is_in_order() -> None:
    terms = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])
    assert ordered_sum(terms).item() == 0.0  # each 1 is lost; together they are not
    assert ordered_sum(terms.flip(0)).item() == 2.0
    x = torch.randn(40, 7)
    total = np.zeros(7, dtype=np.float32)
    for row in x.numpy():
        total = total + row
    assert ordered_sum(x).tolist() == total.tolist()


def test_nearest_int() -> None:
    x = torch.tensor([0.5, 1.5, -0.5, -2.5, 3.49999, 4194303.0])
    assert nearest_int(x).tolist() == [0, 2, 0, -2, 3, 4194303]
    x = torch.linspace(-1000, 1000, 4001)  # halves and quarters among them
    assert torch.equal(nearest_int(x), x.round().int())
    # beyond 2^22 as in C: what the last bits say
    assert nearest_int(torch.tensor([float("inf"), float("nan")])).tolist() == [-(2**22), 0]


def test_roots_are_rounded_once() -> None:
    x = torch.rand(20000) * torch.linspace(-60, 60, 20000).exp2()
    expected = np.sqrt(x.numpy())  # IEEE 754: correctly rounded
    assert square_root(x).numpy().tobytes() == expected.tobytes()
