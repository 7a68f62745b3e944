# SPDX-License-Identifier: BSD-3-Clause
"""What an algorithm that looks at a whole block is given, and what it gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from blockscale.core.work.progress import Progress
from blockscale.layers.plan import Plan
from blockscale.layers.supplied import Supplied
from blockscale.ops.tensor import QTensor


class Call(NamedTuple):
    """One call of a block: `block(*args, **kwargs)`; shared tensors (masks) are one object."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class BlockTask:
    """One block, its calls over all batches, and what it should give for each.

    name:    its dotted name in the model
    module:  the float block, in evaluation mode; it is left as it was found
    plans:   the layers in it whose weights are to be chosen, in the order of their first call;
             plan.name is the name in the whole model
    places:  {plan.name: what is chosen for it}: Before modules and static inputs are there
    calls:   as the quantized blocks before leave them (or the float ones: sequential=False);
             reading calls[i] may read from disk
    targets: targets[i]: the first tensor of what the float block gives in the float model
    grams:   {plan.name: X^T X / rows [k, k]} of the layers' inputs under `calls`
    seed:    of anything random, the user's
    progress: is told of each step
    """

    name: str
    module: nn.Module
    plans: Sequence[Plan]
    places: Mapping[str, Supplied]
    calls: Sequence[Call]
    targets: Sequence[Tensor]
    grams: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    progress: Progress | None = None


class BlockAlgorithm(Protocol):
    """Chooses the codes of all weights of a block at once, from what the block should give.

    An attribute `steps`, if it has one, is how often it tells `task.progress` of one for a block:
    they are counted beside the batches.
    """

    name: ClassVar[str]
    needs_gram: bool

    def quantize_block(self, task: BlockTask) -> dict[str, tuple[QTensor, list[str]]]:
        """{plan.name: its codes, and notes for the ledger}, for every plan of the task.

        Raises ValueError for a format it cannot serve, NaN and infinity, before it begins.
        """
