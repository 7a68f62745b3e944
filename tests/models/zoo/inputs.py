# SPDX-License-Identifier: BSD-3-Clause
"""Sample inputs: what a text, an image or a sound is to a model."""

import torch

from tests.models.registry import Inputs

WORDS = 128  # the vocabulary of every tiny text model


def text(rows: int = 2, length: int = 12) -> Inputs:
    """Token ids, no padding."""
    return {"input_ids": torch.randint(4, WORDS, (rows, length))}


def masked_text() -> Inputs:
    """Token ids of two lengths."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return text() | {"attention_mask": mask}


def pair() -> Inputs:
    """What an encoder and a decoder read."""
    return text() | {"decoder_input_ids": torch.randint(4, WORDS, (2, 7))}


def image(size: int = 32) -> Inputs:
    """Two images, as transformers calls them."""
    return {"pixel_values": torch.randn(2, 3, size, size)}


def picture(size: int = 64) -> Inputs:
    """Two images, as timm and torchvision call them."""
    return {"x": torch.randn(2, 3, size, size)}


def sound(length: int = 2000) -> Inputs:
    """Two recordings."""
    return {"input_values": torch.randn(2, length)}
