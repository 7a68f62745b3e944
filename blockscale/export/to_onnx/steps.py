# SPDX-License-Identifier: BSD-3-Clause
"""The float32 step of each block from its scale as it is stored (docs/numerics.md, section 1.3).

A byte of e8m0 stays a byte, and the codes of a scale of two levels stay codes: the file holds what
is stored, and nodes make the step of it. onnxruntime computes them once, when it loads the file.
"""

import torch
from torch import Tensor

from blockscale.core.block import Block
from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.reference import QParams, step_of
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.export.to_onnx.blocks import expand
from blockscale.export.to_onnx.scope import Scope
from blockscale.export.to_onnx.stored import native, put_bytes, put_tensor


def step(scope: Scope, name: str, fmt: Format, qparams: QParams) -> str:
    """The step of every block [scale's shape], from initializers `<name>.scale`, `<name>.outer`."""
    file, scale, stored = scope.file, fmt.scale, qparams.scale
    if isinstance(scale, PowerOfTwo) and scale.byte:
        power = scope.cast(put_bytes(file, f"{name}.scale", "FLOAT8E8M0", stored), "FLOAT")
        if not fmt.fraction_bits:
            return power
        return scope.op("Mul", power, scope.floats(2.0**-fmt.fraction_bits))
    if isinstance(scale, TwoLevel):
        return _two_levels(scope, name, fmt, scale, qparams)
    if isinstance(scale, CodeScale):  # ONNX has no such type: their values
        return put_tensor(file, f"{name}.scale", scale.step(stored))
    given = put_tensor(file, f"{name}.scale", stored)
    return given if stored.dtype == torch.float32 else scope.cast(given, "FLOAT")


def _two_levels(
    scope: Scope, name: str, fmt: Format, scale: "TwoLevel[Format]", qparams: QParams
) -> str:
    """outer · inner; steps that this product does not give to the bit are stored themselves."""
    assert qparams.outer is not None
    inner, outer = scale.inner, qparams.outer.to(torch.float32)
    codes, spread = scale.values(qparams.scale), inner.block.expand(outer, qparams.scale.shape)
    product = codes / spread if scale.reciprocal else spread * codes
    expected = step_of(qparams, fmt)
    if not torch.equal(product.nan_to_num(-1.0), expected.nan_to_num(-1.0)):
        return put_tensor(scope.file, f"{name}.step", expected)
    coded = values(scope, f"{name}.scale", inner.element, qparams.scale)
    above = put_tensor(scope.file, f"{name}.outer", qparams.outer)
    if qparams.outer.dtype != torch.float32:
        above = scope.cast(above, "FLOAT")
    above = expand(scope, above, inner.block, tuple(qparams.outer.shape), tuple(codes.shape))
    return scope.op("Div", coded, above) if scale.reciprocal else scope.op("Mul", above, coded)


def values(scope: Scope, name: str, element: Element, codes: Tensor) -> str:
    """The values of codes that lie in a byte each: uint8 [...], bit patterns."""
    kind = native(element, scope.file.opset)
    if kind is not None and kind.startswith("FLOAT8"):
        return scope.cast(put_bytes(scope.file, name, kind, codes), "FLOAT")
    stored = put_tensor(scope.file, name, codes)
    return scope.op("Gather", table(scope, element), scope.cast(stored, "INT32"))


def table(scope: Scope, element: Element) -> str:
    """A constant float32 [2^bits]: the value of each bit pattern of an element of up to 8 bits."""
    patterns = torch.arange(2**element.bits, dtype=torch.uint8)
    return scope.constant(element.decode(element.from_bits(patterns)).numpy())


def offset(scope: Scope, name: str, fmt: Format, qparams: QParams) -> tuple[str, Block] | None:
    """The offset of every block and the block that it is of; None in formats without one."""
    if fmt.offset is None or qparams.offset is None:
        return None
    inner, block = fmt.offset.inner, fmt.offset.block or fmt.block
    if inner is None:
        stored = put_tensor(scope.file, f"{name}.offset", qparams.offset)
        if qparams.offset.dtype != torch.float32:
            stored = scope.cast(stored, "FLOAT")
        return stored, block
    assert qparams.offset_outer is not None
    spread = inner.block.expand(qparams.offset_outer.to(torch.float32), qparams.offset.shape)
    meant = fmt.offset.value(qparams.offset, qparams.offset_outer)
    product = inner.element.decode(inner.element.from_bits(qparams.offset)) * spread
    if not torch.equal(product.nan_to_num(-1.0), meant.nan_to_num(-1.0)):  # clamped
        return put_tensor(scope.file, f"{name}.offset", meant), block
    coded = values(scope, f"{name}.offset", inner.element, qparams.offset)
    outer = put_tensor(scope.file, f"{name}.offset_outer", qparams.offset_outer.to(torch.float32))
    shapes = tuple(qparams.offset_outer.shape), tuple(qparams.offset.shape)
    return scope.op("Mul", coded, expand(scope, outer, inner.block, *shapes)), block
