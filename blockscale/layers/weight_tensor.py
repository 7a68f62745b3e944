# SPDX-License-Identifier: BSD-3-Clause
"""What a read of a quantized weight gives: a tensor, to whoever computes with it by himself.

Models read weights of layers that they do not call (`F.linear(x, self.fc.weight)`, `.t()`, `@`).
They get a WeightTensor, which has the shape, dtype and device of the float weight and no storage.
Products meet our kernels with its codes; pieces along its rows keep the codes; anything else
computes with the dequantized weight, of which there is one a read at most.
"""

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED
from blockscale.core.pack import grouped_layout
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.core.torch_private import DispatchKey, WithoutTorchFunction, has_kernel
from blockscale.layers.weight_pieces import STACKS, VIEWS, chosen_of
from blockscale.layers.weight_source import ReadTensor, Source, dense, write_error
from blockscale.ops.conv import conv
from blockscale.ops.conv_transpose import conv_transpose
from blockscale.ops.embedding import embedding
from blockscale.ops.grouped_linear import product

# The one write that codes allow: all of a weight times a power of two, where that is exact.
#
# RWKV's models do that (`weight.div_(4)`) to some of their layers when they are put into
# evaluation.


def multiply(weight: Any, factor: Any, *, inverse: bool = False) -> Any:
    """The weight after `mul_(factor)`, or `div_` with `inverse`: its scales have changed in place.

    None, and nothing done, unless that is exact: the factor is a power of two, and each dequantized
    value of the whole weight is what it was times that.
    """
    power = _power(factor)
    if power is None or not isinstance(weight, ReadTensor) or weight.source.owner is None:
        return None
    power = -power if inverse else power
    owner = weight.source.owner
    if not hasattr(owner, "qparams"):
        return None
    new = _scaled(owner, power)
    before = {name: part.clone() for name, part in owner.own.items() if part is not None}
    expected = owner.tensor.dequantize() * 2.0**power
    for name, part in new.items():
        _write(getattr(owner, name), part)
    if not torch.equal(owner.tensor.dequantize(), expected):
        for name, part in before.items():
            _write(getattr(owner, name), part)
        return None
    weight.source.value = None
    return weight


def _write(buffer: Tensor, value: Tensor) -> None:
    """Below autograd a write leaves no trace, and what kernels keep beside weights needs one."""
    buffer.copy_(value)
    if not buffer.is_inference():
        torch.autograd.graph.increment_version(buffer)


def _power(factor: Any) -> int | None:
    """The exponent of a positive power of two, else None."""
    if isinstance(factor, Tensor):
        if isinstance(factor, ReadTensor) or factor.numel() != 1:
            return None
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        return None
    fraction, exponent = math.frexp(factor)
    return exponent - 1 if fraction == 0.5 else None


def _scaled(owner: Any, power: int) -> dict[str, Tensor]:
    """{part: what it becomes} of the parts that say how large the values are."""
    parts = {name: part for name, part in owner.qparams._asdict().items() if part is not None}
    two_level = isinstance(owner.format.scale, TwoLevel)
    new: dict[str, Tensor] = {}
    for name in ("offset_outer", "scale_offset", *(["outer"] if two_level else ["scale"])):
        part = parts.get(name)
        if part is None:
            continue
        if isinstance(owner.format.scale, CodeScale) and name == "scale":
            own = owner.format.scale
            new[name] = own.store(own.step(part) * 2.0**power)
        elif part.dtype == torch.uint8:  # an e8m0's byte is its exponent
            new[name] = (part.to(torch.int32) + power).clamp(0, 254).to(torch.uint8)
        else:
            sign = -1 if name == "outer" and owner.format.scale.reciprocal else 1
            new[name] = part * 2.0 ** (sign * power)
    if "offset" in parts and parts["offset"].is_floating_point():
        new["offset"] = parts["offset"] * 2.0**power
    return new


aten = torch.ops.aten


