# SPDX-License-Identifier: BSD-3-Clause
"""Quantized linear layers against torch's F.linear in fp32, over the number of rows."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.bench import requests, targets
from blockscale.bench.groups.ceilings import PREFIX, copies
from blockscale.bench.peers import rivals
from blockscale.bench.requests import Call, Case, Contestant, Layer, Peer, Skipped, best, normal
from blockscale.bench.settings import MIB, Settings
from blockscale.bench.timing import Timing

GROUP = "linear"
_COPY = 128 * MIB  # beyond every cache: a weight is read from memory

Formats = tuple[str, str | None]  # of weight and input
RECIPES: tuple[Formats, ...] = (
    ("int8_channel", "int8_token"),
    ("int4:group32:fp32", "int8_token"),
    ("mxint8", "mxint8"),
    ("bfp8", "bfp8"),
    ("mxfp4", None),
    ("mxfp8", None),
    ("nvfp4", None),
    ("int4:group32:fp32", None),
    ("int8_channel", None),
)
GPU_RECIPES: tuple[Formats, ...] = (
    ("int8_channel", "int8_token"),
    ("e4m3:channel0:fp32", "e4m3:token:fp32"),
    ("mxint8", "mxint8"),
    ("bfp8", "bfp8"),
    ("mxfp8", "mxfp8"),
    *((name, None) for name in ("int8_channel", "mxfp8", "bfp8", "int4", "mxfp4", "nvfp4")),
    *((name, None) for name in ("fp8", "mxint8", "mxfp6", "int2", "ternary")),
)


def recipes(settings: Settings) -> tuple[Formats, ...]:
    """What is measured on a device."""
    return RECIPES if settings.kind == "cpu" else GPU_RECIPES


def baseline(settings: Settings) -> str:
    """The float layer that all others are compared with."""
    return "torch fp32" if settings.dtype.itemsize == 4 else "torch bf16"


def label(weight: str, text: str | None) -> str:
    """How a recipe is called in tables."""
    return f"{weight} x {text}" if text else f"{weight} weights"


def cases(settings: Settings) -> Iterator[Case]:
    """Every shape, every number of rows; all contestants race in each."""
    choice = [recipe for recipe in recipes(settings) if settings.picks(recipe[0])]
    values = {str(bs.parse(weight)) for weight, _ in choice}
    choice += [(fmt, None) for fmt in settings.formats if str(bs.parse(fmt)) not in values]
    for (k, n), rows in settings.sizes.linear.items():
        for m in rows:
            about = {"op": "linear", "m": m, "k": k, "n": n, "operations": 2 * m * k * n}
            contestants = partial(_contestants, (k, n), m, choice, settings)
            name = f"linear/{k}x{n}/m={m}"
            figures = partial(_figures, baseline(settings), m in settings.sizes.reading, (k, n))
            yield Case(name, GROUP, about, contestants, figures, 4.0, cold=True)


def _copy_bytes(k: int, n: int) -> int:
    """Bytes of the copy that one row is compared with: beyond caches, if the weight is large."""
    return min(_COPY, 8 * k * n)


def _contestants(
    shape: tuple[int, int], m: int, recipes: list[Formats], settings: Settings
) -> Iterator[Contestant | Skipped]:
    layer = _layer(*shape, settings.device, settings.compiled, settings.dtype)
    x = normal((m, layer.k), settings.dtype, settings.device)
    weight = layer.weight
    name = baseline(settings)
    yield Contestant(name, "ceiling", lambda: F.linear(x, weight), bytes=weight.nbytes)
    if m in settings.sizes.reading:
        yield from copies(_copy_bytes(layer.k, layer.n), settings.device)
    for recipe in recipes:
        nbytes = requests.stored_bytes(bs.parse(recipe[0]), (layer.n, layer.k))
        goals = targets.linear(*recipe, shape, m, settings.kind)
        call = partial(_quantized(layer, *recipe), x)
        name = label(*recipe)
        yield Contestant(name, "ours", call, bytes=nbytes, targets=goals, probe=True)

    def finish(peer: Peer, bind: Callable[[Tensor], Call]) -> Contestant:
        return Contestant(peer.name, "peer", bind(x), peer.note)

    if settings.peers:
        yield from rivals("linear", layer, finish, layer.cache)


def _figures(
    base: str,
    reads: bool,
    shape: tuple[int, int],
    contestant: Contestant,
    timing: Timing,
    times: Mapping[str, Timing],
) -> dict[str, float]:
    figures = {"relative": timing.median / times[base].median}
    if reads and contestant.bytes:
        rate = contestant.bytes / timing.median
        figures["gigabytes_per_second"] = rate / 1e9
        figures["of_copy"] = rate * best(times, PREFIX) / _copy_bytes(*shape)
    return figures


@lru_cache(maxsize=1)
def _layer(k: int, n: int, device: str, compiled: bool, dtype: torch.dtype) -> Layer:
    """One layer at a time, with all that was made of it: quantizing is not what is timed."""
    return Layer(k, n, device, compiled, dtype)


def _quantized(layer: Layer, weight: str, text: str | None) -> nn.Module:
    """The layer as `bs.quantize_` makes it."""
    name = label(weight, text)
    if name not in layer.cache:
        model = layer.module()
        bs.quantize_(model, bs.Recipe(weight, input=text), strict=True)
        layer.cache[name] = model
    module: nn.Module = layer.cache[name]
    return module
