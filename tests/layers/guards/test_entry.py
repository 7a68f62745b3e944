# SPDX-License-Identifier: BSD-3-Clause
"""Everything that is no model is refused with what to do instead, and no mode of torch shows in
what is made."""

import copy
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.guards.entry import check_model

X = torch.randn(4, 32)
CALLS: dict[str, Callable[[Any], Any]] = {
    "bs.quantize_": lambda given: bs.quantize_(given, "mxfp4"),
    "bs.calibrate": lambda given: bs.calibrate(given, [X], "mxfp4", progress=False),
    "bs.save": lambda given: bs.save(given, "nowhere.safetensors"),
    "bs.load": lambda given: bs.load(given, "nowhere.safetensors"),
    "bs.prepare_qat": lambda given: bs.prepare_qat(given, "mxfp4"),
    "bs.convert": bs.convert,
    "bs.compare": lambda given: bs.compare(given, given, [X]),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))


def scripted() -> Any:
    return torch.jit.trace(model(), X)


LAYER = nn.Linear(3, 3)
ONE_AT_A_TIME = "pass the models in it one at a time, or put them into an nn."
GIVEN: list[tuple[Any, str]] = [
    (None, "None: did a function that makes the model forget to return it?"),
    (nn.Linear, "the class Linear: make a model of it, such as Linear(...), and pass that"),
    (
        model().state_dict(),
        "a state_dict of 4 tensors: build the model, model.load_state_dict(state), and pass the "
        "model; single tensors go to bs.quantize(tensor, format)",
    ),
    ({"a": LAYER}, f"a dict: {ONE_AT_A_TIME}ModuleDict"),
    ((LAYER,), f"a tuple: {ONE_AT_A_TIME}ModuleList"),
    ([LAYER], f"a list: {ONE_AT_A_TIME}ModuleList"),
    (
        torch.eye(3).to_sparse(),
        "a tensor of shape (3, 3): a single tensor goes to bs.quantize(tensor, format)",
    ),
    (LAYER.forward, "the function forward: pass the model whose method it is, a Linear"),
    (copy.copy, "the function copy: pass the nn.Module that holds the layers"),
    (types.SimpleNamespace(model=LAYER), "a SimpleNamespace: pass its model: .model"),
    (
        "MyOrg/model",
        "'MyOrg/model': build the model first, e.g. AutoModel.from_pretrained(name), and pass that",
    ),
    (
        "mxfp4",
        "'mxfp4': that is a format, and the model comes first: bs.quantize_(model, 'mxfp4')",
    ),
    (
        __file__,
        f"{__file__!r}: the model comes first: build it, then bs.load(model, {__file__!r})",
    ),
    ("/", "'/': a directory goes to bs.quantize_directory('/', out, recipe), or load it first"),
    (3, "a int: pass the nn.Module that holds the layers"),
]


@pytest.mark.parametrize("called", CALLS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_model(called: str) -> None:
    script = (
        "a TorchScript program (TopLevelTracedModule): its layers are compiled in and cannot be "
        "replaced: quantize the Python model that it was made from, then use torch.export or "
        "torch.compile"
    )
    for given, told in [*GIVEN, (scripted(), script)]:
        expected = re.escape(f"{called} takes a model, an nn.Module, not {told}")
        with pytest.raises(TypeError, match=f"^{expected}$"):
            CALLS[called](given)


def test_a_program_goes_to_the_graph() -> None:
    program = torch.export.export(model(), (X,))
    with pytest.raises(TypeError, match=r"a program goes to bs.graph.prepare or bs.graph.convert$"):
        check_model(program, "bs.quantize_")
    check_model(program.module(), "bs.quantize_")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_weights_are_named(layout: torch.layout) -> None:
    sparse = model()
    sparse[0].weight = nn.Parameter(torch.eye(16, 32).to_sparse(layout=layout), requires_grad=False)
    kind = str(layout).removeprefix("torch.")
    told = f"its weight is sparse ({kind}): make it dense first, with to_dense()"
    with pytest.raises(bs.SkippedError, match=re.escape(f"0 (Linear): {told}")):
        bs.quantize_(sparse, "int8", strict=True)
    with pytest.warns(UserWarning, match=re.escape(f"0: skipped, {told}")):
        ledger = bs.quantize_(sparse, "int8")
    assert ledger["2"].status == "quantized"
    index = 2 * 16 * 8 if layout is torch.sparse_coo else (16 + (17 if "csr" in kind else 33)) * 8
    assert ledger["0"].bytes_before == 16 * 4 + index + 16 * 4  # values, places, the bias


MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "meta": lambda: torch.device("meta"),
}
RECIPE = bs.Recipe("nf4:group16:fp32", input="int8:tensor:fp32", rules={"2": {"bias": "int8"}})


