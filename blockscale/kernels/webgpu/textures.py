# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in 3-D textures, four elements of a row a texel, and the primitives on them."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.operand import Operand, further, operand
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams
from blockscale.core.untrusted import kind_of
from blockscale.kernels.webgpu.gpu.memory import Memory, upload
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.encode import seed_memory
from blockscale.kernels.webgpu.primitives.form import Form, InTexture, Parts, form, given_parts
from blockscale.kernels.webgpu.spec import known
from blockscale.kernels.webgpu.texture_storage import (
    Texture as Texture,
)
from blockscale.kernels.webgpu.texture_storage import (
    empty,
    layout,
    run,
    texture_of_codes,
)
from blockscale.kernels.webgpu.texture_storage import (
    texture as texture,
)
from blockscale.kernels.webgpu.torch_device import WebGPUTensor


@dataclass(frozen=True, eq=False)
class QuantizedTexture:
    """Codes in a texture, and what stands beside them in buffers.

    codes:   one a component, as bit patterns
    qparams: the scale of each block and what else the format has
    """

    codes: Texture
    qparams: QParams
    fmt: Format

    def operand(self, device: str | torch.device = "cpu") -> Operand:
        """The same with packed codes in linear memory on a device, as ops take it there."""
        size = self.codes.shape[-1] if self.codes.shape else 1
        there = {
            name: part.to(device)
            for name, part in self.qparams._asdict().items()
            if part is not None
        }
        return operand(self.codes.tensor(device), QParams(**there), self.fmt, size)


def quantized(packed: Operand) -> QuantizedTexture:
    """A quantized tensor on the CPU or on "webgpu", with its codes in a texture.

    Raises TypeError for what is no operand, and ValueError for another number of codes than the
    scale's blocks have.
    """
    if not isinstance(packed, Operand):
        raise TypeError(
            f"expected packed codes with their scale as ops take them, found a "
            f"{type(packed).__name__}: pass the `operand` of a QTensor, bs.quantize(x, fmt).operand"
        )
    f = _form_of(packed.fmt)
    codes = texture_of_codes(packed.codes, packed.shape, f.bits)
    return QuantizedTexture(codes, packed.qparams, f.format)


def choose_qparams(x: Texture, fmt: Format | str) -> QParams:
    """The scale of each block and what else the format has, on "webgpu" (numerics.md, 3).

    Raises TypeError for what is no texture, for one that holds no floats and for a format that
    shaders do not know.
    """
    f = _form_of(fmt)
    _check_floats(x)
    if prod(x.shape) == 0:
        choice = reference.choose_qparams(torch.empty(x.shape, dtype=x.dtype), f.format)
        return QParams(**{n: _there(p) for n, p in choice._asdict().items() if p is not None})
    at = layout(x.shape)
    parts = choose(f, InTexture(x.texels, at.width, at.height), x.dtype, x.shape)
    return _qparams(f, parts, x.shape)


