# SPDX-License-Identifier: BSD-3-Clause
"""The integer graph while it is being written: what rules read from it and add to it."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.arithmetic.sums import FARTHEST_LEFT
from blockscale.core.operand import Quantizer
from blockscale.core.operand import Value as FusedOperand
from blockscale.core.parse import parse
from blockscale.core.rounding import DETERMINISTIC
from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.lowering.integers.fixed import (
    FLOAT32_EXACT,
    Fixed,
    NotIntegerError,
    Own,
    fixed_of,
    int32,
    sums,
)
from blockscale.graph.nodes import call, scope
from blockscale.graph.passes.merge_products import layer_of
from blockscale.ops.integer import INTEGER_OPS

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Sum:
    """What is known of the sums in one place of an integer model.

    name, kind: of the layer or operation in the model; layers of one input that became one product
        have a name together, `attention.q_k_v`
    largest: the largest magnitude that any input can give, in steps of its own channel
    exact: whether float32 computes these sums without rounding, in any order
    """

    name: str
    kind: str
    largest: int
    exact: bool

    @property
    def accumulator(self) -> str:
        """The smallest type that holds every one of them."""
        return "int32" if self.largest < 2**31 else "int64"


class Value(NamedTuple):
    """A value of the integer graph: its node, and what its integers mean."""

    node: fx.Node
    fixed: Fixed


class Task(NamedTuple):
    """One op of the fused graph that becomes integers.

    node: the op's own; what: it, as errors name it; name: of the fused op
    operands, settings: of its float body; y: how its result is quantized
    """

    node: fx.Node
    what: str
    name: str
    operands: list[FusedOperand]
    settings: dict[str, Any]
    y: Quantizer

    @property
    def rule(self) -> str:
        """The pattern of a recipe's rule for ops like this."""
        return f"op:{_OF_RULES.get(self.name, self.name.removesuffix('_scalar'))}"


_OF_RULES = {"sdpa": "scaled_dot_product_attention"}  # fused op -> aten's name


