# SPDX-License-Identifier: BSD-3-Clause
"""Ceilings: bandwidth of copies, operations a second of torch's products."""

from dataclasses import replace

import pytest

from blockscale.bench.groups import ceilings
from blockscale.bench.settings import Settings
from tests.support.bench_runs import SETTINGS, measured


def test_copies():
    [case] = measured(replace(SETTINGS, only="ceilings/copy/*"))
    assert case["bytes"] == 4096
    for line in case["contestants"]:
        assert line["kind"] == "ceiling"
        assert line["gigabytes_per_second"] == pytest.approx(4096 / line["seconds"] / 1e9)


def test_products():
    case, more = measured(replace(SETTINGS, only="ceilings/matmul/*"))
    assert [line["name"] for line in case["contestants"]] == ["torch float32", "torch bfloat16"]
    assert (case["operations"], more["operations"]) == (2 * 256 * 32, 2 * 2 * 256 * 32)
    for line in case["contestants"]:
        rate = case["operations"] / line["seconds"] / 1e9
        assert line["gigaflops"] == pytest.approx(rate)


def test_they_are_measured_on_memory_and_not_on_caches():
    cases = list(ceilings.cases(Settings()))
    assert all(case.cold for case in cases)
    assert len({case.name for case in cases}) == len(cases)
