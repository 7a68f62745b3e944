# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of clients note, and what becomes of it in a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docs.pages.clients import KEYS, cases, read
from tests.clients import results

CONFTEST = """
from tests.clients import results
from tests.clients.conftest import *
results.version = lambda client: f"{client} 1.0"
"""
TESTS = """
import pytest
from tests.clients import results
from tests.clients.programs import AbsentError

CLIENT = "mlx-lm"

@pytest.mark.loads("a file")
@pytest.mark.parametrize("most", [1, 9])
def test_rows(most):
    results.equal([[1, 2]], [[1, 2]])
    results.close(5, most)

@pytest.mark.loads("a file")
def test_absent():
    raise AbsentError("mlx-lm is not there")

def test_that_loads_nothing():
    pass
"""


def test_of_several_comparisons_the_worse_and_the_sum_are_noted() -> None:
    results.near(torch.tensor([1.0, 2]), torch.tensor([1.0, 2.25]), 1)
    results.near(torch.tensor([1.0]), torch.tensor([1.0]), 1)
    results.equal([[1, 2], [3]], [[1, 2], [4]], but=[1])
    results.equal([[5]], [[5]])
    results.close(0.25, 1)
    results.alike(torch.tensor([[1.0, 0]]), torch.tensor([[1.0, 0]]), 0.9)
    results.refused()
    figures = {"difference": 0.25, "equal": 3, "of": 4, "nats": 0.25, "cosine": 1, "refused": True}
    assert results.taken() == figures
    assert results.taken() == {}


def test_what_is_beyond_a_limit_fails_with_its_figure() -> None:
    for text, compare in [
        (r"difference is 2, the limit 1", lambda: results.near(torch.ones(1), -torch.ones(1), 1)),
        (r"row 1: \[3\], expected \[4\]", lambda: results.equal([[1], [3]], [[1], [4]], but=[0])),
        (r"2 rows, expected 1", lambda: results.equal([[1], [3]], [[1]])),
        (r"divergence is nan nats", lambda: results.close(float("nan"), 1)),
        (r"cosine is 0.000000", lambda: results.alike(torch.eye(2)[:1], torch.eye(2)[1:], 0.5)),
    ]:
        with pytest.raises(AssertionError, match=text):
            compare()
    assert results.taken()["equal"] == 1


def test_a_line_is_replaced_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "version", lambda client: f"{client} 1.0")
    file = tmp_path / "clients.jsonl"
    first = results.Results(file)
    first.add("test_a.py::test_b[x]", "mlx-lm", "files", "it broke", {})
    first.add("test_a.py::test_a", "mlx-lm", "files", "", {"nats": 0.5})
    second = results.Results(file)
    second.add("test_a.py::test_b[x]", "mlx-lm", "files", "", {"equal": 1, "of": 1})
    lines = read(file)
    assert [line["test"] for line in lines] == ["test_a.py::test_a", "test_a.py::test_b[x]"]
    assert [line["reason"] for line in lines] == ["", ""]
    assert tuple(lines[1]) == KEYS
    second.tests = {"test_a.py": {"test_a.py::test_a"}, "test_other.py": set()}
    assert list(second.lines()) == ["test_a.py::test_a"]
    first.add("test_a.py::test_c", "mlx-lm", "files", "", {})  # two runs at once lose nothing
    assert len(read(file)) == 3
    assert list(tmp_path.iterdir()) == [file]


def test_every_test_of_a_client_has_its_row() -> None:
    """Tests that start a client say what it loads, and of which client they are."""
    with_rows = {case.test.partition("::")[0] for case in cases()}
    files = list(Path(__file__).parent.glob("test_*.py"))
    of_clients = {path.name for path in files if "pytest.mark.clients" in path.read_text()}
    of_clients.discard(Path(__file__).name)
    assert with_rows == of_clients
    for path in files:
        if path.name in of_clients:
            source = path.read_text()
            assert source.count("\ndef test_") == source.count("@pytest.mark.loads("), path.name
    assert {case.client for case in cases()} == {*results.PACKAGES, "llama.cpp"}


@pytest.mark.slow
def test_a_run_writes_its_outcomes(tmp_path: Path) -> None:
    """A test that failed is written with its reason, one whose client is absent is not."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_fake.py").write_text(TESTS)
    file = tmp_path / "clients.jsonl"
    old = {"test": "test_fake.py::test_of_old", **dict.fromkeys(KEYS[1:], ""), "figures": {}}
    file.write_text(json.dumps(old) + "\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--record", file]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", tmp_path, tmp_path], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    lines = {line["test"]: line for line in read(file)}
    assert set(lines) == {f"test_fake.py::test_rows[{most}]" for most in (1, 9)}
    failed, passed = lines["test_fake.py::test_rows[1]"], lines["test_fake.py::test_rows[9]"]
    assert failed["reason"].startswith("the divergence is 5 nats, the limit 1")
    assert passed["reason"] == ""
    assert failed["figures"] == passed["figures"] == {"equal": 2, "of": 2, "nats": 5}
    assert passed["version"] == "mlx-lm 1.0"
