# SPDX-License-Identifier: BSD-3-Clause
"""Where the programs are that read our files: `make clients` installs them, each in an
environment of its own, because no two of them agree about versions. Tests start their Python and
read its JSON."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("BLOCKSCALE_CLIENTS", ROOT / ".venv" / "clients"))
LLAMA_CPP = FOLDER / "llama.cpp"


def run(program: str, script: str, *arguments: object, seconds: int = 900) -> Any:
    """What a script prints as its last line of JSON, in the environment `program` (light or vllm).

    The script gets the arguments as sys.argv[1:]. Blockscale is not on its path: the program sees
    our files alone. Raises AssertionError with the script's output where it fails.
    """
    python = FOLDER / program / "bin" / "python"
    assert python.is_file(), f"{python} is not there: `make clients` installs it"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", script, *map(str, arguments)], capture_output=True, text=True,
        timeout=seconds, check=False, env=environment | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{program}: {done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])
