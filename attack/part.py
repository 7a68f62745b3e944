# SPDX-License-Identifier: BSD-3-Clause
"""What an attack is made of: numbered cases, each from a seed, so that one command repeats it."""

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Counts = dict[str, int]


@dataclass(frozen=True)
class Part:
    """One kind of attack.

    name: of the command line and of docs/reliability.md
    wanted: how many of `unit` a whole campaign should have
    case: runs one case; what it counted, {} for one of `unit`. Raises Found for what must not be; every
        other exception that leaves it is a failure, too
    seconds: of processor time, after which a case hangs (attack/worker.py)
    share: of a campaign's time
    prepare: what all cases need, made once in the process that runs them
    memory: bytes that a case may take more than the process had
    missing: why it cannot run here, or None
    """

    name: str
    unit: str
    wanted: int
    case: Callable[["Case"], Counts | None]
    seconds: float = 10.0
    share: float = 1.0
    prepare: Callable[[Path], None] | None = None
    memory: int | None = None
    missing: Callable[[], str | None] | None = None


@dataclass(frozen=True)
class Case:
    """One case: its number, the campaign's seed, and a folder on a fast disk that is its own."""

    number: int
    seed: int
    folder: Path

    def random(self) -> random.Random:
        """Numbers that depend on nothing but the seed and the number."""
        return random.Random(f"{self.seed}:{self.number}")


class Found(Exception):  # noqa: N818 - it is what was found
    """What must not be: `kind` names it, so that the same one is listed once."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


def is_told(error: BaseException) -> bool:
    """Whether blockscale itself raised it, with words of its own."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return "/blockscale/" in frame.filename and (frame.line or "").startswith("raise ")
