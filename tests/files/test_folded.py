# SPDX-License-Identifier: BSD-3-Clause
"""What training folded: a file of it loads into the float model, which still has batch norms."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import blockscale as bs
from blockscale.files.metadata import Metadata
from tests.support.qat_models import Mixed, batch, train
from tests.support.saved import GONE, bits, put, rewrite

LEARNED = {"weight": "steps", "input": "thresholds"}
RECIPES = (
    (bs.Recipe("int8_channel", "int8", bias="int32"), None),
    (bs.Recipe("int8_channel", "int8", "int8"), LEARNED),
    (bs.Recipe("mxfp4", "int8_token", bias="mxfp8"), None),
)


class Basic(nn.Module):
    """A block as of resnet18: two convolutions without biases, and one on the way beside them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            beside = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(beside, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Inverted(nn.Module):
    """A block as of mobilenet_v2: wide, depthwise, narrow; the narrow one's norm has no gamma."""

    def __init__(self, channels: int):
        super().__init__()
        wide = 2 * channels
        self.conv = nn.Sequential(
            nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide)),
            nn.ReLU6(),
            nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.BatchNorm2d(wide)),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class Net(nn.Module):
    """Both kinds of blocks, and a norm that nothing is folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8))
        self.layer1, self.layer2, self.tail = Basic(8, 8, 1), Basic(8, 16, 2), Inverted(16)
        self.norm, self.fc = nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tail(self.layer2(self.layer1(torch.relu(self.stem(x)))))
        return self.fc(self.norm(y.mean((2, 3))))


X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))
FOLDED = {
    "stem.1": "stem.0", "layer1.bn1": "layer1.conv1", "layer1.bn2": "layer1.conv2",
    "layer2.bn1": "layer2.conv1", "layer2.bn2": "layer2.conv2",
    "layer2.downsample.1": "layer2.downsample.0", "tail.conv.0.1": "tail.conv.0.0",
    "tail.conv.2.1": "tail.conv.2.0", "tail.conv.5": "tail.conv.4",
}  # fmt: skip


def trained(model: nn.Module, inputs: list[Tensor], recipe=RECIPES[0][0], learn=None) -> nn.Module:
    torch.manual_seed(3)
    bs.prepare_qat(model, recipe, learn=learn)
    train(model, inputs)
    return bs.convert(model.eval())


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return trained(Net(), [X, X])


@pytest.fixture
def path(model, tmp_path):
    bs.save(model, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def metadata(path) -> Metadata:
    with safe_open(path, "pt") as file:
        found = Metadata.decode(file.metadata(), path)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.filterwarnings("ignore:blockscale.*skipped")
@pytest.mark.filterwarnings("ignore:(?s)blockscale.*were set again in training")  # learned steps
@pytest.mark.parametrize(("recipe", "learn"), RECIPES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_blocks_of_resnet_and_mobilenet(recipe, learn, device, tmp_path) -> None:
    model, file = trained(Net(), [X, X], recipe, learn), tmp_path / "m"
    bs.save(model, file)
    assert metadata(file).folded == FOLDED
    with torch.device(device):
        other = Net().eval()
    assert bs.load(other, file) is other
    assert bits(other) == bits(model)
    assert torch.equal(other(X), model(X))
    bs.save(other, tmp_path / "again")  # what was loaded still knows
    assert metadata(tmp_path / "again") == metadata(file)
    assert isinstance(other.norm, nn.BatchNorm1d)


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", ["plain", "reflect and dropout", "inside"])
def test_other_models_of_ours(kind: str, tmp_path) -> None:
    made = (
        Mixed if kind != "plain" else lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4))
    )
    inputs = [batch(0), batch(1)] if kind != "plain" else [torch.randn(3, 2, 9)]
    model = trained(made(), inputs, bs.Recipe("mxfp4", "int8"))
    names = [("conv1", "norm1"), ("conv2", "norm2")] if kind != "plain" else [("0", "1")]
    if kind == "inside":  # of another model: names have a prefix then
        model, made = nn.ModuleDict({"body": model}), lambda: nn.ModuleDict({"body": Mixed()})
        names = [(f"body.{conv}", f"body.{norm}") for conv, norm in names]
    bs.save(copy.deepcopy(model), tmp_path / "m")  # a copy knows its own modules
    assert metadata(tmp_path / "m").folded == {norm: conv for conv, norm in names}
    other = bs.load(made().eval(), tmp_path / "m")
    assert bits(other) == bits(model)
    if kind == "inside":
        model, other = model["body"], other["body"]
    assert torch.equal(other(inputs[0]), model(inputs[0]))


def test_half_precision_keeps_the_folded_bias(tmp_path) -> None:
    half, x = (lambda: Net().to(torch.bfloat16)), X.to(torch.bfloat16)
    model = trained(half(), [x], bs.Recipe("int8_channel", "int8"))
    bs.save(model, tmp_path / "m")
    other = bs.load(half().eval(), tmp_path / "m")
    assert torch.equal(other(x), model(x))
    assert other.stem[0].bias.dtype == model.stem[0].bias.dtype


@pytest.mark.slow
def test_a_model_built_as_training_left_it(path, model) -> None:
    """What was needed before files knew: Identity and a bias. It still works."""
    other = Net().eval()
    for norm, conv in FOLDED.items():
        parent, _, child = norm.rpartition(".")
        setattr(other.get_submodule(parent), child, nn.Identity())
        layer = other.get_submodule(conv)
        layer.bias = nn.Parameter(torch.zeros(layer.out_channels))
    rewrite(path, put("folded", GONE))  # as release 0.1.0 wrote it
    bs.load(other, path)
    assert torch.equal(other(X), model(X))
    assert bits(other) == bits(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "words"),
    [("int8", r"it lacks stem\.1\.weight"), (RECIPES[0][0], r"it has .*\.bias, which this model")],
)
def test_older_readers_refuse(recipe, words: str, tmp_path) -> None:
    """One that does not know `folded` misses batch norms or finds biases, and says so."""
    bs.save(trained(Net(), [X], recipe), tmp_path / "m")
    rewrite(tmp_path / "m", put("folded", GONE))
    with pytest.raises(bs.FileError, match=words):
        bs.load(Net(), tmp_path / "m")


@pytest.mark.slow
def test_files_without_have_no_word_of_it(tmp_path) -> None:
    model = Net().eval()
    bs.quantize_(model, "int8")
    bs.save(model, tmp_path / "m")
    with safe_open(tmp_path / "m", "pt") as file:
        assert "folded" not in json.loads(file.metadata()["blockscale"])
    assert torch.equal(bs.load(Net().eval(), tmp_path / "m")(X), model(X))


def with_other(place: str, module: nn.Module) -> nn.Module:
    model = Net()
    parent, _, child = place.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
    return model


@pytest.mark.parametrize(
    ("place", "module", "words"),
    [
        ("layer1.bn1", nn.GroupNorm(2, 8), "layer1.bn1 is folded into layer1.conv1, which has 8"),
        ("layer1.bn1", nn.BatchNorm2d(9), "this model's layer1.bn1 is BatchNorm2d"),
        ("layer1.conv1", nn.Linear(8, 8), "layer1.conv1, which is a Linear"),
        ("layer1.conv1", nn.Identity(), "layer1.conv1, which is an Identity"),
        ("fc", nn.Linear(16, 11), "fc.* has shape"),
        ("tail.conv.5", nn.BatchNorm2d(7), "tail.conv.5 is folded into"),
    ],
)
def test_another_model_is_refused_and_stays(place, module, words, path) -> None:
    """Also by what is looked at after batch norms were taken out: they are back then."""
    other = with_other(place, module)
    before, modules = bits(other), [id(m) for m in other.modules()]
    with pytest.raises(bs.FileError, match=words):
        bs.load(other, path)
    assert bits(other) == before
    assert [id(m) for m in other.modules()] == modules
    assert other.layer2.conv1.bias is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("stem.1", "norm", "folded"), "layer 'norm' includes 'stem.1', but"),
        (put("folded", [1]), "damaged"),
        (put("stem.1", "layer1.conv1", "folded"), "lacks|has"),
    ],
)
def test_damaged_metadata(change, words, path) -> None:
    rewrite(path, change)
    with pytest.raises(bs.FileError, match=words):
        bs.load(Net(), path)


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("transform", ["smoothquant", "awq", "hadamard"])
@pytest.mark.parametrize("weight", ["mse", "gptq"])
def test_what_calibration_changes(transform: str, weight: str, tmp_path) -> None:
    """Transforms before layers are no other architecture: the file says them."""
    made = lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))  # noqa: E731
    model, x = made().eval(), torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    x[:, 5] *= 100  # a channel that a transform can do something about
    recipe = bs.Recipe("int8_channel", "int8")
    bs.calibrate(model, [x], recipe, weight=weight, transform=transform, progress=False)
    assert model[0].before is not None
    bs.save(model, tmp_path / "m")
    other = bs.load(made().eval(), tmp_path / "m")
    assert bits(other) == bits(model)
    assert torch.equal(other(x), model(x))
