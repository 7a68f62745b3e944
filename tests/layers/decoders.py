# SPDX-License-Identifier: BSD-3-Clause
"""Models with transposed convolutions and with convolutions over three dimensions."""

import warnings

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """Images [batch, 3, h, w] of any size -> [batch, 2, 2 h, 2 w]; grouped, depthwise, strided."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.down, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16)
        self.up, self.norm3 = nn.ConvTranspose2d(16, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.grouped = nn.ConvTranspose2d(16, 8, 3, groups=4, padding=1, bias=False)
        self.norm4 = nn.BatchNorm2d(8)
        self.deep = nn.ConvTranspose2d(8, 8, 3, groups=8, dilation=2, padding=2)
        self.last = nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.norm1(self.first(x)))
        small = torch.relu(self.norm2(self.down(wide)))
        back = torch.relu(self.norm3(self.up(small, output_size=wide.shape[2:])))
        joined = self.norm4(self.grouped(torch.cat([wide, back], 1)))
        return self.last(torch.relu(self.deep(joined)))


class Volumes(nn.Module):
    """[batch, 2, d, h, w] -> [batch, 3, 2 d, 2 h, 2 w], and a row of it through one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm1 = nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8)
        self.up, self.norm2 = nn.ConvTranspose3d(8, 4, 2, stride=2, groups=2), nn.BatchNorm3d(4)
        self.row, self.norm3 = nn.ConvTranspose1d(4, 3, 3, padding=1), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm2(self.up(torch.relu(self.norm1(self.conv(x))))))
        return self.norm3(self.row(y.flatten(2))).unflatten(2, y.shape[2:])


def images(count: int = 2, height: int = 9) -> Tensor:
    return torch.randn(count, 3, height, 8, generator=torch.Generator().manual_seed(height))


def volumes(count: int = 2, depth: int = 3) -> Tensor:
    return torch.randn(count, 2, depth, 4, 5, generator=torch.Generator().manual_seed(depth))


MODELS = {"unet": (UNet, images), "volumes": (Volumes, volumes)}


def made(name: str) -> nn.Module:
    """A model whose batch norms have seen something, in evaluation."""
    torch.manual_seed(0)
    kind, inputs = MODELS[name]
    model = kind()
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias, std=0.2)
    for _ in range(3):
        model(inputs(4))
    return model.eval()


def hifi_gan() -> tuple[nn.Module, Tensor]:
    """Transformers' vocoder: transposed convolutions over time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig
    torch.manual_seed(0)
    config = SpeechT5HifiGanConfig(
        model_in_dim=8, upsample_initial_channel=16, upsample_rates=[2, 3],
        upsample_kernel_sizes=[4, 5], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
    )  # fmt: skip
    return SpeechT5HifiGan(config).eval(), torch.randn(6, 8)


def video_mae() -> tuple[nn.Module, Tensor]:
    """Transformers' video encoder, whose patches are a convolution over three dimensions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import VideoMAEConfig, VideoMAEForVideoClassification
    torch.manual_seed(0)
    config = VideoMAEConfig(
        image_size=16, patch_size=8, num_frames=4, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=64, num_labels=5,
    )  # fmt: skip
    return VideoMAEForVideoClassification(config).eval(), torch.randn(2, 4, 3, 16, 16)
