# SPDX-License-Identifier: BSD-3-Clause
"""An ONNX file's tensors as a model has them: products read weights [k, n], and layers hold [n, k].

Codes and scales move; none is changed. What is the graph's own, such as shapes and constants, is
left out.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.core.format import Format
from blockscale.core.pack import of_convolution, pack, stored_shape, to_stored, unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.layers.kinds import quantized_class
from blockscale.ops.tensor import QTensor, from_parts

_OTHER_BLOCKS = {"tensor": "tensor", "channel0": "channel1", "channel1": "channel0"}
_GROUP = re.compile(r"group(\d+)(@0)?")


class OnnxInModel(Checkpoint):
    """The tensors of an ONNX file for a model.

    turns: names of weights [k, n] that become [n, k]; layouts: {a convolution's weight: how a layer
    stores it}; of_graph: what is the graph's and not the model's
    """

    def __init__(
        self, inner: Checkpoint, turns: set[str], layouts: Mapping[str, str], of_graph: set[str]
    ):
        super().__init__(inner.path, inner.evidence)
        self.inner, self.producer, self.metadata = inner, inner.producer, inner.metadata
        self.warnings, self._turns, self._layouts = inner.warnings, turns, layouts
        for name, stored in inner.stored.items():
            if name not in of_graph:
                self.stored[name] = self._of(stored)

    def _of(self, stored: Stored) -> Stored:
        name, fmt, shape = stored.name, stored.format, stored.shape
        if fmt is not None and name in self._turns:
            fmt, shape = _other_way(fmt), shape[::-1]
        elif fmt is not None and name in self._layouts:
            shape = stored_shape(shape, self._layouts[name])
        flat, dtype = stored.flat, stored.dtype
        return Stored(name, stored.kind, shape, stored.nbytes, fmt, stored.unread, flat, dtype)

    def _read(self, stored: Stored) -> QTensor | Tensor:
        value = self.inner[stored.name]
        layout = "transposed" if stored.name in self._turns else self._layouts.get(stored.name)
        return _again(value, stored, layout) if layout and isinstance(value, QTensor) else value

    def file_of(self, name: str) -> Path:
        return self.inner.file_of(name)


def in_model(
    inner: Checkpoint, model: nn.Module, inputs_first: set[str], constants: set[str]
) -> Checkpoint:
    """The file's tensors for a model.

    inputs_first: names of the weights that products read [k, n]; constants: of tensors that are
        held by nodes, and of scales of layers' inputs
    """
    state = model.state_dict(keep_vars=True)
    turns, layouts = set[str](), dict[str, str]()
    for name in state:
        stored = inner.stored.get(name)
        if stored is None or stored.format is None:
            continue
        layout = _layout(model, name)
        if len(stored.shape) == 2 and name in inputs_first and layout in ("plain", "transposed"):
            turns |= {name} if _other_way(stored.format) else set()
        elif of_convolution(layout) and _by_rows(stored):
            layouts[name] = layout
    names = {*state, *(name for name, _ in model.named_buffers())}
    has_own = any("." not in name for name in names)
    of_graph = {
        name
        for name, stored in inner.stored.items()
        if name not in names and stored.format is None and not stored.unread
        if name in constants or not _is_float(stored) or not (has_own or "." in name)
    }
    return OnnxInModel(inner, turns, layouts, of_graph)


def _layout(model: nn.Module, name: str) -> str:
    """How the layer of a weight stores it; empty for what is no weight of a layer."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner) if attribute == "weight" else None
    kind = None if module is None else quantized_class(module)
    if module is None or kind is None or kind.refuses(module) is not None:
        return ""
    return kind.layout_of(module)


def _is_float(stored: Stored) -> bool:
    return stored.dtype is not None and stored.dtype.is_floating_point


def _by_rows(stored: Stored) -> bool:
    """Whether a convolution's codes have a scale for all, or one for each of the first channels."""
    assert stored.format is not None
    return len(stored.shape) > 2 and parse(stored.format).block.name in ("tensor", "channel0")


def _other_way(spelling: str) -> str:
    """The format of a matrix [k, n] when it is [n, k]; empty where no format says it."""
    block = parse(spelling).block.name
    match = _GROUP.fullmatch(block)
    turns = _OTHER_BLOCKS.get(block, "")
    if match is not None:
        turns = f"group{match[1]}" + ("" if match[2] else "@0")
    element, _, rest = spelling.split(":", 2)
    return f"{element}:{turns}:{rest}" if turns else ""


def _again(value: QTensor, stored: Stored, layout: str) -> QTensor:
    """Codes and scales of a weight in the order of `layout`."""
    assert stored.format is not None
    fmt = parse(stored.format)
    codes = to_stored(unpack(value.packed, fmt.element, value.shape), layout).contiguous()
    parts = {name: _move(getattr(value.qparams, name), fmt, name, layout) for name in fmt.parts}
    for name, (dtype, shape) in fmt.stored(stored.shape).items():
        parts[name] = parts[name].to(dtype).reshape(shape).contiguous()
    size = stored.shape[-1]
    return from_parts(fmt, size, {"codes": pack(codes, fmt.element), **parts})


def _move(part: Tensor | None, fmt: Format, name: str, layout: str) -> Tensor:
    """A scale, zero point or offset of a block; those of all blocks stay."""
    assert part is not None, f"{fmt} has no {name}"
    moves = layout == "transposed" and part.ndim == 2 and name not in ("outer", "book")
    return part.mT if moves else torch.clone(part)
