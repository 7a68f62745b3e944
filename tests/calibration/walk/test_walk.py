# SPDX-License-Identifier: BSD-3-Clause
"""The walk: how often blocks run, that nothing else is chosen than in whole passes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.core.work import Progress
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
from tests.support.walk import quietly


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"weight": Gram()}, 2),
        ({"weight": Gram(), "transform": "smoothquant"}, 3),
        ({"weight": Plain(needs_gram=False)}, 2),
        ({"weight": Plain()}, 3),
        ({"weight": Gram(), "transform": "hadamard", "sequential": False}, 2),
    ],
)
def test_a_block_runs_at_most_three_times(options: dict[str, Any], most: int) -> None:
    """32 blocks; the first one once more, for one batch, to see that it gives the same again."""
    model, batches = decoder(32), ids(4)
    algorithm = options["weight"]
    own = len(batches) if isinstance(algorithm, Plain) else 0  # by the algorithm itself
    quietly(model, batches, bs.Recipe(GROUPS, skip=["head", "table"]), **options)
    more = int(most < 3)
    last = len(batches) * (options.get("sequential") is not False)  # nobody needs what it gives
    counts = [CALLS[str(i)] - own for i in range(32)]
    assert counts == [most * 4 + more, *[most * 4] * 30, most * 4 - last]
    assert sum(counts) <= 3 * 32 * len(batches)


@pytest.mark.slow
def test_layer_by_layer_inside_blocks_is_what_whole_passes_choose() -> None:
    walked, whole = decoder(3), decoder(3)
    quietly(walked, ids(), GROUPS, weight="gptq", sequential="layers")
    assert CALLS["0"] == 3 * 3 + 1  # attention, feed, quantized; one to compare
    quietly(whole, ids(), GROUPS, weight="gptq", blocks=False)
    assert same_state(walked, whole)


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("transform", [None, "smoothquant", "awq", "hadamard"])
@pytest.mark.parametrize("weight", [None, "mse:gram", pytest.param("gptq", marks=pytest.mark.slow)])
def test_out_of_sequence_the_codes_are_those_of_whole_passes(
    weight: str | None, transform: str | None
) -> None:
    recipe = bs.Recipe(GROUPS, "int8", "int8:channel-1:fp32")
    options = {"weight": weight, "transform": transform, "sequential": False}
    walked, whole = decoder(3), decoder(3)
    quietly(walked, ids(), recipe, **options, budget=1 if transform is None else 2e9)
    quietly(whole, ids(), recipe, **options, blocks=False)
    assert same_state(walked, whole)


def test_later_blocks_see_what_quantized_ones_leave() -> None:
    model, plain = decoder(3), Plain()
    exact, batches = copy.deepcopy(model), ids()
    quietly(model, batches, bs.Recipe(GROUPS, skip=["head", "table"]), weight=plain)
    assert [task["name"] for task in plain.tasks] == ["layers.0", "layers.1", "layers.2"]
    inputs: list[list[Tensor]] = [[], [], []]
    targets: list[list[Tensor]] = [[], [], []]
    with torch.no_grad():
        for batch in batches:
            for i, block in enumerate(model.layers):
                block.register_forward_pre_hook(lambda m, a, i=i: inputs[i].append(a[0]))
            model(batch)
            for block in model.layers:
                block._forward_pre_hooks.clear()
            for i, block in enumerate(exact.layers):
                block.register_forward_hook(lambda m, a, y, i=i: targets[i].append(y[0]))
            exact(batch)
            for block in exact.layers:
                block._forward_hooks.clear()
    for i, task in enumerate(plain.tasks):
        assert all(torch.equal(a, b) for a, b in zip(task["inputs"], inputs[i], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(task["targets"], targets[i], strict=True))
        assert sorted(task["grams"]) == sorted(task["plans"])
        x = torch.cat([exact.layers[i].norm(x).flatten(0, 1) for x in inputs[i]]).double()
        gram = task["grams"][f"layers.{i}.attention.q"]
        torch.testing.assert_close(gram, x.T @ x / len(x), rtol=1e-5, atol=1e-6)
    assert plain.tasks[0]["plans"][:4] == [f"layers.0.attention.{c}" for c in "qkvo"]


def test_out_of_sequence_blocks_see_the_float_model() -> None:
    model, plain = decoder(2), Plain()
    quietly(model, ids(), GROUPS, weight=plain, sequential=False)
    for task in plain.tasks:
        assert all(torch.equal(a, b) for a, b in zip(task["gave"], task["targets"], strict=True))


@pytest.mark.slow
def test_batches_that_can_be_read_once_will_do() -> None:
    one, other = decoder(2), decoder(2)
    quietly(one, iter(ids()), GROUPS, weight="gptq")
    quietly(other, ids(), GROUPS, weight="gptq")
    assert same_state(one, other)


class Stateful(Decoder):
    """Its blocks read what the model sets for each batch."""

    def forward(self, ids: Tensor) -> Tensor:
        for layer in self.layers:
            layer.norm.bias.data.fill_(float(ids[0, 0]))
        return super().forward(ids)


class Dense(Decoder):
    """Its last block is given what the first one gave."""

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.table(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x)[0]
            first = x * 2 if i == 0 else first
        return self.head(self.layers[-1].feed(x) + first)


class Skipping(Decoder):
    """Every block is given the sum of what all before it gave."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.head(x)


