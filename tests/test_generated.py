# SPDX-License-Identifier: BSD-3-Clause
"""Pages that are generated from the code are up to date."""

import blockscale as bs
from docs.pages import DOCS, figures, formats, graphs, models, presets, webgpu


def test_formats_page_is_up_to_date():
    assert formats.page() == (DOCS / "formats.md").read_text(), "run: make docs"


def test_the_performance_page_is_up_to_date():
    made = figures.performance()
    assert "performance.md" in made
    old = [name for name, text in made.items() if not same(DOCS / name, text)]
    assert not old, f"{old}: run: make docs"


def test_the_page_on_accuracy_is_up_to_date():
    made = figures.accuracy()
    assert {"accuracy.md", "images/accuracy-weights.svg"} <= set(made)
    old = [name for name, text in made.items() if not same(DOCS / name, text)]
    assert not old, f"{old}: run: make docs"


def test_the_page_on_reliability_is_up_to_date():
    assert figures.reliability() == (DOCS / "reliability.md").read_text(), "run: make docs"


def test_the_figures_of_presets_are_up_to_date():
    assert presets.measured() == (DOCS / presets.NAME).read_text(), "run: make docs"
    assert presets.defaults() == (DOCS / "defaults.md").read_text(), "run: make docs"


def same(path, text):
    return path.exists() and path.read_text() == text


def test_the_drawn_graphs_are_up_to_date():
    assert graphs.graph() == (DOCS / "graph.md").read_text(), "run: make docs"


def test_the_page_of_models_is_up_to_date():
    assert models.models() == (DOCS / "models.md").read_text(), "run: make docs"


def test_a_model_that_fails_is_shown_with_its_reason():
    reasons = {"it is odd": 1}
    cell = models.model_cell
    assert cell(True, "equal", reasons) == "yes"
    assert cell(True, "83.1 %; in float: 9 % odd", reasons) == "83.1 % (2)"
    assert cell(False, "it crashes", reasons) == "**no** (3)"
    assert cell(None, "it is odd", reasons) == "– (1)"
    assert list(reasons) == ["it is odd", "in float: 9 % odd", "it crashes"]


def test_every_named_format_has_its_row():
    page = (DOCS / "formats.md").read_text()
    missing = [name for name, fmt in bs.formats().items() if f"| `{name}` | `{fmt}` |" not in page]
    assert missing == []


def test_the_figures_of_the_search_are_up_to_date():
    assert figures.searched() == (DOCS / "search.md").read_text(), "run: make docs"


def test_the_table_of_webgpu_is_up_to_date():
    assert webgpu.webgpu() == (DOCS / "webgpu.md").read_text(), "run: make docs"
    table = webgpu.table()
    assert "`conv` | no kernel: the reference computes on the CPU, with one warning" in table
    assert "`linear` | a kernel: `kernels/webgpu/linear.py`" in table


def test_a_kernel_that_is_added_comes_into_the_table(tmp_path, monkeypatch):
    folder = tmp_path / "kernels/webgpu"
    folder.mkdir(parents=True)
    (folder / "conv.py").write_text('@kernel("conv", backend="webgpu")\ndef conv(): ...\n')
    monkeypatch.setattr(webgpu, "KERNELS", folder)
    assert "| `conv` | a kernel: `kernels/webgpu/conv.py` |" in webgpu.table()
    assert "`linear` | no kernel" in webgpu.table()
