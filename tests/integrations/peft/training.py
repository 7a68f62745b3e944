# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of LoRA do again and again."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from tests.integrations.peft.networks import built

peft = pytest.importorskip("peft")

NF4 = "nf4:group64:fp32"
QUIET = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


def quantized(name: str, fmt: str | bs.Recipe = NF4, dtype: Any = None) -> Any:
    """(a tiny quantized model, inputs with which it gives a loss)."""
    model, inputs = built(name)
    bs.quantize_(model.to(dtype), fmt)
    return model.eval(), inputs


def lora(model: nn.Module, targets: Any = "all-linear", **settings: Any) -> Any:
    """A PEFT model with adapters of rank 4 whose B is not 0."""
    settings = {"r": 4, "init_lora_weights": False} | settings
    config = peft.LoraConfig(target_modules=targets, **settings)
    return peft.get_peft_model(model, config).eval()


def codes_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything in the state that is not an adapter's, as it is now."""
    state = model.state_dict()
    kept = [name for name in state if "lora_" not in name and "modules_to_save" not in name]
    return {name: state[name].clone() for name in kept}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def changed(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of what differs."""
    return [name for name in a if not torch.equal(a[name], b[name])]


def train(model: nn.Module, inputs: dict[str, Any], steps: int = 4, rate: float = 1e-2) -> Any:
    """Losses of so many steps of Adam."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, rate)
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def layers(seed: int = 0) -> nn.Sequential:
    """A convolution, a linear layer and more, for inputs [n, 3, 4, 4]."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten(),
        nn.Linear(128, 6),
    )  # fmt: skip


def twins() -> tuple[nn.Sequential, nn.Sequential]:
    """(a quantized model, the float model with its dequantized weights)."""
    model = layers()
    dense = copy.deepcopy(model)
    bs.quantize_(model, "int8:channel0:fp32")
    for name, module in dense.named_children():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight.data = model.get_submodule(name).qweight.dequantize()
    return model, dense
