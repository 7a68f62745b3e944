# SPDX-License-Identifier: BSD-3-Clause
"""One file in its folder is all that a new observer, weight algorithm or transform takes.

Each is written into a folder that joins the package's own; then it is found by its name, and the
tests of all observers or algorithms, run in a process of their own, judge it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.calibration import algorithms, observers

ROOT = Path(__file__).parents[2]

TRIMMED = '''
"""Half the range of everything that was seen."""

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.observer import Observer


class Trimmed(Observer):
    """Clips at half of what was seen."""

    name: ClassVar[str] = "trimmed"

    def _choose(self) -> tuple[Tensor, Tensor]:
        return self.low / 2, self.high / 2
'''
# a method of the same class, which keeps nothing of the batches before
FORGETS = """
    def _update(self, x, low, high, *_):
        self.low, self.high = low, high
"""
WEIGHTS = '''
"""Plain rounding."""

from typing import ClassVar

from torch import Tensor

from blockscale.calibration.algorithms.block_scales import widened
from blockscale.core.format import Format
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor


class Plain:
    """What bs.quantize does."""

    name: ClassVar[str] = "plain"
    needs_gram = False

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        return quantize(widened(weight, fmt, layer), fmt), []
'''
TRANSFORM = '''
"""Inputs twice as large."""

from typing import ClassVar

import torch

from blockscale.calibration.algorithms.hessian import OutputError
from blockscale.layers.before import Scale


class Doubled:
    """Doubles each feature of the input, where that lowers the error."""

    name: ClassVar[str] = "doubled"

    def prepare(self, weight, fmt, input_fmt, stats, layer):
        error = OutputError(weight, fmt, input_fmt, stats, layer)
        return error.best([("doubled", Scale(torch.full((error.features,), 2.0)))])
'''
EVERY_OBSERVER = "tests/calibration/observers/test_every_observer.py"
EVERY_ALGORITHM = "tests/calibration/algorithms/test_every_algorithm.py"


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Path]:
    """A folder that is part of both packages while the test lasts."""
    packages = (observers, algorithms)
    known = set(sys.modules)
    for package in packages:
        package.__path__.append(str(tmp_path))
        package._classes.cache_clear()
    yield tmp_path
    for package in packages:
        package.__path__.remove(str(tmp_path))
        package._classes.cache_clear()
        for name in set(sys.modules) - known:
            if name.startswith(package.__name__):
                del sys.modules[name]
                delattr(package, name.rpartition(".")[2])


def judged(folder: Path, package: str, name: str, tests: str) -> tuple[int, int]:
    """(exit code, how many passed) of the tests of all, those of `name` alone."""
    join = f"from importlib import import_module\nfolder = import_module({package!r}).__path__\n"
    (folder / "join.py").write_text(f"{join}folder.append({str(folder)!r})\n")
    command = [sys.executable, "-m", "pytest", "--every-case", "-p", "join"]
    command += ["-p", "no:cacheprovider", "-xk", name]
    path = os.pathsep.join((str(folder), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    return done.returncode, int(passed[1]) if passed else 0


def test_an_observer_is_found_by_its_name(joined: Path) -> None:
    assert "trimmed" not in observers.names()
    (joined / "trimmed.py").write_text(TRIMMED)
    observers._classes.cache_clear()
    assert "trimmed" in observers.names()
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(16, 8)
    recipe = bs.Recipe("int8_channel", input="int8")
    ledger = bs.calibrate(model, [x], recipe, observer="trimmed", progress=False)
    assert "static input by trimmed" in ledger["0"].details
    scale, *_ = model[0].input.for_rank(2)
    assert torch.equal(scale.flatten(), (x.abs().max() / 2 / 127).reshape(1))


@pytest.mark.slow
def test_the_tests_of_every_observer_judge_a_new_one(tmp_path: Path) -> None:
    package = "blockscale.calibration.observers"
    (tmp_path / "trimmed.py").write_text(TRIMMED)
    code, passed = judged(tmp_path, package, "trimmed", EVERY_OBSERVER)
    assert code == pytest.ExitCode.OK and passed >= 25
    (tmp_path / "trimmed.py").write_text(TRIMMED + FORGETS)
    code, _ = judged(tmp_path, package, "trimmed", EVERY_OBSERVER)
    assert code == pytest.ExitCode.TESTS_FAILED


def test_a_weight_algorithm_and_a_transform_are_found_by_their_names(joined: Path) -> None:
    (joined / "plain.py").write_text(WEIGHTS)
    (joined / "doubled.py").write_text(TRANSFORM)
    algorithms._classes.cache_clear()
    assert "plain" in algorithms.weight_names() and "doubled" in algorithms.transform_names()
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.randn(16, 8)
    ledger = bs.calibrate(
        model, [x], "int4:group8:fp32", weight="plain", transform="doubled", progress=False
    )
    assert "weight by plain" in ledger["0"].details and "doubled: " in ledger["0"].details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source"),
    [("plain", WEIGHTS), ("doubled", TRANSFORM)],
)
def test_the_tests_of_every_algorithm_judge_a_new_one(
    name: str, source: str, tmp_path: Path
) -> None:
    package = "blockscale.calibration.algorithms"
    (tmp_path / f"{name}.py").write_text(source)
    code, passed = judged(tmp_path, package, name, EVERY_ALGORITHM)
    assert code == pytest.ExitCode.OK and passed >= 4
    wrong = source.replace("widened(weight, fmt, layer)", "weight")  # it refuses nothing
    wrong = wrong.replace("error.best([(", "([(").replace("))])", "))])[0][1], ['worse']")
    assert wrong != source
    (tmp_path / f"{name}.py").write_text(wrong)
    code, _ = judged(tmp_path, package, name, EVERY_ALGORITHM)
    assert code == pytest.ExitCode.TESTS_FAILED
