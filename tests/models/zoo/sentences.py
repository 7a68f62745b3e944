# SPDX-License-Identifier: BSD-3-Clause
"""Encoders of sentences, of sentence-transformers."""

import tempfile
from pathlib import Path

import torch
from torch import nn

from tests.models.registry import Inputs, add
from tests.models.zoo.hub import SMALL
from tests.models.zoo.inputs import masked_text

_WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"w{number}" for number in range(5, SMALL["vocab_size"])),
]


def sentences(model: str, config: str) -> nn.Module:
    """A text model of transformers, the mean of its tokens, and a layer on top."""
    import sentence_transformers
    import transformers
    from sentence_transformers import models

    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, model)(getattr(transformers, config)(**SMALL)).save_pretrained(folder)
        (Path(folder) / "vocab.txt").write_text("\n".join(_WORDS))
        words = transformers.BertTokenizer(str(Path(folder) / "vocab.txt"))
        words.save_pretrained(folder)
        body = models.Transformer(folder)
        parts = [body, models.Pooling(SMALL["hidden_size"]), models.Dense(SMALL["hidden_size"], 32)]
        made: nn.Module = sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
    return made


def read() -> Inputs:
    """The features of two texts, as its tokenizer gives them."""
    return {"input": masked_text() | {"token_type_ids": torch.zeros(2, 12, dtype=torch.long)}}


add("sentence_bert", "sentence_transformers", lambda: sentences("BertModel", "BertConfig"), read)
add("sentence_mpnet", "sentence_transformers", lambda: sentences("MPNetModel", "MPNetConfig"), read)
