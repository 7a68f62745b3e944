# SPDX-License-Identifier: BSD-3-Clause
"""Models of images together with text, of transformers."""

import torch

from tests.models.registry import Inputs
from tests.models.zoo.hub import LLAMA, SMALL, hub
from tests.models.zoo.inputs import image, masked_text, text

_IMAGE_TOKEN = 100
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_PAIR = {"text_config": SMALL, "vision_config": _VISION}


def both() -> Inputs:
    """Two texts and two images."""
    return masked_text() | image()


def shown() -> Inputs:
    """A text in which 16 tokens stand for an image."""
    ids = text(1, 24)["input_ids"]
    ids[ids == _IMAGE_TOKEN] = 5
    ids[0, 2:18] = _IMAGE_TOKEN
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 32, 32)}


def patches() -> Inputs:
    """The same for Qwen2-VL, which takes an image as rows of patches: 4 × 4, merged by fours."""
    ids = text(1, 12)["input_ids"]
    ids[ids >= _IMAGE_TOKEN] = 5
    ids[0, 1] = _IMAGE_TOKEN + 2
    ids[0, 2:6] = _IMAGE_TOKEN
    kinds = (ids == _IMAGE_TOKEN).long()
    grid = torch.tensor([[1, 4, 4]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds,
            "pixel_values": torch.randn(16, 3 * 2 * 8 * 8), "image_grid_thw": grid}  # fmt: skip


hub("clip", "CLIPModel", "CLIPConfig", _PAIR | {"projection_dim": 32}, both)
hub("siglip", "SiglipModel", "SiglipConfig", _PAIR, lambda: text() | image())
hub("blip", "BlipForConditionalGeneration", "BlipConfig", {
    "text_config": SMALL | {"encoder_hidden_size": 64}, "vision_config": _VISION,
}, both)  # fmt: skip
hub("vilt", "ViltModel", "ViltConfig", SMALL | _VISION, lambda: masked_text() | image())
hub("llava", "LlavaForConditionalGeneration", "LlavaConfig", {
    "text_config": LLAMA | {"model_type": "llama"},
    "vision_config": _VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
    "image_token_index": _IMAGE_TOKEN, "vision_feature_layer": -2}, shown)  # fmt: skip
hub("qwen2_vl", "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", {
    "text_config": LLAMA | {"rope_parameters": {
        "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}},
    "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2,
                      "mlp_ratio": 2, "patch_size": 8, "temporal_patch_size": 2},
    "image_token_id": _IMAGE_TOKEN, "video_token_id": _IMAGE_TOKEN + 1,
    "vision_start_token_id": _IMAGE_TOKEN + 2, "vision_end_token_id": _IMAGE_TOKEN + 3,
}, patches)  # fmt: skip
hub("paligemma", "PaliGemmaForConditionalGeneration", "PaliGemmaConfig", {
    "text_config": LLAMA | {"model_type": "gemma", "head_dim": 16},
    "vision_config": _VISION | {"model_type": "siglip_vision_model", "projection_dim": 64,
                                "vision_use_head": False},
    "image_token_id": _IMAGE_TOKEN, "projection_dim": 64, "hidden_size": 64}, shown)  # fmt: skip
