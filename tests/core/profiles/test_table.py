# SPDX-License-Identifier: BSD-3-Clause
"""The table of docs/profiles.md is what the comparison gives now."""

import pytest

from blockscale.core import profiles
from tests.core.profiles.table import PAGE, page, table


@pytest.mark.slow
def test_the_page_has_the_table() -> None:
    assert page(table()) == PAGE.read_text()


def test_the_page_names_every_profile() -> None:
    text = PAGE.read_text()
    own = [
        n for n in profiles.names() if n.partition(".")[0] not in ("blockscale", "ocp", "torchao")
    ]
    assert [name for name in own if f"| `{name}` |" not in text] == []
