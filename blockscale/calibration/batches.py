# SPDX-License-Identifier: BSD-3-Clause
"""Run a model over batches, as its user has them, and leave no trace in it; what it shows meanwhile
and what its layers saw."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.input_stats import Callback, seen_by, watch
from blockscale.calibration.padding import Padding
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.core.ledger import SkippedError
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import kind_of
from blockscale.core.work import Progress
from blockscale.layers.guards import call as call
from blockscale.layers.guards import device_of as device_of
from blockscale.layers.plan import Plan, plan_layers


@contextmanager
def inference(*models: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients; afterwards each module is in the mode it was in.

    The flag is set by itself: `eval()` may do more in a module that overrides it.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class Batches:
    """Batches that are gone through `passes` times; `why` says what for. empty: there may be none.

    Raises TypeError for what is no iterable of batches, such as one batch, and ValueError where
    several passes are needed and there can be only one.
    """

    def __init__(
        self,
        source: Iterable[Any],
        passes: int,
        why: str,
        progress: Progress,
        *,
        empty: bool = False,
    ):
        if isinstance(source, Mapping | Tensor | str | bytes):
            raise TypeError(
                "batches must be an iterable of batches, found a single "
                f"{type(source).__name__}: write [batch]"
            )
        if not isinstance(source, Iterable):
            raise TypeError(
                "batches must be an iterable of batches, such as a list or a DataLoader, "
                f"found {kind_of(source)}"
            )
        if passes > 1 and isinstance(source, Iterator):
            raise ValueError(
                f"batches can be read only once (it is {kind_of(source)}), but "
                f"{passes} passes are needed ({why}): pass a list or a DataLoader"
            )
        self._source, self._progress, self._empty = source, progress, empty
        self.count = 0  # batches of a pass, once there was one
        size = _length(source)
        progress.start(None if size is None else size * passes)

    def __iter__(self) -> Iterator[Any]:
        """One pass. Raises ValueError if it gives nothing, or not as many as the pass before."""
        count = 0
        for batch in self._source:
            yield batch
            count += 1
            self._progress.advance()
        if self.count not in (0, count):
            raise ValueError(
                f"batches gave {self.count} batches in the first pass and {count} in this "
                "one: pass a list or a DataLoader, which gives the same batches each time"
            )
        if count == 0 and not self._empty:
            raise ValueError("batches is empty: calibration needs at least one batch")
        self.count = count

    def whole(self) -> list[Any]:
        """All batches of one pass."""
        return list(self)

    def run(self, model: nn.Module, padding: Padding | None = None, ranks: Ranks = ALONE) -> None:
        """One pass of the model over the batches. What the model raises says at which batch.

        padding: what is to know of masks; the first pass counts them
        ranks: other processes with batches, which take turns
        """
        padding, first = padding or Padding(), self.count == 0

        def one(index: int, batch: Any) -> None:
            if first:
                padding.count(batch)
            try:
                with padding.during(batch):
                    call(model, batch)
            except Exception as error:
                error.add_note(f"at batch {ranks.number(index)}, {describe(batch)}")
                raise

        if ranks.alone:
            for index, batch in enumerate(self):
                one(index, batch)
            return
        own = self.whole()
        ranks.each(len(own), lambda b: one(b, own[b]))


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except TypeError:  # a DataLoader over a stream has __len__, but no length
        return None


def describe(batch: Any) -> str:
    """How a batch was given to the model, for error messages."""
    if isinstance(batch, Mapping):
        return f"a mapping, given as keyword arguments: {', '.join(map(str, batch))}"
    if isinstance(batch, tuple | list):
        kinds = ", ".join(type(each).__name__ for each in batch)
        return f"{kind_of(batch)}, given as positional arguments: {kinds}"
    return f"{kind_of(batch)}, given as the one argument"


# A bar on stderr for runs over batches.


_WIDTH, _SECONDS = 24, 0.1  # of the bar; between two drawings


class BatchBar(Progress):
    """A line on stderr that is drawn over, where that is a terminal; nothing elsewhere."""

    def __init__(self, doing: str = "calibrating", unit: str = "batches") -> None:
        self._doing, self._unit = doing, unit
        self._lively = sys.stderr is not None and sys.stderr.isatty()
        self._total: int | None = None
        self._count, self._last_line = 0, 0.0
        self._began, self._start = 0, time.monotonic()  # what was done before, and when it began

    def start(self, total: int | None, done: int = 0) -> None:
        self._total, self._count = total, done
        self._began, self._start = done, time.monotonic()

    def advance(self, name: str = "", amount: int = 1) -> None:
        del name
        self._count += amount
        now = time.monotonic()
        if self._lively and (now - self._last_line >= _SECONDS or self._count == self._total):
            self._last_line = now
            sys.stderr.write(f"\r{self._line()}\x1b[K")
            sys.stderr.flush()

    def close(self) -> None:
        if self._lively and self._count:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _line(self) -> str:
        if self._total is None:
            return f"{self._doing}: {self._count} {self._unit}"
        full = _WIDTH * self._count // max(self._total, 1)
        bar = "━" * full + " " * (_WIDTH - full)
        text = f"{self._doing} [{bar}] {self._count} of {self._total} {self._unit}"
        return ", ".join(filter(None, [text, self._time_left()]))

    def _time_left(self) -> str:
        """How long the rest takes, if it goes on as it did; nothing at the ends."""
        done, total = self._count - self._began, self._total
        if total is None or done <= 0 or self._count >= total:
            return ""
        seconds = (time.monotonic() - self._start) / done * (total - self._count)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes}:{seconds:02} left"


def listener(progress: bool | Progress, *doing: str) -> Progress:
    """True is a bar, False is none, anything else listens itself.

    doing: what the bar says is done, and to what units
    """
    if isinstance(progress, Progress):
        return progress
    return BatchBar(*doing) if progress else Progress()


# Which layers saw how much data, and which saw none: dead branches, experts nobody chose.


@dataclass
class DataCounts:
    """How often a layer was called, and with how many rows: vectors, pixels or indices."""

    calls: int = 0
    rows: int = 0


@dataclass
class Coverage:
    """What each layer saw, in the model's order, under the first of its names."""

    layers: dict[str, DataCounts] = field(default_factory=dict)
    batches: int = 0
    _stacks: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def unseen(self) -> tuple[str, ...]:
        """The layers that saw nothing; but for the matrices of a stack that the model reads in a
        way of its own, so that nobody can tell what they see."""
        some = {
            id(self._stacks[n])
            for n, counts in self.layers.items()
            if counts.rows and n in self._stacks
        }
        return tuple(
            name
            for name, counts in self.layers.items()
            if counts.rows == 0 and not self._unknown(name, some)
        )

    def _unknown(self, name: str, numbers: set[int]) -> bool:
        stack = self._stacks.get(name)
        return stack is not None and bool(stack.unseen) and id(stack) not in numbers

    def counter(self, plan: Plan) -> Callback:
        """A callback for `watch` that counts what the layer sees."""
        counts = self.layers.setdefault(plan.name, DataCounts())
        for stack in getattr(plan.module, "of_stack", ())[:1]:
            self._stacks[plan.name] = stack

        def count(x: Tensor, y: Any) -> None:
            del y
            counts.calls += 1
            indices = not plan.kind.takes_input
            counts.rows += x.numel() if indices else seen_by(plan, x)[..., 0].numel()

        return count

    def raise_if_unseen(self) -> None:
        """Raise SkippedError that names the layers that saw nothing, if any."""
        if self.unseen:
            raise SkippedError(
                f"strict: {len(self.unseen)} of {len(self.layers)} layers saw no data in "
                f"{self.batches} batches; nothing was changed."
                + "".join(f"\n  {name}" for name in self.unseen)
                + "\nPass batches that reach them, name them in the recipe's skip list, or "
                "call with strict=False."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"batches": self.batches, "layers": {n: asdict(s) for n, s in self.layers.items()}}

    def __str__(self) -> str:
        """A plain table, one line a layer."""
        width = max(map(len, self.layers), default=0)
        lines = [
            f"{name.ljust(width)}  {counts.calls:>8} calls  {counts.rows:>10} rows"
            + ("" if counts.rows else "  no data")
            for name, counts in self.layers.items()
        ]
        total = (
            f"{len(self.layers)} layers, {len(self.unseen)} saw no data in {self.batches} batches"
        )
        return "\n".join([*lines, total])


def coverage(
    model: nn.Module,
    batches: Iterable[Any],
    recipe: Recipe | str = "int8",
    *,
    progress: bool | Progress = False,
) -> Coverage:
    """What the layers that `recipe` covers see of the batches; the model stays as it is.

    batches: as in `bs.calibrate`. Raises what the model raises, TypeError and ValueError for
    batches that are none.
    """
    plans = [p for p in plan_layers(model, Recipe.read(recipe)) if isinstance(p, Plan)]
    counts, watcher = Coverage(), listener(progress)
    try:
        data = Batches(batches, 1, "", watcher)
        callbacks = {plan.module: counts.counter(plan) for plan in plans}
        with inference(model), watch(callbacks):
            data.run(model)
    finally:
        watcher.close()
    counts.batches = data.count
    return counts
