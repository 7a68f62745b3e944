# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of a file can be quantized, and how they lie in memory.

A file does not say what kind of layer a tensor belongs to. Shape and name do, nearly always:

    2 dimensions                         a Linear or Embedding, or GPT-2's Conv1D (transposed)
    *.weight, 4 or 5 dimensions          a convolution
    *.weight, 3 dimensions, last <= 32   a 1-d convolution: kernels are short, matrices are not
    3 dimensions otherwise               a stack of matrices, such as the experts of a mixture

A weight that its layer computes of what is stored (weight_norm, spectral_norm) is judged as what is
computed; of three dimensions it is a convolution's.

What stays in float by default is what `quantize_` leaves in float (layers.defaults): one plan.

A convolution with a bias whose size is not that of dimension 0 is a transposed one. Without a bias,
or with as many inputs as outputs, it is taken for a plain one, and such a layer gets floats when
the directory is loaded.
"""

import re
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.joined_weights import of_stack
from blockscale.core.ledger import Status
from blockscale.core.pack import grouped_layout, stored_shape
from blockscale.core.recipe import BiasFormat, Recipe, Scheme
from blockscale.core.reference import FLOATS
from blockscale.files.directory.computed import ComputedWeight, as_folded, computed_weights
from blockscale.files.directory.model_files import ModelFiles
from blockscale.files.directory.stacks import Types, stacked, types_of
from blockscale.files.directory.tied import tied_in
from blockscale.files.header import StoredTensor
from blockscale.files.stream import Reader
from blockscale.layers.defaults import kept_by_default, kept_layer_by_default
from blockscale.layers.ties import Codes, why_tied

# Families whose Conv1D layers store [inputs, outputs] (transformers.pytorch_utils.Conv1D).
CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder")
LAYERS = ("matrix", "convolution")  # what layers' weights seem to be, if they are called weight
_CONV1D_LAYERS = ("c_attn", "c_proj", "c_fc", "q_attn")
_LONGEST_KERNEL = 32
_EXPERTS = re.compile(r"(^|[._])(moe|experts?)([._]|$)")  # no convolution, however short its rows
_UNKNOWN = {
    "tensor": "no known layer has a weight of this name with so many dimensions",
    "parametrization": "part of a parametrized weight: remove the parametrization and save again",
}


class Eligibility(NamedTuple):
    """What a tensor seems to be, whether it is to be quantized, and why not if so.

    format: what it is quantized in: of a stack, that in which each matrix is as if it were alone
    """

    kind: str
    status: Status
    layout: str = "plain"
    reason: str = ""
    format: Format | None = None


class Known(NamedTuple):
    """What a directory says of its layers beside their names and shapes.

    conv1d: whether its model is of GPT-2's family (`has_conv1d`)
    biases: {layer: the size of its bias}
    types: of the model, as its config says
    computed: {name: a weight that its layer computes of what is stored}
    folded: the layers of these of which a tensor is quantized: all that they compute is folded
    tied: {a weight: the others of the model that are the same, but that no file has}
    """

    conv1d: bool
    biases: Mapping[str, int]
    types: Types = Types()
    computed: Mapping[str, ComputedWeight] = MappingProxyType({})
    folded: frozenset[str] = frozenset()
    tied: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def shown(self, shard: str, tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
        """The tensors of a shard, those that are folded in place of their parts."""
        folded = {n: w for n, w in self.computed.items() if w.computed.owner in self.folded}
        return as_folded(shard, tensors, folded)

    def whole(self, name: str) -> str:
        """What a tensor is a part of, or its own name."""
        return next((n for n, w in self.computed.items() if name in w.computed.parts), name)


def has_conv1d(config: dict[str, Any] | None) -> bool:
    """Whether a model, or a model inside it (an encoder, a decoder), is of GPT-2's family."""
    return bool(types_of(config).names & {*CONV1D_MODELS})


