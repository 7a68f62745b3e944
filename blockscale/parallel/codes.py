# SPDX-License-Identifier: BSD-3-Clause
"""Collectives that send codes and scales: for slow links between hosts (docs/scale.md).

Between GPUs of one host a sum in bfloat16 takes less time than quantizing does.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.ops import primitives
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor
from blockscale.parallel.messages import exchange, gather_messages, packed, unpacked

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]


def all_gather(q: QTensor, group: Any = None) -> list[QTensor]:
    """The quantized tensors q of all processes of a group, in their order, in every process.

    Codes and scales of a tensor travel in one message, after one that says what they are. Shapes
    may differ.

    group: of torch.distributed, None for all processes
    Raises TypeError for anything but a QTensor; ValueError, in every process, where formats differ.
    """
    if not isinstance(q, QTensor):
        raise TypeError(
            f"bs.parallel.all_gather: expected a QTensor (bs.quantize), found {type(q).__name__}; "
            "torch.distributed.all_gather sends plain tensors"
        )
    parts = _parts(q)
    about = (str(q.format), q.size, [(tuple(part.shape), part.dtype) for part in parts])
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, about, group)
    for rank, (fmt, *_) in enumerate(every):
        if fmt != every[0][0]:
            raise ValueError(
                f"bs.parallel.all_gather: process {rank} holds {fmt} and process 0 {every[0][0]}: "
                "quantize to one format in all"
            )
    alike = all(each == every[0] for each in every)
    messages = gather_messages(packed(parts), group, alike=alike)
    return [
        _of_parts(unpacked(message, like), q.format, size)
        for message, (_, size, like) in zip(messages, every, strict=True)
    ]


def hook(
    fmt: str | Format, *, group: Any = None, error_feedback: bool = False, seed: int = 0
) -> Hook:
    """A communication hook of DistributedDataParallel that averages gradients in a format:
    `ddp.register_comm_hook(None, bs.parallel.hook("mxint8"))`.

    Each process quantizes one slice of its gradients for each process and sends it there; a process
    adds the slices that it received in float32, in the order of the processes, and divides by how
    many there are; it quantizes this mean, which all gather and dequantize. So every process gets
    the same bits, whatever arrives first. Each sends bits / 16 of what a ring in bfloat16 sends.

    fmt: of gradients, such as "mxint8" (38 dB) or "int8:group64:fp32"; with stochastic rounding
        (`:stochastic`) every process and step draws its own numbers
    group: that of the model, None for all processes
    error_feedback: what rounding took from gradients is added to the next ones (Seide et al. 2014,
        "1-bit stochastic gradient descent"), which takes 4 bytes for each parameter
    seed: for stochastic rounding

    Raises ValueError for formats whose scales are given and not chosen.
    """
    form = parse(fmt)
    if form.unchosen:
        raise ValueError(f"bs.parallel.hook: {form}: {form.unchosen}: no gradient can be quantized")
    averaging = _Averaging(form, group, error_feedback, seed)

    def average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        del state
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        key = tuple(id(parameter) for parameter in bucket.parameters())
        future.set_result(averaging.mean(bucket.buffer(), bucket.index(), key))
        return future

    return average


class _Averaging:
    """Means of flat tensors over a group, in a format; and what rounding left of buckets."""

    def __init__(self, fmt: Format, group: Any, error_feedback: bool, seed: int):
        self.fmt, self.group, self.seed = fmt, group, seed
        self._feedback = error_feedback
        self._remainders: dict[int, tuple[Any, Tensor]] = {}
        self._rounds = 0

    @torch.no_grad()
    def mean(self, x: Tensor, bucket: int, key: Any) -> Tensor:
        """x [n] of each process -> their mean [n], the same bits in every process.

        bucket: its number; key: whose gradients it holds, which DDP changes after the first step
        """
        size, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        width = -(-x.numel() // size)
        slices = x.new_zeros(size * width, dtype=torch.float32)
        slices[: x.numel()] = x
        slices = slices.view(size, 1, width)
        shape_of_bucket, rest = self._remainders.get(bucket, (None, None))
        if rest is not None and shape_of_bucket == key:
            slices += rest
        quantized = [self._quantized(each) for each in slices]
        like = [(part.shape, part.dtype) for part in _parts(quantized[0])]
        parcels = [packed(_parts(q)) for q in quantized]
        arrivals = exchange(parcels, [len(parcels[0])] * size, x.device, self.group)
        total = torch.zeros(1, width, device=x.device)
        for message in arrivals:  # in the order of the processes, whatever came first
            total += _of_parts(unpacked(message, like), self.fmt, width).dequantize()
        total /= size
        own = self._quantized(total)
        messages = gather_messages(packed(_parts(own)), self.group, alike=True)
        means = [_of_parts(unpacked(m, like), self.fmt, width).dequantize() for m in messages]
        if self._feedback:
            rest = slices - torch.stack([q.dequantize() for q in quantized])
            rest[rank] += size * (total - means[rank])  # the next mean has 1 / size of it
            self._remainders[bucket] = key, rest
        return torch.cat(means, -1).flatten()[: x.numel()].to(x.dtype)

    def _quantized(self, x: Tensor) -> QTensor:
        """x [1, width] in the format; of stochastic rounding with numbers of its own."""
        if self.fmt.rounding != "stochastic":
            return quantize(x, self.fmt)
        self._rounds += 1
        text = f"{self.seed} {dist.get_rank(self.group)} {self._rounds}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return quantize(x, self.fmt, seed=int.from_bytes(digest, "little") >> 1)


def _parts(q: QTensor) -> list[Tensor]:
    """Packed codes, and what the scales are stored as."""
    return [q.packed, *primitives.to_list(q.qparams)]


def _of_parts(parts: list[Tensor], fmt: Format, size: int) -> QTensor:
    codes, *scales = parts
    return QTensor(codes, primitives.from_list(scales, fmt), fmt, size)
