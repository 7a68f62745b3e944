# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of observers share: data, formats, and an observer that has seen some."""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.observer import Observer

BLOCKS = ("tensor", "channel-1", "channel0", "token", "group16", "group16@0", "tile4x8")
RANGE_FORMATS = (
    "int8:tensor:fp32",
    "uint8:channel-1:fp32:asym",
    "int4:group16:fp16",
    "e2m1:group16:e8m0/floor",
    "e2m1:group16:e4m3",
    "int8:tensor:pow2/nearest:full",
    "log4:channel-1:bf16",
    "uint8:tensor:fp32",
    "int8:tensor:fp32:half:up",
    "int8:tensor:fp32:stochastic",
)
MEAN_FORMATS = ("binary:tensor:fp32", "ternary:channel-1:fp32", "binary:group16:bf16")
FORMATS = (*RANGE_FORMATS, *MEAN_FORMATS)
MORE = ("percentile:90", "mse:weighted")  # specs that take another way through an observer


def seeing(spec: object, fmt: str, *batches: Tensor) -> Observer:
    """An observer that has seen these batches."""
    observer = bs.observers.make(spec, fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


def same(a: Observer, b: Observer) -> bool:
    """Two observers would choose the same bits."""
    return all(torch.equal(x, y) for x, y in zip(a.range(), b.range(), strict=True))


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def serves(spec: str, fmt: str) -> bool:
    """Whether an observer takes a format; a ValueError says that it does not."""
    try:
        bs.observers.make(spec, fmt)
    except ValueError:
        return False
    return True


def served(spec: str, *formats: str) -> str:
    """The first of these formats that an observer takes."""
    return next(fmt for fmt in (*formats, *FORMATS) if serves(spec, fmt))


def pairs(*formats: str) -> list[tuple[str, str]]:
    """(spec, format) of every registered observer and every one of the formats that it takes."""
    specs = (*bs.observers.names(), *MORE)
    return [(spec, fmt) for spec in specs for fmt in formats if serves(spec, fmt)]


def merges_exactly(spec: str) -> bool:
    """Whether the observer says that merged ones choose the bits of one that saw everything."""
    observer = bs.observers.make(spec, served(spec))
    return type(observer).merges_exactly and not observer.weighted
