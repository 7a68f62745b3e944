# SPDX-License-Identifier: BSD-3-Clause
"""Which layers saw how much data, and which saw none: dead branches, experts nobody chose."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from blockscale.calibration.batches import Batches, inference
from blockscale.calibration.input_stats import Callback, seen_by, watch
from blockscale.calibration.progress_bar import listener
from blockscale.core.ledger import SkippedError
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.layers.plan import Plan, plan_layers


@dataclass
class Seen:
    """How often a layer was called, and with how many rows: vectors, pixels or indices."""

    calls: int = 0
    rows: int = 0


@dataclass
class Coverage:
    """What each layer saw, in the model's order, under the first of its names."""

    layers: dict[str, Seen] = field(default_factory=dict)
    batches: int = 0
    _stacks: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def unseen(self) -> tuple[str, ...]:
        """The layers that saw nothing; but for the matrices of a stack that the model reads in a
        way of its own, so that nobody can tell what they see."""
        some = {
            id(self._stacks[n])
            for n, seen in self.layers.items()
            if seen.rows and n in self._stacks
        }
        return tuple(
            name
            for name, seen in self.layers.items()
            if seen.rows == 0 and not self._unknown(name, some)
        )

    def _unknown(self, name: str, known: set[int]) -> bool:
        stack = self._stacks.get(name)
        return stack is not None and bool(stack.unseen) and id(stack) not in known

    def counter(self, plan: Plan) -> Callback:
        """A callback for `watch` that counts what the layer sees."""
        seen = self.layers.setdefault(plan.name, Seen())
        for stack in getattr(plan.module, "of_stack", ())[:1]:
            self._stacks[plan.name] = stack

        def count(x: Tensor, y: Any) -> None:
            del y
            seen.calls += 1
            indices = not plan.kind.takes_input
            seen.rows += x.numel() if indices else seen_by(plan, x)[..., 0].numel()

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
            f"{name.ljust(width)}  {seen.calls:>8} calls  {seen.rows:>10} rows"
            + ("" if seen.rows else "  no data")
            for name, seen in self.layers.items()
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
    counted, told = Coverage(), listener(progress)
    try:
        data = Batches(batches, 1, "", told)
        callbacks = {plan.module: counted.counter(plan) for plan in plans}
        with inference(model), watch(callbacks):
            data.run(model)
    finally:
        told.close()
    counted.batches = data.count
    return counted
