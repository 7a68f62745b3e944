# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a file: codes in ONNX's own types where it has them, bytes where it has not.

ONNX packs 6-bit, 4-bit and 2-bit numbers over the flattened tensor, the first in the lowest bits;
ours are packed row by row (docs/numerics.md, section 6), the same where rows fill whole bytes.
"""

from math import prod

import numpy as np
import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat
from blockscale.export.to_onnx.scope import File

_FLOAT8 = {"e4m3": "FLOAT8E4M3FN", "e5m2": "FLOAT8E5M2"}
_SMALL = {"e2m1": "FLOAT4E2M1", "e2m3": "FLOAT6E2M3", "e3m2": "FLOAT6E3M2"}
_ALL = 28  # the opset that has float6
_NEEDS = {
    "INT2": 25, "UINT2": 25, "FLOAT8E8M0": 24, "FLOAT4E2M1": 23, "FLOAT6E2M3": _ALL,
    "FLOAT6E3M2": _ALL,
}  # fmt: skip
_FLOATS = {torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}


def native(element: Element, opset: int = 0) -> str | None:
    """The type that ONNX has for an element, and that QuantizeLinear takes; None without one.

    opset: what was asked for. e2m1, e2m3 and e3m2 have types where that is 28, which no onnxruntime
    reads yet (1.31): with float4, which is older, it computes nothing on a CPU either.
    """
    if type(element) is Integer and element.bits in (2, 4, 8, 16):  # ternary is one, too
        return element.name.upper()
    if isinstance(element, Minifloat):
        own = _FLOAT8 | (_SMALL if opset >= _ALL else {})
        return own.get(element.name)
    return None


def put(
    file: File, name: str, kind: str, dims: tuple[int, ...], raw: bytes, about: str = ""
) -> str:
    """An initializer of ONNX's type `kind` from its bytes; its name. about: its description"""
    from onnx import TensorProto

    if kind in _NEEDS:
        file.needs.at_least(_NEEDS[kind], f"{name} is stored as {kind.lower()}")
    type_ = TensorProto.DataType.Value(kind)
    return file.put(
        TensorProto(name=name, data_type=type_, dims=dims, raw_data=raw, doc_string=about)
    )


def put_codes(file: File, name: str, element: Element, codes: Tensor) -> str:
    """Codes [...], one a tensor element, in the element's own type of ONNX."""
    kind = native(element, file.opset)
    assert kind is not None
    if element.bits >= 8:
        raw = codes.contiguous().numpy()
        raw = raw if element.bits == 8 else raw.astype("<u2")
        return put(file, name, kind, tuple(codes.shape), raw.tobytes())
    patterns = element.to_bits(codes).flatten().numpy()
    return put(file, name, kind, tuple(codes.shape), _packed(patterns, element.bits))


def _packed(patterns: np.ndarray, bits: int) -> bytes:
    """Patterns of 2, 4 or 6 bits one behind another, the first in a byte's lowest bits."""
    each = patterns.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(each, bitorder="little").tobytes()


def put_zeros(
    file: File, name: str, element: Element, zero_point: Tensor | None, dims: tuple[int, ...]
) -> str:
    """Zero points in the type of the codes; zeros without any, since runtimes look for them."""
    if zero_point is None:
        kind = native(element, file.opset)
        assert kind is not None
        return put(file, name, kind, dims, bytes((prod(dims) * element.bits + 7) // 8))
    return put_codes(file, name, element, zero_point.reshape(dims).to(element.code_dtype))


def put_tensor(file: File, name: str, tensor: Tensor, about: str = "") -> str:
    """Floats or integers as they are. about: the description, as of packed codes their format"""
    tensor = tensor.detach().contiguous()
    if tensor.dtype in _FLOATS:
        kind = _FLOATS[tensor.dtype]
        whole = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
        return put(file, name, kind, tuple(tensor.shape), whole.numpy().tobytes(), about)
    kind = str(tensor.dtype).removeprefix("torch.").upper()
    return put(file, name, kind, tuple(tensor.shape), tensor.numpy().tobytes(), about)


def put_bytes(file: File, name: str, kind: str, codes: Tensor) -> str:
    """uint8 [...] as the bytes of another type of a byte each: FLOAT8E8M0."""
    return put(file, name, kind, tuple(codes.shape), codes.contiguous().numpy().tobytes())
