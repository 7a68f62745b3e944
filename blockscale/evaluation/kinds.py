# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of one batch, by the kind of a model's work.

next-token   logits [B, T, V] that say the token after each: causal language models
labels       logits [B, T, V] beside labels [B, T]: encoder-decoders, masked models, taggers
classes      logits [B, V] of one answer a row: classifiers
outputs      any floats [B, ...], compared with a reference's: encoders, embeddings, regressors
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.torch_private import pytree
from blockscale.evaluation.figures import Parts

KINDS = ("next-token", "labels", "classes", "outputs")
IGNORED = -100  # labels that nothing is asked of, as torch's cross_entropy and transformers have it
_PIECE = 1 << 23  # logits that are float32 at one time
_TOP = 10


@dataclass(frozen=True)
class TopLogits:
    """What is kept of a reference's logits [..., V]: enough for all figures, and a bound of `kl`.

    ids: int32 [..., k], the likeliest classes, the likeliest first; logs: float32, the logarithms
    of their probabilities; rest: float32 [...], that of all other classes together; target: float32
    [...], that of what is asked for at its place
    """

    ids: Tensor
    logs: Tensor
    rest: Tensor
    target: Tensor

    def __getitem__(self, at: Any) -> "TopLogits":
        return TopLogits(self.ids[at], self.logs[at], self.rest[at], self.target[at])

    def rows(self) -> "TopLogits":
        """All places in one dimension."""
        rest, target = self.rest.flatten(), self.target.flatten()
        return TopLogits(self.ids.flatten(0, -2), self.logs.flatten(0, -2), rest, target)

    def to(self, device: torch.device) -> "TopLogits":
        """The same on a device."""
        parts = (self.ids, self.logs, self.rest, self.target)
        return TopLogits(*(part.to(device) for part in parts))

    def divergence(self, logs: Tensor) -> Tensor:
        """Float64 [N], of rows: the KL divergence of log probabilities `logs` [N, V] from these,
        where all classes but the kept ones are taken for one."""
        ids = self.ids.long()
        own = torch.cat([logs.gather(1, ids), _others(logs, ids)[:, None]], 1).double()
        true = torch.cat([self.logs, self.rest[:, None]], 1).double()
        return torch.where(true == -torch.inf, 0.0, true.exp() * (true - own)).sum(1)


def _others(logs: Tensor, ids: Tensor) -> Tensor:
    """Of rows of logarithms [N, V] of probabilities: that of all classes but these [N, k]."""
    return logs.scatter(1, ids, -torch.inf).logsumexp(1)


