# SPDX-License-Identifier: BSD-3-Clause
"""Work is dealt so that the busiest process has little to do, and no part twice or never."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import blockscale as bs
from blockscale.calibration import dealing
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.hqq import HQQ
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.search import Search
from blockscale.calibration.dealing import Effort, deal, effort_of_codes, parts_of
from blockscale.layers.decisions import weights_to_come
from blockscale.layers.plan import Plan, plan_layers


def test_the_dearest_goes_first_to_who_has_least() -> None:
    costs = {name: Effort(cost) for name, cost in zip("abcde", (5, 3, 3, 2, 1), strict=True)}
    who, loads = deal(costs, 3)
    assert who == {"a": [0], "b": [1], "c": [2], "d": [1], "e": [2]} and loads == [5, 5, 4]


def test_parts_of_the_dearest_go_to_several() -> None:
    """Of a block of Llama's shape on four processes (docs/scale.md): two have a half of down_proj
    each, since each process that has any of it needs its factor and all of its columns' steps."""
    costs = {
        "down": Effort(0.64, 0.24, 4),
        "gate": Effort(0.14, 0.02, 14),
        "up": Effort(0.14, 0.02, 14),
    }
    costs |= {name: Effort(0.14, 0.02, 4) for name in ("q", "o")} | {
        "k": Effort(0.16),
        "v": Effort(0.16),
    }
    who, loads = deal(costs, 4)
    assert who["down"] in ([0, 0, 1, 1], [1, 1, 0, 0]) and max(loads) == pytest.approx(1.12)
    assert deal({"down": costs["down"]}, 4).who["down"] == [0, 1, 2, 3]
    assert deal({"down": Effort(1.0, 0.0, 4)}, 4).who["down"] == [0] * 4  # nothing is gained


def test_what_has_a_home_stays_until_that_is_too_much() -> None:
    home = {"a": 1, "b": 1}
    assert deal({"a": Effort(1.0, 0.0, 2), "b": Effort(1.0)}, 2, home).who == {
        "a": [1, 1],
        "b": [1],
    }
    assert deal({"a": Effort(0.0, 1.0, 2), "b": Effort(2.0)}, 2, home).who["a"] in ([0, 1], [1, 0])


@settings(max_examples=30, deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5)), max_size=6),
    size=st.integers(1, 5),
)
def test_every_part_has_one_process(costs: list[tuple[int, int, int]], size: int) -> None:
    """Neighbours are in one process, loads are what the parts cost, and none has more than where
    nothing is shared."""
    named = {f"{i}": Effort(*each) for i, each in enumerate(costs)}
    who, loads = deal(named, size)
    expected = [0.0] * size
    for name, (whole, each, parts) in named.items():
        assert len(who[name]) == parts and set(who[name]) <= set(range(size))
        runs = [rank for i, rank in enumerate(who[name]) if i == 0 or rank != who[name][i - 1]]
        assert len(runs) == len(set(runs))
        for rank in runs:
            expected[rank] += whole + each * who[name].count(rank)
    assert loads == pytest.approx(expected)
    one_each = {name: Effort(cost.of(cost.parts)) for name, cost in named.items()}
    assert max(loads) <= max(deal(one_each, size).loads)


def plan_of(n: int, k: int, fmt: str) -> Plan:
    with torch.device("meta"), weights_to_come():
        layer = nn.Linear(k, n, bias=False)
        (plan,) = plan_layers(nn.Sequential(layer), bs.Recipe(fmt))
    assert isinstance(plan, Plan)
    return plan


CUT = ["int4:group32:fp32", "nvfp4", "mxfp4", "uint4:group32:fp16:asym", "int4:token:fp32",
       "int4:group32:fp16:offset(fp16)"]  # fmt: skip
WHOLE = ["int4:tensor:fp32", "int4:tile4x8:bf16", "int4:group8@0:fp32", "int4:flat32:fp32",
         "int4:channel1:fp32"]  # fmt: skip


@pytest.mark.parametrize("fmt", [*CUT, *WHOLE])
def test_formats_whose_rows_are_cut(fmt: str) -> None:
    """Those in which nothing but an outer scale belongs to several rows."""
    plan = plan_of(2500, 64, fmt)
    rows = [(part.rows.start, part.rows.stop) for part in parts_of(plan, GPTQ())]
    assert rows == ([(0, 1250), (1250, 2500)] if fmt in CUT else [(0, 2500)])


@pytest.mark.parametrize(("n", "count"), [(1, 1), (2048, 1), (2049, 2), (4096, 2), (14336, 7)])
def test_rows_are_few_enough(n: int, count: int) -> None:
    plan = plan_of(n, 32, "int4:group32:fp32")
    some = parts_of(plan, MSE())
    assert [p.rows for p in parts_of(plan, Search())] == [p.rows for p in some]
    assert [part.number for part in some] == list(range(count))
    assert all(part.rows.stop - part.rows.start <= dealing.ROWS for part in some)
    assert sum(part.rows.stop - part.rows.start for part in some) == n
    assert len({part.name for part in some}) == count
    for other in (HQQ(), None):
        assert len(parts_of(plan, other)) == 1


def test_what_parts_cost() -> None:
    """Each process needs a factor and the steps of all columns; the rest goes with the rows."""
    plan = plan_of(4096, 14336, "int4:group32:fp32")
    cost = effort_of_codes(plan, GPTQ())
    assert cost.parts == 2 and cost.each == 14336**2 * 2048
    assert 0.3 < cost.whole / (2 * cost.each) < 1
    assert effort_of_codes(plan, None) == Effort(cost.whole, 2 * cost.each, 1)
