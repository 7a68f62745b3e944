# SPDX-License-Identifier: BSD-3-Clause
"""Weights that a directory holds once and its model uses several times: tied embeddings.

A file that transformers has written holds a table of embeddings and no head, where the two are one
weight. What the head is called, names and the class in config.json say: a recipe that names the
head means that weight, too. Models of other libraries say so in the metadata of their files
(safetensors.torch.save_model).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from blockscale.files.directory.model_files import ModelFiles
from blockscale.files.header import StoredTensor
from blockscale.files.stream import Reader

# Classes that have a head over the words: `_tied_weights_keys` in transformers 5.23, which
# tests/files/directory/test_tied.py compares; others of the same library have none
_WITH_HEAD = re.compile(
    r"(LMHead|DoubleHeads|MarianMT)Model$|(ForCausalLM|ForConditionalGeneration|ForMaskedLM|ForPreTraining"
    r"|ForVisionText2Text|ForCausalImageModeling|Decoder)$"
)
# What the head's layer is called: the first that the class begins with, and `lm_head` otherwise
_HEADS = (
    ("Whisper Moonshine Canary CohereAsr", "proj_out"),
    ("BertGeneration Camembert Data2VecText Esm Gte JinaEmbeddingsV3 Longformer MPNet Roberta "
     "XLMRoberta Xmod IBert", "lm_head.decoder"),
    ("Bert BigBirdFor BlipText Deberta ErnieFor FNet LayoutLM Lxmert MegatronBert MobileBert Mra "
     "Nezha NomicBert Nystromformer RoCBert RoFormer SqueezeBert Tapas VisualBert Yoso",
     "cls.predictions.decoder"),
    ("Albert", "predictions.decoder"),
    ("Electra ConvBert", "generator_lm_head"),
    ("DistilBert", "vocab_projector"),
    ("BioGpt TrOCR", "output_projection"),
    ("XLMWith Flaubert", "pred_layer.proj"),
    ("Rwkv", "head"),
    ("XLNet", "lm_loss"),
    ("Git", "output"),
    ("ModernBert", "decoder"),
    ("GPTNeoXJapanese", "embed_out"),
    ("T5Gemma", "lm_head.out_proj"),
    ("Kosmos2For", "text_model.lm_head"),
    ("BridgeTower Vilt", "mlm_score.decoder"),
    ("Ultrabert", "head.decoder"),
)  # fmt: skip
# How names of tables of embeddings end, what is preferred first
_TABLES = (
    "shared", "decoder.embed_tokens", "embed_tokens", "wte", "word_embeddings", "tok_embeddings",
    "tokens_embed", "embed_in", "word_embedding", "embeddings", "transformer.w",
)  # fmt: skip


def ties_of(
    config: Mapping[str, Any] | None, tensors: Mapping[str, StoredTensor]
) -> dict[str, tuple[str, ...]]:
    """{a table of embeddings in the files: the weights that are tied to it}, in a model's order.

    tensors: those of all files; of a head that is there, too, nothing is said
    """
    config = config or {}
    table = _table(tensors)
    if table is None or config.get("tie_word_embeddings") is False:
        return {}
    tied = [name for name in (*_copies(table), *_heads(config)) if name not in tensors]
    return {table: tuple(tied)} if tied else {}


def _heads(config: Mapping[str, Any]) -> Iterator[str]:
    """The name of the head's weight, if the model's class has one."""
    for kind in config.get("architectures") or ():
        if not isinstance(kind, str) or not _WITH_HEAD.search(kind):
            continue
        heads = (head for kinds, head in _HEADS if kind.startswith(tuple(kinds.split())))
        yield f"{next(heads, 'lm_head')}.weight"


def _table(tensors: Mapping[str, StoredTensor]) -> str | None:
    """The table of embeddings of words that a head would be tied to."""
    tables = [name for name, tensor in tensors.items() if len(tensor.shape) == 2]
    for end in _TABLES:
        matches = [name for name in tables if f".{name}".endswith(f".{end}.weight")]
        if matches:
            return max(matches, key=lambda name: tensors[name].shape[0])
    return None


def is_table(name: str) -> bool:
    """Whether a weight called so is a table of embeddings."""
    return any(f".{name}".endswith(f".{end}.weight") for end in _TABLES)


def _copies(table: str) -> Iterator[str]:
    """The tables of an encoder and a decoder that share one."""
    prefix, _, last = table.removesuffix(".weight").rpartition("shared")
    if not last and table.endswith("shared.weight"):
        yield from (f"{prefix}{each}.embed_tokens.weight" for each in ("encoder", "decoder"))


def tied_in(files: ModelFiles) -> dict[str, tuple[str, ...]]:
    """The same of a directory, with what the metadata of its files say."""
    tensors: dict[str, StoredTensor] = {}
    names: dict[str, list[str]] = {}
    for shard in files.shards:
        with Reader(files.root / shard) as reader:
            tensors |= reader.tensors
            for alias, to in reader.metadata.items():
                if to in reader.tensors and alias not in reader.tensors:
                    names.setdefault(to, []).append(alias)
    for table, others in ties_of(files.config, tensors).items():
        names[table] = list(dict.fromkeys([*names.get(table, []), *others]))
    return {table: tuple(others) for table, others in names.items()}
