# SPDX-License-Identifier: BSD-3-Clause
"""Every named format in every target: the table of docs/formats.md is what runs."""

import json

import pytest

import blockscale as bs
from tests.export import table

RECORDED = json.loads(table.TABLE.read_text())


def test_every_format_is_in_the_table():
    assert list(RECORDED) == list(bs.formats()), "run: python -m tests.export.table && make docs"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(bs.formats()))
@pytest.mark.parametrize("part", table.PARTS)
def test_row(name, part):
    found = table.row(name, part)
    recorded = {key: RECORDED[name][part][key] for key in found}  # of targets that are installed
    assert found == recorded, "run: python -m tests.export.table && make docs"
