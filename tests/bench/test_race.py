# SPDX-License-Identifier: BSD-3-Clause
"""Two checkouts in turns: order, ratios, and checkouts that cannot be raced."""

from dataclasses import replace

import pytest

from blockscale.bench import race as racing
from blockscale.bench.machine import CHECKOUT
from blockscale.bench.race import ROUNDS, Pair, Worker, check_checkout, race, table
from tests.support.bench_runs import SETTINGS, Heard

ONE = replace(SETTINGS, only="overhead/quantize/int8/*", seconds=0.1)


class Fake:
    """A worker that says how long a case took, and notes who was asked when."""

    asked: list = []  # noqa: RUF012 - of all workers

    def __init__(self, checkout, settings):
        self.slow = 2.0 if checkout == CHECKOUT else 1.0
        cases = ["a", "b"] if checkout == CHECKOUT else ["b", "c"]
        self.side = "here" if checkout == CHECKOUT else "beside"
        self.about = {"cases": cases, "commit": f"{self.side}123"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, case, seconds):
        Fake.asked.append((case, self.side))
        turn = len(Fake.asked)
        ours = {"name": "op", "kind": "ours", "seconds": self.slow * turn}
        return {"contestants": [ours, {"name": "copy", "kind": "ceiling", "seconds": 9.0}]}


@pytest.fixture
def found(monkeypatch, tmp_path):
    monkeypatch.setattr(racing, "Worker", Fake)
    monkeypatch.setattr(racing, "check_checkout", lambda path: tmp_path)
    Fake.asked = []
    heard = Heard()
    return race(tmp_path, ONE, heard), heard


def test_sides_take_turns_and_each_is_first_as_often(found):
    sides = [side for _, side in Fake.asked]
    assert {case for case, _ in Fake.asked} == {"b"}
    assert sides[:6] == ["here", "beside", "beside", "here", "here", "beside"]
    assert len(sides) == 2 * ROUNDS
    assert found[1].began == found[1].ended == ["b"]


def test_what_is_told(found):
    data = found[0]
    assert data["left_out"] == ["a", "c"]
    assert data["commits"] == {"here": "here123", "beside": "beside123"}
    [pair] = data["pairs"]
    assert (pair["case"], pair["by"], len(pair["here"])) == ("b", "op", ROUNDS)
    ratios = sorted(a / b for a, b in zip(pair["here"], pair["beside"], strict=True))
    assert pair["ratio"] == ratios[ROUNDS // 2]
    [row] = table(data).rows
    assert row[0] == "b"
    assert row[4] == f"{pair['ratio']:.3f}"


def test_the_median_is_of_neighbours():
    pair = Pair("c", "op", {"here": [1.0, 20.0, 3.0], "beside": [1.0, 10.0, 1.0]})
    assert pair.ratios == [1.0, 2.0, 3.0]
    assert pair.ratio == 2.0


def test_what_is_no_checkout(tmp_path):
    with pytest.raises(ValueError, match="not a checkout of blockscale: it has no"):
        check_checkout(tmp_path)


@pytest.mark.slow
def test_this_checkout_beside_itself(tmp_path):
    data = race(CHECKOUT, ONE, Heard())
    assert [pair["case"] for pair in data["pairs"]] == ["overhead/quantize/int8/2x64"] * 2
    assert all(pair["ratio"] > 0 for pair in data["pairs"])
    assert data["left_out"] == []


@pytest.mark.slow
def test_a_process_that_ends_is_told(tmp_path):
    (tmp_path / "blockscale").mkdir()
    (tmp_path / "blockscale" / "__init__.py").write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match="ended with 3"):
        Worker(tmp_path, ONE)
