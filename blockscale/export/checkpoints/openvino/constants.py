# SPDX-License-Identifier: BSD-3-Clause
"""The constants of an OpenVINO IR: where their bytes lie in the .bin, and how codes lie in them."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.pack import pack
from blockscale.core.untrusted import quoted
from blockscale.export.checkpoints.openvino.graph import Layer, number, sizes
from blockscale.export.checkpoints.places import Place, packed_rows

# Types that torch has, and others by their bits (openvino/core/type/element_type.hpp)
DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "boolean": torch.bool, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    "f8e8m0": torch.float8_e8m0fnu,
}  # fmt: skip
BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()}
BITS |= {"u1": 1, "u2": 2, "u3": 3, "u4": 4, "i4": 4, "u6": 6, "nf4": 4, "f4e2m1": 4}
# {type: bits of an element in the first two bytes of three, and in the last}
_SPLIT = {"u3": (2, 1), "u6": (4, 2)}
LARGEST = 1 << 46  # bytes


@dataclass(frozen=True)
class Constant:
    """A stored tensor. type: OpenVINO's name of its elements"""

    id: str
    name: str
    type: str
    shape: tuple[int, ...]
    place: Place

    @property
    def elements(self) -> int:
        return prod(self.shape)


def constant(layer: Layer, file: Path, size: int) -> Constant:
    """A Const layer's tensor in a .bin of so many bytes. Raises ValueError where it is not in it.

    Strings and types of the future have a place, too.
    """
    told, named = layer.data, quoted(layer.name)
    kind, shape = told.get("element_type", ""), sizes(told.get("shape", ""))
    start, nbytes = number(told.get("offset", "")), number(told.get("size", ""))
    if start < 0 or nbytes < 0 or start + nbytes > size:
        raise ValueError(f"constant {named} ends at byte {start + nbytes:,} of {size:,}")
    if any(n < 0 for n in shape) or prod(n for n in shape if n) > LARGEST:
        raise ValueError(f"constant {named} has the shape {quoted(told.get('shape', ''))}")
    needed = stored_bytes(kind, prod(shape))
    if needed is not None and nbytes != needed:
        raise ValueError(f"constant {named} {list(shape)} {kind} has {nbytes:,} bytes")
    return Constant(layer.id, layer.name, kind, shape, Place(file, start, nbytes))


def stored_bytes(kind: str, count: int) -> int | None:
    """What so many elements take; None for a type that is not known here."""
    if kind in _SPLIT:
        _, high = _SPLIT[kind]
        return -(-count * high // 8) * 3
    return -(-count * BITS[kind] // 8) if kind in BITS else None


def packed_codes(data: Tensor, kind: str, element: Element, shape: tuple[int, ...]) -> Tensor:
    """The bytes of a constant -> codes as we pack them."""
    if kind == "u1":
        codes = _from_the_top(data, 1).flatten()[: prod(shape)].reshape(shape)
        return pack(element.from_bits(codes), element)
    if kind not in _SPLIT:
        return packed_rows(data, element, shape)
    low, high = _SPLIT[kind]  # in each byte the first element is in the highest bits
    groups = data.reshape(-1, 3)
    count = groups.shape[0] * 8 // high
    below = _from_the_top(groups[:, :2], low).reshape(count)
    above = _from_the_top(groups[:, 2:], high).reshape(count)
    codes = (below | above << low)[: prod(shape)].reshape(shape)
    return pack(element.from_bits(codes), element)


def _from_the_top(data: Tensor, bits: int) -> Tensor:
    """Bytes [n, k] -> their fields [n, k, 8 / bits], the highest bits first."""
    shifts = torch.arange(8 - bits, -1, -bits, dtype=torch.uint8)
    return (data.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
