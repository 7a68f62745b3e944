# SPDX-License-Identifier: BSD-3-Clause
"""bs.evaluate: losses, divergences and figures of tasks, with their standard errors."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import Batches, call, inference, listener
from blockscale.calibration.comparison import LayerDifferences
from blockscale.core.work import Progress
from blockscale.evaluation.figures import Evaluation, FigureSums, Parts, exponential
from blockscale.evaluation.journal import BatchJournal, batch_digest, fingerprint
from blockscale.evaluation.kinds import KINDS, Measurement, inputs_for_model, kind_of, measure
from blockscale.evaluation.stored import ReferenceFile, StoredReference, beside
from blockscale.layers.guards import check_model
from blockscale.layers.model import without_wrappers

# A user's function of a model and a batch: {name: a value for each sequence, or (sums, weights)}.
Figures = Callable[[nn.Module, Any], Mapping[str, Any]]


def evaluate(  # noqa: PLR0913 - each is a choice of the caller's
    model: nn.Module,
    batches: Iterable[Any],
    reference: "nn.Module | StoredReference | str | Path | None" = None,
    *,
    kind: str | None = None,
    figures: Figures | None = None,
    layers: bool = False,
    resume: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool | Progress = False,
    store: str | Path | None = None,
    top: int | None = None,
) -> Evaluation:
    """Measure a model on data: what it loses, and how far it is from the model it was made of.

    model: in any form that can be called: quantized layers, a graph, what others quantized
    batches: as in `bs.calibrate`, gone through once; each has rows (sequences, images). A batch of
        tokens has `input_ids` [B, T] int64 (padding by `attention_mask`), or `labels` [B, T] with
        -100 where nothing is asked; a classifier's has `labels` [B], or is (inputs, labels)
    reference: the float model, which sees the same batches; it may be on another device. Or the
        file that `store` wrote of it, of the same batches
    kind: "next-token", "labels", "classes" or "outputs" (blockscale.evaluation.kinds); None finds
        it out from the first batch
    figures: instead, a function of your own (model, batch) -> {name: values}, for words,
        characters, boxes: a value for each row, or (sums, weights) of them, as
        blockscale.evaluation.tasks gives. With a reference each name also has "NAME of reference"
        and "NAME added".
    layers: the divergence of every quantized layer too, as `bs.compare` has it (needs a reference)
    resume: a file to which each batch is written when it is measured; the same call with the same
        models and batches goes on where it was stopped
    about: what the result says it was measured on
    progress: True shows a bar; or a Progress
    store: a file to which the model's own logits are written for evaluations of other models, whose
        reference it then is; batches are held meanwhile
    top: keep the logarithms of so many likeliest classes' probabilities there (at least 10), and
        not whole logits: losses and agreements stay exact, and `kl` is that between distributions
        in which all other classes are one, at most the whole one. SmolLM2 takes 197 kB a token
        whole, .8 with top=100.

    Nothing is kept of a batch but two numbers a row and figure. Both models end in the mode they
    were in. Standard errors are over rows, and those of differences over the rows' own differences.

    Raises TypeError and ValueError for what is no model, batches that are empty or do not fit the
    kind, models of different outputs, and a file of another run; nothing is written then.
    """
    stored = beside(reference)
    other = reference if isinstance(reference, nn.Module) else None
    if stored is None and reference is not other:
        check_model(reference, "bs.evaluate")  # which says what it is
    _check(model, other, kind, layers and stored is None, resume)
    keep = _Keep(store, top, stored, other, figures, layers, resume)
    heard = listener(progress, "evaluating", "batches")
    journal = None
    if resume is not None:
        what = "figures" if figures is not None else kind
        beside_it = "" if stored is None else f" {stored.run}"
        journal = BatchJournal(resume, f"{fingerprint(model, other)} {what}{beside_it}")
    with ExitStack() as ends:
        ends.callback(heard.close)
        first = ends.enter_context(without_wrappers(model))
        second = None if other is None else ends.enter_context(without_wrappers(other))
        batches, recording = keep.begin(batches, ends)
        run = _Run(first, second, kind, figures, (stored, recording))
        if layers and second is not None:
            run.differences = LayerDifferences(second, first)
        ends.enter_context(inference(first, *([] if second is None else [second])))
        for index, batch in enumerate(Batches(batches, 1, "", heard)):
            run.add(_batch(run, batch, index, journal))
    return run.result(dict(about or {}))


def _check(
    model: nn.Module,
    reference: nn.Module | None,
    kind: str | None,
    layers: bool,
    resume: str | Path | None,
) -> None:
    for each in filter(lambda m: m is not None, (model, reference)):
        check_model(each, "bs.evaluate")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; choose from {', '.join(KINDS)}")
    if layers and reference is None:
        raise ValueError("layers=True compares layers with a reference: give the float model")
    if layers and resume is not None:
        raise ValueError("layers=True sees every batch in one run: leave resume out")


class _Keep:
    """The file that a model's logits are kept in, if any. Raises ValueError for what cannot be."""

    def __init__(
        self,
        store: str | Path | None,
        top: int | None,
        stored: StoredReference | None,
        *others: object,
    ):
        reference, figures, layers, resume = others
        self._store, self._top = store, top
        if top is not None and store is None:
            raise ValueError("top= says how many classes a file keeps: name the file, store=…")
        if stored is not None and (layers or figures is not None):
            what = "layers=True runs" if layers else "figures= runs"
            raise ValueError(
                f"{what} the reference itself, and {stored.path} has its logits alone: give the "
                "float model as reference"
            )
        if store is not None and (figures is not None or resume is not None):
            raise ValueError(
                "store= writes the logits of every batch in one run: leave resume and figures out"
            )
        if store is not None and (stored is not None or reference is not None):
            raise ValueError(
                "store= keeps the logits of the float model, which is compared with nothing: "
                "leave the reference out"
            )

    def begin(
        self, batches: Iterable[Any], ends: ExitStack
    ) -> tuple[Iterable[Any], ReferenceFile | None]:
        """The batches, all of them if they are counted, and the file, until `ends`."""
        if self._store is None:
            return batches, None
        every = Batches(batches, 1, "", Progress()).whole()
        return every, ends.enter_context(ReferenceFile(self._store, len(every), self._top))


