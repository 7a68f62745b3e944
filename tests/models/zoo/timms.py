# SPDX-License-Identifier: BSD-3-Clause
"""Models of timm, narrow and shallow where their classes allow it."""

from typing import Any

from torch import nn

from tests.models import outside
from tests.models.registry import add
from tests.models.zoo.inputs import picture

_VIT = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4}


def image_model(name: str, **settings: Any) -> None:
    """Add timm's model of this name."""

    def make() -> nn.Module:
        known = {"pretrained": False, "num_classes": 32} | settings
        model: nn.Module = outside.timm().create_model(name, **known)
        return model

    add(f"timm_{name}", "timm", make, picture)


def _mixer(block: str, ratio: Any) -> nn.Module:
    module = outside.timm().models.mlp_mixer
    kind = getattr(module, block)
    made: nn.Module = module.MlpMixer(
        32, img_size=64, num_blocks=2, embed_dim=64, mlp_ratio=ratio, block_layer=kind
    )
    return made


image_model("vit_tiny_patch16_224", **_VIT)
image_model("deit3_small_patch16_224", **_VIT)
image_model("beit_base_patch16_224", **_VIT)
image_model("beitv2_base_patch16_224", **_VIT)
image_model("eva02_tiny_patch14_224", **(_VIT | {"patch_size": 16}))
image_model("cait_xxs24_224", **_VIT)
add("timm_mixer", "timm", lambda: _mixer("MixerBlock", (0.5, 4.0)), picture)
add("timm_resmlp", "timm", lambda: _mixer("ResBlock", 4), picture)
image_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=32,
            depths=(1, 1, 1), num_heads=(2, 4, 8))  # fmt: skip
image_model("swinv2_tiny_window8_256", img_size=64, window_size=4, embed_dim=32,
            depths=(1, 1, 1), num_heads=(2, 4, 8))  # fmt: skip
image_model("convnext_atto", depths=(1, 1, 1, 1), dims=(32, 32, 64, 64))
image_model("convnextv2_atto", depths=(1, 1, 1, 1), dims=(32, 32, 64, 64))
image_model("resnet10t")
image_model("resnetv2_18")
image_model("seresnet18")
image_model("efficientnet_lite0")
image_model("tf_efficientnetv2_b0")
image_model("mobilenetv3_small_050")
image_model("mobilenetv4_conv_small")
image_model("ghostnet_050")
image_model("nf_resnet26")
image_model("nf_regnet_b0")
image_model("regnetx_002")
image_model("levit_128s", img_size=64)
image_model("mobilevit_xxs")
image_model("edgenext_xx_small")
image_model("poolformer_s12")
image_model("maxvit_rmlp_pico_rw_256", img_size=64)
