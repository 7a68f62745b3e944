# SPDX-License-Identifier: BSD-3-Clause
"""A model's directory for commands: the model of transformers, and what it is called with."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from blockscale.core.untrusted import json_object, quote, read_json, read_regular
from blockscale.export.to_onnx.decoder_cache import SIZES, held_format
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
    """A model of transformers that takes and gives tensors: its last hidden state, or logits.

    in_dict: whether it gives them in a dict, under that name
    """

    def __init__(self, model: nn.Module, in_dict: bool = False):
        super().__init__()
        self.model, self.in_dict = model, in_dict

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Both [batch, tokens] int64 -> [batch, tokens, features]."""
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        name = "logits" if "logits" in outputs else "last_hidden_state"
        output: Tensor = outputs[name]
        return {name: output} if self.in_dict else output


def read_model(path: Path, dtype: Any = torch.float32) -> tuple[nn.Module, bool]:
    """The model of a directory, in evaluation mode, and whether its weights are quantized by us.

    Raises ValueError where it is no directory of a model that transformers knows.
    """
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json: name a directory that transformers wrote")
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
        raise ValueError(f"{path}: transformers has no model class {names[0]}")
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


def tokenize(path: Path, sentences: Sequence[str], longest: int) -> dict[str, Tensor]:
    """Sentences -> input_ids and attention_mask [sentences, tokens]; made-up ones without a
    tokenizer."""
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return example_tokens(path, len(sentences), longest)
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or _end_of_text(path, tokenizer)
    settings = {"padding": True, "truncation": True, "max_length": longest}
    tensors = tokenizer(list(sentences), return_tensors="pt", **settings)
    return {name: tensors[name] for name in ("input_ids", "attention_mask")}


def example_tokens(path: Path, rows: int, longest: int) -> dict[str, Tensor]:
    """Tokens drawn at random, without padding: input_ids and attention_mask [rows, at most 16].

    Raises ValueError where config.json says nothing sensible of the vocabulary.
    """
    config = path / "config.json"
    size = _settings(path).get("vocab_size", 2)
    if type(size) is not int or not 0 < size < 2**31:
        raise ValueError(f"{config}: vocab_size is {quote(size)}, expected a positive integer")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, size, (rows, min(longest, 16)), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _settings(path: Path) -> dict[str, Any]:
    """config.json, or its part about text where the model reads more than that."""
    config = path / "config.json"
    settings = json_object(read_json(config, unique_keys=False, finite=False), config)
    inner = settings.get("text_config")
    return {**inner, **settings} if isinstance(inner, dict) else settings


def _end_of_text(path: Path, tokenizer: Any) -> str:
    """The token that ends a text by config.json, of a tokenizer that names none; else its first.

    Padding is masked: which token it is changes no result.
    """
    end = _settings(path).get("eos_token_id")
    first = end[0] if isinstance(end, list) and end else end
    is_token = type(first) is int and 0 <= first < len(tokenizer)
    token: str = tokenizer.convert_ids_to_tokens(first if is_token else 0)
    return token


def fitting(model: nn.Module, tokens: int) -> int:
    """`tokens`, or the most that a model has positions for where those are fewer."""
    config: Any = getattr(model, "config", None)
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)  # n_positions is mapped to it
    most = longest if type(longest) is int and longest > 0 else tokens
    for name, part in model.named_modules():
        table = name.rpartition(".")[2] == "position_embeddings" and hasattr(part, "padding_idx")
        if table and part.padding_idx is not None:  # RoBERTa counts from behind the padding
            most = min(most, int(part.num_embeddings) - int(part.padding_idx) - 1)
    return max(1, min(tokens, most))


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
    sentences = [line.strip() for line in lines if line.strip()]
    if not sentences:
        raise ValueError(f"{text} has no sentences: write one a line")
    return sentences


def unpadded(output: Any, batch: Any) -> Tensor:
    """The logits, or else the last hidden state, of the tokens that are no padding."""
    y: Tensor = output.logits if "logits" in output else output.last_hidden_state
    mask = batch["attention_mask"]
    return y[mask.bool().to(y.device)] if y.shape[:2] == mask.shape else y


def program(
    model: nn.Module, example: dict[str, Tensor], batch: int, tokens: int, in_dict: bool = False
) -> ExportedProgram:
    """torch.export's program of a model, for up to `batch` rows of up to `tokens` tokens.

    in_dict: whether it gives a dict, {"logits": tensor} or {"last_hidden_state": tensor}
    """
    rows, length = Dim("batch", max=batch), Dim("sequence", max=tokens)
    sizes = {name: {0: rows, 1: length} for name in example}
    with torch.no_grad():
        return torch.export.export(
            Exportable(model, in_dict).eval(), (), dict(example), dynamic_shapes=sizes
        )


def without_place(model: nn.Module) -> list[str]:
    """Layers that could be quantized but are no nn.Linear, and linear ones that share a weight
    with them: what compressed-tensors' readers do not take."""
    layers = {n: m for n, m in model.named_modules() if quantized_class(m) is not None}
    other = {n: m for n, m in layers.items() if type(m) is not nn.Linear}
    shared = {id(m.weight) for m in other.values()}
    tied = [n for n, m in layers.items() if n not in other and id(m.weight) in shared]
    return [*other, *tied]


# The sizes that `blockscale export` writes a file for: rows, tokens, and those of a cache.

