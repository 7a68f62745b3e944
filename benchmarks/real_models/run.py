# SPDX-License-Identifier: BSD-3-Clause
"""Quantize a real model by each recipe, evaluate it beside itself in float, and write figures down.

    python -m benchmarks.real_models.run OUT.jsonl [--device cuda] [--only WORDS] [--tokens FILE]

A line a recipe; recipes that have their line are not measured again. Calibration sees other
sequences of the first text than those that are evaluated; the second text is kept aside.
"""

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import blockscale as bs
from benchmarks.real_models import smollm2
from benchmarks.real_models.recipes import CASES, Case
from blockscale.bench.machine import commit, hardware, versions
from blockscale.evaluation.texts import held_out, windows

SEQUENCES, LENGTH, CALIBRATION = 16, 512, 32


def sequences(file: str | None) -> dict[str, Tensor]:
    """{text: int64 [sequences, LENGTH]}, from a file of tokens, else from texts that are here."""
    if file is not None:
        return {name: rows.long() for name, rows in load_file(file).items()}
    return {"topics": windows(held_out(), smollm2.tokens(), LENGTH, SEQUENCES + CALIBRATION)}


def batches(rows: Tensor, count: int) -> list[dict[str, Tensor]]:
    """`count` sequences at one time."""
    return [{"input_ids": part} for part in rows.split(count)]


def measured(
    case: Case, model: Any, texts: dict[str, Tensor], device: str, at_once: int
) -> dict[str, Any]:
    """One line: what was done, how long it took, and the figures of each text."""
    quantized, began = copy.deepcopy(model), time.monotonic()
    recipe = bs.Recipe(weight=case.weight, input=case.input, skip=["lm_head"])
    calibration = batches(texts["topics"][SEQUENCES : SEQUENCES + CALIBRATION].to(device), at_once)
    if case.settings:
        bs.calibrate(quantized, calibration, recipe, **case.settings)
    else:
        bs.quantize_(quantized, recipe)
    seconds = time.monotonic() - began
    line = {"case": case.name, "weight": case.weight, "input": case.input} | {
        "settings": case.settings, "seconds": round(seconds, 2)
    }  # fmt: skip
    for name, rows in texts.items():
        found = bs.evaluate(quantized, batches(rows[:SEQUENCES].to(device), at_once), model)
        line[name] = {key: figure.to_dict() for key, figure in found.figures.items()}
    return line


def held(path: Path) -> Iterator[str]:
    """The cases that a file has already."""
    for text in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(text).get("case", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    parser.add_argument("--leave", default=None, help="leave out cases whose names hold this")
    parser.add_argument("--tokens", help="a file of tokens, where the package gguf is missing")
    parser.add_argument("--model", help="the GGUF file, where its package is not installed")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after these")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    began, model = time.monotonic(), smollm2.twin(smollm2.load(given.model)).to(given.device)
    texts, known = sequences(given.tokens), set(held(given.out))
    with given.out.open("a") as file:
        if not known:
            about = {"commit": commit(), "hardware": hardware(), "versions": versions()}
            file.write(json.dumps({"case": "", "about": about}) + "\n")
        for case in CASES:
            late = time.monotonic() - began > given.seconds
            left = given.leave is not None and given.leave in case.name
            if case.name in known or given.only not in case.name or late or left:
                continue
            try:
                line = measured(case, model, texts, given.device, given.batch)
            except Exception as error:  # a recipe that fails is a finding, and others go on
                line = {"case": case.name, "error": f"{type(error).__name__}: {error}"[:400]}
            file.write(json.dumps(line) + "\n")
            file.flush()
            added = {t: round(line[t]["loss added"]["mean"], 4) for t in texts if t in line}
            print(case.name, line.get("error") or added, line.get("seconds"), file=sys.stderr)


if __name__ == "__main__":
    main()
