# SPDX-License-Identifier: BSD-3-Clause
"""The layers of a float ONNX model as torch's, so that `bs.calibrate`'s methods choose for them.

onnxruntime runs the model, and each layer is called with what its node is given there. Weights,
static scales and biases are then what `blockscale.calibration` makes of any model's layers.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockscale.calibration.bias import correct_biases
from blockscale.calibration.calibrate import with_notes
from blockscale.calibration.learn import Data, Methods, choose
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.ledger import Entry, SkippedError
from blockscale.core.operand import Operand
from blockscale.core.pack import from_stored, of_convolution, stored_shape, to_stored
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe, Scheme
from blockscale.core.reference import QParams
from blockscale.export.to_onnx import write
from blockscale.export.to_onnx.float_model import (
    BiasPlace,
    FloatModel,
    Site,
    attributes,
    bytes_of,
    inputs_of,
    padding_of,
    pads_by_output,
    read_inside,
)
from blockscale.layers.apply import apply, plans_for
from blockscale.layers.layer import QLayer

_CONVOLUTIONS: dict[int, tuple[Any, Any]] = {  # by the rank of their weight
    3: (nn.Conv1d, nn.ConvTranspose1d),
    4: (nn.Conv2d, nn.ConvTranspose2d),
    5: (nn.Conv3d, nn.ConvTranspose3d),
}


# onnxruntime's view of a model.


def session_of(proto: Any) -> Any:
    """An onnxruntime session of a model (ModelProto), which computes what the file says."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    options.add_session_config_entry("session.x64quantprecision", "1")  # sums do not saturate
    with tempfile.TemporaryDirectory() as folder:  # a message of more than 2 GB cannot be given
        path = Path(folder) / "model.onnx"
        write.save(proto, path)
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(str(path), options, providers=providers)


def ending_at(proto: Any, names: Iterable[str]) -> Any:
    """A copy of a model that gives these values and computes no more than they take."""
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph, needs = result.graph, set(names)
    living = []
    for node in reversed(graph.node):
        if needs & set(node.output):
            needs.update(node.input, read_inside([node]))
            living.append(node)
    write.put_nodes(graph, living[::-1])
    del graph.output[:]
    for name in names:
        graph.output.add().name = name
    return result


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """An array as a tensor that shares its memory; as it is where torch has no such numbers."""
    if array.dtype.kind not in "fiub":
        return array
    whole = np.ascontiguousarray(array).reshape(array.shape)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy())


# The layers.


