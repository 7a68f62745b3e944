# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as entries: owners, parts that are counted with codes, bytes."""

import pytest

from blockscale.export.auditing import entries
from blockscale.export.auditing.entries import FileTensor, entry, join_parts, owner
from blockscale.files.metadata import FileError


def test_owners():
    assert owner("encoder.fc.weight.codes") == "encoder.fc"
    assert owner("fc.weight.integers") == "fc" and owner("fc.weight") == "fc"
    assert owner("table.codes") == "table"


def test_scales_count_with_their_codes():
    codes = FileTensor("fc.weight.codes", "int4", (8, 64), 4, 256, low=True, reader="x")
    scale = FileTensor("fc.weight.scale", "float32", (8, 2), 32, 64)
    bias = FileTensor("fc.bias", "float32", (8,), 32, 32)
    alone = FileTensor("other.scale", "float32", (4,), 32, 16)
    found = [entry(each) for each in join_parts([scale, codes, bias, alone])]
    assert [each.name for each in found] == ["fc", "fc.bias", "other.scale"]
    assert found[0].bytes_after == 320 and found[0].bytes_before == 4 * 512
    assert found[0].status == "quantized" and found[0].weight == "int4"
    assert found[1].status == "kept" and "a vector" in found[1].reason


def test_why_tensors_are_kept():
    matrix = entry(FileTensor("w", "float32", (8, 8), 32, 256))
    assert matrix.reason == "float32 in the file"
    table = entry(FileTensor("ids", "int64", (8, 8), 64, 512))
    assert table.reason == "int64, not a quantized weight"


# What an audit accepts of a file.


def test_sizes(tmp_path, monkeypatch):
    file = tmp_path / "x"
    file.write_bytes(b"")
    with pytest.raises(FileError, match="is empty"), entries.file_bytes(file):
        pass
    file.write_bytes(b"12345")
    with entries.file_bytes(file) as data:
        assert bytes(data) == b"12345"
    monkeypatch.setattr(entries, "MODEL", 4)
    with (
        pytest.raises(FileError, match="has 5 bytes, an audit reads files of at most 4"),
        entries.file_bytes(file),
    ):
        pass


def test_a_budget_ends():
    budget = entries.ReadBudget(2)
    budget.take(2)
    with pytest.raises(entries.DamagedError, match="parts"):
        budget.take()
