# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside the codes of one tensor, and what the scale's shape says of its blocks."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.block import WHOLE, block_counts
from blockscale.core.format import Format
from blockscale.core.operand import operand, quantizer, whole
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives
from blockscale.ops.caller_parts import checked_part
from blockscale.ops.op import OPS, Op
from blockscale.ops.seed import Seed, seed_tensor
from blockscale.ops.tensor import QTensor

Part = Tensor | fx.Node


@dataclass(frozen=True, eq=False)
class QuantParams:
    """The parameters of one quantized tensor. A value: tensors, or the nodes that give them.

    scale:      as stored: of the tensor's rank, or one element in any rank
    zero_point: of the scale's shape, where the format has one
    outer:      the scales of a scale of two levels
    format:     what codes mean; None where only shapes are known: blocks are those that divide
    shape:      of the quantized tensor; sizes may be symbolic
    more:       further parts, in the order of Format.parts

    Raises ValueError for a scale whose shape contradicts the format's block or the tensor's shape,
    and for a zero point of another shape than the scale.
    """

    scale: Part
    zero_point: Part | None
    outer: Part | None
    format: Format | None
    shape: tuple[Any, ...]
    more: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        scale = self.scale_shape
        if self.zero_point is not None:
            zero = _shape_of(self.zero_point)
            same = len(zero) == len(scale) and not any(map(_differ, zero, scale))
            if not same and not (self.is_per_tensor and _one(zero)):
                self._refuse(f"the zero point has shape {_spell(zero)}")
        if len(scale) != len(self.shape) and not self.is_per_tensor:
            self._refuse(f"a scale of more than one element has rank {len(self.shape)}")
        if not self._flat and len(scale) == len(self.shape):
            self._check_blocks()
        elif not self._flat and self.format is not None:
            self._check_blocks((1,) * len(self.shape))

    def _check_blocks(self, scale: tuple[Any, ...] | None = None) -> None:
        counts = self.scale_shape if scale is None else scale
        for dim, (n, count, size) in enumerate(zip(self.shape, counts, self._sizes, strict=True)):
            if size is None:
                if _is_certain(count < 1) or _is_certain(n % count != 0):
                    self._refuse(f"{count} scales do not divide dimension {dim}")
                continue
            expected = block_counts((n,), (size,))[0]
            if _differ(count, expected):
                self._refuse(
                    f"dimension {dim} has {expected} blocks of the format, found {count} scales"
                )

    def _refuse(self, reason: str) -> None:
        raise ValueError(
            f"{self.format or 'no format'}: a tensor of shape {_spell(self.shape)}, a scale of "
            f"shape {_spell(self.scale_shape)}: {reason}: give a scale with one element for each "
            f"block, of the tensor's rank (or of one element), and a zero point of its shape"
        )

    @classmethod
    def of(cls, source: QTensor | fx.Node) -> "QuantParams":
        """Those of a QTensor, or of a node that quantizes or dequantizes.

        source: a node of blockscale's quantize, dequantize, fake_quantize or choose_quantize, or
            the codes that `getitem(choose_quantize, 0)` takes. Tensors of nodes are nodes.

        Raises ValueError for other nodes, for a dynamic quantize, whose scale nobody sees, and for
        nodes without `meta["val"]`.
        """
        if isinstance(source, QTensor):
            q = source.qparams
            more = tuple(part for part in q[3:] if part is not None)
            return cls(q.scale, q.zero_point, q.outer, source.format, tuple(source.shape), more)
        if _is_item(source, 0):
            source = source.args[0]  # type: ignore[assignment]
        op = op_of(source)
        if op is None or op.name not in _PLACE:
            names = ", ".join(sorted(_PLACE))
            raise ValueError(f"{source.format_node()}: expected a node of blockscale's {names}")
        if op.name == "choose_quantize":
            return _from_node(cls, source)
        own = op.signature.bind(*source.args)[_PLACE[op.name]]
        if own.scale is None:
            raise ValueError(
                f"{source.format_node()}: its scale is dynamic, so there is no node for it: use a "
                "static scale (calibrate), or read it from a QTensor of the run"
            )
        tensor = source if op.name == "dequantize" else source.args[0]
        shape = tuple(_value(tensor).shape)
        return cls(
            own.scale, own.zero_point, own.outer, parse(own.fmt), shape, tuple(own.more or ())
        )

    def quantize(self, x: Tensor, seed: Seed = None) -> Tensor:
        """x [shape] -> its codes [shape] as QTensor.codes has them: integers as such, minifloats
        as bit patterns in uint8 (docs/numerics.md, section 4). No gradient passes.

        seed: for stochastic rounding, as in bs.quantize

        Raises TypeError where the parameters are nodes, or x has no floats; ValueError where they
        have no format, for an x of another shape and for parts that the format does not have.
        """
        form, qparams = self._numbers(x, "x")
        seeds = seed_tensor(seed, x.device) if form.rounding == "stochastic" else None
        packed = primitives.quantize(x.detach(), quantizer(qparams, form, seeds))
        return _unpacked(packed, form, x.shape)

    def dequantize(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Codes [shape], as `quantize` gives them -> their values [shape] in `dtype` (section 5).

        Raises as `quantize`; TypeError for codes of another dtype than the format's, ValueError
        for codes that the format does not have.
        """
        form, qparams = self._numbers(codes, "codes")
        expected = form.element.code_dtype
        if codes.dtype != expected:
            raise TypeError(
                f"{form}: expected codes of {expected}, found {codes.dtype}: pass what "
                "bs.quantize or QTensor.codes returns"
            )
        packed = primitives.pack(codes, form.spelling)
        if not torch.equal(_unpacked(packed, form, codes.shape), codes):
            low, high = (int(end) for end in codes.aminmax())
            raise ValueError(
                f"{form}: codes of {form.bits} bits, found {low} ... {high}: pass what "
                "bs.quantize or QTensor.codes returns"
            )
        size = codes.shape[-1] if codes.ndim else 1
        values: Tensor = primitives.dequantize(operand(packed, qparams, form, size), dtype)
        return values

    def _numbers(self, x: Tensor, name: str) -> tuple[Format, QParams]:
        """The format and its parts as tensors, in the shapes that ops take."""
        parts: tuple[Any, ...] = (self.scale, self.outer, self.zero_point, *self.more)
        if nodes := [part for part in parts if isinstance(part, fx.Node)]:
            raise TypeError(
                f"{nodes[0]} is a node of a graph, whose values are not known here: use the "
                "parameters of a QTensor, or call bs.graph.convert and run the graph"
            )
        form = self._meaning()
        if tuple(x.shape) != tuple(self.shape):
            raise ValueError(
                f"{form}: these parameters are of a tensor of shape {_spell(self.shape)}, but "
                f"{name} has shape {_spell(x.shape)}: pass a tensor of that shape"
            )
        scale, outer, zero_point, *more = parts
        result = whole(scale, outer, zero_point, more, form.spelling)._asdict()
        stored = form.stored(self.shape)
        if extra := [
            name for name, part in result.items() if part is not None and name not in stored
        ]:
            raise ValueError(f"{form}: has no {extra[0]}, but one was passed: leave it out")
        own = {
            name: checked_part(form, self.shape, name, result[name], *stored[name])
            for name in stored
        }
        return form, QParams(**own)

    @property
    def dtype(self) -> torch.dtype:
        """Of the codes. Raises ValueError where there is no format."""
        return self._meaning().element.code_dtype

    @property
    def quant_min(self) -> float:
        """The smallest code of integers, the smallest number of other elements. Raises as dtype."""
        form = self._meaning()
        return form.element.limits(form.wide)[0]

    @property
    def quant_max(self) -> float:
        """The largest, as `quant_min`."""
        form = self._meaning()
        return form.element.limits(form.wide)[1]

    def _meaning(self) -> Format:
        if self.format is None:
            raise ValueError(
                "QuantParams has no format, so codes have no meaning: pass one, such as "
                'parse("int8:channel0:fp32")'
            )
        return self.format

    @property
    def scale_shape(self) -> tuple[Any, ...]:
        """The stored scale's shape."""
        return _shape_of(self.scale)

    @property
    def is_per_tensor(self) -> bool:
        """Whether there is one scale, in whatever rank."""
        return _one(self.scale_shape)

    @property
    def is_per_channel(self) -> bool:
        """Whether exactly one dimension of the scale is not 1, with as many as the tensor there."""
        axis = None if self.is_per_tensor or self._flat else self.channel_axis
        return axis is not None and _same(self.scale_shape[axis], self.shape[axis])

    @property
    def is_per_group(self) -> bool:
        """Whether it is neither, and some dimension is cut into blocks of several elements."""
        if self.is_per_tensor or self.is_per_channel:
            return False
        pairs = zip(self.shape, self.scale_shape, strict=True)
        return bool(self._flat) or any(not _same(c, 1) and not _same(c, n) for n, c in pairs)

    @property
    def channel_axis(self) -> int | None:
        """0 if every dimension of the scale is 1; the one that is not, if there is one; else None.
        None for blocks over the flattened tensor, too."""
        split_dims = [dim for dim, count in enumerate(self.scale_shape) if not _same(count, 1)]
        if not split_dims:
            return 0
        return split_dims[0] if len(split_dims) == 1 and not self._flat else None

    @property
    def block_size(self) -> tuple[Any, ...]:
        """The elements of a block along each dimension of the tensor; a last one may have fewer.

        Raises ValueError for blocks over the flattened tensor, which have no size along any.
        """
        if self._flat:
            assert self.format is not None
            self.format.block.sizes_for(len(self.shape))  # raises, and says why
        if self.is_per_tensor:
            return self.shape
        sizes = []
        for n, count, size in zip(self.shape, self.scale_shape, self._sizes, strict=True):
            if size is None:
                sizes.append(n // count)
            else:
                sizes.append(n if size == WHOLE or _same(count, 1) else size)
        return tuple(sizes)

    @property
    def _flat(self) -> int:
        return self.format.block.flat if self.format is not None else 0

    @property
    def _sizes(self) -> Sequence[int | None]:
        """The format's block along each dimension; None where there is no format."""
        if self.format is None:
            return [None] * len(self.shape)
        return self.format.block.sizes_for(len(self.shape))


_PLACE = {"quantize": 1, "fake_quantize": 1, "dequantize": 0, "choose_quantize": 0}
_OF_OVERLOAD: dict[Any, Op] = {}


def op_of(node: fx.Node) -> Op | None:
    """The op of ours that a node calls; None for every other node."""
    if node.op != "call_function":
        return None
    if len(_OF_OVERLOAD) != len(OPS):
        _OF_OVERLOAD.update({op.overload: op for op in OPS.values()})
    return _OF_OVERLOAD.get(node.target)


def _from_node(cls: type[QuantParams], node: fx.Node) -> QuantParams:
    """Of a choose_quantize: the nodes that take its parts."""
    x, fmt = node.args[0], parse(str(node.args[1]))
    by_number = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    parts = {name: by_number.get(place) for place, name in enumerate(fmt.parts, 1)}
    if missing := [name for name, part in parts.items() if part is None]:
        raise ValueError(f"{node.format_node()}: nothing reads its {missing[0]}")
    more = [part for name, part in parts.items() if name not in ("scale", "zero_point", "outer")]
    return cls(
        parts["scale"], parts.get("zero_point"), parts.get("outer"), fmt,  # type: ignore[arg-type]
        tuple(_value(x).shape), tuple(more),  # type: ignore[arg-type]
    )  # fmt: skip


def _unpacked(packed: Tensor, form: Format, shape: Sequence[int]) -> Tensor:
    codes: Tensor = primitives.unpack(packed, form.spelling, shape[-1] if shape else 1)
    return codes.reshape(tuple(shape))


def _is_item(node: fx.Node, place: int) -> bool:
    return bool(node.target is operator.getitem and node.args[1] == place)


def _value(part: Any) -> Tensor:
    """The tensor, or what is known of it where it is a node."""
    if isinstance(part, Tensor):
        return part
    value = part.meta.get("val")
    if isinstance(value, Tensor):
        return value
    owner = part.graph.owning_module
    if part.op == "get_attr" and owner is not None:
        item: Any = operator.attrgetter(part.target)(owner)
        return item
    raise ValueError(
        f"{part.format_node()}: the shape of its result is not known (no meta['val']): run the "
        f"graph through torch.export.export again"
    )


def _shape_of(part: Part) -> tuple[Any, ...]:
    return tuple(_value(part).shape)


def _differ(a: Any, b: Any) -> bool:
    """Whether two sizes are certain to differ; symbolic ones may be equal for some inputs."""
    return _is_certain(a != b)


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are certain to be equal."""
    return _is_certain(a == b)


def _is_certain(fact: Any) -> bool:
    """Whether a fact about sizes holds whatever the symbolic ones are; leaves no guard behind."""
    if isinstance(fact, bool):
        return fact
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(fact))


def _one(shape: Sequence[Any]) -> bool:
    return all(_same(n, 1) for n in shape)


def _spell(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"
