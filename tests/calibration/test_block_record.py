# SPDX-License-Identifier: BSD-3-Clause
"""Recording: chains after chains, what is computed between blocks, errors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockscale.calibration.block_calls import TensorStore
from blockscale.calibration.block_record import record
from blockscale.calibration.find_blocks import NotWalkableError
from tests.calibration.walk.networks import Block, Decoder, decoder
from tests.support.blocks_lane import lane_of, walk


class Between(Decoder):
    """Something is computed between two blocks."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x * 2 if i == 2 else x)[0]
        return self.head(x)


class Both(nn.Module):
    """An encoder, and a decoder whose blocks are given what the encoder gave."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.encoder = nn.ModuleList(Block(16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.decoder = nn.ModuleList(Crossed(16) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.encoder:
            x = layer(x)[0]
        y, seen = self.table(ids + 1 - 1), self.norm(x)
        for block in self.decoder:
            y = block(y, seen)
        return y


class Crossed(nn.Module):
    """Its second argument comes from elsewhere."""

    def __init__(self, width: int):
        super().__init__()
        self.own, self.cross = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return x + self.own(x) + self.cross(seen)


def test_where_something_is_computed_between_blocks_the_recording_goes_on_later() -> None:
    model = decoder(4, Between)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        assert walk(lane) == [[0], [1], [2, 3]]


def test_a_decoder_sees_what_its_encoder_gave() -> None:
    torch.manual_seed(0)
    model, seen = Both().eval(), []
    batches = [torch.randint(20, (2, 5)) for _ in range(2)]
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept, batches)
        assert walk(lane) == [[0], [1], [2], [3, 4]]
        model.decoder[2].register_forward_hook(lambda m, a, y: seen.append(y))
        for batch in batches:
            model(batch)
        assert all(torch.equal(lane.target(4, b), y) for b, y in enumerate(seen))


def test_what_the_model_raises_is_told() -> None:
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(decoder(2), kept, [torch.tensor([[99]])])
        with pytest.raises(NotWalkableError, match="around its blocks raised IndexError"):
            record(lane)


def test_a_ghost_that_is_written_into_ends_the_recording() -> None:
    class Writing(Decoder):
        def forward(self, ids: Tensor) -> Any:
            x = self.table(ids)
            for layer in self.layers:
                x = layer(x)[0]
                x += 1
            return x

    model = decoder(3, Writing)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        assert walk(lane) == [[0], [1], [2]]
