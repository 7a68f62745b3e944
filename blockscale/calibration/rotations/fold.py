# SPDX-License-Identifier: BSD-3-Clause
"""What the parameters of a model become when its residual stream is rotated."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from blockscale.calibration.rotations.stream import Norm, Stream, UnrotatableError, Use


def head_sizes(stream: Stream) -> set[int]:
    """The sizes of heads whose values are rotated."""
    return {use.heads for use in stream.uses if use.heads}


def turned(
    model: nn.Module, stream: Stream, rotation: Tensor, heads: Mapping[int, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's name and what it becomes, in R's dtype: gains folded, then x' = x R.

    rotation: R [size, size]; heads: {size of a head: its rotation [size, size]}.
    """
    through: dict[str, list[Use]] = {}
    for use in stream.uses:
        through.setdefault(use.parameter, []).append(use)
    for name, uses in through.items():
        parameter = model.get_parameter(name).detach()
        tensor = parameter.to(rotation.dtype)
        for use in uses:
            by = heads[use.heads] if use.heads else rotation
            gain = None if use.norm is None else gain_of(model, use.norm)
            tensor = _through(tensor, use, by.to(tensor), gain)
        yield name, tensor
    for norm in stream.norms:
        yield from _norm(model, norm, rotation)


def gain_of(model: nn.Module, norm: Norm) -> Tensor:
    """What a norm multiplies by, in float64."""
    weight = model.get_parameter(f"{norm.name}.weight").detach().to(torch.float64)
    return weight + 1 if norm.adds_one else weight


def _through(tensor: Tensor, use: Use, by: Tensor, gain: Tensor | None) -> Tensor:
    """The tensor with one dimension multiplied by the gain and by the rotation."""
    last = tensor.movedim(use.dim, -1)
    if gain is not None:
        last = last * gain.to(last)
    pieces = last.unflatten(-1, (-1, by.shape[0]))
    return (pieces @ by).flatten(-2).movedim(-1, use.dim)


def _norm(model: nn.Module, norm: Norm, rotation: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A norm of gain 1. Its bias, before the gain that goes, is rotated as the stream is."""
    gain = gain_of(model, norm)
    yield f"{norm.name}.weight", torch.full_like(gain, 0.0 if norm.adds_one else 1.0)
    bias = getattr(model.get_submodule(norm.name), "bias", None)
    if isinstance(bias, Tensor):
        bias = bias.detach().to(gain)
        if bool(((gain == 0) & (bias != 0)).any()):
            raise UnrotatableError(f"{norm.name} has a bias where its gain is 0")
        before = torch.where(gain == 0, 0.0, bias / gain)
        yield f"{norm.name}.bias", before.to(rotation.dtype) @ rotation.to(before.device)
