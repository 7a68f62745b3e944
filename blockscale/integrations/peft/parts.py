# SPDX-License-Identifier: BSD-3-Clause
"""Adapters beside layers of which each process has a part (bs.parallel.shard_).

Every process holds the whole adapter, and computes with what its part of the layer needs of it.
Gradients are sums over the processes, so that adapters stay the same on all: states, files, norms
of gradients and optimizers are those of one process, and need to know nothing of parts.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from blockscale.parallel.collectives import shared, summed
from blockscale.parallel.parts import (
    ColwiseFloat,
    ColwiseLinear,
    Place,
    RowwiseFloat,
    RowwiseLinear,
)

_BEGINS = (True, False, "gaussian")  # init_lora_weights that look at no weight


def part_of(layer: Any) -> Place | None:
    """Which part of a layer this process has; None where it has all of it."""
    at = getattr(layer, "at", None)
    return at if isinstance(at, Place) else None


def check_part(name: str, config: Any) -> None:
    """Raise ValueError for an adapter beside a part that begins with the layer's whole weight."""
    if config.init_lora_weights not in _BEGINS:
        raise ValueError(
            f"{name}: init_lora_weights={config.init_lora_weights!r} looks at the whole weight, of "
            "which this process has a part: set it to True, False or 'gaussian', or put the "
            "adapter in before bs.parallel.shard_ and load it afterwards"
        )


def take_part(layer: Any, adapter: str) -> None:
    """Let a new adapter of a LoRA layer be the same on all processes, and compute for the part that
    this one has. Nothing is done beside a whole layer.

    Raises ValueError for adapters that read the weight when they run (DoRA and others).
    """
    base = layer.get_base_layer()
    at = part_of(base)
    if at is None:
        return
    if adapter in layer.lora_variant:
        raise ValueError(
            f"{type(layer.lora_variant[adapter]).__name__} reads the whole weight, of which this "
            "process has a part: leave use_dora and the like out of the config"
        )
    _agree(layer, adapter, at)
    linear = isinstance(base, ColwiseLinear | ColwiseFloat | RowwiseLinear | RowwiseFloat)
    rows = isinstance(base, RowwiseLinear | RowwiseFloat)
    if not linear or (at.whole_io and not rows):
        return  # its outputs are whole on every process, as its inputs are
    dropout: Any = layer.lora_dropout[adapter]
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    down.has_dropout = isinstance(dropout, nn.Dropout)
    if down.has_dropout and (not rows or at.whole_io):
        dropout.__class__ = PartDropout
        dropout.at = at
    down.__class__ = RowwiseDown if rows else ColwiseDown
    down.at = up.at = at
    if not rows:
        up.__class__ = ColwiseUp


def _agree(layer: Any, adapter: str, at: Place) -> None:
    """Broadcast the first process's numbers, as each process has drawn its own."""
    for name in layer.adapter_layer_names:
        adapters = getattr(layer, name)
        if adapter not in adapters:
            continue
        own = adapters[adapter]
        for each in [own] if isinstance(own, Tensor) else own.parameters():
            if not each.is_meta:
                dist.broadcast(each.data, dist.get_global_rank(at.group, 0), at.group)


class PartDropout(nn.Dropout):
    """Each process drops other inputs for its part, so gradients are summed where these were."""

    at: Place

    def forward(self, x: Tensor) -> Tensor:
        """x [...], the same on all processes -> [...]."""
        return super().forward(shared(x, self.at.group)) if self.training else x


class ColwiseDown(nn.Linear):
    """A of an adapter beside some of a layer's outputs: the same result on all processes."""

    at: Place
    has_dropout: bool

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., r]."""
        if self.has_dropout and self.training:
            return functional.linear(x, shared(self.weight, self.at.group))
        return shared(functional.linear(x, self.weight), self.at.group)


class ColwiseUp(nn.Linear):
    """B of an adapter beside some of a layer's outputs."""

    at: Place

    def forward(self, x: Tensor) -> Tensor:
        """x [..., r] -> [..., own outputs]."""
        group, bias = self.at.group, self.bias
        own = None if bias is None else self.at.of(shared(bias, group), 0)
        return functional.linear(x, self.at.of(shared(self.weight, group), 0), own)


class RowwiseDown(nn.Linear):
    """A of an adapter beside some of a layer's inputs: products of parts are summed."""

    at: Place
    has_dropout: bool

    def forward(self, x: Tensor) -> Tensor:
        """x [..., own inputs], or all of them -> [..., r]."""
        group = self.at.group
        if self.at.whole_io:
            x = self.at.of(x if self.has_dropout and self.training else shared(x, group), -1)
        own = self.at.of(shared(self.weight, group), 1)
        return summed(functional.linear(x, own), group)


def check_whole(layer: Any) -> None:
    """Raise ValueError for a layer of which this process has a part: it has no weight to read or to
    merge into."""
    if part_of(layer) is not None:
        raise ValueError(
            "this process has a part of the layer (bs.parallel.shard_): to merge an adapter, save "
            "it (save_pretrained) and merge it into the model that one process loads; to train the "
            "layer as a whole, leave it out of the plan"
        )
