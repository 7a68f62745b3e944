# SPDX-License-Identifier: BSD-3-Clause
"""A tiny model of diffusers."""

import importlib.util
from typing import Any

import pytest
import torch

from tests.support.transformers_models import same_bits as same_bits

DIFFUSERS = pytest.mark.skipif(
    importlib.util.find_spec("diffusers") is None, reason="needs diffusers"
)


def unet() -> Any:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4,
        block_out_channels=(32, 32), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
