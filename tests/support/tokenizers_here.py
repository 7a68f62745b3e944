# SPDX-License-Identifier: BSD-3-Clause
"""Tokenizers that nobody downloaded: trained on Python's own documentation and a few scripts."""

import io
from pathlib import Path
from pydoc_data.topics import topics

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

SCRIPTS = [
    "你好世界,今天天气很好。", "カタカナ ひらがな 漢字", "Привет, мир! Как дела?", "नमस्ते दुनिया",
    "한국어 텍스트", "café naïve éàü ÀÉÎ", "3.14159 1234567 2024-01-02", "🚀🎉 👨‍👩‍👧 emoji",
]  # fmt: skip


def corpus(entries: int = 40) -> list[str]:
    """Lines of text."""
    pages = list(topics.values())[:entries]
    return [line for page in pages for line in page.splitlines() if line.strip()] + SCRIPTS * 10


def pieces(kind: str, **options: object) -> bytes:
    """A model of SentencePiece, "bpe" or "unigram", as tokenizer.model holds it."""
    out = io.BytesIO()
    settings = {"vocab_size": 600, "character_coverage": 0.9995, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, model_type=kind, **settings
    )
    return out.getvalue()


def spaced_bpe(path: Path) -> Tokenizer:
    """Llama 2's kind of tokenizer.json, by the trainer of `tokenizers`: <s> before each text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    spaces = normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence(list(spaces))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False, max_token_length=12
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(path))
    return tokenizer
