# SPDX-License-Identifier: BSD-3-Clause
"""Where the numbers of a weight are that was read, and the tensors that have them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.torch_private import pytree, wrapper_subclass
from blockscale.kernels.registry import batch_invariant
from blockscale.ops.batch_rows import check_rows


@dataclass(eq=False)
class Source:
    """Where the numbers of a WeightTensor are.

    name:       of the parameter in its model, for errors; may be empty
    operand:    its codes as they are stored; None where only the floats are right
    layout:     of the operand (blockscale.core.pack)
    transposed: whether the tensor is the operand with its last two dimensions exchanged
    dense:      gives the floats, in the tensor's dtype
    owner:      the module that holds the codes
    rows:       how rows are quantized that are multiplied by it; None: they are not
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    name: str
    operand: Operand | None
    layout: str
    transposed: bool
    dense: Callable[[], Tensor]
    owner: Any = None
    value: Tensor | None = None
    rows: "RowFormat | None" = None

    def floats(self) -> Tensor:
        """The dequantized tensor, computed at the first call; its strides are the ReadTensor's."""
        if self.value is None:
            self.value = self.dense().contiguous()
        return self.value


@dataclass(frozen=True)
class RowFormat:
    """How rows are quantized that are multiplied by a stack that was read, or by a part of it.

    quantizer: of the whole stack (layers.store.StackInput); name: of the stack
    numbers: which of its matrices these are; None for all
    """

    quantizer: Any
    name: str
    numbers: range | None = None

    def of(self, numbers: range) -> "RowFormat":
        """Of some of these matrices, counted from the first of these."""
        return replace(
            self, numbers=numbers if self.numbers is None else self.numbers[_as(numbers)]
        )

    def of_one(self, x: Tensor) -> Quantizer | None:
        """How rows x [..., k] are quantized that meet one matrix; None if it is not known which."""
        self._check()
        if not self.quantizer.static:
            return self.quantizer.of(x)  # type: ignore[no-any-return]
        numbers = self.numbers
        if numbers is None or len(numbers) != 1:
            return None
        return self.quantizer.of_matrix(numbers[0]).of(x)  # type: ignore[no-any-return]

    def of_each(self, x: Tensor) -> Quantizer | None:
        """How rows x [rows, k], sorted by matrix, are quantized; None where they need a product
        for each matrix."""
        self._check()
        return self.quantizer.of_sorted(x, self.numbers)  # type: ignore[no-any-return]

    def _check(self) -> None:
        by = self.quantizer
        if torch.compiler.is_compiling() or not batch_invariant():
            return
        if not by.static or by.format.gives_outer:
            outer = not by.format.gives_outer
            check_rows(f"the input of the experts {self.name!r}", by.format, 2, 1, outer=outer)


def _as(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop)


class ReadTensor(Tensor):
    """A tensor without storage, whose numbers are where its source says.

    chosen: of matrices that were picked out of a stack, the stack's codes, which of them, and
        whether they are turned (blockscale.layers.weight_pieces)
    """

    source: Source
    chosen: tuple[Operand, Tensor, bool] | None = None

    @staticmethod
    def __new__(cls, source: Source) -> "ReadTensor":
        tensor: ReadTensor = wrapper_subclass(
            cls, source.shape, dtype=source.dtype, device=source.device, requires_grad=False,
            strides=None if source.value is None else source.value.stride(),
        )  # fmt: skip
        tensor.source = source
        return tensor

    def view_of(
        self, shape: torch.Size, operand: Operand | None, dense: Callable[[], Tensor], **new: Any
    ) -> "ReadTensor":
        """A part of it, or another view: with these codes, if any, and the floats `dense` gives."""
        parts = {"owner": None, "value": None} | new
        return self.again(replace(self.source, shape=shape, operand=operand, dense=dense, **parts))

    def again(self, source: Source) -> "ReadTensor":
        """Another one; torch wants views to be inference tensors if, and only if, their base is."""
        with torch.inference_mode(self.is_inference()):
            return type(self)(source)


def write_error(func: str, source: Source) -> RuntimeError:
    """What is raised where somebody writes to a quantized weight."""
    layer, _, last = source.name.rpartition(".")
    name = source.name or "this weight"
    pattern = layer if last == "weight" and layer else source.name or "the layer"
    return RuntimeError(
        f"{func} writes to {name}, which is quantized: its codes are fixed. Leave it in "
        f"float with skip=[{pattern!r}] in the recipe, or write to it before quantizing"
    )


def shared(item: Any, value: object) -> Any:
    """The codes behind a tensor that was read elsewhere, to hold them instead of `held`: as
    tie_weights does. Raises RuntimeError for other values, and for codes that do not fit."""
    owner = value.source.owner if isinstance(value, ReadTensor) else None
    kind = type(item), item.shape, item.layout
    if owner is None or kind != (type(owner), owner.shape, owner.layout):
        raise write_error("an assignment", item.read().source)
    return owner


def dense(tree: Any) -> Any:
    """The same arguments with the floats of each ReadTensor."""
    return pytree.tree_map_only(ReadTensor, lambda weight: weight.source.floats(), tree)


def traced() -> bool:
    """Whether the tensor that is being read goes into a program that is traced or compiled.

    Tracers know no tensors of other classes, so they get the floats. While they look for buffers by
    name (`fc.weight.codes`), they read `weight` as well, and want the module that it stands for.
    """
    if not torch.compiler.is_compiling():
        return False
    if torch.compiler.is_dynamo_compiling():
        return True
    reader = sys._getframe(3)  # of the property that called `read`, which called this
    return reader.f_code.co_name not in _LOOKUPS


_LOOKUPS = ("get_submodule", "get_buffer", "get_parameter", "swap_submodule", "_get_attr")
