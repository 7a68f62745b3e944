# SPDX-License-Identifier: BSD-3-Clause
"""The slow tests of CI: a function of the commit, what changed and recorded costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import schedule
from tests.support.schedule import (
    BUGS,
    COSTS,
    IMPORTING,
    LIMITS,
    OTHERS,
    OWN,
    ROOM,
    ROOT,
    SHARE,
    UNKNOWN,
    Case,
    Changes,
    changed_since,
    choose,
    importers,
    not_run,
    room,
)

FILES = frozenset(
    {
        "blockscale/export/to_onnx/write.py",
        "tests/kernels/cpu/test_linear.py",
        "tests/support/tiny.py",
        "README.md",
    }
)
USERS = importers(
    {
        "blockscale/cli/export.py": "import torch\nfrom blockscale.export.to_onnx import x",
        "blockscale/layers/linear.py": "    from blockscale.kernels import cpu, registry\n",
        "blockscale/kernels/cpu/ops.py": "from blockscale.core.format import Format\n",
        "blockscale/export/plan.py": "from blockscale.export.to_onnx.write import a\n",
        "blockscale/kernels/registry.py": "import blockscale.core.format\n",
    }
)
TESTS = {
    "tests/core/test_a.py": "from tests.support.tiny import model\n",
    "tests/core/test_b.py": "from tests.support import some, tiny\n",
    "tests/core/test_c.py": "from tests.support.tiny_other import tiny\n",
}
CHANGES = Changes(FILES, USERS, TESTS)


def test_who_imports_which_room() -> None:
    assert {
        "export": {"cli"},
        "kernels/cpu": {"layers"},
        "kernels": {"layers"},
        "core": {"kernels/cpu", "kernels"},
    } == USERS


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/export/to_onnx/test_write.py", OWN),  # of a file that changed
        ("tests/kernels/cpu/test_linear.py", OWN),  # changed itself
        ("tests/core/test_a.py", OWN),  # of a helper that changed
        ("tests/core/test_b.py", OWN),
        ("tests/core/test_c.py", OTHERS),
        ("tests/export/test_audit.py", ROOM),
        ("tests/kernels/cpu/test_native.py", ROOM),
        ("tests/cli/test_table.py", IMPORTING),
        ("tests/layers/test_linear.py", IMPORTING),
        ("tests/kernels/cuda/test_linear.py", OTHERS),  # another backend
        ("tests/test_docs.py", OTHERS),
    ],
)
def test_rank(test: str, expected: int) -> None:
    assert CHANGES.rank(Case(f"{test}::test_x[1]")) == expected


def test_bugs_of_files_that_changed() -> None:
    test = "tests/mutate/test_mutate.py::test_a[x]"
    changes = Changes(FILES | {"tests/mutate/test_mutate.py"}, USERS, TESTS)
    for each in (CHANGES, changes):  # not all of them because their own test changed
        assert each.rank(Case(test, "blockscale/export/to_onnx/write.py")) == BUGS
        assert each.rank(Case(test, "blockscale/core/format.py")) == OTHERS


def test_a_page_that_changed_is_run() -> None:
    test = "tests/test_docs.py::test_python_runs[docs/qat.md]"
    changes = Changes(FILES | {"docs/qat.md"}, USERS, TESTS)
    assert changes.rank(Case(test, about="docs/qat.md")) == OWN
    assert changes.rank(Case(test, about="docs/graph.md")) == OTHERS


def test_rooms() -> None:
    assert room("blockscale/kernels/cpu/src/isa/simd/x.h") == "kernels/cpu"
    assert room("blockscale/core/format.py") == room("tests/core/test_format.py") == "core"
    assert room("attack/kills.py") == room("tests/attack/test_kills.py") == "attack"
    assert room("README.md") == ""


def cases(folder: str, files: int, each: int) -> list[Case]:
    return [
        Case(f"tests/{folder}/test_{i}.py::test_a[{j}]") for i in range(files) for j in range(each)
    ]


def costs(tests: list[Case], seconds: float) -> dict[str, float]:
    return {case.function: seconds for case in tests}


def test_everything_where_it_fits() -> None:
    tests = cases("export", 3, 4) + cases("core", 3, 4)
    chosen = choose(tests, CHANGES, costs(tests, 1.0), 24.0, "seed")
    assert sorted(chosen, key=str) == sorted(tests, key=str)
    assert len(choose(tests, CHANGES, costs(tests, 1.0), 23.0, "seed")) == 23


def test_each_rank_has_a_part() -> None:
    """The largest change leaves some of the budget to what it cannot have broken."""
    own = [Case(f"tests/export/to_onnx/test_write.py::test_a[{i}]") for i in range(1000)]
    bugs = [
        Case(f"tests/mutate/t.py::test_b[{i}]", "blockscale/export/to_onnx/write.py")
        for i in range(999)
    ]
    tests = own + bugs + cases("kernels/cpu", 40, 9) + cases("layers", 40, 9) + cases("core", 40, 9)
    ranks = [CHANGES.rank(case) for case in choose(tests, CHANGES, costs(tests, 1.0), 1000.0, "a")]
    assert len(ranks) == 1000
    for rank in range(len(LIMITS)):
        assert sum(each <= rank for each in ranks) == pytest.approx(1000 * LIMITS[rank], abs=1)


def test_no_file_takes_all_of_a_sample() -> None:
    tests = cases("core", 50, 100)
    chosen = choose(tests, CHANGES, costs(tests, 1.0), 500.0, "seed")
    counts = [sum(case.file == file for case in chosen) for file in {case.file for case in tests}]
    assert max(counts) <= 500 * SHARE and len(chosen) == 500


def test_what_costs_too_much_leaves_room_for_others() -> None:
    """A test that is dearer than a file's share is run alone of its file, if it fits at all."""
    dear, cheap = cases("core", 1, 3), cases("graph", 4, 3)
    known = costs(dear, 60.0) | costs(cheap, 1.0)
    chosen = choose(dear + cheap, CHANGES, known, 100.0, "seed")
    assert [case in dear for case in chosen].count(True) == 1
    assert set(cheap) < set(chosen)
    assert set(choose(dear + cheap, CHANGES, known, 50.0, "seed")) == set(cheap)