def known_of(files: ModelFiles, recipe: Recipe) -> Known:
    """What config, biases and computed weights, of all shards, say of the layers."""
    biases: dict[str, int] = {}
    for name in files.shards:
        with Reader(files.root / name) as reader:
            for each, source in reader.tensors.items():
                if each.endswith(".bias") and len(source.shape) == 1:
                    biases[each.removesuffix(".bias")] = source.shape[0]
    types, computed = types_of(files.config), computed_weights(files)
    tied = tied_in(files)
    known = Known(has_conv1d(files.config), biases, types, computed, tied=tied)
    folded = {
        each.computed.owner
        for name, each in computed.items()
        if judge(name, each.tensor, *recipe.decide(name), known).format is not None
    }
    return known._replace(folded=frozenset(folded))


def judge(
    name: str, tensor: StoredTensor, scheme: Scheme, pattern: str | None, known: Known
) -> Eligibility:
    """What becomes of tensor `name` by itself under the scheme that `pattern` of the recipe gives
    it; `settled` says what becomes of it with those that it is tied to."""
    kind, layout = _kind(name, tensor.shape, known)
    dtype = tensor.torch_dtype
    told = str(dtype).removeprefix("torch.") if dtype else tensor.dtype
    if dtype not in FLOATS and not tensor.dtype.startswith(
        "F"
    ):  # F64 and F8_E4M3 are floating point
        return Eligibility(kind, "kept", reason=f"{told}, not floating point")
    if prod(tensor.shape) == 0:
        return Eligibility(kind, "kept", reason="empty")
    if kind == "vector":
        return Eligibility(kind, "kept", reason="a vector, such as a norm's weight or a bias")
    if scheme.weight is None:
        why = "the recipe has no format for its weight"
        return Eligibility(
            kind, "kept", reason=f"pattern {pattern!r} of the recipe" if pattern else why
        )
    if dtype not in FLOATS:
        return Eligibility(
            kind, "skipped", reason=f"{told}; only float32, bfloat16 and float16 can be quantized"
        )
    if pattern is None and (kept := _kept(name, tensor.shape, kind)):
        return Eligibility(kind, "kept", reason=kept)
    if kind in _UNKNOWN:
        return Eligibility(kind, "skipped", reason=_UNKNOWN[kind])
    stored = stored_shape(tensor.shape, layout)
    try:
        fmt = _by_profile(kind, stored, scheme.of_weight(dtype, stored))
        if kind != "convolution":
            fmt = of_stack(fmt, stored, stacked(name, tensor.shape, known.types).parts)
        fmt.stored(stored)
    except ValueError as error:
        return Eligibility(kind, "skipped", reason=str(error))
    return Eligibility(kind, "quantized", layout, format=fmt)


def settled(
    name: str,
    tensor: StoredTensor,
    scheme: Scheme,
    pattern: str | None,
    recipe: Recipe,
    known: Known,
) -> Eligibility:
    """The same, where the weight is that of other layers as well: they share its codes, or none of
    them is quantized (layers.ties)."""
    found = judge(name, tensor, scheme, pattern, known)
    tied = known.tied.get(name, ())
    if found.format is None or not tied:
        return found
    wanted = {_layer(name): _codes_of(found, scheme)}
    for other in tied:
        decided = recipe.decide(other)
        wanted[_layer(other)] = _codes_of(judge(other, tensor, *decided, known), decided[0])
    reason = why_tied(_layer(name), wanted)
    return Eligibility(found.kind, "skipped", reason=reason) if reason else found


def _layer(name: str) -> str:
    return name.removesuffix(".weight")


def _codes_of(found: Eligibility, scheme: Scheme) -> Codes | None:
    if found.format is None:
        return None
    return Codes(str(found.format), found.layout, scheme.profile)


