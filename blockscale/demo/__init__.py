# SPDX-License-Identifier: BSD-3-Clause
"""The demonstration: a real model in many formats, measured."""

import copy
import math
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.core.recipe import Recipe
from blockscale.demo import minilm
from blockscale.demo.minilm import SENTENCES
from blockscale.files.load import load
from blockscale.files.save import save
from blockscale.layers.apply import quantize_
from blockscale.layers.layer import QLayer

# Quantize MiniLM in each format, save, reload, embed real sentences, and compare with float.

RECIPES: dict[str, Recipe] = {
    "int8 per channel": Recipe("int8_channel"),
    "int8 weight + dynamic int8 input": Recipe("int8_channel", input="int8_token"),
    "mxfp8": Recipe("mxfp8"),
    "mxfp8 weight + input": Recipe("mxfp8", input="mxfp8"),
    "mxint8": Recipe("mxint8"),
    "bfp8": Recipe("bfp8"),
    "mxfp6": Recipe("mxfp6"),
    "int4 group 32": Recipe("int4:group32:fp32"),
    "mxfp4": Recipe("mxfp4"),
    "mxfp4, tosa rule": Recipe("e2m1:group32:e8m0/tosa"),
    "nvfp4": Recipe("nvfp4"),
}


@dataclass(frozen=True)
class FormatRow:
    """One line of the table. Times in seconds, sizes in bytes, SQNR in decibels."""

    name: str
    file_bytes: int
    bits_per_weight: float
    sqnr: float  # of all quantized weights together
    cosine_mean: float  # of sentence embeddings to float
    cosine_min: float
    rank_correlation: float  # Spearman, of all pairwise similarities
    quantize_seconds: float
    embed_seconds: float


class Demo:
    """The float model, its embeddings, and the rows measured against them."""

    def __init__(self) -> None:
        self.path = minilm.directory()
        self.model = minilm.build(self.path)
        self._fresh = minilm.build(self.path, weights=False)  # a copy of it takes no second
        self.tokens = minilm.tokenize(self.path, SENTENCES)
        minilm.embed(self.model, self.tokens)  # warm up
        started = time.perf_counter()
        self.embeddings = minilm.embed(self.model, self.tokens)
        seconds = time.perf_counter() - started
        size = (self.path / "model.safetensors").stat().st_size
        self._energies: dict[str, float] = {}
        self.float_row = FormatRow("float32", size, 32.0, math.inf, 1.0, 1.0, 1.0, 0.0, seconds)

    def rows(self) -> Iterator[FormatRow]:
        """One row a recipe, as it is measured."""
        for name, recipe in RECIPES.items():
            yield self.measure(name, recipe)

    def measure(self, name: str, recipe: Recipe) -> FormatRow:
        """Quantize, save, load into a fresh model, embed, compare."""
        model = copy.deepcopy(self.model)
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a layer that is skipped here is a bug
            quantize_(model, recipe, strict=True)
        quantize_seconds = time.perf_counter() - started
        bits = _weight_bits(model)
        sqnr = self._sqnr(model)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            save(model, file)
            size = file.stat().st_size
            reloaded = load(copy.deepcopy(self._fresh), file)
        started = time.perf_counter()
        embeddings = minilm.embed(reloaded, self.tokens)
        embed_seconds = time.perf_counter() - started
        cosines = (embeddings * self.embeddings).sum(-1)
        return FormatRow(
            name, size, bits, sqnr, float(cosines.mean()), float(cosines.min()),
            rank_correlation(self.embeddings, embeddings), quantize_seconds, embed_seconds,
        )  # fmt: skip

    def _sqnr(self, model: nn.Module) -> float:
        """Signal over noise of all quantized weights together, in decibels."""
        signal = noise = 0.0
        for name, layer in model.named_modules():
            if isinstance(layer, QLayer):
                weight = self.model.get_parameter(f"{name}.weight").detach()
                if name not in self._energies:  # the same in all formats
                    self._energies[name] = _energy(weight)
                signal += self._energies[name]
                noise += _energy(weight - layer.dequantize_weight())
        return 10 * math.log10(signal / noise)


def _energy(x: Tensor) -> float:
    """The sum of squares in float64, a part after the other: a whole copy would be large."""
    parts = (part.double() for part in x.flatten().split(2**18))
    return sum(float(part.dot(part)) for part in parts)


def _weight_bits(model: nn.Module) -> float:
    """Stored bits per quantized weight, scales included."""
    weights = [layer.qweight for layer in model.modules() if isinstance(layer, QLayer)]
    return 8 * sum(w.nbytes for w in weights) / sum(w.shape.numel() for w in weights)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of all pairwise similarities in two sets of embeddings [n, d]."""
    # a second to import, and each command imports this file
    from scipy.stats import spearmanr  # type: ignore[import-untyped]

    rows, columns = torch.triu_indices(a.shape[0], a.shape[0], 1)
    pairs = [(e @ e.T)[rows, columns].numpy() for e in (a, b)]
    return float(spearmanr(*pairs).statistic)
