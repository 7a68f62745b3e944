# SPDX-License-Identifier: BSD-3-Clause
"""python -m benchmarks.search.foretold: what bs.recommend foretells of MiniLM, and what then is.

Adds "foretold" to docs/search.json. Times are those of one thread by the process's own clock
(time.process_time), which does not count the time in which other processes have the processor.
"""

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch

import blockscale as bs
from benchmarks.search.minilm import DOCS, pooled
from blockscale.bench.machine import commit
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES
from blockscale.selection import times

CASES: tuple[tuple[Any, tuple[str, ...] | None], ...] = (
    (4.5, None),
    (6.0, None),
    ("size=20MB", None),
    ("quality=0.999", None),
    (8.1, ("int8_channel",)),
    (8.1, ("int8_channel x int8_token",)),
)


class Clock:
    """`time` with the process's own clock."""

    perf_counter = staticmethod(time.process_time)


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    times.time = Clock  # type: ignore[assignment]
    path = minilm.directory()
    model = minilm.build(path)
    sets = [minilm.tokenize(path, SENTENCES[i::2]) for i in (0, 1)]
    rows = []
    for budget, candidates in CASES:
        found = bs.recommend(
            model, budget, batches=[sets[0]], holdout=[sets[1]], output=pooled,
            candidates=candidates, progress=False,
        )  # fmt: skip
        checked = found.check(model, [sets[0]])
        quality = found.check(model, [sets[1]]).errors["quality"]
        rows.append(
            {
                "budget": str(found.budget),
                "candidates": list(candidates or ()),
                "bits": found.search.point.bits,
                "foretold": asdict(found.foretold) | {"speedup": found.foretold.speedup},
                "measured": asdict(checked.measured) | {"speedup": checked.measured.speedup},
                "errors": checked.errors | {"quality": quality},
            }
        )
        print(budget, candidates, rows[-1]["errors"], file=sys.stderr, flush=True)
    place = DOCS / "search.json"
    data = json.loads(place.read_text())
    data["foretold"] = {"commit": commit(), "threads": 1, "clock": "process_time", "rows": rows}
    beside = place.with_name(".search.json.partial")
    beside.write_text(json.dumps(data, indent=1) + "\n")
    beside.replace(place)


if __name__ == "__main__":
    main()
