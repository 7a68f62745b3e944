# SPDX-License-Identifier: BSD-3-Clause
"""Tables by position, against the library that writes them, and offsets that lead outside."""

import struct

import pytest

from blockscale.export.auditing.flatbuffer import Table
from blockscale.export.auditing.limits import Budget, DamagedError


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


def root(data: bytes) -> Table:
    return Table.root(memoryview(data), (b"TEST",), Budget())


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
