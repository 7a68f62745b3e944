# SPDX-License-Identifier: BSD-3-Clause
"""The documentation is true: its Python runs, its links and paths lead somewhere.

A block that cannot run here has `<!-- not run: the reason -->` on the line before it.
"""

import pathlib
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

import blockscale
from docs.pages.house import design, house
from tests.support.layer_order import LAYERS

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if p.exists()]
OTHERS = ("CONTRIBUTING", "CHANGELOG", "SECURITY", "RELEASING", "NOTICE")
PROSE = [*PAGES, *(ROOT / f"{each}.md" for each in OTHERS)]

BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+-->\n+)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
PATH = re.compile(r"`(?P<path>(?:blockscale|tests|docs|benchmarks|examples|requirements)/[^`\s]*)`")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """(line of the fence, code) of each ```python block that is not opted out."""
    for match in BLOCK.finditer(text):
        if not match["skip"]:
            yield text.count("\n", 0, match.start()) + 1, match["code"]


def dead_links(page: pathlib.Path, text: str) -> list[str]:
    """Relative links to nothing."""
    targets = [m["target"].partition("#")[0] for m in LINK.finditer(FENCED.sub("", text))]
    here = [t for t in targets if t and ":" not in t]
    return [t for t in here if not (page.parent / t).exists()]


def dead_paths(text: str) -> list[str]:
    """Paths in backticks that are not there; `a/<b>/c` is held to `a`, `a/*.py` globs."""
    found = [m["path"] for m in PATH.finditer(FENCED.sub("", text))]
    plain = {re.sub(r"[<…{].*", "", path).partition(":")[0] for path in found}
    return sorted(path for path in plain if not any(ROOT.glob(path.rstrip("/"))))


def name(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Pages whose code takes a second and more: slow tests, first in those of CI when the page changed.
LONG = ["calibration", "experts", "export", "fused_quant", "graph", "integers", "peft", "pt2e",
        "qat", "transformers"]  # fmt: skip


def pages_to_run() -> list[Any]:
    """Each page as a parameter, the long ones marked slow."""
    assert {f"docs/{each}.md" for each in LONG} <= {name(page) for page in PAGES}
    slow = {ROOT / "docs" / f"{each}.md" for each in LONG}
    return [pytest.param(p, marks=[pytest.mark.slow] if p in slow else []) for p in PAGES]


@pytest.mark.parametrize("page", pages_to_run(), ids=name)
def test_python_runs(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in blocks(page.read_text()):
        # Blank lines before it make a traceback point at the page's own line.
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_links_and_paths_exist(page: pathlib.Path) -> None:
    text = page.read_text()
    assert not dead_links(page, text)
    assert not dead_paths(text)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {p.name for p in (ROOT / "docs").glob("*.md") if not p.name.endswith("_notes.md")}
    linked = {m["target"] for m in LINK.finditer(index)}
    assert pages - {"index.md"} <= linked


def test_every_variable_of_the_environment_has_its_row() -> None:
    """What Python and C++ ask the environment for; CMake's options and macros are no variables."""
    asked = re.compile(r"(?:environ\.get\(|getenv\(|^[A-Z]+ = )\"(BLOCKSCALE_\w+)\"", re.MULTILINE)
    sources = (p for s in ("*.py", "*.cpp") for p in (ROOT / "blockscale").rglob(s))
    names = {name for path in sources for name in asked.findall(path.read_text())}
    rows = re.findall(r"^\| `(\w+)`", (ROOT / "docs/environment.md").read_text(), re.MULTILINE)
    assert len(names) >= 8
    assert sorted(rows) == sorted(names)


def test_docstrings_for_the_site() -> None:
    """docs/site/conf.py without Sphinx: what it makes of a docstring."""
    site = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))
    lines = ["A `x_` and y_ of", "two lines.", "", "a, b: first", "    and `more`", "path: where"]
    assert site["paragraphs"](lines) == [
        "A ``x_`` and y\\_ of two lines.",
        "",
        ":param a, b: first and ``more``",
        ":param path: where",
        "",
    ]
    assert "quantize_" in site["public"](blockscale)


def test_the_house_is_drawn_as_it_stands() -> None:
    drawn = (ROOT / "docs" / "design.md").read_text()
    assert design() == drawn, "run: make docs"
    for folder in (ROOT / "blockscale").glob("*/"):
        if any(folder.rglob("*.py")):
            assert f"\n  {folder.name}/ " in drawn, folder


def test_every_room_says_what_it_is() -> None:
    for line in house().splitlines():
        name, _, said = line.strip().partition("/ ")
        if said:
            assert 15 < len(said.strip()) < 120 and said.endswith("."), f"{name}: {said}"


def test_a_new_room_is_in_the_drawing(tmp_path: pathlib.Path) -> None:
    says = {"core": "Numbers, e.g. e2m1: all.\n\nMore.", "core/cellar": "Wine. Red."}
    for name, text in says.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""{text}"""\n')
    (tmp_path / "core" / "src" / "deep").mkdir(parents=True)
    (tmp_path / "core" / "src" / "deep" / "a.cpp").touch()
    (tmp_path / "core" / "__pycache__").mkdir()
    drawn = [" ".join(line.split()) for line in house(tmp_path).splitlines()]
    assert drawn[:3] == ["blockscale/", "core/ Numbers, e.g. e2m1: all.", "cellar/ Wine."]
    assert drawn[3].startswith("src/ C++, compiled")
    assert drawn[4] == "deep/ C++."


def test_the_order_of_imports_is_the_one_that_is_tested() -> None:
    for page in (ROOT / "docs" / "design.md", ROOT / "CONTRIBUTING.md"):
        assert f"    {' ← '.join(LAYERS)}\n" in page.read_text(), page


def test_the_checks_can_fail() -> None:
    text = "a\n```python\n1 / 0\n```\n<!-- not run: needs a GPU -->\n```python\nx\n```\n"
    assert list(blocks(text)) == [(2, "1 / 0\n")]
    assert dead_links(ROOT / "README.md", "[a](no.md#b) [c](pyproject.toml) [d](https://x.y)") == [
        "no.md"
    ]
    assert dead_paths("`blockscale/nothing.py` `blockscale/core/<any>.py` `tests/test_*.py`") == [
        "blockscale/nothing.py"
    ]
