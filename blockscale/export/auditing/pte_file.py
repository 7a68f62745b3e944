# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's files (.pte): constants of the program, and those inside XNNPACK's parts.

They have no names, only types, shapes and bytes. Schemas: executorch 1.4.1, schema/program.fbs and
backends/xnnpack/serialization/runtime_schema.fbs.
"""

import struct

from blockscale.export.auditing.entries import DamagedError, FileTensor, ReadBudget
from blockscale.export.auditing.protobuf import FlatTable

IDENTIFIER = b"ET12"
_TYPES = {
    0: ("uint8", 8), 1: ("int8", 8), 2: ("int16", 16), 3: ("int32", 32), 4: ("int64", 64),
    5: ("float16", 16), 6: ("float32", 32), 7: ("float64", 64), 11: ("bool", 8),
    15: ("bfloat16", 16), 16: ("bits16", 16), 27: ("uint16", 16), 28: ("uint32", 32),
}  # fmt: skip
_XNNPACK = {
    1: ("float32", 32), 2: ("float16", 16), 3: ("qint8", 8), 4: ("quint8", 8), 5: ("qint32", 32),
    6: ("qcint8", 8), 7: ("qcint32", 32), 8: ("qcint4", 4), 9: ("qdint8", 8), 10: ("qbint4", 4),
    12: ("int32", 32), 14: ("bfloat16", 16),
}  # fmt: skip
_LOW = ("qint8", "quint8", "qcint8", "qcint4", "qbint4")
_TENSOR, _NO_OFFSET = 5, 2**64 - 1  # Tensor in KernelTypes; an offset that says "by name"
_DYNAMIC = 9
_GRAPHS = (b"XN00", b"XN01")


class _File:
    """The program, the segments behind it, and the constants that have keys."""

    def __init__(self, data: memoryview):
        self.data, self.budget = data, ReadBudget()
        self.program = FlatTable.root(data, (IDENTIFIER,), self.budget)
        base = struct.unpack_from("<Q", data, 24)[0] if bytes(data[8:12]) == b"eh00" else 0
        self.segments = [
            (base + each.number(0, "Q"), each.number(1, "Q")) for each in self.program.tables(4)
        ]
        for start, size in self.segments:
            if start + size > len(data):
                raise DamagedError(
                    f"a segment of {size:,} bytes at {start:,} ends after the end of the file"
                )
        tables = self.program.tables(7)
        self.sizes = {each.text(0): self.size(each.number(1)) for each in tables}

    def size(self, index: int) -> int:
        """Bytes of a segment."""
        return self._segment(index)[1]

    def content(self, index: int) -> memoryview:
        """The bytes of a segment."""
        start, size = self._segment(index)
        return self.data[start : start + size]

    def _segment(self, index: int) -> tuple[int, int]:
        if index >= len(self.segments):
            raise DamagedError(f"segment {index} is missing")
        return self.segments[index]


def tensors(data: memoryview) -> list[FileTensor]:
    """The constants of a file, named by their place. Raises DamagedError."""
    if len(data) < 32:
        raise DamagedError("it is too short for a program")
    file = _File(data)
    plans = file.program.tables(1)
    if not plans:
        raise DamagedError("it has no method")
    members: list[FileTensor] = []
    for plan in plans:
        method = plan.text(0)
        members += _constants(plan, method)
        for i, delegate in enumerate(plan.tables(7)):
            backend = delegate.text(0)
            if backend != "XnnpackBackend":
                members.append(_unknown(file, delegate, f"{method}.{backend}.{i}", backend))
                continue
            members += _xnnpack(file, _payload(file, delegate), f"{method}.xnnpack{i}")
    return members


def _constants(plan: FlatTable, method: str) -> list[FileTensor]:
    """Tensors of the portable kernels that have data: index 0 means that there is none."""
    results, indices = [], set[int]()
    for value in plan.tables(2):
        if value.number(0, "B") != _TENSOR:
            continue
        tensor = value.table(1)
        if tensor is None or not tensor.number(5) or tensor.number(5) in indices:
            continue
        label, bits = _TYPES.get(tensor.number(0, "b"), ("unknown type", 8))
        shape = tuple(tensor.numbers(2, "i"))
        if tensor.table(6) is not None or any(size < 0 for size in shape):
            continue  # memory that is planned, not data
        indices.add(tensor.number(5))
        stored = FileTensor(f"{method}.constant{tensor.number(5)}", label, shape, bits, 0)
        stored.nbytes = stored.elements * bits // 8
        stored.low = bits <= 16 and label.endswith(("int8", "int16")) and stored.elements > 1
        stored.format = f"{label}, codes or the bytes of scales" if label == "uint8" else label
        stored.reader = "decoded to float by portable kernels, products in float" * stored.low
        results.append(stored)
    return results


def _payload(file: _File, delegate: FlatTable) -> memoryview:
    place = delegate.table(1)
    if place is None:
        raise DamagedError("a delegate has no data")
    index = place.number(1)
    if place.number(0, "b") == 1:
        return file.content(index)
    inline = file.program.tables(3)
    if index >= len(inline):
        raise DamagedError(f"delegate data {index} is missing")
    return inline[index].bytes(0)


def _unknown(file: _File, delegate: FlatTable, name: str, backend: str) -> FileTensor:
    size = len(_payload(file, delegate))
    note = f"the data of {backend} are not inspected"
    return FileTensor(name, "bytes", (size,), 8, size, notes=(note,))


def _xnnpack(file: _File, blob: memoryview, name: str) -> list[FileTensor]:
    """The constants of a graph of XNNPACK's, by what they are quantized as."""
    if len(blob) < 30 or bytes(blob[4:8]) != b"XH00":
        raise DamagedError(f"{name} is not an XNNPACK graph")
    start, size, _, _ = struct.unpack_from("<IIIQ", blob, 10)
    graph = FlatTable.root(blob[start : start + size], _GRAPHS, file.budget)
    constants = graph.tables(8)
    values = [v for each in graph.tables(2) if (v := each.table(1)) is not None]
    quantized = [each.number(0, "B") == 2 for each in graph.tables(2)]
    plain = [v.table(0) if q else v for v, q in zip(values, quantized, strict=False)]
    dynamic = any(v is not None and v.number(0, "h") == _DYNAMIC for v in plain)
    results = []
    for value, whole, is_quantized in zip(plain, values, quantized, strict=False):
        if value is None or not value.number(3):
            continue
        label, bits = _XNNPACK.get(value.number(0, "h"), ("unknown type", 8))
        shape = tuple(value.numbers(2, "I"))
        stored = FileTensor(f"{name}.constant{value.number(3)}", label, shape, bits, 0)
        stored.nbytes = _size(file, constants, value.number(3))
        stored.low = label in _LOW and len(shape) > 1
        if stored.low:
            _quantization(file, stored, whole if is_quantized else None, constants, dynamic)
        results.append(stored)
    return results


