# SPDX-License-Identifier: BSD-3-Clause
"""The fastest way as measured, and why."""

import json

import pytest

from blockscale.graph.lowering.products import choose as module
from blockscale.graph.lowering.products.choose import TABLE, choose, key_of, looked_up, processor
from blockscale.graph.lowering.products.product import Product

PRODUCT = Product("int8:tensor:fp32", "int8:channel0:fp32", "", "", False, 512, 384, 384)
ALL = {"kernel": None, "inside": None, "onednn": None, "composed": None}


def test_the_fastest():
    choice = choose(PRODUCT, ALL, {"kernel": 2.0, "onednn": 1.0, "inside": 3.0})
    assert choice == ("onednn", "measured here: inside 3 ms, kernel 2 ms, onednn 1 ms")


def test_our_kernel_unless_another_is_clearly_faster():
    assert choose(PRODUCT, ALL, {"kernel": 1.0, "onednn": 0.96}).way == "kernel"
    assert choose(PRODUCT, ALL, {"kernel": 1.0, "onednn": 0.94}).way == "onednn"


def test_what_cannot_run_is_not_chosen():
    cannot = ALL | {"onednn": "no VNNI"}
    assert choose(PRODUCT, cannot, {"kernel": 2.0, "onednn": 1.0}).way == "kernel"
    alone = dict.fromkeys(ALL, "no") | {"composed": None, "onednn": "no VNNI"}
    assert choose(PRODUCT, alone, None) == ("composed", "the only one possible: no VNNI")


def test_what_is_not_known():
    assert choose(None, ALL, None).way == "kernel"
    other = PRODUCT._replace(weight="e4m3:tensor:fp32")
    assert choose(other, ALL, None).why.startswith("not measured for these formats on a processor")


@pytest.fixture
def table(monkeypatch):
    sizes = {"1,384,384": {"kernel": 1.0, "onednn": 2.0}, "1024,384,384": {"onednn": 1.0}}
    monkeypatch.setattr(module, "_table", lambda: {processor(): {key_of(PRODUCT): sizes}})


@pytest.mark.parametrize(("rows", "at"), [(1, "1 x"), (512, "1024 x"), (0, "1 x"), (20, "1 x")])
def test_the_nearest_sizes(rows, at, table):
    times, where = looked_up(PRODUCT._replace(rows=rows))
    assert where == f"measured on {processor()} at {at} 384 x 384" and times


def test_sizes_far_away(table):
    times, where = looked_up(PRODUCT._replace(rows=1, n=38400))
    assert (times, where) == ({}, "not measured near 1 x 38400 x 384")


def test_an_activation_that_was_not_measured_costs_the_same_to_all(table):
    assert looked_up(PRODUCT._replace(activation="relu"))[0] == {"onednn": 1.0}


def test_the_committed_table():
    table = json.loads(TABLE.read_text())
    assert "vnni" in table
    for formats in table.values():
        for key, sizes in formats.items():
            assert len(key.split("|")) == 4
            for at, times in sizes.items():
                assert len([int(size) for size in at.split(",")]) == 3
                assert times.keys() <= {"kernel", "inside", "onednn"} and min(times.values()) > 0
