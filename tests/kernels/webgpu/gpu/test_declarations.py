# SPDX-License-Identifier: BSD-3-Clause
"""What a declaration of WGSL is, what it uses, and what an entry point reaches."""

import pytest

from blockscale.kernels.webgpu.gpu import shader
from blockscale.kernels.webgpu.gpu.declarations import declarations, reached

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
    assert reached(there) == {"main", "a", "b"}
    assert reached(there, "b") == {"a", "b"}
    assert reached(there, "nothing") == frozenset()


def test_every_part_of_ours_is_declarations():
    for path in shader._FOLDER.rglob("*.wgsl"):
        for text in shader.parts_of(path).values():
            plain = shader._NEEDS.sub("", shader._ENABLE.sub("", text))
            assert len(names(plain)) == len(set(names(plain)))
            assert "".join(each.text for each in declarations(plain)).count("fn ") == plain.count(
                "fn "
            )
