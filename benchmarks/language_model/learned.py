# SPDX-License-Identifier: BSD-3-Clause
"""Learned rounding in several settings beside AutoRound's, side by side on one GPU.

    python -m benchmarks.language_model.learned --models DIR --output FILE.json --seconds 500

Every cell is a model, a format and settings of `SignRound`; several processes of one thread take
cells, the first ones first, until --seconds are over. FILE has what was measured after each cell,
a table comes last. What it finds goes into the defaults and into docs/accuracy.md by `evaluate`.
"""

import argparse
import copy
import json
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache
from typing import Any, NamedTuple

BEFORE = {"start": "gptq"}  # the defaults
INSIDE = {"inside": 0.3}
WHOLE = {"inside": 0.3, "whole": 200}


class Cell(NamedTuple):
    """What one process does at a time; settings None for AutoRound, {} for plain rounding."""

    seed: int
    weight: str
    input: str | None = None
    settings: dict[str, Any] | None = None
    transform: str | None = None

    @property
    def name(self) -> str:
        """What is the same for all seeds."""
        if self.settings is None:
            return f"{self.weight} by auto-round 200 steps"
        pair = f"{self.weight} x {self.input}" if self.input else self.weight
        told = " ".join(f"{key}={each}" for key, each in self.settings.items()) or "absmax"
        return " ".join(filter(None, [pair, told, self.transform]))


PEERS = (("W4A16 group32", None), ("NVFP4", "NVFP4"), ("W3A16 group64", None))
INT4, SAME4 = "int4:group32:fp32", "int4:group32:fp16:signed"
INT3, SAME3 = "int3:group64:fp32", "int3:group64:fp16:signed"
OURS: tuple[tuple[Any, ...], ...] = (
    (INT4, None, BEFORE), (SAME4, None, BEFORE), (INT3, None, BEFORE), ("nvfp4", "nvfp4", BEFORE),
    (INT4, None, INSIDE), (SAME4, None, INSIDE), (INT3, None, INSIDE), ("nvfp4", "nvfp4", INSIDE),
    (INT4, None, WHOLE), (SAME4, None, WHOLE), (INT3, None, WHOLE), ("nvfp4", "nvfp4", WHOLE),
    ("int4:group64:fp32", None, {}),
    (SAME3, None, WHOLE), ("nvfp4", "nvfp4", WHOLE, "hadamard:16"),
    (INT3, None, WHOLE | {"whole": 400, "whole_rate": 0.25}),
    ("nvfp4", "nvfp4", WHOLE | {"whole": 400, "whole_rate": 0.25}),
    (SAME4, None, WHOLE | {"start": "search"}), ("nvfp4", "nvfp4", WHOLE | {"start": "mse"}),
    (SAME4, None, WHOLE | {"whole_rate": 0.03}), (SAME4, None, INSIDE | {"inside": 0.15}),
    ("nvfp4", "nvfp4", WHOLE | {"factors": 0.2}), (INT3, None, WHOLE | {"factors": 0.2}),
)  # fmt: skip


def cells(seeds: list[int]) -> Iterator[Cell]:
    """AutoRound's for all seeds, then ours, seed by seed."""
    for seed in seeds:
        yield from (Cell(seed, *peer) for peer in PEERS)
    for seed in seeds:
        yield from (Cell(seed, *ours) for ours in OURS)


@cache
def model_of(folder: pathlib.Path, device: str) -> Any:
    """A trained model on the device, and what it scores on each part of the text."""
    from benchmarks.language_model.evaluate import score
    from benchmarks.language_model.model import Trained, load

    found = load(folder)
    trained = Trained(found.model.to(device), found.train.to(device), found.held, found.held2)
    return trained, {part: score(trained.model, getattr(trained, part)) for part in PARTS}


PARTS = ("held", "held2")


