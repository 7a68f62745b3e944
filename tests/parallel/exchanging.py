# SPDX-License-Identifier: BSD-3-Clause
"""What each process of tests/parallel/test_codes.py and test_messages.py does."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import blockscale as bs
from blockscale.parallel import messages
from tests.calibration.dealing import begin

RANKS = 3
FORMATS = ["int8:group64:fp32", "mxint8", "mxfp8", "mxfp6", "nvfp4", "int4:group32:fp32", "mxfp4"]
STOCHASTIC = "int8:group32:e8m0/floor:stochastic"
ROWS, COLUMNS = 60, 777


def gradient(rank: int) -> Tensor:
    """Rows of random numbers over two decades."""
    draw = torch.Generator().manual_seed(rank)
    sizes = torch.logspace(0, 2, ROWS)[torch.randperm(ROWS, generator=draw)]
    return (torch.randn(ROWS, COLUMNS, generator=draw) * sizes[:, None]).flatten()


class Bucket:
    """What DDP hands to a hook."""

    def __init__(self, x: Tensor, index: int = 0):
        self._x, self._index = x, index

    def buffer(self) -> Tensor:
        return self._x

    def index(self) -> int:
        return self._index

    def parameters(self) -> list[Tensor]:
        return [self._x]


class Counted:
    """Bytes that a process sends to others, by calls of torch.distributed."""

    def __init__(self) -> None:
        self.sent, self._swap, self._gather = 0, dist.all_to_all_single, dist.all_gather

    def __enter__(self) -> "Counted":
        def swap(
            incoming: Tensor, outgoing: Tensor, got: Any, sizes: list[int], group: Any
        ) -> None:
            self.sent += sum(sizes) - sizes[dist.get_rank()]
            self._swap(incoming, outgoing, got, sizes, group)

        def gather(every: list[Tensor], own: Tensor, group: Any) -> None:
            self.sent += own.nbytes * (len(every) - 1)
            self._gather(every, own, group)

        dist.all_to_all_single, dist.all_gather = swap, gather  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        dist.all_to_all_single, dist.all_gather = self._swap, self._gather


def averaged(rank: int) -> dict[str, Any]:
    """{format: the mean of all gradients, and the bytes sent}"""
    found: dict[str, Any] = {}
    for fmt in [*FORMATS, STOCHASTIC]:
        with Counted() as counted:
            mean = bs.parallel.hook(fmt, seed=3)(None, Bucket(gradient(rank))).wait()
        found[fmt] = mean, counted.sent
    half = gradient(rank).to(torch.bfloat16)
    found["half"] = bs.parallel.hook("mxint8")(None, Bucket(half)).wait()
    return found


def fed_back(rank: int) -> dict[str, Tensor]:
    """The sum of the means of one gradient that is averaged sixteen times."""
    x = gradient(rank)
    found = {}
    for feedback in (False, True):
        average = bs.parallel.hook("mxfp4", error_feedback=feedback)
        bucket = Bucket(x)
        found[f"feedback {feedback}"] = sum(average(None, bucket).wait() for _ in range(16))
    average = bs.parallel.hook("mxfp4", error_feedback=True)
    average(None, Bucket(x))
    found["rebuilt"] = average(None, Bucket(x[:97].clone())).wait()  # other parameters by now
    found["new"] = bs.parallel.hook("mxfp4")(None, Bucket(x[:97].clone())).wait()
    return found


def trained(rank: int) -> dict[str, list[Tensor]]:
    """A model that DDP trains in two of the processes with the hook, and without."""
    found: dict[str, list[Tensor]] = {}
    pair = dist.new_group([0, 1])
    if rank > 1:  # DDP takes seconds to import
        return found
    for fmt in ("mxint8", ""):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(40, 33), nn.ReLU(), nn.Linear(33, 5))
        model = DistributedDataParallel(net, process_group=pair)
        if fmt:
            model.register_comm_hook(None, bs.parallel.hook(fmt, group=pair))
        by = torch.optim.SGD(model.parameters(), 0.1)
        draw = torch.Generator().manual_seed(rank)
        for _ in range(4):
            x = torch.randn(16, 40, generator=draw)
            by.zero_grad()
            (model(x) - x[:, :5]).square().mean().backward()
            by.step()
        found[f"trained {fmt}"] = [p.detach().clone() for p in model.parameters()]
    return found


def gathered(rank: int) -> dict[str, Any]:
    """Quantized tensors of all processes, of one shape and of several."""
    found: dict[str, Any] = {}
    for fmt in ("nvfp4", "int4:group32:fp32:asym", "int8_channel", "mxfp6"):
        for kind, rows in (("alike", 4), ("uneven", 3 + rank)):
            q = bs.quantize(
                torch.randn(rows, 96, generator=torch.Generator().manual_seed(rank)), fmt
            )
            every = bs.parallel.all_gather(q)
            found[f"{fmt} {kind}"] = [
                (each.packed, list(each.qparams), each.dequantize()) for each in every
            ]
    try:
        bs.parallel.all_gather(bs.quantize(torch.ones(2, 32), "mxfp4" if rank == 2 else "mxfp8"))
    except ValueError as error:
        found["formats"] = str(error)
    return found


def sent(rank: int) -> dict[str, Any]:
    """Messages themselves."""
    x = torch.arange(rank, dtype=torch.int32)
    parcels = [torch.full((rank + 2 * to,), rank, dtype=torch.uint8) for to in range(RANKS)]
    sizes = [frm + 2 * rank for frm in range(RANKS)]
    return {
        "gathered": messages.gather_messages(x),
        "swapped": messages.exchange(parcels, sizes, torch.device("cpu")),
    }


def work(rank: int, folder: str) -> None:
    begin(rank, folder, RANKS)
    found = averaged(rank) | fed_back(rank) | trained(rank) | gathered(rank) | sent(rank)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def decibels(found: Tensor, wanted: Tensor) -> float:
    """Signal to noise."""
    noise = (found.double() - wanted).square().sum()
    return 10 * math.log10(float(wanted.square().sum() / noise))
