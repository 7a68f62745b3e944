# SPDX-License-Identifier: BSD-3-Clause
"""One layer from its plan."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

import blockscale as bs
from blockscale.layers.assembly import Supplied, build
from blockscale.layers.held_parameters import hold
from blockscale.layers.layer import QLayer
from blockscale.layers.model import (
    folded_norms,
    folded_places,
    inner_model,
    stands_for_norm,
    swap,
    tell_names,
    without_wrappers,
)
from blockscale.layers.plan import plan_layers
from blockscale.layers.store import QWeight


def test_a_built_layer_is_what_quantize_puts_in() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4))
    plan = plan_layers(model, bs.Recipe("int8"))[0]
    weights = {}
    layer, entry = build(plan, weights, Supplied(), None)
    ledger = bs.quantize_(model, "int8")
    assert vars(entry) == vars(ledger["0"])
    assert list(weights) == [id(plan.parameter)]
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), model(x))


# Modules are exchanged all or none.


def test_all_or_none() -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.ReLU()})
    first, second = model["a"][0], model["b"]
    new = {"a.0": nn.Tanh(), "b": nn.Identity()}
    assert swap(model, new) == {"a.0": first, "b": second}
    assert (model["a"][0], model["b"]) == (new["a.0"], new["b"])
    with pytest.raises(TypeError):
        swap(model, {"a.0": first, "b": 3})  # type: ignore[dict-item]
    assert (model["a"][0], model["b"]) == (new["a.0"], new["b"])
    with pytest.raises(AttributeError):
        swap(model, {"a.0": first, "gone": second})
    assert model["a"][0] is new["a.0"]


# Errors say which weight they are about, however the model came to be quantized.


def net() -> nn.Module:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2)
    parts = {"a": nn.Linear(8, 8), "conv": nn.Conv1d(2, 2, 3), "attention": attention}
    return nn.ModuleDict(parts)


def calibrated(tmp_path) -> nn.Module:
    del tmp_path
    model = nn.Sequential(net()["a"])
    bs.calibrate(model, [torch.randn(3, 8)], bs.Recipe("int8", bias="int8"), progress=False)
    return nn.ModuleDict({"a": model[0], "b": net()})


def quantized(tmp_path) -> nn.Module:
    del tmp_path
    model = net()
    bs.quantize_(model, bs.Recipe("int8", bias="int8"))
    return model


def loaded(tmp_path) -> nn.Module:
    bs.save(quantized(tmp_path), tmp_path / "m")
    return bs.load(net(), tmp_path / "m")


def trained(tmp_path) -> nn.Module:
    del tmp_path
    return bs.convert(bs.prepare_qat(net(), bs.Recipe("int8", bias="int8")))


@pytest.mark.filterwarnings("ignore:blockscale")
@pytest.mark.parametrize("made", [quantized, loaded, trained])
def test_weights_and_biases(made, tmp_path) -> None:
    model = made(tmp_path)
    for name in ("a", "conv"):
        layer = model[name]
        for attribute in ("weight", "bias"):
            with pytest.raises(RuntimeError, match=rf"fill_ writes to {name}\.{attribute}, which"):
                getattr(layer, attribute).fill_(0)
    held = copy.deepcopy(model)["attention"]
    weight = QWeight.quantize(held.in_proj_weight, bs.parse("int8"))
    hold(held, "in_proj_weight", weight)
    tell_names(nn.ModuleDict({"attention": held}))
    with pytest.raises(RuntimeError, match=r"zero_ writes to attention\.in_proj_weight"):
        held.in_proj_weight.zero_()


def test_a_name_stays(tmp_path) -> None:
    model = calibrated(tmp_path)
    with pytest.raises(RuntimeError, match=r"writes to 0\.weight"):
        model["a"].weight.zero_()


# Wrappers: what is in them is quantized, saved and loaded by the plain model's names.

Wrap = Callable[[nn.Module], nn.Module]


class _FabricModule(nn.Module):
    """As Lightning Fabric's: the model twice, once as its strategy runs it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._forward_module, self._original_module = nn.DataParallel(model), model

    def forward(self, x: Tensor) -> Tensor:
        return self._forward_module(x)


