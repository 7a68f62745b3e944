# SPDX-License-Identifier: BSD-3-Clause
"""Products in these tests are computed by settings of the test, not by this machine's table."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
