# SPDX-License-Identifier: BSD-3-Clause
"""What formats of keys and values cost SmolLM2: loss beside a cache of floats.

    python -m benchmarks.real_models.keys_values OUT.jsonl [--sequences 2] [--only WORDS]

A line a case; cases that have their line are not measured again. Sequences of 512 tokens of
Python's help texts are fed in pieces of 32 tokens, so that all but a sequence's beginning is read
from codes. The model is the package's own: keys and values lie on no grid, and are not scaled as
the twin's would be. `transformers`' attention reads what our QuantizedCache decodes.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

import blockscale as bs
from benchmarks.real_models import packages, smollm2
from blockscale.evaluation.texts import held_out, windows
from blockscale.integrations.transformers import QuantizedCache

LENGTH, PIECE = 512, 32


@dataclass(frozen=True)
class Case:
    """A format of keys and values; keys_per and window as QuantizedCache takes them.

    rotated: keys are rotated by a Hadamard matrix before they are rounded, and back when they are
        read, which is what rotating the queries would give
    """

    format: str
    keys_per: str = "token"
    window: int = 32
    rotated: bool = False

    @property
    def name(self) -> str:
        return f"{self.format} {self.keys_per} {self.window}{' rotated' * self.rotated}"


INT4, UINT2 = "int4:group32:fp16:asym", "uint2:group32:fp16:asym"
NVFP4 = "e2m1:group16:(e4m3:token:fp32)"  # nvfp4, whose outer scale would be of several tokens
CASES = [
    Case("int8:token:fp16"),
    Case(INT4, "channel"),
    Case(INT4),
    Case(INT4, rotated=True),
    Case(NVFP4),
    Case(NVFP4, rotated=True),
    Case("mxfp4"),
    Case("mxfp4", rotated=True),
    Case("mxfp4", "channel"),
    Case(UINT2, "channel"),
    Case(UINT2),
    Case(UINT2, rotated=True),
    Case(UINT2, "channel", 128),
    Case(INT4, window=128),
]


class InPieces(nn.Module):
    """A language model that reads its own cache: `input_ids` [B, T] -> logits [B, T, words].

    case: None for a cache of floats, whose logits are kept for each batch that comes again
    """

    def __init__(self, model: Any, case: Case | None):
        super().__init__()
        self.model, self.case = model, case
        self.config = model.config
        self.kept: dict[bytes, Tensor] = {}

    def can_generate(self) -> bool:
        return True

    def forward(self, input_ids: Tensor) -> Any:
        key = input_ids.numpy().tobytes()
        if key in self.kept:
            return {"logits": self.kept[key]}
        cache = self.cache()
        pieces = [
            self.model(piece, past_key_values=cache, use_cache=True).logits
            for piece in input_ids.split(PIECE, dim=1)
        ]
        logits = torch.cat(pieces, dim=1)
        if self.case is None:
            self.kept[key] = logits
        return {"logits": logits}

    def cache(self) -> Any:
        if self.case is None:
            return DynamicCache(config=self.config)
        case = self.case
        return QuantizedCache(
            self.config, case.format, keys_per=case.keys_per, window=case.window,
            rotate="hadamard" if case.rotated else None,
        )  # fmt: skip


def bits(case: Case, features: int) -> float:
    """Stored bits for each key or value that has left the window."""
    stored = bs.quantize(torch.randn(1, 1, 64, features), case.format)
    return stored.nbytes * 8 / stored.numel()


def measured(case: Case, model: Any, floats: InPieces, rows: Tensor) -> dict[str, Any]:
    """One line: the figures of a case beside the cache of floats."""
    began = time.monotonic()
    batches = [{"input_ids": part} for part in rows.split(2)]
    found = bs.evaluate(InPieces(model, case), batches, floats, kind="next-token")
    head = model.config.hidden_size // model.config.num_attention_heads
    line = {"case": case.name, "format": case.format, "keys per": case.keys_per} | {
        "window": case.window, "rotated": case.rotated, "bits": round(bits(case, head), 3),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    return line | {name: figure.to_dict() for name, figure in found.figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    given = parser.parse_args()
    model = smollm2.load()
    rows = windows(held_out(), smollm2.tokens(), LENGTH, given.sequences)
    floats = InPieces(model, None).eval()
    with packages.lines(given.out) as (known, write):
        for case in CASES:
            if case.name in known or given.only not in case.name:
                continue
            line = measured(case, model, floats, rows)
            write(line)
            print(case.name, round(line["loss added"]["mean"], 4), file=sys.stderr)


if __name__ == "__main__":
    main()
