# SPDX-License-Identifier: BSD-3-Clause
"""Perplexity and next-token agreement of the small Llama in each format, beside others' methods.

    python -m benchmarks.language_model.evaluate --models DIR --output FILE.jsonl

DIR holds lm0, lm1, … (benchmarks.language_model.train). FILE gets a line for each cell as soon as
it is measured; cells that it has are not measured again. --only 'blockscale: mxfp4*' takes those
whose name matches, --by auto-round the cells of one library; --list prints names and measures none.
Everything is calibrated on the same 128 sequences and measured on the same 64; the tables of tokens
and logits stay in float. `python -m benchmarks.language_model.gather FILE.jsonl …` makes
docs/accuracy.json of such files.
"""

import argparse
import copy
import fnmatch
import json
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import blockscale as bs
from benchmarks.language_model import peers, settings
from benchmarks.language_model.cache import cache_bits, logits_through, quantized_cache
from benchmarks.language_model.model import FLOAT, Trained, load
from benchmarks.language_model.settings import FLOAT_WEIGHTS, Setting
from blockscale.bench.machine import commit, hardware, versions

BATCH = 8  # sequences that go through a model at a time


class Scores(NamedTuple):
    """Mean loss of each sequence in nats [sequences], float64, and the likeliest next tokens
    [sequences, length - 1]."""

    losses: Tensor
    picks: Tensor


class Quantized(NamedTuple):
    """A model, and bits of codes, scales and zero points for each weight; of each key and value
    where the weights stay in float."""

    model: nn.Module
    bits: float


@torch.inference_mode()
def score(model: nn.Module, tokens: Tensor, cached: str | None = None) -> Scores:
    """Run tokens [sequences, length] through a model in float32.

    cached: how keys and values of earlier tokens are kept, as `quantized_cache` takes it
    """
    device = next(model.parameters()).device
    losses, picks = [], []
    for batch in tokens.to(device).split(BATCH):
        if cached is None:
            logits = model(input_ids=batch, use_cache=False).logits
        else:
            logits = logits_through(model, batch, quantized_cache(model, cached))
        logits = logits[:, :-1].float()
        likely = logits.log_softmax(-1).gather(-1, batch[:, 1:, None])[..., 0]
        losses.append(-likely.to(torch.float64).mean(-1).cpu())
        picks.append(logits.argmax(-1).cpu())
    return Scores(torch.cat(losses), torch.cat(picks))


def batches(tokens: Tensor) -> list[dict[str, Any]]:
    """Calibration batches as keyword arguments of the model."""
    return [{"input_ids": part, "use_cache": False} for part in tokens.split(BATCH)]


def quantize_ours(model: nn.Module, setting: Setting, train: Tensor) -> Quantized:
    """bs.calibrate in place, as the setting says."""
    recipe = bs.Recipe(setting.weight, input=setting.input, skip=list(FLOAT))
    more = {"weight": setting.algorithm, "transform": setting.transform, "progress": False}
    if setting.algorithm == "absmax" and not setting.transform and not static(setting.input):
        ledger = bs.quantize_(model, recipe)
    else:
        ledger = bs.calibrate(model, batches(train), recipe, **more)
    done = [entry for entry in ledger.quantized if entry.weight]
    bits = 8 * sum(e.bytes_after for e in done) / sum(e.elements for e in done)
    return Quantized(model, bits)


def static(spelling: str | None) -> bool:
    """Whether an input's scale is one for all rows, and so must be observed."""
    return spelling is not None and str(bs.parse(spelling)).split(":")[1] == "tensor"


