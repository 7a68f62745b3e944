# SPDX-License-Identifier: BSD-3-Clause
"""A model whose own code reads the weights of its layers, and a float twin with the same values."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held


class Reader(nn.Module):
    """Every way in which models of others read weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.table = nn.Linear(64, 32), nn.Embedding(50, 64)
        self.conv, self.up = nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 4, 2, groups=2)
        self.stack = nn.Parameter(torch.randn(3, 32, 64) / 8)

    def forward(self, ids: Tensor, image: Tensor) -> list[Tensor]:
        x, w = self.table(ids), self.fc.weight
        wide = F.conv2d(image, self.conv.weight, self.conv.bias, padding="same")
        return [
            F.linear(x, w, self.fc.bias), x @ w.t(), x @ w.T, torch.matmul(x[0], w.mT),
            torch.einsum("btk,nk->btn", x, w), F.linear(x[..., :32], w.t()), (w @ x[0].t()),
            F.embedding(ids, self.table.weight), self.table.weight[ids], self.table.weight[-3:],
            wide, F.conv_transpose2d(wide, self.up.weight, self.up.bias, groups=2),
            torch.where(w > 0, w, 0), w.squeeze(), w.sum(), w.view(-1)[:5], w.float() * 2,
            F.linear(x, w[8:16]), F.linear(x, w.chunk(4)[1]), w.permute(1, 0) + 1,
            F.linear(x, self.stack[1]), x @ self.stack[2].transpose(0, 1), x @ self.stack.mT[0],
            torch.cat([F.linear(x, one) for one in self.stack.unbind(0)], -1), self.stack[0, 1],
            torch.baddbmm(torch.zeros(3, 5, 32), x[:1].expand(3, 5, 64), self.stack.mT),
            torch.addmm(self.fc.bias, x[0], w.t()), F.linear(x, w, torch.ones_like(self.fc.bias)),
        ]  # fmt: skip


def inputs() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (2, 5), generator=g)
    return ids, torch.randn(2, 4, 6, 6, generator=g)


def pair(fmt: str) -> tuple[Reader, Reader]:
    """The quantized model, and a float one with its dequantized weights."""
    torch.manual_seed(0)
    model = Reader().eval()
    plain = copy.deepcopy(model)
    bs.quantize_(model, fmt, strict=True)
    for name, layer in model.named_modules():
        if isinstance(layer, QLayer):
            plain.get_submodule(name).weight.data = layer.dequantize_weight()
    for name, weight in all_held(model):
        plain.get_parameter(name).data = weight.dequantize()
    return model, plain
