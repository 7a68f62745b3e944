# SPDX-License-Identifier: BSD-3-Clause
"""The cases of the founding document: ExecuTorch's tests of its Vulkan `quantize_affine`,
`dequantize_affine` and `choose_qparams_affine` (backends/vulkan/test/op_tests/affine_test.cpp, and
test_choose_qparams_per_row.cpp), with what they leave out: negative, clipped and subnormal numbers.

Its oracle here is numpy, which divides as IEEE 754 says, element by element.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FLT_MAX = np.float32(3.4028234663852886e38)


class Given(NamedTuple):
    """Scales and zero points by block, in row-major order."""

    shape: tuple[int, ...]
    block: tuple[int, ...]
    scales: list[float]
    zeros: list[int]


class Chosen(NamedTuple):
    """mapping: ASYMMETRIC, SYMMETRIC or SYMMETRIC_NO_CLIPPING_ERR, as torchao calls them."""

    shape: tuple[int, ...]
    block: tuple[int, ...]
    mapping: str
    low: int = -128
    high: int = 127


GIVEN = [
    Given((12,), (3,), [0.1, 0.2, 0.15, 0.25], [10, -20, 5, 30]),
    Given(
        (8, 6), (2, 3),
        [0.1, 0.2, 0.15, 0.25, 0.3, 0.05, 0.4, 0.35],
        [-10, 15, 0, 25, -5, 20, 10, -15],
    ),
    Given(
        (6, 4, 6), (3, 2, 2),
        [0.1, 0.2, 0.15, 0.25, 0.3, 0.05, 0.4, 0.35, 0.12, 0.18, 0.22, 0.28],
        [-15, 10, 5, -25, 20, -10, 15, -5, 8, -12, 18, -8],
    ),
    Given(
        (8, 6, 6, 6), (2, 3, 2, 3),
        [0.1, 0.2, 0.15, 0.25, 0.3, 0.05, 0.4, 0.35, 0.12, 0.18, 0.22, 0.28, 0.32, 0.08, 0.45, 0.38,
         0.14, 0.24, 0.16, 0.26, 0.34, 0.06, 0.44, 0.36, 0.11, 0.21, 0.13, 0.23, 0.31, 0.07, 0.41,
         0.37, 0.19, 0.29, 0.17, 0.27, 0.33, 0.09, 0.43, 0.39, 0.10, 0.20, 0.14, 0.24, 0.30, 0.04,
         0.40, 0.34],
        [-20, 10, 5, -15, 25, -10, 15, -5, 8, -12, 18, -8, 22, -18, 12, -22, -25, 15, 0, -20, 30,
         -5, 20, -10, 5, -25, 10, -15, 35, -15, 25, -35, -30, 20, -5, -25, 40, 0, 30, -40, 10, -30,
         15, -10, 45, -20, 35, -45],
    ),
]  # fmt: skip

ROWS = [
    (4, 16), (8, 32), (16, 64), (32, 128), (64, 256), (128, 512), (1, 512), (256, 1024),
    (512, 2048), (1, 2048), (1, 8096),
]  # fmt: skip
A, S, C = "ASYMMETRIC", "SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"
CHOSEN = [
    Chosen((12,), (3,), A),
    Chosen((8, 6), (2, 3), S),
    Chosen((6, 4, 6), (3, 2, 2), C),
    Chosen((4, 6, 6, 6), (2, 3, 2, 3), A),
    Chosen((4, 6, 8), (4, 6, 8), A),
    Chosen((4, 6, 8), (1, 1, 8), A),
    Chosen((6, 8), (2, 4), A, 0, 255),
    Chosen((6, 8), (2, 4), S, -32768, 32767),
    Chosen((6, 8), (2, 4), A),
    Chosen((8, 6, 4), (1, 6, 4), S),
    Chosen((4, 8, 6), (4, 1, 6), S),
    Chosen((8, 6, 10), (4, 6, 2), A),
    Chosen((2, 3), (2, 3), A),
    Chosen((6, 8), (2, 4), S),
    Chosen((6, 8), (2, 4), C),
    *(Chosen(shape, (1, shape[1]), A) for shape in ROWS),
]
_OPTIONS = {A: "asym", S: "half", C: "full"}

KINDS = ("uniform", "negative", "clipping", "subnormal", "ties", "special")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def spelled(block: tuple[int, ...]) -> str:
    """The block's spelling."""
    return f"block{'x'.join(map(str, block))}"