def measure(setting: Setting, trained: Trained, known: dict[str, Scores]) -> dict[str, Any]:
    """One cell. `known` has the float model's scores of each part, which it fills."""
    model = copy.deepcopy(trained.model)
    clock = time.perf_counter(), time.process_time()
    if setting.weight == FLOAT_WEIGHTS:
        assert setting.cache is not None
        tokens = trained.train[:BATCH]
        made = Quantized(model, cache_bits(model, setting.cache, tokens))
    elif setting.by == "blockscale":
        made = quantize_ours(model, setting, trained.train)
    else:
        made = Quantized(*peers.quantize(model, setting, trained.train))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    cell: dict[str, Any] = {
        "bits": round(made.bits, 4),
        "seconds": round(time.perf_counter() - clock[0], 2),
        "process_seconds": round(time.process_time() - clock[1], 2),
    }
    for part in ("held", "held2"):
        tokens = getattr(trained, part)
        if len(tokens):
            if part not in known:
                known[part] = score(trained.model, tokens)
            cell[part] = compared(score(made.model, tokens, setting.cache), known[part])
    return cell


def compared(now: Scores, before: Scores) -> dict[str, float]:
    """Loss added, its standard error over the sequences (paired), and how many tokens agree."""
    added = now.losses - before.losses
    spread = added.std().item() / math.sqrt(len(added)) if len(added) > 1 else 0.0
    told = {
        "perplexity": now.losses.mean().exp().item(),
        "float_perplexity": before.losses.mean().exp().item(),
        "added": added.mean().item(),
        "error": spread,
        "agreement": (now.picks == before.picks).double().mean().item(),
    }
    return {name: round(value, 6) for name, value in told.items()}


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The cells of a file, a line each; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def asked(given: argparse.Namespace) -> Iterator[Setting]:
    """The settings that the command line names."""
    for setting in (*settings.ours(), *settings.peers()):
        if given.by and setting.by not in given.by:
            continue
        if not given.only or any(fnmatch.fnmatch(setting.name, each) for each in given.only):
            yield setting


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=pathlib.Path, help="the folder of lm0, lm1, …")
    parser.add_argument("--output", type=pathlib.Path, help="a .jsonl file, which is continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="patterns of names")
    parser.add_argument("--by", nargs="+", help="libraries")
    parser.add_argument("--held2", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--budget-seconds", type=float, default=math.inf)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main() -> None:
    given, start = arguments(), time.perf_counter()
    chosen = list(asked(given))
    if given.list:
        print("\n".join(setting.name for setting in chosen))
        return
    kind = given.device.partition(":")[0]
    about = {"commit": commit(), "versions": versions() | peers.versions(),
             "threads": torch.get_num_threads(), "hardware": hardware(given.device)}  # fmt: skip
    have = {(cell["name"], cell["seed"], cell["device"]) for cell in read(given.output)}
    models = {
        seed: on(given.device, load(given.models / f"lm{seed}"), given) for seed in given.seeds
    }
    known: dict[int, dict[str, Scores]] = {seed: {} for seed in given.seeds}
    for setting in chosen:
        for seed in given.seeds:
            if time.perf_counter() - start > given.budget_seconds:
                print("out of time: the same command goes on from here")
                return
            if (setting.name, seed, kind) in have:
                continue
            head = {"name": setting.name, "seed": seed, "device": kind, "setting": vars(setting)}
            try:
                cell = measure(setting, models[seed], known[seed])
            except Exception as error:  # a peer that is not here or fails: said, not hidden
                print(
                    f"{setting.name}: {type(error).__name__}: {str(error).strip()[:300]}",
                    flush=True,
                )
                break
            with given.output.open("a") as file:
                file.write(json.dumps({**head, **cell, "about": about}) + "\n")
            print(f"{setting.name:58} seed {seed} {line(cell)}", flush=True)


def line(cell: dict[str, Any]) -> str:
    """A cell in short."""
    held = cell["held"]
    added = f"added {held['added']:8.4f} ± {held['error']:.4f}"
    agree = f"agree {100 * held['agreement']:6.2f} %"
    return f"{cell['bits']:6.3f} bits  {added}  {agree}  {cell['seconds']:7.1f} s"


def on(device: str, trained: Trained, given: argparse.Namespace) -> Trained:
    """The model on a device; without the second part of held tokens where it is not wanted."""
    held2 = trained.held2 if given.held2 else trained.held2[:0]
    return Trained(trained.model.to(device), trained.train.to(device), trained.held, held2)


if __name__ == "__main__":
    main()
