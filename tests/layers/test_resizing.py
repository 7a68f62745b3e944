# SPDX-License-Identifier: BSD-3-Clause
"""transformers' own methods on quantized models: ties, sizes, initialization, casts."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import blockscale as bs

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
IDS = torch.arange(2, 12)[None]
SMALL = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
RECIPES = ("mxfp4", bs.Recipe("int8_channel", "int8_token"))


def llama(**more) -> nn.Module:
    config = LlamaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2, **more)
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=32, **ids)
    )


def bert() -> nn.Module:
    return BertForMaskedLM(BertConfig(**SMALL, intermediate_size=64))


def t5() -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=64, **sizes, decoder_start_token_id=0))


MODELS = {
    "tied": lambda: llama(tie_word_embeddings=True),
    "apart": lambda: llama(tie_word_embeddings=False),
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
}


def quantized(name: str, recipe="mxfp4") -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_(model, recipe)
    return model


def logits(model: nn.Module) -> Tensor:
    more = {"decoder_input_ids": IDS} if isinstance(model, T5ForConditionalGeneration) else {}
    with torch.no_grad():
        return model(IDS, **more).logits


def ends(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model.get_input_embeddings(), model.get_output_embeddings()


@pytest.mark.some(2)
@pytest.mark.parametrize("recipe", RECIPES, ids=["weights", "inputs"])
@pytest.mark.parametrize("name", MODELS)
def test_what_changes_nothing(name: str, recipe) -> None:
    """Ties stay ties of codes, and no initialization touches them."""
    model = quantized(name, recipe)
    expected, state = logits(model), copy.deepcopy(model.state_dict())
    tied = ends(model)[0].qweight is ends(model)[1].qweight
    assert tied == (name != "apart")
    for module in model.modules():  # as if nothing had been initialized
        vars(module).pop("_is_hf_initialized", None)
    model.tie_weights()
    model.init_weights()
    model.post_init()
    model._initialize_missing_keys(is_quantized=True)
    model.set_input_embeddings(model.get_input_embeddings())
    model.resize_token_embeddings(64)
    model.resize_token_embeddings()
    model.resize_token_embeddings(pad_to_multiple_of=8)
    model.gradient_checkpointing_enable()
    model.gradient_checkpointing_disable()
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert torch.equal(logits(model), expected)
    assert (ends(model)[0].qweight is ends(model)[1].qweight) == tied


def test_ties_that_were_lost_are_tied_again() -> None:
    """tie_weights shares the codes of the source; what differs is seen in the outputs."""
    model, other = quantized("tied"), quantized("tied")
    table, head = ends(other)
    head._modules["weight"] = copy.deepcopy(table.qweight)
    head.qweight.codes.fill_(3)
    assert not torch.equal(logits(other), logits(model))
    other.tie_weights()
    assert head.qweight is table.qweight
    assert torch.equal(logits(other), logits(model))


def test_weights_that_cannot_be_shared_are_refused() -> None:
    model = quantized("apart", bs.Recipe("mxfp4", skip=["*.mlp.*"]))
    table, head = ends(model)
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    values = {name: t.clone() for name, t in model.state_dict().items()}
    cases = (
        (head, attention.k_proj.weight, r"an assignment writes to lm_head\.weight"),  # its shape
        (head, nn.Parameter(torch.ones(64, 32)), r"skip=\['lm_head'\]"),
        (head, table.weight[:-1], r"lm_head"),  # a piece of it
        (attention.o_proj, attention.q_proj.weight.t(), r"o_proj"),
        (mlp.gate_proj, head.weight, "nn.Parameter"),  # a float layer: torch's own words
    )
    for layer, value, words in cases:
        with pytest.raises((RuntimeError, TypeError), match=words):
            layer.weight = value
    assert all(torch.equal(t, values[n]) for n, t in model.state_dict().items())
    layer = nn.Sequential(nn.Linear(32, 64))
    bs.calibrate(layer, [torch.randn(9, 32)], "mxfp4", transform="hadamard", progress=False)
    if layer[0].before is None:
        layer[0].set_before(bs.layers.before.Rotate(32, 32))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="that a transform changed"):
        layer[0].weight = head.weight
    with pytest.raises(RuntimeError, match=r"that a transform changed writes to lm_head"):
        head.weight = layer[0].weight
    head.weight = table.weight  # what tie_weights does
    assert head.qweight is table.qweight


@pytest.mark.some(3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [80, 40])
def test_resized_embeddings_hold_the_dequantized_values(name: str, size: int) -> None:
    model = quantized(name)
    expected, names = logits(model), dict(model.named_modules())
    table = ends(model)[0].dequantize_weight()
    with pytest.warns(UserWarning, match="resized, and in float from now on: .*embed|wte|shared"):
        resized = model.resize_token_embeddings(size, mean_resizing=False)
    floats = [type(end) for end in ends(model)]
    assert floats == [nn.Embedding, nn.Linear]
    assert resized is ends(model)[0]
    assert resized.weight.shape == (size, 32)
    assert torch.equal(resized.weight[:40], table[:40])
    assert (ends(model)[0].weight is ends(model)[1].weight) == (name != "apart")
    got, same = logits(model), min(size, 64)
    assert torch.allclose(got[..., :same], expected[..., :same], atol=1e-5)  # sums of other kernels
    assert dict(model.named_modules()).keys() >= {n for n, m in names.items() if m in ends(model)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = bs.quantize_(model, "mxfp4")
    assert [e.kind for e in again if "already" not in e.reason and e.status == "quantized"]
    assert ends(model)[0].qweight.shape == (size, 32)


def test_a_failed_resize_leaves_the_model() -> None:
    """Also where transformers would have replaced the float table before it looked at the head."""
    for recipe in ("mxfp4", bs.Recipe("mxfp4", skip=["*embed_tokens"])):
        model = quantized("apart", recipe)
        expected, before = logits(model), ends(model)
        with pytest.raises(ValueError, match="which is not and integer"):
            model.resize_token_embeddings(80, pad_to_multiple_of="a")
        assert ends(model) == before
        assert torch.equal(logits(model), expected)
    with pytest.warns(UserWarning, match="in float from now on: lm_head"):
        model.resize_token_embeddings(80, mean_resizing=False)
    assert logits(model).shape[-1] == 80


def test_copies_resize_themselves() -> None:
    model = quantized("tied")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.warns(UserWarning, match="in float from now on"):
            other.resize_token_embeddings(80, mean_resizing=False)
        assert ends(other)[0].weight.shape == (80, 32)
        assert ends(model)[0].qweight.shape == (64, 32)
    assert not any("resize_token_embeddings" in vars(m) for m in MODELS["tied"]().modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts_keep_codes_and_scales(dtype: torch.dtype) -> None:
    model = quantized("tied", RECIPES[1])
    state = copy.deepcopy(model.state_dict())
    for cast in ("half" if dtype == torch.float16 else "bfloat16", dtype):
        model = getattr(model, cast)() if isinstance(cast, str) else model.to(cast)
        assert logits(model).dtype == dtype
        assert ends(model)[0].weight.dtype == dtype
    codes = {n for n in state if n.endswith((".codes", ".scale"))}
    assert codes
    assert all(torch.equal(model.state_dict()[n], state[n]) for n in codes)
    table = ends(model.to(torch.float32))[0](IDS)
    assert torch.equal(table, ends(quantized("tied", RECIPES[1]))[0](IDS))


@pytest.mark.parametrize("name", ["tied", "gpt2"])
def test_gradient_checkpointing_gives_the_same_gradients(name: str) -> None:
    grads = []
    for checkpoints in (False, True):
        model = quantized(name).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.enable_input_require_grads()
        if checkpoints:
            model.gradient_checkpointing_enable()
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        grads.append({n: p.grad for n, p in model.named_parameters()})
    assert all(g is not None for g in grads[0].values())
    assert all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])


def test_a_quantized_bias_is_not_replaced() -> None:
    """BERT ties the bias of its decoder: a float one would take the place of the codes."""
    model = quantized("bert", bs.Recipe("int8_channel", bias="int8"))
    decoder = ends(model)[1]
    assert decoder.quantized_bias is not None
    expected = logits(model)
    with pytest.raises(RuntimeError, match=r"codes writes to cls\.predictions\.decoder\.bias"):
        model.tie_weights()
    assert torch.equal(logits(model), expected)
