# SPDX-License-Identifier: BSD-3-Clause
"""C files: weights as they are stored, floats and damage by name."""

import pytest

import blockscale as bs
from blockscale.files.metadata import FileError
from tests.support.export_c import small


@pytest.fixture
def path(tmp_path):
    graph, x = small()
    bs.export.c(graph, tmp_path / "model.c", x)
    return tmp_path / "model.c"


def test_arrays(path):
    found = {e.name: e for e in bs.export.audit(path)}
    assert sum(e.bytes_after for e in found.values()) == 4 * 18 + 3 * 16 + 4 * 4 + 4
    assert all(e.status == "kept" for e in found.values())  # of no layer that has a name
    text = path.read_text()
    weights = next(e.name for e in found.values() if e.bytes_after == 72)
    named = text.replace(weights, "c2_integers_fused_conv_default_weight")
    assert named != text
    path.write_text(named)
    (weight,) = bs.export.audit(path).quantized
    assert weight.name == "fused_conv_default" and weight.weight == "int8"
    assert weight.bytes_after == 72 and weight.details == "in integers"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return 0;\n}\n", "return 0;", "it was cut short"),
        ("int32_t acc", "float acc", "has the float 'float'"),
        ("int32_t acc = ", "int32_t acc = 0.5 * ", "has the float '0.5'"),
        ("[72] = {", "[73] = {", "has 72 elements, its header says 73"),
    ],
)
def test_damage(path, old, new, why):
    text = path.read_text()
    assert old in text
    end = text.rpartition(old) if new.startswith("return") else text.partition(old)
    path.write_text(new.join([end[0], end[2]]))
    with pytest.raises(FileError, match=why):
        bs.export.audit(path)


def test_c_of_others(tmp_path):
    (tmp_path / "x.c").write_text("int f(void);\n")
    with pytest.raises(FileError, match="C of ours"):
        bs.export.audit(tmp_path / "x.c")
