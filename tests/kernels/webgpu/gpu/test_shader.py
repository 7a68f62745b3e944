# SPDX-License-Identifier: BSD-3-Clause
"""Shaders of parts: each part once, in order; names become numbers; sizes are constants or not."""

import re
import typing
from dataclasses import dataclass
from functools import cache

import pytest

from blockscale.core import import_all
from blockscale.kernels import webgpu
from blockscale.kernels.webgpu import primitives, textures, torch_ops
from blockscale.kernels.webgpu.gpu import shader
from blockscale.kernels.webgpu.gpu.shader import (
    Roles,
    Shader,
    ShaderKernel,
    Signed,
    constant,
    declarations,
    reachable,
    source,
    texts_of,
)
from blockscale.reporting import browser
from tests.kernels.webgpu.wgsl import running

MAIN = "fn main() {{ _ = {}; }}\n"


@dataclass(frozen=True)
class Group(Roles):
    element: str
    unused: str | None = None


@dataclass(frozen=True)
class Of(ShaderKernel, part="a"):
    group: Group


@dataclass(frozen=True)
class Other(ShaderKernel, part="a"):
    how: str


@dataclass(frozen=True)
class OfFile(ShaderKernel, part="kernels/k"):
    how: str


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts that a test writes, in the place of ours."""

    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.wgsl").write_text(text)

    cached = (shader.parts_of, shader.source, shader.assemble)
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
    assert list(texts_of(Shader("a"))) == ["c", "b", "a"]
    assert source(Shader("a"), (), None).text == (
        "//# c\nconst C = 1;\n//# b\nconst B = C;\n//# a\nfn main() { _ = B + C; }\n"
    )


def test_a_choice_fills_a_name(parts):
    parts(
        a="// needs: element/{element}\n" + MAIN.format("ELEMENT"),
        element="// Of a role.\n\n//# one\nconst ELEMENT = 1;\n\n//# two\nconst ELEMENT = 2;\n",
    )
    text = source(Shader(Of(Group("two"))), (), None).text
    assert "ELEMENT = 2" in text
    assert "ELEMENT = 1" not in text
    assert "Of a role" not in text


def test_files_of_kernels_have_parts_of_their_own(parts, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/k.wgsl").write_text(
        "// needs: kernels/k/{how}\nMAIN\n\n//# deep/one\nONE\n//# two\nTWO\n"
    )
    found = texts_of(Shader(OfFile("deep/one")))
    assert list(found) == ["kernels/k/deep/one", "kernels/k"]
    assert shader.part("kernels/k/two") == "TWO\n"


def test_what_is_missing_is_named(parts):
    parts(a="// needs: element/{element}\n", b="// needs: nowhere\n")
    with pytest.raises(ValueError, match=r"a fills no role 'element'.*its part a .*fills none"):
        texts_of(Shader("a"))
    with pytest.raises(ValueError, match=r"a \(Other\) fills no role 'element'.*; it fills how"):
        texts_of(Shader(Other("one")))
    with pytest.raises(ValueError, match=r"the part nowhere .*nowhere.wgsl; there is no such file"):
        texts_of(Shader("b"))
    parts(c="// needs: d/wrong\n", d="//# one\n//# two\n")
    with pytest.raises(ValueError, match=r"the part d/wrong .*d.wgsl; it has one, two"):
        texts_of(Shader("c"))
    parts(e="fn first() {}\n")
    with pytest.raises(ValueError, match="function main in the part e; it has none"):
        source(Shader("e"), (), None)


def test_a_role_that_there_is_not_is_named():
    made = Of(Group("one"))
    assert made.variants() == {"element": "one"}
    assert made.with_variants(element="two", unused="three") == Of(Group("two", "three"))
    with pytest.raises(ValueError, match=r"a \(Of\) has no role elment; it has element"):
        made.with_variants(elment="two")
    with pytest.raises(TypeError, match=r"OfFile.* unexpected keyword argument 'why'"):
        OfFile(how="one", why="two")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"OfFile.* missing .* 'how'"):
        OfFile()  # type: ignore[call-arg]


PATTERN = re.compile(r"\{([a-z_]+)\}")


@cache
def needs() -> dict[str, list[str]]:
    """{part: the parts that it needs, with roles in their names} of all of ours."""
    found = {}
    for path in shader._FOLDER.rglob("*.wgsl"):
        file = path.relative_to(shader._FOLDER).with_suffix("").as_posix()
        for mark, text in shader.parts_of(path).items():
            lines = shader._NEEDS.findall(text)
            found[f"{file}/{mark}".removesuffix("/")] = [
                each.strip() for line in lines for each in line.split(",")
            ]
    return found


@cache
def fitting(pattern: str) -> list[str]:
    fits = re.compile(PATTERN.sub("[a-z0-9_/]+", pattern))
    return [name for name in needs() if fits.fullmatch(name)]


def every_role(name: str) -> set[str]:
    """The roles of a kernel's parts, whatever fills them."""
    found, waiting, seen = set(), [name], set()
    while waiting:
        part = waiting.pop()
        if part not in seen:
            seen.add(part)
            for pattern in needs()[part]:
                found |= set(PATTERN.findall(pattern))
                waiting += fitting(pattern)
    return found


