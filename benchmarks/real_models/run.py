# SPDX-License-Identifier: BSD-3-Clause
"""Quantize real models by each recipe, evaluate them beside themselves in float, write figures.

    python -m benchmarks.real_models.run OUT.jsonl [--models NAMES] [--device cuda] [--only WORDS]

A line a model and recipe; those that have their line are not measured again. Models whose packages
are not installed are left out, with a word. Calibration sees other sequences of the first text than
those that are evaluated; the second text is kept aside. `--gather` puts a file's lines of SmolLM2
into docs/real_models.json, each with its day, commit and device, and those of other models into
docs/other_models.json, in the place of all that stood there of the same models.
"""

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import blockscale as bs
from benchmarks.real_models import packages, smollm2, subjects
from benchmarks.real_models.recipes import CASES, Case
from blockscale.evaluation.texts import held_out, windows

SEQUENCES, LENGTH, CALIBRATION = 16, 512, 32
SMOLLM2 = "SmolLM2-135M"
FIGURES = Path(__file__).parents[2] / "docs" / "real_models.json"
OTHERS = FIGURES.with_name("other_models.json")
MODELS = (SMOLLM2, *subjects.SUBJECTS)


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


def language_model(given: Any, known: set[str], write: Any) -> None:
    """SmolLM2's lines."""
    model = smollm2.twin(smollm2.load(given.model)).to(given.device)
    texts = sequences(given.tokens)

    def one(case: Case) -> dict[str, Any]:
        return measured(case, model, texts, given.device, given.batch)

    for case in wanted(CASES, given, "", known):
        line = tried(case.name, partial(one, case))
        write(line)
        added = {t: round(line[t]["loss added"]["mean"], 4) for t in texts if t in line}
        print(case.name, line.get("error") or added, line.get("seconds"), file=sys.stderr)


def other_model(name: str, given: Any, known: set[str], write: Any) -> None:
    """The lines of one of SUBJECTS."""
    kind = subjects.SUBJECTS[name]
    cases = wanted(kind.cases, given, f"{name}: ", known)  # type: ignore[attr-defined]
    if not cases:
        return
    subject = kind()
    for case in cases:
        line = tried(f"{name}: {case.name}", partial(subjects.line, name, subject, case))
        write(line)
        means = {k: round(v["mean"], 4) for k, v in line.get("figures", {}).items()}
        print(line["case"], line.get("error") or means, line.get("seconds"), file=sys.stderr)


def wanted(cases: list[Case], given: Any, before: str, known: set[str]) -> list[Case]:
    """The cases that were asked for and have no line."""
    return [
        case
        for case in cases
        if before + case.name not in known
        and any(words in case.name for words in given.only.split(","))
        and (given.leave is None or given.leave not in case.name)
        and time.monotonic() < given.until
    ]


def tried(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A line; a recipe that fails is a finding, and others go on."""
    try:
        return measure()
    except Exception as error:
        return {"case": name, "error": f"{type(error).__name__}: {error}"[:400]}


def gather(out: Path, into: Path) -> list[str]:
    """Put a file's lines of SmolLM2 into the page's figures, in the place of older ones; their
    names. A line without figures, of a recipe that failed, stays out."""
    data = json.loads(into.read_text())
    head, *lines = (json.loads(text) for text in out.read_text().splitlines())
    about = {key: head["about"][key] for key in ("when", "commit")}
    machine = head["about"]["hardware"]
    devices = [each["name"] for each in machine["devices"]]
    about["device"] = devices[0] if devices else machine["processor"]
    new = {line["case"]: line | about for line in lines if "topics" in line}
    names = list(new)
    data["figures"] = [new.pop(each["case"], each) for each in data["figures"]] + [*new.values()]
    into.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return names


def gather_others(out: Path, into: Path) -> list[str]:
    """Put a file's lines of other models into the page's figures; the names of their models. A
    model's rows are all of one run: older ones of it go."""
    data = json.loads(into.read_text())
    head, *lines = (json.loads(text) for text in out.read_text().splitlines())
    when = {"when": head["about"]["when"]}
    new: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "figures" in line:
            kept = {key: value for key, value in line.items() if key != "case"}
            new.setdefault(line["model"], []).append(kept | when)
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*(each["model"] for each in data["figures"]), *new]):
        rows += new.get(name) or [each for each in data["figures"] if each["model"] == name]
    data["figures"] = rows
    into.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return list(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="cases that hold one of A,B,C in their names")
    parser.add_argument("--leave", default=None, help="leave out cases whose names hold this")
    parser.add_argument("--tokens", help="a file of tokens, where the package gguf is missing")
    parser.add_argument("--model", help="the GGUF file, where its package is not installed")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after these")
    parser.add_argument("--models", default=",".join(MODELS), help="names, with commas between")
    parser.add_argument("--gather", action="store_true", help="measure nothing: see above")
    given = parser.parse_args()
    if given.gather:
        names = [*gather(given.out, FIGURES), *gather_others(given.out, OTHERS)]
        print(", ".join(names) or "nothing new")
        return
    given.until = time.monotonic() + given.seconds
    names = [name.strip() for name in given.models.split(",")]
    if unknown := sorted(set(names) - set(MODELS)):
        parser.error(f"unknown models {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    warnings.simplefilter("ignore")
    with packages.lines(given.out) as (known, write):
        for name in names:
            try:
                if name == SMOLLM2:
                    language_model(given, known, write)
                else:
                    other_model(name, given, known, write)
            except ModuleNotFoundError as error:
                print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
