# SPDX-License-Identifier: BSD-3-Clause
"""Quantized weights as the right factor of a product."""

from collections.abc import Callable
from functools import cache
from math import frexp, gcd
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.numbers import lowered, plain_levels
from blockscale.kernels.resident import Residents, tensors
from blockscale.kernels.webgpu.gpu.launch import Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.matmul import (
    Limits,
    MatrixPlaces,
    Right,
    RightRoles,
    constants_of,
    floats,
)
from blockscale.kernels.webgpu.primitives.encode import decode
from blockscale.kernels.webgpu.primitives.form import (
    Form,
    StoredParams,
    form,
    given_parts,
    memory_of,
    place,
    reading,
)
from blockscale.kernels.webgpu.spec import bits_of, shader_of
from blockscale.kernels.webgpu.torch_device import WebGPUTensor, is_whole

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
    if not isinstance(weight.codes, WebGPUTensor):
        return _UPLOADED[weight]
    parts = [part for part in tensors(weight) if part is not None]
    if all(isinstance(part, WebGPUTensor) and is_whole(part) for part in parts):
        return _THERE[weight].right()
    return _make(weight).right()


class _There(NamedTuple):
    """What is known of a weight on the GPU, whose memory it refers to.

    direct: as it is multiplied; None where it becomes floats first, anew for each product
    """

    direct: Right | None
    dense: Callable[[], Right]

    def right(self) -> Right:
        """The right factor."""
        return self.direct or self.dense()


def _make(weight: Operand) -> _There:
    if weight.codes.ndim != 2:
        raise ValueError(
            f"{weight.fmt}: a linear weight's codes must be [n, k], found "
            f"{tuple(weight.codes.shape)}"
        )
    f, shape, packed = form(weight.fmt), (weight.codes.shape[0], weight.size), weight.codes
    packed = f.checked_codes(packed, shape, place(packed))
    parts = given_parts(
        f, shape, weight.scale, weight.zero_point, weight.outer, weight.more, packed
    )
    there, numbers = memory_of(packed), shape[0] * shape[1]

    def dense() -> Right:
        values = decode(f, there, shape, parts, torch.float32) if numbers else allocate(0)
        return floats(values, torch.float32, shape[0], MatrixPlaces(0, 0, shape[1], 1))

    if not (decodes(f.format, shape[1]) and numbers):
        return _There(None, dense)
    return _There(right_of_codes(f, there, shape, *reading(f, parts, shape)), dense)


def _fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes or, on the GPU, with its memory."""
    if isinstance(part, WebGPUTensor):
        return id(part.memory)
    return hash(part.contiguous().view(torch.uint8).numpy().tobytes())


_UPLOADED: Residents[Right] = Residents(lambda weight: _make(weight).right(), _fingerprint)
_THERE = Residents(_make, _fingerprint)


def right_of_codes(
    f: Form, packed: Memory, shape: tuple[int, int], stored: StoredParams, beside: dict[str, Memory]
) -> Right:
    """Codes [n, k] of a format that `decodes`; stored, beside: what `form.reading` gives of it."""
    fmt = f.format
    buffers: dict[str, Memory | Window] = dict(beside)
    own, constants = shader_of(fmt)
    row_bytes, size = f.row_bytes(shape[1]), _sizes(fmt, shape[1])[1]
    decode, factor = _decoding(fmt)
    if decode == "table":
        buffers["values"] = _table(str(fmt))
    step, levels = _levels(fmt)
    chunk, quads, piece = _chunk(fmt.bits, row_bytes, size)
    return Right(
        shape[0],
        RightRoles("codes", format=own, stored=stored, decode=decode, chunk=chunk, fast_step=step),
        dict(constants)
        | _constants(fmt, shape[1])
        | {"PIECE": piece, "VALUE_FACTOR": bits_of(factor)}
        | levels,
        buffers,
        {"row_bytes": row_bytes, "blocks": -(-shape[1] // size)},
        limits_of(fmt),
        packed,
        row_bytes,
        chunk,
        quads,
    )


def _chunk(bits: int, row_bytes: int, size: int) -> tuple[str, int, int]:
    """How few rows read codes: by which part, so many quads at once, of which share a block."""
    quads = 32 // bits
    together = quads if size == _EVERY else gcd(size // 4, quads)
    if bits in (4, 8) and row_bytes % 16 == 0 and together % (8 // bits) == 0:
        return "words", quads, together
    return "any", _QUADS, _QUADS if size == _EVERY else gcd(size // 4, _QUADS)


def _decoding(fmt: Format) -> tuple[str, float]:
    """Which part of shaders decodes elements, and how many times too small its values are."""
    numbers = lowered(fmt).element
    if numbers.family == "integer":
        return "integer", 1.0
    if numbers.family == "minifloat" and _is_half(numbers) and widened_exactly():
        return "halves", 2.0 ** (15 - numbers.bias)
    return "table", 1.0


def _levels(fmt: Format) -> tuple[str, dict[str, Constant]]:
    """Which part of shaders makes a step of a stored scale quickly, and its constants."""
    inner = lowered(fmt).inner
    if inner is None or not isinstance(fmt.scale, TwoLevel) or not plain_levels(fmt.scale):
        return "exact", {}
    if inner.family != "minifloat" or inner.bits != 8 or not _is_half(inner):
        return "exact", {}
    if not widened_exactly():
        return "exact", {}
    factor = bits_of(2.0 ** (15 - inner.bias))
    return "halves", {"INNER_FACTOR": factor, "INNER_ONE_NAN": _one_nan(inner)}


def _is_half(numbers: ElementNumbers) -> bool:
    """Whether float16 has an element's numbers, and its NaN, at another exponent."""
    exponent = numbers.bits - 1 - numbers.mbits
    if exponent > 5:
        return False
    largest = (1 << (numbers.bits - 1)) - 1
    reserved = largest - numbers.max_code
    if exponent == 5:  # float16 reserves all codes of the largest exponent
        return reserved == 1 << numbers.mbits
    return reserved == 0 or _one_nan(numbers)


def _one_nan(numbers: ElementNumbers) -> bool:
    """Whether the magnitude of all ones, of eight bits, is the only one that is no number."""
    return numbers.bits == 8 and numbers.max_code == 126 and numbers.bits - 1 - numbers.mbits < 5


def _constants(fmt: Format, inner: int) -> dict[str, Constant]:
    rows, size = _sizes(fmt, inner)
    return {
        "BLOCK_ROWS": rows,
        "BLOCK_SIZE": size,
        "HAS_OFFSET": fmt.offset is not None,
        "FLOAT_ZERO": fmt.zero is not None,
        "ZERO_LIMIT": _LARGEST_ZERO,
        "ONE_NAN": _one_nan(lowered(fmt).element),
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


# Whether the device widens float16 exactly, subnormals included: asked of it once.


_COUNT = 1 << 16


@cache
def widened_exactly() -> bool:
    """Whether all float16 that are numbers become the same float32."""
    patterns = torch.arange(_COUNT, dtype=torch.int32).to(torch.int16)
    result = allocate(4 * _COUNT)
    launch(
        Shader("kernels/copies/widen"),
        {"source": upload(patterns), "result": result},
        {"count": _COUNT // 2},
        _COUNT // 2 // 256,
    )
    match_ = download(result, (_COUNT,), torch.float32)
    expected = patterns.view(torch.float16).to(torch.float32)
    numbers = ~expected.isnan()
    same = match_.view(torch.int32)[numbers] == expected.view(torch.int32)[numbers]
    return bool(same.all()) and bool(match_[~numbers].isnan().all())