def format_of(case: Chosen) -> str:
    """Our format that means the same, but for eps: scales here are never that small."""
    bits = (case.high - case.low).bit_length()
    element = f"uint{bits}" if case.low == 0 else f"int{bits}"
    return f"{element}:{spelled(case.block)}:fp32:{_OPTIONS[case.mapping]}"


def numbers(kind: str, shape: tuple[int, ...], scale: Tensor) -> Tensor:
    """float32 of `shape`. scale: of each element, for those that depend on it."""
    made = torch.Generator().manual_seed(7)
    uniform = torch.rand(shape, generator=made)
    normal = torch.randn(shape, generator=made)
    if kind == "uniform":  # what ExecuTorch tests
        return uniform
    if kind == "negative":
        return uniform * 2 - 1
    if kind == "clipping":  # both ends, by far
        return normal * scale * 300
    if kind == "subnormal":
        return normal * 2.0**-128
    if kind == "ties":
        return (torch.randint(-260, 260, shape, generator=made) + 0.5) * scale
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e38, -1e-45, 2.0**-149])
    return torch.where(uniform < 0.3, special[torch.randint(0, 8, shape, generator=made)], normal)


def block_ids(shape: tuple[int, ...], block: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The block of each element, in the row-major order of blocks."""
    ids = np.zeros(shape, np.int64)
    for coordinates, n, b in zip(np.indices(shape, sparse=True), shape, block, strict=True):
        ids = ids * (n // b) + coordinates // b
    return ids


@np.errstate(all="ignore")
def quantized(x: Tensor, case: Given, by: str) -> np.ndarray[Any, Any]:
    """The document's formula; by: "division", or "reciprocal", which its shader computes."""
    ids = block_ids(case.shape, case.block)
    scale = np.array(case.scales, np.float32)[ids]
    zero = np.array(case.zeros, np.int64)[ids]
    given = x.float().numpy()
    y = given / scale if by == "division" else given * (np.float32(1) / scale)
    steps = np.clip(np.rint(np.where(np.isnan(y), np.float32(0), y)), -1e9, 1e9).astype(np.int64)
    return np.clip(steps + zero, -128, 127).astype(np.int8)


def dequantized(codes: np.ndarray[Any, Any], case: Given, dtype: torch.dtype) -> Tensor:
    """(code - zero point) * scale in float32, rounded once to dtype."""
    ids = block_ids(case.shape, case.block)
    scale = np.array(case.scales, np.float32)[ids]
    zero = np.array(case.zeros, np.int64)[ids]
    return torch.from_numpy((codes.astype(np.int64) - zero).astype(np.float32) * scale).to(dtype)


@np.errstate(all="ignore")
def chosen(x: Tensor, case: Chosen) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scales and zero points of the blocks, in row-major order."""
    ids, given = block_ids(case.shape, case.block).ravel(), x.float().numpy().ravel()
    order = np.argsort(ids, kind="stable")
    starts = np.cumsum(np.bincount(ids))[:-1]
    scales, zeros = [], []
    for block in np.split(given[order], starts):
        block = block[np.isfinite(block)]
        low = np.float32(min(0, block.min(initial=0)))
        high = np.float32(max(0, block.max(initial=0)))
        span = np.float32(case.high - case.low)
        if case.mapping == A:
            scale = np.minimum(high - low, FLT_MAX) / span
        elif case.mapping == S:
            scale = max(-low, high) / (span * np.float32(0.5))
        else:
            scale = max(low / np.float32(case.low), high / np.float32(case.high))
        scale = np.clip(np.float32(scale), np.float32(2.0**-126), FLT_MAX)
        scales.append(scale)
        steps = int(np.rint(low / scale))
        zeros.append(int(np.clip(case.low - steps, case.low, case.high)))
    return np.array(scales, np.float32), np.array(zeros, np.int32)
