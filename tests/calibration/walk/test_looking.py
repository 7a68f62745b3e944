# SPDX-License-Identifier: BSD-3-Clause
"""What layers see is counted once, observed and summed in as few runs as fit."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.choose import statistics_bytes
from blockscale.calibration.session import Session
from blockscale.calibration.walk.looking import Looker
from blockscale.core.ledger import SkippedError
from blockscale.layers.plan import plan_layers


def looker(budget: float, *, strict: bool = False) -> tuple[Looker, list[int], nn.Module]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plans = plan_layers(model, bs.Recipe("int8", "int8"))
    return Looker(Session(model, plans, None, strict=strict), "min_max", budget), [], model


@pytest.mark.parametrize(("budget", "runs"), [(1e9, 1), (1, 4)])
def test_runs_are_as_many_as_the_budget_asks_for(budget: float, runs: int) -> None:
    look, count, model = looker(budget)
    x = torch.randn(5, 8)

    def run() -> None:
        count.append(1)
        with torch.no_grad():
            model(x)

    plans = look.session.layers
    grams = look.observe(plans, plans, run)
    assert len(count) == runs
    torch.testing.assert_close(grams["0"], (x.double().T @ x.double()) / 5, rtol=1e-5, atol=1e-6)
    assert look.session.places["1"].input is not None
    assert {name: seen.calls for name, seen in look.counted.layers.items()} == {"0": 1, "1": 1}
    look.look_once(plans, run)
    assert len(count) == runs
    assert len(list(look.statistics(plans, plans, run))) == (2 if budget < 2 else 1)
    assert statistics_bytes(plans[0]) > 1


def test_unseen_layers_are_told_or_refused() -> None:
    for strict in (False, True):
        look, _, _ = looker(1e9, strict=strict)
        plans = look.session.layers
        look.look(plans, {}, lambda: None)
        if strict:
            with pytest.raises(SkippedError, match="saw no data"):
                look.tell_unseen(plans, 3)
        else:
            look.tell_unseen(plans, 3)
            assert look.session.notes["0"] == ["saw no data in 3 batches"]
            assert look.take_back_unseen(plans) == plans
