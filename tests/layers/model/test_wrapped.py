# SPDX-License-Identifier: BSD-3-Clause
"""Wrappers: what is in them is quantized, saved and loaded by the plain model's names."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

import blockscale as bs
from blockscale.layers.layer import QLayer
from blockscale.layers.model.wrapped import inner_model, unwrapped

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

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


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(first, nn.Linear(32, 32), nn.Linear(32, 8)).eval()


def inside(wrap: Wrap) -> nn.Sequential:
    """Wrappers around a block and around layers by themselves, of which one stays float."""
    model = net()
    model[0], model[1], model[2] = wrap(model[0]), wrap(model[1]), wrap(model[2])
    return model


@pytest.fixture(params=[f"{where} {name}" for where in ("around", "inside") for name in WRAPS])
def wrapped(request) -> nn.Module:
    """The wrapped float model."""
    where, _, name = request.param.partition(" ")
    return WRAPS[name](net()) if where == "around" else inside(WRAPS[name])


def children(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


def plain_quantized() -> nn.Module:
    model = net()
    bs.quantize_(model, RECIPE)
    return model


def test_quantize(wrapped: nn.Module) -> None:
    y = wrapped(X)  # so that what is compiled knows the float layers
    like, kinds = net(), children(wrapped)
    assert torch.equal(y, like(X))
    told = bs.quantize_(like, RECIPE)
    assert bs.quantize_(wrapped, RECIPE).entries == told.entries  # plain names, in one recipe
    assert torch.equal(wrapped(X), like(X))
    assert not torch.equal(wrapped(X), y)
    assert [k for k in children(wrapped) if not k.startswith(("Q", "Linear"))] == [
        k for k in kinds if k != "Linear"
    ]


def test_calibrate_and_compare(wrapped: nn.Module) -> None:
    like, before = net(), copy.deepcopy(net())
    told = bs.calibrate(like, [X], RECIPE, progress=False)
    assert bs.calibrate(wrapped, [X], RECIPE, progress=False).entries == told.entries
    assert torch.equal(wrapped(X), like(X))
    expected = bs.compare(before, like, [X])
    assert repr(bs.compare(nn.DataParallel(before), wrapped, [X])) == repr(expected)


def test_save_and_load(wrapped: nn.Module, tmp_path) -> None:
    like = plain_quantized()
    bs.save(like, tmp_path / "plain")
    assert bs.load(wrapped, tmp_path / "plain") is wrapped
    assert torch.equal(wrapped(X), like(X))
    bs.save(wrapped, tmp_path / "wrapped")
    assert torch.equal(bs.load(net(), tmp_path / "wrapped")(X), like(X))
    with unwrapped(wrapped) as plain:
        names = {name for name, _ in plain.named_modules()}
        assert names == {name for name, _ in like.named_modules()}
    with pytest.raises(bs.FileError, match=r"^0\.0 of this model is quantized already"):
        bs.load(wrapped, tmp_path / "plain")


def test_training(wrapped: nn.Module) -> None:
    like, recipe = net(), bs.Recipe("mxfp4", "int8_token", skip=["2"])
    for model in (like, wrapped):
        bs.prepare_qat(model, recipe)
        with pytest.raises(ValueError, match=r"^0\.0 of this model is prepared for training"):
            bs.save(model, "never")
        bs.convert(model)
    assert bs.qat.ledger(wrapped).entries == bs.qat.ledger(like).entries
    with torch.no_grad():
        assert torch.equal(wrapped(X), like(X))


def test_an_error_leaves_the_wrappers(wrapped: nn.Module, tmp_path) -> None:
    modules = [id(module) for module in wrapped.modules()]
    bs.save(nn.Sequential(nn.Linear(3, 3)), tmp_path / "other")
    with pytest.raises(bs.FileError):
        bs.load(wrapped, tmp_path / "other")
    with pytest.raises(ValueError, match="given scale"):
        bs.quantize_(wrapped, bs.Recipe("int8", "mxfp8"), input_scales={"1": torch.ones(1, 1)})
    assert [id(module) for module in wrapped.modules()] == modules


def test_what_is_in_a_wrapper_by_itself() -> None:
    """A layer cannot be replaced where no module has it."""
    for wrap in WRAPS.values():
        with pytest.raises(ValueError, match="the model is itself a Linear"):
            bs.quantize_(wrap(nn.Linear(3, 3)), "int8")
    assert inner_model(compiled(nn.DataParallel(model := net()))) is model
    assert inner_model(model) is model


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
    model = net()
    model.compile(backend="eager")  # no wrapper
    bs.quantize_(model, RECIPE)
    assert torch.equal(model(X), plain_quantized()(X))


def test_flat_parameters_are_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    FullyShardedDataParallel.__module__ = "torch.distributed.fsdp.fully_sharded_data_parallel"
    for model in (FullyShardedDataParallel(net()), nn.Sequential(FullyShardedDataParallel(net()))):
        with pytest.raises(ValueError, match="one flat tensor: gather its state"):
            bs.quantize_(model, "int8")


def test_distributed(tmp_path) -> None:
    """DistributedDataParallel, in a group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(net())
        bs.quantize_(model, RECIPE)
        bs.save(model, tmp_path / "m")
        with torch.no_grad():
            assert torch.equal(model(X), plain_quantized()(X))
        assert torch.equal(bs.load(net(), tmp_path / "m")(X), plain_quantized()(X))
        float_model = nn.parallel.DistributedDataParallel(net())
        assert torch.equal(bs.load(float_model, tmp_path / "m").module(X), plain_quantized()(X))
    finally:
        torch.distributed.destroy_process_group()
