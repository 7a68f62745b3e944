# SPDX-License-Identifier: BSD-3-Clause
"""A float ONNX model rewritten: codes for weights, round trips for what is multiplied by them."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from blockscale.calibration import observers
from blockscale.core.format import Format
from blockscale.core.ledger import Entry, Ledger
from blockscale.core.operand import Operand
from blockscale.core.pack import to_stored
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.reference import QParams
from blockscale.export.to_onnx import activation, weight, write
from blockscale.export.to_onnx.float_model import (
    FLOATS,
    PASSED,
    STANDARD,
    FloatModel,
    Site,
    attributes,
    read_inside,
)
from blockscale.export.to_onnx.scope import File, Scope, Sizes
from blockscale.ops.quantize import quantize

if TYPE_CHECKING:
    from blockscale.calibration.observer import Observer

Feed = Mapping[str, np.ndarray[Any, Any]]

_FLOATS = (np.float32, np.float16)
_NAMES = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
_ITS_OWN = {*STANDARD, "com.microsoft", "ai.onnx.ml"}  # domains whose ops onnxruntime has
_INSIDE = "a graph inside of a node reads it"
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


# What nodes are given: onnxruntime runs the float model, our observers see the values.


class InputRanges:
    """What values are in a model's calls: their ranges, by observers of formats.

    proto: the model (ModelProto)
    """

    def __init__(self, proto: Any):
        self._proto = proto
        self._observers: dict[tuple[str, str], Observer] = {}

    @property
    def names(self) -> list[str]:
        """The values that are looked at."""
        return list(dict.fromkeys(name for name, _ in self._observers))

    def observe(self, name: str, fmt: Format, observer: str) -> None:
        """Let a value be seen under a format. Raises ValueError as observers do."""
        if (name, str(fmt)) not in self._observers:
            self._observers[name, str(fmt)] = observers.make(observer, fmt)

    def qparams(self, name: str, fmt: Format) -> QParams:
        """The scale that was chosen. Raises ValueError where no finite number was seen."""
        return self._observers[name, str(fmt)].qparams()

    def run(self, feeds: Iterable[Feed]) -> None:
        """Run the calls. Raises ValueError for one that the model refuses, and without any."""
        count = 0
        with session_of(self._proto, self.names) as session:
            inputs = {each.name for each in session.get_inputs()}
            names = [name for name in self.names if name not in inputs]
            for count, feed in enumerate(feeds, 1):
                try:
                    values = session.run(names, dict(feed)) if names else []
                except Exception as error:  # onnxruntime's errors have no common base
                    raise ValueError(
                        f"call {count} of the calibration: onnxruntime cannot run the model on it: "
                        f"{str(error).splitlines()[0]}"
                    ) from error
                self._see(dict(feed) | dict(zip(names, values, strict=True)))
        if not count:
            raise ValueError("the calibration has no calls: give at least one")

    def _see(self, values: Mapping[str, Any]) -> None:
        for (name, _), observer in self._observers.items():
            value = np.ascontiguousarray(values[name])
            if value.dtype in _FLOATS:
                observer.observe(torch.from_numpy(value))


@contextmanager
def session_of(proto: Any, names: Iterable[str]) -> Iterator[Any]:
    """An onnxruntime session of a model that also gives these values."""
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    wider = onnx.ModelProto()
    wider.CopyFrom(proto)
    ends = {each.name for each in (*proto.graph.output, *proto.graph.input)}
    for name in names:
        if name not in ends:
            wider.graph.output.add().name = name
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:  # a message of more than 2 GB cannot be given
        path = Path(folder) / "model.onnx"
        write.save(wider, path)
        providers = ["CPUExecutionProvider"]
        yield onnxruntime.InferenceSession(str(path), options, providers=providers)


# The rewriting itself.


def input_of(recipe: Recipe, site: Site) -> Format | None:
    """The format of what is multiplied by a weight that the recipe covers."""
    scheme, _ = recipe.decide(site.layer)
    return scheme.input if scheme.weight is not None and site.kind in _PRODUCTS else None


@dataclass
class Rewriting:
    """Rewrites a model by a recipe.

    ranges: what inputs are; None: scales are chosen as the model runs
    """

    model: FloatModel
    recipe: Recipe
    ranges: InputRanges | None
    _file: File = field(init=False)
    _entries: dict[str, Entry] = field(default_factory=dict)  # by stored tensor
    _weights: dict[tuple[str, str], Operand] = field(default_factory=dict)
    _values: dict[Any, str] = field(default_factory=dict)  # what was written already

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
        if self.ranges is None and fmt.unchosen:
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
        static = self.ranges is not None and fmt.block.static
        return self.ranges.qparams(site.data, fmt) if static and self.ranges is not None else None

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
        static = fmt is not None and self.ranges is not None and fmt.block.static
        return replace(
            entry, weight=str(scheme.weight), input="" if fmt is None else str(fmt),
            bytes_before=len(tensor.raw_data), bytes_after=_nbytes(stored),
            details="static input" if static else "",
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
            with session_of(proto, ()):
                pass
        except Exception as error:  # onnxruntime's errors have no common base
            raise ValueError(
                f"{path}: {needs.because}, which needs opset {needs.opset}, and there onnxruntime "
                f"cannot run the model: {str(error).splitlines()[0]}; choose a format of integers"
            ) from error

    def _ledger(self, sites: Iterable[Site]) -> Ledger:
        entries = [
            self._entries.get(name) or self._float_entry(name, tensor)
            for name, tensor in self.model.tensors.items()
            if tensor.data_type in FLOATS and prod(tensor.dims) > 1
        ]
        return Ledger(entries, self.recipe.unmatched({site.layer for site in sites}))

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
