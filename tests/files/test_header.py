# SPDX-License-Identifier: BSD-3-Clause
"""The header of a safetensors file: where each tensor lies."""

import json
import os
import random

import pytest
import torch
from safetensors import SafetensorError, deserialize

from blockscale.files.header import LARGEST, LENGTH, lay_out, parse_header, tensor_of
from blockscale.files.metadata import FileError
from blockscale.files.stream import Reader
from tests.files.pieces import write
from tests.support.file_models import tiny_tensors


def test_tensors_are_aligned(tmp_path):
    _, placed = write(tmp_path / "a.safetensors", tiny_tensors(), {"format": "pt"})
    assert all(each.start % each.torch_dtype.itemsize == 0 for each in placed.values())


def test_gaps_are_refused():
    text = {"x": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}
    with pytest.raises(ValueError, match="'x' starts at byte"):
        parse_header(json.dumps(text).encode())


def test_a_layout_is_read_back():
    tensors = {
        "a": tensor_of(torch.uint8, (3, 5)),
        "b": tensor_of(torch.float32, (2,)),
        "c": tensor_of(torch.bool, ()),
    }
    header, placed = lay_out(tensors, {"é": "ü"})
    length = int.from_bytes(header[:LENGTH], "little")
    assert len(header) == LENGTH + length and len(header) % 8 == 0
    read, metadata = parse_header(header[LENGTH:])
    assert metadata == {"é": "ü"}
    assert read == placed
    assert list(read) == ["b", "a", "c"]  # wide dtypes first
    assert [each.start - len(header) for each in read.values()] == [0, 8, 23]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[]", "does not begin with a brace"),
        (b"{", "Expecting"),
        (b'{"x": {"dtype": "U8", "shape": [1]}}', "data_offsets"),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "does not take 4 bytes"),
    ],
)
def test_what_is_no_header(text: bytes, words: str):
    with pytest.raises(ValueError, match=words):
        parse_header(text)


def test_a_dtype_that_torch_has_not_keeps_its_bytes():
    text = b'{"x": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}'
    [x] = parse_header(text)[0].values()
    assert (x.torch_dtype, x.nbytes, x.shape) == (None, 2, (4,))


def entry(**changed) -> dict:
    return {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]} | changed


def text_of(*entries: str) -> str:
    return "{" + ", ".join(entries) + "}"


X = '"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
WRONG = {  # what safetensors refuses, in a file of one byte of data
    "negative": json.dumps({"x": entry(shape=[-1])}),
    "minus zero": text_of('"x": {"dtype": "U8", "shape": [1], "data_offsets": [-0, 1]}'),
    "fraction": json.dumps({"x": entry(shape=[1.0])}),
    "exponent": text_of('"x": {"dtype": "U8", "shape": [1e0], "data_offsets": [0, 1]}'),
    "boolean": json.dumps({"x": entry(shape=[True])}),
    "text": json.dumps({"x": entry(shape=["1"])}),
    "shape is text": json.dumps({"x": entry(shape="1")}),
    "shape is a number": json.dumps({"x": entry(shape=1)}),
    "size of 65 bits": json.dumps({"x": entry(shape=[2**64, 0], data_offsets=[0, 0])}),
    "product of 65 bits": json.dumps({"x": entry(shape=[2**33, 2**33])}),
    "three offsets": json.dumps({"x": entry(data_offsets=[0, 1, 2])}),
    "one offset": json.dumps({"x": entry(data_offsets=[0])}),
    "backwards": json.dumps({"x": entry(shape=[0], data_offsets=[1, 0])}),
    "null offsets": json.dumps({"x": entry(data_offsets=None)}),
    "hole": json.dumps({"x": entry(shape=[0], data_offsets=[1, 1])}),
    "overlap": json.dumps({"x": entry(), "y": entry()}),
    "beyond": json.dumps({"x": entry(shape=[2], data_offsets=[0, 2])}),
    "bytes left": json.dumps({"x": entry(shape=[0], data_offsets=[0, 0])}),
    "half bytes": json.dumps({"x": entry(dtype="F4", shape=[1])}),
    "dtype": json.dumps({"x": entry(dtype="Q8")}),
    "lower case": json.dumps({"x": entry(dtype="u8")}),
    "dtype is a number": json.dumps({"x": entry(dtype=8)}),
    "no dtype": text_of('"x": {"shape": [1], "data_offsets": [0, 1]}'),
    "not an object": '{"x": 5}',
    "a field twice": text_of(X.replace("{", '{"dtype": "U8", ')),
    "metadata twice": text_of('"__metadata__": {}', '"__metadata__": {}', X),
    "metadata of a number": text_of('"__metadata__": {"a": 5}', X),
    "metadata of null": text_of('"__metadata__": {"a": null}', X),
    "metadata is a list": text_of('"__metadata__": []', X),
    "metadata is a tensor": text_of(f'"__metadata__": {{{X}}}'),
    "half a character": text_of(X.replace('"x"', '"\\ud800"')),
    "a list": "[]", "a number": "5", "nothing": "  ", "cut": text_of(X)[:-1],
    "more": f"{text_of(X)}{{}}", "a zero": f"{text_of(X)}\0", "mark": f"\ufeff{text_of(X)}",
    "not UTF-8": b'{"\xff": 5}', "NaN": text_of(X.replace("}", ', "more": NaN}')),
    "deep": text_of(X.replace("}", f', "more": {"[" * 200}{"]" * 200}}}')),
}  # fmt: skip
STRICTER = {  # what safetensors takes
    "a name twice": text_of(X, X),
    "metadata's key twice": text_of('"__metadata__": {"a": "b", "a": "c"}', X),
    "a blank first": f" {text_of(X)}",
    "a list for a tensor": '{"x": ["U8", [1], [0, 1]]}',
    "a long name": text_of(X.replace('"x"', f'"{"x" * 5000}"')),
    "a size that torch has not": json.dumps(
        {"x": entry(), "y": entry(shape=[0, 10**10, 10**10], data_offsets=[1, 1])}
    ),
    "deep": text_of(X.replace("}", f', "more": {"[" * 100}{"]" * 100}}}')),
}  # fmt: skip
ALIKE = {  # what both take
    "empty": text_of(X, '"y": {"dtype": "F32", "shape": [7, 0], "data_offsets": [0, 0]}'),
    "more fields": text_of(X.replace("}", ', "more": [1.5]}')),
    "metadata of null": text_of('"__metadata__": null', X),
    "blanks after": f"{text_of(X)}  \n", "no name": text_of(X.replace('"x"', '""')),
    "escapes": text_of(X.replace('"x"', '"\\ud83d\\ude00\\n\\u0000"')),
    "scalar": json.dumps({"x": entry(shape=[])}),
}  # fmt: skip


