"""Quantized weights as the right factor of a product."""

from functools import cache
from math import frexp, gcd

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.kernels.resident import Residents
from blockscale.kernels.webgpu.gpu.launch import Window
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, upload
from blockscale.kernels.webgpu.gpu.shader import Constant
from blockscale.kernels.webgpu.matmul.factors import Limits, Places, Right, constants_of, floats
from blockscale.kernels.webgpu.primitives.decode import decode
from blockscale.kernels.webgpu.primitives.form import Form, form, memory_of, place
from blockscale.kernels.webgpu.primitives.parts import Parts, given_parts, reading
from blockscale.kernels.webgpu.spec import shader_of
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor

_EVERY = 1 << 30  # of columns or rows, of a block that has all of them
_QUADS = 8  # of four codes each, that are read one by one where rows are not read by words
_LARGEST_ZERO = 1 << 20  # a zero point for which codes less it stay quick


def decodes(fmt: Format, inner: int) -> bool:
    """Whether products decode weights [n, inner] of this format; others become floats first."""
    size = _sizes(fmt, inner)[1]
    own_blocks = fmt.offset is not None and fmt.offset.block is not None
    return fmt.bits <= 8 and not own_blocks and size > 0 and (size == _EVERY or size % 4 == 0)


def right_of(weight: Operand) -> Right:
    """A weight [n, k] as the right factor. One on the CPU is uploaded once, and kept.

    Raises ValueError if its parts do not fit its format.
    """
    return _made(weight) if isinstance(weight.codes, WebGPUTensor) else _UPLOADED[weight]


def _made(weight: Operand) -> Right:
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{weight.fmt}: a linear weight's codes are [n, k], not {tuple(weight.codes.shape)}"
        )
    f, shape, packed = form(weight.fmt), (weight.codes.shape[0], weight.size), weight.codes
    packed = f.checked_codes(packed, shape, place(packed))
    parts = given_parts(
        f, shape, weight.scale, weight.zero_point, weight.outer, weight.more, packed
    )
    if not packed.numel():
        return floats(allocate(0), torch.float32, shape[0], Places(0, 0, shape[1], 1))
    if decodes(f.format, weight.size):
        return _codes(f, memory_of(packed), shape, parts)
    dense = decode(f, memory_of(packed), shape, parts, torch.float32)
    return floats(dense, torch.float32, shape[0], Places(0, 0, shape[1], 1))


def _fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes."""
    return hash(part.contiguous().view(torch.uint8).numpy().tobytes())


_UPLOADED = Residents(_made, _fingerprint)


def _codes(f: Form, packed: Memory, shape: tuple[int, int], parts: Parts) -> Right:
    """Codes of a format that `decodes`."""
    fmt = f.format
    choices, memories = reading(f, parts, shape)
    buffers: dict[str, Memory | Window] = {**memories}
    own, constants = shader_of(fmt)
    row_bytes, size = f.row_bytes(shape[1]), _sizes(fmt, shape[1])[1]
    wide = row_bytes % 16 == 0 and fmt.bits in (4, 8)
    table = dict(own)["element"] != "integer"
    if table:
        buffers["values"] = _table(str(fmt))
    chunk = 32 // fmt.bits if wide else _QUADS
    choices |= {
        "right": "codes",
        "decode": "table" if table else "integer",
        "chunk": "words" if wide else "any",
    }
    piece = chunk if size == _EVERY else gcd(size // 4, chunk)
    return Right(
        shape[0],
        dict(own) | choices,
        dict(constants) | _constants(fmt, shape[1]) | {"PIECE": piece},
        buffers,
        {"row_bytes": row_bytes, "blocks": -(-shape[1] // size)},
        limits_of(fmt),
        packed,
        row_bytes,
        choices["chunk"],
        chunk,
    )


def _constants(fmt: Format, inner: int) -> dict[str, Constant]:
    rows, size = _sizes(fmt, inner)
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_SIZE": size,
        "HAS_OFFSET": fmt.offset is not None,
        "FLOAT_ZERO": fmt.zero is not None,
        "ZERO_LIMIT": _LARGEST_ZERO,
        "OUTPUTS_ADJOIN": False,
        **constants_of(limits_of(fmt)),
    }


def _sizes(fmt: Format, inner: int) -> tuple[int, int]:
    """Rows and columns of a block of a weight [n, inner]; 0 columns where it is no rectangle."""
    block = fmt.block
    if block.flat:
        whole = not block.strided and inner % block.flat == 0
        return 1, block.flat if whole else 0
    rows, columns = block.sizes_for(2)
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
