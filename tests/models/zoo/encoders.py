# SPDX-License-Identifier: BSD-3-Clause
"""Text encoders of transformers, from BERT on."""

from tests.models.zoo.hub import SMALL, hub
from tests.models.zoo.inputs import WORDS, masked_text

_NO_IDS = {key: value for key, value in SMALL.items() if "token" not in key} | {"pad_token_id": 0}

hub("bert", "BertForMaskedLM", "BertConfig", sample=masked_text)
hub("roberta", "RobertaForMaskedLM", "RobertaConfig", sample=masked_text)
hub("xlm_roberta", "XLMRobertaForSequenceClassification", "XLMRobertaConfig", sample=masked_text)
hub(
    "deberta_v2",
    "DebertaV2ForMaskedLM",
    "DebertaV2Config",
    _NO_IDS
    | {
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    masked_text,
)
hub(
    "mobilebert",
    "MobileBertForMaskedLM",
    "MobileBertConfig",
    _NO_IDS | {"embedding_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 2},
    masked_text,
)
hub("albert", "AlbertForMaskedLM", "AlbertConfig", SMALL | {"embedding_size": 32}, masked_text)
hub(
    "electra", "ElectraForPreTraining", "ElectraConfig", SMALL | {"embedding_size": 32}, masked_text
)
hub(
    "distilbert",
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
    {
        "vocab_size": WORDS,
        "dim": 64,
        "hidden_dim": 128,
        "n_layers": 2,
        "n_heads": 4,
        "max_position_embeddings": 64,
    },
    masked_text,
)
hub(
    "xlnet",
    "XLNetLMHeadModel",
    "XLNetConfig",
    {"vocab_size": WORDS, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
    masked_text,
)
hub("mpnet", "MPNetForMaskedLM", "MPNetConfig", _NO_IDS | {"pad_token_id": 1}, masked_text)
hub(
    "modernbert",
    "ModernBertForMaskedLM",
    "ModernBertConfig",
    SMALL | {"cls_token_id": 1, "sep_token_id": 2, "attn_implementation": "sdpa"},
    masked_text,
)
hub(
    "esm", "EsmForMaskedLM", "EsmConfig", SMALL | {"position_embedding_type": "rotary"}, masked_text
)
hub(
    "funnel",
    "FunnelForMaskedLM",
    "FunnelConfig",
    {
        "vocab_size": WORDS,
        "block_sizes": [1, 1],
        "num_decoder_layers": 1,
        "d_model": 64,
        "n_head": 4,
        "d_head": 16,
        "d_inner": 128,
    },
    masked_text,
)
