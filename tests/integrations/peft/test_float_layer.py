# SPDX-License-Identifier: BSD-3-Clause
"""The float layer that a quantized one stands for."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.before.rotate import Rotate

peft = pytest.importorskip("peft")

from blockscale.integrations.peft.float_layer import float_layer  # noqa: E402 - needs peft

IMAGE = (2, 4, 9, 8)
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(12, 5), (3, 12)),
    "without bias": (nn.Linear(12, 5, bias=False), (3, 12)),
    "embedding": (nn.Embedding(9, 6, padding_idx=2), ()),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2, bias=False), IMAGE),
    "conv2d same": (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), IMAGE),
    "conv3d": (nn.Conv3d(4, 2, 2, padding=1), (1, 4, 3, 3, 3)),
}


def input_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape) if shape else torch.tensor([[1, 2, 8]])


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_layer_that_was_there(case: str) -> None:
    layer, shape = CASES[case]
    model = nn.Sequential(copy.deepcopy(layer)).eval()
    bs.quantize_(model, "int8:channel0:fp32")
    made = float_layer(model[0])
    assert type(made) is type(layer) and not made.training
    assert made.extra_repr() == layer.extra_repr()
    assert torch.equal(made.weight, model[0].qweight.dequantize())  # type: ignore[arg-type]
    assert not any(parameter.requires_grad for parameter in made.parameters())
    x = input_of(shape)
    with bs.use("reference"):
        torch.testing.assert_close(made(x), model[0](x))


def test_conv1d_of_transformers() -> None:
    conv1d: Any = pytest.importorskip("transformers").pytorch_utils.Conv1D
    model = nn.Sequential(conv1d(6, 8))
    bs.quantize_(model, "int8:group4:fp32")
    made: Any = float_layer(model[0])
    assert type(made) is conv1d and (made.nf, made.nx) == (6, 8)
    torch.testing.assert_close(made(torch.ones(2, 8)), model[0](torch.ones(2, 8)))


def test_another_dtype_and_a_quantized_bias() -> None:
    model = nn.Sequential(nn.Linear(8, 4)).bfloat16()
    recipe = bs.Recipe("int4:group8:fp32", bias="int8:tensor:fp32")
    bs.quantize_(model, recipe)
    assert float_layer(model[0]).weight.dtype == torch.bfloat16
    made: Any = float_layer(model[0], torch.float32)
    assert torch.equal(made.bias, model[0].quantized_bias.dequantize(torch.float32))
    assert torch.equal(made.weight, model[0].qweight.dequantize(torch.float32))


def test_what_stands_before_a_layer_is_undone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8))
    exact = model[0].weight.detach().clone()
    bs.quantize_(model, "int8:channel0:fp32", before={"0": Rotate(32, 32)})
    made: Any = float_layer(model[0])
    assert model[0].before is not None
    torch.testing.assert_close(made.weight, exact, atol=0.01, rtol=0.1)


def test_a_kind_that_peft_has_no_lora_for() -> None:
    model = nn.Sequential(nn.ConvTranspose1d(4, 4, 2))
    bs.quantize_(model, "int8:channel1:fp32")
    with pytest.raises(ValueError, match=r"LoRA supports .* found QConvTranspose"):
        float_layer(model[0])
