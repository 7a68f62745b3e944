# SPDX-License-Identifier: BSD-3-Clause
"""GGUF's types by ggml's own quantizers, which llama.cpp uses, read back by the package gguf.

The compiled library comes with a package that holds ggml, such as pywhispercpp: only
`ggml_quantize_chunk` of it is called. A K or IQ type needs rows of a multiple of 256 weights, and
llama.cpp falls back to larger types for others; here neighbouring rows are joined until they are,
so that every weight has the type that is named, at its bits. "imatrix" gives each weight the mean
square of its input, over the calibration tokens, as llama-imatrix does.
"""

import ctypes
import math
import pathlib
from functools import cache
from importlib import metadata

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor, nn

from benchmarks.language_model.peers import linears
from benchmarks.language_model.settings import Setting

HOLDER = "pywhispercpp"


@cache
def library() -> ctypes.CDLL:
    """libggml-base. Raises ImportError where no package has one."""
    try:
        files = metadata.files(HOLDER) or []
    except metadata.PackageNotFoundError:
        files = []
    named = [pathlib.Path(path.locate()) for path in files if "libggml-base" in path.name]
    paths = [path for path in named if path.exists()]
    if not paths:
        raise ImportError(f"no libggml-base: pip install --no-deps {HOLDER}")
    ggml = ctypes.CDLL(str(paths[0].resolve()))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    return ggml


def codes(
    weight: np.ndarray, kind: GGMLQuantizationType, importance: np.ndarray | None
) -> np.ndarray:
    """Weight [n, k] float32 -> its blocks as bytes [rows, bytes of a row], rows joined by need.

    importance: [k], how much an error of each input's weight matters.
    """
    block, size = GGML_QUANT_SIZES[kind]
    n, k = weight.shape
    joined = math.lcm(k, block) // k
    if n % joined:
        raise ValueError(f"{n} rows of {k} do not join to rows of a multiple of {block}")
    rows = np.ascontiguousarray(weight, dtype=np.float32).reshape(n // joined, joined * k)
    out = np.empty((len(rows), rows.shape[1] // block * size), dtype=np.uint8)
    given = None if importance is None else np.tile(importance.astype(np.float32), joined)
    written = library().ggml_quantize_chunk(
        int(kind), rows.ctypes.data, out.ctypes.data, 0, len(rows), rows.shape[1],
        None if given is None else given.ctypes.data,
    )  # fmt: skip
    if written != out.nbytes:
        raise ValueError(f"expected {out.nbytes} bytes of {kind.name}, ggml wrote {written}")
    return out


@torch.inference_mode()
def mean_squares(model: nn.Module, train: Tensor) -> dict[str, np.ndarray]:
    """{layer: mean squares of its inputs [k]} over the calibration tokens."""
    sums: dict[str, Tensor] = {}

    def hook(name: str):
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            squares = inputs[0].double().square().flatten(0, -2).sum(0)
            sums[name] = sums.get(name, 0) + squares

        return add

    handles = [layer.register_forward_pre_hook(hook(n)) for n, layer in linears(model).items()]
    for part in train.split(8):
        model(input_ids=part, use_cache=False)
    for handle in handles:
        handle.remove()
    return {name: (total / train.numel()).cpu().numpy() for name, total in sums.items()}


def quantize(model: nn.Module, setting: Setting, train: Tensor) -> tuple[nn.Module, float]:
    """Every layer's weight in the type, dequantized."""
    kind = GGMLQuantizationType[setting.weight]
    known = mean_squares(model, train) if setting.algorithm == "imatrix" else {}
    stored = count = 0
    for name, layer in linears(model).items():
        weight = layer.weight.detach()
        blocks = codes(weight.cpu().numpy(), kind, known.get(name))
        stored, count = stored + blocks.nbytes, count + weight.numel()
        back = torch.from_numpy(dequantize(blocks, kind).reshape(weight.shape).copy())
        layer.weight = nn.Parameter(back.to(weight.device), requires_grad=False)
    return model, 8 * stored / count
