# SPDX-License-Identifier: BSD-3-Clause
"""Quantized weights in other producers' safetensors files: one producer a file, found by its name.

Such a file says which stored tensors are a weight, and how to decode it. It defines

    PRODUCER: str             whose layout it is, as people call it
    METHODS: tuple[str, ...]  the values of `quant_method` in a model's configuration that name it;
                              () if names and dtypes alone identify it
    find(kinds, config, read) -> LayoutTensors

A directory is shown to the layouts whose METHODS its configuration names, then to the others that
have METHODS, then to those without; each sees what none before it has taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blockscale.core import import_all
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import StoredKind
from blockscale.ops.tensor import QTensor

# What a producer's file in layouts/ says: which stored tensors are a weight, and how to decode it.
#
# A module of blockscale/export/checkpoints/layouts/ defines
#
#     PRODUCER: str             whose layout it is, as people call it     METHODS: tuple[str, ...]
# the values of `quant_method` in a model's configuration that name it;
# () if names and dtypes alone identify it       find(kinds, config, read) -> LayoutTensors
#
# A directory is shown to the layouts whose METHODS its configuration names, then to the others that
# have METHODS, then to those without; each sees what none before it has taken.

Kinds: TypeAlias = Mapping[str, StoredKind]  # {stored name: (dtype, None if not torch's; shape)}
Parts: TypeAlias = Mapping[str, Tensor]  # {role: the stored tensor, as it is in the file}
Read: TypeAlias = Callable[[Sequence[str]], dict[str, Tensor]]  # for small tensors: all of each


@dataclass(frozen=True)
class Weight:
    """A quantized weight of another producer.

    kind: what its producer calls how it is stored, such as "gptq 4 bits"
    shape: of the values, as the float weight has it: [outputs, inputs] for a linear layer
    parts: {role: stored name}; the roles are the layout's own
    format: the spelling of the format as which it is read; None where it cannot be
    unread: why it cannot be read; empty where it can
    decode: {role: stored tensor} -> the QTensor of `shape` with the producer's values. Raises
        ValueError for parts that no producer writes
    order: {role: stored tensor} -> int64 [inputs], for groups of inputs in another order than that
        of the weight: column i of what `decode` gives is column order[i] of the weight. None where
        they are in the weight's order
    dtype: of what the producer's own dequantizer gives: `decode(…).dequantize(dtype)` has its bits
    values: {role: stored tensor} -> those values, where they are not that to the bit: where it
        rounds in other places than our formats. None where they are
    codes: the role of its codes, where `decode` also takes them on the meta device, so that scales
        and zero points are read alone; empty where it does not
    first: {role: stored tensor} -> some of its first rows, where they are decoded in a fraction of
        the whole's time; None where they are not
    flat: the file does not tell the weight's shape: `shape` is a matrix with a group in each row
    """

    kind: str
    shape: tuple[int, ...]
    parts: Mapping[str, str]
    format: str | None = None
    unread: str = ""
    decode: Callable[[Parts], QTensor] | None = None
    order: Callable[[Parts], Tensor] | None = None
    dtype: torch.dtype = torch.float32
    values: Callable[[Parts], Tensor] | None = None
    flat: bool = False
    codes: str = ""
    first: Callable[[Parts], QTensor] | None = None


@dataclass(frozen=True)
class Input:
    """How a layer's input is quantized when it runs.

    format: its spelling; parts: {role: stored name} of what is static of it; decode: these tensors
    -> {part of ours: tensor}, as blockscale.layers.store.QInput restores them
    """

    format: str
    parts: Mapping[str, str]
    decode: Callable[[Parts], Mapping[str, Tensor]]


@dataclass
class LayoutTensors:
    """What a layout finds among a file's or directory's tensors.

    weights: {name of the float weight: how it is stored}
    inputs: {layer: how its input is quantized}, where that is known
    beside: names of all stored tensors that are parts of them, or of their description
    evidence: what tells that they are this producer's; empty where nothing was found
    warnings: what is odd about them, such as a version that the values contradict
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)
    evidence: str = ""
    warnings: list[str] = field(default_factory=list)
    inputs: dict[str, Input] = field(default_factory=dict)

    def add(self, name: str, weight: Weight, *beside: str) -> None:
        """A weight, whose parts are then taken, and other tensors that belong to it."""
        self.weights[name] = weight
        self.beside |= {*weight.parts.values(), *beside}


@dataclass
class Findings(LayoutTensors):
    """What all layouts found together. producers: {name of the float weight: whose it is}."""

    producers: dict[str, str] = field(default_factory=dict)


def find_weights(kinds: Kinds, config: Mapping[str, Any], read: Read) -> Findings:
    """What the layouts find among these tensors, each among those that are left.

    Raises FileError for a configuration that is damaged, and for a weight that is there twice.
    """
    findings, rest = Findings(), dict(kinds)
    for module in _in_order(config.get("quant_method")):
        one: LayoutTensors = module.find(rest, config, read)
        for name in one.weights:
            if name in findings.weights or (name in kinds and name not in one.beside):
                raise FileError(f"{name} appears twice, once in the layout of {module.PRODUCER}")
            findings.producers[name] = module.PRODUCER
        findings.weights |= one.weights
        findings.inputs |= one.inputs
        findings.beside |= one.beside
        findings.warnings += one.warnings
        if one.weights:
            findings.evidence = "; ".join(filter(None, [findings.evidence, one.evidence]))
        rest = {name: kind for name, kind in rest.items() if name not in one.beside}
    return findings


def layouts() -> list[Any]:
    """All layouts there are, in the order of their names."""
    modules = import_all(__name__, __path__)
    return [module for module in modules if hasattr(module, "find")]


def _in_order(method: object) -> list[Any]:
    return sorted(layouts(), key=lambda m: 0 if method in m.METHODS else 2 - bool(m.METHODS))
