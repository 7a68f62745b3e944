# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's files, run by its own runtime in Python."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

import blockscale as bs
from blockscale.export.to_executorch import CachedStep
from blockscale.export.to_onnx.decoder import decoder_of
from tests.export.to_onnx import decoders
from tests.support.programs import gpt2

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()


def converted(recipe, model=None, x=X, dynamic=False):
    model = mlp() if model is None else model
    sizes = ({0: torch.export.Dim("rows", min=2, max=64)},) if dynamic else None
    program = torch.export.export(model, (x,), dynamic_shapes=sizes)
    spec = "mean" if recipe.weight.element.name in ("binary", "ternary") else "min_max"
    graph = bs.graph.prepare(program, recipe, observer=spec)
    bs.calibrate(graph, [(x,)], progress=False)
    return bs.graph.convert(graph)


def run(path, *inputs):
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    method = program.load_method("forward")
    return method.execute([each.contiguous() for each in inputs])[0].clone()


def exported(graph, path, **settings):
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    bs.export.executorch(graph, path, **settings)
    return path


def check(path, recipe, least, **settings):
    graph = converted(recipe, **settings)
    x = settings.get("x", X)
    exported(graph, path)
    with torch.no_grad(), bs.use("reference"):
        expected = graph(x)
    y = run(path, x)
    assert cosine_similarity(y.flatten(1), expected.flatten(1)).min() >= least
    return y, expected


@pytest.mark.slow
def test_a_packed_weight_and_inputs_per_token(tmp_path):
    """What XNNPACK does not take runs on ExecuTorch's own kernels; the weight stays packed."""
    recipe = bs.Recipe("mxfp4", "int8_token")
    y, expected = check(tmp_path / "m.pte", recipe, 0.999999, dynamic=True)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run(tmp_path / "m.pte", X[:3]), expected[:3], rtol=1e-5, atol=1e-6)
    found = bs.export.audit(tmp_path / "m.pte")
    assert max(entry.bytes_after for entry in found if "float" in entry.reason) <= 4 * 256
    assert [each.name for each in tmp_path.iterdir()] == ["m.pte"]


@pytest.mark.slow  # ExecuTorch's own; tests/export/to_executorch/ has what it gets
def test_static_int8_runs_in_integers(tmp_path):
    check(tmp_path / "m.pte", bs.Recipe("int8_channel", "int8", "int8"), 0.9995)
    found = bs.export.audit(tmp_path / "m.pte")
    weights = {entry.elements: entry for entry in found.quantized}
    assert set(weights) == {64 * 96, 96 * 32}
    for entry in weights.values():
        assert entry.weight == "qcint8 per channel" and "in integers" in entry.details
        assert "static" in entry.details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "given", "output", "least"),
    [
        ("int8_channel", "uint8", "uint8", 0.9995),
        ("int8_channel", "int8_token", None, 0.9995),
        ("int4:channel0:fp32", "int8_token", None, 0.9995),
        ("int4:group32:bf16", "int8_token", None, 0.9995),
        ("int8_channel", "int8", None, 0.999999),
        ("int4:group32:fp32", "int8:group32:fp32", None, 0.999999),
    ],
)
def test_integer_recipes(tmp_path, weight, given, output, least):
    check(tmp_path / "m.pte", bs.Recipe(weight, given, output), least, dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [f for f in sorted(bs.formats()) if f != "uint16"])
def test_every_format_of_weights(tmp_path, fmt):
    y, expected = check(tmp_path / "m.pte", bs.Recipe(fmt), 0.999999)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [bs.Recipe("int8_channel", "int8", "int8"), bs.Recipe("mxfp8")])
def test_convolutions(tmp_path, recipe):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 16, 3, groups=2, stride=2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    x = torch.randn(4, 3, 16, 16)
    check(tmp_path / "m.pte", recipe, 0.999, model=model, x=x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "most"),
    [
        (bs.Recipe("int8_channel", "int8"), 1e-5),
        (bs.Recipe("int8_channel", "int8_token"), 5e-4),
        (bs.Recipe("int4:group32:bf16", "int8_token"), 5e-4),
        (bs.Recipe("mxfp4"), 1e-5),
    ],
    ids=lambda each: str(each.weight) if isinstance(each, bs.Recipe) else "",
)
def test_gpt2(tmp_path, recipe, most):
    """Attention, Conv1D's transposed weights, embeddings; XNNPACK chooses scales of its own."""
    torch.manual_seed(0)
    model, tokens = gpt2(), torch.randint(0, 50, (2, 12))
    graph = converted(recipe, model, tokens)
    exported(graph, tmp_path / "m.pte")
    with torch.no_grad(), bs.use("reference"):
        expected = graph(tokens)["last_hidden_state"]
    y = run(tmp_path / "m.pte", tokens)
    assert 1 - cosine_similarity(y.flatten(1), expected.flatten(1)).min() <= most