class FloatLayers(nn.Module):
    """The layers of a model, each called with what onnxruntime says that its node is given.

    Those of one input are children of one module, as query, key and value are in torch's models.

    model: of the file; sites: where it reads weights, in the order in which they run
    sites: by the names of the layers here
    exempt: {number of a site: why it is no layer of torch's}; what stands here only sees its input
    has_codes: whether the model in the file has them, so that all its layers are quantized
    """

    def __init__(self, model: FloatModel, sites: Iterable[Site]):
        super().__init__()
        self.model, self.has_codes = model, False
        self.sites: dict[str, Site] = {}
        self.exempt: dict[int, str] = {}
        self.places = nn.ModuleList()
        self._session: tuple[Any, Any] = None, None
        parameters: dict[tuple[str, str], nn.Parameter] = {}
        last = None
        for site in sites:
            layer = _layer_of(model, site, parameters)
            if isinstance(layer, str):
                self.exempt[site.number] = layer
                layer = _only_input(site, model.shape(site.tensor))
            if site.data != last:
                self.places.append(nn.Module())
            last, place = site.data, self.places[-1]
            name = str(len(place._modules))
            place.add_module(name, layer)
            self.sites[f"places.{len(self.places) - 1}.{name}"] = site

    def forward(self, **call: Any) -> None:
        """Call the layers that somebody watches. Raises ValueError for a call that does not fit.

        Layers that are quantized are so in what onnxruntime runs, for the layers after them.
        """
        layers = {name: self.get_submodule(name) for name in self.sites}
        active = {name: layer for name, layer in layers.items() if layer._forward_hooks}
        values = self._values(call, layers, [self.sites[name].data for name in active])
        for name, layer in active.items():
            site = self.sites[name]
            layer(_input_for(site, layer, values[site.data]))

    def _values(
        self, call: Mapping[str, Any], layers: Mapping[str, nn.Module], names: list[str]
    ) -> dict[str, Any]:
        inputs = inputs_of(self.model.proto.graph)
        unknown = call.keys() - {each.name for each in self.model.proto.graph.input}
        if unknown or inputs.keys() - call.keys():
            raise ValueError(
                f"the call has {', '.join(call) or 'nothing'}, and the model's inputs are "
                f"{', '.join(inputs)}: an array for each, under its name"
            )
        names = [name for name in dict.fromkeys(names) if name not in call]
        if not names:
            return dict(call)
        arrays = {n: each.numpy() if isinstance(each, Tensor) else each for n, each in call.items()}
        key = names, [isinstance(each, QLayer) for each in layers.values()], self.has_codes
        proto = None if key == self._session[0] else self._model_so_far(layers, names)
        try:
            if proto is not None:
                self._session = key, session_of(proto)
            values = self._session[1].run(names, arrays)
        except Exception as error:  # onnxruntime's errors have no common base
            raise ValueError(
                f"onnxruntime cannot run the model on it: {str(error).splitlines()[0]}"
            ) from error
        return {**call, **{n: as_tensor(value) for n, value in zip(names, values, strict=True)}}

    def _model_so_far(self, layers: Mapping[str, nn.Module], names: list[str]) -> Any:
        """The model that gives these values, with the weights of layers that are quantized."""
        proto = ending_at(self.model.proto, names)
        tensors = {each.name: each for each in proto.graph.initializer}
        for name, layer in layers.items():
            own = isinstance(layer, QLayer) and self.sites[name].number not in self.exempt
            if own and not self.has_codes:
                tensors[self.sites[name].tensor].raw_data = self._rounded(name)
        return proto

    def _rounded(self, name: str) -> bytes:
        """A stored tensor, as a quantized layer leaves it."""
        layer, site = cast("QLayer", self.get_submodule(name)), self.sites[name]
        values = layer.qweight.dequantize()
        if not of_convolution(site.layout):
            values = from_stored(values, site.layout, self.model.shape(site.tensor))
        return bytes_of(values)


def _layer_of(
    model: FloatModel, site: Site, parameters: dict[tuple[str, str], nn.Parameter]
) -> nn.Module | str:
    """A site's layer, or why there is none. parameters: weights so far, which sites may share."""
    shape = model.shape(site.tensor)
    convolution = site.kind in ("Conv", "ConvTranspose")
    layer: Any
    if site.kind == "Gather":
        layer = nn.Embedding(shape[0], shape[1], device="meta")
    elif convolution:
        layer = _convolution(site, shape)
    elif len(shape) == 2:
        rows, k = stored_shape(shape, site.layout)
        layer = nn.Linear(k, rows, bias=False, device="meta")
    else:
        layer = "it is a stack of matrices, which have no one matrix of inputs"
    if isinstance(layer, str):
        return layer
    key = site.tensor, site.layout
    if key not in parameters:
        values = model.values(site.tensor)
        values = values if convolution else to_stored(values, site.layout).contiguous()
        parameters[key] = nn.Parameter(values, requires_grad=False)
    layer.weight = parameters[key]
    place = model.bias_of(site)
    if isinstance(place, BiasPlace) and place.tensor:
        layer.bias = nn.Parameter(model.values(place.tensor).reshape(-1), requires_grad=False)
    return cast("nn.Module", layer)


