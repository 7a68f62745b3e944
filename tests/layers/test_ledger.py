# SPDX-License-Identifier: BSD-3-Clause
"""The ledger from decisions: in the model's order, every name once, and what is counted once."""

from dataclasses import replace

from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.layers.apply import ledger_of
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Plan, plan_layers


def model() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(nn.LayerNorm(8), layer, nn.Linear(8, 8).double(), layer, nn.Linear(8, 2))


def test_every_name_has_an_entry_and_bytes_count_once() -> None:
    net, recipe = model(), Recipe("int8", skip=["4", "nothing"])
    plans = plan_layers(net, recipe)
    others = list(plan_others(net, plans, recipe))
    ledger = ledger_of(plans, others, recipe)
    assert [entry.name for entry in ledger] == ["1", "3", "2", "4", "0.weight", "0.bias"]
    assert [entry.status for entry in ledger] == [
        "quantized", "quantized", "skipped", "kept", "kept", "kept"
    ]  # fmt: skip
    assert ledger["3"].reason == "the same layer as 1"
    assert (ledger["3"].elements, ledger["3"].bytes_before, ledger["3"].bytes_after) == (0, 0, 0)
    assert ledger.bytes_before == sum(p.nbytes for p in net.parameters())
    assert ledger.unmatched == ("nothing",)


def test_what_was_done_replaces_what_was_decided() -> None:
    net, recipe = model(), Recipe("int8")
    plans = plan_layers(net, recipe)
    [shared, _] = [plan for plan in plans if isinstance(plan, Plan)]
    done = {"1": replace(shared.entry, weight="int8", bytes_after=72, notes=("a note",))}
    ledger = ledger_of(plans, [], recipe, done)
    assert (ledger["1"].weight, ledger["1"].bytes_after) == ("int8", 72)
    assert (ledger["3"].weight, ledger["3"].bytes_after, ledger["3"].notes) == ("int8", 0, ())
    assert ledger["4"].weight == ""
    assert shared.entry.weight == ""  # the decision stays what it was
