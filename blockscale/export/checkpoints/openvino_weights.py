# SPDX-License-Identifier: BSD-3-Clause
"""Which constants of an IR are weights in codes: the chains of layers that make floats of them.

    Const -> Convert -> [Subtract zero points] -> Multiply scales -> [Reshape] -> [Convert]

and for a codebook Gather(table, Const -> Convert) in the place of Convert. A Convert to f16 rounds;
products are float32 (seen in OpenVINO 2026.4 on a CPU with the precision hint f32).
"""

from dataclasses import dataclass

from blockscale.export.checkpoints.openvino_graph import Constant, IRGraph, IRLayer

Shape = tuple[int, ...]
_CODES = (
    "u1", "u2", "u3", "u4", "u6", "u8", "i4", "i8", "nf4", "f4e2m1", "f8e4m3", "f8e5m2",
)  # fmt: skip
_WIDER = ("f16", "f32", "bf16")


@dataclass(frozen=True)
class IRWeight:
    """A weight in codes.

    shape: of the values; block: of ours, and `scale_shape` what scales have in it
    scale, outer: of the steps; zero: zero points; table: of a codebook; halves: whether steps
    are converted to f16; beside: shapes and the like that say how
    """

    codes: Constant
    shape: Shape
    scale: Constant
    outer: Constant | None = None
    zero: Constant | None = None
    table: Constant | None = None
    block: str = ""
    halves: bool = False
    unread: str = ""
    beside: tuple[Constant, ...] = ()

    @property
    def constants(self) -> list[Constant]:
        """All that is stored for it."""
        every = (self.codes, self.scale, self.outer, self.zero, self.table)
        return [each for each in every if each is not None]


def find_weights(graph: IRGraph, constants: dict[str, Constant]) -> dict[str, IRWeight]:
    """{id of the codes: the weight}."""
    found = {}
    for each in constants.values():
        if each.type in _CODES and (weight := _Chain(graph, constants).follow(each)) is not None:
            found[each.id] = weight
    scales = {part.id for weight in found.values() for part in weight.constants[1:]}
    return {key: weight for key, weight in found.items() if key not in scales}


