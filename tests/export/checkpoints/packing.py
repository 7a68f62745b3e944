# SPDX-License-Identifier: BSD-3-Clause
"""What producers store, packed bit by bit by numpy, independently of the readers."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor


def stream(codes: np.ndarray, bits: int) -> Tensor:
    """Codes [n, rows] -> int32 [n * bits / 32, rows], a little-endian stream down each column."""
    places = codes[:, None].astype(np.uint64) >> np.arange(bits, dtype=np.uint64)[None, :, None] & 1
    flat = places.reshape(-1, 32, codes.shape[1]).astype(np.uint64)
    shifted = flat << np.arange(32, dtype=np.uint64)[None, :, None]
    return torch.from_numpy(shifted.sum(1).astype(np.uint32).view(np.int32).copy())


def gptq(
    shape: tuple[int, int], bits: int, group: int, *, ordered: bool = False, z: Any = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Random tensors of a module in version 2, and the weight [outputs, inputs] that they mean."""
    outputs, inputs = shape
    random = np.random.default_rng(inputs + bits)
    codes = random.integers(0, 2**bits, (inputs, outputs))
    groups = -(-inputs // group)
    zeros = random.integers(0, 2**bits, (groups, outputs)) if z is None else np.full(
        (groups, outputs), z
    )  # fmt: skip
    scales = (random.standard_normal((groups, outputs)) * 0.02).astype(np.float16)
    index = np.arange(inputs) // group
    index = random.permutation(index) if ordered else index
    weight = (codes - zeros[index]) * scales[index].astype(np.float32)
    stored = {
        "qweight": stream(codes, bits), "qzeros": stream(zeros.T, bits).T.contiguous(),
        "scales": torch.from_numpy(scales), "g_idx": torch.from_numpy(index.astype(np.int32)),
    }  # fmt: skip
    return stored, torch.from_numpy(weight.T.astype(np.float32))


def nf4(
    name: str, shape: tuple[int, ...], table: Tensor, dynamic: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """A weight of bitsandbytes with random codes in blocks of 64, and its values in float32."""
    count = int(np.prod(shape))
    random = np.random.default_rng(count)
    codes = torch.from_numpy(random.integers(0, 16, count))
    pairs = codes.view(-1, 2)
    told: dict[str, Any] = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(shape),
    }  # fmt: skip
    absmax = torch.from_numpy(random.random(-(-count // 64)).astype(np.float32)) / 5
    stored = {
        f"{name}.weight": (pairs[:, 0] << 4 | pairs[:, 1]).to(torch.uint8).view(-1, 1),
        f"{name}.weight.quant_map": table.clone(), f"{name}.weight.absmax": absmax,
    }  # fmt: skip
    if dynamic is not None:
        bytes_ = torch.from_numpy(random.integers(0, 256, absmax.numel(), dtype=np.uint8))
        outer = torch.from_numpy(random.random(-(-absmax.numel() // 256)).astype(np.float32)) / 9
        told |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125}
        wide = outer.repeat_interleave(256)[: absmax.numel()]
        absmax = dynamic[bytes_.long()] * wide + torch.tensor(0.125)
        stored |= {
            f"{name}.weight.absmax": bytes_, f"{name}.weight.nested_absmax": outer,
            f"{name}.weight.nested_quant_map": dynamic.clone(),
        }  # fmt: skip
    text = json.dumps(told).encode()
    state = torch.tensor(list(text), dtype=torch.uint8)
    stored[f"{name}.weight.quant_state.bitsandbytes__nf4"] = state
    values = table[codes] * absmax.repeat_interleave(64)[:count]
    return stored, values.view(shape)