def _only_input(site: Site, shape: tuple[int, ...]) -> nn.Module:
    """A layer whose input is that of a site, in the place of one that torch does not have."""
    groups = int(attributes(site.node).get("group", 1))
    conv = {"Conv": groups * shape[1], "ConvTranspose": shape[0]}
    k = conv.get(site.kind, shape[-1 if site.at == 0 else -2])
    layer = nn.Linear(k, 1, bias=False, device="meta")
    layer.weight = nn.Parameter(torch.ones(1, k), requires_grad=False)
    return layer


def _scheme(recipe: Recipe, site: Site) -> Scheme:
    """The formats of a site's weight, and of an input that can be quantized in a file."""
    scheme, _ = recipe.decide(site.layer)
    fmt = scheme.input
    can = site.kind != "Gather" and fmt is not None and not fmt.gives_outer
    return replace(scheme, input=fmt if can else None, output=None, bias=None)


def _convolution(site: Site, shape: tuple[int, ...]) -> nn.Module | str:
    """A convolution; one that pads its input otherwise than torch can pads nothing."""
    options, kernel, dims = attributes(site.node), shape[2:], len(shape) - 2
    if len(shape) not in _CONVOLUTIONS:
        return f"it is a convolution over {dims} dimensions"
    groups = int(options.get("group", 1))
    settings: dict[str, Any] = {
        "stride": tuple(options.get("strides", [1] * dims)),
        "dilation": tuple(options.get("dilations", [1] * dims)),
        "groups": groups, "bias": False, "device": "meta",
    }  # fmt: skip
    around = padding_of(options, [1] * dims, kernel)
    same_sides = all(before == after for before, after in around)
    kind, opposite = _CONVOLUTIONS[len(shape)]
    if site.kind == "Conv":
        own = same_sides and not pads_by_output(options)
        settings["padding"] = tuple(before for before, _ in around) if own else (0,) * dims
        return cast("nn.Module", kind(shape[1] * groups, shape[0], kernel, **settings))
    if pads_by_output(options) or "output_shape" in options or not same_sides:
        return "what it pads depends on its output, or differs from side to side"
    settings["padding"] = tuple(before for before, _ in around)
    settings["output_padding"] = tuple(options.get("output_padding", [0] * dims))
    return cast("nn.Module", opposite(shape[0], shape[1] * groups, kernel, **settings))


def _input_for(site: Site, layer: Any, x: Tensor) -> Tensor:
    """What a site's node reads, as its layer takes it."""
    if site.kind == "Gather":
        return x.long() % len(layer.qweight.codes if isinstance(layer, QLayer) else layer.weight)
    options = attributes(site.node)
    if of_convolution(site.layout) and not hasattr(layer, "kernel_size"):
        return x.movedim(1, -1)
    if site.kind == "Conv":
        around = padding_of(options, x.shape[2:], layer.kernel_size)
        own = [(each, each) for each in layer.padding]
        if around != own:
            x = F.pad(x, [edge for pair in reversed(around) for edge in pair])
    turns = site.at == 0 or (site.kind == "Gemm" and bool(options.get("transA", 0)))
    return x.mT if turns and site.kind in ("MatMul", "Gemm") and x.ndim > 1 else x


# What is learned of them.


class Correction(NamedTuple):
    """A bias that makes up for a layer's mean error: its place, what it is called if it is new, and
    its values."""

    place: BiasPlace
    name: str
    values: Tensor


