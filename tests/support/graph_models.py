# SPDX-License-Identifier: BSD-3-Clause
"""Programs of models that nobody here wrote, and of a convolutional net with everything in it."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


class Net(nn.Module):
    """Batch norms, grouped, depthwise and transposed convolutions, a residual, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False), nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2)
        self.c3 = nn.Conv2d(8, 16, 3, groups=2, padding="same", padding_mode="reflect")
        self.c4, self.drop = nn.Conv1d(16, 16, 3, padding=1), nn.Dropout()
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, 3, 8, 8] -> probabilities [batch, 5]."""
        x = torch.relu(self.b1(self.c1(x)))
        x = torch.relu(self.b2(self.c2(x))) + x
        x = torch.relu(self.c3(self.up(x)))
        x = self.c4(x.flatten(2)).mean(2)
        return self.fc(self.drop(x)).softmax(-1)


@cache
def net() -> tuple[nn.Module, ExportedProgram, list[tuple[Tensor, ...]]]:
    """The net, its program with any number of images, and two batches."""
    torch.manual_seed(0)
    model = Net()
    for norm in (model.b1, model.b2):
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
        norm.bias.data.normal_()
    batches = [(torch.randn(k, 3, 8, 8),) for k in (2, 3)]
    sizes = ({0: Dim("batch")},)
    return model.eval(), torch.export.export(model, batches[0], dynamic_shapes=sizes), batches


@cache
def bert() -> tuple[nn.Module, ExportedProgram, list[dict[str, Tensor]]]:
    """A BERT of transformers, with any number of rows of any length."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=1, hidden_size=32, num_attention_heads=4, intermediate_size=64,
        vocab_size=50,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    batches = [
        {
            "input_ids": torch.randint(0, 50, (k, 8 + k)),
            "attention_mask": torch.ones(k, 8 + k, dtype=torch.long),
        }
        for k in (2, 3)
    ]
    free = {0: Dim("rows"), 1: Dim("tokens", max=500)}
    sizes = dict.fromkeys(batches[0], free)
    return model, torch.export.export(model, (), batches[0], dynamic_shapes=sizes), batches


@cache
def gpt2() -> tuple[nn.Module, ExportedProgram, list[tuple[Tensor, ...]]]:
    """A GPT-2 of transformers: Conv1D layers, and a head that shares its table's weight."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=32, n_head=4, vocab_size=50, n_positions=32, use_cache=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    batches = [(torch.randint(0, 50, (k, 8 + k)),) for k in (2, 3)]
    sizes = ({0: Dim("rows"), 1: Dim("tokens", min=2, max=32)},)
    program = torch.export.export(model, batches[0], dynamic_shapes=sizes, strict=False)
    return model, program, batches


def run(graph: Any, batch: Any) -> Tensor:
    """The first tensor that a model or graph gives for a batch."""
    with torch.no_grad():
        y = graph(**batch) if isinstance(batch, dict) else graph(*batch)
    return y if isinstance(y, Tensor) else y[0]
