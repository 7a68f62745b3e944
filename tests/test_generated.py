"""Pages that are generated from the code are up to date."""

import importlib.util
from pathlib import Path

import blockscale as bs

DOCS = Path(__file__).parent.parent / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formats_page_is_up_to_date():
    assert generator().page() == (DOCS / "formats.md").read_text(), "run: make docs"


def test_the_performance_page_is_up_to_date():
    made = generator().performance()
    assert "performance.md" in made
    old = [name for name, text in made.items() if not same(DOCS / name, text)]
    assert not old, f"{old}: run: make docs"


def same(path, text):
    return path.exists() and path.read_text() == text


def test_the_drawn_graphs_are_up_to_date():
    assert generator().graph() == (DOCS / "graph.md").read_text(), "run: make docs"


def test_every_named_format_has_its_row():
    page = (DOCS / "formats.md").read_text()
    missing = [name for name, fmt in bs.formats().items() if f"| `{name}` | `{fmt}` |" not in page]
    assert missing == []
