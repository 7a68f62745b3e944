# SPDX-License-Identifier: BSD-3-Clause
"""torchao, eager, and compiled where the settings ask for it."""

import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.bench.requests import Call, Encoder, Layer, Peer, Primitive

_COMPILES = "the first call compiles, which is not counted"
_MX = {"mxfp8": "float8_e4m3fn", "mxfp4": "float4_e2m1fn_x2"}
_GROUP = 128


def unavailable() -> str | None:
    """Why it cannot be measured here."""
    missing = importlib.util.find_spec("torchao") is None
    return "torchao is not installed" if missing else None


def primitive(case: Primitive) -> Iterator[Peer]:
    """int8 in groups of 128 with choice of the scale; MX and NVFP4 as its prototypes have them."""
    if case.spelling == f"int8:group{_GROUP}:fp32" and case.op != "fake_quantize":
        yield Peer("torchao int8 eager", lambda: _affine(case.x, case.op))
        if case.compiled and case.op == "quantize":
            yield Peer("torchao int8 compiled", lambda: _compiled(case.x), _COMPILES)
    if case.op != "fake_quantize" and (case.name in _MX or case.name == "nvfp4"):
        yield Peer(f"torchao {case.name} eager", lambda: _block(case))
        compiles = case.device != "cpu" and case.dtype is torch.bfloat16  # what it is made for
        if case.compiled and case.op == "quantize" and compiles:
            yield Peer(f"torchao {case.name} compiled", lambda: _fast_block(case), _COMPILES)


def linear(layer: Layer) -> Iterator[Peer]:
    """int8 weight and dynamic int8 input."""
    yield Peer("torchao int8 dynamic eager", lambda: _module(_dynamic(layer.module())))
    if layer.compiled:
        yield Peer("torchao int8 dynamic compiled", lambda: _fast(layer), _COMPILES)


def model(encoder: Encoder) -> Iterator[Peer]:
    """Every Linear with int8 weight and dynamic int8 input."""
    result = _dynamic
    yield Peer("torchao int8 dynamic eager", lambda: result(copy.deepcopy(encoder.model)))
    if encoder.compiled:
        yield Peer(
            "torchao int8 dynamic compiled",
            lambda: _compile(result(copy.deepcopy(encoder.model))),
            _COMPILES,
        )


@cache
def _part(name: str) -> Any:
    """A module of torchao, which may be missing."""
    return importlib.import_module(f"torchao.{name}")


def _quantize_affine() -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """A function without look-ups, which torch.compile can trace."""
    ao = _part("quantization.quant_primitives")
    choose, quantize, symmetric = (
        ao.choose_qparams_affine,
        ao.quantize_affine,
        ao.MappingType.SYMMETRIC,
    )
    block, limits = (1, _GROUP), (torch.int8, -127, 127)

    def call(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale, zero = choose(x, symmetric, block, *limits)
        return quantize(x, block, scale, zero, *limits), scale, zero

    return call


def _affine(x: Tensor, op: str) -> Call:
    make = _quantize_affine()
    if op == "quantize":
        return lambda: make(x)
    codes, scale, zero = make(x)
    limits = (torch.int8, -127, 127)
    dequantize_affine = _part("quantization.quant_primitives").dequantize_affine
    return lambda: dequantize_affine(codes, (1, _GROUP), scale, zero, *limits, output_dtype=x.dtype)


def _compiled(x: Tensor) -> Call:
    result = _compile(_quantize_affine())
    result(x)  # compiles
    return lambda: result(x)


def _maker(primitive: Primitive) -> Callable[[Tensor], Any]:
    return _nvfp4 if primitive.name == "nvfp4" else _mx(_MX[primitive.name])


def _fast_block(primitive: Primitive) -> Call:
    x, make = primitive.x, _compile(_maker(primitive))
    make(x)  # compiles
    return lambda: make(x)


def _block(primitive: Primitive) -> Call:
    x = primitive.x
    make = _maker(primitive)
    if primitive.op == "quantize":
        return lambda: make(x)
    stored = make(x)
    return lambda: stored.dequantize(x.dtype)


def _mx(name: str) -> Any:
    kind, element = _part("prototype.mx_formats.mx_tensor").MXTensor, getattr(torch, name)
    return lambda x: kind.to_mx(x, element, 32)


def _nvfp4(x: Tensor) -> Any:
    ao = _part("prototype.mx_formats.nvfp4_tensor")
    outer = ao.per_tensor_amax_to_scale(x.abs().max())
    return ao.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=outer)


def _dynamic(model: nn.Module) -> nn.Module:
    ao = _part("quantization")
    ao.quantize_(model, ao.Int8DynamicActivationInt8WeightConfig())
    return model


def _fast(layer: Layer) -> Any:
    module = _compile(_dynamic(layer.module()))

    def bind(x: Tensor) -> Call:
        module(x)  # compiles
        return lambda: module(x)

    return bind


def _compile(what: Any) -> Any:
    return torch.compile(what)


def _module(module: nn.Module) -> Any:
    return lambda x: lambda: module(x)
