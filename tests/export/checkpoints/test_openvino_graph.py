# SPDX-License-Identifier: BSD-3-Clause
"""The XML of an IR: what is taken of it, and what is refused."""

import pytest
import torch

from blockscale.core.pack import unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints import openvino_graph as graphs
from blockscale.export.checkpoints.openvino_graph import (
    number,
    packed_codes,
    read_graph,
    sizes,
    stored_bytes,
)
from blockscale.files.metadata import FileError
from tests.support.openvino_ir import write


def test_layers_and_edges(tmp_path):
    found = read_graph(write(tmp_path / "m.xml", "u4", zero="u4"))
    assert (found.name, found.version, found.bodies) == ("m", "11", 0)
    assert found.layers["12"].inputs == ["2", "11"]  # in the order of ports
    assert found.layers["6"].shape == (4, 48)
    assert [each.name for each in found.readers["1"]] == ["c"]
    assert found.layers["1"].data["element_type"] == "u4"


def test_entities_are_never_expanded(tmp_path):
    bombs = '<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    (tmp_path / "m.xml").write_text(f"<!DOCTYPE net [{bombs}]><net name='&i;'/>")
    with pytest.raises(
        FileError, match="declares a document type or entities, which an IR may not have"
    ):
        read_graph(tmp_path / "m.xml")


def test_deep_and_many(tmp_path, monkeypatch):
    (tmp_path / "m.xml").write_text("<net>" + "<a>" * 200 + "</a>" * 200 + "</net>")
    with pytest.raises(FileError, match="nested more than 100 elements"):
        read_graph(tmp_path / "m.xml")
    path = write(tmp_path / "m.xml", "u4")
    for name, told in (("_LAYERS", "more than 3"), ("_EDGES", "more than 3 edges")):
        with monkeypatch.context() as patch:
            patch.setattr(graphs, name, 3)
            with pytest.raises(FileError, match=told):
                read_graph(path)
    monkeypatch.setattr(graphs, "LARGEST_FILE", 100)
    with pytest.raises(FileError, match="at most 100"):
        read_graph(path)


def test_bodies_are_counted_and_not_looked_at(tmp_path):
    path = write(tmp_path / "m.xml", "u4")
    inside = '<body><layers><layer id="1" name="w" type="Const"/></layers></body></layer>'
    path.write_text(path.read_text().replace("</layer>", inside, 1))
    assert read_graph(path).bodies == 1


@pytest.mark.parametrize("text", ["", "1.5", "0x10", "- 1", "9" * 20, "٣"])
def test_numbers(text):
    with pytest.raises(ValueError, match="is not a size or an offset"):
        number(text)
    assert number(" 12 ") == 12 and number("-1") == -1
    assert sizes("2, 3,4") == (2, 3, 4) and sizes(" ") == ()


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [("u1", 9, 2), ("u3", 8, 3), ("u3", 9, 6), ("u6", 4, 3), ("u6", 5, 6), ("u4", 3, 2),
     ("i8", 3, 3), ("f16", 3, 6), ("string", 3, None)],
)  # fmt: skip
def test_bytes(kind, count, size):
    assert stored_bytes(kind, count) == size


def test_split_bits():
    """u3: two low bits of eight elements, then their high bits, the first in the highest place."""
    codes = [0b101, 0b010, 0b111, 0b000, 0b011, 0b100, 0b110, 0b001]
    low = [sum((c & 3) << 6 - 2 * i for i, c in enumerate(codes[k : k + 4])) for k in (0, 4)]
    high = sum((c >> 2) << 7 - i for i, c in enumerate(codes))
    element = parse("uint3:tensor:fp32").element
    data = torch.tensor([*low, high], dtype=torch.uint8)
    packed = packed_codes(data, "u3", element, (1, 8))
    assert unpack(packed, element, (8,)).tolist() == codes


def test_one_bit():
    element = parse("uint1:tensor:fp32").element
    packed = packed_codes(torch.tensor([0b10110000], dtype=torch.uint8), "u1", element, (5,))
    assert unpack(packed, element, (5,)).tolist() == [1, 0, 1, 1, 0]
