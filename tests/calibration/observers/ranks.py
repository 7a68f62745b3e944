# SPDX-License-Identifier: BSD-3-Clause
"""What each process of tests/calibration/observers/test_distributed.py does."""

import pathlib

import torch
import torch.distributed as dist

import blockscale as bs
from tests.calibration.observers.seen import seeing, served

RANKS = 3
CASES = [
    ("min_max", "int8:tensor:fp32"),
    ("min_max", "int4:group16:fp32"),
    ("percentile:99", "uint8:channel-1:fp32:asym"),
    ("percentile:99.9", "int8:tensor:fp32"),  # more than it can keep
    ("entropy", "int8:tensor:pow2/nearest"),
    ("mse", "e2m1:channel-1:e8m0/floor"),
    ("mse", "uint4:tensor:fp32:asym"),
    ("mse:weighted", "int4:tensor:fp32"),
    ("moving_average", "int8:tensor:fp32"),
    ("mean", "binary:tensor:fp32"),
    ("adaptive:min_max+mse", "int8:channel-1:fp32"),
]
CASES += [  # a new observer in a format that it takes
    (name, served(name))
    for name in bs.observers.names()
    if name not in {spec.partition(":")[0] for spec, _ in CASES}
]


def shards(spec: str) -> list[list[torch.Tensor]]:
    """The batches of each process: uneven, NaN in the second, none in the third."""
    rows = 6000 if spec == "percentile:99.9" else 32
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(4, rows, 16, generator=generator)
        * torch.tensor([1, 9, 0.1, 300])[:, None, None]
    )
    x[1, 0, :5] = torch.nan
    x[3, 1, 2] = -torch.inf
    return [[x[0]], [x[1], x[2], x[3]], []]


def refused(observer) -> str:
    try:
        observer.all_reduce_()
    except ValueError as error:
        return str(error)
    return ""


def work(rank: int, folder: str) -> None:
    """One process: all cases, then what has to be refused in every process."""
    torch.set_num_threads(1)
    path = pathlib.Path(folder)
    store = dist.FileStore(str(path / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    states = []
    for spec, fmt in CASES:
        observer = seeing(spec, fmt, *shards(spec)[rank])
        states.append(observer.all_reduce_().state_dict())
    nobody = bs.observers.make("mse", "int8:tensor:fp32").all_reduce_()
    features = seeing(
        "min_max", "int8:channel-1:fp32", *[torch.ones(2, 3 + (rank == 1))][: 2 - rank]
    )
    mixed = bs.observers.make("mse" if rank else "min_max", "int8:tensor:fp32")
    words = [refused(features), refused(mixed)]
    torch.save([states, nobody.state_dict(), words], path / f"{rank}.pt")
    dist.destroy_process_group()
