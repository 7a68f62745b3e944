# SPDX-License-Identifier: BSD-3-Clause
"""pack-quantized: compressed-tensors' own values, of any bytes; and what is refused."""

import itertools
import math

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.compressed_tensors.oracle import (
    any_bytes,
    any_scales,
    configuration,
    decompressed,
    directory,
    same,
)

I32 = torch.int32
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SIZES = [(72, 64, 32), (6, 96, 32), (5, 50, 0), (7, 33, 0), (40, 64, 16)]  # out, in, group


def packed(bits, rows, columns, group, asym=False, dtype=torch.float32):
    """(arguments, what is stored) of any codes, scales and zero points."""
    groups = columns // group if group else 1
    words = any_bytes(rows, math.ceil(columns * bits / 32) * 4).view(I32)
    stored = {"weight_packed": words, "weight_scale": any_scales(rows, groups, dtype=dtype)}
    stored["weight_shape"] = torch.tensor([rows, columns])
    if asym:
        zeros = any_bytes(math.ceil(rows * bits / 32), groups * 4, seed=9).view(I32)
        stored["weight_zero_point"] = zeros
    arguments = {"num_bits": bits, "type": "int", "symmetric": not asym}
    arguments["strategy"] = "group" if group else "channel"
    return arguments | ({"group_size": group} if group else {}), stored


def read(path):
    with bs.checkpoint(path) as model:
        assert model.producer == "compressed-tensors"
        q = model["m.weight"]
        assert str(q.format) == model.stored["m.weight"].format
        return q


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width(bits, tmp_path):
    for sizes, asym, dtype in itertools.product(SIZES, (False, True), FLOATS):
        arguments, stored = packed(bits, *sizes, asym, dtype)
        if asym and stored["weight_zero_point"].shape[0] == 1 < sizes[1] // max(sizes[2], 1):
            continue  # compressed-tensors 0.20 cannot read one row of words itself
        expected = decompressed("pack-quantized", arguments, stored)
        for config in (configuration("pack-quantized", arguments), None):
            q = read(directory(tmp_path / "d", stored, config))
            assert same(q.dequantize(dtype), expected), (sizes, asym, dtype)


def codes_of(words, bits, size):
    """The stream of a row, taken apart as an integer."""
    rows = []
    for row in words.tolist():
        whole = sum((word % 2**32) << 32 * i for i, word in enumerate(row))
        rows.append([whole >> i * bits & 2**bits - 1 for i in range(size)])
    return torch.tensor(rows)


@pytest.mark.parametrize(("bits", "asym"), [(4, False), (3, True), (1, False), (7, False)])
def test_by_hand(bits, asym, tmp_path):
    arguments, stored = packed(bits, 6, 50, 0, asym)
    q = read(directory(tmp_path / "d", stored, configuration("pack-quantized", arguments)))
    codes, middle = codes_of(stored["weight_packed"], bits, 50), 2 ** (bits - 1)
    zeros = torch.full((6, 1), middle)
    if asym:
        zeros = codes_of(stored["weight_zero_point"].mT, bits, 6).mT
    assert same(q.dequantize(), (codes - zeros).float() * stored["weight_scale"])
    assert torch.equal(q.codes.long() + (0 if asym or bits == 1 else middle), codes)


def test_whole_codes_in_each_word(tmp_path):
    """Releases of 2025 left bits of each word unused where a width does not divide 32."""
    codes = torch.randint(0, 8, (4, 320))
    words = torch.zeros(4, 32, dtype=torch.int64)
    for i in range(320):
        words[:, i // 10] |= codes[:, i] << 3 * (i % 10)
    stored = {"weight_packed": words.to(I32), "weight_scale": any_scales(4, 1)}
    stored["weight_shape"] = torch.tensor([4, 320])
    q = read(directory(tmp_path / "d", stored, None))
    assert same(q.dequantize(), (codes - 4).float() * stored["weight_scale"])


def test_a_width_that_shapes_do_not_tell(tmp_path):
    """7 bits of 2025 fill as many words as 8 of today: the configuration decides."""
    arguments, stored = packed(8, 4, 32, 0)
    words = stored["weight_packed"]
    assert read(directory(tmp_path / "d", stored, None)).format.bits == 8
    config = configuration("pack-quantized", arguments | {"num_bits": 7})
    q = read(directory(tmp_path / "d", stored, config))
    codes = torch.stack([words >> 7 * i & 127 for i in range(4)], -1).flatten(-2)
    assert same(q.dequantize(), (codes - 64).float() * stored["weight_scale"])


def test_groups_of_columns_in_another_order(tmp_path):
    arguments, stored = packed(4, 6, 64, 16)
    places = torch.arange(64).remainder(4).to(I32)  # column c is of group c mod 4
    stored["weight_g_idx"] = places
    codes = codes_of(stored["weight_packed"], 4, 64)
    expected = (codes - 8).float() * stored["weight_scale"][:, places.long()]
    path = directory(tmp_path / "d", stored, configuration("pack-quantized", arguments))
    with bs.checkpoint(path) as model:
        order = model.order("m.weight")
        assert torch.equal(model["m.weight"].dequantize(), expected[:, order])
    stored["weight_g_idx"] = torch.arange(64, dtype=I32) // 16
    assert bs.checkpoint(directory(path, stored, None)).order("m.weight") is None
    stored["weight_g_idx"] = torch.full((64,), -1, dtype=I32)
    assert bs.checkpoint(directory(path, stored, None)).order("m.weight") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight_shape": torch.tensor([6, 640])}, "no width from 1 to 8 bits fills 8 words"),
        ({"weight_shape": torch.tensor([7, 64])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6, -64])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6, 2**62])}, "its weight_shape does not match"),
        ({"weight_shape": torch.tensor([6.0, 64.0])}, "its weight_shape does not match"),
        ({"weight_shape": None}, "its weight_shape does not match"),
        ({"weight_scale": torch.ones(6, 5)}, "match no block"),
        ({"weight_scale": torch.ones(6, 4).int()}, "match no block"),
        ({"weight_scale": None}, "match no block"),
        ({"meta": torch.zeros(3).short()}, "marlin-24"),
    ],
)
def test_what_is_no_such_weight(change, reason, tmp_path):
    arguments, stored = packed(4, 6, 64, 16)
    stored = {name: each for name, each in (stored | change).items() if each is not None}
    path = directory(tmp_path / "d", stored, configuration("pack-quantized", arguments))
    with bs.checkpoint(path) as model, pytest.raises(bs.FileError, match=reason):
        model["m.weight"]


def test_zero_points_of_another_size(tmp_path):
    _, stored = packed(4, 72, 64, 16, asym=True)
    stored["weight_zero_point"] = stored["weight_zero_point"][:5]
    path = directory(tmp_path / "d", stored, None)
    with (
        bs.checkpoint(path) as model,
        pytest.raises(
            bs.FileError,
            match=r"its zero points have shape .5, 4., expected that of the scales, .72, 4.",
        ),
    ):
        model["m.weight"]
