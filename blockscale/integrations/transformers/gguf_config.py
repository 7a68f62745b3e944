# SPDX-License-Identifier: BSD-3-Clause
"""The config of transformers for a GGUF file, from the file's own metadata (no package `gguf`).

Keys: ggml-org/ggml, docs/gguf.md, "LLM"; of positions that are scaled linearly or by yarn, too
(export/writers/gguf_files/architectures.py). Llama 3's scaled positions have no key: llama.cpp's
converter stores what it divides frequencies by, as the tensor `rope_freqs.weight`. The settings
that give these numbers are looked for among those that Meta's models have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from blockscale.export.checkpoints.gguf.reading import GGUF
from blockscale.export.writers.gguf_files.architectures import config_of
from blockscale.export.writers.gguf_files.file import rope_factors
from blockscale.files.metadata import FileError

# What transformers raises for configs that are none
_WRONG = (
    ValueError, TypeError, KeyError, OSError, RuntimeError, ArithmeticError, StrictDataclassError,
)  # fmt: skip
_FACTORS = "rope_freqs.weight"
# Llama 3.1 and 3.3 have factor 8, Llama 3.2 has 32: rope_scaling in their config.json
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_CLOSE = 1e-5  # relative, of factors that were computed in float32 or float64


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Errors of transformers about a config, as FileError that says `what` was tried."""
    try:
        yield
    except FileError:
        raise
    except _WRONG as error:
        raise FileError(f"{what}: {error}") from error


def config_of_gguf(checkpoint: GGUF) -> PreTrainedConfig:
    """The config of a class of transformers, by the file's architecture.

    Raises FileError for other architectures, a key that is missing, and positions that are scaled
    in a way that this module has no settings for.
    """
    with refusing(str(checkpoint.path)):
        fields = config_of(checkpoint.metadata, checkpoint)
    fields = {
        "bos_token_id": None,
        "eos_token_id": None,
    } | fields  # else they are a class's defaults
    layers = fields.get("num_hidden_layers", fields.get("n_layer"))
    if isinstance(layers, int) and layers > len(checkpoint):
        raise FileError(
            f"{checkpoint.path} declares {layers} layers, and holds {len(checkpoint)} tensors"
        )
    if "rope_theta" in fields:
        _positions(checkpoint, fields)
    with refusing(f"{checkpoint.path}: transformers"):
        return AutoConfig.for_model(**fields)


def _positions(checkpoint: GGUF, fields: dict[str, Any]) -> None:
    """Put `rope_parameters` in the place of what config.json had before transformers 5."""
    theta = fields.pop("rope_theta")
    scaling = fields.pop("rope_scaling", None)
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": theta} | (scaling or {})
    if "partial_rotary_factor" in fields:
        fields["rope_parameters"]["partial_rotary_factor"] = fields.pop("partial_rotary_factor")
    if "rope_local_base_freq" in fields:  # two kinds of layers, each with positions of its own
        local = {"rope_type": "default", "rope_theta": fields.pop("rope_local_base_freq")}
        both = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
        fields["rope_parameters"] = both
    size = fields.get("head_dim") or fields["hidden_size"] // max(fields["num_attention_heads"], 1)
    if _FACTORS in checkpoint:
        if scaling is not None:
            raise FileError(
                f"{checkpoint.path} has {_FACTORS} and keys that scale positions, too: pass "
                "the config of the original model (config=)"
            )
        factors: Any = checkpoint[_FACTORS]
        settings = _llama3(factors, theta, size)
        if settings is None:
            raise FileError(
                f"{checkpoint.path}: {_FACTORS} scales positions unlike any known Llama 3 "
                "model: pass the config of the original model (config=)"
            )
        fields["rope_parameters"] = settings


def _llama3(factors: Tensor, theta: float, size: int) -> dict[str, Any] | None:
    """The settings from which these factors [size / 2] were computed; None if no known ones."""
    for factor in (8.0, 32.0):
        settings = _LLAMA3 | {"rope_theta": theta, "factor": factor}
        expected = rope_factors(settings, size)
        same = factors.shape == expected.shape
        if same and torch.allclose(factors.float(), expected, rtol=_CLOSE, atol=0.0):
            return settings | {"rope_type": "llama3"}
    return None
