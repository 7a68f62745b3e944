"""What each operation between quantized layers is on integers: one rule each."""

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from blockscale.graph.integer import steps
from blockscale.graph.integer.layers import Fixed, NotIntegerError

if TYPE_CHECKING:
    from blockscale.graph.integer.translate import Lowering, Value

Rule = Callable[["Lowering", fx.Node, Any], "Value"]


def _integers(low: "Lowering", node: fx.Node, value: "Value") -> Fixed:
    """What the integers of a value mean. Raises NotIntegerError where it still is floats."""
    if value.fixed is None:
        raise NotIntegerError(
            f"{low.name(node)} takes floats: only a quantized layer may take the model's input"
        )
    return value.fixed


def _first(low: "Lowering", node: fx.Node) -> tuple["Value", Fixed]:
    value = low.inputs(node)[0]
    return value, _integers(low, node, value)


def _through(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
        raise NotIntegerError(f"{low.name(node)} drops values: call model.eval() first")
    return low.inputs(node)[0]


def _clamp(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    """ReLU is max(code, zero_point); an upper bound must be a whole number of steps."""
    value, fixed = _first(low, node)
    bounds = {nn.ReLU: (0.0, math.inf), nn.ReLU6: (0.0, 6.0)}.get(type(module))
    lowest, highest = bounds or (module.min_val, module.max_val)
    ends = [_in_steps(low, node, fixed, bound) for bound in (lowest, highest)]
    zero = fixed.zero_point
    return low.step(node, steps.Clamp(ends[0] + zero, ends[1] + zero), [value], fixed)


def _in_steps(low: "Lowering", node: fx.Node, fixed: Fixed, bound: float) -> Tensor:
    """A bound as codes [exponent's shape] int32, as far as any code goes."""
    reach = float(fixed.largest)
    ends = torch.full_like(fixed.exponent, bound, dtype=torch.float64)
    whole = torch.ldexp(ends, -fixed.exponent)
    within = whole.clamp(-reach, reach)
    if not bool((within == within.round()).all()):
        step = 2.0 ** int(fixed.exponent.max())
        raise NotIntegerError(
            f"{low.name(node)}: {bound} is no multiple of the step {step} of its input: "
            f"use a smaller scale there, or ReLU"
        )
    return within.to(torch.int32)


def _max_pool(low: "Lowering", node: fx.Node, module: nn.MaxPool2d) -> "Value":
    value, fixed = _first(low, node)
    if module.return_indices:
        raise NotIntegerError(f"{low.name(node)} returns indices, which have no integer form here")
    settings = (module.kernel_size, module.stride, module.padding, module.dilation)
    pool = nn.MaxPool2d(*settings, ceil_mode=module.ceil_mode)
    return low.step(node, pool, [value], fixed)


def _average(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    value = low.inputs(node)[0]
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = (value.example.shape[-2], value.example.shape[-1])
        kernel = _divided(low, node, size, module.output_size)
        return _sums(low, node, value, ([kernel[0], kernel[1]], kernel, [0, 0]), size)
    if module.ceil_mode or module.divisor_override or not module.count_include_pad:
        raise NotIntegerError(
            f"{low.name(node)} divides by a number that changes: leave ceil_mode, "
            f"divisor_override and count_include_pad as they are by default"
        )
    windows = tuple(_pair(each) for each in (module.kernel_size, module.stride, module.padding))
    return _sums(low, node, value, windows, None)


def _sums(
    low: "Lowering", node: fx.Node, value: "Value", windows: Any, size: tuple[int, int] | None
) -> "Value":
    """Averages over windows of 2^n values: their sum, under an exponent smaller by n."""
    fixed, count = _integers(low, node, value), math.prod(windows[0])
    if count & (count - 1):
        raise NotIntegerError(
            f"{low.name(node)} averages {count} values: only a power of two is a shift"
        )
    pool = steps.SumPool(fixed.zero_point, windows, size)
    sums = Fixed(fixed.exponent - (count.bit_length() - 1), 0, fixed.largest * count)
    low.told(node, sums)
    return low.step(node, pool, [value], sums)


def _divided(low: "Lowering", node: fx.Node, size: tuple[int, int], wanted: Any) -> list[int]:
    """The windows that give `wanted` maps of a map of `size`."""
    kernel = []
    for n, parts in zip(size, _pair(wanted), strict=True):
        count = n if parts is None else parts
        if n % count:
            raise NotIntegerError(
                f"{low.name(node)} divides {n} into {count} windows of several sizes"
            )
        kernel.append(n // count)
    return kernel


def _pair(size: Any) -> list[Any]:
    return list(size) if isinstance(size, tuple | list) else [size, size]


def _add(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    """Both sides shifted left to the smaller exponent, then added."""
    del module
    if len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
        raise NotIntegerError(f"{low.name(node)} scales what it adds")
    values = [low.value(node, arg) for arg in node.args]
    parts = [_integers(low, node, value) for value in values]
    exponent = torch.minimum(parts[0].exponent, parts[1].exponent)
    shifts = [part.exponent - exponent for part in parts]
    if any(int(shift.max()) > 31 for shift in shifts):
        raise NotIntegerError(f"{low.name(node)} adds values whose scales differ by over 2^31")
    reach = [part.largest << int(shift.max()) for part, shift in zip(parts, shifts, strict=True)]
    fixed = Fixed(exponent, 0, sum(reach))
    low.told(node, fixed)
    zero_points = (parts[0].zero_point, parts[1].zero_point)
    return low.step(node, steps.Add((shifts[0], shifts[1]), zero_points), values, fixed)


def _flatten(low: "Lowering", node: fx.Node, module: nn.Flatten) -> "Value":
    """Exponents by channel are laid out as the values are."""
    value = low.inputs(node)[0]
    fixed = value.fixed
    if fixed is not None and fixed.exponent.numel() > 1:
        if module.start_dim != 1:
            raise NotIntegerError(f"{low.name(node)} mixes channels of several scales with batches")
        whole = fixed.exponent.expand(1, *value.example.shape[1:])
        fixed = replace(fixed, exponent=module(whole).contiguous())
    return low.step(node, nn.Flatten(module.start_dim, module.end_dim), [value], fixed)


def _reshape(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    del module
    fixed = low.value(node, node.args[0]).fixed
    if fixed is not None and fixed.exponent.numel() > 1 and node.target != "contiguous":
        raise NotIntegerError(
            f"{low.name(node)} mixes channels of several scales: use flatten(1), or give the layer "
            f"before it an output format"
        )
    return low.same(node, fixed)


def _size(low: "Lowering", node: fx.Node, module: Any) -> "Value":
    """`x.size(...)` and `x.shape`, which are the same on integers."""
    del module
    if node.target is getattr and node.args[1] != "shape":
        raise NotIntegerError(f"{low.name(node)} of {node.args[1]!r} has no integer form here")
    return low.same(node, None)


def _max_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    """F.max_pool2d's arguments, whose order is not the module's."""
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    del inplace
    return nn.Dropout(p).train(training)


def _flatten_from(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


# calls that are a module with these arguments
AS_MODULE: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, "relu", "relu_"), nn.ReLU),
    F.relu6: nn.ReLU6,
    F.hardtanh: nn.Hardtanh,
    F.max_pool2d: _max_pool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.dropout: _dropout,
    torch.flatten: _flatten_from,
    "flatten": _flatten_from,
}

# module classes, functions and names of methods
RULES: dict[Any, Rule] = {
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d), _through),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Hardtanh), _clamp),
    nn.MaxPool2d: _max_pool,
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d), _average),
    nn.Flatten: _flatten,
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), _add),
    **dict.fromkeys(("view", "reshape", "contiguous"), _reshape),
    **dict.fromkeys(("size", getattr), _size),
}
