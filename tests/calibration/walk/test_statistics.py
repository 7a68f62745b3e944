# SPDX-License-Identifier: BSD-3-Clause
"""What layers see is counted once, observed and summed in as few runs as fit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.choose import statistics_bytes
from blockscale.calibration.session import Session
from blockscale.calibration.walk.statistics import FloatInputs, Looker
from blockscale.core.ledger import SkippedError
from blockscale.layers.plan import plan_layers
from tests.calibration.walk.networks import decoder


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
    assert {name: seen.calls for name, seen in look.counts.layers.items()} == {"0": 1, "1": 1}
    look.look_once(plans, run)
    assert len(count) == runs
    assert len(list(look.statistics(plans, plans, run, gram=True))) == (2 if budget < 2 else 1)
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


# The inputs of the float model, beside those that the quantized layers before leave.

FMT = "int3:group8:fp32"


def session_of(model: nn.Module) -> Session:
    return Session(model, plan_layers(model, bs.Recipe(FMT)), None, strict=False)


def test_calls_are_paired_with_those_of_the_float_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    session = session_of(model)
    first, second = session.layers
    floats, told = FloatInputs(session), []
    assert floats.beside(first, None) is None
    floats.begin([first])
    tell = floats.beside(first, lambda x, y: told.append(x))
    also = floats.beside(second, lambda x, y: told.append(x))
    assert tell is not None and also is not None
    total, rows = torch.zeros(8, 8, dtype=torch.float64), 0
    for _ in range(3):
        calls = [torch.randn(2, 3, 8), torch.randn(4, 8)]
        with floats.of_the_float_model():
            for x in calls:
                tell(x, x)
                also(x, x)
        assert not told
        for wanted in calls:
            x = wanted + 0.1 * torch.randn(wanted.shape)
            tell(x, x)
            wide = x.reshape(-1, 8).double()
            total += wide.T @ (wanted.reshape(-1, 8).double() - wide)
            rows += len(wide)
        also(calls[0], calls[0])
        assert len(told) == 3
        told.clear()
    found = floats.result()
    assert list(found) == ["0"]
    torch.testing.assert_close(found["0"], total / rows, rtol=1e-4, atol=1e-6)
    assert not any("drift" in each for each in session.details["0"])


def test_other_rows_are_left_out() -> None:
    """An expert's, to whom other tokens were sent: another count, or the same count of others."""
    session = session_of(nn.Sequential(nn.Linear(8, 8)))
    floats = FloatInputs(session)
    floats.begin(session.layers)
    tell = floats.beside(session.layers[0], None)
    assert tell is not None
    x = torch.randn(64, 8)
    for wanted, seen in ((x, x[:5]), (x, torch.randn(64, 8)), (x, x * 1.01)):
        with floats.of_the_float_model():
            tell(wanted, wanted)
        tell(seen, seen)
    tell(x, x)  # a call that the float model did not make
    (drift,) = floats.result().values()
    expected = (x.T * 1.01) @ (x - x * 1.01) / 64
    torch.testing.assert_close(drift, expected.double(), rtol=1e-4, atol=1e-5)
    assert "3 of its calls have different inputs in the float model" in session.details["0"][-1]


def batches(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 20, (8, 16), generator=generator) for _ in range(count)]


def calibrated(model: nn.Module, asymmetric: bool, **more: object) -> tuple[nn.Module, Any]:
    """With the table in float, so that nothing is quantized before the first linear layer."""
    made, table = copy.deepcopy(model), next(iter(dict(model.named_children())))
    options: dict[str, Any] = {"progress": False, "weight": GPTQ(asymmetric=asymmetric)}
    recipe = bs.Recipe(FMT, skip=[table])
    return made, bs.calibrate(made, batches(6, 1), recipe, **options | more)


def loss(model: nn.Module, of: nn.Module) -> float:
    with torch.no_grad():
        pairs = [(model(x), of(x)) for x in batches(4, 2)]  # that calibration did not see
    return sum(float((a - b).square().sum()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("sequential", [True, "layers"])
def test_gptaq_loses_less_on_what_it_has_not_seen(sequential: bool | str) -> None:
    model = decoder(3)
    plain, _ = calibrated(model, False, sequential=sequential)
    made, ledger = calibrated(model, True, sequential=sequential)
    first = [m.state_dict()["layers.0.attention.q.weight.codes"] for m in (plain, made)]
    last = [m.state_dict()["layers.2.feed.down.weight.codes"] for m in (plain, made)]
    assert torch.equal(*first) and not torch.equal(*last)
    assert loss(made, model) < 0.97 * loss(plain, model)
    assert not [e for e in ledger if e.notes]


@pytest.mark.slow
def test_a_model_without_blocks_is_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(20, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Linear(32, 8)
    ).eval()
    for blocks in (True, False):
        plain, _ = calibrated(model, False, blocks=blocks)
        made, ledger = calibrated(model, True, blocks=blocks)
        assert loss(made, model) < 0.97 * loss(plain, model)
        assert not [e for e in ledger if e.notes]


@pytest.mark.slow
def test_what_is_not_compared_is_said() -> None:
    model = decoder(1)
    with pytest.warns(
        UserWarning, match="head: asymmetric has no effect: the inputs of the float model"
    ):
        made, _ = calibrated(model, True, sequential=False)
    plain, _ = calibrated(model, False, sequential=False)
    for a, b in zip(made.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b)
