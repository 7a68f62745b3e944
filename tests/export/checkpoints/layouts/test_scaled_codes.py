# SPDX-License-Identifier: BSD-3-Clause
"""Other producers' files under `compare`: decoded as their own libraries do, or refused by name."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.export.checkpoints.comparing import compare
from blockscale.export.checkpoints.layouts import find_weights
from blockscale.export.checkpoints.layouts.scaled_codes import float8
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import open_stored_model

X = torch.randn(200, 260, generator=torch.Generator().manual_seed(0))
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def tiles(scale, rows=128, columns=128):
    """The scale of each element of X, by torch's own repetition."""
    wide = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: X.shape[0], : X.shape[1]]


def files(tmp_path, values, stored):
    """A float file with `values` as w.weight, and one as a producer stores them."""
    save_file({"w.weight": values.float(), "norm": torch.ones(3)}, tmp_path / "a")
    stored = {name: t.contiguous() for name, t in stored.items()}
    save_file(stored | {"norm": torch.ones(3)}, tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


def scaled(kind):
    """(what is stored, the values that it means) of X, computed here."""
    if kind == "deepseek":  # 128 x 128 tiles, the last ones partial
        scale = torch.rand(2, 3) / 100 + 0.02
        codes = (X / tiles(scale)).to(E4M3)
        return {"w.weight": codes, "w.weight_scale_inv": scale}, codes.float() * tiles(scale)
    if kind == "deepseek ue8m0":
        scale = torch.tensor([[2.0**-7, 2.0**-9, 1.0], [2.0**-8, 2.0**-6, 0.5]])
        codes = (X / tiles(scale)).to(E4M3)
        stored = {"w.weight": codes, "w.weight_scale_inv": scale.to(E8M0)}
        return stored, codes.float() * tiles(scale)
    if kind == "tensor":
        codes = (X * 100).to(E4M3)
        return {"w.weight": codes, "w.weight_scale": torch.tensor(0.01)}, codes.float() * 0.01
    if kind == "comfyui":
        codes = (X * 100).to(torch.float8_e5m2)
        scale = torch.tensor([0.01])
        return {"w.weight": codes, "w.scale_weight": scale}, codes.float() * scale
    scale = (X.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    if kind == "channel":
        codes = (X / scale / 4).to(E4M3)
        return {"w.weight": codes, "w.weight_scale": scale}, codes.float() * scale.float()
    codes = (X / scale).round().clamp(-128, 127).to(torch.int8)
    if kind == "int8":
        return {"w.weight": codes, "w.weight_scale": scale}, codes.float() * scale.float()
    if kind == "torchao":
        stored = {"w._weight_qdata": codes, "w._weight_scale": scale[:, 0]}
        return stored, codes.float() * scale.float()
    assert kind == "int8 asym"
    zero = torch.randint(-9, 9, (200, 1), dtype=torch.int8)
    stored = {"w.weight": codes, "w.weight_scale": scale, "w.weight_zero_point": zero}
    return stored, (codes.float() - zero.float()) * scale.float()


KINDS = {
    "deepseek": "e4m3:tile128x128:fp32",
    "deepseek ue8m0": "e4m3:tile128x128:e8m0/given",
    "tensor": "e4m3:tensor:fp32",
    "comfyui": "e5m2:tensor:fp32",
    "channel": "e4m3:channel0:bf16",
    "int8": "int8:channel0:bf16:full",
    "int8 asym": "int8:channel0:bf16:asym",
    "torchao": "int8:channel0:bf16:full",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elements", [1000, 10**6])
def test_codes_with_scales_are_decoded(kind, elements, tmp_path):
    stored, values = scaled(kind)
    for sides in (files(tmp_path, values, stored), files(tmp_path, values, stored)[::-1]):
        found = compare(*sides, elements=elements)
        assert all(each.equal for each in found.differences)
        [row] = [each for each in found.differences if each.name == "w.weight"]
        assert {row.a, row.b} == {"float32", KINDS[kind]}
        assert (found.only_a, found.only_b, found.unread) == ((), (), {})


def test_a_correct_file_is_near_and_its_bits_are_counted(tmp_path):
    stored, values = scaled("deepseek")
    [_, row] = compare(*files(tmp_path, X, stored)).differences
    error = (X.double() - values.double()).square().sum()
    expected = 10 * torch.log10(X.double().square().sum() / error)
    assert row.sqnr == pytest.approx(expected.item(), rel=1e-9)
    assert row.sqnr > 25  # it was -75 dB with the scales left out
    assert row.bits_b == 8 + 8 * 4 * 6 / X.numel()


def test_against_a_convolution_of_ours(tmp_path):
    """The other side is stored with its channels last, so the foreign one is seen so, too."""
    x = torch.randn(8, 4, 3, 3)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, bias=False))
    model[0].weight.data.copy_(x)
    bs.quantize_(model, "int8:channel0:fp32")
    bs.save(model, tmp_path / "ours")
    codes = (x * 50).to(E4M3)
    save_file({"0.weight": codes, "0.weight_scale": torch.tensor(0.02)}, tmp_path / "theirs")
    [row] = compare(tmp_path / "ours", tmp_path / "theirs").differences
    a, b = model[0].dequantize_weight().double(), (codes.float() * torch.tensor(0.02)).double()
    assert row.sqnr == pytest.approx(
        10 * torch.log10(a.square().sum() / (a - b).square().sum()).item(), rel=1e-9
    )


def ints(dtype, *shape):
    return torch.randint(0, 100, shape).to(dtype)


PACKED = {
    "GPTQ or AWQ": {"w.qweight": ints(torch.int32, 4, 8), "w.qzeros": ints(torch.int32, 1, 1)},
    "HQQ": {"w.W_q": ints(torch.uint8, 8, 16)},
    "optimum-quanto": {"w.weight._data": ints(torch.int8, 8, 32)},
}


@pytest.mark.parametrize("producer", PACKED)
def test_packed_codes_without_their_scales_are_refused_by_name(producer, tmp_path):
    sides = files(tmp_path, torch.randn(8, 32), PACKED[producer])
    found = compare(*sides)
    codes = next(iter(PACKED[producer]))
    told = (
        f"{codes} holds codes of {producer}, but the tensors beside them are not those of that "
        f"layout: dequantize it with its own library first"
    )
    assert found.unread == {"w.weight": told} == found.to_dict()["unread"]
    assert [each.name for each in found.differences] == ["norm"]
    save_file({"w.weight": torch.randn(8, 32)}, tmp_path / "alone")
    with pytest.raises(FileError, match=f"^nothing can be compared: {re.escape(told)}$"):
        compare(tmp_path / "alone", _only(sides[1]))


def _only(path):
    """The same file without what both sides have."""
    tensors = load_file(path)
    tensors.pop("norm")
    save_file(tensors, path.with_name("packed"))
    return path.with_name("packed")


def test_a_scale_that_fits_no_block(tmp_path):
    stored = {"w.weight": X.to(E4M3), "w.weight_scale": torch.ones(7, 9)}
    told = (
        "w.weight_scale is torch.float32 [7, 9], which matches no block of w.weight, "
        "torch.float8_e4m3fn [200, 260]"
    )
    assert compare(*files(tmp_path, X, stored)).unread == {"w.weight": told}


def test_codes_that_nothing_explains(tmp_path):
    stored = {"w.weight": ints(torch.int8, 200, 260)}
    told = (
        "it is float32 in a and int8 in b, and the int8 tensor has no scale beside it: "
        "compare the values that its own library dequantizes"
    )
    assert compare(*files(tmp_path, X, stored)).unread == {"w.weight": told}
    same = tmp_path / "b"
    assert all(each.equal for each in compare(same, same).differences)  # integers against integers


def test_a_plain_cast_needs_no_scale(tmp_path):
    cast = X.to(E4M3)
    found = compare(*files(tmp_path, cast.float(), {"w.weight": cast}))
    assert all(each.equal for each in found.differences)
    assert found.unread == {}


def test_our_own_files_hold_nothing_foreign(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(32, 8))
    bs.quantize_(model, "mxfp8")
    bs.save(model, tmp_path / "m")
    source = open_stored_model(tmp_path / "m")
    found = find_weights({name: source.kinds[name] for name in source.plain()}, {}, source.read)
    assert (found.weights, found.beside) == ({}, set())


PARTS = {"codes": "w", "scale": "s"}


@pytest.mark.parametrize(
    ("scale", "fmt"),
    [
        ((torch.float32, ()), "e4m3:tensor:fp32"),
        ((torch.bfloat16, (6, 1)), "e4m3:channel0:bf16"),
        ((torch.uint8, (6, 2)), "e4m3:group32:e8m0/given"),
        ((torch.float8_e8m0fnu, (6, 2)), "e4m3:group32:e8m0/given"),
    ],
)
def test_float8_in_blocks_of_scales(scale, fmt):
    weight = float8("fp8", PARTS, {"w": (E4M3, (6, 64)), "s": scale})
    assert weight.format == fmt and weight.kind == "fp8" and not weight.unread


def test_what_is_no_float8_or_fits_no_block():
    assert float8("fp8", PARTS, {"w": (torch.int8, (6, 64)), "s": (torch.float32, ())}) is None
    for scale in ((torch.float32, (7, 9)), (torch.int32, (6, 1)), (None, (6, 1))):
        weight = float8("fp8", PARTS, {"w": (E4M3, (6, 64)), "s": scale})
        assert weight.format is None and weight.unread.startswith("s is ")
