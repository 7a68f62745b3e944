# SPDX-License-Identifier: BSD-3-Clause
"""A float ONNX model rewritten: codes for weights, round trips for what is multiplied by them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import torch

from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.operand import Operand
from blockscale.core.pack import to_stored
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.reference import QParams
from blockscale.export.to_onnx import activation, weight, write
from blockscale.export.to_onnx.float_layers import Correction, FileCalibration, session_of
from blockscale.export.to_onnx.float_model import (
    FLOATS,
    PASSED,
    STANDARD,
    TYPES,
    FloatModel,
    Site,
    attributes,
    bytes_of,
    read_inside,
)
from blockscale.export.to_onnx.scope import File, Scope, Sizes
from blockscale.ops.quantize import quantize

_NAMES = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
_ITS_OWN = {*STANDARD, "com.microsoft", "ai.onnx.ml"}  # domains whose ops onnxruntime has
_INSIDE = "a graph inside of a node reads it"
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


def input_of(recipe: Recipe, site: Site) -> Format | None:
    """The format of what is multiplied by a weight that the recipe covers."""
    scheme, _ = recipe.decide(site.layer)
    return scheme.input if scheme.weight is not None and site.kind in _PRODUCTS else None


@dataclass
class Rewriting:
    """Rewrites a model by a recipe.

    calibration: what was chosen from data; None: weights are rounded, and scales are chosen as the
        model runs
    corrects: whether biases are to make up for what quantizing does to mean outputs
    """

    model: FloatModel
    recipe: Recipe
    calibration: FileCalibration | None = None
    corrects: bool = False
    _file: File = field(init=False)
    _entries: dict[str, Entry] = field(default_factory=dict)  # by stored tensor
    _weights: dict[tuple[str, str], Operand] = field(default_factory=dict)
    _values: dict[Any, str] = field(default_factory=dict)  # what was written already
    _biases: list[Entry] = field(default_factory=list)  # those that are new
    _first: dict[str, Site] = field(default_factory=dict)  # the first site of a stored tensor

    def __post_init__(self) -> None:
        self._opset = _opset(self.model.proto)
        self._file = File(most=self._opset)

    def run(self, path: str) -> Ledger:
        """Rewrite the model (path, for errors), in place; what became of its tensors.

        Raises ValueError if nothing can be quantized.
        """
        graph = self.model.proto.graph
        self._file.reserve(_names(graph))
        sites = {site.number: site for site in self.model.sites()}
        reasons = {number: self._decide(site) for number, site in sites.items()}
        to_write = {n: site for n, site in sites.items() if not reasons[n]}
        if not to_write:
            lines = [f"{entry.name}: {entry.reason}" for entry in self._entries.values()][:3]
            raise ValueError(
                f"{path}: nothing can be quantized: "
                + ("; ".join(lines) or "no layer of it reads a stored tensor of floats")
            )
        self._file.transposed = self._transposed_tables(to_write.values())
        nodes: list[Any] = []
        for number, node in enumerate(graph.node):
            site = to_write.get(number)
            nodes += [node] if site is None else self._rewrite(site)
        self._assemble(nodes)
        if self._file.needs.opset > self._opset:
            self._check_runs(path)
        if self.calibration is not None and self.corrects:
            for correction in self.calibration.correct_biases(to_write.values()):
                self._put_bias(correction)
        return self._ledger(sites.values())

    def _decide(self, site: Site) -> str:
        """Why a weight stays in float, perhaps "", which its entry says, too."""
        scheme, pattern = self.recipe.decide(site.layer)
        shape = self.model.shape(site.tensor)
        entry = Entry(site.layer, site.kind, "quantized", elements=prod(shape))
        status, reason = "kept", ""
        if scheme.weight is None:
            reason = (
                f"pattern {pattern!r} of the recipe"
                if pattern
                else "the recipe has no format for weights"
            )
        elif site.tensor in self.model.hidden:
            status, reason = "skipped", _INSIDE
        else:
            status, reason = "skipped", self._refusal(site, scheme)
        if reason:
            entry = replace(entry, status=status, reason=reason)  # type: ignore[arg-type]
        else:
            entry = self._quantized(site, scheme, entry)
        before = self._entries.get(site.tensor)
        if before is None or before.status != "quantized":
            self._entries[site.tensor] = entry
        return reason

    def _refusal(self, site: Site, scheme: Scheme) -> str:
        """Why a layer cannot have this scheme, or ""."""
        assert scheme.weight is not None
        key = site.tensor, site.layout
        codes = None if self.calibration is None else self.calibration.weight(site)
        if codes is not None:
            self._weights.setdefault(key, codes)
        if key not in self._weights:
            values = self.model.values(site.tensor)
            try:
                rows = to_stored(values, site.layout).contiguous()
                self._weights[key] = quantize(rows, scheme.weight).operand
            except ValueError as error:
                return str(error)
        fmt = input_of(self.recipe, site)
        return "" if fmt is None else self._input_refused(site, fmt) or ""

    def _input_refused(self, site: Site, fmt: Format) -> str | None:
        if fmt.gives_outer:
            return f"the outer scale of its input, {fmt}, is given, which no file is calibrated for"
        if self.calibration is None and fmt.unchosen:
            return f"its input in {fmt}: {fmt.unchosen}: calibrate"
        if fmt.block.name != "tensor" and (site.at == 0 or _turns_data(site)):
            return f"blocks of its input, {fmt}, run along what it does not add up: use 'tensor'"
        try:
            qparams = self._qparams(site, fmt)
        except ValueError as error:
            return f"its input in {fmt}: {error}"
        sizes = self._sizes(site, fmt)
        if sizes is None:
            return (
                f"the rank of its input {site.data} is not known, which {fmt} needs: use 'tensor'"
            )
        reason = activation.refusal(fmt, qparams, sizes)
        return f"its input in {fmt}: {reason}" if reason else None

    def _qparams(self, site: Site, fmt: Format) -> QParams | None:
        """The static scale of an input; None for one that is chosen as the model runs."""
        if self.calibration is None or not fmt.block.static:
            return None
        return self.calibration.qparams(site)

    def _sizes(self, site: Site, fmt: Format) -> Sizes | None:
        """The sizes of an input as its blocks see it, free but for the last; None: not known."""
        if fmt.block.name == "tensor":
            return (None, None)
        features = self._weights[site.tensor, site.layout].shape[-1]
        if site.kind in ("Conv", "ConvTranspose"):
            shape = self.model.shape(site.tensor)
            groups = int(attributes(site.node).get("group", 1))
            channels = shape[0] if site.kind == "ConvTranspose" else shape[1] * groups
            return (*[None] * (len(shape) - 1), channels)
        rank = 2 if site.kind == "Gemm" else self._ranks.get(site.data)
        return None if rank is None else (*[None] * (rank - 1), features)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        """{value: its rank}, where onnx can tell."""
        from onnx import shape_inference

        graph = shape_inference.infer_shapes(self.model.proto).graph
        return {
            each.name: len(each.type.tensor_type.shape.dim)
            for each in (*graph.input, *graph.value_info)
            if each.type.tensor_type.HasField("shape")
        }

    def _quantized(self, site: Site, scheme: Scheme, entry: Entry) -> Entry:
        tensor, stored = self.model.tensors[site.tensor], self._weights[site.tensor, site.layout]
        fmt = input_of(self.recipe, site)
        self._first.setdefault(site.tensor, site)
        return replace(
            entry, weight=str(scheme.weight), input="" if fmt is None else str(fmt),
            bytes_before=len(tensor.raw_data), bytes_after=_nbytes(stored),
        )  # fmt: skip

    def _transposed_tables(self, sites: Iterable[Site]) -> set[str]:
        """The tables that a product reads [k, n], so that rows are looked up in the same codes."""
        return {
            site.name
            for site in sites
            if site.kind != "Gather"
            and weight.as_products_read_it(self._weights[site.tensor, site.layout], site.moves)
        }

    def _rewrite(self, site: Site) -> list[Any]:
        """The nodes that take a site's place."""
        scope = Scope(self._file, site.layer)
        stored, dtype = self._weights[site.tensor, site.layout], self._dtype(site)
        if site.kind == "Gather":
            result = weight.rows(scope, site.name, stored, site.data, dtype)
            write.rename_value(scope.nodes, result, site.node.output[0])
            return scope.nodes
        key = site.tensor, site.layout, site.moves
        if key not in self._values:
            self._values[key] = weight.weight(scope, site.name, stored, site.moves, dtype)
        fmt = input_of(self.recipe, site)
        if fmt is not None:
            site.node.input[1 if site.at == 0 else 0] = self._round_trip(scope, site, fmt)
        site.node.input[site.at] = self._values[key]
        return [*scope.nodes, site.node]

    def _dtype(self, site: Site) -> torch.dtype:
        return FLOATS[self.model.tensors[site.tensor].data_type]

    def _round_trip(self, scope: Scope, site: Site, fmt: Format) -> str:
        """What is left of an input; written once for all layers that read it."""
        transposed = site.kind in ("Conv", "ConvTranspose") and fmt.block.name != "tensor"
        key = site.data, str(fmt), transposed
        if key in self._values:
            return self._values[key]
        sizes, dtype = self._sizes(site, fmt), self._dtype(site)
        assert sizes is not None  # `_refused` asked
        x = site.data if dtype == torch.float32 else scope.cast(site.data, "FLOAT")
        rank = len(sizes)
        if transposed:
            x = scope.op("Transpose", x, perm=[0, *range(2, rank), 1])
        qparams = self._qparams(site, fmt)
        x = activation.activation(scope, f"{site.layer}.input", x, fmt, qparams, sizes)
        if transposed:
            x = scope.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])
        self._values[key] = x if dtype == torch.float32 else scope.cast(x, _NAMES[dtype])
        return self._values[key]

    def _assemble(self, nodes: list[Any]) -> None:
        """Put nodes and stored tensors into the model; drop what no node reads any more."""
        graph, proto = self.model.proto.graph, self.model.proto
        nodes = _living(nodes, {each.name for each in graph.output} | self.model.hidden)
        write.put_nodes(graph, nodes)
        read = {name for node in nodes for name in node.input} | self.model.hidden
        read |= {each.name for each in graph.output}
        for values in (graph.initializer, graph.input):
            for i in reversed(range(len(values))):
                if values[i].name in self.model.tensors and values[i].name not in read:
                    del values[i]
        write.put_tensors(graph, self._file)
        names = read | {name for node in nodes for name in node.output}
        infos = [value for value in graph.value_info if value.name in names]
        del graph.value_info[:]
        graph.value_info.extend(infos)
        write.stamp(proto, max(self._opset, self._file.needs.opset))

    def _check_runs(self, path: str) -> None:
        """Raise ValueError where onnxruntime has no kernel for an op of the later opset."""
        proto, needs = self.model.proto, self._file.needs
        if not {each.domain for each in proto.opset_import} <= _ITS_OWN:
            return  # ops that are somebody's own, with or without codes
        try:
            session_of(proto)
        except Exception as error:  # onnxruntime's errors have no common base
            raise ValueError(
                f"{path}: {needs.because}, which needs opset {needs.opset}, and there onnxruntime "
                f"cannot run the model: {str(error).splitlines()[0]}; choose a format of integers"
            ) from error

    def _put_bias(self, correction: Correction) -> None:
        """Write a bias in the place of a node's own, or as its first."""
        graph, (output, at, own) = self.model.proto.graph, correction.place
        [node] = [each for each in graph.node if output in each.output]
        raw = bytes_of(correction.values.detach())
        if own and list(_read_by(graph)).count(own) == 1:
            [stored] = [each for each in graph.initializer if each.name == own]
            stored.raw_data = raw
            return
        name, kind = self._file.name(correction.name), TYPES[correction.values.dtype]
        dims = self.model.shape(own) if own else tuple(correction.values.shape)
        graph.initializer.add(name=name, data_type=kind, dims=dims, raw_data=raw)
        if own:
            node.input[at] = name
        else:
            node.input.extend([""] * (at - len(node.input)) + [name])
        entry = self._float_entry(name, graph.initializer[-1])
        self._biases.append(replace(entry, bytes_before=0))

    def _ledger(self, sites: Iterable[Site]) -> Ledger:
        how, notes = ({}, ()) if self.calibration is None else self.calibration.entries()
        for tensor, site in self._first.items():
            if (own := how.get(site.number)) is not None:
                entry = self._entries[tensor]
                self._entries[tensor] = replace(entry, details=own.details, notes=own.notes)
        entries = [
            self._entries.get(name) or self._float_entry(name, tensor)
            for name, tensor in self.model.tensors.items()
            if tensor.data_type in FLOATS and prod(tensor.dims) > 1
        ]
        patterns = self.recipe.unmatched({site.layer for site in sites})
        return Ledger([*entries, *self._biases], patterns, notes=notes)

    def _float_entry(self, name: str, tensor: Any) -> Entry:
        size = len(tensor.raw_data)
        reason = "no layer multiplies by it" if len(tensor.dims) > 1 else "a vector"
        reason = _INSIDE if name in self.model.hidden else reason
        return Entry(
            name, "stored tensor", "kept", reason=reason, elements=prod(tensor.dims),
            bytes_before=size, bytes_after=size,
        )  # fmt: skip


def _opset(proto: Any) -> int:
    return next(int(each.version) for each in proto.opset_import if each.domain in STANDARD)


def _turns_data(site: Site) -> bool:
    return site.kind == "Gemm" and bool(attributes(site.node).get("transA", 0))


def _nbytes(stored: Operand) -> int:
    parts = (stored.codes, *stored.qparams)
    return sum(part.nbytes for part in parts if part is not None)


def _read_by(graph: Any) -> Iterator[str]:
    """Every name that something reads, as often as it does."""
    for node in graph.node:
        yield from (*node.input, *read_inside([node]))
    yield from (each.name for each in graph.output)


def _names(graph: Any) -> Iterator[str]:
    """Every name that values and nodes of a graph have."""
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
    for each in (*graph.input, *graph.output, *graph.initializer):
        yield each.name


def _living(nodes: list[Any], results: set[str]) -> list[Any]:
    """Without nodes that only moved weights which are codes now."""
    living, results = [], set(results)
    for node in reversed(nodes):
        if node.op_type in PASSED and not results & set(node.output):
            continue
        results.update(node.input, read_inside([node]))
        living.append(node)
    return living[::-1]
