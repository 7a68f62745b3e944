# SPDX-License-Identifier: BSD-3-Clause
"""A decoder's keys and values as codes and scales, in and out of an ONNX file.

    past_key_values.0.key.codes ─┐ decode ─┐
    past_key_values.0.key.scale ─┤         Concat ─→ attention, as before
    new keys, floats ────────────┼─────────┘
             └─ quantize ────────┴─ Concat ─→ present.0.key.codes, present.0.key.scale

New keys and values are read in float once and as codes from then on, as `QuantizedCache` reads
them with window=0 and chunk=1. Codes of 4 bits lie two in a byte, the first in its low bits:
runtimes join and hand over no tensors of narrower types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockscale.core.block import WHOLE
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale
from blockscale.export.to_onnx import encode
from blockscale.export.to_onnx.decoder import Decoder
from blockscale.export.to_onnx.scope import File, Scope, split
from blockscale.export.to_onnx.steps import decode

_KINDS = {"fp32": "FLOAT", "fp16": "FLOAT16"}  # of scales, and as runtimes take them
_AXIS = 2  # of tokens: [rows, heads, tokens, features]


@dataclass(frozen=True)
class _States:
    """Keys or values of one layer: names in and out, heads and features, and their format."""

    past: str
    present: str
    heads: int
    features: int
    fmt: Format

    @property
    def groups(self) -> int:
        """Scales of one token and head."""
        size = self.fmt.block.sizes_for(4)[-1]
        return 1 if size == WHOLE else self.features // size

    @property
    def row(self) -> int:
        """Stored codes of one token and head: numbers of 8 bits, or bytes of two."""
        return self.features * self.fmt.bits // 8

    @property
    def parts(self) -> dict[str, tuple[str, int]]:
        """{part: (its type in ONNX, the size of its last dimension)}."""
        kind, scale = "INT8" if self.fmt.bits == 8 else "UINT8", self.fmt.scale
        assert isinstance(scale, FloatScale)  # `cache_format` takes no other
        return {"codes": (kind, self.row), "scale": (_KINDS[scale.name], self.groups)}


def held_format(spec: str | Format) -> Format:
    """A format in which files hold keys and values. Raises ValueError for all others."""
    fmt = parse(spec)
    sizes = () if fmt.block.flat else fmt.block.sizes_for(4)
    simple = type(fmt.element) is Integer and fmt.bits in (4, 8) and fmt.element.signed
    plain = not (fmt.asym or fmt.offset is not None) and fmt.rounding == "nearest_even"
    if not simple or not plain or not _is_float(fmt) or sizes[:3] != (1, 1, 1):
        raise ValueError(
            f"cache={fmt.spelling!r}: a file holds keys and values of int8 or int4 with a float32 "
            "or float16 scale for each token, or for groups of its features, such as "
            "'int8:token:fp32' or 'int4:group32:fp32'"
        )
    return fmt


def cache_format(spec: str | Format, decoder: Decoder) -> Format:
    """The format of a file's keys and values. Raises ValueError for one that it cannot hold."""
    fmt = held_format(spec)
    size = fmt.block.sizes_for(4)[3]
    for heads in decoder.shapes:
        for _, features in heads:
            if features * fmt.bits % 8 or (size > 0 and features % size):
                raise ValueError(
                    f"cache={fmt.spelling!r}: a head has {features} features, which are no whole "
                    f"{'bytes' if size < 1 or features % size == 0 else f'groups of {size}'}: "
                    "choose groups that divide them"
                )
    return fmt


def _is_float(fmt: Format) -> bool:
    return isinstance(fmt.scale, FloatScale) and fmt.scale.name in _KINDS


def put_codes_in(graph: Any, decoder: Decoder, fmt: Format) -> None:
    """Let a file's graph (GraphProto) take and give codes and scales, in place."""
    file = File()
    file.reserve(name for node in graph.node for name in (node.name, *node.output))
    file.reserve(each.name for each in (*graph.initializer, *graph.input, *graph.output))
    every = {each.present: each for each in _states(decoder, fmt)}
    scope = Scope(file, "")
    floats = {present: f"{present}.floats" for present in every}
    for states in every.values():  # first of all: others may ask how long the past is
        scope.within = states.past
        floats[states.past] = _read(scope, states)
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = floats.get(name, name)
        scope.nodes.append(node)
        new_states = every.get(node.output[0]) if node.output else None
        if new_states is not None:
            scope.within = new_states.past
            _write(scope, new_states, _new_states(new_states, node, floats))
    nodes = scope.nodes
    del graph.node[:]
    graph.node.extend(nodes)
    _describe(graph.input, every.values(), past=True)
    _describe(graph.output, every.values(), past=False)


def _states(decoder: Decoder, fmt: Format) -> Iterator[_States]:
    for layer, pair in enumerate(decoder.shapes):
        for kind, (heads, features) in zip(("key", "value"), pair, strict=True):
            past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            yield _States(past, present, heads, features, fmt)


