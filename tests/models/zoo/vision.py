# SPDX-License-Identifier: BSD-3-Clause
"""Models of images and of films, of transformers."""

import torch

from tests.models.registry import Inputs
from tests.models.zoo.hub import SMALL, hub
from tests.models.zoo.inputs import image

_VIT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4],
         "window_size": 4, "num_labels": 16}  # fmt: skip
_STAGES = {"hidden_sizes": [32, 64], "depths": [1, 1], "num_labels": 16}


def large() -> Inputs:
    """Two images of 64 × 64."""
    return image(64)


def film() -> Inputs:
    """Two films of four images."""
    return {"pixel_values": torch.randn(2, 4, 3, 32, 32)}


def pointed() -> Inputs:
    """An image, and a point in it."""
    points = torch.tensor([[[[8.0, 8.0]]]])
    return {"pixel_values": torch.randn(1, 3, 64, 64), "input_points": points}


hub("vit", "ViTForImageClassification", "ViTConfig", _VIT | {"num_labels": 16}, image)
hub("deit", "DeiTForImageClassificationWithTeacher", "DeiTConfig", _VIT | {"num_labels": 16}, image)
hub("beit", "BeitForImageClassification", "BeitConfig", _VIT | {
    "num_labels": 16, "use_relative_position_bias": True, "use_mask_token": True,
}, image)  # fmt: skip
hub("swin", "SwinForImageClassification", "SwinConfig", _SWIN, image)
hub("swinv2", "Swinv2ForImageClassification", "Swinv2Config", _SWIN, image)
hub("dinov2", "Dinov2ForImageClassification", "Dinov2Config", _VIT | {"num_labels": 16}, image)
hub("convnext", "ConvNextForImageClassification", "ConvNextConfig",
    _STAGES | {"num_stages": 2, "image_size": 32}, image)  # fmt: skip
hub("convnextv2", "ConvNextV2ForImageClassification", "ConvNextV2Config",
    _STAGES | {"num_stages": 2, "image_size": 32}, image)  # fmt: skip
hub("resnet", "ResNetForImageClassification", "ResNetConfig",
    _STAGES | {"embedding_size": 32}, image)  # fmt: skip
hub("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [4, 2], "hidden_sizes": [32, 64],
    "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
    "decoder_hidden_size": 32, "num_labels": 16}, image)  # fmt: skip
hub("mobilevit", "MobileViTForImageClassification", "MobileViTConfig", {
    "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [16, 32, 64, 64, 96, 128, 128],
    "num_attention_heads": 4, "num_labels": 16, "image_size": 64}, large)  # fmt: skip
hub("vit_mae", "ViTMAEForPreTraining", "ViTMAEConfig", _VIT | {
    "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64}, lambda: image() | {"noise": torch.rand(2, 16)})  # fmt: skip
hub("yolos", "YolosForObjectDetection", "YolosConfig", SMALL | _VIT | {
    "intermediate_size": 512,
    "image_size": [32, 32], "num_detection_tokens": 8, "num_labels": 16}, image)  # fmt: skip
hub("sam", "SamModel", "SamConfig", {
    "vision_config": {"hidden_size": 64, "output_channels": 32, "num_hidden_layers": 3,
                      "num_attention_heads": 2, "image_size": 64, "patch_size": 16, "mlp_dim": 128,
                      "window_size": 4, "global_attn_indexes": [1], "num_pos_feats": 16},
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 16,
                              "mask_input_channels": 16},
    "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 1,
                            "num_attention_heads": 2, "iou_head_hidden_dim": 32},
}, pointed)  # fmt: skip
hub("detr", "DetrForObjectDetection", "DetrConfig", {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
    "backbone_config": {"model_type": "resnet", "out_features": ["stage2"], **_STAGES,
                        "embedding_size": 32},
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "num_queries": 8, "num_labels": 16}, large)  # fmt: skip
hub("videomae", "VideoMAEForVideoClassification", "VideoMAEConfig", _VIT | {
    "num_frames": 4, "tubelet_size": 2, "num_labels": 16}, film)  # fmt: skip
hub("timesformer", "TimesformerForVideoClassification", "TimesformerConfig", _VIT | {
    "num_frames": 4, "num_labels": 16}, film)  # fmt: skip