_FabricModule.__module__ = "lightning.fabric.wrappers"


def compiled(model: nn.Module) -> nn.Module:
    made: nn.Module = torch.compile(model, backend="eager")
    return made


WRAPS: dict[str, Wrap] = {
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "averaged": AveragedModel,
    "checkpointed": checkpoint_wrapper,
    "fabric": _FabricModule,
    "compiled and parallel": lambda model: compiled(nn.DataParallel(model)),
}
RECIPE = bs.Recipe("mxfp4", "int8", rules={"0.0": {"weight": "int8", "input": "int8"}}, skip=["2"])
X = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def wrapped_net() -> nn.Sequential:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(first, nn.Linear(32, 32), nn.Linear(32, 8)).eval()


def inside(wrap: Wrap) -> nn.Sequential:
    """Wrappers around a block and around layers by themselves, of which one stays float."""
    model = wrapped_net()
    model[0], model[1], model[2] = wrap(model[0]), wrap(model[1]), wrap(model[2])
    return model


@pytest.fixture(params=[f"{where} {name}" for where in ("around", "inside") for name in WRAPS])
def wrapped(request) -> nn.Module:
    """The wrapped float model."""
    where, _, name = request.param.partition(" ")
    return WRAPS[name](wrapped_net()) if where == "around" else inside(WRAPS[name])


