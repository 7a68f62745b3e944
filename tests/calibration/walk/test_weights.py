# SPDX-License-Identifier: BSD-3-Clause
"""What a block algorithm gives is checked before it is taken."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.session import Session
from blockscale.calibration.walk.resume import ResumeError
from blockscale.calibration.walk.weights import (
    Options,
    Stream,
    quantized_so_far,
    standing_in,
)
from blockscale.core.work import Progress
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import plan_layers
from tests.calibration.walk.networks import (
    CALLS,
    GROUPS,
    Decoder,
    Gram,
    Plain,
    decoder,
    ids,
    same_state,
)


class Wrong(Plain):
    """It gives codes of another format."""

    def quantize_block(self, task: Any) -> Any:
        made = super().quantize_block(task)
        name, plan = task.plans[0].name, task.plans[0]
        made[name] = bs.quantize(plan.parameter.detach(), "int8"), []
        return made


def test_codes_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a QTensor"):
        calibrate(decoder(2), ids(), GROUPS, weight=Wrong(), progress=False)


PLAIN = "plain rounding: it is in no block that plain processes"


def test_notes_and_details_are_told() -> None:
    with pytest.warns(UserWarning, match=r"noted of layers\.1\.feed\.up"):
        ledger = calibrate(decoder(2), ids(), GROUPS, weight=Plain(notes=True), progress=False)
    assert ledger["layers.0.feed.up"].details == "weight by plain"
    assert ledger["head"].details == PLAIN


class Counted(Progress):
    """How many units there are, and how many were told."""

    def __init__(self) -> None:
        self.total, self.told = 0, 0

    def start(self, total: int | None, done: int = 0) -> None:
        assert total is not None
        self.total = total

    def advance(self, name: str = "", amount: int = 1) -> None:
        self.told += amount


class Stepping(Plain):
    """It says that it takes five steps for a block, and tells of others."""

    steps = 5

    def __init__(self, taken: int):
        super().__init__()
        self.taken = taken

    def quantize_block(self, task: Any) -> Any:
        for _ in range(self.taken):
            task.progress.advance()
        return super().quantize_block(task)


def told(algorithm: Any) -> Counted:
    heard = Counted()
    calibrate(decoder(2), ids(), GROUPS, weight=algorithm, progress=heard)
    return heard


@pytest.mark.parametrize("taken", [0, 5, 8])
def test_progress_counts_the_steps_of_a_block_algorithm(taken: int) -> None:
    heard, without = told(Stepping(taken)), told(Plain())
    assert heard.total == without.total + 2 * 5
    assert heard.told == without.told + 2 * 5


def test_the_seed_is_handed_on() -> None:
    for given, expected in ((None, 0), (0, 0), (7, 7)):
        plain = Plain()
        calibrate(decoder(2), ids(), GROUPS, weight=plain, progress=False, seed=given)
        assert [task["seed"] for task in plain.tasks] == [expected] * 2


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    def run(seed: int | None) -> None:
        plain = Plain()
        calibrate(
            decoder(2), ids(), GROUPS, weight=plain, progress=False, seed=seed, resume=tmp_path
        )

    run(None)
    run(0)
    with pytest.raises(ResumeError):
        run(1)


# Blocks that are built when they are done: parameters of no layer as well.


class Block(nn.Module):
    """A layer, and a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.matrix = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) @ self.matrix


def test_matrices_of_no_layer_are_quantized_too() -> None:
    torch.manual_seed(0)
    loaded = nn.Sequential(*(Block() for _ in range(3)))
    state = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(3)))
    batches = [torch.randn(4, 16)]
    recipe = bs.Recipe("int4:group8:fp32", rules={"*.matrix": "int8_channel"})
    calibrate(loaded, batches, recipe, weight=Gram(), progress=False)
    calibrate(model, batches, recipe, weight=Gram(), progress=False, source=state)
    assert same_state(loaded, model)
    assert "0.matrix.codes" in model.state_dict()
    assert torch.equal(loaded(batches[0]), model(batches[0]))


