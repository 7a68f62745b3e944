# SPDX-License-Identifier: BSD-3-Clause
"""QTensor: a quantized tensor as a plain value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blockscale.core import cuts
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Value, operand
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.core.torch_private import pytree
from blockscale.core.untrusted import kind_of
from blockscale.ops import primitives
from blockscale.ops.fused.products import matmul


@dataclass(frozen=True, eq=False)
class QTensor:
    """Codes, their scale and the format that says what they mean. A pytree node, not a Tensor.

    packed:     the codes as stored (docs/numerics.md, section 6)
    qparams:    the scale (and outer scale, zero point) as stored
    format:     what they mean
    size:       codes in a row of the last dimension, which packing hides; sizes are in `shape`
    """

    packed: Tensor
    qparams: QParams
    format: Format
    size: int

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that was quantized."""
        return torch.Size(self.operand.shape)

    @property
    def operand(self) -> Operand:
        """The same as ops take it."""
        return operand(self.packed, self.qparams, self.format.spelling, self.size)

    @property
    def codes(self) -> Tensor:
        """The codes, unpacked [shape]: integers as such, minifloats as bit patterns in uint8."""
        codes: Tensor = primitives.unpack(self.packed, str(self.format), self.size)
        return codes.reshape(self.shape)

    @property
    def scale(self) -> "Tensor | QTensor":
        """The stored scale, of the tensor's rank; a QTensor where the format has two levels."""
        stored, outer = self.qparams[:2]
        if not isinstance(self.format.scale, TwoLevel):
            return stored
        assert outer is not None
        parts = QParams(outer, offset=self.qparams.scale_offset)
        return _of_codes(stored, parts, self.format.scale.inner)

    @property
    def zero_point(self) -> Tensor | None:
        """The zero points [scale's shape], int32 or floats; None where the format has none."""
        return self.qparams.zero_point

    @property
    def offset(self) -> "Tensor | QTensor | None":
        """The offset of each block; a QTensor where it is quantized, None where there is none."""
        stored, outer = self.qparams.offset, self.qparams.offset_outer
        offset = self.format.offset
        if offset is None or offset.inner is None or stored is None or outer is None:
            return stored
        return _of_codes(stored, QParams(outer), offset.inner)

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.packed.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points as stored."""
        return sum(part.nbytes for part in (self.packed, *primitives.to_list(self.qparams)))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values [shape] in `dtype`."""
        values: Tensor = primitives.dequantize(self.operand, dtype)
        return values

    def __matmul__(self, other: "QTensor | Tensor") -> Tensor:
        """self [..., m, k] @ other [..., k, n], codes or floats -> float32 [..., m, n].

        The product of the values, as `torch.matmul` of both dequantized, by the fused op `matmul`.
        """
        if not isinstance(other, QTensor | Tensor):
            return NotImplemented
        return _product(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        """other [..., m, k] floats @ self [..., k, n] -> float32 [..., m, n]."""
        return _product(other, self) if isinstance(other, Tensor) else NotImplemented

    # --- what a tensor answers, of the values: codes and scales are moved and copied together

    @property
    def dtype(self) -> torch.dtype:
        """Of the values as `dequantize()` gives them, float32: codes have a format and no dtype."""
        return torch.float32

    @property
    def ndim(self) -> int:
        """The number of dimensions of the tensor that was quantized."""
        return len(self.shape)

    def dim(self) -> int:
        """The same as `ndim`."""
        return self.ndim

    def numel(self) -> int:
        """The number of values."""
        return self.shape.numel()

    def to(
        self,
        device: "torch.device | str | int | torch.dtype | Tensor | QTensor | None" = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> "QTensor":
        """The same on another device, in the forms of `Tensor.to`.

        device: also a tensor, whose device and dtype are meant, or a dtype alone
        dtype: this one's `dtype`, as there is no other
        non_blocking, copy: as of torch.Tensor.to
        Raises TypeError for a dtype other than `dtype`: see `dequantize`.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        elif isinstance(device, Tensor | QTensor):
            dtype = device.dtype
            device = device.device
        if dtype not in (None, self.dtype):
            raise TypeError(
                f"a QTensor can move to a device, not to {dtype}: for another dtype use "
                "dequantize(dtype)"
            )
        if not isinstance(device, torch.device | str | int | None):
            raise TypeError(f"expected a device, found {type(device).__name__} {device!r}")
        place = self.device if device is None else device
        return self._each(lambda part: part.to(place, non_blocking=non_blocking, copy=copy))

    def cpu(self) -> "QTensor":
        """The same on the CPU."""
        return self.to("cpu")

    def cuda(
        self, device: torch.device | str | int | None = None, non_blocking: bool = False
    ) -> "QTensor":
        """The same on a CUDA device, by default the current one; non_blocking as of torch's."""
        return self._each(lambda part: part.cuda(device, non_blocking=non_blocking))

    def detach(self) -> "QTensor":
        """The same codes and scales, without gradients."""
        return self._each(Tensor.detach)

    def clone(self) -> "QTensor":
        """A copy of codes and scales."""
        return self._each(Tensor.clone)

    def narrow(self, dim: int, start: int, length: int) -> "QTensor":
        """Indices start to start + length along `dim`, with the values that they have here.

        Between blocks (`blockscale.core.cuts.unit`) the format stays; elsewhere it has smaller
        blocks, whose scales are repeated. Raises ValueError where codes share a byte or blocks do
        not lie along the dimension (docs/scale.md).
        """
        part = cuts.cut(self.operand, dim, start, start + length)
        return QTensor(part.codes, part.qparams, part.format, part.size)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "QTensor":
        """With each of its tensors changed."""
        parts = [None if part is None else change(part) for part in self.qparams]
        return replace(self, packed=change(self.packed), qparams=QParams(*parts))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        parts, context = _flatten(self)
        return restore, (context, parts)

    def __repr__(self) -> str:
        place = "" if self.device.type == "cpu" else f", device={str(self.device)!r}"
        return f"QTensor('{self.format}', shape={tuple(self.shape)}, {self.nbytes} bytes{place})"


def _product(a: QTensor | Tensor, b: QTensor | Tensor) -> Tensor:
    members = [
        Value(*each.operand) if isinstance(each, QTensor) else Value(each) for each in (a, b)
    ]
    [y] = matmul(*members)
    return y


def _of_codes(stored: Tensor, parts: QParams, fmt: Format) -> QTensor:
    """Scales or offsets, whose codes are stored a byte each, as a QTensor."""
    codes = fmt.element.from_bits(stored)
    size = stored.shape[-1] if stored.ndim else 1
    return QTensor(primitives.pack(codes, str(fmt)), parts, fmt, size)


def restore(context: str, parts: list[Tensor]) -> QTensor:
    """A QTensor from its size and format, "SIZE FORMAT", and its tensors."""
    size, _, text = context.partition(" ")
    fmt = parse(text)
    return QTensor(parts[0], primitives.from_list(parts[1:], fmt), fmt, int(size))


def _flatten(q: QTensor) -> tuple[list[Any], str]:
    return [q.packed, *primitives.to_list(q.qparams)], f"{int(q.size)} {q.format}"


def _flatten_with_keys(q: QTensor) -> tuple[list[tuple[Any, Any]], str]:
    parts, context = _flatten(q)
    return [(pytree.SequenceKey(i), part) for i, part in enumerate(parts)], context


def _unflatten(leaves: Any, context: str) -> QTensor:
    return restore(context, list(leaves))


pytree.register_pytree_node(
    QTensor,
    _flatten,
    _unflatten,
    serialized_type_name="blockscale.QTensor",
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([restore])  # torch.load reads a QTensor with weights_only


def from_parts(fmt: Format, size: int, parts: dict[str, Tensor]) -> QTensor:
    """A QTensor from what a file or module stores: codes (packed), and Format.parts."""
    codes = parts["codes"]
    if codes.dtype != packed_dtype(fmt.element) or codes.shape[-1] != packed_size(
        fmt.element, size
    ):
        raise ValueError(
            f"{fmt}: rows of {size} codes are stored as "
            f"{dtype_name(packed_dtype(fmt.element))} [..., "
            f"{packed_size(fmt.element, size)}], found {describe(codes)}"
        )
    return QTensor(codes, QParams(**{name: parts[name] for name in fmt.parts}), fmt, size)


def join(parts: Sequence[QTensor], dim: int) -> QTensor:
    """Parts of a tensor of one format, one after another along `dim`, in memory of their own.

    What every part has whole, such as an outer scale, is the first one's.
    """
    first = parts[0]
    dim %= first.ndim
    cut = cuts.placements(first.format, first.shape, dim)

    def whole(name: str, each: list[Tensor]) -> Tensor:
        at = cut[name]
        return each[0].clone() if at is None else torch.cat(each, at)

    every = [{"codes": part.packed, **part.qparams._asdict()} for part in parts]
    names = ("codes", *first.format.parts)
    by_name = {name: whole(name, [tensors[name] for tensors in every]) for name in names}
    size = sum(part.size for part in parts) if dim == first.ndim - 1 else first.size
    return from_parts(first.format, size, by_name)


def describe(value: object) -> str:
    """A value as error messages tell of it."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)} of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, QTensor) else kind_of(value)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype without its `torch.`."""
    return str(dtype).removeprefix("torch.")
