"""The header of a safetensors file: where each tensor lies."""

import json

import pytest
import torch

from blockscale.files.header import LENGTH, lay_out, parse_header, sized
from tests.files.models import tiny_tensors
from tests.files.pieces import write


def test_tensors_are_aligned(tmp_path):
    _, placed = write(tmp_path / "a.safetensors", tiny_tensors(), {"format": "pt"})
    assert all(each.start % each.torch_dtype.itemsize == 0 for each in placed.values())


def test_gaps_are_refused():
    text = {"x": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}
    with pytest.raises(ValueError, match="'x' starts at byte"):
        parse_header(json.dumps(text).encode())


def test_a_layout_is_read_back():
    tensors = {
        "a": sized(torch.uint8, (3, 5)),
        "b": sized(torch.float32, (2,)),
        "c": sized(torch.bool, ()),
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
        (b"[]", "AttributeError|TypeError"),
        (b"{", "Expecting"),
        (b'{"x": {"dtype": "U8", "shape": [1]}}', "data_offsets"),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "does not take 4 bytes"),
    ],
)
def test_what_is_no_header(text: bytes, words: str):
    with pytest.raises(ValueError, match=words):
        parse_header(text)


def test_a_dtype_that_torch_has_not_keeps_its_bytes():
    text = b'{"x": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}'
    [x] = parse_header(text)[0].values()
    assert (x.torch_dtype, x.nbytes, x.shape) == (None, 2, (3,))
