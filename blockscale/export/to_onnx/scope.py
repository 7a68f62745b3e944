# SPDX-License-Identifier: BSD-3-Clause
"""Nodes of an ONNX graph while they are written.

Names of values stand for them, as in ONNX. What a file needs at least, its opset, is noted where a
node or a type asks for it. All nodes are standard operators in the graph itself: ONNX's model-local
functions would be fewer bytes, but OpenVINO (2026.4) reads none, and onnxruntime (1.31) inlines
them before it does anything else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block
from blockscale.core.element import Element
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.minifloat import Minifloat

LOWEST, RUN, HIGHEST = 21, 25, 28  # opsets: below no blocks; the last onnxruntime runs; of onnx

Array = np.ndarray[Any, Any]


class OpsetNeeds:
    """The lowest opset that holds all that was asked for, and what asked for it."""

    def __init__(self) -> None:
        self.opset, self.because = LOWEST, "blocks and int4 exist since then"

    def at_least(self, opset: int, because: str) -> None:
        """Note that something needs this opset."""
        if opset > self.opset:
            self.opset, self.because = opset, because


class File:
    """What the scopes of one file share.

    tensors: initializers (TensorProto); needs: its opset; transposed: the tables that are stored as
    a product wants them, [k, n], since one reads them as well; opset: what was asked for, or 0;
    most: the opset that scales must not raise, where bytes and a table hold them as well
    """

    def __init__(self, opset: int = 0, most: int = HIGHEST) -> None:
        self.opset, self.most = opset, most
        self.tensors: dict[str, Any] = {}
        self.needs = OpsetNeeds()
        self.transposed: set[str] = set()
        self._by_name: dict[str, list[str]] = {}
        self._names: set[str] = set()

    def name(self, base: str) -> str:
        """`base`, or with `_1`, `_2`, … behind it where that is taken."""
        result, count = base, 0
        while result in self._names:
            count += 1
            result = f"{base}_{count}"
        self._names.add(result)
        return result

    def put(self, tensor: Any) -> str:
        """An initializer (TensorProto); its name, another one where that is taken. An equal tensor
        of the same name is put once: two ops read one weight."""
        base = tensor.name
        for name in self._by_name.get(base, []):
            tensor.name = name
            if self.tensors[name] == tensor:
                return name
        tensor.name = self.name(base)
        self.tensors[tensor.name] = tensor
        self._by_name.setdefault(base, []).append(tensor.name)
        return str(tensor.name)

    def reserve(self, names: Iterable[str]) -> None:
        """Names that values have already."""
        self._names.update(names)


class Scope:
    """Where nodes are written, in the order in which they run.

    file: what it is a part of; within: what names of its values begin with; nodes: NodeProtos
    """

    def __init__(self, file: File, within: str):
        self.file, self.within = file, within
        self.nodes: list[Any] = []
        self._constants: dict[Any, str] = {}

    def op(
        self,
        kind: str,
        *inputs: str,
        results: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """A node of ONNX's operator `kind`; the name of its (first) result.

        results: the names of its results, where they are given.
        """
        from onnx import helper

        names = list(results) or [self._fresh(kind.lower())]
        name = self._fresh(f"{kind}_node")
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names[0]

    def cast(self, x: str, kind: str) -> str:
        """x as another type, by its name in ONNX: `FLOAT`, `INT32`."""
        from onnx import TensorProto

        return self.op("Cast", x, to=TensorProto.DataType.Value(kind))

    def floats(self, *numbers: float) -> str:
        """A constant of float32: a scalar for one number, else a vector."""
        shape = () if len(numbers) == 1 else (len(numbers),)
        return self.constant(np.array(numbers, np.float32).reshape(shape))

    def ints(self, *numbers: int) -> str:
        """A constant vector of int64, as shapes and axes are given."""
        return self.constant(np.array(numbers, np.int64))

    def constant(self, array: Array) -> str:
        """A small constant; equal ones are one."""
        from onnx import numpy_helper

        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            value = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
            self._constants[key] = self.op("Constant", value=value)
        return self._constants[key]

    def _fresh(self, kind: str) -> str:
        return self.file.name(f"{self.within}.{kind}" if self.within else kind)


# A tensor split into its blocks, by ONNX's operators, and put together again.
#
# x [rows, 70] in group32  ->  [rows, 96] padded  ->  [rows, 3, 32], one scale for the last size


Sizes = Sequence[int | None]  # None: any number, known when the file runs


@dataclass(frozen=True)
class BlockedTensor:
    """A tensor in blocks.

    x: its values; axes: those of one block, which have size 1 in the scale; padded: whether there
    are zeros that the tensor does not have
    """

    x: str
    axes: tuple[int, ...]
    padded: bool
    sizes: tuple[int | None, ...]
    blocks: tuple[int, ...]

    def join(self, scope: Scope, values: str) -> str:
        """Values in blocks as the tensor that was split."""
        if not self.padded and all(size in (1, WHOLE) for size in self.blocks):
            return values
        whole = [
            _ceil(n, size) * size if size > 1 and n is not None else n
            for n, size in zip(self.sizes, self.blocks, strict=True)
        ]
        values = scope.op("Reshape", values, scope.ints(*_shape(whole, self.blocks)))
        if not self.padded:
            return values
        axes = [i for i, n in enumerate(self.sizes) if whole[i] != n]
        ends = [self.sizes[i] or 0 for i in axes]
        zeros = [0] * len(axes)
        return scope.op("Slice", values, scope.ints(*zeros), scope.ints(*ends), scope.ints(*axes))


def refusal(block: Block, sizes: Sizes) -> str | None:
    """Why a tensor of these sizes cannot be split into such blocks in a file, or None."""
    if block.flat:
        return f"blocks of {block} run over the flattened tensor: use group{block.flat}"
    axes = [i for i, size in enumerate(block.sizes_for(len(sizes))) if size not in (1, WHOLE)]
    free = [i for i in axes if sizes[i] is None]
    if free:
        return f"blocks of {block} divide dimension {free[0]}, whose size is dynamic: make it fixed"
    behind = [i for i, n in enumerate(sizes) if axes and i > axes[0] and n is None]
    if len(behind) > 1:
        return f"more than one size after dimension {axes[0]} is dynamic: make them fixed"
    return None


def split(scope: Scope, x: str, block: Block, sizes: Sizes) -> BlockedTensor:
    """x of these sizes in its blocks; `refusal` has said that it can be."""
    blocks = block.sizes_for(len(sizes))
    whole, parts, axes = list(sizes), list[int | None](), list[int]()
    for i, (n, size) in enumerate(zip(sizes, blocks, strict=True)):
        if size > 1:
            assert n is not None
            whole[i] = _ceil(n, size) * size
            axes.append(len(parts) + 1)
            parts += [_ceil(n, size), size]
        else:
            if size == WHOLE:
                axes.append(len(parts))
            parts.append(n)
    padded = whole != list(sizes)
    if padded:
        ends = [0 if n is None else n - (sizes[i] or 0) for i, n in enumerate(whole)]
        x = scope.op("Pad", x, scope.ints(*[0] * len(sizes), *ends))
    if len(parts) > len(sizes):
        x = scope.op("Reshape", x, scope.ints(*_shape(parts, blocks)))
    return BlockedTensor(x, tuple(axes), padded, tuple(sizes), blocks)


def _shape(parts: Sizes, blocks: Sequence[int]) -> list[int]:
    """Reshape's second input: 0 keeps a size in its place, -1 computes the remaining one."""
    first = next((i for i, size in enumerate(blocks) if size > 1), len(blocks))
    return [0 if i < first else (-1 if n is None else n) for i, n in enumerate(parts)]


def _ceil(n: int, size: int) -> int:
    return -(-n // size)


# Tensors of a file: codes in ONNX's own types where it has them, bytes where it has not.
#
# ONNX packs 6-bit, 4-bit and 2-bit numbers over the flattened tensor, the first in the lowest bits;
# ours are packed row by row (docs/numerics.md, section 6), the same where rows fill whole bytes.


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


def holds(file: File, kind: str) -> bool:
    """Whether a file may have a type."""
    return _NEEDS.get(kind, LOWEST) <= file.most


def put_bytes(file: File, name: str, kind: str, codes: Tensor) -> str:
    """uint8 [...] as the bytes of another type of a byte each: FLOAT8E8M0."""
    return put(file, name, kind, tuple(codes.shape), codes.contiguous().numpy().tobytes())
