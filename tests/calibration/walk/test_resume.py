# SPDX-License-Identifier: BSD-3-Clause
"""Finished blocks on disk: a run that was stopped goes on, another one is refused."""

from pathlib import Path
from typing import Any

import pytest

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.walk.resume import ResumeError
from blockscale.core.work import Progress
from tests.calibration.walk.networks import CALLS, GROUPS, Gram, Plain, decoder, ids, same_state

RECIPE = bs.Recipe(GROUPS, "int8", "int8:channel-1:fp32", skip=["head", "table"])


class Impatient(Progress):
    """Ctrl-C after some runs."""

    def __init__(self, left: int):
        self.left = left

    def advance(self) -> None:  # type: ignore[override]
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


OPTIONS: list[Any] = [
    pytest.param({"weight": "gptq"}, marks=pytest.mark.slow),
    pytest.param({"weight": Gram(), "transform": "hadamard"}, marks=pytest.mark.slow),
    {"weight": Gram(), "transform": "awq", "sequential": False},
    {"weight": Plain()},
]


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_stopped_run_goes_on(tmp_path: Path, options: dict[str, Any]) -> None:
    whole, model = decoder(4), decoder(4)
    calibrate(whole, ids(), RECIPE, **options, progress=False)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, ids(), RECIPE, **options, progress=Impatient(17), resume=tmp_path / "r")
    finished = sorted(file.name for file in (tmp_path / "r").glob("block-*"))
    assert 0 < len(finished) < 4
    assert not list((tmp_path / "r").glob(".*"))
    CALLS.clear()
    ledger = calibrate(model, ids(), RECIPE, **options, progress=False, resume=tmp_path / "r")
    assert same_state(model, whole)
    assert CALLS["0"] < CALLS["3"] or CALLS["0"] <= 7  # once for the next, in each lane
    name = options["weight"] if isinstance(options["weight"], str) else options["weight"].name
    assert f"weight by {name}" in ledger["layers.0.attention.q"].details
    assert len(list((tmp_path / "r").glob("block-*"))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("other", ["recipe", "algorithm", "batches", "model"])
def test_another_run_is_refused(tmp_path: Path, other: str) -> None:
    calibrate(decoder(2), ids(), RECIPE, weight=Gram(), progress=False, resume=tmp_path)
    model = decoder(2)
    if other == "model":
        model.layers[1].feed.up.weight.data[0, 0] += 1
    recipe = bs.Recipe(GROUPS) if other == "recipe" else RECIPE
    batches = ids(2) if other == "batches" else ids()
    weight = "gptq" if other == "algorithm" else Gram()
    with pytest.raises(ResumeError, match="holds blocks of another run"):
        calibrate(model, batches, recipe, weight=weight, progress=False, resume=tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(ResumeError, match="is not empty, and holds no earlier run"):
        calibrate(decoder(2), ids(), RECIPE, weight=Gram(), progress=False, resume=tmp_path)


def test_a_model_without_blocks_cannot_resume(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="resume needs a model that can be calibrated block by block"
    ):
        calibrate(decoder(1), ids(), RECIPE, weight=Gram(), progress=False, resume=tmp_path)


def test_a_run_that_was_killed_while_it_began_goes_on(tmp_path: Path) -> None:
    """The file that names the run was being written beside its place."""
    calibrate(decoder(2), ids(), RECIPE, weight=Plain(), progress=False, resume=tmp_path / "r")
    [known] = (tmp_path / "r").glob("*.json")
    for path in (tmp_path / "r").iterdir():
        path.unlink()
    known.with_name(f".{known.name}.4711").write_bytes(b"{")
    calibrate(decoder(2), ids(), RECIPE, weight=Plain(), progress=False, resume=tmp_path / "r")
    assert len(list((tmp_path / "r").glob("block-*"))) == 2
