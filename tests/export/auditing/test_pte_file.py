# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's files: constants by type and bytes, a planted float, damaged files.

The files in tests/export/data were written by make_pte.py there; an audit needs no executorch.
"""

import pytest
import torch

import blockscale as bs
from blockscale.files.metadata import FileError
from tests.export.data.make_pte import FOLDER, graph


def ledger():
    return bs.graph.ledger(graph())


def test_types_and_bytes():
    found = bs.export.audit(FOLDER / "int8.pte", ledger())
    assert not found.skipped
    assert [entry.elements for entry in found.quantized] == [64 * 64] * 2
    for entry in found.quantized:
        assert entry.weight == "qcint8 per channel"
        assert "in integers; dynamic input scales" in entry.details
        assert entry.bytes_after == 64 * 64 + 4 * 64
    assert [e.bytes_after for e in found.kept if "vector" in e.reason].count(256) >= 2


def test_a_planted_float_weight():
    """The ledger says int8, and one of two weights is float in the file."""
    found = bs.export.audit(FOLDER / "planted.pte", ledger())
    assert len(found.quantized) == 1
    assert max(entry.bytes_after for entry in found.kept) == 4 * 64 * 64
    [missing] = found.skipped
    assert (
        "its ledger says int8:channel0:fp32: the file has no quantized weight of 4,160 elements"
        in missing.reason
    )


def test_damaged_files(tmp_path):
    data = (FOLDER / "int8.pte").read_bytes()
    path = tmp_path / "m.pte"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="ends after the end of the file"):
        bs.export.audit(path)
    generator = torch.Generator().manual_seed(0)
    for at in torch.randint(0, len(data) - 4, (100,), generator=generator).tolist():
        changed = bytearray(data)
        changed[at : at + 4] = b"\xff\xff\xff\x7f"
        path.write_bytes(changed)
        try:
            bs.export.audit(path)
        except FileError:
            continue


@pytest.mark.slow
@pytest.mark.parametrize("weight", ["int8_channel", "int4:group32:bf16", "mxfp4"])
def test_bytes_of_a_large_file(tmp_path, weight):
    """What is found is the file, but for the program itself."""
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(1024, 2048)).eval(), torch.randn(4, 1024)
    prepared = bs.graph.prepare(torch.export.export(model, (x,)), bs.Recipe(weight, "int8_token"))
    bs.calibrate(prepared, [(x,)], progress=False)
    converted = bs.graph.convert(prepared)
    bs.export.executorch(converted, tmp_path / "m.pte")
    found = bs.export.audit(tmp_path / "m.pte", bs.graph.ledger(converted))
    assert not found.skipped
    assert 0.95 < found.bytes_after / (tmp_path / "m.pte").stat().st_size <= 1