class Twice(Decoder):
    """It runs its blocks twice."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in [*self.layers, *self.layers]:
            x = layer(x)[0]
        return self.head(x)


class Either(Decoder):
    """Batches go through different blocks."""

    def forward(self, ids: Tensor) -> Tensor:
        odd = int(ids[0, 0]) % 2
        return self.head(self.layers[odd](self.table(ids))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Stateful, "gives another result when called again"),
        (Twice, "layers.0 is called more than once"),
        (Either, "the batches do not all go through the same blocks"),
        (Skipping, "layers.2 reads more than the output of the block before"),
    ],
)
def test_what_cannot_be_walked_goes_the_other_way_and_says_so(kind: Any, why: str) -> None:
    walked, whole = decoder(3, kind), decoder(3, kind)
    batches = [torch.full((2, 4), i) for i in (3, 8, 5)]
    ledger = quietly(walked, batches, GROUPS, weight="gptq")
    quietly(whole, batches, GROUPS, weight="gptq", blocks=False)
    assert same_state(walked, whole)
    told = [
        entry.details
        for entry in ledger.quantized
        if "cannot be calibrated block by block" in entry.details
    ]
    assert len(told) == 1
    assert why in told[0]


def test_ctrl_c_leaves_the_model_as_it_was() -> None:
    class Impatient(Progress):
        left = 15

        def advance(self) -> None:  # type: ignore[override]
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    model = decoder(4)
    modules = [(name, type(module), module) for name, module in model.named_modules()]
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, ids(), GROUPS, weight="gptq", progress=Impatient())
    after = [(name, type(module), module) for name, module in model.named_modules()]
    assert all(a[:2] == b[:2] and a[2] is b[2] for a, b in zip(modules, after, strict=True))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.slow
def test_progress_adds_up() -> None:
    class Counting(Progress):
        total, done = 0, 0

        def start(self, total: int | None, done: int = 0) -> None:
            self.total = total or 0

        def advance(self) -> None:  # type: ignore[override]
            self.done += 1

    for options in ({"weight": "gptq"}, {"weight": "gptq", "transform": "awq"}):
        told = Counting()
        quietly(decoder(4), ids(), GROUPS, **options, progress=told)
        assert told.done == told.total > 0


def test_an_algorithm_that_gives_too_little_is_named() -> None:
    class Short(Plain):
        def quantize_block(self, task: Any) -> Any:
            made = super().quantize_block(task)
            made.popitem()
            return made

    with pytest.raises(ValueError, match=r"plain returned no weight for layers.0.feed.down"):
        quietly(decoder(2), ids(), GROUPS, weight=Short())
