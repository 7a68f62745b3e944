# SPDX-License-Identifier: BSD-3-Clause
"""What a block algorithm gives is checked before it is taken."""

from pathlib import Path
from typing import Any

import pytest

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.walk.resume import ResumeError
from blockscale.core.work.progress import Progress
from tests.calibration.walk.networks import GROUPS, Plain, decoder, ids


class Wrong(Plain):
    """It gives codes of another format."""

    def quantize_block(self, task: Any) -> Any:
        made = super().quantize_block(task)
        name, plan = task.plans[0].name, task.plans[0]
        made[name] = bs.quantize(plan.parameter.detach(), "int8"), []
        return made


def test_codes_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a QTensor"):
        calibrate(decoder(2), ids(), GROUPS, weight=Wrong(), progress=False)


def test_notes_and_details_are_told() -> None:
    with pytest.warns(UserWarning, match=r"noted of layers\.1\.feed\.up"):
        ledger = calibrate(decoder(2), ids(), GROUPS, weight=Plain(notes=True), progress=False)
    assert ledger["layers.0.feed.up"].details == "weight by plain"
    assert ledger["head"].details == "plain rounding: it is in no block"


class Counted(Progress):
    """How many units there are, and how many were told."""

    def __init__(self) -> None:
        self.total, self.told = 0, 0

    def start(self, total: int | None, done: int = 0) -> None:
        assert total is not None
        self.total = total

    def advance(self, name: str = "", amount: int = 1) -> None:
        self.told += amount


class Stepping(Plain):
    """It says that it takes five steps for a block, and tells of others."""

    steps = 5

    def __init__(self, taken: int):
        super().__init__()
        self.taken = taken

    def quantize_block(self, task: Any) -> Any:
        for _ in range(self.taken):
            task.progress.advance()
        return super().quantize_block(task)


def told(algorithm: Any) -> Counted:
    heard = Counted()
    calibrate(decoder(2), ids(), GROUPS, weight=algorithm, progress=heard)
    return heard


@pytest.mark.parametrize("taken", [0, 5, 8])
def test_progress_counts_the_steps_of_a_block_algorithm(taken: int) -> None:
    heard, without = told(Stepping(taken)), told(Plain())
    assert heard.total == without.total + 2 * 5
    assert heard.told == without.told + 2 * 5


def test_the_seed_is_handed_on() -> None:
    for given, expected in ((None, 0), (0, 0), (7, 7)):
        plain = Plain()
        calibrate(decoder(2), ids(), GROUPS, weight=plain, progress=False, seed=given)
        assert [task["seed"] for task in plain.tasks] == [expected] * 2


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    def run(seed: int | None) -> None:
        plain = Plain()
        calibrate(
            decoder(2), ids(), GROUPS, weight=plain, progress=False, seed=seed, resume=tmp_path
        )

    run(None)
    run(0)
    with pytest.raises(ResumeError):
        run(1)
