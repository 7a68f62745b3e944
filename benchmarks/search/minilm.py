# SPDX-License-Identifier: BSD-3-Clause
"""python -m benchmarks.search.minilm: what docs/search.md shows, into docs/search.json.

Every other sentence of the demonstration is searched on, the others are held out. Every named
format of weights is measured alone beside the searched recipes, by the same sentences.
"""

import copy
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.bench.machine import commit, hardware
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

DOCS = Path(__file__).parents[2] / "docs"
BUDGET = 4.5
SCORES = ("fisher", "output")
POINTS = (3, 3.25, 3.5, 4, 4.25, 4.5, 5, 5.25, 5.5, 6, 6.25, 6.5, 7, 7.5, 8, 8.125, 8.25)
MORE = ("int4:group32:fp32", "int4:group32:fp16", "fp4:group64:fp32", "e2m1:group32:e8m0/tosa")


def pooled(output: Any, batch: dict[str, Tensor]) -> Tensor:
    """The sentences' embeddings, as sentence-transformers computes them."""
    states, mask = output.last_hidden_state, batch["attention_mask"][..., None]
    return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def uniform(model: nn.Module, held: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Each named format in every layer: bits a weight, and held-out sentences' mean cosine."""
    expected = minilm.embed(model, held)
    rows = []
    for name in (*bs.formats(), *MORE):
        fmt = bs.parse(name)
        if fmt.asym and fmt.element.bits > 8:
            continue
        changed = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ledger = bs.quantize_(changed, bs.Recipe(fmt), strict=False)
        layers = [m.qweight for m in changed.modules() if hasattr(m, "qweight")]
        bits = 8 * sum(q.nbytes for q in layers) / sum(q.shape.numel() for q in layers)
        cosine = float((minilm.embed(changed, held) * expected).sum(-1).mean())
        rows.append(
            {"format": name, "bits": bits, "quality": cosine, "layers": len(ledger.quantized)}
        )
        print(f"{name}: {bits:.4f} bits, cosine {cosine:.6f}", file=sys.stderr, flush=True)
    return rows


def searched(model: nn.Module, score: str, sets: list[dict[str, Tensor]]) -> dict[str, Any]:
    """One search as plain data, without the hardware, which the file has once."""
    began = time.monotonic()
    found = bs.search(
        model, [sets[0]], BUDGET, output=pooled, holdout=[sets[1]], score=score, points=POINTS,
        progress=False,
    )  # fmt: skip
    told = found.to_dict() | {
        "seconds": time.monotonic() - began,
        "command": "python -m benchmarks.search.minilm",
    }
    print(f"{score}: {told['seconds']:.1f} s", file=sys.stderr, flush=True)
    return slim(told)


def slim(told: dict[str, Any]) -> dict[str, Any]:
    """Without what every search of this machine has, and without recipes but the chosen one."""
    told = {key: value for key, value in told.items() if key not in ("hardware", "uniform", "left")}
    for point in told["points"]:
        del point["recipe"]
    for layer in told["layers"]:
        for key in ("names", "refused", "seconds"):
            del layer[key]
        for error in layer["candidates"]:
            del error["seconds"]
    return told


def main() -> None:
    """Measure and write."""
    path = minilm.directory()
    model = minilm.build(path)
    sets = [minilm.tokenize(path, SENTENCES[i::2]) for i in (0, 1)]
    with torch.no_grad():
        data: dict[str, Any] = {
            "commit": commit(),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
            "hardware": hardware(),
            "search": {score: searched(model, score, sets) for score in SCORES},
            "uniform": uniform(model, sets[1]),
        }
    place = DOCS / "search.json"
    beside = place.with_name(".search.json.partial")
    beside.write_text(json.dumps(data, indent=1) + "\n")
    beside.replace(place)


if __name__ == "__main__":
    main()
