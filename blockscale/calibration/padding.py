# SPDX-License-Identifier: BSD-3-Clause
"""Rows that only fill batches up: padding, which stays out of all that is learned, and what no mask
names, of which the ledger has a note."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blockscale.calibration.ranks import Ranks
from blockscale.core.pack import of_convolution
from blockscale.layers.plan import Plan

MASK = "attention_mask"
Callback = Callable[[Tensor, Any], None]  # told of a module's first input, and of its output
_Last = tuple[Callable[[], Tensor | None], int, Tensor | None, Tensor | None]
_NOW: ContextVar[Tensor | None] = ContextVar("mask of the batch that runs", default=None)


class Padding:
    """Which tokens are padding: what masks say that batches carry.

    A layer's rows are left out where its input is [batch, tokens, features] for the mask's batch
    and tokens, or [batch, tokens] of indices. What a model makes of them, such as pooled rows, the
    tokens that are sent to an expert or images, is not told apart: those layers see all, which
    their details say. In a model with encoder and decoder the mask is the encoder's.

    key: of the mask in batches that are mappings: [batch, tokens] of bool, or of 0 and 1, 0 and
        False for padding. None: nothing is left out.
    model: that will run

    Raises ValueError for a key that is no name.
    """

    def __init__(self, key: str | bool | None = None, model: nn.Module | None = None):
        if key is not False and key is not None and not (isinstance(key, str) and key):
            raise ValueError(
                f"padding: expected the name of the mask in the batches, such as {MASK!r}, or None "
                f"to leave nothing out, found {key!r}"
            )
        self.key = key or None
        self.left_out = self.tokens = 0  # of the batches that were counted
        self.odd = ""  # why a mask was not used
        self.unfit: dict[str, str] = {}  # layers whose inputs are not told apart, and how they are
        self._inside = _encoder_of(model)
        self._last: _Last = (lambda: None), 0, None, None

    def mask_of(self, batch: Any) -> Tensor | None:
        """The tokens of a batch that count, bool [batch, tokens]; None if all do, or none says."""
        if self.key is None or not isinstance(batch, Mapping) or batch.get(self.key) is None:
            return None
        mask = batch[self.key]
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        if not isinstance(mask, Tensor) or mask.ndim != 2 or not _zeros_and_ones(mask):
            self.odd = f"{self.key} {shape} is not [batch, tokens] of 0 and 1"
            return None
        if self._inside is None and any(str(name).startswith("decoder_") for name in batch):
            self.odd = f"{self.key} may belong to the encoder or to the decoder"
            return None
        mask = mask.detach().to(torch.bool)
        return None if bool(mask.all()) else mask

    def count(self, batch: Any) -> None:
        """Take account of a batch."""
        mask = self.mask_of(batch)
        self.left_out += 0 if mask is None else int((~mask).sum())
        own = batch.get(self.key) if isinstance(batch, Mapping) else None
        self.tokens += own.numel() if isinstance(own, Tensor) else 0

    @contextmanager
    def during(self, batch: Any) -> Iterator[None]:
        """As long as this lasts, in this thread, the model runs on this batch."""
        token = _NOW.set(self.mask_of(batch))
        try:
            yield
        finally:
            _NOW.reset(token)

    def without(self, plan: Plan, callback: Callback, details: list[str]) -> Callback:
        """A callback for `watch` that tells `callback` without padding. details: of the layer."""

        def tell(x: Tensor, y: Any) -> None:
            mask = _NOW.get()
            if mask is not None and self._fits(plan, x, mask):
                x, y = self._without(x, mask), _rows(y, mask)
            elif mask is not None:
                note = f"padding was not left out: its input {_shape(plan, x)}"
                self.unfit.setdefault(plan.name, note)
                if not any(each.startswith("padding was not left out") for each in details):
                    details.append(note)
            callback(x, y)

        return tell

    def _fits(self, plan: Plan, x: Tensor, mask: Tensor) -> bool:
        inside = self._inside is None or plan.module in self._inside
        rank = 3 if plan.kind.takes_input else 2
        plain = inside and not of_convolution(plan.layout)
        return plain and x.ndim == rank and x.shape[:2] == mask.shape

    def _without(self, x: Tensor, mask: Tensor) -> Tensor:
        """x [batch, tokens, ...] -> its rows; the same tensor for layers side by side."""
        of, version, by, rows = self._last
        if x.is_inference():  # nobody could tell whether it was changed
            tensor: Tensor = _rows(x, mask)
            return tensor
        if of() is not x or version != x._version or by is not mask:
            rows = _rows(x, mask)
            self._last = weakref.ref(x), x._version, mask, rows
        assert isinstance(rows, Tensor)
        return rows

    def blank(self, target: Tensor, batch: Any) -> Tensor:
        """What a model or block should give [batch, tokens, features], NaN where there is padding:
        errors leave that out."""
        mask = self.mask_of(batch)
        if mask is None or target.ndim != 3 or target.shape[:2] != mask.shape:
            return target
        return target.masked_fill(~mask.to(target.device)[..., None], torch.nan)

    def merge(self, ranks: Ranks) -> None:
        """Take account of the batches of all processes."""
        every = ranks.together(lambda: (self.left_out, self.tokens, self.odd))
        self.left_out, self.tokens = sum(e[0] for e in every), sum(e[1] for e in every)
        self.odd = next((odd for *_, odd in every if odd), "")

    def notes(self) -> list[str]:
        """What the ledger is to say of all batches: how much was left out, or why nothing was."""
        if self.left_out:
            return [f"padding left out: {self.left_out} of {self.tokens} tokens by {self.key}"]
        if self.odd:
            return [f"padding, if any, was not left out: {self.odd}"]
        if self.key not in (None, MASK) and not self.tokens:
            return [f"padding, if any, was not left out: no batch has a mask {self.key!r}"]
        return []


def without_padding(x: Tensor) -> Tensor:
    """x without the padding of the batch that runs, if it is [batch, tokens, features]."""
    mask = _NOW.get()
    if mask is None or x.ndim != 3 or x.shape[:2] != mask.shape:
        return x
    rows: Tensor = _rows(x, mask)
    return rows


def _rows(x: Any, mask: Tensor) -> Any:
    """x [batch, tokens, ...] -> [rows, ...]; anything else as it is."""
    if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[:2] != mask.shape:
        return x
    return x[mask.to(x.device)]


def _shape(plan: Plan, x: Tensor) -> str:
    if of_convolution(plan.layout):
        return "is a convolution's"
    return f"{list(x.shape)} may not be [batch, tokens, features]"


def _zeros_and_ones(mask: Tensor) -> bool:
    return mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all())


def _encoder_of(model: nn.Module | None) -> set[nn.Module] | None:
    """The modules of the encoder, in a model of transformers that has a decoder as well."""
    config: Any = getattr(model, "config", None)
    find: Any = getattr(model, "get_encoder", None)
    if not getattr(config, "is_encoder_decoder", False) or not callable(find):
        return None
    return set(find().modules())


# Calibration data that are mostly one thing: silence, blank paper, padding that no mask names.
#
# X^T X of a layer's inputs is then that of the one thing, and GPTQ keeps what the layer makes of it
# at the cost of all else: Whisper tiny.en in w4a16, calibrated on windows of 30 seconds with a
# sentence of 3 in each, made 1.08 errors a word.
#
# What tells such data from others is that rows are like their neighbours, though rows are unlike
# each other: silence keeps its place in the window, so that rows of it that are far apart differ as
# much as any two. Rows are compared by their directions, which a token of a thousand times the
# others' size (an LLM's first one) does not change, and with how far directions are spread in the
# layer, since an LLM's have much in common. docs/calibration.md has the shares of real models.


_PAIRS = 256  # neighbours that are compared in one piece of rows
_LEAST = 64  # pairs that a layer's share is worth a word of
_LEVELS = 81  # distances that are counted: 1, and each 2^(1/4) times less, to float32's rounding
NEAR = 1 / 32  # of the distance that any two rows have: rows nearer than that are alike
MOST = 2 / 3  # of a layer's rows
LAYERS = 1 / 4  # of a model's layers


class Neighbours(NamedTuple):
    """How near to each other neighbouring rows of a layer's inputs are.

    directions: [k] float64, the sum of rows of length 1
    nearer: [81] int64, how many pairs have a squared distance of at most 2^(-i/4), i = 0, 1, …
    pairs: how many there are
    """

    directions: Tensor
    nearer: Tensor
    pairs: int

    def share(self) -> float | None:
        """The part of rows that are like their neighbour; None of too few to tell.

        Two rows of length 1 have a squared distance of 2 (1 - |m|^2) in the mean, m being the mean
        of all.
        """
        if self.pairs < _LEAST:
            return None
        mean = self.directions / self.pairs
        near = NEAR * 2 * (1 - float(mean.square().sum()))
        level = next((i for i in range(_LEVELS) if 2 ** (-i / 4) <= near), _LEVELS - 1)
        return int(self.nearer[level]) / self.pairs


def neighbours_of(x: Tensor) -> Neighbours | None:
    """Of finite rows [rows, k] float32, some of them in even steps; None of a single row."""
    if len(x) < 2:
        return None
    first = torch.arange(0, len(x) - 1, -(-len(x) // _PAIRS), device=x.device)
    rows, after = (torch.nn.functional.normalize(each, dim=1) for each in (x[first], x[first + 1]))
    away = (rows - after).square().sum(1)
    levels = torch.exp2(-torch.arange(_LEVELS, device=x.device) / 4)
    nearer = (away[:, None] <= levels).sum(0)
    return Neighbours(rows.sum(0, dtype=torch.float64), nearer, len(first))


def sum_of(first: Neighbours | None, second: Neighbours | None) -> Neighbours | None:
    """Those of all rows."""
    if first is None or second is None:
        return first or second
    nearer, pairs = first.nearer + second.nearer, first.pairs + second.pairs
    return Neighbours(first.directions + second.directions, nearer, pairs)


def notes_of(shares: Mapping[str, float]) -> list[str]:
    """What to say of a model: {layer: the part of its rows that are alike}."""
    alike = {name: share for name, share in shares.items() if share > MOST}
    if not alike or len(alike) < LAYERS * len(shares):
        return []
    worst = max(alike, key=lambda name: (alike[name], name))
    return [
        f"calibration data: in {len(alike)} of {len(shares)} layers most rows of the input are "
        f"like the row before ({alike[worst]:.0%} of {worst}): silence, blank paper, or padding "
        "that no mask names. Weights are chosen for that, and lose elsewhere. Name the mask "
        "(padding=), or pass shorter or fuller windows; if what the model will see is like this, "
        "compare it on the rest (docs/calibration.md)"
    ]
