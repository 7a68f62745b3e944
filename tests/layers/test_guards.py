# SPDX-License-Identifier: BSD-3-Clause
"""Everything that is no model is refused with what to do instead, and no mode of torch shows in
what is made.
"""

import copy
import gc
import re
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.guards import check_model

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
        "'mxfp4': that is a format, and the model must come first: bs.quantize_(model, 'mxfp4')",
    ),
    (
        __file__,
        f"{__file__!r}: the model must come first: build it, then bs.load(model, {__file__!r})",
    ),
    ("/", "'/': a directory goes to bs.quantize_directory('/', out, recipe), or load it first"),
    (3, "an int: pass the nn.Module that holds the layers"),
]


@pytest.mark.parametrize("called", CALLS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_model(called: str) -> None:
    script = (
        "a TorchScript program (TopLevelTracedModule): its layers are compiled and cannot be "
        "replaced: quantize the Python model that it was made from, then use torch.export or "
        "torch.compile"
    )
    for given, told in [*GIVEN, (scripted(), script)]:
        expected = re.escape(f"{called}: expected a model (an nn.Module), found {told}")
        with pytest.raises(TypeError, match=f"^{expected}$"):
            CALLS[called](given)


@pytest.mark.parametrize("faster", ["yes", "", 1, None])
def test_faster_is_true_or_false(faster: Any) -> None:
    made = nn.Sequential(nn.Linear(32, 16))
    told = f"bs.quantize_: faster must be True or False, got {faster!r}"
    with pytest.raises(TypeError, match=f"^{re.escape(told)}$"):
        bs.quantize_(made, "int8", faster=faster)
    assert type(made[0]) is nn.Linear


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


@pytest.mark.some(2)
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
        (model().state_dict(), "a tensor, found an OrderedDict: pass its tensors one at a time, or "
                               "load them into a model for bs.quantize_"),
        ([1.0], "a tensor, found a list: convert it with torch.as_tensor"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"^{re.escape(f'expected {told}')}$"):
            bs.quantize(given, "int8")


# An optimizer that steps what is not in the model any more gets one warning, all others none.


def saved(tmp: Any) -> Any:
    other = model()
    bs.quantize_(other, "int8")
    bs.save(other, tmp / "m")
    return tmp / "m"


def converted(made: nn.Module) -> None:
    bs.prepare_qat(made, "int8")
    bs.convert(made)


WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "bs.quantize_": lambda made, _: bs.quantize_(made, "int8"),
    "bs.calibrate": lambda made, _: bs.calibrate(made, [X], "int8", progress=False),
    "bs.load": lambda made, tmp: bs.load(made, saved(tmp)),
    "bs.convert": lambda made, _: converted(made),
}


@pytest.fixture
def every_other_warning_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def steps(optimizer: torch.optim.Optimizer, made: nn.Module) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        made(X).sum().backward()
        optimizer.step()


@pytest.mark.usefixtures("every_other_warning_is_an_error")
@pytest.mark.parametrize("called", WAYS)
def test_one_warning(called: str, tmp_path: Any) -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    adam = torch.optim.AdamW(made[2].parameters())
    WAYS[called](made, tmp_path)
    told = (
        f"blockscale: this SGD was made before {called}: 2 of its 4 parameters are not in the "
        "model any more ('0.weight' is one), so its steps change nothing. Make the optimizer "
        "afterwards, from model.parameters() or the parameters of an adapter; to train the "
        "weights themselves, bs.prepare_qat keeps them"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$") as seen:
        steps(optimizer, made)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    steps(optimizer, made)  # none any more
    with pytest.warns(UserWarning, match="this AdamW was made before .*: 1 of its 2 parameters"):
        steps(adam, made)
    steps(torch.optim.SGD(made.parameters(), lr=0.1), made)


@pytest.mark.usefixtures("every_other_warning_is_an_error")
def test_parameters_of_no_layer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(32, 32))
            self.scale = nn.Parameter(torch.ones(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.q * self.scale

    made = Own()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    with pytest.warns(UserWarning, match=r"1 of its 2 parameters are .*\('q' is one\)"):
        steps(optimizer, made)


@pytest.mark.usefixtures("every_other_warning_is_an_error")
def test_others_are_left_in_peace() -> None:
    made, other = model(), model()
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    after = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    prepared = model()
    early = torch.optim.SGD(prepared.parameters(), lr=0.1)
    bs.prepare_qat(prepared, "int8")
    kept = made[0]  # somebody goes on with the float layer
    float_layer = torch.optim.SGD(kept.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    steps(unrelated, other)
    after.step()
    steps(early, prepared)
    steps(float_layer, kept)


@pytest.mark.usefixtures("every_other_warning_is_an_error")
def test_what_raised_replaced_nothing() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="does not run on the sample"):
        bs.quantize_(made, "int8", sample=(torch.ones(3, 5),))
    with pytest.raises(bs.SkippedError):
        bs.quantize_(made, bs.Recipe("int8", skip=["nothing"]), strict=True)
    steps(optimizer, made)


@pytest.mark.slow
@pytest.mark.usefixtures("every_other_warning_is_an_error")
def test_dead_weights_are_not_kept_alive() -> None:
    from blockscale.layers import guards as optimizers

    gc.collect()
    before = len(optimizers._replaced)
    made = model()
    bs.quantize_(made, "int8")
    gc.collect()
    assert len(optimizers._replaced) == before


@pytest.mark.usefixtures("every_other_warning_is_an_error")
def test_a_copy_is_another_model() -> None:
    made = model()
    other = copy.deepcopy(made)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    steps(optimizer, other)


@pytest.mark.usefixtures("every_other_warning_is_an_error")
@pytest.mark.slow
def test_a_compiled_step_traces_nothing_of_it() -> None:
    made = model()
    bs.quantize_(made, "int8")
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = torch.compile(optimizer.step, backend="eager")  # torch's own step breaks the graph
        made(X).sum().backward()
        before = made[0].bias.detach().clone()
        step()
    assert not torch.equal(made[0].bias, before)