def written(path, text: str | bytes, data: bytes = b"a"):
    header = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def oracle(path) -> bool:
    """Whether the package safetensors takes a file."""
    try:
        deserialize(path.read_bytes())
        return True
    except SafetensorError:
        return False


def ours(path) -> bool:
    try:
        with Reader(path) as reader:
            assert all(type(n) is int for each in reader.tensors.values() for n in each.shape)
        return True
    except FileError as error:
        assert (
            str(error).startswith(f"{path}: not a whole safetensors file") and len(str(error)) < 500
        )
        return False


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_safetensors_refuses_is_refused(text, tmp_path):
    path = written(tmp_path / "a.safetensors", text)
    assert not oracle(path) and not ours(path)


@pytest.mark.parametrize("text", STRICTER.values(), ids=STRICTER)
def test_where_we_are_stricter(text, tmp_path):
    """docs/limits.md lists them."""
    path = written(tmp_path / "a.safetensors", text)
    assert oracle(path) and not ours(path)


@pytest.mark.parametrize("text", ALIKE.values(), ids=ALIKE)
def test_what_both_take(text, tmp_path):
    path = written(tmp_path / "a.safetensors", text)
    assert oracle(path) and ours(path)


def test_the_file_around_a_header(tmp_path):
    path = tmp_path / "a.safetensors"
    assert ours(written(path, text_of(X)))
    whole = path.read_bytes()
    for data in (
        b"",
        whole[:7],
        whole[:-1],
        whole + b"b",
        (2**63).to_bytes(8, "little") + whole[8:],
    ):
        path.write_bytes(data)
        assert not oracle(path) and not ours(path)
    with path.open("wb") as file:  # a header of 100 MB and a byte, of which nothing is read
        file.write((LARGEST + 1).to_bytes(8, "little") + b"{")
        file.truncate(LARGEST + 100)
    assert not oracle(path) and not ours(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match="not a regular file"):
        Reader(path)


@pytest.mark.parametrize("count", [300, pytest.param(15_000, marks=pytest.mark.slow)])
def test_mutated_headers(count, tmp_path):
    """Nothing that safetensors refuses is taken, and no error but FileError leaves."""
    r, path = random.Random(count), tmp_path / "a.safetensors"
    texts = [
        t.encode() if isinstance(t, str) else t for t in (*(4 * [*ALIKE.values()]), *WRONG.values())
    ]
    texts = [each for each in texts if len(each) < 300]
    pieces = [
        b"-",
        b"0",
        b"9",
        b".5",
        b"e9",
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b",",
        b":",
        b"null",
        b" ",
    ]
    pieces += [b"true", b"\\u0000", b"\\ud800", b"\xff", b"NaN", b'"x"', b"18446744073709551616"]
    taken = 0
    for _ in range(count):
        text = bytearray(r.choice(texts))
        for _ in range(r.randrange(4)):
            at = r.randrange(len(text) + 1)
            text[at : at + r.randrange(3)] = r.choice(pieces)
        written(path, bytes(text))
        if ours(path):
            taken += 1
            assert oracle(path), bytes(text)
    assert count // 20 < taken < count // 2
