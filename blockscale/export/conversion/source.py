"""What is converted: a checkpoint's tensors with the names and the rows that they are to have."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core.untrusted.files import FileError
from blockscale.core.untrusted.json_text import json_object, read_json
from blockscale.core.untrusted.names import quoted
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf.reading import GGUF
from blockscale.export.conversion.rows import interleaved, reordered, separated
from blockscale.export.writers.gguf_files import architectures
from blockscale.files.directory.model_files import CONFIG, LEDGER, OTHER_WEIGHTS
from blockscale.files.stored_model import INDEX
from blockscale.ops.tensor import QTensor

_QUANTIZATION = ("quantization_config", "quantization", "compression_config")
_NOT_COPIED = (
    *OTHER_WEIGHTS, "*.safetensors", "*.bin", "*.pt", "*.pth", "*.index.json", CONFIG, INDEX,
    LEDGER, "quantize_config.json", "quant_config.json", "hf_quant_config.json", "quanto_qmap.json",
    "quantization_map.json",
)  # fmt: skip
AT_A_TIME = 2  # tensors that are held, each by a thread of its own
_GGUF_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8,
               torch.int16, torch.int32, torch.int64)  # fmt: skip
_NAMES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
_COMPUTED = ("rotary_emb.inv_freq",)  # old models store what readers compute


@dataclass
class Source:
    """A checkpoint that is open, and what becomes of its names.

    names: {name there: name in the result}; left_out: {name there: why it is not in the result}
    orders: {name there: (heads, whether rows become GGUF's)} of rows that move
    config: of the model of transformers, without how it is quantized; {} where there is none
    folder: where the files beside config.json are, or None
    """

    checkpoint: Checkpoint
    names: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    orders: dict[str, tuple[int, bool]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def read(self, name: str) -> QTensor | Tensor:
        """A tensor, with its rows in the order of the result."""
        value = read(self.checkpoint, name)
        if name not in self.orders:
            return value
        heads, to_gguf = self.orders[name]
        order = (interleaved if to_gguf else separated)(value.shape[0], heads)
        return reordered(value, order)

    def other_files(self) -> list[Path]:
        """Tokenizer, settings, the model's card: what lies beside weights and is copied."""
        if self.folder is None:
            return []
        files = (file for file in sorted(self.folder.iterdir()) if file.is_file())
        return [
            file
            for file in files
            if not file.name.startswith(".")
            and not any(fnmatch(file.name, pattern) for pattern in _NOT_COPIED)
        ]


def source_of(checkpoint: Checkpoint, to_gguf: bool, names: str, config: Path | None) -> Source:
    """What a checkpoint becomes. names: "auto" or "keep"; config: a directory with config.json.

    Raises ValueError for a model whose names are not known, and FileError for damaged files.
    """
    from_gguf = isinstance(checkpoint, GGUF)
    folder = config if config is not None else _folder(checkpoint)
    found = Source(checkpoint, config=_config(folder), folder=folder)
    if from_gguf == to_gguf or names == "keep":
        found.names = {name: name for name in checkpoint}
    elif to_gguf:
        _into_gguf(found)
    else:
        _out_of_gguf(found, config is not None)
    _check_once(found)
    return found


def read(checkpoint: Checkpoint, name: str) -> QTensor | Tensor:
    """A tensor; the bytes of one in a grid of ggml's, which has no format here."""
    if isinstance(checkpoint, GGUF) and checkpoint.stored[name].unread:
        return checkpoint.blocks(name)
    return checkpoint[name]


def _into_gguf(found: Source) -> None:
    arch = architectures.of_config(found.config)
    unknown = []
    for name in found.checkpoint:
        renamed = architectures.to_gguf(name)
        if name.endswith(_COMPUTED):
            found.left_out[name] = "readers compute it"
        elif renamed is None:
            unknown.append(name)
        else:
            found.names[name] = renamed
            if arch.permuted and (heads := architectures.heads(name, found.config)):
                found.orders[name] = heads, True
    _refuse_unknown(unknown, f"the architecture {arch.name} of GGUF")


def _out_of_gguf(found: Source, given: bool) -> None:
    checkpoint = found.checkpoint
    arch = architectures.of_metadata(checkpoint.metadata)
    if not given:
        found.config = architectures.config_of(checkpoint.metadata, checkpoint)
    unknown = []
    for name in checkpoint:
        renamed = architectures.from_gguf(name)
        if name == "rope_freqs.weight" and given:
            found.left_out[name] = "config.json says how positions are scaled"
        elif renamed is None:
            unknown.append(name)
        else:
            found.names[name] = renamed
            if arch.permuted and (heads := architectures.heads(renamed, found.config)):
                found.orders[name] = heads, False
    if "rope_freqs.weight" in unknown:
        raise ValueError(
            "rope_freqs.weight scales the positions, and its place in transformers is config.json: "
            "give the directory of the original model's config.json (--config DIR)"
        )
    _refuse_unknown(unknown, f"{arch.name} in transformers")


def _refuse_unknown(unknown: list[str], where: str) -> None:
    if unknown:
        more = f" and {len(unknown) - 3} more" * (len(unknown) > 3)
        listed = ", ".join(map(quoted, unknown[:3]))
        raise ValueError(
            f"{listed}{more} have no name in {where} that is known here. With names='keep' "
            f"(--names keep), tensors keep their names"
        )


def _check_once(found: Source) -> None:
    seen: dict[str, str] = {}
    for name, renamed in found.names.items():
        if renamed in seen:
            raise FileError(
                f"{quoted(name)} and {quoted(seen[renamed])} would both be {quoted(renamed)}"
            )
        seen[renamed] = name


def _folder(checkpoint: Checkpoint) -> Path | None:
    if isinstance(checkpoint, GGUF):
        return None
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    return folder if path.is_dir() or (folder / CONFIG).is_file() else None


def _config(folder: Path | None) -> dict[str, Any]:
    """config.json without how the weights are quantized. Raises FileError if it is damaged."""
    if folder is None or not (folder / CONFIG).is_file():
        return {}
    path = folder / CONFIG
    found = json_object(read_json(path, once=False, finite=False), path)
    return {key: value for key, value in found.items() if key not in _QUANTIZATION}


def without_place(names: Iterable[str]) -> set[str]:
    """Those that are tables of embeddings."""
    return {n for n in names if n.rpartition(".")[0].endswith(("embed_tokens", "token_embd"))}


def plain_dtype(stored: Stored, to_gguf: bool) -> torch.dtype:
    """That of a tensor which is not quantized. Raises ValueError for one that has no place."""
    dtype = getattr(torch, stored.kind, None) or _NAMES.get(stored.kind)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"its type {stored.kind} is not known")
    if not to_gguf:
        return dtype
    if dtype not in _GGUF_PLAIN:
        raise ValueError(f"GGUF has no tensors of {stored.kind}")
    short = dtype in (torch.float16, torch.bfloat16) and len(stored.shape) < 2
    return torch.float32 if short else dtype  # llama.cpp takes norms and biases as F32 only
