# SPDX-License-Identifier: BSD-3-Clause
"""Layers of a block that are built as soon as it is done, so that its floats can go."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from blockscale.calibration.blocks.find import Block
from blockscale.calibration.session import Session
from blockscale.calibration.walk.stream import Source, Stream
from blockscale.layers.bias import without_dynamic
from blockscale.layers.joined import parameter_tops, settle_top
from blockscale.layers.model.build import build
from blockscale.layers.parameters.planned import ParameterPlan, quantized
from blockscale.layers.plan import Plan
from blockscale.layers.reasons import weights_to_come

if TYPE_CHECKING:
    from blockscale.layers.store import QWeight


class Settler:
    """What becomes of a model whose weights are streamed, block by block.

    planned: its parameters of no layer that are quantized, too; seed: as in `bs.calibrate`
    """

    def __init__(self, stream: Stream, seed: int | None):
        self.stream, self.seed = stream, seed
        self.planned: list[ParameterPlan] = []
        self._weights: dict[int, QWeight] = {}

    def load(self, block: Block) -> None:
        """Read the weights of a block, those that are not there."""
        self.stream.load(block.name)

    def settle(self, session: Session, block: str, plans: Sequence[Plan]) -> None:
        """Build the layers of a block, and forget their float weights."""
        places = session.places
        for plan in without_dynamic(plans, lambda plan: places[plan.name].input is not None):
            assert isinstance(plan, Plan)
            place = places[plan.name]
            settle_top(plan, session.layers, places)
            session.built[plan.name] = build(plan, self._weights, place, self.seed)
        inside = [each for each in self.planned if each.name.startswith(f"{block}.")]
        tops = parameter_tops(inside)
        for each in inside:
            session.made[each.name] = quantized(each, self.seed, top=tops.get(each.name))[0]
        floats = [plan.parameter for plan in plans if plan.owns_weight]
        self.stream.unload([*floats, *(each.parameter for each in inside)])


@contextmanager
def streamed(
    model: nn.Module,
    source: Source | None,
    seed: int | None,
) -> Iterator[Settler | None]:
    """Who settles blocks whose weights come from `source`, None without one. Where anything is
    raised, the model is on the meta device again."""
    if source is None:
        yield None
        return
    stream = Stream(model, source)
    try:
        with weights_to_come():
            yield Settler(stream, seed)
    except BaseException:
        stream.restore()
        raise
