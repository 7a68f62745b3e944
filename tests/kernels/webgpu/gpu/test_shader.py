# SPDX-License-Identifier: BSD-3-Clause
"""Shaders of parts: each part once, in order; names become numbers; sizes are constants or not."""

import pytest

from blockscale.kernels.webgpu.gpu import shader
from blockscale.kernels.webgpu.gpu.shader import Shader, Signed, constant, needed, source

MAIN = "fn main() {{ _ = {}; }}\n"


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts that a test writes, in the place of ours."""

    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.wgsl").write_text(text)

    cached = (shader.parts_of, shader.source, shader._code)
    for each in cached:
        each.cache_clear()
    monkeypatch.setattr(shader, "_FOLDER", tmp_path)
    yield write
    for each in cached:
        each.cache_clear()


def test_each_part_comes_once_after_what_it_needs(parts):
    parts(
        a="// needs: b, c\n" + MAIN.format("B + C"),
        b="// needs: c\nconst B = C;\n",
        c="const C = 1;\n",
    )
    assert list(needed(Shader("a"))) == ["c", "b", "a"]
    assert source(Shader("a"), (), None).text == (
        "//# c\nconst C = 1;\n//# b\nconst B = C;\n//# a\nfn main() { _ = B + C; }\n"
    )


def test_a_choice_fills_a_name(parts):
    parts(
        a="// needs: element/{element}\n" + MAIN.format("ELEMENT"),
        element="// Of a role.\n\n//# one\nconst ELEMENT = 1;\n\n//# two\nconst ELEMENT = 2;\n",
    )
    text = source(Shader("a", (("element", "two"),)), (), None).text
    assert "ELEMENT = 2" in text
    assert "ELEMENT = 1" not in text
    assert "Of a role" not in text


def test_files_of_kernels_have_parts_of_their_own(parts, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/k.wgsl").write_text(
        "// needs: kernels/k/{how}\nMAIN\n\n//# deep/one\nONE\n//# two\nTWO\n"
    )
    found = needed(Shader("kernels/k", (("how", "deep/one"),)))
    assert list(found) == ["kernels/k/deep/one", "kernels/k"]
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
    parts(e="fn first() {}\n")
    with pytest.raises(ValueError, match="function main in the part e; it has none"):
        source(Shader("e"), (), None)


def test_bindings_are_numbered_in_order(parts):
    text = "".join(f"@group(0) @binding({name}) var {name}: T;\n" for name in ("x", "scale", "y"))
    parts(a=text + MAIN.format("x + scale + y"))
    made = source(Shader("a"), (), None)
    assert made.bindings == ("x", "scale", "y")
    assert "@binding(1) var scale" in made.text


def test_what_main_does_not_reach_is_left_out(parts):
    """Buffers too: a layout that a device finds itself has none of them. And the constants."""
    parts(
        a="// needs: b\n// Of main.\n" + MAIN.format("used(TWICE)"),
        b="enable f16;\n"
        "@group(0) @binding(table) var<storage, read> table: array<u32>;\n"
        "@group(0) @binding(x) var<storage, read> x: array<u32>;\n\n"
        "// Of what is used.\nfn used(i: u32) -> u32 {\n    return x[i];\n}\n\n"
        "// Of the rest.\nfn unused(i: u32) -> u32 {\n    return table[i + ONCE];\n}\n",
    )
    made = source(Shader("a", (), (("TWICE", 2), ("ONCE", 1), ("TABLE", (1, 2)))), ("n",), None)
    assert made.bindings == ("x",)
    assert made.text == (
        "enable f16;\nconst TWICE: u32 = 2u;\n//# b\n"
        "@group(0) @binding(0) var<storage, read> x: array<u32>;\n"
        "// Of what is used.\nfn used(i: u32) -> u32 {\n    return x[i];\n}\n"
        "//# a\n// Of main.\nfn main() { _ = used(TWICE); }\n"
    )


def test_enabled_features_come_first(parts):
    parts(
        a="// needs: b\nenable f16;\n" + MAIN.format("B"),
        b="enable subgroups;\nenable f16;\nconst B = 1;\n",
    )
    text = source(Shader("a"), (), None).text
    assert text.startswith("enable subgroups;\nenable f16;\n")
    assert text.count("enable f16;") == 1


def test_sizes_are_a_constant_or_a_uniform(parts):
    parts(a=MAIN.format("sizes.rows"))
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
