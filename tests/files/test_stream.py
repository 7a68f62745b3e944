# SPDX-License-Identifier: BSD-3-Clause
"""safetensors files a piece at a time: what is written is read, and damage is refused."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from blockscale.files import stream
from blockscale.files.header import DTYPES, lay_out, tensor_of
from blockscale.files.metadata import FileError
from blockscale.files.stream import Reader, StreamWriter, headers_kept
from tests.files.pieces import specs, write
from tests.support.file_models import tiny_tensors


def flat(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def test_safetensors_reads_what_is_written(tmp_path):
    tensors = tiny_tensors() | {'ünïcode "name"': torch.ones(2, 3)}
    write(tmp_path / "a.safetensors", tensors, {"format": "pt", "note": "ß"})
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(flat(found[name]), flat(tensor)), name
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "ß"}


def test_a_header_is_parsed_once_while_headers_are_kept(tmp_path, monkeypatch):
    """By its bytes: a file that was written again is parsed again."""
    parsed, parse = [], stream.parse_header
    monkeypatch.setattr(stream, "parse_header", lambda text: parsed.append(text) or parse(text))
    path = tmp_path / "a.safetensors"
    write(path, {"x": torch.ones(2)}, {})
    with headers_kept():
        for _ in range(3):
            with Reader(path) as reader:
                assert reader.tensor("x").tolist() == [1, 1]
        assert len(parsed) == 1
        write(path, {"y": torch.ones(2)}, {})
        with Reader(path) as reader:
            assert [*reader.tensors] == ["y"] and len(parsed) == 2
    with Reader(path) as reader:
        assert [*reader.tensors] == ["y"] and len(parsed) == 3


@pytest.mark.some(3)
@pytest.mark.parametrize("name", [n for n in DTYPES if n != "F8_E8M0"])
def test_every_dtype(name, tmp_path):
    dtype = DTYPES[name]
    tensor = torch.arange(6).to(torch.uint8).reshape(2, 3).to(dtype)
    write(tmp_path / "a.safetensors", {"x": tensor}, {})
    assert torch.equal(flat(load_file(tmp_path / "a.safetensors")["x"]), flat(tensor))
    with Reader(tmp_path / "a.safetensors") as reader:
        assert reader.tensors["x"].dtype == name
        assert torch.equal(flat(reader.tensor("x")), flat(tensor))


def test_reads_what_safetensors_writes(tmp_path):
    tensors = tiny_tensors()
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    with Reader(tmp_path / "a.safetensors") as reader:
        assert reader.metadata == {"format": "pt"}
        assert reader.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(flat(reader.tensor(name)), flat(tensor))
            data = b"".join(bytes(chunk) for chunk in reader.chunks(name))
            assert data == bytes(flat(tensor).numpy())
        assert torch.equal(reader.rows("embed.weight", 3, 7), tensors["embed.weight"][3:7])
        rows = reader.rows("experts", 19, 22, (60, 40))
        assert torch.equal(rows, tensors["experts"].reshape(60, 40)[19:22])
        assert reader.rows("experts", 1, 1).shape == (0, 20, 40)


def test_a_begun_file_is_gone_on_with(tmp_path):
    tensors = tiny_tensors()
    path = tmp_path / "a.safetensors"
    header, placed = lay_out(specs(tensors), {})
    with StreamWriter(path, header, placed) as writer:
        writer.rows("embed.weight", 0, tensors["embed.weight"])
    with StreamWriter(path, header, placed) as writer:
        assert writer.is_resumed
        for name in tensors.keys() - {"embed.weight"}:
            writer.rows(name, 0, tensors[name])
    assert torch.equal(load_file(path)["embed.weight"], tensors["embed.weight"])
    other, elsewhere = lay_out(specs(tensors), {"another": "header"})
    with StreamWriter(path, other, elsewhere) as writer:
        assert not writer.is_resumed
    assert not load_file(path)["embed.weight"].any()


def test_the_space_is_reserved(tmp_path):
    header, placed = lay_out({"x": tensor_of(torch.float32, (1000, 1000))}, {})
    with StreamWriter(tmp_path / "a", header, placed):
        pass
    assert (tmp_path / "a").stat().st_blocks * 512 >= 4_000_000


def test_dtypes_that_torch_has_not_are_copied(tmp_path):
    text = json.dumps({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + b"abc")
    with Reader(tmp_path / "a") as reader:
        assert b"".join(reader.chunks("x")) == b"abc"
        with pytest.raises(FileError, match="'x' has dtype F6_E2M3, which torch does not have"):
            reader.tensor("x")


def damaged(kind, path):
    save_file({"x": torch.ones(4, 4), "y": torch.ones(2)}, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])

    def rebuilt(body=data[8 + length :]):
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + body

    def change(name, key, value):
        header[name][key] = value
        return rebuilt()

    return {
        "empty": lambda: b"",
        "short": lambda: b"abc",
        "text": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "cut": lambda: data[:-1],
        "longer": lambda: data + b"\0",
        "no json": lambda: data[:8] + b"{" * length + data[8 + length :],
        "not an object": lambda: (2).to_bytes(8, "little") + b"[]",
        "not a shape": lambda: change("x", "shape", None),
        "wrong shape": lambda: change("x", "shape", [4, 5]),
        "overlap": lambda: change("x", "data_offsets", [4, 68]),
        "no offsets": lambda: change("x", "data_offsets", [0]),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    ["empty", "short", "text", "cut", "longer", "no json", (
    "not an object"
), "not a shape", "wrong shape",
     "overlap", "no offsets"],
)  # fmt: skip
def test_damaged_files(kind, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(damaged(kind, path))
    with pytest.raises(FileError) as caught:
        Reader(path)
    assert str(caught.value).startswith(f"{path}: not a whole safetensors file: it")
    assert str(caught.value).endswith("Download or copy it again")


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.ones(40, 4)}, path)
    with Reader(path) as reader:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 16)
        assert reader.rows("x", 0, 39).all()
        with pytest.raises(FileError, match="it was truncated while being read"):
            reader.tensor("x")
