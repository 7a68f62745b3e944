# SPDX-License-Identifier: BSD-3-Clause
"""The wire format, and bytes that are none."""

import pytest

from blockscale.export.auditing import protobuf
from blockscale.export.auditing.limits import Budget, DamagedError


def read(data: bytes) -> protobuf.Fields:
    return protobuf.fields(memoryview(data), Budget())


def test_every_type_of_field():
    data = bytes([0x08, 0x96, 0x01]) + b"\x12\x02hi" + b"\x1d1234" + b"\x2112345678"
    found = read(data)
    assert found[1] == [150] and protobuf.text(found, 2) == "hi"
    assert bytes(found[3][0]) == b"1234" and bytes(found[4][0]) == b"12345678"
    assert protobuf.number(found, 1) == 150 and protobuf.number(found, 9, 7) == 7


def test_numbers_packed_or_not_and_negative():
    minus = b"\xff" * 9 + b"\x01"
    assert protobuf.numbers(read(b"\x0a\x03\x01\x96\x01"), 1, Budget()) == [1, 150]
    assert protobuf.numbers(read(b"\x08\x05\x08" + minus), 1, Budget()) == [5, -1]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x12\x7f12", "says 127 bytes, 2 are left"),
        (b"\x08", "no number at byte 1"),
        (b"\x08" + b"\xff" * 11, "no number at byte"),
        (b"\x0b", "no known type"),
        (b"\x09123", "says 8 bytes, 3 are left"),
    ],
)
def test_damaged(data, why):
    with pytest.raises(DamagedError, match=why):
        read(data)


def test_wrong_kinds():
    with pytest.raises(DamagedError, match="is no text"):
        protobuf.text(read(b"\x08\x05"), 1)
    with pytest.raises(DamagedError, match="is no message"):
        protobuf.messages(read(b"\x08\x05"), 1)


def test_work_is_bounded():
    with pytest.raises(DamagedError, match="more than"):
        protobuf.fields(memoryview(b"\x08\x05" * 100), Budget(50))
