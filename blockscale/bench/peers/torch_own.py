# SPDX-License-Identifier: BSD-3-Clause
"""What torch itself has."""

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.bench.requests import Call, Encoder, Layer, Peer, Primitive
from blockscale.core.torch_private import int_mm

_LIMIT = 4.0  # of normal numbers; a scale that is given need not fit exactly to be timed


def unavailable() -> str | None:
    """Torch is always there."""
    return None


def primitive(case: Primitive) -> Iterator[Peer]:
    """int8 with one scale for the tensor or one a channel; the scale is given. CPU alone."""
    if case.device != "cpu":
        return
    x = case.x
    stored: Any
    fake: Any
    if x.dtype != torch.float32 or case.name not in ("int8", "int8_channel"):
        return
    text = "its scale is given"
    if case.name == "int8":
        scalar = (_LIMIT / 127, 0)
        stored, fake = torch.quantize_per_tensor, torch.fake_quantize_per_tensor_affine
        makers: dict[str, Any] = {
            "quantize": lambda: stored(x, *scalar, torch.qint8),
            "fake_quantize": lambda: fake(x, *scalar, -127, 127),
        }
    else:
        scale = torch.full((x.shape[0],), _LIMIT / 127)
        zero = torch.zeros(x.shape[0], dtype=torch.int32)
        stored, fake = torch.quantize_per_channel, torch.fake_quantize_per_channel_affine
        makers = {
            "quantize": lambda: stored(x, scale, zero, 0, torch.qint8),
            "fake_quantize": lambda: fake(x, scale, zero, 0, -127, 127),
        }
    if case.op == "dequantize":
        yield Peer(f"torch {stored.__name__}", lambda: makers["quantize"]().dequantize)
        return
    function = stored if case.op == "quantize" else fake
    yield Peer(f"torch {function.__name__}", lambda: makers[case.op], text, reads=1)


def linear(layer: Layer) -> Iterator[Peer]:
    """bf16, the dynamic int8 module, and the bare int8 product."""
    if layer.device == "cpu":
        yield Peer("torch bf16", lambda: _bf16(layer.weight), "input and output bf16")
    if layer.device == "cpu" and _has_torch_ao():
        yield Peer("torch dynamic int8", lambda: _module(_dynamic(layer.module())))
    yield Peer("torch._int_mm", lambda: _int_mm(layer.weight), "input int8 already, output int32")


def model(encoder: Encoder) -> Iterator[Peer]:
    """Every Linear as the dynamic int8 module."""
    if _has_torch_ao():
        yield Peer("torch quantize_dynamic int8", lambda: _dynamic(copy.deepcopy(encoder.model)))


def _bf16(weight: Tensor) -> Any:
    narrow = weight.bfloat16()

    def bind(x: Tensor) -> Call:
        values = x.bfloat16()
        return lambda: F.linear(values, narrow)

    return bind


def _int_mm(weight: Tensor) -> Any:
    codes = (weight * 127 / weight.abs().amax()).round().to(torch.int8).t()

    def bind(x: Tensor) -> Call:
        values = (x * 127 / _LIMIT).clamp(-127, 127).round().to(torch.int8)
        return lambda: int_mm(values, codes)

    return bind


def _module(module: nn.Module) -> Any:
    return lambda x: lambda: module(x)


def _has_torch_ao() -> bool:
    """Whether this torch has torch.ao, which PyTorch means to give up."""
    try:
        return find_spec("torch.ao.quantization") is not None
    except ImportError:
        return False


def _dynamic(model: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    quantized: nn.Module = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return quantized
