# SPDX-License-Identifier: BSD-3-Clause
"""Every named format in every flow, on every target: the table of docs/formats.md is what runs."""

import json

import pytest

import blockscale as bs
from tests.graph import flows
from tests.support.some import crossed

RECORDED = json.loads(flows.TABLE.read_text())


def test_every_format_is_in_the_table():
    assert list(RECORDED) == list(bs.formats()), "run: python -m tests.graph.flows && make docs"


@pytest.mark.slow
@pytest.mark.some(20)
@pytest.mark.parametrize(
    ("name", "part"), crossed(3, sorted(bs.formats()), ["weight", "weight and input"])
)
def test_row(name, part):
    found = flows.row(name, both=part == "weight and input")
    recorded = {key: RECORDED[name][part][key] for key in found}  # of targets that run here
    assert found == recorded, "run: python -m tests.graph.flows && make docs"