def quantize(
    x: Texture,
    fmt: Format | str,
    qparams: QParams | None = None,
    seed: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> QuantizedTexture:
    """Numbers -> codes (docs/numerics.md, section 4); without a scale, x chooses it.

    scale: as stored, on the CPU or on "webgpu": one for each block of the format, of x's rank; a
        scale of one element may have any rank
    zero_point: of the scale's shape and beside it, where the format has one; int32 as a rule
    qparams: all parts at once, as `choose_qparams` gives them; in place of scale and zero_point
    seed: int64 [] or [2] (seed, index of the first element), for stochastic rounding

    Raises as `choose_qparams`, and ValueError for a scale or a seed that does not fit.
    """
    f = _form_of(fmt)
    _check_floats(x)
    words = seed_memory(f, seed)
    choice = _own_parts(f, x.shape, qparams, scale, zero_point) or choose_qparams(x, fmt)
    result = empty(x.shape, f.bits, tuple(f.packed_shape(x.shape)), f.packed_dtype)
    run("quantize", f, x, result, _parts(f, x.shape, choice), words)
    return QuantizedTexture(result, choice, f.format)


def dequantize(q: QuantizedTexture, dtype: torch.dtype = torch.float32) -> Texture:
    """Codes -> values (docs/numerics.md, section 5).

    Raises TypeError for what is no QuantizedTexture, and for another dtype than float32, bfloat16
    and float16.
    """
    if not isinstance(q, QuantizedTexture):
        raise TypeError(
            f"expected a QuantizedTexture, found {kind_of(q)}: make one with "
            "textures.quantize(t, fmt), or with textures.quantized(q.operand) from a QTensor"
        )
    f, shape = _form_of(q.fmt), q.codes.shape
    if dtype not in FLOATS:
        raise TypeError(f"textures must hold float32, bfloat16 or float16, got {dtype}")
    result = empty(shape, 8 * dtype.itemsize, shape, dtype)
    run("dequantize", f, q.codes, result, _parts(f, shape, q.qparams), None)
    return result


def fake_quantize(
    x: Texture,
    fmt: Format | str,
    qparams: QParams | None = None,
    seed: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> Texture:
    """Numbers -> what is left of them after a round trip, in their dtype.

    Arguments and errors as in `quantize`.
    """
    f = _form_of(fmt)
    _check_floats(x)
    words = seed_memory(f, seed)
    choice = _own_parts(f, x.shape, qparams, scale, zero_point) or choose_qparams(x, fmt)
    parts = _parts(f, x.shape, choice)
    result = empty(x.shape, x.bits, x.shape, x.dtype)
    run("fake_quantize", f, x, result, parts, words)
    return result


def _form_of(fmt: Format | str) -> Form:
    fmt = parse(fmt)
    if not known((fmt,), ()):
        raise TypeError(
            f"no shader supports {fmt}: quantize the tensor on the CPU (bs.quantize), "
            "where the reference supports every format"
        )
    return form(fmt.spelling)


def _check_floats(x: object) -> None:
    if not isinstance(x, Texture):
        raise TypeError(
            f"expected a Texture, found {kind_of(x)}: make one with "
            'textures.texture(x) from a tensor on the CPU or on "webgpu"'
        )
    if x.dtype not in FLOATS:
        reference.widen(torch.empty(0, dtype=x.dtype))


def _own_parts(
    f: Form,
    shape: tuple[int, ...],
    qparams: QParams | None,
    scale: Tensor | None,
    zero_point: Tensor | None,
) -> QParams | None:
    """What a caller gives, for `_parts` to check against the format; None where it is nothing."""
    if qparams is not None and not isinstance(qparams, QParams):
        raise TypeError(
            "expected qparams as textures.choose_qparams returns them, found a "
            f"{type(qparams).__name__}: pass tensors by name, scale= and zero_point="
        )
    if scale is None and zero_point is None:
        return qparams
    if qparams is not None:
        raise ValueError(
            f"{f.format}: qparams was passed along with scale or zero_point: pass qparams "
            "alone, or the others"
        )
    if scale is None:
        raise ValueError(f"{f.format}: a zero_point was passed without its scale")
    for part, name in ((scale, "scale"), (zero_point, "zero_point")):
        if part is not None and not isinstance(part, Tensor):
            raise TypeError(
                f"{f.format}: expected a tensor as {name}, found {kind_of(part)}: pass "
                f"what is stored, or qparams="
            )
    if others := [name for name in f.format.parts if name not in ("scale", "zero_point")]:
        raise ValueError(
            f"{f.format}: it also needs {others[0]}: pass everything as qparams=, as "
            "textures.choose_qparams returns it"
        )
    if f.asym != (zero_point is not None):
        raise ValueError(f"{f.format}: {'needs a' if f.asym else 'has no'} zero_point")
    blocks = tuple(f.scale_shape(shape))
    zero = None if zero_point is None else _of_one(zero_point, blocks)
    return QParams(_of_one(scale, blocks), None, zero)


def _of_one(part: Tensor, blocks: tuple[int, ...]) -> Tensor:
    """A part of one element in the rank of the blocks, if there is one; every other as it is."""
    one = part.numel() == prod(blocks) == 1 and tuple(part.shape) != blocks
    return part.reshape(blocks) if one else part


def _parts(f: Form, shape: tuple[int, ...], qparams: QParams) -> Parts:
    scale, outer, zero = qparams[:3]
    return given_parts(f, shape, scale, zero, outer, further(qparams), scale)


def _qparams(f: Form, parts: Parts, shape: tuple[int, ...]) -> QParams:
    """Parts as tensors on "webgpu"."""
    blocks = f.scale_shape(shape)

    def tensor(memory: Memory | None, dtype: torch.dtype | None) -> Tensor | None:
        if memory is None or dtype is None:
            return None
        return WebGPUTensor(memory, blocks, dtype)

    outer = None
    if parts.outer is not None and f.outer_shape is not None:
        outer = WebGPUTensor(parts.outer, f.outer_shape(blocks), f.outer_dtype)
    scale = WebGPUTensor(parts.scale, blocks, f.scale_dtype)
    offset = tensor(parts.offset, f.offset_dtype)
    return QParams(scale, outer, tensor(parts.zero, f.zero_dtype), offset)


def _there(x: Tensor) -> Tensor:
    return WebGPUTensor(upload(x), tuple(x.shape), x.dtype)
