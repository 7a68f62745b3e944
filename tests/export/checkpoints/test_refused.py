# SPDX-License-Identifier: BSD-3-Clause
"""What is known by name and never read."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs


class Bomb:
    def __reduce__(self):
        return print, ("a pickle was opened",)


def test_pickles_are_refused_and_not_opened(tmp_path, capsys):
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    torch.save({"a": torch.ones(2)}, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "bomb.ckpt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    for path in (*tmp_path.iterdir(), tmp_path):
        with pytest.raises(bs.FileError, match="is a pickle, which can run any code"):
            bs.checkpoint(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "start", "reason"),
    [
        ("rank0.engine", b"whatever", "a TensorRT engine, whose weights are"),
        ("m", b"ptrt" + bytes(9), "a TensorRT engine"),
        ("ggml.bin", b"tjgg" + bytes(9), "older than GGUF"),
        ("m.tflite", b"\x1c\0\0\0TFL3", r"a LiteRT \(TFLite\) model"),
        ("m.pte", b"\x1c\0\0\0ET12", "an ExecuTorch program"),
        ("m.h5", b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    ],
)
def test_by_first_bytes(name, start, reason, tmp_path):
    (tmp_path / name).write_bytes(start)
    with pytest.raises(bs.FileError, match=reason):
        bs.checkpoint(tmp_path / name)


def test_an_engine_s_directory(tmp_path):
    (tmp_path / "rank0.engine").write_bytes(b"x")
    with pytest.raises(bs.FileError, match=r"use the checkpoint.*\(rank0\.engine\)"):
        bs.checkpoint(tmp_path)


def test_what_lies_beside_safetensors_does_not_matter(tmp_path):
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(1))
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    assert list(bs.checkpoint(tmp_path)) == ["a"]


def test_an_archive_that_is_damaged(tmp_path):
    (tmp_path / "m.pt").write_bytes(b"PK\3\4" + bytes(40))
    with pytest.raises(bs.FileError, match="is a pickle"):
        bs.checkpoint(tmp_path / "m.pt")
    (tmp_path / "m.zip").write_bytes(b"PK\3\4" + bytes(40))
    with pytest.raises(bs.FileError, match="unrecognised checkpoint format"):
        bs.checkpoint(tmp_path / "m.zip")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_length_of_a_header_is_no_protocol(protocol, tmp_path):
    """0x80, 2 and so on begin a pickle, and a safetensors file whose header has so many bytes."""
    path, length = tmp_path / "m.safetensors", 0x80 + 256 * protocol
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(length)
    data = length.to_bytes(8, "little") + header + torch.tensor([1.0, 2.0]).numpy().tobytes()
    for name in ("m.safetensors", "m.bin"):
        path = tmp_path / name
        path.write_bytes(data)
        assert data[:2] == bytes([0x80, protocol])
        with bs.checkpoint(path) as found:
            assert torch.equal(found["a"], torch.tensor([1.0, 2.0]))
