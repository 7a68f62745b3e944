"""QTensor: a quantized tensor as a plain value, and the functions people call to make one."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from blockscale.core.format import Format
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import TwoLevel
from blockscale.ops import primitives
from blockscale.ops.op import Seed, seed_tensor
from blockscale.ops.shapes import logical_shape


@dataclass(frozen=True, eq=False)
class QTensor:
    """Codes, their scale and the format that says what they mean. A pytree node, not a Tensor.

    packed:     the codes as stored (docs/numerics.md, section 6)
    qparams:    the scale (and outer scale, zero point) as stored
    format:     what they mean
    size:       codes in a row of the last dimension, which packing hides
    """

    packed: Tensor
    qparams: QParams
    format: Format
    size: int

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that was quantized."""
        shape = logical_shape(self.packed, self.qparams.scale, self.size)
        return torch.Size(shape)

    @property
    def codes(self) -> Tensor:
        """The codes, unpacked [shape]: integers as such, minifloats as bit patterns in uint8."""
        codes: Tensor = primitives.unpack(self.packed, str(self.format), self.size)
        return codes.reshape(self.shape)

    @property
    def scale(self) -> "Tensor | QTensor":
        """The stored scale, of the tensor's rank; a QTensor where the format has two levels."""
        stored, outer, _ = self.qparams
        if not isinstance(self.format.scale, TwoLevel):
            return stored
        assert outer is not None
        inner = self.format.scale.inner
        size = stored.shape[-1] if stored.ndim else 1
        return QTensor(primitives.pack(stored, str(inner)), QParams(outer), inner, size)

    @property
    def zero_point(self) -> Tensor | None:
        """The zero points, int32 of the scale's shape, or None where the format is symmetric."""
        return self.qparams.zero_point

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
        scale, outer, zero_point = self.qparams
        values: Tensor = primitives.dequantize(
            self.packed, scale, zero_point, outer, str(self.format), self.size, dtype
        )
        return values

    def to(self, device: torch.device | str) -> "QTensor":
        """The same on another device. Raises TypeError for a dtype: see `dequantize`."""
        if not isinstance(device, torch.device | str | int):
            raise TypeError(
                f"a QTensor moves to a device, not to {device!r}: see dequantize(dtype)"
            )
        moved = [None if part is None else part.to(device) for part in self.qparams]
        return replace(self, packed=self.packed.to(device), qparams=QParams(*moved))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        parts, context = _flatten(self)
        return restore, (context, parts)

    def __repr__(self) -> str:
        place = "" if self.device.type == "cpu" else f", device={str(self.device)!r}"
        return f"QTensor('{self.format}', shape={tuple(self.shape)}, {self.nbytes} bytes{place})"


def restore(context: str, parts: list[Tensor]) -> QTensor:
    """A QTensor from its size and format, "SIZE FORMAT", and its tensors."""
    size, _, text = context.partition(" ")
    fmt = parse(text)
    return QTensor(parts[0], primitives.from_list(parts[1:], fmt), fmt, int(size))


def _flatten(q: QTensor) -> tuple[list[Any], str]:
    return [q.packed, *primitives.to_list(q.qparams)], f"{q.size} {q.format}"


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


def choose_qparams(x: Tensor, fmt: str | Format) -> "tuple[Tensor | QTensor, Tensor | None]":
    """x [...] -> the scale and zero point (None when symmetric) that `quantize` would choose.

    Raises TypeError for a dtype other than float32, bfloat16, float16 and ValueError for a format
    that does not parse or a block that does not fit x (docs/numerics.md, section 3).
    """
    q = quantize(x, _deterministic(parse(fmt)))
    return q.scale, q.zero_point


def quantize(
    x: Tensor,
    fmt: str | Format,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
) -> QTensor:
    """x [...] in `fmt`; x chooses the scale unless one is given (as stored, see QTensor.scale).

    seed: for stochastic rounding; an int, (seed, index of the first element), the same as an
        int64 tensor, or None for one from torch's default generator.
    Raises TypeError for dtypes, ValueError for formats, blocks and scales that do not fit.
    """
    form = parse(fmt)
    text = str(form)
    x = x.detach()  # codes have no gradient; fake_quantize has one
    if scale is None and zero_point is None:
        packed, *parts = primitives.choose_quantize(x, text, _seed(form, seed, x))
        qparams = primitives.from_list(parts, form)
    else:
        qparams = given(form, tuple(x.shape), scale, zero_point)
        packed = primitives.quantize(
            x, qparams.scale, qparams.zero_point, qparams.outer, text, _seed(form, seed, x)
        )
    return QTensor(packed, qparams, form, x.shape[-1] if x.ndim else 1)