def quantized(way: str, mode: Any) -> nn.Module:
    made = model()
    with mode():
        if way == "quantize_":
            bs.quantize_(made, RECIPE)
        elif way == "calibrate":
            bs.calibrate(made, [X], RECIPE, weight="mse", progress=False)
        elif way == "train":
            bs.prepare_qat(made, RECIPE)
    if way == "train":
        made(X.clone())
        with mode():
            bs.convert(made.eval())
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["quantize_", "calibrate", "train"])
def test_no_mode_shows_in_what_is_made(way: str, mode: str, tmp_path: Any) -> None:
    made = quantized(way, MODES[mode])
    for name, tensor in made.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            assert not tensor.is_inference(), name
            assert tensor.device.type == "cpu", name
    plain = quantized(way, torch.enable_grad)
    assert torch.equal(made(X), plain(X))
    x = X.clone().requires_grad_()
    made(x).square().sum().backward()
    assert x.grad is not None and x.grad.count_nonzero() > 0
    assert made[0].bias.grad is not None
    made.load_state_dict(copy.deepcopy(made.state_dict()))
    bs.save(made, tmp_path / "m")
    for load_mode in MODES.values():
        fresh = model()
        with load_mode():
            bs.load(fresh, tmp_path / "m")
        assert torch.equal(fresh(X), plain(X))
        assert not any(b.is_inference() or b.is_meta for b in fresh.buffers())


def test_a_model_that_was_made_in_inference_mode(tmp_path: Any) -> None:
    with torch.inference_mode():
        made, other = model(), model()
        bs.quantize_(made, "int8")
        bs.save(made, tmp_path / "m")
        bs.load(other, tmp_path / "m")
        assert torch.equal(other(X), made(X))
    third = model()
    bs.quantize_(third, "int8")
    with torch.no_grad():
        assert torch.equal(third(X), made(X))


def test_the_first_call_may_be_in_inference_mode() -> None:
    """What is kept between calls must not be a tensor that training cannot use."""
    for fmt in ("nf4:group8:fp32", "book(-1,0.5,2):group16:fp32", "log4f1:channel0:fp32"):
        made = model()
        with torch.inference_mode():
            bs.quantize_(made, bs.Recipe(fmt, input=fmt.replace("channel0", "token")))
            made(X)
        made(X.clone().requires_grad_()).sum().backward()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr"])
def test_sparse_tensors(kind: str, tmp_path: Any) -> None:
    x = torch.eye(4, 32).to_sparse(layout=getattr(torch, kind))
    told = f"expected a dense tensor, found a {kind} tensor of shape (4, 32): pass x.to_dense()"
    for call in (bs.quantize, bs.fake_quantize, bs.choose_qparams):
        with pytest.raises(TypeError, match=f"^{re.escape(told)}$"):
            call(x, "int8")
    made = model()
    bs.quantize_(made, bs.Recipe("int8", input="int8_token"))
    with pytest.raises(TypeError, match=f"^{re.escape(f'blockscale::linear: {told}')}$"):
        made(x)
    made.register_buffer("mask", x)
    with pytest.raises(ValueError, match=rf"^mask is sparse \({kind}\): a file holds dense tens"):
        bs.save(made, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_other_tensors_and_models_where_a_tensor_is_wanted() -> None:
    parts = [torch.ones(4, 32), torch.ones(2, 32)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for given, told in (
        (nested, "a dense tensor, found a nested tensor of shape ('*', '*', '*'): pass each of its "
                 "parts, x.unbind()"),
        (model(), "a tensor, found a Sequential: a model is quantized in place by bs.quantize_("
                  "model, recipe)"),
        (model().state_dict(), "a tensor, found a OrderedDict: pass its tensors one at a time, or "
                               "load them into a model for bs.quantize_"),
        ([1.0], "a tensor, found a list: torch.as_tensor makes one"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"^{re.escape(f'expected {told}')}$"):
            bs.quantize(given, "int8")
