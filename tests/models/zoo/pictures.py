# SPDX-License-Identifier: BSD-3-Clause
"""Models that draw pictures, of diffusers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tests.models.registry import Inputs, add

_DOWN, _UP = ["DownBlock2D", "CrossAttnDownBlock2D"], ["CrossAttnUpBlock2D", "UpBlock2D"]


def drawn(kind: str, settings: Mapping[str, Any], sample: Callable[[], Inputs], name: str) -> None:
    """Add a model of diffusers."""

    def make() -> nn.Module:
        import diffusers

        model: nn.Module = getattr(diffusers, kind)(**settings)
        return model

    add(name, "diffusers", make, sample)


def noisy(channels: int, width: int) -> Callable[[], Inputs]:
    """A noisy picture at step 10, and what it should show."""
    return lambda: {
        "sample": torch.randn(1, channels, 16, 16),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 5, width),
    }


drawn("UNet2DConditionModel", {
    "sample_size": 16, "in_channels": 4, "out_channels": 4, "block_out_channels": [32, 64],
    "layers_per_block": 1, "down_block_types": _DOWN, "up_block_types": _UP,
    "cross_attention_dim": 32, "attention_head_dim": 8, "norm_num_groups": 8,
}, noisy(4, 32), "unet")  # fmt: skip
drawn("AutoencoderKL", {
    "block_out_channels": [32, 64], "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2, "norm_num_groups": 8, "sample_size": 16,
}, lambda: {"sample": torch.randn(1, 3, 16, 16)}, "autoencoder")  # fmt: skip
drawn("Transformer2DModel", {
    "num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4,
    "num_layers": 2, "sample_size": 16, "patch_size": 2, "norm_type": "ada_norm_zero",
    "num_embeds_ada_norm": 32, "norm_elementwise_affine": False,
}, lambda: {"hidden_states": torch.randn(1, 4, 16, 16), "timestep": torch.tensor([10]),
            "class_labels": torch.tensor([3])}, "dit")  # fmt: skip
