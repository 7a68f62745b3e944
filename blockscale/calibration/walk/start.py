# SPDX-License-Identifier: BSD-3-Clause
"""Whether a model can be walked block by block, and the walk over all chains that can."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from blockscale.calibration.batches import inference
from blockscale.calibration.blocks.find import Block, find_blocks
from blockscale.calibration.blocks.stubs import NotWalkableError
from blockscale.calibration.session import Session
from blockscale.calibration.walk.options import Options
from blockscale.calibration.walk.walk import Walk
from blockscale.layers.plan import Plan


def blocks_of(
    model: nn.Module, plans: Sequence[Plan], wanted: bool | str, *, by_block: bool
) -> list[Block]:
    """The blocks to be walked. For an algorithm that chooses for blocks (by_block), a model in
    which there are none is one block itself.

    Raises ValueError for a pattern that matches nothing.
    """
    found: list[Block] = []
    if wanted is not False:
        found = find_blocks(model, plans, None if wanted is True else wanted)
    if by_block and not found:
        found = [Block("", "", model, tuple(plans))]
    return found


def walked(
    start: Callable[[], Session],
    blocks: Sequence[Block],
    batches: Sequence[Any],
    methods: tuple[Any, Any, Any],
    options: Options,
) -> tuple[Session | None, list[str]]:
    """A session in which everything is chosen, None if no chain can be walked; and why not.

    start: a session in which nothing is. A chain that cannot be walked is looked at as the layers
    around the blocks are, which the ledger says.
    """
    reasons: list[str] = []
    left = list(blocks)
    while left:
        session = start()
        walk = Walk(session, left, batches, methods, options)
        try:
            with inference(session.model):
                walk.run()
        except NotWalkableError as error:
            reasons.append(f"{error.chain or 'the model'} not block by block: {error}")
            left = [block for block in left if block.chain != error.chain]
            continue
        return session, reasons
    return None, reasons