@pytest.mark.slow
def test_int4_scales_that_xnnpack_rounds_are_named(tmp_path):
    graph = converted(bs.Recipe("int4:group32:fp32", "int8_token"))
    with pytest.warns(UserWarning, match=r"rounds the int4 scales of 0\.weight and 1 more"):
        exported(graph, tmp_path / "m.pte")


@pytest.mark.slow
def test_a_model_and_its_example(tmp_path):
    model = mlp()
    bs.quantize_(model, "int4:group32:fp32")
    exported(model, tmp_path / "m.pte", example=X)
    with torch.no_grad(), bs.use("reference"):
        torch.testing.assert_close(run(tmp_path / "m.pte", X), model(X), rtol=1e-5, atol=1e-5)


def test_bad_input_is_named_before_anything_is_written(tmp_path):
    path = tmp_path / "m.pte"
    graph = converted(bs.Recipe("int8_channel", "int8"))
    for wrong in (bs.graph.fuse(graph), bs.graph.lower(bs.graph.fuse(graph), "reference")):
        with pytest.raises(ValueError, match="has no quantize and dequantize nodes any more"):
            exported(wrong, path)
    with pytest.raises(ValueError, match="cannot be called with the example"):
        exported(graph, path, example=torch.randn(3, 7))
    with pytest.raises(ValueError, match="e4m3:group32:e8m0/floor, for instance"):
        exported(converted(bs.Recipe("mxfp8", "mxfp8")), path)
    with pytest.raises(ValueError, match="do not support unsigned integers of 16 bits"):
        exported(converted(bs.Recipe("uint16")), path)
    assert list(tmp_path.iterdir()) == []
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"m\.pte exists: remove it, or pass overwrite=True"):
        exported(graph, path)
    assert path.read_text() == "mine"


def test_a_missing_package(tmp_path, monkeypatch):
    import sys

    module = sys.modules["blockscale.export.to_executorch"]
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'blockscale\[executorch\]'"):
        bs.export.executorch(None, tmp_path / "m.pte")
    [target] = [each for each in bs.export.targets() if each.name == "executorch"]
    assert target.unavailable and "blockscale[executorch]" in target.unavailable


# Decoders with their cache inside.


def step_of(kind, recipe=None, cache=64, tokens=32, **options):
    """A model, and its call as a file has it, run by torch."""
    model = decoders.model_of(kind, **options)
    if recipe is not None:
        bs.quantize_(model, recipe)
    return model, CachedStep(decoder_of(model), cache, tokens)


def greedy(step, ids, count, most=32):
    """Greedy tokens after a prompt [1, tokens], which goes in by pieces of `most`."""
    tokens, place = [], 0
    while len(tokens) < count:
        piece, ids = ids[:, :most], ids[:, most:]
        logits = step(piece, torch.arange(place, place + piece.shape[1]))
        place += piece.shape[1]
        if not ids.shape[1]:
            ids = logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
    return tokens


def prompt(length=7):
    return torch.randint(1, 96, (1, length), generator=torch.Generator().manual_seed(1))


def expected_tokens(model, count, length=7):
    ids = prompt(length)
    result = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return result[0, length:].tolist()


@pytest.mark.parametrize(
    "kind",
    ["gemma3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("llama", "gpt2"))],
)
def test_a_call_writes_into_the_cache_and_reads_it(kind):
    """Windows of 8 tokens, a prompt in pieces, and a second text in the same cache."""
    model, step = step_of(kind)
    expected = expected_tokens(model, 12)
    assert len(set(expected)) > 4
    with torch.no_grad():
        assert greedy(step, prompt(), 12) == expected
        assert greedy(step, prompt(), 12, most=3) == expected
        places = step.key_cache_0.abs().amax((0, 1, 3)).nonzero().flatten()
    assert places.tolist() == list(range(7 + 11))
    assert not {*step.state_dict()} & {"key_cache_0", "value_cache_0"}


def test_what_a_file_says_of_itself():
    _, step = step_of("llama", cache=64, tokens=32, eos_token_id=[2, 5], bos_token_id=1)
    assert step.methods() == {
        "get_max_seq_len": 32, "get_max_context_len": 64, "get_vocab_size": 96,
        "use_kv_cache": True, "use_sdpa_with_kv_cache": False, "enable_dynamic_shape": True,
        "get_bos_id": 1, "get_eos_ids": [2, 5],
    }  # fmt: skip
    _, step = step_of("llama", cache=64, tokens=1, eos_token_id=None, bos_token_id=None)
    assert not {"get_bos_id", "get_eos_ids"} & step.methods().keys()
    assert step.methods()["enable_dynamic_shape"] is False


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tokens": 4}, "tokens are those of a decoder's call: pass cache="),
        ({"cache": 64, "example": X}, "leave example out"),
        ({"cache": 1}, "got cache=1, tokens=None"),
        ({"cache": 64.0}, r"got cache=64\.0"),
        ({"cache": True}, "got cache=True"),
        ({"cache": 64, "tokens": 65}, "1 to that many a call, got cache=64, tokens=65"),
        ({"cache": 64, "tokens": 0}, "got cache=64, tokens=0"),
        ({"cache": 129}, "cache=129: LlamaForCausalLM has positions for 128 tokens"),
    ],
)
def test_caches_that_cannot_be(tmp_path, settings, why):
    with pytest.raises(ValueError, match=why):
        exported(decoders.model_of("llama"), tmp_path / "m.pte", **settings)
    assert list(tmp_path.iterdir()) == []


