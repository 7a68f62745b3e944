# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of tensors in files: reading, codes that lie after one another, and shared bytes."""

import pytest
import torch

from blockscale.core.pack import unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.places import Files, Place, check_apart, fields, packed_rows
from blockscale.files.metadata import FileError


def test_reading(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(100)))
    files = Files()
    assert files.read(Place(tmp_path / "a", 90, 3)).tolist() == [90, 91, 92]
    assert files.read(Place(tmp_path / "a", 0, 3, b"\7\0\1")).tolist() == [7, 0, 1]
    assert files.read(Place(tmp_path / "a", 0, 0)).tolist() == []
    files.close()
    with pytest.raises(FileError, match="ends at byte 100: it was truncated while being read"):
        files.read(Place(tmp_path / "a", 90, 11))
    with pytest.raises(FileError, match="is not a regular file"):
        files.read(Place(tmp_path, 0, 1))


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ["int2", "uint4", "int4", "e2m1", "int8", "uint16", "e4m3"])
@pytest.mark.parametrize("shape", [(3, 8), (3, 5), (2, 3, 7), (9,)])
def test_codes_of_the_flattened_tensor(name, shape):
    element = parse(f"{name}:tensor:fp32").element
    count = torch.Size(shape).numel()
    data = torch.randint(0, 256, (-(-count * element.bits // 8),), dtype=torch.uint8)
    whole = int.from_bytes(bytes(data.tolist()), "little")
    expected = [whole >> i * element.bits & 2**element.bits - 1 for i in range(count)]
    found = unpack(packed_rows(data, element, shape), element, shape)
    assert (element.to_bits(found).flatten().long() % 2**element.bits).tolist() == expected


def test_fields():
    assert fields(torch.tensor([0b11100100], dtype=torch.uint8), 2, 3).tolist() == [0, 1, 2]


def test_shared_bytes(tmp_path):
    def place(start, size, file="a", held=None):
        return Place(tmp_path / file, start, size, held)

    apart = {"a": place(0, 4), "b": place(4, 4), "c": place(0, 4, "b"), "d": place(3, 0)}
    check_apart(apart | {"e": place(0, 4), "f": place(0, 9, "a", b"123456789")})  # one, twice
    with pytest.raises(FileError, match="tensors 'a' and 'e' share bytes"):
        check_apart(apart | {"e": place(3, 2)})
    with pytest.raises(FileError, match="share bytes"):
        check_apart({"a": place(0, 8), "b": place(0, 4)})
