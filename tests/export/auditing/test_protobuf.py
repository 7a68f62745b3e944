# SPDX-License-Identifier: BSD-3-Clause
"""The wire format, and bytes that are none."""

import struct

import pytest

from blockscale.export.auditing import protobuf
from blockscale.export.auditing.entries import DamagedError, ReadBudget
from blockscale.export.auditing.protobuf import FlatTable


def read(data: bytes) -> protobuf.Fields:
    return protobuf.fields(memoryview(data), ReadBudget())


def test_every_type_of_field():
    data = bytes([0x08, 0x96, 0x01]) + b"\x12\x02hi" + b"\x1d1234" + b"\x2112345678"
    found = read(data)
    assert found[1] == [150] and protobuf.text(found, 2) == "hi"
    assert bytes(found[3][0]) == b"1234" and bytes(found[4][0]) == b"12345678"
    assert protobuf.number(found, 1) == 150 and protobuf.number(found, 9, 7) == 7


def test_numbers_packed_or_not_and_negative():
    minus = b"\xff" * 9 + b"\x01"
    assert protobuf.numbers(read(b"\x0a\x03\x01\x96\x01"), 1, ReadBudget()) == [1, 150]
    assert protobuf.numbers(read(b"\x08\x05\x08" + minus), 1, ReadBudget()) == [5, -1]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x12\x7f12", "should have 127 bytes, 2 are left"),
        (b"\x08", "no number at byte 1"),
        (b"\x08" + b"\xff" * 11, "no number at byte"),
        (b"\x0b", "has an unknown type"),
        (b"\x09123", "should have 8 bytes, 3 are left"),
    ],
)
def test_damaged(data, why):
    with pytest.raises(DamagedError, match=why):
        read(data)


def test_wrong_kinds():
    with pytest.raises(DamagedError, match="is not text"):
        protobuf.text(read(b"\x08\x05"), 1)
    with pytest.raises(DamagedError, match="is not a message"):
        protobuf.messages(read(b"\x08\x05"), 1)


def test_work_is_bounded():
    with pytest.raises(DamagedError, match="more than"):
        protobuf.fields(memoryview(b"\x08\x05" * 100), ReadBudget(50))


# Tables by position, against the library that writes them, and offsets that lead outside.


def built() -> bytes:
    flatbuffers = pytest.importorskip("flatbuffers")
    builder = flatbuffers.Builder(64)
    name, inner_name = builder.CreateString("outer"), builder.CreateString("inner")
    numbers = builder.CreateNumpyVector(__import__("numpy").array([3, -1, 7], dtype="int32"))
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, inner_name, 0)
    inner = builder.EndObject()
    builder.StartVector(4, 2, 4)
    builder.PrependUOffsetTRelative(inner)
    builder.PrependUOffsetTRelative(inner)
    both = builder.EndVector()
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(1, numbers, 0)
    builder.PrependUOffsetTRelativeSlot(2, inner, 0)
    builder.PrependUOffsetTRelativeSlot(3, both, 0)
    builder.PrependUint64Slot(4, 2**40, 0)
    root = builder.EndObject()
    builder.Finish(root, file_identifier=b"TEST")
    return bytes(builder.Output())


def root(data: bytes) -> FlatTable:
    return FlatTable.root(memoryview(data), (b"TEST",), ReadBudget())


def test_what_the_library_wrote():
    table = root(built())
    assert table.text(0) == "outer" and table.numbers(1, "i") == [3, -1, 7]
    inner = table.table(2)
    assert inner is not None and inner.text(0) == "inner"
    assert [each.text(0) for each in table.tables(3)] == ["inner", "inner"]
    assert table.number(4, "Q") == 2**40
    assert table.number(5, "I", 9) == 9 and table.table(40) is None and table.tables(41) == []


def test_another_kind_of_file():
    with pytest.raises(DamagedError, match="does not begin as TEST files do"):
        root(b"\0" * 40)


@pytest.mark.parametrize("at", [0, 8, 12, 16, 20, 24, 28, 32, 40])
def test_any_offset_may_lie(at):
    """Numbers in the place of offsets are an error or other values, never more than that."""
    data = bytearray(built())
    for wrong in (2**31 - 1, 2**32 - 1, 0):
        changed = bytearray(data)
        changed[at : at + 4] = struct.pack("<I", wrong)
        if at == 4:
            continue
        try:
            table = root(bytes(changed))
            for field in range(6):
                table.text(field)
                table.numbers(field, "i")
                table.tables(field)
        except DamagedError:
            continue


def test_cut_short():
    data = built()
    for size in range(8, len(data), 4):
        try:
            table = root(data[:size])
            table.text(0)
            table.tables(3)
        except DamagedError:
            continue
