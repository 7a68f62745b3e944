# SPDX-License-Identifier: BSD-3-Clause
"""Models of torch.nn's own layers, as people write them."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.models.registry import Inputs, add


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, a head."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.embed = nn.Embedding(128, 32)
        self.rnn = kind(32, 64, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 128)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [rows, words] -> [rows, words, 128]."""
        return self.head(self.rnn(self.embed(ids))[0])


class Cells(nn.Module):
    """One step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(32, 32), nn.GRUCell(32, 32), nn.RNNCell(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, steps, 32] -> [rows, 32]."""
        hidden, cell = torch.zeros(x.shape[0], 32), torch.zeros(x.shape[0], 32)
        for step in x.unbind(1):
            hidden, cell = self.lstm(step, (hidden, cell))
            hidden = self.rnn(step, self.gru(step, hidden))
        return hidden


class Attention(nn.Module):
    """nn.MultiheadAttention with its parameters together, and apart."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(64, 4, batch_first=True)
        self.other = nn.MultiheadAttention(64, 4, kdim=32, vdim=32, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """x [rows, length, 64], memory [rows, length, 32] -> [rows, length, 64]."""
        x = x + self.own(x, x, x, need_weights=False)[0]
        return x + self.other(x, memory, memory)[0]


class Bag(nn.Module):
    """Sums of rows of a table, and a product of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(128, 64, mode="sum")
        self.twice = nn.Bilinear(64, 64, 32)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """ids [rows, words], x [rows, 64] -> [rows, 32]."""
        return self.twice(self.bag(ids), x)


class Words(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 128, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        """ids [rows, words] -> [rows, words, 128]."""
        return self.head(self.body(self.embed(ids)))


def convolutions() -> nn.Module:
    """Down and up again, in one, two and three dimensions' ways."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1, groups=4), nn.GELU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1),
    )  # fmt: skip


def normed() -> nn.Module:
    """Weights that are computed: from a length and a direction, and divided by a norm."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(64, 64)), nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(64, 64)), nn.Linear(64, 32),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 32)
    )


def volumes() -> nn.Module:
    """Convolutions over a line and over a volume."""
    return nn.Sequential(
        nn.Conv3d(2, 32, 3, padding=1), nn.ReLU(), nn.ConvTranspose3d(32, 16, 2, 2), nn.Flatten(2),
        nn.Conv1d(16, 32, 3), nn.ReLU(), nn.ConvTranspose1d(32, 8, 4, 2),
    )  # fmt: skip


def _ids() -> Tensor:
    return torch.randint(0, 128, (2, 9))


def _input(*shape: int) -> Inputs:
    return {"input": torch.randn(*shape)}


add("nn_mlp", "torch", perceptron, lambda: _input(4, 64))
add("nn_conv2d", "torch", convolutions, lambda: _input(2, 3, 32, 32))
add("nn_conv1d_conv3d", "torch", volumes, lambda: _input(1, 2, 4, 8, 8))
add("nn_lstm", "torch", lambda: Recurrent(nn.LSTM), lambda: {"ids": _ids()})
add("nn_gru", "torch", lambda: Recurrent(nn.GRU), lambda: {"ids": _ids()})
add("nn_rnn", "torch", lambda: Recurrent(nn.RNN), lambda: {"ids": _ids()})
add("nn_cells", "torch", Cells, lambda: {"x": torch.randn(2, 5, 32)})
add("nn_attention", "torch", Attention,
    lambda: {"x": torch.randn(2, 6, 64), "memory": torch.randn(2, 5, 32)})  # fmt: skip
add("nn_encoder", "torch", Words, lambda: {"ids": _ids()})
add("nn_transformer", "torch", lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True),
    lambda: {"src": torch.randn(2, 7, 64), "tgt": torch.randn(2, 5, 64)})  # fmt: skip
add("nn_bag_bilinear", "torch", Bag, lambda: {"ids": _ids(), "x": torch.randn(2, 64)})
add("nn_parametrized", "torch", normed, lambda: _input(4, 64))
