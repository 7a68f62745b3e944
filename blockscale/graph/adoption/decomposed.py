# SPDX-License-Identifier: BSD-3-Clause
"""torch's `quantized_decomposed` ops, as prepare_pt2e's standard observers leave them.

Source: torch 2.13.0, torch/ao/quantization/fx/_decomposed.py. `per_token` and `per_channel_group`
add the zero point before they round, `per_tensor` and `per_channel` afterwards.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from blockscale.core.block import WHOLE
from blockscale.graph.adoption.calls import Call, NoFormatError, in_whole, rank_of
from blockscale.graph.nodes import arguments, shape


def _codes(given: dict[str, Any]) -> dict[str, Any]:
    low, high = given["quant_min"], given["quant_max"]
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise NoFormatError("its smallest and largest codes are tensors")
    if given["dtype"].is_floating_point:
        raise NoFormatError(f"it rounds to integers that it stores as {given['dtype']}")
    return {"low": int(low), "high": int(high), "dtype": given["dtype"]}


def _per_tensor(kind: str) -> Callable[[fx.Node], Call]:
    def read(node: fx.Node) -> Call:
        given = arguments(node)
        x = given["input"]
        sizes = (WHOLE,) * rank_of(x)
        out = given.get("out_dtype") or torch.float32
        return Call(kind, x, sizes, given["scale"], given["zero_point"], **_codes(given), out=out)

    return read


def _per_channel(kind: str) -> Callable[[fx.Node], Call]:
    def read(node: fx.Node) -> Call:
        given = arguments(node)
        x = given["input"]
        rank, axis = rank_of(x), given["axis"]
        sizes = tuple(1 if dim == axis % rank else WHOLE for dim in range(rank))
        out = given.get("out_dtype") or torch.float32
        return Call(kind, x, sizes, given["scales"], given["zero_points"], **_codes(given), out=out)

    return read


def _per_token(kind: str) -> Callable[[fx.Node], Call]:
    def read(node: fx.Node) -> Call:
        given = arguments(node)
        x = given["input"]
        sizes = (1,) * (rank_of(x) - 1) + (WHOLE,)
        out = given.get("output_dtype") or torch.float32
        scale, zero = given["scales"], given["zero_points"]
        return Call(kind, x, sizes, scale, zero, **_codes(given), inside=True, out=out)

    return read


def _per_group(kind: str) -> Callable[[fx.Node], Call]:
    def read(node: fx.Node) -> Call:
        given = arguments(node)
        x = (
            given["input"]
            if kind == "quantize"
            else given["w_int8"]
            if "w_int8" in given
            else given["input"]
        )
        size, of = given["group_size"], shape(x)
        if of is None or len(of) != 2:
            raise NoFormatError(f"expected a matrix, found {of}")
        scales = shape(given["scales"])
        one = scales is not None and scales[-1] == 1
        if isinstance(of[-1], int) and size > of[-1] and one:
            size = of[-1]
        out = given.get("output_dtype") or torch.float32
        sizes = in_whole((1, size), of)
        scale, zero = given["scales"], given["zero_points"]
        return Call(kind, x, sizes, scale, zero, **_codes(given), inside=True, out=out)

    return read


_OPS = {
    "per_tensor": _per_tensor,
    "per_tensor.tensor": _per_tensor,
    "per_tensor.tensor2": _per_tensor,
    "per_channel": _per_channel,
    "per_token": _per_token,
    "per_channel_group": _per_group,
}
READERS: dict[str, Callable[[fx.Node], Call]] = {
    f"quantized_decomposed::{kind}_{which}": read(kind)
    for which, read in _OPS.items()
    for kind in ("quantize", "dequantize")
}
