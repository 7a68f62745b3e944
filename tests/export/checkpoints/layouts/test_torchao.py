# SPDX-License-Identifier: BSD-3-Clause
"""torchao's classes: its own values of tensors that it quantized, and by hand of any bytes."""

import json

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.export.checkpoints.layouts.torchao import count, matrix

BF16 = torch.bfloat16


def files(path, kind, data, **parts):
    """A file with one weight of a class."""
    told = {"_type": kind, "_data": data, "_tensor_data_names": list(parts)}
    metadata = {"0.weight": json.dumps(told), "tensor_names": json.dumps(["0.weight"])}
    stored = {f"0._weight_{role}": each.contiguous() for role, each in parts.items()}
    save_file(stored, path / "m.safetensors", metadata)
    return bs.checkpoint(path / "m.safetensors")


def dtype(name):
    return {"_type": "torch.dtype", "_data": name}


def same(found, expected):
    bits = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    both = found.isnan() & expected.isnan()
    return bool(((found.view(bits) == expected.contiguous().view(bits)) | both).all())


def configurations():
    import torchao.prototype.mx_formats as mx
    import torchao.quantization as tq
    from torchao.quantization.granularity import PerAxis, PerGroup

    e2m1 = torch.float4_e2m1fn_x2
    intx = tq.IntxWeightOnlyConfig
    return {
        "int8": tq.Int8WeightOnlyConfig(version=2),
        "int8 groups": tq.Int8WeightOnlyConfig(version=2, granularity=PerGroup(32)),
        "float8": tq.Float8WeightOnlyConfig(),
        "int4": intx(
            weight_dtype=torch.int4, granularity=PerGroup(32),
            mapping_type=tq.MappingType.ASYMMETRIC,
        ),
        "int3": intx(weight_dtype=torch.int3, granularity=PerAxis(0)),
        "mxfp4": mx.MXDynamicActivationMXWeightConfig(activation_dtype=e2m1, weight_dtype=e2m1),
        "mxfp8": mx.MXDynamicActivationMXWeightConfig(),
        "nvfp4": mx.NVFP4WeightOnlyConfig(),
    }  # fmt: skip


def inputs(dtype):
    """Normal, wide, mixed, ties and tiny."""
    x = torch.randn(96, 320, generator=torch.Generator().manual_seed(0))
    mixed = x.clone()
    mixed[:8], mixed[8:16], mixed[16:24] = 0, 1.5, mixed[16:24].abs()
    mixed[24, 3] = 1e4
    wide = x * 2.0 ** torch.linspace(-14, 12, 96)[:, None]
    for each in (x, wide, mixed, (x * 4).round() / 8, x * 2.0**-34):
        yield each.to(dtype)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchao_s_own_values(tmp_path):
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    for name, config in configurations().items():
        for dtype in (BF16,) if name.startswith("mx") else (BF16, torch.float32):
            for x in inputs(dtype):
                model = torch.nn.Sequential(torch.nn.Linear(320, 96, bias=False)).to(dtype)
                model[0].weight.data.copy_(x)
                quantize_(model, config)
                weight = model[0].weight
                blocks = name in ("mxfp4", "mxfp8", "nvfp4")
                expected = weight.dequantize(dtype) if blocks else weight.dequantize()
                stored, metadata = flatten_tensor_state_dict(model.state_dict())
                save_file(stored, tmp_path / "m.safetensors", metadata)
                with bs.checkpoint(tmp_path / "m.safetensors") as found:
                    assert found.producer == "torchao"
                    assert same(found["0.weight"].dequantize(dtype), expected), (name, dtype)


def test_codes_of_few_bits_one_a_byte(tmp_path):
    codes = torch.randint(-8, 8, (6, 64), dtype=torch.int8)
    scale, zero = torch.randn(6, 2).to(BF16), torch.randint(-8, 8, (6, 2), dtype=torch.int8)
    data = {"target_dtype": dtype("int4"), "block_size": [1, 32]}
    parts = {"qdata": codes, "scale": scale, "zero_point": zero}
    with files(tmp_path, "IntxUnpackedToInt8Tensor", data, **parts) as model:
        q = model["0.weight"]
        assert model.evidence == "its metadata have tensor_names and the class of each"
    assert str(q.format) == "int4:group32:bf16:asym"
    wide = [each.repeat_interleave(32, 1).float() for each in (zero, scale)]
    assert same(q.dequantize(), (codes.float() - wide[0]) * wide[1])
    codes[2, 3] = 8
    model = files(tmp_path, "IntxUnpackedToInt8Tensor", data, **parts)
    with pytest.raises(bs.FileError, match="it has codes that int4 does not have"):
        model["0.weight"]


@pytest.mark.parametrize("outer", [None, torch.tensor(0.37)])
def test_nvfp4(outer, tmp_path):
    codes = torch.randint(0, 256, (6, 32), dtype=torch.uint8)
    scale = torch.randint(0, 127, (6, 4), dtype=torch.uint8).view(torch.float8_e4m3fn)
    data = {"block_size": 16, "is_swizzled_scales": False}
    parts = {"qdata": codes, "scale": scale} | (
        {} if outer is None else {"per_tensor_scale": outer}
    )
    with files(tmp_path, "NVFP4Tensor", data, **parts) as model:
        q = model["0.weight"]
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
    step = scale.float() * (1 if outer is None else outer)
    assert same(q.dequantize(), values * step.repeat_interleave(16, 1))


