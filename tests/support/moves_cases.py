# SPDX-License-Identifier: BSD-3-Clause
"""Moving ops, and graphs that move what was dequantized."""

import torch
import torch.nn.functional as F

from blockscale.graph.nodes import dequantize_of
from blockscale.graph.passes import moving
from tests.graph.passes.nets import graph_of, round_trip, same_after

X = torch.randn(3, 6, 64)
PLACES = torch.tensor([4, 0, 4])
MOVES = {
    "view": lambda x: x.view(x.shape[0], 6, 4, 16),
    "view of rows": lambda x: x.view(x.shape[0] * 6, 64),
    "view of all": lambda x: x.view(x.shape[0], 6 * 64),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 32)),
    "permute": lambda x: x.permute(1, 0, 2),
    "permute of the last": lambda x: x.permute(-1, 0, 1),
    "transpose": lambda x: x.transpose(1, -2),
    "heads": lambda x: x.view(x.shape[0], 6, 4, 16).transpose(1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze last": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "slice": lambda x: x[:, 2:5],
    "slice of a step": lambda x: x[:, ::2],
    "slice from the end": lambda x: x[:, -2:],
    "slice of rows": lambda x: x[..., 16:48],
    "slice within a group": lambda x: x[..., 8:40],
    "select": lambda x: x[:, -1],
    "select last": lambda x: x.select(-1, 3),
    "index_select": lambda x: x.index_select(1, PLACES),
    "index_select of rows": lambda x: x.index_select(-1, PLACES),
    "split": lambda x: x.split(4, 1)[1],
    "split of rows": lambda x: x.split([16, 32, 16], -1)[1],
    "split within a group": lambda x: x.split(24, -1)[1],
    "chunk": lambda x: x.chunk(4, 1)[-1],
    "unbind": lambda x: x.unbind(1)[-1],
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "flip": lambda x: x.flip(1, -1),
    "flip of rows": lambda x: x.fliplr(),
    "turn": lambda x: x.rot90(1, (1, 2)),
    "roll": lambda x: x.roll((1, -2), (1, 0)),
    "roll of all": lambda x: x.roll(7),
    "repeat": lambda x: x.repeat(1, 3, 2).transpose(1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1).transpose(1, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(x.shape[0], 24, 4, 4), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.view(x.shape[0], 6, 8, 8), 4),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "upsample of a line": lambda x: F.interpolate(x, scale_factor=2).flatten(1),
    "upsample": lambda x: F.interpolate(x.unflatten(-1, (8, 8)), size=(13, 24)).flatten(1),
    "upsample exact": lambda x: F.interpolate(
        x.unflatten(-1, (8, 8)), scale_factor=(1.7, 0.6), mode="nearest-exact"
    ).flatten(1),
    "upsample of volumes": lambda x: F.interpolate(
        x.unflatten(-1, (4, 4, 4)), scale_factor=3.0
    ).flatten(1),
    "index": lambda x: x[:, PLACES],
    "index of several": lambda x: x[:, PLACES, PLACES.flip(0)],
    "index of rows": lambda x: x[..., PLACES],
}
FORMATS = (
    *("int8:tensor:fp32", "int8:token:fp32", "mxfp8", "int4:group16:fp32", "nvfp4"),
    *("uint8:group16:fp32:asym", "int8:channel-1:fp32", "int8:tile3x32:fp32", "int8:flat32:fp32"),
)


def block_after(move: str, fmt: str) -> str:
    """The format of what is dequantized after the move; "" if the floats moved."""
    graph = graph_of(lambda _, x: MOVES[move](round_trip(x, fmt)) + 1, X)
    same_after(graph, (moving,), X)
    node = list(graph.graph.nodes)[-2].args[0]
    found = dequantize_of(node)
    return found.operand.fmt.split(":")[1] if found else ""
