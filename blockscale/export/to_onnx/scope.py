# SPDX-License-Identifier: BSD-3-Clause
"""Nodes of an ONNX graph while they are written.

Names of values stand for them, as in ONNX. What a file needs at least, its opset, is noted where a
node or a type asks for it. All nodes are standard operators in the graph itself: ONNX's model-local
functions would be fewer bytes, but OpenVINO (2026.4) reads none, and onnxruntime (1.31) inlines
them before it does anything else.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

LOWEST, RUN, HIGHEST = 21, 25, 28  # opsets: below no blocks; the last onnxruntime runs; of onnx

Array = np.ndarray[Any, Any]


class Needs:
    """The lowest opset that holds all that was asked for, and what asked for it."""

    def __init__(self) -> None:
        self.opset, self.because = LOWEST, "blocks and int4 exist since then"

    def at_least(self, opset: int, because: str) -> None:
        """Note that something needs this opset."""
        if opset > self.opset:
            self.opset, self.because = opset, because


class File:
    """What the scopes of one file share.

    tensors: initializers (TensorProto); needs: its opset; turned: the tables that are stored as a
    product wants them, [k, n], since one reads them as well; opset: what was asked for, or 0
    """

    def __init__(self, opset: int = 0) -> None:
        self.opset = opset
        self.tensors: dict[str, Any] = {}
        self.needs = Needs()
        self.turned: set[str] = set()
        self._called: dict[str, list[str]] = {}
        self._names: set[str] = set()

    def name(self, wanted: str) -> str:
        """`wanted`, or with `_1`, `_2`, … behind it where that is taken."""
        found, count = wanted, 0
        while found in self._names:
            count += 1
            found = f"{wanted}_{count}"
        self._names.add(found)
        return found

    def put(self, tensor: Any) -> str:
        """An initializer (TensorProto); its name, another one where that is taken. An equal tensor
        of the same name is put once: two ops read one weight."""
        wanted = tensor.name
        for name in self._called.get(wanted, []):
            tensor.name = name
            if self.tensors[name] == tensor:
                return name
        tensor.name = self.name(wanted)
        self.tensors[tensor.name] = tensor
        self._called.setdefault(wanted, []).append(tensor.name)
        return str(tensor.name)

    def taken(self, names: Iterable[str]) -> None:
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