def measured(cell: Cell, models: pathlib.Path, device: str, until: float) -> dict[str, Any] | None:
    """One cell; None where the time is over."""
    import torch

    from benchmarks.language_model.evaluate import compared, score

    torch.set_num_threads(1)
    if time.time() > until:
        return None
    trained, known = model_of(models / f"lm{cell.seed}", device)
    model = copy.deepcopy(trained.model)
    clock = time.perf_counter(), time.process_time()
    made = quantized(cell, model, trained.train)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    found = {"name": cell.name, **cell._asdict(), "seconds": time.perf_counter() - clock[0],
             "process_seconds": time.process_time() - clock[1]}  # fmt: skip
    for part in PARTS:
        found[part] = compared(score(made, getattr(trained, part)), known[part])
    return found


def quantized(cell: Cell, model: Any, train: Any) -> Any:
    """The model as the cell says, which may be changed."""
    import blockscale as bs
    from benchmarks.language_model import peers
    from benchmarks.language_model.evaluate import batches
    from benchmarks.language_model.model import FLOAT
    from benchmarks.language_model.settings import Setting
    from blockscale.calibration.algorithms.signround import SignRound

    if cell.settings is None:
        setting = Setting("auto-round", cell.weight, "200 steps", cell.input)
        return peers.quantize(model, setting, train)[0]
    recipe = bs.Recipe(cell.weight, input=cell.input, skip=list(FLOAT))
    if not cell.settings:
        bs.quantize_(model, recipe)
    else:
        algorithm = SignRound(**cell.settings)
        bs.calibrate(model, batches(train), recipe, weight=algorithm, transform=cell.transform,
                     progress=False)  # fmt: skip
    return model


def table(found: list[dict[str, Any]]) -> str:
    """Means over seeds, a line for each name."""
    of_name: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        of_name.setdefault(row["name"], []).append(row)
    lines = ["loss added x 1e4: held, other, both (seeds) | agreement | seconds, of processor"]
    for name, rows in of_name.items():
        held, other = ([row[part]["added"] * 1e4 for row in rows] for part in PARTS)
        agree = statistics.mean(row["held"]["agreement"] for row in rows)
        wall, own = (statistics.mean(r[k] for r in rows) for k in ("seconds", "process_seconds"))
        apart = " ".join(f"{row['seed']}:{a:.0f}/{b:.0f}"
                        for row, a, b in zip(rows, held, other, strict=True))  # fmt: skip
        lines.append(
            f"{statistics.mean(held):6.1f} {statistics.mean(other):6.1f} "
            f"{statistics.mean([*held, *other]):6.1f} | {agree:.4f} | {wall:5.0f} {own:5.0f} | "
            f"{name}  ({apart})"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--only", nargs="+", help="parts of names")
    parser.add_argument("--processes", type=int, nargs=2, default=[3, 11], help="peers', ours")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    given, start = arguments(), time.time()
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    chosen = [c for c in cells(given.seeds)
              if not given.only or any(part in c.name for part in given.only)]  # fmt: skip
    fresh = multiprocessing.get_context("spawn")
    pools = [ProcessPoolExecutor(count, fresh) for count in given.processes]
    tasks: dict[Future[Any], Cell] = {}
    for cell in chosen:  # none begins in the last part, which it would not finish
        pool = pools[cell.settings is not None]
        until = start + given.seconds * 0.8
        tasks[pool.submit(measured, cell, given.models, given.device, until)] = cell
    found: list[dict[str, Any]] = []
    try:
        for task in as_completed(tasks, timeout=given.seconds):
            if (error := task.exception()) is not None:
                print(f"{tasks[task].name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            elif (cell := task.result()) is not None:
                found.append(cell)
                given.output.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{time.time() - start:4.0f} s: {cell['seed']} {cell['name']}", flush=True)
    except TimeoutError:
        print(f"stopped after {given.seconds:.0f} s: {len(found)} of {len(tasks)} cells")
    order = [cell.name for cell in chosen]
    print(
        table(sorted(found, key=lambda each: (order.index(each["name"]), each["seed"]))), flush=True
    )
    for pool in pools:
        for process in list(pool._processes.values()):
            process.terminate()
    os._exit(0)  # what is left would be waited for


if __name__ == "__main__":
    main()
