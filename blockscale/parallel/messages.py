# SPDX-License-Identifier: BSD-3-Clause
"""Tensors sent between the processes of a group, in the order of the processes."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ALIGNED = 16  # bytes: where tensors begin in a message


def wire(group: Any = None) -> torch.device:
    """Where tensors lie that the group sends fastest: on GPUs where it has NCCL, alone or, as in
    "cpu:gloo,cuda:nccl", beside a backend for processors, which sends Python's objects then."""
    return torch.device("cuda" if "nccl" in dist.get_backend_config(group) else "cpu")


def gather_messages(x: Tensor, group: Any = None, *, alike: bool = False) -> list[Tensor]:
    """x [n] of each process -> all of them, in every process.

    alike: n is known to be the same in all; else it is asked for, by one message more
    """
    own = x.to(wire(group)).contiguous()
    sizes = [own.numel()] * dist.get_world_size(group)
    if not alike:
        count = torch.tensor([own.numel()], device=own.device)
        counts = [torch.empty_like(count) for _ in sizes]
        dist.all_gather(counts, count, group)
        sizes = [int(each) for each in counts]
    padded = own
    if own.numel() < max(sizes):
        padded = own.new_zeros(max(sizes))
        padded[: own.numel()] = own
    everyone = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(everyone, padded, group)
    return [each[:size].to(x.device) for each, size in zip(everyone, sizes, strict=True)]


def exchange(
    parcels: Sequence[Tensor], sizes: Sequence[int], device: torch.device, group: Any = None
) -> list[Tensor]:
    """A parcel uint8 [bytes] to each process -> one from each, `sizes` bytes, on `device`."""
    outgoing = torch.cat([each.to(wire(group)) for each in parcels])
    incoming = torch.empty(sum(sizes), dtype=torch.uint8, device=outgoing.device)
    dist.all_to_all_single(incoming, outgoing, list(sizes), [len(p) for p in parcels], group)
    return list(incoming.to(device).split(list(sizes)))


# Several tensors as one message.


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors, one after the other, each beginning at a multiple of ALIGNED."""
    pieces = []
    for tensor in tensors:
        data = tensor.detach().contiguous().flatten().view(torch.uint8)
        pieces += [data, data.new_zeros(-len(data) % ALIGNED)]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)


def unpacked(message: Tensor, like: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Tensor]:
    """The tensors of these shapes and dtypes that a message was packed from, in memory of their
    own: products give the same bits only for operands that are aligned alike."""
    results, start = [], 0
    for shape, dtype in like:
        size = torch.Size(shape).numel() * dtype.itemsize
        results.append(message[start : start + size].clone().view(dtype).view(tuple(shape)))
        start += aligned(shape, dtype)
    return results


def aligned(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of a tensor in a message."""
    size = torch.Size(shape).numel() * dtype.itemsize
    return size + -size % ALIGNED
