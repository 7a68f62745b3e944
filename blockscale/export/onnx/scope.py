"""Nodes of an ONNX graph while they are written: in the graph itself, or in a function's body.

Names of values stand for them, as in ONNX. What a file needs at least, its opset, is noted where a
node or a type asks for it.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

DOMAIN = "blockscale"  # of the functions that a file brings along
LOWEST, HIGHEST = 21, 25  # opsets: below there are no blocks, above no runtime yet

Array = np.ndarray[Any, Any]


class Needs:
    """The lowest opset that holds all that was asked for, and what asked for it."""

    def __init__(self) -> None:
        self.opset, self.because = LOWEST, "blocks and int4 came with it"

    def at_least(self, opset: int, because: str) -> None:
        """Note that something needs this opset."""
        if opset > self.opset:
            self.opset, self.because = opset, because


class File:
    """What the scopes of one file share.

    tensors: initializers (TensorProto); functions: {what it is: FunctionProto}; needs: its opset
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.functions: dict[Hashable, Any] = {}
        self.needs = Needs()
        self._names: set[str] = set()

    def name(self, wanted: str) -> str:
        """`wanted`, or with `_1`, `_2`, … behind it where that is taken."""
        found, count = wanted, 0
        while found in self._names:
            count += 1
            found = f"{wanted}_{count}"
        self._names.add(found)
        return found

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
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """A node of ONNX's operator `kind`; the name of its (first) result.

        results: the names of its results, where they are given.
        """
        from onnx import helper

        names = list(results) or [self._fresh(kind.lower())]
        name = self._fresh(f"{kind}_node")
        self.nodes.append(
            helper.make_node(kind, inputs, names, name=name, domain=domain, **attributes)
        )
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

    def call(
        self,
        key: Hashable,
        name: str,
        inputs: Sequence[str],
        body: Callable[["Scope", list[str]], list[str]],
    ) -> list[str]:
        """A call of a function of the file's own, whose body is written when it is first called.

        key: what distinguishes it from others of its name; name: for people; body: given its scope
        and the names of its inputs, the names of its results
        """
        functions = self.file.functions
        if key not in functions:
            functions[key] = _function(self.file, name, len(inputs), body)
        made = functions[key]
        results = [self._fresh(each) for each in made.output]
        self.op(made.name, *inputs, results=results, domain=DOMAIN)
        return results

    def _fresh(self, kind: str) -> str:
        return self.file.name(f"{self.within}.{kind}" if self.within else kind)


def _function(
    file: File, name: str, count: int, body: Callable[[Scope, list[str]], list[str]]
) -> Any:
    """A FunctionProto; its opset is set when the file is finished."""
    from onnx import helper

    name = file.name(name)
    scope = Scope(file, name)
    inputs = [scope._fresh(f"input{i}") for i in range(count)]
    results = body(scope, inputs)
    return helper.make_function(
        DOMAIN, name, inputs, results, scope.nodes, [helper.make_opsetid("", LOWEST)]
    )
