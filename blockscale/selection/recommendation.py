# SPDX-License-Identifier: BSD-3-Clause
"""A recommendation: a recipe, what it will cost, and for each claim the measurement behind it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from blockscale.core.recipe import Recipe
from blockscale.selection.allocation import Budget
from blockscale.selection.errors import Checked, Estimate, check
from blockscale.selection.objective import Objective
from blockscale.selection.result import Search, write_whole


@dataclass(frozen=True)
class Claim:
    """One sentence, and where its figures come from: what was measured, on what, and how."""

    text: str
    source: str


@dataclass(frozen=True)
class Recommendation:
    """What `bs.recommend` found.

    recipe: for `bs.quantize_`; foretold: what it will cost; search: all that was measured
    formats: {candidate: how many weights have it}, most first; blocks: {elements of a block of
        weights along the sum: how many weights}; rows: {rows of the largest layer: seconds a row}
    """

    budget: Budget
    recipe: Recipe
    foretold: Estimate
    claims: tuple[Claim, ...]
    formats: dict[str, int]
    blocks: dict[str, int]
    rows: dict[int, float]
    search: Search
    objective: Objective

    @property
    def batch(self) -> int | None:
        """The fewest rows at which a row of the largest layer takes at most a tenth more than it
        does at best; None where nothing was timed."""
        if not self.rows:
            return None
        best = min(self.rows.values())
        return min(rows for rows, seconds in self.rows.items() if seconds <= 1.1 * best)

    def check(self, model: nn.Module, batches: Iterable[Any]) -> Checked:
        """Quantize a copy of the model and measure what was foretold."""
        return check(model, self.recipe, self.foretold, list(batches), self.objective)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "budget": asdict(self.budget),
            "recipe": self.recipe.to_dict(),
            "foretold": asdict(self.foretold) | {"speedup": self.foretold.speedup},
            "claims": [asdict(each) for each in self.claims],
            "formats": self.formats,
            "blocks": self.blocks,
            "rows": {str(rows): seconds for rows, seconds in self.rows.items()},
            "batch": self.batch,
            "search": self.search.to_dict(),
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"{path}: choose a file in a directory that exists")
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False))

    def __str__(self) -> str:
        """The claims with their sources."""
        return "\n".join(f"{each.text}\n    {each.source}" for each in self.claims)


def counted(names: Sequence[str]) -> dict[str, int]:
    """{name: how often}, the most frequent first."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
