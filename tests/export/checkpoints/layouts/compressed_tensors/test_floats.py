"""Floats and plain integers in compressed-tensors' layouts: its own values, of any bytes."""

import pytest
import torch

import blockscale as bs
from tests.export.checkpoints.layouts.compressed_tensors.oracle import (
    E4M3,
    any_bytes,
    any_scales,
    configuration,
    decompressed,
    directory,
    same,
)

POWERS = any_bytes(16, 2, seed=3) % 255
FOUR = {"num_bits": 4, "type": "float", "symmetric": True}
MX = {"type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
PACKED = {
    "nvfp4-pack-quantized": (
        FOUR | {"strategy": "tensor_group", "group_size": 16},
        {"weight_packed": any_bytes(16, 32), "weight_scale": any_bytes(16, 4, seed=3).view(E4M3),
         "weight_global_scale": torch.tensor([123.456])},
    ),
    "mxfp4-pack-quantized": (
        MX | {"num_bits": 4}, {"weight_packed": any_bytes(16, 32), "weight_scale": POWERS},
    ),
    "mxfp6-pack-quantized": (
        MX | {"num_bits": 6}, {"weight_packed": any_bytes(16, 48), "weight_scale": POWERS},
    ),
    "mxfp8-quantized": (
        MX | {"num_bits": 8}, {"weight": any_bytes(16, 64).view(E4M3), "weight_scale": POWERS},
    ),
}  # fmt: skip
FORMATS = {
    "nvfp4-pack-quantized": "e2m1:group16:e4m3/inv",
    "mxfp4-pack-quantized": "e2m1:group32:e8m0/given",
    "mxfp6-pack-quantized": "e2m3:group32:e8m0/given",
    "mxfp8-quantized": "e4m3:group32:e8m0/given",
}
BLOCKS = [
    ("tensor", (1,), {}), ("channel", (8, 1), {}), ("group", (8, 4), {"group_size": 16}),
    ("block", (2, 2), {"block_structure": [4, 32]}),
]  # fmt: skip


def read(path, layout=None):
    with bs.checkpoint(path) as model:
        assert layout is None or model.stored["m.weight"].kind == layout
        return model["m.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", PACKED)
def test_blocks(layout, tmp_path):
    arguments, stored = PACKED[layout]
    expected = decompressed(layout, arguments, stored)
    path = directory(tmp_path / "d", stored, configuration(layout, arguments))
    q = read(path, layout)
    assert str(q.format) == FORMATS[layout]
    assert same(q.dequantize(expected.dtype), expected)
    if layout.endswith("pack-quantized"):  # told by names and shapes alone
        q = read(directory(tmp_path / "d", stored, None), layout)
        assert same(q.dequantize(expected.dtype), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int", "float"])
def test_one_code_an_element(kind, tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        for strategy, shape, more in BLOCKS:
            codes = any_bytes(8, 64).view(torch.int8 if kind == "int" else E4M3)
            stored = {"weight": codes, "weight_scale": any_scales(*shape, dtype=dtype)}
            arguments = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy}
            for zeros in (None, any_bytes(*shape, seed=4).view(torch.int8)):
                if zeros is not None and kind == "int":
                    stored["weight_zero_point"] = zeros
                    arguments["symmetric"] = False
                layout = f"{kind}-quantized"
                expected = decompressed(layout, arguments | more, stored)
                config = configuration(layout, arguments | more)
                q = read(directory(tmp_path / "d", stored, config), layout)
                assert same(q.dequantize(dtype), expected), (strategy, dtype)


def test_nvfp4_divides_by_its_global_scale(tmp_path):
    _, stored = PACKED["nvfp4-pack-quantized"]
    q = read(directory(tmp_path / "d", stored, None))
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    codes = stored["weight_packed"]
    values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    step = stored["weight_scale"].float() / stored["weight_global_scale"]
    assert same(q.dequantize(), values * step.repeat_interleave(16, 1))
    assert q.qparams.outer.item() == stored["weight_global_scale"].item()


@pytest.mark.parametrize(
    ("layout", "change", "reason"),
    [
        ("nvfp4-pack-quantized", {"weight_global_scale": None}, "of no known format"),
        ("nvfp4-pack-quantized", {"weight_scale": torch.ones(15, 4).to(E4M3)}, "fit no block"),
        ("mxfp4-pack-quantized", {"weight_scale": None}, "fit no block"),
        ("mxfp4-pack-quantized", {"weight_scale": POWERS[:, :0]}, "fit no block"),
        ("mxfp8-quantized", {"weight_scale": torch.ones(16, 2).double()}, "fit no block"),
    ],
)
def test_what_is_no_such_weight(layout, change, reason, tmp_path):
    arguments, stored = PACKED[layout]
    stored = {name: each for name, each in (stored | change).items() if each is not None}
    path = directory(tmp_path / "d", stored, configuration(layout, arguments))
    with bs.checkpoint(path) as model, pytest.raises(bs.FileError, match=reason):
        model["m.weight"]