def test_a_test_without_an_entry_costs_the_median() -> None:
    others = cases("graph", 3, 1)
    known = dict(zip((case.function for case in others), (1.0, 5.0, 100.0), strict=True))
    tests = cases("core", 1, 20)
    assert len(choose(tests + others, CHANGES, known, 57.0, "seed")) == 12
    assert len(choose(tests, CHANGES, {}, 7 * UNKNOWN, "seed")) == 7  # nothing is known


def test_many_cheap_entries_say_nothing_of_one_without() -> None:
    """Whose cost nobody knows may be the most expensive one."""
    tests, others = cases("core", 1, 20), cases("graph", 9, 1)
    known = dict.fromkeys((case.function for case in others), 0.1)
    chosen = choose(tests + others, CHANGES, known, 7 * UNKNOWN + 1, "seed")
    assert len(set(chosen) & set(tests)) == 7


def test_few_entries_say_nothing_of_the_others() -> None:
    """The first that somebody records may be the most expensive ones."""
    tests = cases("core", 20, 1)
    known = {tests[0].function: 60.0}
    assert len(choose(tests, CHANGES, known, 7 * UNKNOWN, "seed")) == 7


def test_the_commit_draws() -> None:
    """The same whatever the order of tests; another commit runs others."""
    tests = cases("core", 30, 10)
    chosen = choose(tests, CHANGES, costs(tests, 1.0), 50.0, "one")
    assert choose(tests[::-1], CHANGES, costs(tests, 1.0), 50.0, "one") == chosen
    assert set(choose(tests, CHANGES, costs(tests, 1.0), 50.0, "two")) != set(chosen)


def test_the_list_of_what_is_not_run() -> None:
    assert not_run(["b.py::x[1]", "a.py::y", "b.py::x[2::3]"]) == [
        "    1 of a.py", "        y", "    2 of b.py", "        x[1]", "        x[2::3]",
    ]  # fmt: skip


def test_a_commit_that_is_none() -> None:
    with pytest.raises(pytest.UsageError, match="--base nowhere: git says"):
        changed_since("nowhere")


def test_recorded_costs() -> None:
    """Seconds by functions that are there: what was renamed must be recorded again."""
    recorded = json.loads(COSTS.read_text(encoding="utf-8"))
    assert list(recorded) == sorted(recorded) and all(each >= 0 for each in recorded.values())
    gone = []
    for name in recorded:
        file, _, function = name.partition("::")
        path = ROOT / file
        if not path.is_file() or f"def {function.rpartition('::')[2]}(" not in path.read_text():
            gone.append(name)
    assert len(gone) <= len(recorded) // 4, f"python -m tests.support.durations --costs: {gone}"


@pytest.mark.parametrize("xdist", [False, True])
def test_a_run(tmp_path: Path, xdist: bool) -> None:
    """What does not fit is left out, named in the summary and listed in a file."""
    (tmp_path / "costs.json").write_text(json.dumps({"test_a.py::test_b": 2.0}))
    (tmp_path / "conftest.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support import schedule\n"
        f"schedule.COSTS = Path({str(tmp_path / 'costs.json')!r})\n"
        "schedule._git = lambda what, *command: 'abc' if 'rev-parse' in command else ''\n"
        "schedule._texts = lambda folder: {}\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(schedule.Budget(7.0, 'base'))\n"
    )
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', range(5))\ndef test_b(x): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    command += ["-p", "xdist", "-n", "1"] if xdist else []
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, tmp_path], env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "seed abc, base base, 7 s of processor time as recorded" in done.stdout
    assert "3 of 5 tests chosen" in done.stdout and "    2 of test_a.py" in done.stdout
    names = (tmp_path / schedule.NOT_RUN).read_text().splitlines()
    assert len(names) == 2 + 3 and all(each.startswith("        test_b[") for each in names[3:])
