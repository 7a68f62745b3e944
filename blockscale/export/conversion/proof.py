"""The proof: what was written, read back, has the values of what was to be written, bit for bit."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.untrusted.files import FileError
from blockscale.core.untrusted.names import quoted
from blockscale.export.conversion.meaning import meaning
from blockscale.ops import primitives
from blockscale.ops.pieces import cut
from blockscale.ops.tensor import QTensor

_SLAB = 1 << 18  # elements that are dequantized at a time: they stay in the cache


class Proof(NamedTuple):
    """What was compared: "codes" (and scales, equal ones under one meaning) or "values".

    zeros: how many zeros have another sign, which is no other value
    """

    compared: str
    zeros: int = 0


def prove(name: str, before: QTensor | Tensor, after: QTensor | Tensor) -> Proof:
    """Compare a tensor with what was read back. Raises FileError where a value differs."""
    if isinstance(before, QTensor) and isinstance(after, QTensor) and _same_codes(before, after):
        return Proof("codes")
    if tuple(before.shape) != tuple(after.shape):
        raise FileError(
            f"{quoted(name)}: written was a tensor of shape {list(before.shape)}, and read back "
            f"one of {list(after.shape)}: nothing is kept. This is a bug"
        )
    zeros = wrong = 0
    for one, other in values(before, after):
        if not torch.equal(one.view(torch.int32), other.view(torch.int32)):
            equal = (one == other) | (one.isnan() & other.isnan())
            wrong += int((~equal).sum())
            zeros += int((equal & (one == 0) & (one.signbit() != other.signbit())).sum())
    if wrong:
        raise FileError(
            f"{quoted(name)}: {wrong} values differ from the source's when they are read back: "
            f"nothing is kept. This is a bug"
        )
    return Proof("values", zeros)


class Error(NamedTuple):
    """relative: norm of the difference over that of the values; sqnr: in dB, None without any."""

    relative: float
    sqnr: float | None


def error_of(before: QTensor | Tensor, after: QTensor | Tensor) -> Error:
    """How far the values are from those before."""
    power = noise = 0.0
    for one, other in values(before, after):
        wide = one.reshape(-1).to(torch.float64)
        off = other.reshape(-1).to(torch.float64).sub_(wide)
        power, noise = power + float(wide.dot(wide)), noise + float(off.dot(off))
    relative = (noise / power) ** 0.5 if power else (0.0 if not noise else float("inf"))
    return Error(relative, None if not noise or not power else 10 * _log10(power / noise))


def _log10(ratio: float) -> float:
    return float(torch.tensor(ratio, dtype=torch.float64).log10())


def values(one: QTensor | Tensor, other: QTensor | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 values of two tensors of one shape, a few rows of both at a time."""
    shape = tuple(one.shape)
    count = shape[0] if shape else 1
    row = max(1, one.shape.numel() // max(count, 1))
    step = max(1, _SLAB // row)
    step += -step % 128  # tiles end there
    pieces = [_pieces(each, count, step) for each in (one, other)]
    yield from zip(*pieces, strict=True)


def _pieces(value: QTensor | Tensor, count: int, step: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        value = value if value.ndim else value.reshape(1)
        yield from (value[i : i + step].to(torch.float32) for i in range(0, count, step))
        return
    whole: Tensor | None = None
    operand = value.operand
    for start in range(0, count, step):
        stop = min(start + step, count)
        rows = cut.rows(operand, start, stop) if whole is None else None
        if rows is None:  # such as blocks that run over rows
            whole = value.dequantize() if whole is None else whole
            yield whole[start:stop]
        else:
            yield primitives.dequantize(rows, torch.float32)


def _same_codes(one: QTensor, other: QTensor) -> bool:
    if meaning(one.format) != meaning(other.format) or tuple(one.shape) != tuple(other.shape):
        return False
    parts = [(one.packed, other.packed), *zip(one.qparams, other.qparams, strict=True)]
    return all(a is b is None or _same(a, b) for a, b in parts)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    """Numbers as integers: NaN is equal to itself, and -0 is not 0."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.itemsize])