def _size(file: _File, constants: list[FlatTable], index: int) -> int:
    if index >= len(constants):
        raise DamagedError(f"constant {index} is missing")
    constant = constants[index]
    if constant.number(0, "Q") == _NO_OFFSET or constant.text(2):
        key = constant.text(2)
        if key not in file.sizes:
            raise DamagedError(f"constant {key!r} is missing")
        return constant.number(1, "Q") or file.sizes[key]
    return constant.number(1, "Q")


def _quantization(
    file: _File,
    stored: FileTensor,
    whole: FlatTable | None,
    constants: list[FlatTable],
    dynamic: bool,
) -> None:
    how = whole.table(2) if whole is not None else None
    kind = 0 if whole is None else whole.number(1, "B")
    names = {1: "per channel", 2: "per tensor", 4: "in groups"}
    stored.format = f"{stored.type} {names.get(kind, '')}".rstrip()
    if how is not None and kind == 1:
        stored.parts = _size(file, constants, how.number(2)) if how.number(2) else 4 * how.count(0)
    if how is not None and kind == 4:
        stored.format = f"{stored.type} in groups of {how.number(2, 'i')}"
        stored.parts = _size(file, constants, how.number(4)) if how.number(4) else 2 * how.count(0)
    inputs = "dynamic input scales" if dynamic else "static input scales"
    stored.reader = f"XNNPACK: in integers; {inputs}"