class Builder:
    """Writes integer ops before the nodes that they stand for, and keeps the value of each.

    sums: what is known of each sum; nodes: (the node, what stands for it, which op)
    """

    def __init__(self, graph: fx.GraphModule):
        self.graph = graph
        self.sums: list[Sum] = []
        self.nodes: list[tuple[fx.Node, fx.Node, str]] = []
        self._values: dict[fx.Node, Value] = {}

    def value(self, node: Any) -> Value | None:
        """The integers that stand for a node; None where there are none."""
        return self._values.get(node) if isinstance(node, fx.Node) else None

    def remember(self, node: fx.Node, value: Value) -> None:
        """Record the integers that stand for a node."""
        self._values[node] = value

    def operand(self, task: Task, operand: FusedOperand) -> Value:
        """An operand of a task. Raises NotIntegerError for floats."""
        integers = self.value(operand.data)
        if integers is None and not operand.fmt and is_constant(operand.data):
            return self._parameter(task, operand.data)
        if integers is None:
            raise NotIntegerError(
                f"{task.what} takes floats: set a format for its input, in the recipe of the "
                f"layer before it or by a rule '{task.rule}'"
            )
        return integers

    def _parameter(self, task: Task, node: Any) -> Value:
        """A float tensor of the model, such as a table of positions, in 16 bits of its largest."""
        values = get(self.graph, node).detach().to(torch.float64)
        top = float(values.abs().max()) if values.numel() else 0.0
        if not math.isfinite(top):
            raise NotIntegerError(f"{task.what} reads {node.target}, which holds NaN or infinity")
        exponent = math.frexp(top)[1] - 15 if top else 0
        codes = torch.ldexp(values, torch.tensor(-exponent)).round().clamp(-32767, 32767)
        name = f"integers.{node.target}"
        constant = put_constant(self.graph, name, codes.to(torch.int16), like=task.node)
        return Value(constant, Fixed(exponent, 0, -32767, 32767))

    def constant(self, node: Any, what: str) -> Tensor | None:
        """The tensor that a node without inputs gives, None for None. Raises NotIntegerError for
        one that depends on the model's input."""
        if node is None:
            return None
        if node.op == "get_attr":
            return get(self.graph, node).detach()
        if node.op != "call_function" or not node.all_input_nodes:
            raise NotIntegerError(f"{what} is computed from the model's input, expected a constant")

        def constant_of(each: fx.Node) -> Any:
            return self.constant(each, what)

        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), constant_of)
        target: Callable[..., Any] = node.target
        return target(*args, **kwargs)

    def fixed(self, by: Quantizer, what: str) -> Fixed | None:
        """What the codes that a quantizer gives mean, None without a format."""
        if not by.fmt:
            return None
        scale, zero = (self.constant(part, what) for part in (by.scale, by.zero_point))
        return fixed_of(parse(by.fmt), scale, zero, what)

    def emit(self, like: fx.Node, op: str, args: list[Any], fixed: Fixed) -> Value:
        """A node of the integer op `op` before `like`; tensors of constants become buffers."""
        flat = [self._buffer(like, op, i, each) for i, each in enumerate(args)]
        node = call(self.graph, INTEGER_OPS[f"integer_{op}"].overload, tuple(flat), like=like)
        self.nodes.append((like, node, op))
        return Value(node, fixed)

    def _buffer(self, like: fx.Node, op: str, place: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        op_of = INTEGER_OPS[f"integer_{op}"]
        name = f"integers.{like.name}.{op_of.signature.names[place]}"
        return put_constant(self.graph, name, value.contiguous(), like=like)

    def add_sums(self, task: Task, fixed: Fixed, steps: int | None = None) -> Fixed:
        """Remember how large the sums of a task get.

        steps: in those of their own channel, where that is another number
        """
        largest = fixed.largest if steps is None else steps
        self.sums.append(Sum(_layer(task), task.name, largest, largest <= FLOAT32_EXACT))
        return fixed

    def finish(
        self,
        task: Task,
        op: str,
        args: list[Any],
        acc: Fixed,
        above: Tensor | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Value:
        """An op that ends sums: in the task's format, or as sums where it has none.

        args: all before `shift`; without a format the list's `largest` is set to the result's
        acc: what the sums mean, under the smallest exponent of all channels
        above: how much larger the exponent of each channel is, [n]
        bounds: an activation's: the values are kept between them
        """
        apart = torch.zeros(1, dtype=torch.int64) if above is None else above
        y = self.fixed(task.y, f"the result of {task.what}")
        if y is not None:
            low, high = _within(y, bounds)
            shift = int32(y.exponent - acc.exponent - apart)
            result = Fixed(y.exponent, y.zero, low, high, y.fmt)
            return self.emit(task.node, op, [*args, shift, y.zero, low, high, y.fmt], result)
        whole = sums(acc.exponent, acc.largest << _most(task, apart), task.what)
        low, high = (0, 0) if bounds is None else _in_steps(task, whole, bounds)
        result = whole if bounds is None else Fixed(whole.exponent, 0, low, high)
        if bool(apart.any()) and (bounds is None or {*bounds} <= OF_ANY_STEP):
            result = replace(result, own=Own(apart, acc.largest))
        names = INTEGER_OPS[f"integer_{op}"].signature.names
        if "largest" in names:  # of what comes out, which is to be held as well
            args[names.index("largest")] = whole.largest
        return self.emit(task.node, op, [*args, int32(-apart), 0, low, high, ""], result)

    def to_format(self, like: fx.Node, value: Value, y: Fixed) -> Value:
        """The value as codes of another format, by a shift."""
        shift = int32(y.exponent - value.fixed.exponent)
        return self.emit(
            like, "rescale", [value.node, value.fixed.zero, shift, y.zero, y.low, y.high, y.fmt], y
        )


OF_ANY_STEP = {0.0, math.inf, -math.inf}  # bounds that are multiples of every step


def _layer(task: Task) -> str:
    """The layer whose weight a task reads; of other tasks the module that they are in, or their
    node's name."""
    weight = task.operands[1].data if len(task.operands) > 1 else None
    if is_constant(weight) and task.operands[1].fmt:
        return layer_of(str(weight.target))  # type: ignore[union-attr]  # a node
    return scope(task.node) or task.node.name


def _most(task: Task, apart: Tensor) -> int:
    """The farthest that sums without a format are shifted left. Raises beyond what ops shift."""
    most = int(apart.max())
    if most > FARTHEST_LEFT:
        raise NotIntegerError(
            f"{task.what} has outputs whose weights' scales differ by 2^{most}, over "
            f"2^{FARTHEST_LEFT}: set a format for its result, or use a weight with 'tensor'"
        )
    return most


def _within(y: Fixed, bounds: tuple[float, float] | None) -> tuple[int, int]:
    """The codes of y between two numbers."""
    if bounds is None:
        return y.low, y.high
    rounding = parse(y.fmt).rounding
    ends = [_code(bound, y, rounding) for bound in bounds]
    return max(y.low, min(ends[0], y.high)), min(y.high, max(ends[1], y.low))


def _code(bound: float, y: Fixed, rounding: str) -> int:
    if bound in (float("inf"), -float("inf")):
        return y.high if bound > 0 else y.low
    steps = torch.ldexp(torch.tensor(bound, dtype=torch.float64), torch.tensor(-y.exponent))
    return int(DETERMINISTIC[rounding](steps)) + y.zero


def _in_steps(task: Task, of: Fixed, bounds: tuple[float, float]) -> tuple[int, int]:
    """Two numbers as sums. Raises NotIntegerError where they are no whole steps."""
    ends = []
    for bound in bounds:
        steps = max(-float(of.largest), min(bound * 2.0**-of.exponent, float(of.largest)))
        if steps != round(steps):
            raise NotIntegerError(
                f"{task.what}: {bound} is not a multiple of the step {2.0**of.exponent} of "
                "its input: use a smaller scale there, or ReLU"
            )
        ends.append(int(steps))
    return ends[0], ends[1]
