# SPDX-License-Identifier: BSD-3-Clause
"""Blocks that are run once: how often, and what is done where that cannot be."""

import pytest

import blockscale as bs
from tests.calibration.walk.networks import CALLS, GROUPS, decoder, ids
from tests.support.walk import quietly

SKIP = ["head", "table"]


def test_a_block_runs_once_for_each_batch_and_once_to_see() -> None:
    model, batches = decoder(8), ids(4)
    ledger = quietly(model, batches, bs.Recipe(GROUPS, skip=SKIP), weight="gptq", sequential="once")
    assert [CALLS[str(i)] for i in range(1, 8)] == [4 + 1] * 7
    assert all("gptq" in each.details for each in ledger if each.status == "quantized")
    assert "not in one run" not in str(ledger)


@pytest.mark.parametrize(
    ("recipe", "options", "why"),
    [
        (bs.Recipe(GROUPS, "int8:tensor:fp32", skip=SKIP), {}, "static scales need a run"),
        (bs.Recipe(GROUPS, skip=SKIP), {"budget": 30_000.0}, "more than the budget"),
    ],
)
def test_what_cannot_be_is_done_in_two_runs(recipe: bs.Recipe, options: dict, why: str) -> None:
    once, twice = decoder(3), decoder(3)
    ledger = quietly(once, ids(), recipe, weight="gptq", sequential="once", **options)
    quietly(twice, ids(), recipe, weight="gptq", **options)
    assert why in ledger["layers.1.attention.q"].details
    parts = zip(once.state_dict().values(), twice.state_dict().values(), strict=True)
    assert all(bool((x == y).all()) for x, y in parts)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="'layers' or 'once', found 'always'"):
        quietly(decoder(2), ids(), GROUPS, weight="gptq", sequential="always")
