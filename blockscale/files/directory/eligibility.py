# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of a file can be quantized, and how they lie in memory.

A file does not say what kind of layer a tensor belongs to. Shape and name do, nearly always:

    2 dimensions                         a Linear or Embedding, or GPT-2's Conv1D (transposed)
    *.weight, 4 or 5 dimensions          a convolution
    *.weight, 3 dimensions, last <= 32   a 1-d convolution: kernels are short, matrices are not
    3 dimensions otherwise               a stack of matrices, such as the experts of a mixture

A weight that its layer computes of what is stored (weight_norm, spectral_norm) is judged as what is
computed; of three dimensions it is a convolution's.

What becomes of it then is decided as `quantize_` decides it (layers.decisions): one plan.

A convolution with a bias whose size is not that of dimension 0 is a transposed one. Without a bias,
or with as many inputs as outputs, it is taken for a plain one, and such a layer gets floats when
the directory is loaded.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.format import Format
from blockscale.core.pack import grouped_layout
from blockscale.core.recipe import BiasFormat, Recipe
from blockscale.core.reference import FLOATS
from blockscale.files.directory.computed import ComputedWeight, as_folded, computed_weights
from blockscale.files.directory.model_files import ModelFiles
from blockscale.files.directory.stacks import Types, stacked, types_of
from blockscale.files.directory.tied import tied_in
from blockscale.files.header import StoredTensor
from blockscale.files.stream import Reader
from blockscale.layers.decisions import (
    Outcome,
    Role,
    Weight,
    codes_of,
    decide,
    why_not_bias_format,
    why_not_dtype,
    why_tied,
)
from blockscale.layers.parameters import of_experts

# Families whose Conv1D layers store [inputs, outputs] (transformers.pytorch_utils.Conv1D).
CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder")
LAYERS = ("matrix", "convolution")  # what layers' weights seem to be, if they are called weight
_CONV1D_LAYERS = ("c_attn", "c_proj", "c_fc", "q_attn")
_LONGEST_KERNEL = 32
_EXPERTS = re.compile(r"(^|[._])(moe|experts?)([._]|$)")  # no convolution, however short its rows
_PARAMETRIZED = "part of a parametrized weight: remove the parametrization and save again"


class Eligibility(NamedTuple):
    """What a tensor seems to be and how it lies, and what the recipe makes of it."""

    kind: str
    layout: str
    outcome: Outcome


