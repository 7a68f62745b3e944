# SPDX-License-Identifier: BSD-3-Clause
"""quantize_ on models as people have them: all is accounted for, and nothing else is touched."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import blockscale as bs
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QWeight, all_held

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside, while it is imported
    import transformers as hf
    from transformers.pytorch_utils import Conv1D

IDS, X, IMAGE = torch.arange(14).reshape(2, 7), torch.randn(3, 5, 8), torch.randn(2, 8, 9, 9)
TINY = {
    "vocab_size": 32,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}
TINY |= {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_key_value_heads": 1,
}


class Sub(nn.Linear):
    pass


class SubEmbedding(nn.Embedding):
    pass


class EncoderLayer(nn.TransformerEncoderLayer):
    pass


class Twice(nn.Module):
    """The same module under two names; `tie` may also share a parameter some other way."""

    def __init__(self, make=lambda: nn.Linear(8, 8), tie=None):
        super().__init__()
        self.a = make()
        self.b = self.a if tie is None else tie(self.a)
        self.own = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) @ self.own


def shares(b: nn.Module, name: str, of: nn.Module) -> nn.Module:
    setattr(b, name, getattr(of, name))
    return b


class RawTie(Twice):
    """A parameter of a layer that its parent uses too."""

    def __init__(self):
        super().__init__()
        self.own = self.a.weight


class First(nn.Module):
    """Of the outputs, the first: of an LSTM, of attention."""

    def __init__(self, module: nn.Module, times: int = 1):
        super().__init__()
        self.inner, self.times = module, times

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(*[x] * self.times)[0]


def lm(kind: str, **settings) -> nn.Module:
    config = getattr(hf, kind.partition("For")[0] + "Config")
    return getattr(hf, kind)(config(**TINY, **settings))


def bart() -> nn.Module:
    each = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}
    settings = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in each.items()}
    settings |= {k: TINY[k] for k in ("vocab_size", "max_position_embeddings", "pad_token_id")}
    return hf.BartForConditionalGeneration(hf.BartConfig(d_model=16, **settings))


def gpt2() -> nn.Module:
    settings = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**settings, bos_token_id=1, eos_token_id=2))


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5)


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in many models
        return nn.utils.weight_norm(nn.Linear(8, 8))


def mixed() -> nn.Module:
    convs = nn.ModuleDict({"norm": nn.BatchNorm2d(8), "c": nn.Conv2d(8, 8, 3, groups=2)})
    return nn.Sequential(
        *convs.values(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(392, 3, bias=False)
    )


T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
MODELS = {
    "mixed": (mixed, IMAGE),
    "channels_last": (lambda: mixed().to(memory_format=torch.channels_last), IMAGE),
    "shared module": (Twice, X),
    "shared parameter": (lambda: Twice(tie=lambda a: shares(nn.Linear(8, 8), "weight", a)), X),
    "shared bias": (lambda: Twice(tie=lambda a: shares(nn.Linear(8, 8), "bias", a)), X),
    "shared with a subclass": (lambda: Twice(tie=lambda a: shares(Sub(8, 8), "weight", a)), X),
    "shared with the parent": (RawTie, X),
    "subclass": (lambda: nn.Sequential(Sub(8, 8), nn.Linear(8, 8)), X),
    "Conv1D": (lambda: nn.Sequential(Conv1D(5, 8), nn.LayerNorm(5)), X),
    "LSTM": (lambda: First(nn.LSTM(8, 8)), X),
    "attention": (lambda: First(nn.MultiheadAttention(8, 2), 3), X),
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1), X),
    "encoder subclass": (lambda: nn.Sequential(EncoderLayer(8, 2, 16)), X),
    "decoder": (lambda: nn.ModuleList([nn.TransformerDecoderLayer(8, 2, 16)]), None),
    "others": (lambda: nn.ModuleList([nn.Bilinear(3, 4, 5), nn.ConvTranspose2d(2, 3, 2),
                                      nn.Conv3d(2, 3, 2), nn.EmbeddingBag(5, 4)]), None),
    "weight_norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8))), X),
    "spectral_norm": (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8))), X),
    "old weight_norm": (lambda: nn.Sequential(old_weight_norm()), X),
    "pruned": (lambda: nn.Sequential(pruned()), X),
    "half": (lambda: nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 8)).bfloat16(), IDS),
    "empty": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(0, 4)), torch.randn(3, 0)),
    "GPT-2": (gpt2, IDS),
    "BERT": (lambda: lm("BertForMaskedLM"), IDS),
    "T5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=32, **T5)),
           {"input_ids": IDS, "decoder_input_ids": IDS}),
    "BART": (bart, IDS),
    "Mixtral": (lambda: lm("MixtralForCausalLM", num_local_experts=4), IDS),  # experts are 3-D
    "Llama": (lambda: lm("LlamaForCausalLM"), IDS),
}  # fmt: skip


@contextmanager
def quiet():
    with warnings.catch_warnings(), bs.use("reference"):
        warnings.simplefilter("ignore")
        yield


def bits(state: dict) -> dict:
    data = {n: t.detach().contiguous().reshape(-1).view(torch.uint8) for n, t in state.items()}
    return {n: (t.dtype, tuple(t.shape), data[n].tolist()) for n, t in state.items()}


def real_bytes(model: nn.Module) -> int:
    """Of every parameter once, and of every code and scale once."""
    held = {id(p): p for p in model.parameters()}
    for store in model.modules():
        held |= {id(b): b for b in store.buffers()} if isinstance(store, QWeight) else {}
    return sum(t.nbytes for t in held.values())


def untouched(model: nn.Module) -> dict:
    """Everything that quantizing weights has no business with, by name."""
    plain = bool | int | float | str | tuple
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = [n for n, m in modules.items() if isinstance(m, QLayer)]
    layers += [n for n, _ in all_held(model)]
    found = {}
    for n, m in modules.items():
        if not any(f"{n}.".startswith(f"{layer}.") for layer in layers):
            settings = {k: v for k, v in vars(m).items() if isinstance(v, plain)}
            found[n] = (
                getattr(m, "float_class", type(m)),
                settings,
                bits(dict(m.named_buffers(recurse=False))),
            )
    parameters = model.named_parameters(remove_duplicate=False)
    return found | {n: (p.requires_grad, id(p)) for n, p in parameters}


def quantized(name: str):
    """The quantized model, its ledger, the float model, and its parameters, each once."""
    models = []
    for _ in range(2):  # not a copy: modules with hooks refuse that
        torch.manual_seed(0)
        with quiet():
            models.append(MODELS[name][0]().train(name == "LSTM"))
    model, plain = models
    parameters = list({id(p): p for p in model.parameters()}.values())
    old = untouched(model)
    with quiet():
        ledger = bs.quantize_(model, "int8_channel")
    new = untouched(model)
    assert new == {n: old[n] for n in new}
    return model, ledger, plain, parameters


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_the_ledger(name: str) -> None:
    """Before: every parameter once. After: what is in memory."""
    model, ledger, _, parameters = quantized(name)
    assert ledger.bytes_before == sum(p.nbytes for p in parameters)
    assert ledger.bytes_after == real_bytes(model)


@pytest.mark.parametrize("name", MODELS)
def test_elements_of_the_ledger(name: str) -> None:
    _, ledger, _, parameters = quantized(name)
    assert sum(e.elements for e in ledger) == sum(p.numel() for p in parameters)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_passed_over(name: str) -> None:
    """What is still a float layer stands in the ledger, under a name of its own, with a reason."""
    model, ledger, _, _ = quantized(name)
    names = [entry.name for entry in ledger]
    assert len(set(names)) == len(names)
    assert all(e.reason for e in ledger if e.status != "quantized")
    kinds = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, Conv1D)
    found = ((n, m) for n, m in model.named_modules() if not isinstance(m, QLayer))
    left = {n for n, m in found if isinstance(m, kinds)}
    assert left <= {e.name for e in ledger if e.status != "quantized"}


def _uncomputed(layer: nn.Module) -> nn.Module:
    """Without what computes its weight."""
    if parametrize.is_parametrized(layer):
        parametrize.remove_parametrizations(layer, "weight")
    elif prune.is_pruned(layer):
        prune.remove(layer, "weight")
    elif "weight_g" in layer._parameters:
        nn.utils.remove_weight_norm(layer)
    return layer


def run(model: nn.Module, x) -> Tensor:
    with quiet():
        y = model(**x) if isinstance(x, dict) else model(x)
    return y if isinstance(y, Tensor) else y[0]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][1] is not None])
def test_outputs_are_those_of_the_dequantized_weights(name: str) -> None:
    """With and without autograd: torch has fused paths that read weights without calling layers."""
    model, _, plain, _ = quantized(name)
    for n, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, QLayer):
            assert layer.training == plain.get_submodule(n).training
            float_layer = _uncomputed(plain.get_submodule(n))
            float_layer.weight.data = layer.dequantize_weight()
    for n, weight in all_held(model):
        owner, _, attribute = n.rpartition(".")
        getattr(plain.get_submodule(owner), attribute).data = weight.dequantize()
    exact = ("mixed", "channels_last", "subclass", "empty", *(n for n in MODELS if "shared" in n))
    atol = 0 if name in exact else 0.01 if name == "half" else 1e-5  # attention sums in any order
    for context in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with context:
            y, expected = run(model, MODELS[name][1]), run(plain, MODELS[name][1])
        torch.testing.assert_close(y, expected, rtol=0, atol=atol)
