# SPDX-License-Identifier: BSD-3-Clause
"""Run a model over batches, as its user has them, and leave no trace in it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.padding import Padding
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.core.untrusted import kind_of
from blockscale.core.work import Progress
from blockscale.layers.guards import call as call
from blockscale.layers.guards import device_of as device_of


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
                error.add_note(f"at batch {ranks.number(index)}, {described(batch)}")
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


def described(batch: Any) -> str:
    """How a batch was given to the model, for error messages."""
    if isinstance(batch, Mapping):
        return f"a mapping, given as keyword arguments: {', '.join(map(str, batch))}"
    if isinstance(batch, tuple | list):
        kinds = ", ".join(type(each).__name__ for each in batch)
        return f"{kind_of(batch)}, given as positional arguments: {kinds}"
    return f"{kind_of(batch)}, given as the one argument"
