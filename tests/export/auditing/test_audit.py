"""Which files an audit reads, and how it refuses others."""

import pytest

import blockscale as bs
from blockscale.files.metadata import FileError


def test_it_is_no_target():
    assert "audit" not in [target.name for target in bs.export.targets()]
    assert callable(bs.export.audit)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.gguf", b"GGUF1234", "is of no kind that is known here: an audit reads .onnx, .pt2"),
        ("x.onnx", b"", "is empty"),
        ("x.onnx", b"\x80\x02}q\x00.", "cannot be audited"),
        ("x.pte", b"not a program at all", "does not begin as .pte files do"),
        ("x.pt2", b"not a program at all", "does not begin as .pt2 files do"),
        ("x.pt2", b"PK\x03\x04" + b"\0" * 40, "no whole zip archive"),
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