def top_logits(kind: str, batch: Any, logits: Tensor, count: int) -> TopLogits:
    """What is kept of a batch's logits [B, (T,) V], a piece at a time."""
    if kind == "classes":
        labels = _labels(batch, logits)
        targets = (
            logits.new_zeros(logits.shape[:1], dtype=torch.int64) if labels is None else labels
        )
    else:
        targets = _targets(kind, batch, logits)
        if kind == "next-token":  # at its place what comes next
            targets = torch.cat([targets[:, 1:], torch.zeros_like(targets[:, :1])], 1)
    flat, at = logits.flatten(0, -2), targets.flatten().clamp(min=0)
    pieces = []
    rows = max(1, _PIECE // max(logits.shape[-1], 1))
    for first in range(0, len(flat), rows):
        part = slice(first, first + rows)
        true = flat[part].float().log_softmax(-1)
        best = true.topk(count)
        own = true.gather(1, at[part, None])[:, 0]
        pieces.append((best.indices.int(), best.values, _others(true, best.indices), own))
    ids, logs, rest, target = (torch.cat(each) for each in zip(*pieces, strict=True))
    shape = logits.shape[:-1]
    top = ids.view(*shape, count), logs.view(*shape, count)
    return TopLogits(*top, rest.view(shape), target.view(shape))


@dataclass(frozen=True)
class Measurement:
    """parts: sums and weights of each sequence; positions: the same of each position [T].

    kind: one of KINDS, where it was found out
    """

    parts: Parts
    positions: Parts
    kind: str = ""


def kind_of(model: nn.Module, batch: Any, output: Any) -> str:
    """What a model's output is, from its shape, the batch and the model's own configuration."""
    logits = logits_of(output)
    if logits is None:
        return "outputs"
    labels, config = _labels(batch, logits), getattr(model, "config", None)
    if logits.dim() == 2:
        has_logits = isinstance(output, Mapping) and "logits" in output
        return "classes" if labels is not None or has_logits else "outputs"
    decoder = getattr(config, "is_encoder_decoder", False)
    generates = getattr(model, "can_generate", lambda: False)()
    if generates and not decoder:
        return "next-token"
    return "labels" if labels is not None else "outputs"


def logits_of(output: Any) -> Tensor | None:
    """`output.logits`, `output["logits"]`, or the first float tensor, of 2 or 3 dimensions."""
    logits = (
        output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    )
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        return None
    tensor = output[0] if isinstance(output, tuple | list) and output else output
    right = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dim() in (2, 3)
    return tensor if right else None


def inputs_for_model(batch: Any, kind: str) -> Any:
    """What a model is called with: a classifier's (inputs, labels) pair without its labels."""
    if kind == "classes" and _is_pair(batch):
        return batch[0]
    return batch


def _is_pair(batch: Any) -> bool:
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    return (
        pair
        and isinstance(batch[1], Tensor)
        and batch[1].dtype == torch.int64
        and batch[1].dim() == 1
    )


def _labels(batch: Any, logits: Tensor) -> Tensor | None:
    """The labels of a batch, on the logits' device; None where it has none."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    else:
        labels = batch[1] if _is_pair(batch) else None
    return labels.to(logits.device) if isinstance(labels, Tensor) else None


def measure(kind: str, batch: Any, output: Any, reference: Any = None) -> Measurement:
    """The figures of one batch of a kind; those of agreement where there is a reference's output.

    Raises ValueError where the batch or the output does not have what the kind needs.
    """
    if kind == "outputs":
        return _outputs(output, reference)
    logits = logits_of(output)
    if logits is None:
        raise ValueError(
            f"kind {kind!r} needs logits, found a {type(output).__name__} without: have the model "
            f"return them, or leave kind out"
        )
    other = reference if isinstance(reference, TopLogits) else logits_of(reference)
    if isinstance(other, Tensor) and other.shape != logits.shape:
        raise ValueError(
            f"the model's logits are {tuple(logits.shape)}, the reference's {tuple(other.shape)}: "
            f"give two forms of one model"
        )
    if isinstance(other, TopLogits) and other.target.shape != logits.shape[:-1]:
        raise ValueError(
            f"the model's logits are {tuple(logits.shape)}, the reference's of "
            f"{tuple(other.target.shape)} places: give two forms of one model"
        )
    if kind == "classes":
        return _classes(batch, logits, other)
    return _tokens(kind, batch, logits, other)


def _classes(batch: Any, logits: Tensor, other: Tensor | TopLogits | None) -> Measurement:
    labels = _labels(batch, logits)
    none = torch.full(logits.shape[:1], IGNORED, device=logits.device)
    targets = none if labels is None else labels
    if targets.shape != logits.shape[:1]:
        raise ValueError(
            f"expected a label for each of {len(logits)} rows, found shape {tuple(targets.shape)}"
        )
    parts = _rows(logits[:, None], targets[:, None], None if other is None else other[:, None], 5)
    if labels is None:
        parts = {k: v for k, v in parts.items() if k not in ("loss", "accuracy", "loss added")}
    return Measurement({name: (s.sum(1), w.sum(1)) for name, (s, w) in parts.items()}, {})


def _tokens(kind: str, batch: Any, logits: Tensor, other: Tensor | TopLogits | None) -> Measurement:
    targets = _targets(kind, batch, logits)
    if kind == "next-token":  # what comes after the last token is not known
        logits, targets = logits[:, :-1], targets[:, 1:]
        other = None if other is None else other[:, :-1]
    parts = _rows(logits, targets, other, _TOP)
    positions = {
        name: (s.sum(0), w.sum(0)) for name, (s, w) in parts.items() if name in ("loss", "kl")
    }
    return Measurement({name: (s.sum(1), w.sum(1)) for name, (s, w) in parts.items()}, positions)


def _targets(kind: str, batch: Any, logits: Tensor) -> Tensor:
    """The tokens [B, T] that are asked for at their own places, IGNORED where none is."""
    targets = _labels(batch, logits)
    if targets is None and kind == "labels":
        raise ValueError(
            "kind 'labels' needs batches with labels [B, T], and -100 where a token has none"
        )
    if targets is None:
        tokens = batch.get("input_ids") if isinstance(batch, Mapping) else batch
        tokens = tokens[0] if isinstance(tokens, tuple | list) else tokens
        if not isinstance(tokens, Tensor) or tokens.is_floating_point():
            raise ValueError("kind 'next-token' needs batches with input_ids [B, T], or labels")
        targets = tokens.to(logits.device)
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if isinstance(mask, Tensor):
            targets = targets.masked_fill(mask.to(logits.device) == 0, IGNORED)
    if targets.shape != logits.shape[:2]:
        raise ValueError(
            f"logits {tuple(logits.shape)} are not of tokens {tuple(targets.shape)}: expected "
            f"[B, T, V] for [B, T]"
        )
    return targets


def _rows(
    logits: Tensor, targets: Tensor, other: Tensor | TopLogits | None, top: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Figures [B, T] in float64 of logits [B, T, V] and targets [B, T], a piece at a time."""
    has_target = targets != IGNORED
    if bool((has_target & ((targets < 0) | (targets >= logits.shape[-1]))).any()):
        raise ValueError(
            f"labels must be from 0 to {logits.shape[-1] - 1}, or {IGNORED} for none: found "
            f"{int(targets.min())} to {int(targets.max())}"
        )
    pieces: dict[str, list[Tensor]] = {}
    rows = max(1, _PIECE // max(logits.shape[-1], 1))
    flat = logits.flatten(0, 1), targets.flatten(), _by_row(other)
    for at in range(0, len(flat[1]), rows):
        part = slice(at, at + rows)
        beside = None if flat[2] is None else flat[2][part].to(logits.device)
        for name, values in _piece(flat[0][part], flat[1][part], beside, top).items():
            pieces.setdefault(name, []).append(values)
    # Divergence and agreement need no label: in a classifier's rows without one they count.
    counts = has_target if bool(has_target.any()) else torch.ones_like(has_target)
    weight = counts.double()
    return {
        name: (torch.where(counts, torch.cat(values).view(targets.shape), 0.0), weight)
        for name, values in pieces.items()
    }


def _by_row(other: Tensor | TopLogits | None) -> Tensor | TopLogits | None:
    return (
        other.flatten(0, 1)
        if isinstance(other, Tensor)
        else None
        if other is None
        else other.rows()
    )


def _piece(
    logits: Tensor, targets: Tensor, other: Tensor | TopLogits | None, top: int
) -> dict[str, Tensor]:
    """Figures float64 [N] of rows of logits [N, V]."""
    logs = logits.float().log_softmax(-1)
    at = targets.clamp(min=0)[:, None]
    values = {
        "loss": -logs.gather(1, at)[:, 0].double(),
        "accuracy": (logs.argmax(-1) == targets).double(),
    }
    if other is None:
        return values
    count = min(top, logs.shape[-1])
    best = logs.topk(count).indices
    if isinstance(other, TopLogits):
        values["loss added"] = values["loss"] + other.target.double()
        values["kl"] = other.divergence(logs)
        return values | _agreement(best, other.ids[:, :count], logs.argmax(-1) == other.ids[:, 0])
    true = other.float().log_softmax(-1)
    values["loss added"] = values["loss"] + true.gather(1, at)[:, 0].double()
    gap = torch.where(true == -torch.inf, 0.0, true.exp() * (true - logs))
    values["kl"] = gap.sum(-1, dtype=torch.float64)
    same = logs.argmax(-1) == true.argmax(-1)
    return values | _agreement(best, true.topk(count).indices, same)


def _agreement(best: Tensor, others: Tensor, same: Tensor) -> dict[str, Tensor]:
    """Of the likeliest classes [N, count] of both, and whether the very likeliest is the same."""
    both = (best[:, :, None] == others[:, None, :]).any(-1)
    return {
        "top-1 agreement": same.double(),
        f"top-{best.shape[1]} agreement": both.double().mean(-1),
    }


def _outputs(output: Any, reference: Any) -> Measurement:
    """Of floats: the relative squared error and the cosine of each row."""
    if reference is None:
        raise ValueError(
            "the outputs are not logits, which have figures of their own: give a reference, the "
            "float model, to compare them with, or figures=, a function of your own"
        )
    sums: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    pairs = zip(pytree.tree_leaves(output), pytree.tree_leaves(reference), strict=True)
    for mine, theirs in pairs:
        if not isinstance(mine, Tensor) or not mine.is_floating_point() or mine.dim() == 0:
            continue
        if mine.shape != theirs.shape:
            raise ValueError(
                f"the model's output is {tuple(mine.shape)}, the reference's "
                f"{tuple(theirs.shape)}: give two forms of one model"
            )
        a, b = (side.detach().reshape(len(side), -1).cpu().double() for side in (theirs, mine))
        sums.append(((a - b).square().sum(1), a.square().sum(1), b.square().sum(1), (a * b).sum(1)))
    if not sums:
        raise ValueError(
            "neither model returns float tensors to compare: have them return one, or pass figures="
        )
    error, signal, other, product = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
    size = (signal * other).sqrt()
    cosine = torch.where(size > 0, product / size, (signal == other).double())
    one = torch.ones_like(error)
    return Measurement({"relative error": (error, signal), "cosine": (cosine, one)}, {})