# Weights that are read one block at a time.


def on_meta(blocks: int) -> Decoder:
    with torch.device("meta"):
        model = Decoder(blocks).eval()
    CALLS.clear()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"weight": "gptq"}, marks=pytest.mark.slow),
        {"weight": Plain(), "transform": "awq"},
        {"weight": Gram(), "sequential": False},
    ],
)
def test_streamed_is_what_loaded_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    loaded, streamed = decoder(3), on_meta(3)
    save_file(loaded.state_dict(), tmp_path / "model.safetensors")
    recipe = bs.Recipe(GROUPS, "int8")
    told = calibrate(loaded, ids(), recipe, **options, progress=False)
    ledger = calibrate(streamed, ids(), recipe, **options, progress=False, source=tmp_path)
    assert same_state(loaded, streamed)
    assert [vars(entry) for entry in ledger] == [vars(entry) for entry in told]
    assert torch.equal(loaded(ids()[0]), streamed(ids()[0]))
    assert not any(module.training for module in streamed.modules())


@pytest.mark.slow
def test_a_model_of_32_blocks_holds_the_floats_of_one() -> None:
    state, model = decoder(32).state_dict(), on_meta(32)
    most, alive = 0, {name: p for name, p in model.named_parameters() if ".up." in name}

    def read(name: str) -> Tensor:
        nonlocal most
        most = max(most, sum(not p.is_meta for p in alive.values() if p.ndim > 1))
        return state[name]

    recipe = bs.Recipe(GROUPS, skip=["head", "table"])
    calibrate(model, ids(), recipe, weight=Gram(), progress=False, source=read)
    assert most == 1
    assert max(CALLS.values()) <= 3 * 3
    assert len(CALLS) == 32
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()])


def test_whatever_is_raised_the_model_is_on_the_meta_device_again() -> None:
    state, model = decoder(3).state_dict(), on_meta(3)

    def read(name: str) -> Tensor:
        if name.startswith("layers.2"):
            raise KeyboardInterrupt
        return state[name]

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, ids(), GROUPS, weight=Gram(), progress=False, source=read)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(type(module).__name__[0] != "Q" for module in model.modules())


def test_what_a_source_lacks_is_named(tmp_path: Path) -> None:
    state = decoder(2).state_dict()
    del state["layers.1.norm.bias"]
    with pytest.raises(ValueError, match=r"the source has no 'layers\.1\.norm\.bias'"):
        calibrate(on_meta(2), ids(), GROUPS, weight=Gram(), progress=False, source=state)
    state = decoder(2).state_dict() | {"norm.weight": torch.ones(3)}
    with pytest.raises(ValueError, match=r"norm\.weight: expected \(16,\), the source has \(3,\)"):
        calibrate(on_meta(2), ids(), GROUPS, weight=Gram(), progress=False, source=state)
    with pytest.raises(ValueError, match="holds no safetensors files"):
        Stream(on_meta(2), tmp_path)


# How to walk.


def test_by_default_nothing_is_streamed_or_resumed() -> None:
    options = Options("layers", 1.0, Progress())
    assert (options.settler, options.finished_blocks) == (None, None)


# Layers that stand in for a while.


def test_they_stand_in_and_go() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    session = Session(
        model, plan_layers(model, bs.Recipe("int8", "int8:token:fp32")), None, strict=False
    )
    x, float_layer = torch.randn(3, 8), model[0]
    made = quantized_so_far(session, session.layers, inputs=True)
    with standing_in(model, made):
        assert isinstance(model[0], QLayer)
        with_inputs = model(x)
    assert model[0] is float_layer
    plain = nn.Sequential(float_layer)
    bs.quantize_(plain, bs.Recipe("int8", "int8:token:fp32"))
    assert torch.equal(with_inputs, plain(x))
    assert quantized_so_far(session, session.layers, inputs=False) == {}  # no codes are chosen yet
    with pytest.raises(KeyboardInterrupt), standing_in(model, made):
        raise KeyboardInterrupt
    assert model[0] is float_layer