class DirectoryFacts(NamedTuple):
    """What a directory says of its layers beside their names and shapes.

    conv1d: whether its model is of GPT-2's family (`has_conv1d`)
    biases: {layer: the size of its bias}
    types: of the model, as its config says
    computed_weights: {name: a weight that its layer computes of what is stored}
    folded: the layers of these of which a tensor is quantized: all that they compute is folded
    tied: {a weight: the others of the model that are the same, but that no file has}
    """

    conv1d: bool
    biases: Mapping[str, int]
    types: Types = Types()
    computed_weights: Mapping[str, ComputedWeight] = MappingProxyType({})
    folded: frozenset[str] = frozenset()
    tied: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def view(self, shard: str, tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
        """The tensors of a shard, those that are folded in place of their parts."""
        folded = {
            n: w for n, w in self.computed_weights.items() if w.definition.owner in self.folded
        }
        return as_folded(shard, tensors, folded)

    def whole(self, name: str) -> str:
        """What a tensor is a part of, or its own name."""
        return next(
            (n for n, w in self.computed_weights.items() if name in w.definition.parts), name
        )


def has_conv1d(config: dict[str, Any] | None) -> bool:
    """Whether a model, or a model inside it (an encoder, a decoder), is of GPT-2's family."""
    return bool(types_of(config).names & {*CONV1D_MODELS})


def known_of(files: ModelFiles, recipe: Recipe) -> DirectoryFacts:
    """What config, biases and computed weights, of all shards, say of the layers."""
    biases: dict[str, int] = {}
    for name in files.shards:
        with Reader(files.root / name) as reader:
            for each, source in reader.tensors.items():
                if each.endswith(".bias") and len(source.shape) == 1:
                    biases[each.removesuffix(".bias")] = source.shape[0]
    types, weights = types_of(files.config), computed_weights(files)
    tied = tied_in(files)
    facts = DirectoryFacts(has_conv1d(files.config), biases, types, weights, tied=tied)
    folded = {
        each.definition.owner
        for name, each in weights.items()
        if judge(name, each.tensor, recipe, facts).outcome.format is not None
    }
    return facts._replace(folded=frozenset(folded))


def judge(name: str, tensor: StoredTensor, recipe: Recipe, facts: DirectoryFacts) -> Eligibility:
    """What becomes of tensor `name` by itself; `settle` says what becomes of it with those that it
    is tied to."""
    kind, layout = _kind(name, tensor.shape, facts)
    return Eligibility(kind, layout, decide(_describe(name, tensor, kind, layout, facts), recipe))


def _describe(
    name: str, tensor: StoredTensor, kind: str, layout: str, facts: DirectoryFacts
) -> Weight:
    """A tensor of a file, as decisions know it."""
    dtype, shape = tensor.torch_dtype or tensor.dtype, tensor.shape
    stays = "empty" if prod(shape) == 0 else ""
    if dtype not in FLOATS and not tensor.dtype.startswith("F"):  # F64 and F8_E4M3 are floats
        stays = f"{str(dtype).removeprefix('torch.')}, not floating point"
    role: Role = "parameter"
    if kind == "parametrization":
        role = "part"
    elif is_layer(name, kind):
        role = "layer"
    return Weight(
        name=name,
        names=(name,),
        role=role,
        shape=shape,
        dtype=dtype,
        layout=layout,
        parts=1 if kind == "convolution" else stacked(name, shape, facts.types).parts,
        stays=stays,
        refusal=why_not_dtype(dtype) or (_PARAMETRIZED if role == "part" else ""),
    )


def is_layer(name: str, kind: str) -> bool:
    """Whether a tensor seems to be the weight of a layer, not a parameter of any other module."""
    return kind in LAYERS and name.endswith(".weight")


def is_experts(name: str, shape: Sequence[int], kind: str, facts: DirectoryFacts) -> bool:
    """Whether a tensor is a stack of experts, whose input may have a format."""
    if is_layer(name, kind) or len(shape) not in (2, 3):
        return False
    each = stacked(name, shape, facts.types)
    stack = kind == "stack" or each.parts > 1 or each.layout != "plain"
    return stack and of_experts(name, *facts.types.names)


def settle(name: str, tensor: StoredTensor, recipe: Recipe, facts: DirectoryFacts) -> Eligibility:
    """The same, where the weight is that of other layers as well: they share its codes, or none of
    them is quantized."""
    verdict = judge(name, tensor, recipe, facts)
    tied = facts.tied.get(name, ())
    if verdict.outcome.format is None or not tied:
        return verdict
    every = {name: verdict} | {other: judge(other, tensor, recipe, facts) for other in tied}
    codes = {_layer(n): codes_of(each.outcome, each.layout) for n, each in every.items()}
    reason = why_tied(_layer(name), codes)
    return verdict._replace(outcome=Outcome("skipped", reason)) if reason else verdict


def _layer(name: str) -> str:
    return name.removesuffix(".weight")


def biased_layers(files: ModelFiles, recipe: Recipe, facts: DirectoryFacts) -> set[str]:
    """The layers of all shards whose weight is quantized, and whose bias therefore may be."""
    layers: set[str] = set()
    for name in files.shards:
        with Reader(files.root / name) as reader:
            for each, source in facts.view(name, reader.tensors).items():
                kind, _, outcome = settle(each, source, recipe, facts)
                if outcome.format is not None and is_layer(each, kind):
                    layers.add(each.removesuffix(".weight"))
    return layers


def why_not_slabs(fmt: Format) -> str | None:
    """Why no tensor can be quantized into this format a slab at a time, or None."""
    if fmt.element.learned:
        return (
            "its table is learned from a whole tensor, and this command reads slabs of one: "
            "use bs.quantize_"
        )
    return fmt.unchosen


def why_not_vector(tensor: StoredTensor, fmt: BiasFormat) -> str:
    """Why a layer's bias cannot be quantized into this format; empty if it can."""
    if isinstance(fmt, SumInteger):
        return f"{fmt} counts steps of a static input, which only bs.calibrate and training choose"
    if reason := why_not_dtype(tensor.torch_dtype or tensor.dtype):
        return reason
    if len(tensor.shape) != 1 or not prod(tensor.shape):
        return f"{tensor.shape} is not the bias of a layer"
    return why_not_bias_format(tensor.shape, fmt)


def _kind(name: str, shape: tuple[int, ...], facts: DirectoryFacts) -> tuple[str, str]:
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
        transposed = facts.conv1d and weight and module.rpartition(".")[2] in _CONV1D_LAYERS
        return "matrix", "transposed" if transposed else stacked(name, shape, facts.types).layout
    short = rank == 3 and shape[-1] <= _LONGEST_KERNEL and not _EXPERTS.search(module)
    if weight and (rank in (4, 5) or short or (rank == 3 and name in facts.computed_weights)):
        return "convolution", _convolution(shape, facts.biases.get(module))
    return ("stack", stacked(name, shape, facts.types).layout) if rank == 3 else ("tensor", "plain")


def _convolution(shape: tuple[int, ...], bias: int | None) -> str:
    """The layout of a convolution's weight, whose layer has a bias of this size."""
    first, second = shape[:2]
    if bias in (None, 0, first) or not second or bias % second or first % (bias // second):
        return "channels_last"
    return grouped_layout(bias // second)
