# SPDX-License-Identifier: BSD-3-Clause
"""The tokens of a GGUF file by number: text, type and score, each text once.

llama.cpp stops the process where two tokens have one text (src/llama-vocab.cpp, b11434:
`GGML_ASSERT(id_to_token.size() == token_to_id.size())`), and reads as many tokens as the embedding
has rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from blockscale.export.writers.gguf_files.file import MetadataValue

# Merges of byte-pair encodings: their order, and where llama.cpp merges otherwise.
#
# llama.cpp's "llama" (src/llama-vocab.cpp, b11434: `llm_tokenizer_spm_session`) has no merges: it
# joins the two neighbours that spell the token of the highest score, as SentencePiece does.

Pair = tuple[str, str]


def merges_of(value: Any) -> list[Pair]:
    """`merges` of a tokenizer.json, texts or pairs. Raises ValueError for anything else."""
    pairs = []
    for each in value if isinstance(value, list) else ():
        parts = each.split(" ") if isinstance(each, str) else each
        if (
            not isinstance(parts, list)
            or len(parts) != 2
            or not all(isinstance(p, str) for p in parts)
        ):
            raise ValueError(f"tokenizer.json: a merge is {each!r}, expected two strings")
        pairs.append((parts[0], parts[1]))
    return pairs


def order_of(pairs: Sequence[Pair]) -> dict[str, float]:
    """{token: its score}: the sooner it is merged, the higher."""
    scores: dict[str, float] = {}
    for rank, (first, right) in enumerate(pairs):
        scores.setdefault(first + right, -float(rank))
    return scores


def joined_besides(vocab: Iterable[str], pairs: Sequence[Pair]) -> int:
    """How many pairs of tokens spell another one and are no merge."""
    merges = set(pairs)
    values = {first + right for first, right in pairs}
    texts = values | {text for text in vocab if len(text) == 1}
    return sum(
        (text[:i], text[i:]) not in merges
        for text in values
        for i in range(1, len(text))
        if text[:i] in texts and text[i:] in texts
    )


def whole_words_differ(vocab: Iterable[str], pairs: Sequence[Pair]) -> bool:
    """Whether a token's own text is merged to anything but that token."""
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
    return any(len(text) > 1 and not _whole(text, ranks) for text in vocab)


def _whole(text: str, ranks: Mapping[Pair, int]) -> bool:
    """Whether the merges make one token of a text."""
    parts = list(text)
    while len(parts) > 1:
        best = min((ranks[pair] for pair in pairwise(parts) if pair in ranks), default=None)
        if best is None:
            return False
        i, merged_parts = 0, []
        while i < len(parts):
            if i + 1 < len(parts) and ranks.get((parts[i], parts[i + 1])) == best:
                merged_parts.append(parts[i] + parts[i + 1])
                i += 2
            else:
                merged_parts.append(parts[i])
                i += 1
        parts = merged_parts
    return True


# gguf-py/gguf/constants.py, TokenType
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"  # how SentencePiece writes a space
Keys = tuple[dict[str, MetadataValue], list[str]]  # of a file, and what has to be said
_ADDED = -1000.0  # what llama.cpp's converter gives added tokens for a score
_MISSING = -10000.0


class Vocabulary:
    """Tokens of an embedding of `size` rows."""

    def __init__(self, size: int):
        self.size = size
        self._beyond: set[int] = set()
        self.numbers: dict[str, int] = {}  # {text as the tokenizer has it: number}
        self._tokens: dict[int, tuple[str, int, float]] = {}

    def insert(self, number: int, text: str, kind: int = NORMAL, score: float = 0.0) -> None:
        """A token of the model."""
        self._place(number, text, text, kind, score)

    def add(self, number: int, text: str, special: bool) -> None:
        """An added token. Some that steer a model are not marked as special by their files."""
        if special or _looks_special(text):
            self._place(number, text, text, CONTROL, _ADDED)
        else:  # llama.cpp looks for them in the text as it was written
            self._place(number, text, text.replace(SPACE, " "), USER, _ADDED)

    def _place(self, number: int, name: str, text: str, kind: int, score: float) -> None:
        if number >= self.size:
            self._beyond.add(number)
            return
        self.numbers[name] = number
        self._tokens[number] = text, kind, score

    @property
    def excess(self) -> int:
        """How many tokens have a number beyond the embedding's rows."""
        return len(self._beyond)

    def text(self, number: int) -> str:
        """A token's text; empty where there is none."""
        return self._tokens[number][0] if number in self._tokens else ""

    def keys(self, scores: bool) -> dict[str, MetadataValue]:
        """The lists of a GGUF file. scores: with scores."""
        texts = {text for text, _, _ in self._tokens.values()}
        used_texts: set[str] = set()
        rows: list[tuple[str, int, float]] = []
        for i in range(self.size):
            row = self._tokens.get(i)
            if row is None or row[0] in used_texts:
                row = _free(f"[PAD{i}]", texts), UNUSED, _MISSING
            used_texts.add(row[0])
            rows.append(row)
        data = {
            "tokenizer.ggml.tokens": MetadataValue("text", [row[0] for row in rows]),
            "tokenizer.ggml.token_type": MetadataValue("i32", [row[1] for row in rows]),
        }
        if scores:
            data["tokenizer.ggml.scores"] = MetadataValue("f32", [row[2] for row in rows])
        return data


def _free(text: str, texts: set[str]) -> str:
    while text in texts:
        text += "_"
    texts.add(text)
    return text


def _looks_special(text: str) -> bool:
    """As conversion/base.py has it (b11434, `does_token_look_special`)."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def tokens_of(vocab: Any) -> dict[str, int]:
    """`vocab` of a tokenizer.json. Raises ValueError for anything but texts and numbers."""
    if not isinstance(vocab, dict) or not all(type(n) is int and n >= 0 for n in vocab.values()):
        raise ValueError("tokenizer.json: its vocabulary is not an object of texts and numbers")
    return vocab


def added_of(value: Any) -> Iterable[tuple[int, str, bool]]:
    """(number, text, special) of `added_tokens` in a tokenizer.json, but for damaged ones."""
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict):
            number, text = each.get("id"), each.get("content")
            if type(number) is int and number >= 0 and isinstance(text, str):
                yield number, text, bool(each.get("special"))
