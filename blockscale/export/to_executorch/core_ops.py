# SPDX-License-Identifier: BSD-3-Clause
"""Torch ops that ExecuTorch has no kernel for, written in those that it has: the same bits.

Its portable kernels read no bits of a float. Exponents come from comparisons with powers of two and
exact products by them, never from a logarithm.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.work import quiet_libraries
from blockscale.graph.nodes import aten as nodes_aten
from blockscale.graph.nodes import each_call, set_value
from blockscale.graph.program import exported

# A graph of torch's ops -> ExecuTorch's program, with XNNPACK where it has kernels.

# Op families of XNNPACK's partitioner that pay for the way there and back. Chains of small
# element-wise ops stay with the portable kernels: its search for partitions is quadratic in them.
_FAMILIES = (
    "Linear", "Convolution", "Addmm", "MM", "BMM", "Softmax", "Gelu", "Tanh", "Sigmoid",
    "Hardswish", "MaxPool2d", "AvgPooling", "BatchNorm", "ReLU", "LeakyReLU", "Prelu",
    "UpsampleBilinear2d", "QuantizedPerTensor", "DeQuantizedPerTensor", "QuantizeAffine",
    "DeQuantizeAffine", "ChooseQParamsAffine",
)  # fmt: skip
_MODULES = ("nn_module_stack", "source_fn_stack", "torch_fn", "stack_trace")
_DEPTH = 20_000  # the partitioner calls itself once for each op of a chain


class LeftError(ValueError):
    """XNNPACK did not take all nodes that it alone can run."""


def lowered(graph: fx.GraphModule, methods: Mapping[str, Any]) -> bytes:
    """The file's bytes. Raises LeftError that names ops without kernels; executorch's own.

    methods: values that the file gives by methods of these names
    """
    with _quiet():
        from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

        _settle(graph)
        program = exported(graph)
        for node in program.graph.nodes:
            for key in _MODULES:  # XNNPACK takes whatever lies in an nn.Linear for a linear layer
                node.meta.pop(key, None)
        configs = [c for c in ALL_PARTITIONER_CONFIGS if c.__name__[:-6] in _FAMILIES]
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[XnnpackPartitioner(configs=configs)],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
            constant_methods=dict(methods),
        )
        _check(edge.exported_program())
        return bytes(edge.to_executorch().buffer)


def _settle(graph: fx.GraphModule) -> None:
    """Fix the strides behind attention, which depend on its decomposition by torch, for views."""
    for node in each_call(graph, nodes_aten.scaled_dot_product_attention):
        with graph.graph.inserting_after(node):
            copy = graph.graph.call_function(
                nodes_aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        set_value(copy)
        node.replace_all_uses_with(copy)
        copy.replace_input_with(copy, node)
    for node in each_call(graph, nodes_aten.view):
        node.target = nodes_aten.reshape.default
    graph.recompile()


def _check(program: Any) -> None:
    """Raises LeftError for quantize and dequantize nodes that XNNPACK left: they have no kernel."""
    names = {
        str(node.target).rpartition(".")[0].rpartition(".")[2]
        for node in program.graph.nodes
        if node.op == "call_function" and "quantized_decomposed" in str(node.target)
    }
    if names:
        raise LeftError(f"XNNPACK did not take {', '.join(sorted(names))}")


@contextmanager
def _quiet() -> Iterator[None]:
    """executorch's warnings and logs are about itself; long chains need a deeper stack."""
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(max(depth, _DEPTH))
    try:
        with quiet_libraries():
            yield
    finally:
        sys.setrecursionlimit(depth)


