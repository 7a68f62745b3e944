# SPDX-License-Identifier: BSD-3-Clause
"""What a read of a quantized weight gives: a tensor, to whoever computes with it by himself.

Models read weights of layers that they do not call (`F.linear(x, self.fc.weight)`, `.t()`, `@`).
They get a WeightTensor, which has the shape, dtype and device of the float weight and no storage.
Products meet our kernels with its codes; pieces along its rows keep the codes; anything else
computes with the dequantized weight, of which there is one a read at most.
"""

import sys
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from blockscale.core.torch_private import WithoutTorchFunction
from blockscale.layers.reading import products
from blockscale.layers.reading.source import ReadTensor, Source, written


class WeightTensor(ReadTensor):
    """A quantized weight as a float tensor that cannot be written to. Made by reading one.

    The read of a whole weight stands for the module that holds the codes as well: torch finds
    `fc.weight.codes` by reading `weight` of `fc`, a module, and `codes` of that. So what a tensor
    has not is looked for there (`codes`, `scale`, `fmt`, `operand`, `_buffers` ...), and it is an
    instance of that module's class as well as of Tensor.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # As if it were not overridden; but torch's modules look whether it is, and then leave their
        # fused paths, which call no layers and would leave quantized inputs and our products out.
        with WithoutTorchFunction():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return products.run(func, args, kwargs or {})

    @property
    def _is_param(self) -> bool:  # type: ignore[override]
        """Whether torch should take it for a Parameter: where its owner is asked for one by name,
        as transformers' tie_weights does. Elsewhere parameters can be written to."""
        asked = sys._getframe(2).f_code.co_name == "get_parameter"  # 1 is isinstance's own
        return asked and self.source.owner is not None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        owner = self.source.owner
        return type(self) if owner is None else type(owner)

    def __getattr__(self, name: str) -> Any:
        if name != "source" and self.source.owner is not None:
            return getattr(self.source.owner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        owner = None if name == "source" else self.source.owner
        if owner is not None and name in owner.own:
            old = owner.own[name]
            if type(value) is not Tensor or (value.dtype, value.shape) != (old.dtype, old.shape):
                raise written(f"an assignment of another {name}", self.source)
            setattr(owner, name, value)
        elif name == "data":
            raise written("an assignment to .data", self.source)
        else:
            super().__setattr__(name, value)

    @property
    def outer(self) -> Any:
        """The owner's buffer of that name, as of the other parts; else torch's method, which takes
        vectors."""
        owner = self.source.owner
        part = None if owner is None else owner.own.get("outer")
        return super().outer if part is None else part

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """What the codes mean, by default in the dtype that the float weight had; where something
        stands before the layer, of the changed input (QLayer.before)."""
        owner = self.source.owner
        if owner is None:
            return self.source.floats().to(dtype or self.source.dtype)
        values: Tensor = owner.dequantize(dtype)
        return values

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of codes and scales as stored."""
        owner = self.source.owner
        return int(self.numel() * self.element_size() if owner is None else owner.nbytes)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Itself. Raises RuntimeError where a gradient is asked for: codes are fixed."""
        if requires_grad:
            raise written("requires_grad_", self.source)
        return self

    def numpy(self, *, force: bool = False) -> Any:
        """The dequantized values as an array."""
        return self.source.floats().numpy(force=force)

    def tolist(self) -> Any:
        """The dequantized values as lists."""
        return self.source.floats().tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.source.floats().__array__(dtype)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightTensor":
        return WeightTensor(self.source)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.source.floats().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        fmt = "" if self.source.operand is None else f", {self.source.operand.fmt!r}"
        return f"WeightTensor(shape={tuple(self.shape)}, dtype={self.dtype}{fmt})"


_reads: "WeakKeyDictionary[Any, tuple[ref[WeightTensor], ref[Tensor]]]" = WeakKeyDictionary()


def one_read(owner: Any, source: Source) -> WeightTensor:
    """The read of these codes that is still there, else a new one: two layers that share a weight
    give one tensor, as `a.weight is b.weight` asks."""
    known, codes = _reads.get(owner, (None, None))
    read = None if known is None else known()
    moved = codes is None or codes() is not owner.codes
    moved |= read is not None and read.is_inference() != torch.is_inference_mode_enabled()
    if read is None or moved or read.dtype != source.dtype:
        read = WeightTensor(source)
        _reads[owner] = (ref(read), ref(owner.codes))
    return read
