"""A model's directory for commands: the model of transformers, and what it is called with."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from blockscale.core.untrusted.files import read_regular
from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.core.untrusted.names import quoted
from blockscale.files.load import load
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import open_stored_model
from blockscale.layers.kinds import quantized_class

_LONGEST_TEXT = 16_000_000  # bytes of a file of sentences
SENTENCES = (
    "The committee meets on Tuesday to discuss the budget for the coming year.",
    "How long does it take to boil an egg at high altitude?",
    "She tuned the violin, lifted the bow, and waited for the conductor.",
    "Prices rose by 3.2 % in March, more than analysts had expected.",
    "def area(radius): return 3.14159 * radius ** 2",
    "A dog chased two ducks around the pond while the children laughed.",
    "Please find attached the signed contract and the invoice no. 4711.",
    "Light from that galaxy has travelled for ten billion years.",
)


class Exportable(nn.Module):
    """A model of transformers that takes and gives tensors: its last hidden state, or logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Both [batch, tokens] int64 -> [batch, tokens, features]."""
        found = self.model(input_ids=input_ids, attention_mask=attention_mask)
        output: Tensor = found.logits if "logits" in found else found.last_hidden_state
        return output


def read_model(path: Path, dtype: Any = torch.float32) -> tuple[nn.Module, bool]:
    """The model of a directory, in evaluation mode, and whether its weights are quantized by us.

    Raises ValueError where it is no directory of a model that transformers knows.
    """
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json: name a model's directory of transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "models are read by transformers, which is not installed: pip install transformers"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    config: Any = transformers.AutoConfig.from_pretrained(path)
    config.use_cache = False  # a cache is no tensor
    names = getattr(config, "architectures", None) or []
    kind: Any = getattr(transformers, names[0], None) if names else transformers.AutoModel
    if kind is None:
        raise ValueError(f"{path}: transformers has no model {names[0]}")
    if _ours(path):
        model: Any = kind._from_config(config) if hasattr(kind, "_from_config") else None
        model = transformers.AutoModel.from_config(config) if model is None else model
        return load(model.eval(), path), True
    return kind.from_pretrained(path, config=config, dtype=dtype).eval(), False


def _ours(path: Path) -> bool:
    try:
        return bool(open_stored_model(path).metadata.tensors)
    except FileError:
        return False


def tokenized(path: Path, sentences: Sequence[str], longest: int) -> dict[str, Tensor]:
    """Sentences -> input_ids and attention_mask [sentences, tokens]; made-up ones without a
    tokenizer."""
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        config = path / "config.json"
        told = json_object(read_json(config, once=False, finite=False), config)
        size = told.get("vocab_size", 2)
        if type(size) is not int or not 0 < size < 2**31:
            raise ValueError(f"{config}: vocab_size is {quoted(size)}, expected a number of words")
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, size, (len(sentences), min(longest, 16)), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    settings = {"padding": True, "truncation": True, "max_length": longest}
    found = tokenizer(list(sentences), return_tensors="pt", **settings)
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def float_model(path: Path) -> nn.Module:
    """The model of a directory in float32. Raises ValueError where its weights are quantized."""
    model, ours = read_model(path)
    if ours:
        raise ValueError(f"{path} is quantized already: name the float model's directory")
    return model


def sentences_of(text: Path | None) -> Sequence[str]:
    """The lines of a file that are not empty, by default SENTENCES. Raises ValueError for none."""
    if text is None:
        return SENTENCES
    lines = read_regular(text, _LONGEST_TEXT).decode(errors="replace").splitlines()
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ValueError(f"{text} has no sentences: one a line is expected")
    return found


def unpadded(output: Any, batch: Any) -> Tensor:
    """The logits, or else the last hidden state, of the tokens that are no padding."""
    y: Tensor = output.logits if "logits" in output else output.last_hidden_state
    mask = batch["attention_mask"]
    return y[mask.bool().to(y.device)] if y.shape[:2] == mask.shape else y


def program(
    model: nn.Module, example: dict[str, Tensor], batch: int, tokens: int
) -> ExportedProgram:
    """torch.export's program of a model, for up to `batch` rows of up to `tokens` tokens."""
    rows, length = Dim("batch", max=batch), Dim("tokens", max=tokens)
    sizes = {name: {0: rows, 1: length} for name in example}
    with torch.no_grad():
        return torch.export.export(
            Exportable(model).eval(), (), dict(example), dynamic_shapes=sizes
        )


def without_place(model: nn.Module) -> list[str]:
    """Layers that could be quantized but are no nn.Linear, and linear ones that share a weight
    with them: what compressed-tensors' readers do not take."""
    layers = {n: m for n, m in model.named_modules() if quantized_class(m) is not None}
    other = {n: m for n, m in layers.items() if type(m) is not nn.Linear}
    shared = {id(m.weight) for m in other.values()}
    tied = [n for n, m in layers.items() if n not in other and id(m.weight) in shared]
    return [*other, *tied]
