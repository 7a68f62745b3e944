# SPDX-License-Identifier: BSD-3-Clause
"""llama.cpp's prebuilt library (release v0.5.0) on a GGUF file, through the C declarations of PyPI
`llama-cpp-py-sync`: logits and greedy text in float32 without flash attention, tokens, and files
that its own quantizer writes."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.clients.programs import LLAMA_CPP, run

LIBRARIES = LLAMA_CPP / "bins" / "linux-x64"
TYPES = {  # llama_ftype, by the name that llama-quantize has
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16,
    "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XS": 22, "IQ3_XXS": 23,
    "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29, "IQ4_XS": 30, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip

_SCRIPT = r"""
import json, sys
import numpy as np
from llama_cpp_py_sync._cffi_bindings import ffi

folder, request = sys.argv[1], json.load(open(sys.argv[2]))
ffi.cdef("void ggml_backend_load_all_from_path(const char * dir_path);")
log = []

@ffi.callback("void(enum ggml_log_level, const char *, void *)")
def heard(level, text, _):
    log.append(ffi.string(text).decode(errors="replace"))

ggml = ffi.dlopen(folder + "/libggml.v0.5.0.so")
llama = ffi.dlopen(folder + "/libllama.v0.5.0.so")
llama.llama_log_set(heard, ffi.NULL)
ggml.ggml_backend_load_all_from_path(folder.encode())
llama.llama_backend_init()

def refused(what):
    print(json.dumps({"refused": what, "log": "".join(log)[-4000:]}))
    sys.exit()

def loaded(path, vocabulary):
    settings = llama.llama_model_default_params()
    settings.vocab_only = vocabulary
    settings.use_extra_bufts = False  # weights as the file has them, not repacked for this CPU
    model = llama.llama_model_load_from_file(path.encode(), settings)
    if model == ffi.NULL:
        refused("the file is not loaded")
    return model

def context_of(model, size):
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = max(64, size)
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = llama.GGML_TYPE_F32
    settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.swa_full = True
    context = llama.llama_init_from_model(model, settings)
    if context == ffi.NULL:
        refused("no context is made")
    return context

def decoded(context, tokens, at, size, every):
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i] = token, at + i
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        batch.logits[i] = every or i == len(tokens) - 1
    if llama.llama_decode(context, batch) != 0:
        refused("llama_decode fails")
    rows = len(tokens) if every else 1
    found = np.frombuffer(
        ffi.buffer(llama.llama_get_logits(context), rows * size * 4), dtype=np.float32
    ).reshape(rows, size).copy()
    llama.llama_batch_free(batch)
    return found

def logits(path, tokens, out):
    model = loaded(path, False)
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    np.save(out, decoded(context_of(model, len(tokens)), tokens, 0, size, True))
    return size

def greedy(path, tokens, count):
    model = loaded(path, False)
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    context, at, found = context_of(model, len(tokens) + count), 0, []
    for _ in range(count):
        row = decoded(context, tokens, at, size, False)
        at, tokens = at + len(tokens), [int(row[0].argmax())]
        found += tokens
    return found

def tokenize(path, texts, special):
    vocabulary = llama.llama_model_get_vocab(loaded(path, True))
    found = []
    for text in texts:
        data = text.encode()
        room = 2 * len(data) + 16
        tokens = ffi.new("llama_token[]", room)
        count = llama.llama_tokenize(vocabulary, data, len(data), tokens, room, special, True)
        if count < 0:
            refused("llama_tokenize wants more room")
        found.append(list(tokens[0:count]))
    return found

def special_tokens(path):
    vocabulary = llama.llama_model_get_vocab(loaded(path, True))
    names = ("bos", "eos", "eot", "sep", "nl", "pad", "mask")
    found = {name: getattr(llama, "llama_vocab_" + name)(vocabulary) for name in names}
    found |= {
        "add_bos": bool(llama.llama_vocab_get_add_bos(vocabulary)),
        "add_eos": bool(llama.llama_vocab_get_add_eos(vocabulary)),
        "size": llama.llama_vocab_n_tokens(vocabulary),
    }
    found["ends"] = [
        i for i in range(found["size"]) if llama.llama_vocab_is_eog(vocabulary, i)
    ]
    return found

def quantize(path, target, number, pure, importance):
    settings = llama.llama_model_quantize_default_params()
    settings.ftype, settings.nthread, settings.pure = number, 2, pure
    settings.allow_requantize = True
    kept = []  # cffi frees what Python forgets
    if importance:
        rows = ffi.new("struct llama_model_imatrix_data[]", len(importance) + 1)
        for i, (name, count) in enumerate(importance.items()):
            kept += [ffi.new("char[]", name.encode()), ffi.new("float[]", [1.0] * count)]
            rows[i].name, rows[i].data, rows[i].size = kept[-2], kept[-1], count
        settings.imatrix = rows
        kept.append(rows)
    failed = llama.llama_model_quantize(path.encode(), target.encode(), ffi.addressof(settings))
    if failed:
        refused("llama_model_quantize fails")
    return True

answer = globals()[request["what"]](*request["with"])
print(json.dumps({"answer": answer, "log": "".join(log)}))
"""


class RefusedError(Exception):
    """llama.cpp does not take a file. Its log is the message."""


def _ask(what: str, *arguments: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as request:
        json.dump({"what": what, "with": arguments}, request)
        request.flush()
        told = run("light", _SCRIPT, LIBRARIES, request.name)
    if "refused" in told:
        raise RefusedError(f"{told['refused']}: {told['log']}")
    return told["answer"], told["log"]


def logits(path: str | Path, tokens: Sequence[int]) -> Tensor:
    """float32 [tokens, vocabulary]: the logits after each token. Raises RefusedError."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        _ask("logits", str(path), list(tokens), out.name)
        return torch.from_numpy(np.load(out.name))


def greedy(path: str | Path, tokens: Sequence[int], count: int) -> list[int]:
    """The `count` tokens of the highest logits that follow."""
    return list(_ask("greedy", str(path), list(tokens), count)[0])


def tokenize(path: str | Path, texts: Sequence[str], special: bool) -> list[list[int]]:
    """Each text's tokens. special: with those that the model wants at the ends (BOS and the like);
    special tokens in the text are one token either way."""
    return [list(each) for each in _ask("tokenize", str(path), list(texts), special)[0]]


def special_tokens(path: str | Path) -> dict[str, Any]:
    """{"bos", "eos", "eot", "sep", "nl", "pad", "mask": the token or -1, "add_bos", "add_eos",
    "size": of the vocabulary, "ends": all tokens at which generation stops}."""
    return dict(_ask("special_tokens", str(path))[0])


def quantize(
    path: str | Path,
    target: str | Path,
    kind: str,
    *,
    pure: bool = False,
    importance: dict[str, int] | None = None,
) -> str:
    """A file as llama-quantize writes it in a type of TYPES ("F32" widens it). Returns its log.

    pure: one type for all tensors; importance: {tensor: columns} to which equal weights are given,
    without which IQ2 and IQ3 are refused
    """
    arguments = str(path), str(target), TYPES[kind], pure, importance or {}
    return str(_ask("quantize", *arguments)[1])