class _Chain:
    """Follows what is made of one constant."""

    def __init__(self, graph: IRGraph, constants: dict[str, Constant]):
        self._graph, self._constants = graph, constants
        self._zero: Constant | None = None
        self._table: Constant | None = None
        self._beside: list[Constant] = []

    def follow(self, codes: Constant) -> IRWeight | None:
        """The weight of these codes; None where no such chain begins with them."""
        at = self._only(codes.id, "Convert")
        if at is None:
            return None
        gather = self._only(at.id, "Gather")
        if gather is not None and gather.inputs[1:2] == [at.id]:
            self._table = self._source(gather.inputs[0])[0]
            self._aside(gather, 2)
            at = gather
        if (subtract := self._only(at.id, "Subtract")) is not None:
            self._zero = self._other(subtract, at.id)[0]
            if self._zero is None or subtract.inputs[0] != at.id:
                return None
            at = subtract
        multiply = self._only(at.id, "Multiply")
        if multiply is None or (at.type == "Gather" and self._table is None):
            return None
        scale, outer, halves = self._scale(multiply, at.id)
        return None if scale is None else self._made(codes, multiply, scale, outer, halves)

    def _made(
        self,
        codes: Constant,
        multiply: IRLayer,
        scale: Constant,
        outer: Constant | None,
        halves: bool,
    ) -> IRWeight:
        shape, reshape = codes.shape, self._only(multiply.id, "Reshape")
        if reshape is not None and -1 not in reshape.shape:
            shape = reshape.shape
            self._aside(reshape, 1)
        block = block_of(codes.shape, scale.shape, shape)
        unread = ""
        if block is None:
            told = f"scales {list(scale.shape)} of codes {list(codes.shape)}, values {list(shape)}"
            unread, block = f"{told}: no block here matches", ""
        elif self._zero is not None and self._zero.elements not in (1, scale.elements):
            unread = f"it has {self._zero.elements} zero points for {scale.elements} scales"
        return IRWeight(
            codes, shape, scale, outer, self._zero, self._table, block, halves, unread,
            tuple(self._beside),
        )  # fmt: skip

    def _aside(self, layer: IRLayer, place: int) -> None:
        """Note a constant that says how, if nothing else reads it."""
        for of in layer.inputs[place : place + 1]:
            if of in self._constants and len(self._graph.readers[of]) == 1:
                self._beside.append(self._constants[of])

    def _only(self, of: str, kind: str) -> IRLayer | None:
        """The layer of a kind that reads a layer; None if none does, or several."""
        found = [each for each in self._graph.readers.get(of, []) if each.type == kind]
        return found[0] if len(found) == 1 else None

    def _other(self, layer: IRLayer, known: str) -> tuple[Constant | None, bool]:
        others = [each for each in layer.inputs if each != known]
        return self._source(others[0]) if len(others) == 1 else (None, False)

    def _source(self, of: str) -> tuple[Constant | None, bool]:
        """The constant that a layer is or converts, and whether to f16."""
        layer, half = self._graph.layers[of], False
        if layer.type == "Convert" and layer.inputs:
            half = layer.data.get("destination_type") == "f16"
            layer = self._graph.layers[layer.inputs[0]]
        return self._constants.get(layer.id), half

    def _scale(
        self, multiply: IRLayer, known: str
    ) -> tuple[Constant | None, Constant | None, bool]:
        """The scales of a product: a constant, or bytes times one number, converted."""
        found, half = self._other(multiply, known)
        if found is not None:
            return found, None, half and found.type == "f8e8m0"
        others = [each for each in multiply.inputs if each != known]
        layer = self._graph.layers[others[0]] if len(others) == 1 else multiply
        if layer.type == "Convert" and layer.inputs:
            half = layer.data.get("destination_type") == "f16"
            layer = self._graph.layers[layer.inputs[0]]
        if layer.type != "Multiply" or layer is multiply or len(layer.inputs) != 2:
            return None, None, False
        pair = [self._source(each)[0] for each in layer.inputs]
        if pair[0] is None or pair[1] is None:
            return None, None, False
        inner, outer = sorted((each for each in pair if each), key=lambda c: -c.elements)
        return (inner, outer, half) if outer.elements == 1 else (None, None, False)


def block_of(codes: Shape, scale: Shape, values: Shape) -> str | None:
    """The block of values whose codes and scales are multiplied in these shapes, or None."""
    if len(scale) > len(codes):
        return None
    scale = (1,) * (len(codes) - len(scale)) + scale
    if any(s not in (1, n) for s, n in zip(scale, codes, strict=True)):
        return None
    block = [1 if s == n and n > 1 else n for s, n in zip(scale, codes, strict=True)]
    if values != codes:
        block_or_none = _merged(codes, values, block)
        if block_or_none is None:
            return None
        block = block_or_none
    return _spelled(values, block)


def _merged(codes: Shape, values: Shape, block: list[int]) -> list[int] | None:
    """Sizes of blocks where two neighbouring dimensions became one."""
    for at in range(len(codes) - 1):
        if (*codes[:at], codes[at] * codes[at + 1], *codes[at + 2 :]) != values:
            continue
        outer, inner = block[at], block[at + 1]
        if inner in (1, codes[at + 1]) and (outer == 1 or inner == codes[at + 1]):
            return [*block[:at], outer * inner, *block[at + 2 :]]
    return None


def _spelled(values: Shape, block: list[int]) -> str:
    whole = [b == n for b, n in zip(block, values, strict=True)]
    if all(whole):
        return "tensor"
    rest = [i for i, each in enumerate(whole) if not each or (values[i] == 1 and block[i] == 1)]
    if len(rest) == 1 and block[rest[0]] == 1:
        return f"channel{rest[0]}"
    apart = [i for i, b in enumerate(block) if b != 1]
    if len(apart) == 1:
        place = "" if apart[0] == len(values) - 1 else f"@{apart[0]}"
        return f"group{block[apart[0]]}{place}"
    return "block" + "x".join(str(b) for b in block)
