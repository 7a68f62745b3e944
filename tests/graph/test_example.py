"""The example of docs/graph.md runs."""

import pathlib
import subprocess
import sys


def test_the_example():
    script = pathlib.Path(__file__).parents[2] / "examples" / "graph.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) > 0.99
    assert "static input by mse" in done.stdout
