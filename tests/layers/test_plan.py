# SPDX-License-Identifier: BSD-3-Clause
"""What is decided of each layer before anything is changed."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.parameters import plan_others
from blockscale.layers.plan import Exemption, Plan, plan_layers, shared_weights
from blockscale.layers.store import QWeight
from tests.support.layer_models import (
    quantized,
    small,
    unchanged,
)
from tests.support.layers_plan import Tied


def test_formats_that_are_not_applied_are_named() -> None:
    """A recipe for inputs alone does nothing so far: that must not look like success."""
    for recipe in (bs.Recipe(input="int8"), bs.Recipe(output="mxfp8")):
        with pytest.raises(bs.SkippedError):
            bs.quantize_(small(), recipe, strict=True)
        with pytest.warns(UserWarning, match="1: skipped"):
            bs.quantize_(small(), recipe)


def test_a_model_that_is_a_layer_or_quantized_already() -> None:
    for layer in (nn.Linear(4, 4), nn.Conv2d(4, 4, 1), quantized()[1]):
        with pytest.raises(ValueError, match="wrap it"):
            bs.quantize_(layer, "int8")
    model = quantized()
    before, again = unchanged(model), bs.quantize_(model, "mxfp4")
    assert unchanged(model) == before
    assert {again[n].reason for n in ("0", "1", "5", "8")} == {"already quantized"}
    stores = [m for m in model.modules() if isinstance(m, QWeight)]
    held = [*model.parameters(), *(t for store in stores for t in store.buffers())]
    assert again.bytes_after == again.bytes_before == sum(t.nbytes for t in held)


def test_a_plan_is_complete() -> None:
    model = Tied()
    recipe = bs.Recipe("int4:group4:fp32", input="int8", rules={"alone": "mxfp8"})
    table, head, alone = plan_layers(model, recipe)
    assert [type(each) for each in (table, head, alone)] == [Plan, Plan, Plan]
    assert table.parameter is head.parameter is model.table.weight
    assert (table.tied, head.tied, alone.tied) == (True, True, False)
    assert (table.owns_weight, head.owns_weight, alone.owns_weight) == (True, False, True)
    assert (table.bytes_beside, head.bytes_beside, alone.bytes_beside) == (0, 8 * 4, 0)
    assert alone.format == alone.scheme.weight == bs.parse("mxfp8")
    assert (table.features("input"), table.features("output")) == (4, 4)  # rows of the table
    assert (head.features("input"), head.features("output")) == (4, 8)
    with pytest.raises(AttributeError):
        head.tied = False


def test_what_is_left_says_why_and_keeps_its_parameters() -> None:
    [plan] = [p for p in plan_layers(Tied(), bs.Recipe("int8")) if p.name == "alone"]
    left = plan.exempt("skipped", "for a test")
    assert type(left) is Exemption
    assert (left.entry.status, left.entry.reason) == ("skipped", "for a test")
    assert (left.names, left.module, left.owned) == (plan.names, plan.module, plan.owned)
    assert plan.entry.status == "quantized"


def test_one_layer_under_two_names_that_a_recipe_tells_apart() -> None:
    layer = nn.Linear(4, 4)
    [left] = plan_layers(nn.Sequential(layer, layer), bs.Recipe("int8", skip=["1"]))
    assert left.names == ("0", "1")
    assert left.entry.reason == "0, 1 share one layer, and the recipe treats them differently"


def test_parameters_of_no_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model.register_parameter("free", nn.Parameter(torch.ones(32, 32)))
    model.register_parameter("kept", nn.Parameter(torch.ones(3, 3)))
    recipe = bs.Recipe("int8", skip=["kept"])
    entries = {e.name: e for e in plan_others(model, plan_layers(model, recipe), recipe)}
    assert list(entries) == ["free", "kept", "1.weight", "1.bias"]
    assert entries["free"].status == "skipped"
    assert "uses it directly" in entries["free"].reason
    assert (entries["kept"].status, entries["kept"].reason) == (
        "kept", "pattern 'kept' of the recipe"
    )  # fmt: skip
    assert entries["1.weight"].reason.startswith("a vector")
    assert (entries["free"].elements, entries["free"].bytes_before) == (1024, 4096)


def test_what_a_model_computes_by_itself_stays_in_float() -> None:
    """Its directory does not have it, so that both flows quantize the same."""
    model = Tied()
    model._keys_to_ignore_on_save = [r"^alone\.weight$"]
    told = {plan.name: plan for plan in plan_layers(model, bs.Recipe("int8"))}
    assert told["alone"].entry.status == "kept"
    assert "the model computes it" in told["alone"].entry.reason
    assert isinstance(told["table"], Plan)
    ruled = {p.name: p for p in plan_layers(model, bs.Recipe(rules={"alone": "int8"}))}
    assert isinstance(ruled["alone"], Plan)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    return nn.Sequential(*layers).eval()


IMAGES = torch.randn(2, 3, 8, 8)
ROWS = [
    ("int8:channel1:fp32", "height", "channel-1"),
    ("int8:channel-3:fp32", "height", "channel-1"),
    ("int8:channel2:fp32", "width", "channel-1"),
    ("int8:channel-2:fp32", "width", "channel-1"),
    ("int8:group2@1:fp32", "height", "group2"),
    ("int8:group2@-2:fp32", "width", "group2"),
]


@pytest.mark.parametrize("part", ["input", "output"])
@pytest.mark.parametrize(("fmt", "size", "instead"), ROWS)
def test_blocks_along_the_image(fmt: str, size: str, instead: str, part: str) -> None:
    words = (
        rf"^0: its {part} in {fmt} would have scales along the image's {size}, as a convolution's "
        rf"{part} is .* channels last, \[batch, height, width, channels\]: .* write {instead}, "
    )
    recipe = bs.Recipe("int8_channel", **{part: fmt})
    for method in (
        lambda model: bs.quantize_(model, recipe),
        lambda model: bs.calibrate(model, [IMAGES], recipe, progress=False),
        lambda model: bs.prepare_qat(model, recipe),
    ):
        model = net()
        before = unchanged(model)
        with pytest.raises(ValueError, match=words):
            method(model)
        assert unchanged(model) == before


def test_one_dimension() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3))
    for fmt in ("int8:channel1:fp32", "int8:channel-2:fp32"):
        with pytest.raises(
            ValueError, match=r"along the image's width.*\[batch, width, channels\]"
        ):
            bs.quantize_(model, bs.Recipe("int8", input=fmt))
    bs.quantize_(model, bs.Recipe("int8", input="int8:channel-1:fp32"))


@pytest.mark.parametrize(
    ("fmt", "size"), [("channel1", "depth"), ("channel2", "height"), ("channel-2", "width")]
)
@pytest.mark.parametrize("kind", [nn.Conv3d, nn.ConvTranspose3d])
def test_three_dimensions(kind: type[nn.Module], fmt: str, size: str) -> None:
    model = nn.Sequential(kind(3, 4, 3))
    words = rf"along the image's {size}, .*\[batch, depth, height, width, channels\]"
    with pytest.raises(ValueError, match=words):
        bs.quantize_(model, bs.Recipe("int8", input=f"int8:{fmt}:fp32"))
    bs.quantize_(model, bs.Recipe("int8", input="int8:channel4:fp32"))
    assert model(torch.randn(2, 3, 5, 5, 5)).shape[:2] == (2, 4)


@pytest.mark.parametrize(
    "fmt", ["int8:channel-1:fp32", "int8:channel3:fp32", "int8:channel0:fp32", "mxfp8", "int8"]
)
def test_what_means_channels_or_images(fmt: str) -> None:
    """The input is that of the float model, quantized with its channels last."""
    model = nn.Sequential(net()[0])
    bs.quantize_(model, bs.Recipe("int8_channel", input=fmt))
    x = bs.fake_quantize(IMAGES.movedim(1, -1), fmt).movedim(-1, 1)
    expected = nn.functional.conv2d(x, model[0].dequantize_weight(), net()[0].bias)
    torch.testing.assert_close(model(IMAGES), expected, rtol=1e-5, atol=1e-5)


def test_a_rule_for_the_layer_helps() -> None:
    """Other layers may have channels at 1, and weights are matrices."""
    rules = {"0": {"input": "int8:channel-1:fp32"}}
    recipe = bs.Recipe("int8:channel1:fp32", input="int8:channel1:fp32", rules=rules)
    model = net()
    bs.quantize_(model, recipe)
    assert str(model[3].input.format) == "int8:channel1:fp32"
    assert model(IMAGES).shape == (2, 5)


@pytest.mark.parametrize(
    ("recipe", "statuses", "told"),
    [
        (bs.Recipe("int8"), ["quantized"] * 3, ""),
        (
            bs.Recipe("int8", rules={"head": "int4"}),
            ["skipped", "skipped", "quantized"],
            "its weight is tied to head, which cannot share its codes",
        ),
        (
            bs.Recipe("int8", skip=["head"]),
            ["skipped", "kept", "quantized"],
            "its weight is tied to head, which cannot share its codes",
        ),
    ],
)
def test_tied_weights_share_codes_or_stay(
    recipe: bs.Recipe, statuses: list[str], told: str
) -> None:
    plans = plan_layers(Tied(), recipe)
    assert [plan.entry.status for plan in plans] == statuses
    assert plans[0].entry.reason == told


def test_a_weight_that_something_else_uses_stays() -> None:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.own = self.layer.weight

    [left] = plan_layers(Raw(), bs.Recipe("int8"))
    assert left.entry.reason == "its weight is tied to own, which cannot share its codes"


def test_the_layers_of_each_weight() -> None:
    model = Tied()
    layers = {module: (name,) for name, module in model.named_children()}
    assert shared_weights(layers) == {
        id(model.table.weight): [model.table, model.head],
        id(model.alone.weight): [model.alone],
    }
    bs.quantize_(model, "int8")
    quantized = {module: (name,) for name, module in model.named_children()}
    assert shared_weights(quantized) == {}  # they hold no float weight any more