def kernels(of: type = ShaderKernel) -> list[type[ShaderKernel]]:
    return [each for own in of.__subclasses__() for each in (own, *kernels(own))]


def own_roles(of: type) -> set[str]:
    """Roles that are fields of a class itself, not of fields that are Roles."""
    found = set()
    for name, hint in typing.get_type_hints(of).items():
        kinds = [each for each in (hint, *typing.get_args(hint)) if isinstance(each, type)]
        if name != "part" and not any(issubclass(each, Roles) for each in kinds):
            found.add(name)
    return found


def test_the_fields_of_a_kernel_are_the_roles_of_its_parts():
    for package in (webgpu, primitives, textures, torch_ops, running, browser):
        import_all(package.__name__, getattr(package, "__path__", ()))
    ours = [each for each in kernels() if each.part.startswith("kernels/")]
    ours = [each for each in ours if each is not OfFile]
    assert len(ours) >= 30
    for each in ours:
        more = own_roles(each) - every_role(each.part)
        assert not more, f"{each.__name__}: no part of {each.part} has the roles {more}"
    named = {each.part for each in ours}
    for path in (shader._FOLDER / "kernels").glob("*.wgsl"):
        if every_role(f"kernels/{path.stem}"):
            assert f"kernels/{path.stem}" in named, f"no dataclass fills the roles of {path.stem}"


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
    made = source(Shader("a", (("TWICE", 2), ("ONCE", 1), ("TABLE", (1, 2)))), ("n",), None)
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
        assert ("fn main(" in path.read_text()) == file.startswith("kernels/"), file


TEXT = """// Of the struct.
struct Pair { first: A, second: u32 }
struct Long {
    a: u32, // a comment; with } and {
    b: array<vec4<u32>, N>,
};
alias Keys = vec2<u32>;

// Of the buffer:
// two lines.
@group(0) @binding(values) var<storage, read_write> values: array<atomic<u32>>;
const N: u32 = 2u * M;
const LISTED = array<u32, 2>(
    1u,
    2u,
);

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let x = of_two(lane, N);

    return;
}
"""


def names(text):
    return [each.name for each in declarations(text)]


def uses(text):
    (only,) = declarations(text)
    return only.uses


def test_declarations_are_found_in_order():
    assert names(TEXT) == ["Pair", "Long", "Keys", "values", "N", "LISTED", "main"]


def test_they_keep_their_comments_and_attributes():
    found = {each.name: each.text for each in declarations(TEXT)}
    assert found["Pair"].startswith("// Of the struct.\nstruct")
    assert found["values"].startswith("// Of the buffer:\n// two lines.\n@group(0)")
    assert found["main"].startswith("@compute")
    assert found["main"].endswith("lane: u32) {\n    let x = of_two(lane, N);\n\n    return;\n}")


def test_what_they_use():
    found = {each.name: each.uses for each in declarations(TEXT)}
    assert "A" in found["Pair"]
    assert not {"first", "second"} & found["Pair"]
    assert "N" in found["Long"]
    assert "a" not in found["Long"]
    assert "M" in found["N"]
    assert {"GROUP", "of_two", "N"} <= found["main"]
    assert not {"group", "lane", "x"} & found["main"]


@pytest.mark.parametrize(
    ("body", "used"),
    [
        ("let codes = 1u; _ = codes;", False),
        ("let codes = codes[0];", True),  # the buffer, until the statement ends
        ("var codes: u32; codes = 2u;", False),
        ("_ = quick.codes;", False),
        ("_ = quick.codes + codes[1];", True),
        ("if (a) { let codes = 1u; } _ = codes[0];", True),
        ("if (a) { let codes = 1u; b = 2u; } b = 3u; _ = codes[0];", True),
        ("let codes = 1u; if (a) { _ = codes; }", False),
        ("for (var codes = 0u; codes < 4u; codes++) { _ = codes; }", False),
        ("_ = other(&codes);", True),
        ("_ = 1u; // codes", False),
    ],
)
def test_names_of_variables_hide_others(body, used):
    assert ("codes" in uses(f"fn f(a: bool) -> u32 {{\n    {body}\n}}\n")) == used


def test_parameters_hide_others():
    assert "x" not in uses("fn f(x: u32) -> u32 {\n    return x;\n}\n")


@pytest.mark.parametrize("text", ["const A = array(\n1u,\n", "1 + 1;\n"])
def test_what_is_no_declaration_is_told(text):
    with pytest.raises(ValueError, match="declaration of WGSL"):
        declarations(text)


def test_an_entry_point_reaches_what_others_use():
    there = declarations(
        "fn main() { a(); }\nfn a() { b(); }\nfn b() { a(); }\n"
        "const B = 1;\nfn unused() { main(); }\n"
    )
    assert reachable(there) == {"main", "a", "b"}
    assert reachable(there, "b") == {"a", "b"}
    assert reachable(there, "nothing") == frozenset()


def test_every_part_of_ours_is_declarations():
    for path in shader._FOLDER.rglob("*.wgsl"):
        for text in shader.parts_of(path).values():
            plain = shader._NEEDS.sub("", shader._ENABLE.sub("", text))
            assert len(names(plain)) == len(set(names(plain)))
            assert "".join(each.text for each in declarations(plain)).count("fn ") == plain.count(
                "fn "
            )