def test_models_whose_cache_cannot_be_inside(tmp_path):
    path = tmp_path / "m.pte"
    with pytest.raises(ValueError, match="BloomForCausalLM takes no position_ids"):
        exported(decoders.model_of("bloom"), path, cache=64)
    with pytest.raises(ValueError, match=r"computes in bfloat16, .* call model\.float\(\) first"):
        exported(decoders.model_of("llama").bfloat16(), path, cache=64)
    with pytest.raises(TypeError, match="a cache is of a language model of transformers"):
        exported(mlp(), path, cache=64)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ValueError, match="rope_type 'dynamic'"):
        exported(decoders.model_of("llama", rope_parameters=rope), path, cache=64)
    assert list(tmp_path.iterdir()) == []


def runner(path):
    """A file's call by ExecuTorch's runtime."""
    pytest.importorskip("executorch", reason="pip install 'blockscale[executorch]'")
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")

    def call(ids, places):
        return method.execute([ids.contiguous(), places])[0].clone()

    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("llama", "int8_channel"),
        ("qwen2", "int4:group32:fp32"),
        ("qwen3", "int8_channel"),
        ("mistral", "int8_channel"),
        ("gemma3", "int4:group32:fp32"),
        ("gpt2", "int8_channel"),
        ("llama", "mxfp4"),
    ],
)
def test_decoders_choose_the_tokens_of_generate(tmp_path, kind, weights):
    few = {} if kind == "gemma3" else {"num_hidden_layers": 1, "n_layer": 1}  # it has two sorts
    model = decoders.model_of(kind, **few)
    bs.quantize_(model, weights)
    path = exported(model, tmp_path / "m.pte", cache=64, tokens=32)
    call, expected = runner(path), expected_tokens(model, 48)
    assert greedy(call, prompt(), 48) == expected
    assert greedy(call, prompt(), 48, most=1) == expected
    with pytest.raises(RuntimeError, match="execute"):  # "Index 64 is out of bounds", in its log
        call(prompt(1), torch.tensor([64]))
    found = bs.export.audit(path)
    parts = {each.data_ptr(): each for each in model.state_dict().values()}  # tied ones once
    stored = sum(each.numel() * each.element_size() for each in parts.values())
    assert sum(entry.bytes_after for entry in found) <= 1.1 * stored
    assert max(entry.bytes_after for entry in found.kept) < 4 * 32 * 64  # no weight in float


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int8_channel", "int4:group32:bf16"])
def test_decoders_in_integers(tmp_path, weights):
    """XNNPACK chooses the scales of tokens by a rule of its own, so that logits differ."""
    model = decoders.model_of("llama", num_hidden_layers=1)
    bs.quantize_(model, bs.Recipe(weights, "int8_token"))
    path = exported(model, tmp_path / "m.pte", cache=64, tokens=32)
    ids = prompt(40)
    with torch.no_grad():
        expected = model(ids).logits
    call = runner(path)
    pieces = [call(ids[:, :32], torch.arange(32)), call(ids[:, 32:], torch.arange(32, 40))]
    assert cosine_similarity(torch.cat(pieces, 1), expected, -1).min() > 0.99
    assert any("in integers" in entry.details for entry in bs.export.audit(path).quantized)


@pytest.mark.slow
def test_executorchs_own_runner_generates(tmp_path):
    """It reads the methods, and gives a prompt of 40 tokens in pieces of 32."""
    runners = pytest.importorskip("executorch.extension.llm.runner", reason="no executorch")
    model = decoders.model_of("qwen2", num_hidden_layers=1, eos_token_id=1, bos_token_id=None)
    bs.quantize_(model, "int4:group32:fp32")
    path = exported(model, tmp_path / "m.pte", cache=64, tokens=32)
    words = letters()
    words.save(str(tmp_path / "tokenizer.json"))
    ids = prompt(40).clamp(2)  # no special ones
    result = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    expected = words.decode(result[0, 40:].tolist(), skip_special_tokens=False)
    own = runners.TextLLMRunner(str(path), str(tmp_path / "tokenizer.json"))
    greedily = runners.GenerationConfig(echo=False, max_new_tokens=20, temperature=0.0)
    for _ in range(2):  # a second text begins at place 0
        pieces = []
        own.generate(words.decode(ids[0].tolist()), greedily, token_callback=pieces.append)
        assert "".join(pieces) == expected
        own.reset()


def letters():
    """A tokenizer of 96 tokens, each a printable letter of ASCII but the first two."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel

    alphabet = [each for each in sorted(pre_tokenizers.ByteLevel.alphabet()) if each.isascii()]
    names = ["<s>", "</s>", *alphabet[:94]]
    words = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = ByteLevel()
    words.add_special_tokens(names[:2])
    return words
