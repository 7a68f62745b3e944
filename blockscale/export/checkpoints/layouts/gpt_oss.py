# SPDX-License-Identifier: BSD-3-Clause
"""gpt-oss's MXFP4: `…_blocks` u8 [experts, out, in/32, 16] and `…_scales` u8 [experts, out, in/32].

The even element of a byte lies in its low bits (openai/gpt-oss, gpt_oss/torch/weights.py). Its
rows of gate and up projections alternate; transformers shows the transposed matrices.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from blockscale.export.checkpoints.assembling import BYTES, assemble
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "gpt-oss"
METHODS = ("mxfp4",)
_FORMAT = "e2m1:group32:e8m0/given"
_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = 16  # of a block of 32
_NAN = 255  # of e8m0; the producer multiplies by 2^128


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Pairs of `…_blocks` and `…_scales`, by their dtypes and shapes."""
    del read
    tensors = LayoutTensors()
    for name in sorted(kinds):
        base = name.removesuffix(_BLOCKS)
        (dtype, shape), scales = kinds[name], kinds.get(base + _SCALES)
        if base == name or scales is None or dtype != torch.uint8 or len(shape) < 3:
            continue
        parts = {"blocks": name, "scale": base + _SCALES}
        whole = (*shape[:-2], shape[-2] * 2 * _BYTES)
        if shape[-1] != _BYTES or scales[1] != shape[:-1] or scales[0] not in BYTES:
            text = f"its blocks are {list(shape)} and its scales {scales[0]} {list(scales[1])}"
            tensors.add(base, Weight("MXFP4", whole, parts, None, f"{text}, not of {_BYTES} bytes"))
        else:
            decode = partial(_decode, whole)
            tensors.add(base, Weight("MXFP4", whole, parts, _FORMAT, decode=decode))
    if tensors.weights:
        mine = config.get("quant_method") in METHODS
        first = next(iter(tensors.weights.values())).parts["blocks"]
        tensors.evidence = str(config["evidence"]) if mine else f"it has {first}"
    return tensors


def _decode(shape: tuple[int, ...], parts: Parts) -> QTensor:
    if bool((parts["scale"].view(torch.uint8) == _NAN).any()):
        raise ValueError(
            "it has the scale code 255, which is NaN in OCP MX: no writer stores that: the "
            "file is damaged"
        )
    codes = parts["blocks"].flatten(-2)
    return assemble(_FORMAT, shape, {"codes": codes, "scale": parts["scale"]})
