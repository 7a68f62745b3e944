# SPDX-License-Identifier: BSD-3-Clause
"""Run the whole zoo and write docs/models.json, from which `make docs` makes docs/models.md.

    python -m tests.models.table              the models that docs/models.json does not have yet
    python -m tests.models.table --again      all of them
    python -m tests.models.table bert swin    these

Each model runs in a process of its own, with a limit of time, and is written when it is done.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.models.registry import models

TABLE = Path(__file__).parents[2] / "docs" / "models.json"
SECONDS = 300
PRELOADED = ["torch", "transformers", "peft", "blockscale"]  # once, for all processes
Row = dict[str, Any]


def work(name: str, cells: Sequence[str], to: Connection) -> None:
    """In a process of its own: one model's row into the pipe."""
    import torch

    from tests.models.cells import row

    torch.set_num_threads(1)
    counted = sum(parameter.numel() for parameter in models()[name].build().parameters())
    found = {cell: list(each) for cell, each in row(models()[name], cells).items()}
    to.send({"parameters": counted, "cells": found})


def in_process(
    name: str,
    cells: Sequence[str],
    seconds: float = SECONDS,
    worker: Callable[[str, Sequence[str], Connection], None] = work,
) -> Row:
    """The row of one model, or why there is none: a crash and a time limit are results, too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=worker, args=(name, cells, theirs))
    process.start()
    theirs.close()
    try:
        found: Row = mine.recv() if mine.poll(seconds) else {}
    except EOFError:
        process.join()
        found = {"cells": {key: [False, f"the process ended: {process.exitcode}"] for key in cells}}
    if not found:
        process.kill()
        found = {"cells": {key: [False, f"not done after {seconds} s"] for key in cells}}
    process.join()
    return {"library": models()[name].library, "parameters": 0} | found


def read(path: Path = TABLE) -> dict[str, Row]:
    """The rows that were written."""
    found: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(rows: dict[str, Row], path: Path = TABLE) -> None:
    """All rows, by name; those of models that it has no more are dropped."""
    kept = {name: rows[name] for name in models() if name in rows}
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from tests.models.cells import CELLS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="of the zoo; all by default")
    parser.add_argument("--again", action="store_true", help="also what is in the file already")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each model")
    parser.add_argument("--output", type=Path, default=TABLE)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(models())):
        parser.error(f"no model {unknown[0]!r} in the zoo; there are {', '.join(models())}")
    rows = read(options.output)
    names = options.names or [n for n in models() if options.again or n not in rows]
    for number, name in enumerate(names, 1):
        if why := models()[name].missing:
            print(f"{name}: {why}", file=sys.stderr)
            continue
        start = time.monotonic()
        found = in_process(name, options.cells, options.seconds)
        merged = rows.get(name, {}).get("cells", {}) | found["cells"]
        found["cells"] = {cell: merged[cell] for cell in CELLS if cell in merged}
        rows[name] = found
        write(rows, options.output)
        failed = [f"{cell}: {told}" for cell, (ok, told) in found["cells"].items() if ok is False]
        took = time.monotonic() - start
        print(f"{number}/{len(names)} {name} {took:.1f} s", *failed, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
