# SPDX-License-Identifier: BSD-3-Clause
"""What an audit accepts of a file."""

import pytest

from blockscale.export.auditing import limits
from blockscale.files.metadata import FileError


def test_sizes(tmp_path, monkeypatch):
    file = tmp_path / "x"
    file.write_bytes(b"")
    with pytest.raises(FileError, match="is empty"), limits.opened(file):
        pass
    file.write_bytes(b"12345")
    with limits.opened(file) as data:
        assert bytes(data) == b"12345"
    monkeypatch.setattr(limits, "MODEL", 4)
    with (
        pytest.raises(FileError, match="has 5 bytes, of which an audit takes 4"),
        limits.opened(file),
    ):
        pass


def test_a_budget_ends():
    budget = limits.Budget(2)
    budget.take(2)
    with pytest.raises(limits.DamagedError, match="parts"):
        budget.take()