def _by_profile(kind: str, stored: tuple[int, ...], scheme: Scheme) -> Format:
    """The format of a weight, whose codes a profile may make: ValueError where it does not."""
    assert scheme.weight is not None
    if scheme.profile is None:
        return scheme.weight
    if kind not in LAYERS:
        raise ValueError(f"profile {scheme.profile} is only for the weights of layers")
    scheme.profile.check_blocks(torch.Size(stored))
    return scheme.weight


def _kept(name: str, shape: tuple[int, ...], kind: str) -> str:
    """Why a tensor stays in float unless a rule names it, by the list that models go by, too."""
    if kind == "parametrization":
        return ""
    if kind in LAYERS and name.endswith(".weight"):  # of a layer, most often
        return kept_layer_by_default(name, shape)
    return kept_by_default(name, shape)


def biased_layers(files: ModelFiles, recipe: Recipe, known: Known) -> set[str]:
    """The layers of all shards whose weight is quantized, and whose bias therefore may be."""
    layers: set[str] = set()
    for name in files.shards:
        with Reader(files.root / name) as reader:
            for each, source in known.shown(name, reader.tensors).items():
                layer, _, attribute = each.rpartition(".")
                kind, status, *_ = settled(each, source, *recipe.decide(each), recipe, known)
                if (attribute, status) == ("weight", "quantized") and kind in LAYERS:
                    layers.add(layer)
    return layers


def why_not_slabs(fmt: Format) -> str | None:
    """Why no tensor can be quantized into this format a slab at a time, or None."""
    if fmt.element.learned:
        return (
            "its table is learned from a whole tensor, and this command reads slabs of one: "
            "use bs.quantize_"
        )
    return fmt.unchosen


def why_not_vector(tensor: StoredTensor, fmt: BiasFormat) -> str | None:
    """Why a layer's bias cannot be quantized into this format, or None."""
    if isinstance(fmt, SumInteger):
        return f"{fmt} counts steps of a static input, which only bs.calibrate and training choose"
    if tensor.torch_dtype not in FLOATS:
        told = str(tensor.torch_dtype or tensor.dtype).removeprefix("torch.")
        return f"{told}; only float32, bfloat16 and float16 can be quantized"
    if len(tensor.shape) != 1 or not prod(tensor.shape):
        return f"{tensor.shape} is not the bias of a layer"
    if fmt.unchosen:
        return f"its format is {fmt}: {fmt.unchosen}"
    try:
        fmt.block.scale_shape(tensor.shape)
    except ValueError as error:
        return str(error)
    return None


def _kind(name: str, shape: tuple[int, ...], known: Known) -> tuple[str, str]:
    """(what it seems to be, its layout)."""
    module, _, last = name.rpartition(".")
    weight, rank = last == "weight", len(shape)
    if ".parametrizations." in name and rank > 1:
        return "parametrization", "plain"
    flat = sum(size > 1 for size in shape) < 2
    long = rank > 2 and prod(shape[:-1]) == 1 and shape[-1] > _LONGEST_KERNEL  # no convolution's
    if rank < 2 or (flat and (long or not weight)):
        return "vector", "plain"
    if rank == 2:
        transposed = known.conv1d and weight and module.rpartition(".")[2] in _CONV1D_LAYERS
        return "matrix", "transposed" if transposed else "plain"
    short = rank == 3 and shape[-1] <= _LONGEST_KERNEL and not _EXPERTS.search(module)
    if weight and (rank in (4, 5) or short or (rank == 3 and name in known.computed)):
        return "convolution", _convolution(shape, known.biases.get(module))
    return ("stack", stacked(name, shape, known.types).layout) if rank == 3 else ("tensor", "plain")


def _convolution(shape: tuple[int, ...], bias: int | None) -> str:
    """The layout of a convolution's weight, whose layer has a bias of this size."""
    first, second = shape[:2]
    if bias in (None, 0, first) or not second or bias % second or first % (bias // second):
        return "channels_last"
    return grouped_layout(bias // second)
