# SPDX-License-Identifier: BSD-3-Clause
"""Measured figures with what is needed to read them later: hardware, versions, commit, and how many
programs ran or waited (a load above 1 beside a benchmark of one thread: other work)."""

import json
import os
import pathlib
from datetime import UTC, datetime
from typing import Any

from blockscale.bench.machine import commit, hardware, versions

RESULTS = pathlib.Path(__file__).parent / "results"


def record(name: str, figures: Any, path: pathlib.Path | None = None) -> pathlib.Path:
    """Write `figures` (anything JSON holds) to results/`name`.json or `path`; return the path."""
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}.json"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"when": now, "commit": commit(), "hardware": hardware(), "versions": versions()}
    if hasattr(os, "getloadavg"):
        about["load in 1, 5 and 15 minutes"] = [round(each, 1) for each in os.getloadavg()]
    path.write_text(json.dumps({**about, "figures": figures}, indent=2) + "\n")
    return path
