# SPDX-License-Identifier: BSD-3-Clause
"""Pages that are generated from the code are up to date."""

import json

import pytest

import blockscale as bs
from docs.pages import DOCS, clients, figures, formats, graphs, models, presets, webgpu


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


CASES = [
    clients.Case("test_a.py::test_x", "llama.cpp", "GGUF"),
    clients.Case("test_a.py::test_y", "llama.cpp", "tokens"),
    clients.Case("test_b.py::test_z", "mlx-lm", "directories"),
]


def clients_lines(path, *several):
    """A file with these lines, each of what differs from a test that passed."""
    line = dict.fromkeys(clients.KEYS, "") | {"figures": {}, "date": "2026-11-28"}
    line |= {"version": "1.0", "commit": "abc", "machine": "EPYC"}
    path.write_text("".join(json.dumps(line | each) + "\n" for each in several))
    return path


def test_the_page_of_clients_is_up_to_date():
    assert clients.page() == (DOCS / "clients.md").read_text(), "run: make docs"


def test_clients_that_pass_fail_and_were_not_run(tmp_path):
    """Of several cases the worst figure, and a reason that would break the table."""
    path = clients_lines(
        tmp_path / "clients.jsonl",
        {"test": "test_a.py::test_x[llama]", "figures": {"difference": 1e-6, "equal": 5, "of": 5}},
        {"test": "test_a.py::test_x[gemma]", "figures": {"difference": 3e-6, "equal": 4, "of": 5}},
        {"test": "test_a.py::test_x[gpt|2]", "reason": "a | b", "date": "2026-11-29"},
        {"test": "test_b.py::test_z", "reason": "it died", "figures": {"nats": 1}},
        {"test": "test_b.py::test_gone[1]", "figures": {"refused": True}},
    )
    page = clients.page(path, CASES)
    run = "`abc`, EPYC"
    assert page.splitlines()[-5:] == [
        "| llama.cpp | GGUF | llama, gemma, gpt\\|2 | 9 of 10 tokens equal, difference 3.0e-06 "
        f"in 2 of 3; **failed**: gpt\\|2 (a \\| b) | 1.0 | 2026-11-28, {run}; 2026-11-29, {run} |",
        "| llama.cpp | tokens | | **not run** | | |",
        f"| mlx-lm | directories |  | **failed**: it (it died) | 1.0 | 2026-11-28, {run} |",
        "",
        "Results of tests that are no more, until `make clients` drops them: "
        "`test_b.py::test_gone`.",
    ]


def test_formats_of_clients_have_their_names(tmp_path):
    names = ("Llama-e2m1:group16:e4m3", "int8:channel-1:fp32 \\xd7 int8:token:fp32")
    lines = [{"test": f"test_a.py::test_x[{name}]"} for name in names]
    page = clients.page(clients_lines(tmp_path / "clients.jsonl", *lines), CASES)
    assert "| Llama-nvfp4, int8:channel-1:fp32 × int8_token |" in page


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([{"nats": 1e-5}, {"nats": 2e-4}], "2.0e-04 nats"),
        ([{"cosine": 0.99}, {"cosine": 0.9}], "cosine 0.90000"),
        ([{"refused": True}], "refused"),
        ([{}], "as expected"),
    ],
)
def test_figures_of_clients(figures, said):
    assert clients.figures(figures) == said


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{", r"clients\.jsonl, line 2 is no JSON \(Expecting .*let `make clients` write it \(fo"),
        ("[1]", "line 2: expected the keys test, client, version"),
        ('{"test": "a"}', r"line 2: expected the keys .*found '\{"),
    ],
)
def test_lines_that_no_run_of_clients_writes(broken, reason, tmp_path):
    path = clients_lines(tmp_path / "clients.jsonl", {"test": "test_a.py::test_x"})
    path.write_text(path.read_text() + broken + "\n")
    with pytest.raises(ValueError, match=reason):
        clients.page(path, CASES)


def test_figures_of_clients_that_nobody_knows(tmp_path):
    path = clients_lines(tmp_path / "clients.jsonl", {"test": "a", "figures": {"speed": 1}})
    with pytest.raises(ValueError, match="line 1: unknown figures speed"):
        clients.page(path, CASES)
