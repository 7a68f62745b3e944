# SPDX-License-Identifier: BSD-3-Clause
"""What each named format does in each flow: cells of the table in docs/formats.md, each one run.

python -m tests.graph.flows [TARGET]     writes docs/flows.json, all or one column; then `make docs`

What another machine wrote of targets that do not run here stays: `python -m tests.graph.flows cuda`
on one with a GPU.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import blockscale as bs

TABLE = Path(__file__).parents[2] / "docs" / "flows.json"
TARGETS = ("cpu", "x86", "inductor", "cuda")
_WORDS = {"kernel": "kernel", "inside": "kernel", "onednn": "oneDNN", "composed": "composed"}


def row(name: str, *, both: bool, targets: tuple[str, ...] = TARGETS) -> dict[str, str]:
    """{flow or target: what became of a linear layer in it}, for a format of weights, or of weights
    and inputs. Raises AssertionError where two flows do not agree to the bit.
    """
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval(),
        torch.randn(4, 64),
    )
    recipe = bs.Recipe(name, name if both else None)
    cells: dict[str, str] = {}
    program = torch.export.export(model, (x,))
    spec = "mean" if bs.parse(name).element.name in ("binary", "ternary") else "min_max"
    graph = bs.graph.prepare(program, recipe, observer=spec)
    bs.calibrate(graph, [x], progress=False)
    converted = bs.graph.convert(graph)
    fused = bs.graph.fuse(converted)
    bs.calibrate(model, [x], recipe, observer=spec, progress=False)
    with bs.use("reference"), torch.no_grad():
        expected = model(x)
        assert torch.equal(converted(x), expected), "converted is not what modules compute"
        assert torch.equal(fused(x), expected), "fused is not what modules compute"
    cells["modules, graph, fused"] = "equal"
    for target in targets:
        if bs.graph.targets()[target] is not None:
            continue
        cells[target] = _way(fused, target, x, expected)
    return cells


def _way(fused: Any, target: str, x: torch.Tensor, expected: torch.Tensor) -> str:
    lowered = bs.graph.lower(fused, target)
    device = "cuda" if target == "cuda" else "cpu"
    with torch.no_grad():
        y = lowered(x.to(device)).cpu()
    if target == "inductor":
        assert torch.equal(y, expected), "traced references have other bits"
    else:
        assert torch.nn.functional.cosine_similarity(y, expected).min() > 0.99
    found = [way for way in bs.graph.ways(lowered) if "linear" in way.op]
    if target == "inductor" and not any(way.on_reference for way in found):
        return "torch's ops"
    told = {
        f"reference: {way.why}" if way.on_reference else _WORDS.get(way.way, way.way)
        for way in found
    }
    return ", ".join(sorted(told))


def table(targets: tuple[str, ...]) -> dict[str, dict[str, dict[str, str]]]:
    """{format: {"weight" or "weight and input": cells}} of the catalogue, with what was written of
    other targets.
    """
    old = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in bs.formats():
        for part, both in (("weight", False), ("weight and input", True)):
            known = old.get(name, {}).get(part, {})
            cells = known | row(name, both=both, targets=targets)
            order = [key for key in ("modules, graph, fused", *TARGETS) if key in cells]
            found.setdefault(name, {})[part] = {key: cells[key] for key in order}
    return found


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(tuple(sys.argv[1:]) or TARGETS), indent=1) + "\n")
