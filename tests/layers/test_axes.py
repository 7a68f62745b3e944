"""A convolution's input in blocks along the image is refused; what means channels is not."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.support.layer_models import unchanged


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