DEFAULT_NAME = "model"
_ROWS, _TOKENS = 8, 128
_FLOAT = "float"  # a cache that is not quantized


@dataclass(frozen=True)
class ExportSizes:
    """The sizes that a file is for.

    batch, tokens: rows and tokens of a row, None for the target's own number: the most, or of c and
        with `past` exactly those
    name, max_bytes: what names in a C file begin with, and the most that it may take
    cache: of a decoder, as on the command line. Of executorch a number: of tokens that the file
        keeps between calls. Of onnx "float" or a format, in which its past goes in and comes out
    past: past tokens of each call of an ONNX file with a cache; None for any number
    """

    batch: int | None
    tokens: int | None
    name: str = DEFAULT_NAME
    max_bytes: int | None = None
    cache: str | None = None
    past: int | None = None

    def check(self, target: str) -> None:
        """Raise ValueError for options that the target does not have, and that exclude another."""
        if target != "c" and (self.name != DEFAULT_NAME or self.max_bytes is not None):
            raise ValueError("--name and --max-bytes are only for --to c")
        if self.past is not None and (target != "onnx" or self.cache is None):
            raise ValueError(
                "--past is only for --to onnx with --cache: it fixes all sizes of such a file"
            )
        if self.tokens == 1 and self.past is None:
            raise ValueError(
                "--tokens must be at least 2, got 1: one token a call is for --to onnx with "
                "--cache and --past"
            )
        if self.cache is None:
            return
        if target not in ("executorch", "onnx"):
            raise ValueError("--cache is only for --to executorch and --to onnx")
        if target == "executorch":
            self._check_kept(self.cache)
        else:
            self._check_past(self.cache)

    def _check_kept(self, cache: str) -> None:
        if not cache.isdecimal() or int(cache) < 2:
            raise ValueError(
                f"--cache {cache}: an ExecuTorch file keeps a number of tokens, at least 2, such "
                "as --cache 2048; float and formats are for --to onnx"
            )
        if self.batch not in (None, 1):
            raise ValueError(f"a file with --cache takes one row: leave --batch {self.batch} out")

    def _check_past(self, cache: str) -> None:
        if cache.isdecimal():
            raise ValueError(
                f"--cache {cache}: an ONNX file is given its past, of any length: say --cache "
                f"float, or a format such as int8:token:fp32; --past {cache} beside it is for "
                "calls of just that length"
            )
        if cache != _FLOAT:
            held_format(cache)
        if self.past is None and (self.batch is not None or self.tokens is not None):
            raise ValueError(
                "an ONNX file with --cache takes any number of rows and tokens: leave --batch and "
                "--tokens out, or fix all sizes by --past N"
            )

    @property
    def most(self) -> int:
        """The most rows, where a file takes any number up to it."""
        return _ROWS if self.batch is None else self.batch

    @property
    def longest(self) -> int:
        """The most tokens of a row, and of a sentence to calibrate with."""
        return _TOKENS if self.tokens is None or self.past is not None else self.tokens

    @property
    def exactly(self) -> tuple[int, int]:
        """Rows and tokens, where a file takes these alone."""
        return self.batch or 1, self.longest

    @property
    def has_past(self) -> bool:
        """Whether past keys and values go in and come out."""
        return self.cache is not None and not self.cache.isdecimal()

    @property
    def codes(self) -> str | None:
        """The format in which they do so; None for floats."""
        return self.cache if self.has_past and self.cache != _FLOAT else None

    @property
    def for_genai(self) -> bool:
        """Whether a configuration of onnxruntime-genai is written beside the file."""
        return self.cache == _FLOAT and self.past is None

    @property
    def fixed(self) -> dict[str, int] | None:
        """The sizes of each call of a file with a past, where they are fixed."""
        if self.past is None:
            return None
        return dict(zip(SIZES, (self.batch or 1, self.tokens or 1, self.past), strict=True))


def fit_sizes(sizes: ExportSizes, model: nn.Module) -> ExportSizes:
    """Sizes that the model has positions for; says so where it was asked for more. Raises
    ValueError for a past that it has none for."""
    if sizes.fixed is not None:
        _, new, past = sizes.fixed.values()
        if (most := fitting(model, new + past)) < new + past:
            raise ValueError(
                f"--past {past} and {new} new tokens need {new + past} positions, and the model "
                f"has {most}: choose --past {most - new} or less"
            )
    if sizes.has_past:
        return sizes
    most = fitting(model, sizes.longest)
    if most < sizes.longest:
        typer.echo(f"{most} tokens a row, for which the model has positions", err=True)
    return replace(sizes, tokens=most)


def export_options(
    write: Callable[..., None], example: Mapping[str, Tensor], sizes: ExportSizes, force: bool
) -> Any:
    """A target's named arguments: `overwrite`, which --force says, of c the sizes and the name, and
    of a decoder its cache."""
    parameters = inspect.signature(write).parameters
    arguments: dict[str, Any] = {"overwrite": force} if "overwrite" in parameters else {}
    if write.__name__ == "c":
        ones = {name: torch.ones(sizes.exactly, dtype=x.dtype) for name, x in example.items()}
        arguments |= {"example": ones, "name": sizes.name, "max_bytes": sizes.max_bytes}
    if sizes.has_past:
        arguments |= {"cache": sizes.codes or True, "sizes": sizes.fixed}
    elif sizes.cache is not None:
        places = int(sizes.cache)
        arguments |= {"cache": places, "tokens": min(sizes.longest, places)}
    return arguments