def test_int4_with_numbers_that_are_added(tmp_path):
    """q · s + z of mslk's int4_row_quantize_zp, whose scales lie [groups, rows]."""
    codes = torch.randint(0, 256, (6, 32), dtype=torch.uint8)
    scale, zero = torch.rand(2, 6).to(BF16), torch.randn(2, 6).to(BF16)
    with files(tmp_path, "Int4Tensor", {}, qdata=codes, scale=scale, zero_point=zero) as model:
        q = model["0.weight"]
    assert str(q.format) == "int4:group32:bf16:offset"
    apart = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
    apart = (apart ^ 8) - 8
    wide = [each.mT.repeat_interleave(32, 1).float() for each in (scale, zero)]
    assert same(q.dequantize(), apart.float() * wide[0] + wide[1])


EIGHT, ONES = torch.zeros(4, 32, dtype=torch.int8), torch.ones(4, 1)


@pytest.mark.parametrize(
    ("kind", "data", "parts", "reason"),
    [
        ("Int4TilePackedTo4dTensor", {}, {"qdata": EIGHT, "scale": ONES}, "for one kernel"),
        ("IntxUnpackedToInt8Tensor", {"target_dtype": dtype("int1"), "block_size": [1, 32]},
         {"qdata": EIGHT, "scale": ONES}, r"its codes are int1 \[4, 32\]"),
        ("Int8Tensor", {}, {"qdata": EIGHT, "scale": torch.ones(3, 5)}, r"float32 \[3, 5\]"),
        ("NVFP4Tensor", {"block_size": 16, "is_swizzled_scales": True},
         {"qdata": EIGHT.view(torch.uint8), "scale": ONES}, "in tiles, for 4 rows of 4 blocks"),
        ("MXTensor", {"block_size": 32, "elem_dtype": "fp6_e2m3"},
         {"qdata": EIGHT, "scale": ONES}, "of fp6_e2m3, which is not supported"),
        ("Int4Tensor", {}, {"qdata": EIGHT, "scale": ONES}, "its scales torch.float32"),
    ],
)  # fmt: skip
def test_what_is_not_read(kind, data, parts, reason, tmp_path):
    model = files(tmp_path, kind, data, **parts)
    with pytest.raises(bs.FileError, match=reason):
        model["0.weight"]


@pytest.mark.parametrize(("rows", "columns"), [(128, 4), (64, 4), (130, 9), (300, 5)])
def test_each_place(rows, columns):
    wide = -(-columns // 4)
    stored = torch.zeros(count(rows, columns), dtype=torch.int32)
    for r in range(rows):
        for c in range(columns):
            tile = r // 128 * wide + c // 4
            at = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            stored[at] = r * 1000 + c
    expected = (torch.arange(rows)[:, None] * 1000 + torch.arange(columns)) % 251
    found = matrix((stored % 251).to(torch.uint8).reshape(-1, 16), rows, columns)
    assert torch.equal(found.int(), expected.int())


def test_another_number():
    with pytest.raises(ValueError, match="it has 100 scales in tiles, expected 512 for 5 x 4"):
        matrix(torch.zeros(100, dtype=torch.uint8), 5, 4)


STORED = {"0._weight_qdata": torch.zeros(4, 8, dtype=torch.int8), "0._weight_scale": torch.ones(4)}
TOLD = {"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata", "scale"]}


def files_of_finding(path, text, stored=STORED):
    metadata = {"0.weight": text, "tensor_names": '["0.weight"]'}
    save_file(stored, path / "m.safetensors", metadata)
    return path / "m.safetensors"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"_type": "Int8Tensor"', "is not JSON"),
        ('{"_type": "Int8Tensor", "_data": ' + "[" * 200 + "]" * 200 + "}", "is nested too deeply"),
        (json.dumps(TOLD | {"_data": None}), "have no _data"),
        (json.dumps(TOLD | {"_tensor_data_names": "qdata"}), "have no _data"),
        (json.dumps(TOLD | {"_tensor_data_names": ["qdata", "scale", "zero_point"]}),
         "0._weight_zero_point is missing, though the metadata"),
    ],
)  # fmt: skip
def test_damaged(text, reason, tmp_path):
    with pytest.raises(bs.FileError, match=reason):
        bs.checkpoint(files_of_finding(tmp_path, text))


def test_plain_tensors_and_files_without_metadata(tmp_path):
    path = files_of_finding(tmp_path, '{"_type": "torch.Tensor"}', {"0.weight": torch.ones(3)})
    assert bs.checkpoint(path).producer == "safetensors"
    save_file(STORED, tmp_path / "m.safetensors")
    with bs.checkpoint(tmp_path / "m.safetensors") as model:  # as before there were layouts
        assert model.producer == "scaled codes"
        assert str(model["0.weight"].format) == "int8:channel0:fp32:full"