def children(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


def plain_quantized() -> nn.Module:
    model = wrapped_net()
    bs.quantize_(model, RECIPE)
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_quantize(wrapped: nn.Module) -> None:
    y = wrapped(X)  # so that what is compiled knows the float layers
    like, kinds = wrapped_net(), children(wrapped)
    assert torch.equal(y, like(X))
    told = bs.quantize_(like, RECIPE)
    assert bs.quantize_(wrapped, RECIPE).entries == told.entries  # plain names, in one recipe
    assert torch.equal(wrapped(X), like(X))
    assert not torch.equal(wrapped(X), y)
    assert [k for k in children(wrapped) if not k.startswith(("Q", "Linear"))] == [
        k for k in kinds if k != "Linear"
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_calibrate_and_compare(wrapped: nn.Module) -> None:
    like, before = wrapped_net(), copy.deepcopy(wrapped_net())
    told = bs.calibrate(like, [X], RECIPE, progress=False)
    assert bs.calibrate(wrapped, [X], RECIPE, progress=False).entries == told.entries
    assert torch.equal(wrapped(X), like(X))
    expected = bs.compare(before, like, [X])
    assert repr(bs.compare(nn.DataParallel(before), wrapped, [X])) == repr(expected)


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_save_and_load(wrapped: nn.Module, tmp_path) -> None:
    like = plain_quantized()
    bs.save(like, tmp_path / "plain")
    assert bs.load(wrapped, tmp_path / "plain") is wrapped
    assert torch.equal(wrapped(X), like(X))
    bs.save(wrapped, tmp_path / "wrapped")
    assert torch.equal(bs.load(wrapped_net(), tmp_path / "wrapped")(X), like(X))
    with without_wrappers(wrapped) as plain:
        names = {name for name, _ in plain.named_modules()}
        assert names == {name for name, _ in like.named_modules()}
    with pytest.raises(bs.FileError, match=r"^0\.0 of this model is quantized already"):
        bs.load(wrapped, tmp_path / "plain")


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_training(wrapped: nn.Module) -> None:
    like, recipe = wrapped_net(), bs.Recipe("mxfp4", "int8_token", skip=["2"])
    for model in (like, wrapped):
        bs.prepare_qat(model, recipe)
        with pytest.raises(ValueError, match=r"^0\.0 of this model is prepared for training"):
            bs.save(model, "never")
        bs.convert(model)
    assert bs.qat.ledger(wrapped).entries == bs.qat.ledger(like).entries
    with torch.no_grad():
        assert torch.equal(wrapped(X), like(X))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_an_error_leaves_the_wrappers(wrapped: nn.Module, tmp_path) -> None:
    modules = [id(module) for module in wrapped.modules()]
    bs.save(nn.Sequential(nn.Linear(3, 3)), tmp_path / "other")
    with pytest.raises(bs.FileError):
        bs.load(wrapped, tmp_path / "other")
    with pytest.raises(ValueError, match="static scale"):
        bs.quantize_(wrapped, bs.Recipe("int8", "mxfp8"), input_scales={"1": torch.ones(1, 1)})
    assert [id(module) for module in wrapped.modules()] == modules


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_what_is_in_a_wrapper_by_itself() -> None:
    """A layer cannot be replaced where no module has it."""
    for wrap in WRAPS.values():
        with pytest.raises(ValueError, match="the model is itself a Linear"):
            bs.quantize_(wrap(nn.Linear(3, 3)), "int8")
    assert inner_model(compiled(nn.DataParallel(model := wrapped_net()))) is model
    assert inner_model(model) is model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_a_shared_wrapper_and_one_that_is_compiled_in_place() -> None:
    layer = compiled(nn.Linear(32, 32))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = torch.randn(2, 32)
    like = nn.Sequential(inner_model(layer), nn.ReLU(), inner_model(layer))
    like = copy.deepcopy(like)
    bs.quantize_(like, "int8")
    bs.quantize_(model, "int8")
    assert model[0] is model[2] is layer
    assert isinstance(inner_model(layer), QLayer)
    assert torch.equal(model(x), like(x))
    model = wrapped_net()
    model.compile(backend="eager")  # no wrapper
    bs.quantize_(model, RECIPE)
    assert torch.equal(model(X), plain_quantized()(X))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_flat_parameters_are_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    FullyShardedDataParallel.__module__ = "torch.distributed.fsdp.fully_sharded_data_parallel"
    for model in (
        FullyShardedDataParallel(wrapped_net()),
        nn.Sequential(FullyShardedDataParallel(wrapped_net())),
    ):
        with pytest.raises(ValueError, match="one flat tensor: gather its state"):
            bs.quantize_(model, "int8")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("_fresh")
def test_distributed(tmp_path) -> None:
    """DistributedDataParallel, in a group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(wrapped_net())
        bs.quantize_(model, RECIPE)
        bs.save(model, tmp_path / "m")
        with torch.no_grad():
            assert torch.equal(model(X), plain_quantized()(X))
        assert torch.equal(bs.load(wrapped_net(), tmp_path / "m")(X), plain_quantized()(X))
        float_model = nn.parallel.DistributedDataParallel(wrapped_net())
        assert torch.equal(bs.load(float_model, tmp_path / "m").module(X), plain_quantized()(X))
    finally:
        torch.distributed.destroy_process_group()


# A convolution remembers what stands where its batch norm was, whatever its name is then.


def pair() -> tuple[nn.Sequential, nn.Identity]:
    model, place = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Identity()), nn.Identity()
    bs.quantize_(model, "int8_channel")
    model[1] = place
    stands_for_norm(place, model[0])
    return model, place


def test_names_are_those_of_the_model_at_hand() -> None:
    model, place = pair()
    assert folded_norms(model) == {"1": "0"}
    assert folded_places(model[0]) == (place,)
    assert folded_norms(nn.ModuleDict({"a": model, "b": nn.ReLU()})) == {"a.1": "a.0"}
    other = copy.deepcopy(model)
    assert folded_norms(other) == {"1": "0"}
    assert folded_places(other[0]) == (other[1],)
    both = nn.ModuleDict({"x": model, "y": model})  # one model under two names
    assert folded_norms(both) == {"x.1": "x.0", "y.1": "x.0"}


def test_it_is_no_child() -> None:
    model, _ = pair()
    assert "_folded_norms" not in dict(model[0].named_modules())
    assert list(model.state_dict()) == list(pair()[0].state_dict())
    assert torch.equal(model(x := torch.ones(1, 2, 5)), model[0](x))


def test_what_was_replaced_is_forgotten() -> None:
    model, _ = pair()
    model[1] = nn.BatchNorm1d(4)
    assert folded_norms(model) == {}
    assert folded_norms(nn.Sequential(nn.Identity())) == {}
