# SPDX-License-Identifier: BSD-3-Clause
"""How the families of transformers are built: a class, its config, a handful of small numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tests.models.registry import Inputs, add
from tests.models.zoo.inputs import WORDS, text

SMALL = {  # what most configs call the same
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = SMALL | {"num_key_value_heads": 2}


def hub(
    name: str,
    model: str,
    config: str,
    settings: Mapping[str, Any] | None = None,
    sample: Callable[[], Inputs] = text,
    skip: Mapping[str, str] | None = None,
) -> None:
    """Add a model of transformers: class `model`, made from class `config` with these settings."""

    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**(SMALL if settings is None else settings))
        for each in (made, made.get_text_config()):
            if hasattr(each, "use_cache"):
                each.use_cache = False  # what a cache holds is no result
        built: nn.Module = getattr(transformers, model)(made)
        return built

    add(name, "transformers", make, sample, skip)