def _new_states(states: _States, node: Any, floats: Mapping[str, str]) -> str:
    """What is new, of the Concat (NodeProto) of past and new, which gives floats from now on.
    Raises ValueError where the model makes its cache in another way."""
    past = floats[states.past]
    if node.op_type != "Concat" or len(node.input) != 2 or node.input[0] != past:
        raise ValueError(
            f"{states.present} is made by {node.op_type}, and not of the past and what is new: "
            "a file of this model holds its cache in float alone (cache=True)"
        )
    node.output[0] = floats[states.present]
    return str(node.input[1])


def _read(scope: Scope, states: _States) -> str:
    """The past in float32 from codes and scales."""
    element, features = states.fmt.element, states.features
    codes, scale = f"{states.past}.codes", f"{states.past}.scale"
    if states.fmt.bits == 8:
        values = scope.cast(codes, "FLOAT")
    else:
        apart = scope.op("Unsqueeze", codes, scope.ints(-1))
        apart = scope.op("BitwiseAnd", apart, _bytes(scope, 15, 240))
        apart = scope.op("BitShift", apart, _bytes(scope, 0, 4), direction="RIGHT")
        values = decode(scope, scope.cast(apart, "INT32"), element)
    step = scale if states.parts["scale"][0] == "FLOAT" else scope.cast(scale, "FLOAT")
    size = features // states.groups
    values = scope.op("Reshape", values, scope.ints(0, 0, 0, states.groups, size))
    step = scope.op("Unsqueeze", step, scope.ints(-1))
    return scope.op("Reshape", scope.op("Mul", values, step), scope.ints(0, 0, 0, features))


def _write(scope: Scope, states: _States, new: str) -> None:
    """Codes and scales of what is new behind those of the past."""
    fmt = states.fmt
    blocks = split(scope, new, fmt.block, (None, None, None, states.features))
    scales = encode.choose(scope, blocks, fmt)
    by = ("Mul", scales.inverse) if scales.inverse else ("Div", scales.step)
    codes = encode.encoded(scope, scope.op(by[0], blocks.x, by[1]), fmt)
    codes = scope.op("Reshape", codes, scope.ints(0, 0, 0, states.features))
    scale = scope.op("Reshape", scales.step, scope.ints(0, 0, 0, states.groups))
    kind = states.parts["scale"][0]
    parts = {
        "codes": scope.cast(codes, "INT8") if fmt.bits == 8 else _packed(scope, states, codes),
        "scale": scale if kind == "FLOAT" else scope.cast(scale, kind),
    }
    for part, name in parts.items():
        past, results = f"{states.past}.{part}", [f"{states.present}.{part}"]
        scope.op("Concat", past, name, results=results, axis=_AXIS)


def _packed(scope: Scope, states: _States, codes: str) -> str:
    """Codes of 4 bits as floats -> two in a byte."""
    negative = scope.op("Less", codes, scope.floats(0.0))
    codes = scope.op("Where", negative, scope.op("Add", codes, scope.floats(16.0)), codes)
    codes = scope.op("Reshape", scope.cast(codes, "UINT8"), scope.ints(0, 0, 0, states.row, 2))
    low, high = (
        scope.op("Squeeze", scope.op("Gather", codes, scope.ints(at), axis=4), scope.ints(4))
        for at in (0, 1)
    )
    high = scope.op("BitShift", high, _bytes(scope, 4), direction="LEFT")
    return scope.op("BitwiseOr", low, high)


def _bytes(scope: Scope, *numbers: int) -> str:
    return scope.constant(np.array(numbers, np.uint8))


def _describe(values: Any, every: Any, *, past: bool) -> None:
    """Inputs or outputs of codes and scales in the place of those of floats."""
    from onnx import TensorProto, helper

    by_name = {each.past if past else each.present: each for each in every}
    entries: list[Any] = []
    for value in values:
        states = by_name.get(value.name)
        if states is None:
            entries.append(value)
            continue
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_param or dim.dim_value or None for dim in dims]
        for part, (kind, last) in states.parts.items():
            type_ = TensorProto.DataType.Value(kind)
            name = f"{value.name}.{part}"
            entries.append(helper.make_tensor_value_info(name, type_, [*sizes[:3], last]))
    del values[:]
    values.extend(entries)


# Sizes that are fixed: every call is of as many rows, tokens and past, as processors want it that
# compile a graph. What the past does not hold yet is masked; after a call it is the last of what
# came out.

SIZES = ("batch_size", "sequence_length", "past_sequence_length")


def fixed_sizes(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """(rows, tokens, past) of a file. Raises ValueError for sizes that are not these three."""
    if sorted(sizes) != sorted(SIZES):
        raise ValueError(f"sizes must be {', '.join(SIZES)}, got {', '.join(sizes) or 'none'}")
    numbers = [sizes[name] for name in SIZES]
    if any(type(each) is not int or each < 1 for each in numbers):
        raise ValueError(f"sizes must be whole numbers of at least 1, got {dict(sizes)}")
    return numbers[0], numbers[1], numbers[2]
