# SPDX-License-Identifier: BSD-3-Clause
"""A campaign counts, goes on where it ended, and names what it found by a command."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from attack import show, worker
from attack.campaign import Campaign
from attack.part import Case, Found, Part
from attack.worker import Worker

ROOT = Path(__file__).parents[2]


def faulty(case: Case) -> None:
    """Case 3 is found, 5 raises, 7 crashes, 9 hangs."""
    if case.number == 3:
        raise Found("three", "case 3")
    if case.number == 5:
        raise KeyError("five")
    if case.number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    while case.number == 9:
        pass


PART = Part("faulty", "cases", 12, faulty, seconds=0.3)


@pytest.mark.slow
def test_what_fails_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = Worker(PART, 0, tmp_path).run(0, float("inf"), count=12)
    kinds = {failure["case"]: failure["kind"] for failure in found["failures"]}
    assert kinds == {
        3: "three",
        5: "KeyError at test_campaign.py:faulty",
        7: "killed by SIGKILL",
        9: "hangs: more than 0.3 s",
    }
    assert found["next"] == 12


@pytest.mark.slow
def test_a_case_that_waits_for_ever_hangs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 1)
    part = Part("waits", "cases", 1, lambda case: time.sleep(600), seconds=0.3)
    [failure] = Worker(part, 0, tmp_path).run(0, float("inf"), count=1)["failures"]
    assert failure["kind"] == "hangs: more than 0.3 s"


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    part = Part("quick", "cases", 12, lambda case: {"cases": 1, "numbers": case.number})
    for _ in range(2):
        campaign = Campaign(tmp_path / "state.json", 4, "version")
        campaign.run([part], 0.01, lambda _: None)  # a case at least
    own = json.loads((tmp_path / "state.json").read_text())["parts"]["quick"]
    cases = own["counts"]["cases"]
    assert cases == own["next"] > 0
    assert own["counts"]["numbers"] == cases * (cases - 1) // 2  # each once
    other = Campaign(tmp_path / "state.json", 4, "another version")
    assert other.of(part)["next"] == 0


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    numbers = {Case(3, 7, tmp_path).random().random() for _ in range(3)}
    assert len(numbers) == 1
    assert Case(3, 8, tmp_path).random().random() not in numbers


@pytest.mark.slow
def test_a_minute_of_all_parts(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "attack", "--minutes", "1"]
    command += [
        "--state",
        str(tmp_path / "state.json"),
        "--figures",
        str(tmp_path / "figures.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    for name, part in figures["parts"].items():
        assert part["failures"] == {}, name
        assert sum(part["counts"].values()) > 0, name


def test_figures_of_other_parts_stay_with_their_commit(tmp_path: Path) -> None:
    part = Part("quick", "cases", 12, lambda case: None)
    for version, name in (("one", "first"), ("two", "second")):
        campaign = Campaign(tmp_path / f"{version}.json", 4, version)
        campaign.run([replace(part, name=name)], 0.01, lambda _: None)
        show.write_figures(campaign, {}, tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {name: each["version"] for name, each in figures["parts"].items()} == {
        "first": "one",
        "second": "two",
    }
    assert figures["version"] == "two" and figures["parts"]["first"]["counts"]["cases"] > 0
