# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of experts that saw few tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import mixing
from blockscale.calibration.mixing import Mixing, place_of, sets_of
from blockscale.calibration.weighing import GramCollector, product_of
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import plans_for
from blockscale.layers.plan import Plan
from tests.support.mixtures import EXPERTS, K, OfLists, model


def layers(float_model: nn.Module) -> list[Plan]:
    plans = plans_for(float_model, Recipe.read("mxfp4"))
    return [plan for plan in plans if isinstance(plan, Plan)]


def gathered(plans: list[Plan], rows: list[Tensor]) -> dict[str, GramCollector]:
    found = {}
    for plan, x in zip(plans, rows, strict=True):
        found[plan.name] = GramCollector(K, torch.device("cpu"))
        if len(x):
            found[plan.name].add(product_of(x))
    return found


def test_sets_of_a_list() -> None:
    plans = layers(model(OfLists, 2))
    sets = sets_of(plans)
    assert list(sets) == [
        "0.experts.*.up",
        "0.experts.*.down",
        "1.experts.*.up",
        "1.experts.*.down",
    ]
    assert place_of(sets["1.experts.*.down"][3]) == ("1.experts.*.down", 3)
    assert sets["0.experts.*.up"][2].name == "0.experts.2.up"
    assert all(list(some) == list(range(EXPERTS)) for some in sets.values())


def test_filled_up_by_the_stated_rule() -> None:
    plans = [p for p in layers(model(OfLists)) if p.name.endswith("up")]
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(-3, 4, (n, K), generator=draw).float() for n in (20, 6, 0, 10)]
    some_mixing = Mixing(plans, 10)
    found = some_mixing.mixed(gathered(plans, rows))
    every = torch.cat(rows).double()
    whole = every.T @ every / len(every)
    for plan, x in zip(plans, rows, strict=True):
        own, n = x.double().T @ x.double(), len(x)
        expected = own / n if n >= 10 else (own + (10 - n) * whole) / 10
        torch.testing.assert_close(found[plan.name], expected, rtol=1e-12, atol=0)
    assert some_mixing.own == {"0.experts.1.up": 6, "0.experts.2.up": 0}
    drift = torch.ones(2, 2)
    assert torch.equal(some_mixing.drifts({"0.experts.1.up": drift})["0.experts.1.up"], drift * 0.6)
    assert torch.equal(some_mixing.drifts({"0.experts.0.up": drift})["0.experts.0.up"], drift)


def test_experts_that_are_looked_at_later_count_too() -> None:
    plans = [p for p in layers(model(OfLists)) if p.name.endswith("up")]
    rows = [torch.full((n, K), float(n)) for n in (4, 1, 2, 3)]
    whole = Mixing(plans, 100).mixed(gathered(plans, rows))
    some_mixing = Mixing(plans, 100)
    beside = {plan.name: into for plan, into in some_mixing.others(plans[:2])}
    assert list(beside) == [plan.name for plan in plans[2:]]
    for plan, x in zip(plans[2:], rows[2:], strict=True):
        beside[plan.name].add(product_of(x))
    some = some_mixing.mixed(gathered(plans[:2], rows[:2]))
    assert all(torch.equal(some[plan.name], whole[plan.name]) for plan in plans[:2])


def test_nothing_is_mixed_with_0_and_without_any_data() -> None:
    plans = [p for p in layers(model(OfLists)) if p.name.endswith("up")]
    rows = [torch.zeros(0, K)] * 3 + [torch.ones(1, K)]
    assert list(Mixing(plans, 0).mixed(gathered(plans, rows))) == [plans[3].name]
    assert Mixing(plans, 9).mixed(gathered(plans, [torch.zeros(0, K)] * 4)) == {}


@pytest.mark.parametrize("experts", [-1, 1.5, True, "most"])
def test_a_number_that_is_none(experts: Any) -> None:
    with pytest.raises(ValueError, match="experts must be the least number of tokens"):
        bs.calibrate(model(OfLists), [torch.ones(1, 2, K)], "mxfp4", experts=experts)


def test_rows_that_both_models_sent_to_an_expert() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(9, 16)
    x = tokens[[0, 2, 3, 5, 8]] + 0.01
    wanted = tokens[[0, 1, 2, 5, 6, 8]]
    found, of_float = mixing.match_rows(x, wanted)
    assert torch.equal(found, x[[0, 1, 3, 4]])
    assert torch.equal(of_float, tokens[[0, 2, 5, 8]])


def test_no_rows_and_nan() -> None:
    x = torch.randn(3, 4)
    assert [len(each) for each in mixing.match_rows(x[:0], x)] == [0, 0]
    y = x.clone()
    y[1, 2] = torch.nan
    found, of_float = mixing.match_rows(x, y)
    assert torch.equal(found, x[[0, 2]])
    assert torch.equal(of_float, x[[0, 2]])


def test_pieces_do_not_matter(monkeypatch: object) -> None:
    torch.manual_seed(1)
    x, wanted = torch.randn(40, 3), torch.randn(50, 3)
    whole = mixing.match_rows(x, wanted)
    monkeypatch.setattr(mixing, "_PIECE", 7)  # type: ignore[attr-defined]
    assert all(torch.equal(a, b) for a, b in zip(whole, mixing.match_rows(x, wanted), strict=True))
