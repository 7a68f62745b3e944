"""Shaders of parts: each part once, in order; names become numbers; sizes are constants or not."""

import pytest

from blockscale.kernels.webgpu.gpu import shader
from blockscale.kernels.webgpu.gpu.shader import Shader, Signed, constant, needed, source


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts that a test writes, in the place of ours."""

    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.wgsl").write_text(text)

    for each in (shader.parts_of, shader.source):
        each.cache_clear()
    monkeypatch.setattr(shader, "_FOLDER", tmp_path)
    yield write
    for each in (shader.parts_of, shader.source):
        each.cache_clear()


def test_each_part_comes_once_after_what_it_needs(parts):
    parts(a="// needs: b, c\nA\n", b="// needs: c\nB\n", c="C\n")
    assert list(needed(Shader("a"))) == ["c", "b", "a"]
    assert source(Shader("a"), (), None).text.count("C\n") == 1


def test_a_choice_fills_a_name(parts):
    parts(
        a="// needs: element/{element}\n", element="// Of a role.\n\n//# one\nONE\n\n//# two\nTWO\n"
    )
    text = source(Shader("a", (("element", "two"),)), (), None).text
    assert "TWO" in text
    assert "ONE" not in text
    assert "Of a role" not in text


def test_files_of_kernels_have_parts_of_their_own(parts, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/k.wgsl").write_text(
        "// needs: kernels/k/{how}\nMAIN\n\n//# deep/one\nONE\n//# two\nTWO\n"
    )
    assert list(needed(Shader("kernels/k", (("how", "deep/one"),)))) == [
        "kernels/k/deep/one",
        "kernels/k",
    ]
    assert shader.part("kernels/k/two") == "TWO\n"


def test_what_is_missing_is_named(parts):
    parts(a="// needs: element/{element}\n", b="// needs: nowhere\n")
    with pytest.raises(ValueError, match=r"a needs element/\{element\}.*no 'element'"):
        needed(Shader("a"))
    with pytest.raises(ValueError, match=r"the part nowhere .*nowhere.wgsl; there is no such file"):
        needed(Shader("b"))
    parts(c="// needs: d/wrong\n", d="//# one\n//# two\n")
    with pytest.raises(ValueError, match=r"the part d/wrong .*d.wgsl; it has one, two"):
        needed(Shader("c"))


def test_bindings_are_numbered_in_order(parts):
    text = "".join(f"@group(0) @binding({name}) var {name};\n" for name in ("x", "scale", "y"))
    parts(a=text + "// again @binding(scale)\n")
    made = source(Shader("a"), (), None)
    assert made.bindings == ("x", "scale", "y")
    assert "@binding(1) var scale" in made.text


def test_main_reaches_every_table_that_parts_bind(parts):
    """Else the layout that a device finds leaves out its binding."""
    parts(
        a="// needs: b\nfn main(\n  x: u32) {\n  return;\n}\n",
        b="@group(0) @binding(inner_table) var<storage, read> inner_table: array<u32>;\n",
    )
    made = source(Shader("a", (), (("TABLE", (1, 2)), ("INNER_TABLE", (3,)))), (), None)
    assert made.bindings == ("inner_table",)
    assert "fn main(\n  x: u32) { _ = &inner_table;\n  return;" in made.text
    assert "&table" not in made.text


def test_enabled_features_come_first(parts):
    parts(a="// needs: b\nenable f16;\nA\n", b="enable subgroups;\nenable f16;\nB\n")
    text = source(Shader("a"), (), None).text
    assert text.startswith("enable subgroups;\nenable f16;\n")
    assert text.count("enable f16;") == 1


def test_sizes_are_a_constant_or_a_uniform(parts):
    parts(a="fn main() {}\n")
    baked = source(Shader("a"), ("rows", "columns"), (3, 4))
    free = source(Shader("a"), ("rows", "columns"), None)
    assert "const sizes = Sizes(3u, 4u);" in baked.text
    assert baked.bindings == ()
    assert "var<uniform> sizes: Sizes;" in free.text
    assert free.bindings == ("sizes",)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "const N: u32 = 7u;"),
        (Signed(-8), "const N: i32 = i32(-8);"),
        (Signed(-(2**31)), "const N: i32 = i32(-2147483648);"),
        (True, "const N: bool = true;"),
        ((1, 2), "const N = array<u32, 2>(1u, 2u);"),
    ],
)
def test_constants_are_typed(value, text):
    assert constant("N", value) == text


def test_every_part_of_ours_is_found_by_its_name():
    for path in shader._FOLDER.rglob("*.wgsl"):
        file = path.relative_to(shader._FOLDER).with_suffix("").as_posix()
        marks = [mark for mark in shader.parts_of(path) if mark]
        assert len(marks) == path.read_text().count("//# "), f"{file}: two parts of one name"
        assert all(shader.part(f"{file}/{mark}").strip() for mark in marks)
        assert ("fn main(" in shader.part(file)) == file.startswith("kernels/"), file