# What torch's operators do with a ReadTensor: products by our kernels, or its floats.
#
# Each handler gets the operator's arguments and returns its result, or None where only the floats
# will do.


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One call of torch's with ReadTensors among its arguments.

    Raises RuntimeError, with the weight's name, for a call that writes to one.
    """
    handler = _HANDLERS.get(func) or VIEWS.get(func) or STACKS.get(func.name())
    if handler is not None:
        result = handler(*args, **kwargs)
        if result is not None:
            return result
    _refuse_writes(func, args, kwargs)
    if func._schema.is_mutable is False and func._can_decompose() and _implicit(func):
        return func.decompose(*args, **kwargs)
    result = func(*dense(args), **dense(kwargs))
    if not func.is_view:
        _tell_floats(func, (*args, *kwargs.values()), result)
    return _as_views(func, args, result)


_told: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()  # quantizers that were told of


def _tell_floats(func: Any, values: Sequence[Any], result: Any) -> None:
    """Warn, once for each stack, where rows meet its floats, so that they are not quantized."""
    for value in values:
        rows = value.source.rows if isinstance(value, ReadTensor) else None
        floats = isinstance(result, Tensor) and result.is_floating_point()
        if rows is None or not floats or rows.quantizer in _told:
            continue
        _told[rows.quantizer] = True
        warnings.warn(
            f"blockscale: {rows.name}: its input, in {rows.quantizer.fmt}, is left in float where "
            f"the model computes with the stack's floats ({func._schema.name}): rows are quantized "
            "in products by F.linear, matmul, bmm and grouped_mm, in the stack's dtype",
            stacklevel=2,
        )


def _implicit(func: Any) -> bool:
    key = DispatchKey.CompositeImplicitAutograd
    return bool(has_kernel(func.name(), key))


def _refuse_writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if not func._schema.is_mutable:
        return
    arguments = (
        dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    )
    for argument in func._schema.arguments:
        value = arguments.get(argument.name)
        if argument.is_write and isinstance(value, ReadTensor):
            raise write_error(f"{func._schema.name.removeprefix('aten::')}", value.source)


def _as_views(func: Any, args: Sequence[Any], result: Any) -> Any:
    """A view of a weight is not written to either."""
    first = args[0] if args else None
    if not isinstance(first, ReadTensor) or not func.is_view:
        return result

    def view(part: Tensor) -> Tensor:
        return first.view_of(part.shape, None, lambda: part, transposed=False, value=part)

    return [view(part) for part in result] if isinstance(result, list | tuple) else view(result)


def _times(x: Any, weight: Any, bias: Any = None) -> Any:
    """x [..., k] times a weight [k, n] of its dtype, by its codes; None where it has none."""
    if not isinstance(weight, ReadTensor) or isinstance(x, ReadTensor):
        return None
    source = weight.source
    usable = source.transposed and weight.ndim == 2 and source.operand is not None
    if not usable or x.dtype != source.dtype or x.device != source.device:
        return None
    by = UNQUANTIZED if source.rows is None else source.rows.of_one(x)
    if by is None or source.operand is None:
        return None
    return product(x, source.operand, dense(bias), by)


def _mm(x: Any, weight: Any) -> Any:
    return _times(x, weight)


def _addmm(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1 or bias.ndim != 1:
        return None
    return _times(x, weight, dense(bias).expand(weight.shape[1]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(weight, ReadTensor) or weight.ndim != 2:
        return None
    return _times(x, weight.t(), bias)


def _convolution(
    x: Any, weight: Any, bias: Any, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Any:  # fmt: skip
    if not isinstance(weight, ReadTensor):
        return None
    source = weight.source
    if source.operand is None or source.layout == "plain" or x.dtype != source.dtype:
        return None
    bias, shape, settings = dense(bias), list(weight.shape), (list(stride), list(padding))
    if not transposed and source.layout == "channels_last":
        return conv(x, source.operand, bias, shape, *settings, list(dilation), groups)
    if transposed and source.layout == grouped_layout(groups):
        more = (list(output_padding), list(dilation), groups)
        return conv_transpose(x, source.operand, bias, shape, *settings, *more)
    return None


def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Any:
    del padding_idx, scale, sparse  # of gradients of the table, which has none
    return _rows_of(weight, indices)


def _index_select(weight: Any, dim: int, indices: Any) -> Any:
    if dim % weight.ndim:
        return None
    return _rows_of(weight, indices) if weight.ndim == 2 else chosen_of(weight, indices)


def _index(weight: Any, indices: Sequence[Any]) -> Any:
    alone = len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.int64
    if not alone or not isinstance(weight, ReadTensor):
        return None
    choice = indices[0]  # negative ones count from the end
    choice = torch.where(choice < 0, choice + weight.shape[0], choice)
    return _rows_of(weight, choice) if weight.ndim == 2 else chosen_of(weight, choice)


def _rows_of(weight: Any, indices: Tensor) -> Any:
    if not isinstance(weight, ReadTensor) or weight.ndim != 2:
        return None
    source = weight.source
    if source.operand is None or source.transposed or source.layout != "plain":
        return None
    return embedding(source.operand, indices, source.dtype)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.div_.Scalar: partial(multiply, inverse=True),
    aten.div_.Tensor: partial(multiply, inverse=True),
    aten.mul_.Scalar: multiply,
    aten.mul_.Tensor: multiply,
    aten.mm.default: _mm,
    aten.matmul.default: _mm,
    aten.addmm.default: _addmm,
    aten.linear.default: _linear,
    aten.convolution.default: _convolution,
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
}


# What a read gives.


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
        return run(func, args, kwargs or {})

    @property
    def _is_param(self) -> bool:  # type: ignore[override]
        """Whether torch should take it for a Parameter: where its owner is asked for one by name,
        as transformers' tie_weights does. Elsewhere parameters can be written to."""
        is_get_parameter = (
            sys._getframe(2).f_code.co_name == "get_parameter"
        )  # 1 is isinstance's own
        return is_get_parameter and self.source.owner is not None

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
                raise write_error(f"an assignment of another {name}", self.source)
            setattr(owner, name, value)
        elif name == "data":
            raise write_error("an assignment to .data", self.source)
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
            raise write_error("requires_grad_", self.source)
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
    tensor, codes = _reads.get(owner, (None, None))
    read = None if tensor is None else tensor()
    has_changed = codes is None or codes() is not owner.codes
    has_changed |= read is not None and read.is_inference() != torch.is_inference_mode_enabled()
    if read is None or has_changed or read.dtype != source.dtype:
        read = WeightTensor(source)
        _reads[owner] = (ref(read), ref(owner.codes))
    return read