def _batch(run: "_Run", batch: Any, index: int, journal: BatchJournal | None) -> Measurement:
    """What one batch gives, measured or read. What a model raises says at which batch."""
    if journal is None:
        digest = ""
    else:
        digest = batch_digest(batch)
        if (earlier := journal.at(index, digest)) is not None:
            return earlier
    try:
        measurement = run.measure(batch)
    except Exception as error:
        error.add_note(f"at batch {index}")
        raise
    if journal is not None:
        journal.add(digest, measurement)
    return measurement


class _Run:
    """What is measured of each batch, and what it adds up to."""

    def __init__(
        self,
        model: nn.Module,
        reference: nn.Module | None,
        kind: str | None,
        own: Figures | None,
        files: "tuple[StoredReference | None, ReferenceFile | None]" = (None, None),
    ):
        self._model, self._reference, self._kind, self._own = model, reference, kind, own
        self._stored, self._recording = files
        self._sums, self._count = FigureSums(), 0
        self._positions: dict[str, tuple[Tensor, Tensor]] = {}
        self.differences: LayerDifferences | None = None

    def measure(self, batch: Any) -> Measurement:
        """Run both models over a batch."""
        if self._own is not None:
            return Measurement(_own(self._own, self._model, self._reference, batch), {})
        arguments = inputs_for_model(batch, self._kind or "classes")
        if self.differences is not None:
            theirs, mine = self.differences.run(arguments)
            self.differences.add_outputs(theirs, mine)
        else:
            mine = call(self._model, arguments)
            theirs = None if self._reference is None else call(self._reference, arguments)
        self._kind = self._kind or kind_of(self._model, batch, mine)
        if self._recording is not None:
            self._recording.add(batch, mine, self._kind)
        if self._stored is not None:
            theirs = self._stored.of(batch, self._kind)
        return replace(measure(self._kind, batch, mine, theirs), kind=self._kind)

    def add(self, measurement: Measurement) -> None:
        """Add up a batch."""
        self._count += 1
        self._kind = self._kind or measurement.kind or None  # of what an earlier run measured, too
        self._sums.add(measurement.parts)
        for name, pair in measurement.positions.items():
            old_pair = self._positions.get(name, (torch.zeros(0), torch.zeros(0)))
            mine = tuple(_longer(old, new.cpu()) for old, new in zip(old_pair, pair, strict=True))
            self._positions[name] = (mine[0], mine[1])

    def result(self, about: dict[str, Any]) -> Evaluation:
        """All that was measured."""
        figures = self._sums.figures()
        if "loss" in figures and self._kind in ("next-token", "labels"):
            figures = {
                "loss": figures["loss"],
                "perplexity": exponential(figures["loss"]),
            } | figures
        positions = {
            name: tuple((sums / weights.clamp(min=1)).tolist())
            for name, (sums, weights) in self._positions.items()
        }
        layers = None if self.differences is None else self.differences.result(self._count)
        return Evaluation(self._kind or "outputs", figures, positions, layers, about)


def _longer(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two lists of numbers, the shorter one continued by zeros."""
    total = torch.zeros(max(len(a), len(b)), dtype=torch.float64)
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def _own(own: Figures, model: nn.Module, reference: nn.Module | None, batch: Any) -> Parts:
    """A user's figures of both models, and their differences."""
    parts = dict(_parts(own(model, batch)))
    if reference is None:
        return parts
    theirs = _parts(own(reference, batch))
    if parts.keys() != theirs.keys():
        raise ValueError(
            f"figures gave {', '.join(parts)} for the model and {', '.join(theirs)} for the "
            f"reference: give the same names"
        )
    for name, (sums, weights) in list(parts.items()):
        other, weight = theirs[name]
        parts[f"{name} of reference"] = (other, weight)
        if torch.equal(weights, weight):
            parts[f"{name} added"] = (sums - other, weights)
    return parts


def _parts(figures: Mapping[str, Any]) -> Parts:
    if not isinstance(figures, Mapping) or not figures:
        raise TypeError(
            f"figures= is a function that gives {{name: values}}, it gave {type(figures).__name__}"
        )
    parts = {}
    for name, value in figures.items():
        pair = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        sums = torch.as_tensor(pair[0], dtype=torch.float64).cpu()
        weights = torch.ones_like(sums) if pair[1] is None else torch.as_tensor(pair[1]).cpu()
        parts[str(name)] = (sums, weights.double())
    return parts
