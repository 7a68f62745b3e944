"""Measured figures with what is needed to read them later: hardware, versions, commit."""

import json
import os
import pathlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
PACKAGES = ("blockscale", "torch", "numpy", "torchao", "triton")


def processor() -> str:
    """The processor's own name, where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def hardware() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "gpus": gpus,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    """The checkout's commit, with `+` if files other than results differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", ":/", ":(exclude)results")
    return (git("rev-parse", "HEAD") or "unknown") + ("+" if changed else "")


def record(name: str, figures: Any) -> pathlib.Path:
    """Write `figures` (anything JSON holds) to results/`name`.json and return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"when": now, "commit": commit(), "hardware": hardware(), "versions": versions()}
    path.write_text(json.dumps({**about, "figures": figures}, indent=2) + "\n")
    return path
