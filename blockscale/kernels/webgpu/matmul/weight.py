"""Quantized weights as the right factor of a product."""

from functools import cache
from math import frexp, gcd

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.resident import Residents
from blockscale.kernels.webgpu.gpu.memory import Memory, upload
from blockscale.kernels.webgpu.matmul.factors import Limits, Right, constants_of
from blockscale.kernels.webgpu.primitives.choices import given
from blockscale.kernels.webgpu.primitives.form import form, memory_of, place
from blockscale.kernels.webgpu.primitives.parts import given_parts
from blockscale.kernels.webgpu.spec import shader_of
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

_EVERY = 1 << 30  # of columns or rows, of a block that has all of them
_QUADS = 8  # of four codes each, that are read one by one where rows are not read by words
_LARGEST_ZERO = 1 << 20  # a zero point for which codes less it stay quick


def decodes(fmt: Format) -> bool:
    """Whether products decode this format; others are dequantized first."""
    rows, size = _sizes(fmt)
    del rows
    return fmt.bits <= 8 and not fmt.block.flat and (size == _EVERY or size % 4 == 0)


def on_device(weight: Operand) -> Operand:
    """A weight with all its tensors on the GPU: those of the CPU are uploaded once, and kept.

    Raises ValueError if its parts do not fit its format.
    """
    if isinstance(weight.codes, WebGPUTensor):
        return _checked(weight)
    return _UPLOADED[weight]


def _checked(weight: Operand) -> Operand:
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{weight.fmt}: a linear weight's codes are [n, k], not {tuple(weight.codes.shape)}"
        )
    stored, shape = form(weight.fmt), (weight.codes.shape[0], weight.size)
    codes = stored.checked_codes(weight.codes, shape, place(weight.codes))
    scale, zero_point, outer = weight.scale, weight.zero_point, weight.outer
    given_parts(stored, shape, scale, zero_point, outer, weight.more, codes)
    return weight


def _upload(weight: Operand) -> Operand:
    weight = _checked(weight)

    def there(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        return WebGPUTensor(upload(part), tuple(part.shape), part.dtype)

    more = [there(part) for part in weight.more] if weight.more else None
    moved = (there(part) for part in weight[:4])
    return Operand(*moved, weight.fmt, weight.size, more)  # type: ignore[arg-type]


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes."""
    return hash(part.contiguous().view(torch.uint8).numpy().tobytes())


_UPLOADED = Residents(_upload, fingerprint)


def codes(weight: Operand) -> Right:
    """A weight on the GPU whose format `decodes`, as the right factor."""
    fmt, f = parse(weight.fmt), form(weight.fmt)
    shape = (weight.codes.shape[0], weight.size)
    parts = given_parts(
        f, shape, weight.scale, weight.zero_point, weight.outer, weight.more, weight.codes
    )
    choices, buffers = given(f, parts)
    own, constants = shader_of(fmt)
    row_bytes = f.row_bytes(weight.size)
    wide = row_bytes % 16 == 0 and fmt.bits in (4, 8)
    table = dict(own)["element"] != "integer"
    if table:
        buffers["values"] = _table(str(fmt))
    rows, size = _sizes(fmt)
    chunk = 32 // fmt.bits if wide else _QUADS
    piece = chunk if size == _EVERY else gcd(size // 4, chunk)
    return Right(
        shape[0],
        dict(own)
        | choices
        | {
            "right": "codes",
            "decode": "table" if table else "integer",
            "chunk": "words" if wide else "any",
        },
        dict(constants) | _constants(fmt, parts) | {"PIECE": piece},
        dict(buffers),
        {"row_bytes": row_bytes, "blocks": -(-weight.size // size)},
        limits_of(fmt),
        memory_of(weight.codes),
        row_bytes,
        "words" if wide else "any",
        chunk,
    )


def _constants(fmt: Format, parts: QParams) -> dict[str, bool | int]:
    rows, size = _sizes(fmt)
    zero = parts.zero_point
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_SIZE": size,
        "HAS_OFFSET": fmt.offset is not None,
        "FLOAT_ZERO": zero is not None and zero.dtype.is_floating_point,
        "ZERO_LIMIT": _LARGEST_ZERO,
        "OUTPUTS_ADJOIN": False,
        **constants_of(limits_of(fmt)),
    }


def _sizes(fmt: Format) -> tuple[int, int]:
    """Rows and columns of a block of a weight [n, k]."""
    rows, columns = fmt.block.sizes_for(2)
    return (_EVERY if rows == WHOLE else rows), (_EVERY if columns == WHOLE else columns)


@cache
def _values(fmt: str) -> Tensor:
    """The value of each code of a format's element, float32 [2^bits]."""
    element = parse(fmt).element
    return element.decode(element.from_bits(torch.arange(1 << element.bits, dtype=torch.uint8)))


@cache
def _table(fmt: str) -> Memory:
    return upload(_values(fmt))


@cache
def limits_of(fmt: Format) -> Limits:
    """The Limits of a format's numbers."""
    values = _values(str(fmt)) if fmt.bits <= 8 else torch.zeros(1)
    finite = values[values.isfinite()].abs().max().item()
    if fmt.asym:
        finite = max(finite, 2.0 * _LARGEST_ZERO)
    most = 2.0 ** frexp(finite)[1]
    return Limits(most, min(2.0**30 / most, 2.0**30))