def fake_quantize(
    x: Tensor,
    fmt: str | Format,
    scale: "Tensor | QTensor | None" = None,
    zero_point: Tensor | None = None,
    seed: Seed = None,
) -> Tensor:
    """x [...] -> its values after a round trip through `fmt`, in x's dtype.

    The gradient is straight-through: 1 where x is in range, 0 where it saturates (section 5 of
    docs/numerics.md). Arguments and errors as in `quantize`.
    """
    form = parse(fmt)
    qparams: QParams | tuple[None, None, None] = (None, None, None)
    if scale is not None or zero_point is not None:
        qparams = given(form, tuple(x.shape), scale, zero_point)
    stored, outer, zero = qparams
    values: Tensor = primitives.fake_quantize(
        x, stored, zero, outer, str(form), _seed(form, seed, x)
    )
    return values


def given(
    fmt: Format,
    shape: tuple[int, ...],
    scale: "Tensor | QTensor | None",
    zero_point: Tensor | None,
) -> QParams:
    """A caller's scale and zero point for a tensor of `shape`, checked against the format."""
    if scale is None:
        raise ValueError(f"{fmt}: a zero_point was given without the scale it belongs to")
    outer = None
    if isinstance(fmt.scale, TwoLevel):
        if not isinstance(scale, QTensor) or scale.format != fmt.scale.inner:
            raise ValueError(
                f"{fmt}: its scale is a QTensor of format {fmt.scale.inner}, not {_describe(scale)}"
            )
        codes, outer = scale.codes, scale.qparams.scale
        if tuple(outer.shape) != fmt.scale.inner.block.scale_shape(tuple(codes.shape)):
            raise ValueError(f"{fmt}: {scale} has an outer scale of shape {tuple(outer.shape)}")
        scale = codes
    if not isinstance(scale, Tensor):
        raise ValueError(f"{fmt}: its scale is a Tensor, not {_describe(scale)}")
    expected = fmt.block.scale_shape(shape)
    if tuple(scale.shape) != expected or scale.dtype != fmt.scale.dtype:
        raise ValueError(
            f"{fmt}: for a tensor of shape {shape} the stored scale is "
            f"{_dtype(fmt.scale.dtype)} of shape {expected}, not {_describe(scale)}"
        )
    if fmt.asym != (zero_point is not None):
        raise ValueError(f"{fmt}: {'needs a' if fmt.asym else 'has no'} zero_point")
    if zero_point is not None and (
        not isinstance(zero_point, Tensor)
        or tuple(zero_point.shape) != expected
        or zero_point.dtype != torch.int32
    ):
        raise ValueError(
            f"{fmt}: the zero_point is int32 of shape {expected}, not {_describe(zero_point)}"
        )
    return QParams(scale, outer, zero_point)


def from_parts(fmt: Format, size: int, parts: dict[str, Tensor]) -> QTensor:
    """A QTensor from what a file or module stores: codes (packed), scale, outer, zero_point."""
    codes = parts["codes"]
    if codes.dtype != packed_dtype(fmt.element) or codes.shape[-1] != packed_size(
        fmt.element, size
    ):
        raise ValueError(
            f"{fmt}: rows of {size} codes are stored as {_dtype(packed_dtype(fmt.element))} "
            f"[..., {packed_size(fmt.element, size)}], not {_describe(codes)}"
        )
    qparams = QParams(parts["scale"], parts.get("outer"), parts.get("zero_point"))
    return QTensor(codes, qparams, fmt, size)


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{_dtype(value.dtype)} of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, QTensor) else f"a {type(value).__name__}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _deterministic(fmt: Format) -> Format:
    return replace(fmt, rounding="nearest_even") if fmt.rounding == "stochastic" else fmt


def _seed(fmt: Format, seed: Seed, x: Tensor) -> Tensor | None:
    return seed_tensor(seed, x.device) if fmt.rounding == "stochastic" else None
