# SPDX-License-Identifier: BSD-3-Clause
"""A file that release 0.1.0 wrote is read to the same values, and written to the same bytes today.

tests/files/data/release_0_1.safetensors is `saved(...)` of that release; beside it are the digests
of what that release read back.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.before import Rotate, Scale

DATA = Path(__file__).parent / "data"
FILE = DATA / "release_0_1.safetensors"
FORMATS = (
    "int8", "int8_channel", "int8_pow2", "uint16", "int4", "uint4", "int2", "ternary", "binary",
    "log4", "fp8_e5m2", "mxfp8", "mxfp6", "mxfp4", "mxint8", "nvfp4", "int3:token:fp16:full",
    "int5:tile2x8:bf16:recip", "e2m1:group16:(uint8:token:fp32)", "uint4:group8:e8m0/ceil:asym",
    "e3m2:group8@0:pow2/even:toward_zero",
)  # fmt: skip
N, K = 3, 40


def weight(*shape: int, turn: int = 1) -> Tensor:
    """Numbers that no generator draws: all signs, eight octaves, -0, a zero block, a subnormal."""
    index = torch.arange(torch.Size(shape).numel()) * 7919 * turn % 1009
    numbers = (index - 504).float() / 64 * 2.0 ** (index % 9 - 4)
    numbers[:18] = 0.0
    numbers[18:19], numbers[19:20] = -0.0, 2.0**-149
    return numbers.reshape(shape)


class Net(nn.Module):
    """A Linear for each format, an Embedding, a convolution, and layers with a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(K, N, bias=False) for _ in FORMATS)
        self.table, self.conv = nn.Embedding(5, 16), nn.Conv1d(4, N, 3)
        self.scaled, self.rotated = nn.Linear(16, N), nn.Linear(16, N)


def saved(path: Path, scale: Any, rotate: Any) -> nn.Module:
    """The model quantized and saved; scale, rotate: the release's own classes."""
    model = Net()
    with torch.no_grad():
        for turn, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(weight(*parameter.shape, turn=turn))
    rules: dict[str, Any] = {f"linear.{i}": {"weight": fmt} for i, fmt in enumerate(FORMATS)}
    rules["scaled"] = {"weight": "mxfp4", "input": "int8", "output": "int8_token"}
    scales = {"scaled": torch.full((1, 1), 0.375)}
    bs.quantize_(model, bs.Recipe("int4", rules=rules), input_scales=scales)
    layers: Any = model
    layers.scaled.set_before(scale(2.0 ** (torch.arange(16.0) - 8)))
    layers.rotated.set_before(rotate(16, 8, 1 - 2 * (torch.arange(16) % 3 % 2).to(torch.int8)))
    bs.save(model, path)
    return model


def digests(model: nn.Module) -> dict[str, str]:
    """{layer: of the float32 values that its codes mean}."""
    values = {
        name: layer.dequantize_weight().to(torch.float32).contiguous()
        for name, layer in model.named_modules()
        if hasattr(layer, "dequantize_weight")
    }
    return {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in values.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return json.loads((DATA / "release_0_1.json").read_text())


def test_its_values_are_read_bit_for_bit(expected: dict[str, str]) -> None:
    model = bs.load(Net(), FILE)
    assert digests(model) == expected
    assert len(expected) == len(FORMATS) + 4
    layers: Any = model
    assert layers.scaled.input.for_rank(2)[0].tolist() == [[0.375]]
    x = weight(7, 16, turn=5)
    assert torch.equal(layers.scaled.before(x), x * 2.0 ** (torch.arange(16.0) - 8))
    assert layers.rotated.before.fmt == "rotate:8:signs"


def test_the_same_bytes_are_written_today(tmp_path: Path) -> None:
    saved(tmp_path / "model.safetensors", Scale, Rotate)
    old, new = load_file(FILE), load_file(tmp_path / "model.safetensors")
    assert new.keys() == old.keys()
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype and new[name].shape == tensor.shape, name
        same = new[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        assert torch.equal(*same), name
    with safe_open(FILE, "pt") as before, safe_open(tmp_path / "model.safetensors", "pt") as now:
        assert now.metadata() == before.metadata()


def test_a_bit_that_changed_would_be_seen(tmp_path: Path, expected: dict[str, str]) -> None:
    raw = bytearray(FILE.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    for part in ("codes", "scale"):
        changed, place = bytearray(raw), header[f"linear.15.weight.{part}"]["data_offsets"]
        changed[start + place[1] - 1] ^= 1
        (tmp_path / "changed.safetensors").write_bytes(changed)
        found = digests(bs.load(Net(), tmp_path / "changed.safetensors"))
        assert {name for name in found if found[name] != expected[name]} == {"linear.15"}
