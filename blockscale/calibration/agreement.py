# SPDX-License-Identifier: BSD-3-Clause
"""What processes that calibrate one model together have to agree on, compared before they begin."""

import json
import sys
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import Batches, device_of
from blockscale.calibration.learn import Data, Methods
from blockscale.calibration.ranks import Ranks
from blockscale.calibration.walk.resume import method_text
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.layers.model import unwrapped
from blockscale.layers.processes import is_group


def dealt(model: nn.Module, data: Data, recipe: Recipe, methods: Methods, group: Any) -> Data:
    """The data with this process's batches as a list, and with who has the others; as it is unless
    `group` is a process group.

    Raises ValueError, in every process and before anything was changed, where processes hold other
    models, recipes, methods, options or versions, or not the batches that are theirs.
    """
    if not is_group(group):
        return data
    ranks = Ranks(group, device_of(model))
    if data.resume is not None:
        raise ValueError(
            "resume is for one process: finished blocks of a group are not kept yet. Leave resume "
            "out, or calibrate without group="
        )
    by_block = callable(getattr(methods.algorithm, "quantize_block", None))
    if by_block and not getattr(methods.algorithm, "dealt", False):
        raise ValueError(
            f"{method_text(methods.algorithm)} learns from the calls of one process: leave out "
            "group=, or let it sum over task.ranks and say so by an attribute dealt = True"
        )
    _compare(ranks, ranks.together(lambda: _facts(model, data, recipe, methods)))
    batches: list[Any] = []
    ranks.together(lambda: batches.extend(Batches(data.batches, 1, "", Progress(), empty=True)))
    ranks.deal_batches(len(batches))
    return data._replace(batches=batches, ranks=ranks)


def _compare(ranks: Ranks, facts: list[dict[str, str]]) -> None:
    for rank, other in enumerate(facts):
        for what in {**facts[0], **other}:
            first, second = (each.get(what, "none") for each in (facts[0], other))
            if first != second:
                raise ValueError(
                    f"bs.calibrate: process {rank} has another {what} than process 0: {second} "
                    f"and not {first} (this is process {ranks.rank}). Nothing was changed: call it "
                    "with the same model and arguments, but for the batches, in all processes"
                )


def _facts(model: nn.Module, data: Data, recipe: Recipe, methods: Methods) -> dict[str, str]:
    """{what it is: what it is here}"""
    settings = data._asdict()
    facts = {
        "version of blockscale": str(sys.modules["blockscale"].__version__),
        "version of torch": str(torch.__version__),
        "recipe": json.dumps(recipe.to_dict()),
        "weight algorithm": method_text(methods.algorithm),
        "transform": method_text(methods.transform),
        "observer": method_text(methods.observer),
    }
    facts |= {name: str(settings[name]) for name in _OPTIONS}
    with unwrapped(model) as plain:
        for name, tensor in plain.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                facts[f"tensor {name!r} in its model"] = _checksum(tensor.detach())
    return facts


_OPTIONS = ("strict", "sequential", "budget", "blocks", "seed", "padding")


def _checksum(tensor: Tensor) -> str:
    """Shape, dtype, and sums of its bits that are as fast as memory and do not depend on order."""
    about = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.is_meta:
        return about
    data = tensor.contiguous().flatten().view(torch.uint8)
    whole = data[: data.numel() // 8 * 8].clone().view(torch.int64)
    first = bytes(data[:256].cpu().tolist())
    rest = int(data[data.numel() // 8 * 8 :].sum()) + zlib.crc32(first)
    return f"{about} {(int(whole.sum()) + rest) % 2**64:016x}"
