# SPDX-License-Identifier: BSD-3-Clause
"""The example of docs/graph.md runs."""

import pathlib

import pytest

from tests.support import fresh


@pytest.mark.slow
def test_the_example():
    script = pathlib.Path(__file__).parents[2] / "examples" / "graph.py"
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = fresh.run(code, script, ready=fresh.WITH_OURS, check=True)
    assert float(done.stdout.split()[-1]) > 0.99
    assert "static input by mse" in done.stdout
