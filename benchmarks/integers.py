# SPDX-License-Identifier: BSD-3-Clause
"""Integer graphs beside float: times of one run, taking turns, one thread, processor time.

    python -m benchmarks.integers [--rounds 9] [--minilm] [--save NAME]

An MLP of three layers 1024 x 1024 on 512 rows, and all-MiniLM-L6-v2 on 32 x 64 tokens: torch fp32,
int8 with float scales lowered to "cpu", and integers alone. Prints the least times and ratios, and
writes benchmarks/results/NAME.json (integers) with hardware, versions and commit.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import blockscale as bs
from benchmarks.record import record
from blockscale.bench.machine import start_again
from blockscale.demo import minilm
from blockscale.demo.graph import ROWS, TOKENS, program_of
from blockscale.demo.minilm import SENTENCES
from blockscale.kernels.cpu import _native

POW2, FLOAT = "int8:tensor:pow2/nearest", "uint8:tensor:fp32:asym"


class States(nn.Module):
    """An encoder without its pooler."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        """The last hidden states [sentences, tokens, 384]; torch.export takes sizes by name."""
        return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state


def fused(program: Any, recipe: bs.Recipe, batch: Any) -> Any:
    """A program, calibrated with one batch, as a fused graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        prepared = bs.graph.prepare(program, recipe, observer="min_max")
        bs.calibrate(prepared, [batch], progress=False)
        return bs.graph.fuse(bs.graph.convert(prepared))


def times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """{name: the least of its processor times in milliseconds}, all taking turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.process_time()
                call()
                found[name].append(1e3 * (time.process_time() - start))
    return {name: min(each) for name, each in found.items()}


def mlp() -> dict[str, Callable[[], Any]]:
    """Three linear layers with ReLUs."""
    torch.manual_seed(0)
    layers = [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model, x = nn.Sequential(*layers, nn.Linear(1024, 1024)).eval(), torch.randn(512, 1024)
    program = torch.export.export(model, (x,))
    scaled = fused(program, bs.Recipe("int8_channel", FLOAT), (x,))
    whole = fused(program, bs.Recipe("int8:channel0:pow2/nearest", POW2), (x,))
    return _calls(model, scaled, whole, (x,), {})


def encoder() -> dict[str, Callable[[], Any]]:
    """MiniLM, with the formats of docs/integers.md."""
    path = minilm.directory()
    model = States(minilm.build(path)).eval()
    tokens = minilm.tokenize(path, SENTENCES)
    program = program_of(model, tokens)
    scaled = fused(program, bs.Recipe("int8_channel", FLOAT), tokens)
    whole = fused(program, bs.graph.integer_recipe(program), tokens)
    ids = {name: each.repeat(ROWS, TOKENS)[:ROWS, :TOKENS] for name, each in tokens.items()}
    ids["attention_mask"] = torch.ones_like(ids["attention_mask"])
    return _calls(model, scaled, whole, (), ids)


def _calls(model: Any, scaled: Any, whole: Any, args: Any, named: Any) -> dict[str, Any]:
    ready = {"fp32": model, "int8, float scales": bs.graph.lower(scaled, "cpu")}
    ready["integers"] = bs.graph.lower(whole, "integer")
    assert bs.graph.audit_integer(ready["integers"]).integer
    return {name: lambda graph=graph: graph(*args, **named) for name, graph in ready.items()}


def ratios(found: dict[str, float]) -> dict[str, float]:
    """What issue 20 bounds: torch's time over the integers' (2 or more), and theirs over that of
    float scales (at most 1)."""
    whole = found["integers"]
    return {
        "fp32 / integers": found["fp32"] / whole,
        "integers / float scales": whole / found["int8, float scales"],
    }


def main() -> None:
    """Measure, print, record."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=9)
    given.add_argument("--minilm", action="store_true")
    given.add_argument("--save", default="integers", help="'' for no file")
    options = given.parse_args()
    start_again()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"instructions": _native.isa()}
    for name, made in [("mlp", mlp)] + [("minilm", encoder)] * options.minilm:
        found = times(made(), options.rounds)
        told = [f"{each} {ms:.1f} ms" for each, ms in found.items()]
        told += [f"{each} {ratio:.2f}" for each, ratio in ratios(found).items()]
        print(f"{name}: {', '.join(told)}", flush=True)
        figures[name] = {"ms": found, "ratios": ratios(found)}
    if options.save:
        print(record(options.save, figures))


if __name__ == "__main__":
    main()
