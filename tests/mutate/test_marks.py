# SPDX-License-Identifier: BSD-3-Clause
"""A mark finds its code after what editors do to files, and says so where it cannot."""

import re
from pathlib import Path

import pytest

from tests.support.marks import MarkError, current_tests, definitions, locate, tokens

CODE = '''import torch

LIMIT: int = 2  # of this


class Box:
    """Holds."""

    kind = "box"

    @property
    def size(self):
        value = self.width * 2
        return value + 1


def size(width):
    def inner(x):
        return x * 2

    return inner(width) + 1
'''
CPP = """// size { of all
#define OPEN {
namespace cells {
constexpr int kLimit = 2;
struct Box {
    explicit Box(int n) : n_(n) {}
    int size() const { return n_ + 1; }
    int n_;
};
template <class T> inline T size(T x) {
    if (x > 0) { return x + 1; }
    auto twice = [&](T y) { return y * 2; };
    return twice(x);
}
}  // namespace cells
"""
WGSL = """const LEVELS: u32 = 2u;
struct Sizes { width: u32, height: u32 }
@group(0) @binding(0) var<uniform> sizes: Sizes;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    for (var i = 0u; i < LEVELS; i += 1u) { put(i, at.x); }
}
"""


def repository(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_names_of_definitions() -> None:
    assert set(definitions(CODE, ".py")) == {
        "LIMIT", "Box", "Box.kind", "Box.size", "size", "size.inner",
    }  # fmt: skip
    assert set(definitions(CPP, ".h")) == {"kLimit", "Box", "Box.Box", "Box.size", "size"}
    assert set(definitions(WGSL, ".wgsl")) == {"LEVELS", "Sizes", "main"}


def test_a_definition_is_whole() -> None:
    ((start, end),) = definitions(CODE, ".py")["Box.size"]
    assert CODE[start:end].startswith("    @property") and CODE[start:end].endswith("value + 1\n")
    ((start, end),) = definitions(CPP, ".cpp")["size"]
    assert CPP[start:end].count("return") == 3


def test_tokens() -> None:
    texts = [each.text for each in tokens("f(a >= -1.5e-3, 'b, )',\n  )  # c", ".py")]
    assert texts == ["f", "(", "a", ">=", "-", "1.5e-3", ",", "'b, )'", ")"]
    assert [each.text for each in tokens("a//b\n/* c */+1'000u", ".h")] == ["a", "+", "1'000u"]


def test_it_is_planted_there_and_nowhere_else(tmp_path: Path) -> None:
    root = repository(tmp_path, package__a_py=CODE)
    changed = locate("package/a.py", "size", "+ 1", root).planted("+ 3")
    assert changed == CODE.replace("inner(width) + 1", "inner(width) + 3")


def test_format_does_not_count(tmp_path: Path) -> None:
    text = CODE.replace(
        "inner(width) + 1",
        "(\n        inner( # so\n            width,\n        )\n        + 1\n    )",
    )
    root = repository(tmp_path, package__a_py=text)
    assert "inner(2)" in locate("package/a.py", "size", "inner(width)", root).planted("inner(2)")


@pytest.mark.parametrize("left", [True, False])
def test_what_moved_is_found_by_its_name(tmp_path: Path, left: bool) -> None:
    root = repository(tmp_path, package__sub__b_py=CODE, package__c_py="def other(): ...\n")
    if left:  # the file is still there, without the definition
        repository(tmp_path, package__a_py="X = 1\n")
    place = locate("package/a.py", "Box.size", "+ 1", root)
    assert place.path == root / "package/sub/b.py"


@pytest.mark.parametrize(
    ("where", "find", "expected"),
    [
        ("size", "+ 2", "`+ 2` in size of package/a.py is nowhere: the code changed"),
        ("gone", "+ 1", "`+ 1` in gone of package/a.py is nowhere"),
        ("Box.size", "value", "`value` in Box.size of package/a.py is 2 times in package/a.py"),
    ],
)
def test_errors_name_it(tmp_path: Path, where: str, find: str, expected: str) -> None:
    root = repository(tmp_path, package__a_py=CODE)
    with pytest.raises(MarkError, match=re.escape(expected)):
        locate("package/a.py", where, find, root)


def test_two_places_after_a_move(tmp_path: Path) -> None:
    root = repository(tmp_path, package__b_py=CODE, package__c_py=CODE)
    with pytest.raises(MarkError, match=r"2 times in package/b.py, package/c.py: say more"):
        locate("package/a.py", "size", "+ 1", root)


def test_tests_that_moved(tmp_path: Path) -> None:
    text = "def test_one(): ...\nclass TestX:\n    def test_two(self): ...\n"
    root = repository(tmp_path, tests__b__test_b_py=text, tests__a__test_c_py="")
    there = "tests/b/test_b.py"
    assert current_tests([f"{there}::test_one[1]", there], root) == [f"{there}::test_one[1]", there]
    assert current_tests(["tests/a/test_a.py::test_one"], root) == [f"{there}::test_one"]
    assert current_tests(["tests/a/test_b.py"], root) == [there]
    repository(root, tests__d__test_d_py=text)  # a file of the same name comes first
    assert current_tests(["tests/a/test_b.py::test_one"], root) == [f"{there}::test_one"]
    with pytest.raises(MarkError, match=r"is tests/b/test_b.py, tests/d/test_d.py: name another"):
        current_tests(["tests/a/test_a.py::test_one"], root)
    with pytest.raises(MarkError, match=r"the test tests/a/test_b.py::test_ten is gone"):
        current_tests(["tests/a/test_b.py::test_ten"], root)
