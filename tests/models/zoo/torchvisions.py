# SPDX-License-Identifier: BSD-3-Clause
"""Models of torchvision, narrow where their classes allow it."""

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.models import outside
from tests.models.registry import Inputs, add
from tests.models.zoo.inputs import picture


def _named(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model: nn.Module = getattr(outside.torchvision().models, name)(**settings)
        return model

    return make


def vision(name: str, sample: Callable[[], Inputs] = picture, **settings: Any) -> None:
    """Add torchvision's model of this name."""
    known = {"weights": None, "num_classes": 32} | settings
    add(f"torchvision_{name}", "torchvision", _named(name, **known), sample)


def swin() -> nn.Module:
    """swin_t, of two stages."""
    kind = outside.torchvision().models.swin_transformer.SwinTransformer
    model: nn.Module = kind([4, 4], 32, [2, 2], [2, 4], [4, 4], num_classes=32)
    return model


def vit() -> nn.Module:
    """vit_b_16, of two layers."""
    kind = outside.torchvision().models.VisionTransformer
    model: nn.Module = kind(64, 16, 2, 4, 64, 128, num_classes=32)
    return model


vision("resnet18")
vision("mobilenet_v2", width_mult=0.5)
vision("mobilenet_v3_small", width_mult=0.5)
vision("efficientnet_b0")
vision("densenet121")
vision("squeezenet1_1")
vision("shufflenet_v2_x0_5")
vision("regnet_y_400mf")
vision("mnasnet0_5")
vision("googlenet", aux_logits=False, init_weights=False)
add("torchvision_swin", "torchvision", swin, picture)
add("torchvision_vit", "torchvision", vit, picture)
