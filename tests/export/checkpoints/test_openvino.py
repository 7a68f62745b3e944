# SPDX-License-Identifier: BSD-3-Clause
"""OpenVINO's IR: its own values of what NNCF wrote and of any bytes (tests/recorded/openvino)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from tests.support.openvino_ir import every, same, write

RECORDED = Path(__file__).parents[2] / "recorded" / "openvino"
MODES, ANY = load_file(RECORDED / "values.safetensors"), load_file(RECORDED / "any.safetensors")
FORMATS = {
    "INT8_SYM": "int8:channel0:fp16:full", "INT8_ASYM": "uint8:channel0:fp16:asym",
    "INT4_SYM": "int4:group32:fp16:full", "INT4_ASYM": "uint4:group32:fp16:asym",
    "INT3_SYM": "uint3:group32:fp16:asym", "INT2_SYM": "uint2:group32:fp16:asym",
    "MXFP4": "e2m1:group32:e8m0/given", "MXFP8_E4M3": "e4m3:group32:e8m0/given",
    "FP8_E4M3": "e4m3:group32:fp16", "FP4": "e2m1:group32:fp16", "NVFP4": "e2m1:group16:fp16",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_what_nncf_wrote(mode):
    with bs.checkpoint(RECORDED / f"{mode}.xml") as model:
        assert model.producer == "OpenVINO"
        assert model.evidence == f"{mode}.xml is an IR: it begins <net"
        [(name, q)] = model.items()  # shapes and axes are not shown
        assert name == ("w_nncf_codebook_idxs" if mode == "CB4" else "w")
        assert same(q.dequantize(), MODES[mode])
        assert mode not in FORMATS or str(q.format) == FORMATS[mode]
        size = (RECORDED / f"{mode}.bin").stat().st_size
        assert size - 24 <= model.stored[name].nbytes <= size  # but shapes and an axis


def test_any_bytes(tmp_path):
    found = dict(every(tmp_path))
    assert found.keys() == ANY.keys()
    for name, path in found.items():
        with bs.checkpoint(path) as model:
            assert same(model["w"].dequantize(), ANY[name]), name


def test_codes_and_scales_are_the_file_s(tmp_path):
    path = write(tmp_path / "m.xml", "u4", zero="u4")
    data = path.with_suffix(".bin").read_bytes()
    with bs.checkpoint(tmp_path) as model:  # a directory with one
        q = model["w"]
    assert bytes(q.packed.flatten().tolist()) == data[:96]
    assert bytes(q.qparams.scale.view(torch.uint8).flatten().tolist()) == data[96:120]


def test_a_power_of_two_that_is_none_of_f16(tmp_path):
    for end in ("xml", "bin"):
        data = (RECORDED / f"MXFP4.{end}").read_bytes()
        if end == "bin":
            data = data[:384] + bytes([102]) + data[385:]
        (tmp_path / f"m.{end}").write_bytes(data)
    with (
        bs.checkpoint(tmp_path / "m.xml") as model,
        pytest.raises(bs.FileError, match="f16 does not hold, and the file converts"),
    ):
        model["w"]


def changed(tmp_path, old, new, count=1):
    path = write(tmp_path / "m.xml", "i4")
    text = path.read_text()
    assert text.count(old) >= count
    path.write_text(text.replace(old, new, count))
    return path


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('offset="0" size="96"', 'offset="40" size="96"', "share bytes"),
        ('offset="0" size="96"', 'offset="9999" size="96"', "ends at byte 10,095 of 136"),
        ('offset="0" size="96"', 'offset="0" size="95"', r"constant 'w' \[4, 3, 16\] i4 has 95"),
        ('offset="0" size="96"', 'offset="-9" size="96"', "is not a size or an offset"),
        ('offset="0"', f'offset="{"9" * 40}"', "is not a size or an offset"),
        ('shape="4, 3, 16"', f'shape="4, 3, {2**60}"', "has the impossible shape"),
        ('shape="4, 3, 16"', 'shape="4, x, 16"', "'x' is not a size or an offset"),
        ('shape="4, 3, 16"', 'shape="4, 3, 17"', "has 96 bytes"),
        ('version="11"', 'version="12"', "no layers"),
        ('from-layer="3"', 'from-layer="77"', "an edge goes from '77'"),
        ('id="3"', 'id="1"', "the layer '1' twice"),
        ("</layers>", "</layer>", "mismatched tag"),
        ("<net ", '<!DOCTYPE net [<!ENTITY a "aaa">]><net ', "a document type or entities"),
    ],
)  # fmt: skip
def test_hostile(old, new, reason, tmp_path):
    with pytest.raises(bs.FileError, match=reason):
        bs.checkpoint(changed(tmp_path, old, new))


def test_a_missing_bin_and_a_cut_one(tmp_path):
    path = write(tmp_path / "m.xml", "i4")
    data = path.with_suffix(".bin").read_bytes()
    with bs.checkpoint(path) as model:
        path.with_suffix(".bin").write_bytes(data[:50])
        with pytest.raises(bs.FileError, match="it was truncated while being read"):
            model["w"]
    with pytest.raises(bs.FileError, match="download or copy both files again"):
        bs.checkpoint(path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(bs.FileError, match=r"m\.bin is missing, which holds the weights of m\.xml"):
        bs.checkpoint(path)


def test_cut_anywhere(tmp_path):
    path = write(tmp_path / "m.xml", "i4")
    text = path.read_bytes()
    for end in range(60, len(text) - 10, 37):
        path.write_bytes(text[:end])
        with pytest.raises(bs.FileError):
            bs.checkpoint(path)


def test_zero_points_that_are_no_whole_numbers(tmp_path):
    path = write(tmp_path / "m.xml", "u8", zero="u8")
    text = path.read_text().replace(
        'element_type="u8" shape="4, 3, 1" offset="232" size="12"',
        'element_type="f16" shape="4, 3, 1" offset="232" size="24"',
    )
    path.write_text(text)
    half = torch.full((12,), 0.5, dtype=torch.float16).numpy().tobytes()
    data = path.with_suffix(".bin").read_bytes()[:232]
    path.with_suffix(".bin").write_bytes(data + half)
    with (
        bs.checkpoint(path) as model,
        pytest.raises(bs.FileError, match="z: its zero points are not integers"),
    ):
        model["w"]


def test_names_that_several_have(tmp_path):
    path = changed(tmp_path, 'name="s"', 'name="w"')
    with bs.checkpoint(path) as model:
        assert list(model) == ["w#1"] and model["w#1"].shape == (4, 48)


def test_tokenizers_beside_it(tmp_path):
    write(tmp_path / "openvino_model.xml", "i4")
    write(tmp_path / "openvino_tokenizer.xml", "i4")
    with pytest.raises(bs.FileError, match="unrecognised checkpoint format"):
        bs.checkpoint(tmp_path)
    assert bs.checkpoint(tmp_path / "openvino_model.xml")["w"].shape == (4, 48)
