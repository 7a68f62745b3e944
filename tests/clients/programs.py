# SPDX-License-Identifier: BSD-3-Clause
"""Where the programs are that read our files: `make clients` installs them, each in an
environment of its own, because no two of them agree about versions. Tests start their Python and
read its JSON."""

import contextlib
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("BLOCKSCALE_CLIENTS", ROOT / ".venv" / "clients"))
LLAMA_CPP = FOLDER / "llama.cpp"


class AbsentError(Exception):
    """A program is not installed: nothing was said of it."""


def python_of(program: str) -> Path:
    """The Python of the environment `program`. Raises AbsentError where there is none."""
    python = FOLDER / program / "bin" / "python"
    if not python.is_file():
        raise AbsentError(f"{python} is not there: `make clients` installs it")
    return python


def environment(installed: Path | None) -> dict[str, str]:
    """Variables of a program's process, with blockscale on its path where `installed` is given."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if installed is not None:
        variables["PYTHONPATH"] = f"{installed}{os.pathsep}{ROOT}"
    return variables | {"HF_HUB_OFFLINE": "1"}


def run(
    program: str, script: str, *arguments: object, seconds: int = 900, installed: Path | None = None
) -> Any:
    """What a script prints as its last line of JSON, in the environment `program` (light or vllm).

    The script gets the arguments as sys.argv[1:]. Blockscale is not on its path: the program sees
    our files alone; but with `installed`, a folder of `install`, as if it were installed there.
    Raises AssertionError with the script's output where it fails.
    """
    done = subprocess.run(
        [python_of(program), "-c", script, *map(str, arguments)], capture_output=True, text=True,
        timeout=seconds, check=False, env=environment(installed),
    )  # fmt: skip
    assert done.returncode == 0, f"{program}: {done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    for line in reversed(done.stdout.splitlines()):  # a program may say more as it ends
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(line)
    raise AssertionError(f"{program} printed no JSON: {done.stdout[-4000:]}")


def install(folder: Path) -> Path:
    """What `pip install` of this tree leaves for other programs to find: our entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "blockscale-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blockscale\nVersion: 0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return folder
