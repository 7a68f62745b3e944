"""Several observers, and of those the one whose scale proves best."""

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from blockscale.calibrate.observer import Observer, is_mean
from blockscale.calibrate.observers import Spec, make
from blockscale.core.arithmetic import philox
from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.ops import primitives

RANGES = ("min_max", "percentile", "entropy", "mse")
BARE = ("min_max", "percentile", "mse")  # with an offset
MEANS = ("mean", "mse")
EVERY = 17  # the row of so many that is held back; a prime, so that every feature has its turn
CAPACITY = 2**14  # elements held back at most


class Adaptive(Observer):
    """Takes the observer with the least squared fake-quantization error on data held back from all.

    Every 17th element (with the block `channel-1`, row) is not shown to the observers. Of those a
    sample of at most 16384 elements is kept, chosen by Philox from their numbers, so that it is the
    same in every run; what leaves it is shown to the observers after all. The winner sees the
    sample, too, before it gives its range: then it is as if it had seen everything.

    tried: specs of observers, at least two. The spec is `adaptive:min_max+mse`.
    won: the spec of the best; errors: the mean squared error of each. Both raise ValueError if
        nothing was held back, which takes two elements (rows).

    Raises ValueError for blocks other than `tensor` and `channel-1`, which have no rows.
    """

    name: ClassVar[str] = "adaptive"
    setting: ClassVar[str] = "tried"
    means: ClassVar[bool] = True
    merges_exactly: ClassVar[bool] = False

    rows: Tensor  # int64 [], elements (rows) seen
    held: Tensor  # float32 [rows * features]
    priority: Tensor  # float32 [rows], the smallest are kept

    def __init__(self, fmt: str | Format, tried: Sequence[Spec] = ()):
        super().__init__(fmt)
        if not self.format.block.static:
            raise ValueError(
                f"{self.fmt}: 'adaptive' holds rows back, so it needs the block 'tensor' or "
                f"'channel-1': take another observer, such as 'mse'"
            )
        ranges = BARE if self._bare else RANGES
        tried = tried or (MEANS if is_mean(self.format) else ranges)
        if len(tried) < 2:
            raise ValueError(f"'adaptive' chooses among two observers or more, found {tried}")
        self.tried = [spec if isinstance(spec, str) else repr(spec) for spec in tried]
        for i, spec in enumerate(tried):
            self.add_module(str(i), make(spec, self.format))
        self._merges["rows"] = "sum"
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self._sample("held")
        self._sample("priority")

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        return {"tried": text.split("+")}

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        super()._update(x, low, high, finite, weight)
        if finite is not None:
            x = torch.where(finite, x, torch.nan)  # the observers leave them out, too
        x = x.reshape(-1, self._features)
        seen = int(self.rows)
        first = (1 - seen) % EVERY
        back, rest = x[first::EVERY], _others(x, first)
        number = torch.tensor([0, (seen + first) // EVERY], device=x.device)
        priority = philox.uniform(back.shape[:1], number, x.device)
        if len(self.priority) >= self._bound:  # most do not enter a full sample: no need to sort
            enters = priority < self.priority.max()
            rest = torch.cat([rest, back[~enters]])
            back, priority = back[enters], priority[enters]
        self.rows += len(x)
        self.held = torch.cat([self.held, back.flatten()])
        self.priority = torch.cat([self.priority, priority])
        self._show(torch.cat([rest, self._let_go()]))

    @property
    def _bound(self) -> int:
        """How many rows are kept."""
        return max(1, CAPACITY // self._features)

    @property
    def _features(self) -> int:
        return self.low.shape[-1]  # 1 with the block `tensor`: its rows are single elements

    def _let_go(self) -> Tensor:
        """Keep the sample within its bound -> the rows that have left it [n, features]."""
        order = self.priority.argsort(stable=True)
        kept, gone = order.tensor_split([self._bound])
        rows, kept = self.held.view(-1, self._features), kept.sort().values
        self.held, self.priority = rows[kept].flatten(), self.priority[kept]
        return rows[gone]

    def _show(self, rows: Tensor) -> None:
        for observer in self._observers():
            observer.observe(rows)

    def _observers(self) -> list[Observer]:
        return [child for child in self.children() if isinstance(child, Observer)]

    def _settle(self) -> None:
        if self.shape is not None:
            self._show(self._let_go())

    def _choose(self) -> tuple[Tensor, Tensor]:
        place = self.tried.index(self.won)
        winner = copy.deepcopy(self._observers()[place])
        winner.observe(self.held.view(-1, self._features))
        low, high, _ = winner.range()
        return low, high

    def describe(self) -> str:
        seen = super().describe()
        if not bool(self.held.isfinite().any()):
            return f"{seen}; nothing held back"
        (best, least), (second, next_least), *_ = sorted(self.errors.items(), key=lambda e: e[1])
        gain = 10 * math.log10(next_least / least) if least else math.inf
        return f"{seen}; {best} won, its error {gain:.2f} dB below that of {second}"

    @property
    def errors(self) -> dict[str, float]:
        """The mean squared fake-quantization error of each on what was held back."""
        held = self.held.view(-1, max(self._features, 1))
        finite = held.isfinite()
        if not bool(finite.any()):
            raise ValueError(
                f"'adaptive' ({self.fmt}) cannot choose: {super().describe()}, and of "
                f"those no finite one was held back, as one of {EVERY} is"
            )
        errors = {}
        for spec, observer in zip(self.tried, self._observers(), strict=True):
            by = quantizer(observer.qparams(), self.format.deterministic)
            left = primitives.fake_quantize(held, by)
            errors[spec] = float((left.double() - held)[finite].square().mean())
        return errors

    @property
    def won(self) -> str:
        """The spec with the least error; of equals, the one named first."""
        errors = self.errors
        return min(errors, key=lambda spec: errors[spec])


def _others(x: Tensor, first: int) -> Tensor:
    """The rows of x but for first, first + EVERY, ..., by copies of slices: masks are slow."""
    body = x[first:]
    whole = len(body) // EVERY * EVERY
    groups = body[:whole].view(-1, EVERY, x.shape[-1])
    return torch.cat([x[:first], groups[:, 1:].flatten(0, 1), body[whole + 1 :]])