class FileCalibration:
    """What `bs.calibrate`'s methods choose for a model's layers from calls, and say of it.

    model: the float model; recipe: whose patterns name its layers
    methods, data: as `bs.calibrate` reads them; the batches are calls {input: tensor}

    Raises ValueError for calls that do not fit and as `bs.calibrate`, SkippedError where
    data.strict asks for it, before the model is changed.
    """

    def __init__(self, model: FloatModel, recipe: Recipe, methods: Methods, data: Data):
        self._data = data._replace(blocks=False)
        self._methods = methods
        schemes = {site.number: _scheme(recipe, site) for site in model.sites()}
        sites = [site for site in model.sites() if schemes[site.number].weight is not None]
        sites = [site for site in sites if site.tensor not in model.hidden]
        self.layers = FloatLayers(model, sites)
        self._names = {site.number: name for name, site in self.layers.sites.items()}
        self._biases = {name: model.bias_of(site) for name, site in self.layers.sites.items()}
        rules: Any = {}
        for name, site in self.layers.sites.items():
            scheme = schemes[site.number]
            if site.number not in self.layers.exempt:
                rules[name] = scheme
            elif scheme.input is not None and scheme.input.block.static:
                rules[name] = replace(scheme, weight=parse("int8_channel"))
        own = Recipe(rules=rules, fused=False)
        try:
            with subnormals_kept():
                plans = plans_for(self.layers, own)
                self._session = choose(self.layers, plans, methods, self._data)
                self._ledger = apply(self.layers, plans, own, self._session.places)
        except ValueError as error:
            raise self._in_words_of_the_file(error) from error

    def _in_words_of_the_file(self, error: ValueError) -> ValueError:
        kind = SkippedError if isinstance(error, SkippedError) else ValueError
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return kind(self._with_names(text))

    def _with_names(self, text: str) -> str:
        """A text in which layers are called as in the file."""

        def name(match: re.Match[str]) -> str:
            site = self.layers.sites.get(match[0])
            return match[0] if site is None else site.layer

        return re.sub(r"places\.\d+\.\d+", name, text)

    def _layer(self, site: Site) -> QLayer | None:
        name = self._names.get(site.number)
        layer = None if name is None else self.layers.get_submodule(name)
        return layer if isinstance(layer, QLayer) else None

    def weight(self, site: Site) -> Operand | None:
        """The codes of a site's weight, as `quantize` gives them; None where none were chosen."""
        layer = None if site.number in self.layers.exempt else self._layer(site)
        return None if layer is None else layer.qweight.operand

    def qparams(self, site: Site) -> QParams:
        """The static scale of a site's input. Raises ValueError where no finite number was seen."""
        layer = self._layer(site)
        if layer is None or layer.input is None or not layer.input.static:
            raise ValueError("no finite number was seen in the calls, so it has no scale")
        parts = layer.input.qparams
        assert parts is not None
        return parts

    def correct_biases(self, sites: Iterable[Site]) -> list[Correction]:
        """The biases that make up for what quantizing does to the mean outputs of these sites; the
        model is the rewritten one, which leaves each its inputs."""
        session, numbers = self._session, {site.number for site in sites}
        some = []
        for plan in session.layers:
            place, number = self._biases[plan.name], self.layers.sites[plan.name].number
            if isinstance(place, str) and plan.kind.takes_input:
                session.details[plan.name].append(place)
            elif number in numbers and number not in self.layers.exempt:
                some.append(plan)
        session.layers, self.layers.has_codes = some, True
        before = {plan.name: self.layers.get_submodule(plan.name).bias for plan in some}
        try:
            correct_biases(self.layers, session, self._data.batches, self._data.padding)
        except ValueError as error:
            raise self._in_words_of_the_file(error) from error
        result = []
        for name, old in before.items():
            bias, place = self.layers.get_submodule(name).bias, self._biases[name]
            if bias is not old and isinstance(bias, Tensor) and isinstance(place, BiasPlace):
                result.append(Correction(place, f"{self.layers.sites[name].layer}.bias", bias))
        return result

    def entries(self) -> tuple[dict[int, Entry], tuple[str, ...]]:
        """{number of a site: an entry of how it was done, and what was noted}; and what is to be
        said of all."""
        ledger = with_notes(self._ledger, self._session)
        by_name = {entry.name: entry for entry in ledger}
        entries = {n: by_name[name] for n, name in self._names.items()}
        for number, why in self.layers.exempt.items():
            own = self._session.details.get(self._names[number], [])
            static = ", ".join(each for each in own if each.startswith("static "))
            looks = self._methods.algorithm is not None
            notes = (f"plain rounding: {why}",) if looks else ()
            entries[number] = Entry("", "", "quantized", details=static, notes=notes)
        return entries, ledger.notes
