# SPDX-License-Identifier: BSD-3-Clause
"""The example of docs/power_of_two.md, from training to integers."""

import pathlib
import re
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_example() -> None:
    """A CNN on real digits: trained under powers of two, its integers have the same bits."""
    script = pathlib.Path(__file__).parents[2] / "examples" / "power_of_two.py"
    pytest.importorskip("sklearn")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    figures = dict(re.findall(r"^(\w[\w ,-]*?) {2,}([\d.]+) %$", done.stdout, re.MULTILINE))
    assert float(figures["float"]) >= 98
    assert float(figures["integers alone"]) >= float(figures["float"]) - 1
    assert re.search(r"^the same bits +True$", done.stdout, re.MULTILINE)