aten: Any = torch.ops.aten
_HALVES = (64, 64, 32, 16, 8, 4, 2, 1)  # exponents, from 2^-149 to 2^127, by halving
_INF = 0x7F800000
_NAN = 0x7FC00000


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [...] float32, finite -> its mantissa in [0.5, 1) with its sign, and exponent int32."""
    size, power = x.abs(), torch.zeros_like(x)
    for step in _HALVES:
        large = size >= 2.0**step
        size = torch.where(large, size * 2.0**-step, size)
        power = torch.where(large, power + step, power)
    for step in _HALVES:
        small = size < 2.0 ** (1 - step)
        size = torch.where(small, size * 2.0**step, size)
        power = torch.where(small, power - step, power)
    nothing = x == 0
    power = torch.where(nothing, torch.zeros_like(x), power + 1)
    half = torch.where(negative(x), -size, size) * 0.5
    return torch.where(nothing, x, half), power.to(torch.int32)


def negative(x: Tensor) -> Tensor:
    """x [...] float32 -> whether its sign is -, of -0 too; a NaN has no sign here."""
    return torch.logical_or(x < 0, torch.logical_and(x == 0, x.reciprocal() < 0))


def bits_of(x: Tensor) -> Tensor:
    """x [...] float32 -> its bits [...] int32; every NaN has those of the positive quiet one."""
    size = x.abs()
    fraction, power = frexp(torch.where(torch.logical_or(x != x, size == torch.inf), 1.0, size))
    field = power + 126
    whole = ((fraction * 2.0 - 1.0) * 2.0**23).to(torch.int32)
    normal = field * 2**23 + whole
    subnormal = size < 2.0**-126
    tiny = (torch.where(subnormal, size, 0.0) * 2.0**100 * 2.0**49).to(torch.int32)
    bits = torch.where(subnormal, tiny, normal)
    bits = torch.where(size == torch.inf, torch.full_like(bits, _INF), bits)
    bits = torch.where(x != x, torch.full_like(bits, _NAN), bits)
    return torch.where(negative(x), bits + -(2**31), bits)


def of_bits(bits: Tensor) -> Tensor:
    """bits [...] int32 -> the float32 [...] that they are."""
    plain = torch.bitwise_and(bits, 0x7FFFFFFF)
    field = torch.div(plain, 2**23, rounding_mode="floor")
    fraction = torch.bitwise_and(bits, 2**23 - 1).to(torch.float32)
    rest = (field - 1).clamp(min=0)
    value = torch.where(field > 0, fraction + 2.0**23, fraction)
    value = value * 2.0**-74 * 2.0**-75
    for at, step in enumerate((1, 2, 4, 8, 16, 32, 64)):
        is_set = torch.bitwise_and(torch.div(rest, 2**at, rounding_mode="floor"), 1) == 1
        value = torch.where(is_set, value * 2.0**step, value)
    value = torch.where(rest >= 128, value * 2.0**64 * 2.0**64, value)
    special = torch.where(fraction == 0, torch.inf, torch.nan)
    value = torch.where(field == 255, special, value)
    return torch.where(bits < 0, -value, value)


def view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of x [...] as another dtype of the same width."""
    pair = (x.dtype, dtype)
    if pair == (torch.float32, torch.int32):
        return bits_of(x)
    if pair == (torch.int32, torch.float32):
        return of_bits(x)
    if pair == (torch.int8, torch.uint8):
        return torch.bitwise_and(x.to(torch.int32), 255).to(torch.uint8)
    if pair == (torch.uint8, torch.int8):
        wide = x.to(torch.int32)
        return torch.where(wide > 127, wide - 256, wide).to(torch.int8)
    if x.dtype == dtype:
        return x.clone()
    raise NotImplementedError(f"the bits of {x.dtype} as {dtype}")


def left_shift(x: Tensor, by: Any) -> Tensor:
    """x [...] << by, integers: a product with a power of two."""
    if not isinstance(by, Tensor):
        return x * 2**by
    result = x
    for at, step in enumerate((1, 2, 4, 8, 16)):
        is_set = torch.bitwise_and(torch.div(by, 2**at, rounding_mode="floor"), 1) == 1
        result = torch.where(is_set, result * 2**step, result)
    return result.to(x.dtype)


def right_shift(x: Tensor, by: Any) -> Tensor:
    """x [...] >> by, integers: an exact quotient, rounded down."""
    if isinstance(by, Tensor):
        raise NotImplementedError("shifts to the right by tensors")
    return torch.div(x, 2**by, rounding_mode="floor").to(x.dtype)


def searchsorted(
    sorted_sequence: Tensor, x: Tensor, *, right: bool = False, **settings: Any
) -> Tensor:
    """How many boundaries [n] each of x [...] is above: int64 [...]."""
    del settings
    above = x.unsqueeze(-1) >= sorted_sequence if right else x.unsqueeze(-1) > sorted_sequence
    return above.to(torch.int64).sum(-1)


def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x [...] with numbers in the place of NaN and infinities."""
    limits = torch.finfo(x.dtype)
    x = torch.where(x != x, nan or 0.0, x)
    x = torch.where(x == torch.inf, limits.max if posinf is None else posinf, x)
    return torch.where(x == -torch.inf, limits.min if neginf is None else neginf, x)


def copysign(size: Tensor, x: Tensor) -> Tensor:
    """|size| [...] with the sign of x [...]."""
    return torch.where(negative(x), -size.abs(), size.abs())


TABLE: dict[Any, Callable[..., Any]] = {
    aten.view.dtype: view_dtype,
    aten.frexp.Tensor: frexp,
    aten.signbit.default: negative,
    aten.copysign.Tensor: copysign,
    aten.nan_to_num.default: nan_to_num,
    aten.searchsorted.Tensor: searchsorted,
    aten.masked_fill.Scalar: lambda x, mask, value: torch.where(mask, value, x).to(x.dtype),
    aten.__lshift__.Scalar: left_shift,
    aten.__lshift__.Tensor: left_shift,
    aten.__rshift__.Scalar: right_shift,
    aten.bitwise_left_shift.Tensor: left_shift,
    aten.bitwise_left_shift.Tensor_Scalar: left_shift,
    aten.bitwise_right_shift.Tensor_Scalar: right_shift,
    aten.floor_divide.default: lambda x, by: torch.div(x, by, rounding_mode="floor"),
}
