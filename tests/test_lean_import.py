# SPDX-License-Identifier: BSD-3-Clause
"""`import blockscale` loads no compiler, no peer and no command line, and starts no device."""

import pytest

from tests.support import fresh

HEAVY = (
    "triton",
    "wgpu",
    "torchao",
    "transformers",
    "typer",
    "rich",
    "onnx",
    "executorch",
    "compressed_tensors",
    "torch._dynamo",
    "sympy",
    "scipy",
)

# What torch itself loads is not ours to judge.
SCRIPT = """
import sys, torch
before = set(sys.modules)
{}
after = set(sys.modules) - before
print(*[name for name in {} if name in after], "cuda" if torch.cuda.is_initialized() else "")
"""


def loaded(statement: str) -> list[str]:
    """What of HEAVY a fresh Python loads for `statement`."""
    return fresh.run(SCRIPT.format(statement, HEAVY), check=True).stdout.split()


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import blockscale", []),
        ("import blockscale; blockscale.formats()", []),
        ("import blockscale.cli.app", ["typer", "rich"]),
    ],
)
def test_lean_import(statement: str, heavy: list[str]) -> None:
    assert loaded(statement) == heavy


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_command_line_without_its_extra(missing: str) -> None:
    """One line that says what to install, not a traceback."""
    script = f"import sys; sys.modules[{missing!r}] = None; from blockscale.cli import main; main()"
    done = fresh.run(script)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'blockscale[cli]'" in done.stderr
