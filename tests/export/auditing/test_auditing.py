# SPDX-License-Identifier: BSD-3-Clause
"""Which files an audit reads, and how it refuses others."""

import pytest

import blockscale as bs
from blockscale.core.ledger import Entry, Ledger, SkippedError
from blockscale.export.auditing import comparison
from blockscale.files.metadata import FileError


def test_it_is_no_target():
    assert "audit" not in [target.name for target in bs.export.targets()]
    assert callable(bs.export.audit)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.gguf", b"GGUF1234", "unrecognised file format; an audit reads .onnx, .pt2"),
        ("x.onnx", b"", "is empty"),
        ("x.onnx", b"\x80\x02}q\x00.", "cannot be audited"),
        ("x.pte", b"not a program at all", "does not begin as .pte files do"),
        ("x.pt2", b"not a program at all", "does not begin as .pt2 files do"),
        ("x.pt2", b"PK\x03\x04" + b"\0" * 40, "not a complete zip archive"),
        ("x.pte", b"\0\0\0\0ET12" + b"\xff" * 60, "cannot be audited"),
        ("x.safetensors", b"\xff" * 16, "damaged|header|safetensors"),
    ],
)
def test_other_files(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=why):
        bs.export.audit(tmp_path / name)


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        bs.export.audit(tmp_path / "nothing.onnx")


INT4 = "int4:group128:fp32"


def told(*names, elements=1024):
    return Ledger([Entry(n, "linear", "quantized", weight=INT4, elements=elements) for n in names])


def test_what_is_as_promised_stays():
    found = Ledger(
        [Entry("fc", "weight", "quantized", weight="int4", elements=1024, bytes_after=544)]
    )
    assert comparison(found, told("fc")).entries == found.entries


def test_a_float_weight_is_found():
    held = Entry("fc.weight", "tensor", "kept", reason="float32 in the file", elements=1024)
    found = Ledger([held, Entry("b", "weight", "quantized", weight="int4", bytes_after=10)])
    made = comparison(found, told("fc", "b"))
    assert made["fc.weight"].status == "skipped"
    assert made["fc.weight"].reason == f"its ledger says {INT4}: float32 in the file"
    with pytest.raises(SkippedError, match="float32 in the file"):
        made.raise_if_skipped()


def test_codes_that_take_as_much_as_floats_are_found():
    held = Entry("fc", "weight", "quantized", weight="int32", elements=1024, bytes_after=4096)
    made = comparison(Ledger([held]), told("fc"))
    assert "32.0 bits of an element" in made["fc"].reason


def test_a_weight_that_is_not_there():
    found = Ledger([Entry("b", "weight", "quantized", weight="int4", elements=8, bytes_after=4)])
    made = comparison(found, told("fc", "b"))
    assert "no weight of this name" in made["fc"].reason


def test_files_without_names_are_compared_by_sizes():
    held = [Entry(f"c{i}", "weight", "quantized", weight="qcint8", elements=1024) for i in range(2)]
    assert not comparison(Ledger(held), told("a", "b")).skipped
    short = comparison(Ledger(held), told("a", "b", "c")).skipped
    assert [entry.name for entry in short] == ["c"] and "1,024 elements" in short[0].reason
    packed = [Entry("c0", "weight", "quantized", weight="uint8", elements=512)]
    assert not comparison(Ledger(packed), told("a")).skipped
