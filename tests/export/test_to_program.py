# SPDX-License-Identifier: BSD-3-Clause
"""torch.export's files: read by a process that knows blockscale alone, to the same bits."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import blockscale as bs
from tests.support.another import read_by_another
from tests.support.layers_bias import IMAGES, network
from tests.support.programs import bert, gpt2


def small(recipe="mxfp4", **formats):
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    bs.quantize_(model, bs.Recipe(recipe, **formats), strict=True)
    return model


def test_any_number_of_rows(tmp_path):
    model = small(input="int8_token")
    path = tmp_path / "model.pt2"
    bs.export.program(model, path, torch.randn(3, 64), dynamic_batch=True)
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt2"]
    rows = [torch.randn(n, 64) for n in (1, 3, 17)]
    read_by_another(tmp_path, model, *rows)


@pytest.mark.slow
def test_another_process_tells_of_other_numbers(tmp_path):
    model, x = small(), torch.randn(3, 64)
    bs.export.program(model, tmp_path / "model.pt2", x)
    with torch.no_grad():
        model[0].bias[0] += 1e-3
    with pytest.raises(AssertionError, match="Traceback"):
        read_by_another(tmp_path, model, x)


def test_the_sizes_of_the_example(tmp_path):
    model = small("int4:group32:fp32")
    bs.export.program(model, tmp_path / "model.pt2", (torch.randn(3, 64),))
    module = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.randn(3, 64)
    assert torch.equal(module(x), model(x))
    with pytest.raises(AssertionError, match="Guard failed"):
        module(torch.randn(4, 64))


def test_the_file_holds_codes(tmp_path):
    model = small()
    bs.export.program(model, tmp_path / "model.pt2", torch.randn(3, 64))
    state = torch.export.load(tmp_path / "model.pt2").state_dict
    expected = {k: v for k, v in model.state_dict().items() if not k.endswith("_extra_state")}
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert state["0.weight.codes"].dtype == torch.uint8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "recipe"),
    [
        pytest.param(
            gpt2, bs.Recipe("int4:group32:fp32", input="int8_token"), marks=pytest.mark.slow
        ),
        (bert, bs.Recipe("mxfp8", input="mxfp8")),
    ],
    ids=["gpt2", "bert"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_model_of_somebody_else(build, recipe, tmp_path):
    model = build()
    bs.quantize_(model, recipe, strict=True)

    def tokens(rows):
        return {"input_ids": torch.randint(50, (rows, 7))}

    bs.export.program(model, tmp_path / "model.pt2", tokens(2), dynamic_batch=True)
    assert not model._forward_hooks
    read_by_another(tmp_path, model, tokens(2), tokens(5))


@pytest.mark.slow
def test_a_model_of_integers(tmp_path):
    """What remains after training under power-of-two scales: integers and shifts."""
    images = torch.tensor(load_digits().images[:32], dtype=torch.float32)[:, None] / 16
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    recipe = bs.Recipe("int8:channel0:pow2/nearest", input="int8:tensor:pow2/nearest")
    bs.calibrate(model.eval(), [images], recipe)
    integer = bs.graph.to_integer(model, images).eval()
    bs.export.program(integer, tmp_path / "model.pt2", images, dynamic_batch=True)
    read_by_another(tmp_path, integer, images, images[:3])


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["int32", pytest.param("mxfp8", marks=pytest.mark.slow)])
def test_quantized_biases(bias, tmp_path):
    """The file holds their codes, and what it adds are the values that the model adds."""
    model = network().eval()
    recipe = bs.Recipe("int8_channel", input="int8", bias=bias)
    bs.calibrate(model, [IMAGES], recipe, strict=True, progress=False)
    bs.export.program(model, tmp_path / "model.pt2", IMAGES, dynamic_batch=True)
    read_by_another(tmp_path, model, IMAGES, IMAGES[:3] * 2)
    state = torch.export.load(tmp_path / "model.pt2").state_dict
    for layer in "0578":
        codes = model[int(layer)].bias.codes
        assert torch.equal(state[f"{layer}.bias.codes"], codes)
        assert codes.dtype == (torch.int32 if bias == "int32" else torch.uint8)
        assert f"{layer}.bias" not in state


def test_a_program(tmp_path):
    model, x = small(), torch.randn(3, 64)
    made = torch.export.export(model, (x,))
    bs.export.program(made, tmp_path / "model.pt2")
    assert torch.equal(torch.export.load(tmp_path / "model.pt2").module()(x), model(x))
    bs.export.program(made, tmp_path / "model.pt2", x, overwrite=True)
    with pytest.raises(ValueError, match="cannot be called with the example"):
        bs.export.program(made, tmp_path / "other.pt2", torch.randn(4, 64))
    with pytest.raises(ValueError, match="sizes of an exported program are fixed"):
        bs.export.program(made, tmp_path / "other.pt2", x, dynamic_batch=True)
    assert not (tmp_path / "other.pt2").exists()


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


class Odd:
    def __init__(self, x):
        self.x = x


def test_outputs_keep_their_places(tmp_path):
    x = torch.randn(2, 4)
    model = Returns(lambda y: (y, [y + 1, None], {"a": y * 2})).eval()
    bs.export.program(model, tmp_path / "model.pt2", x)
    y, (more, nothing), named = torch.export.load(tmp_path / "model.pt2").module()(x)
    assert nothing is None
    for tensor, expected in zip((y, more, named["a"]), (0, 1, None), strict=True):
        z = model.linear(x)
        assert torch.equal(tensor, z * 2 if expected is None else z + expected)


X = torch.randn(2, 64)
WRONG = {
    "training": (lambda: small().train(), X, {}, "the model is in training mode: call model.eval"),
    "a part training": (
        lambda: small().append(nn.Dropout()), X, {}, "3 is in training mode: call model.eval",
    ),
    "no example": (small, None, {}, "no example"),
    "narrow": (small, X[:, :3], {}, r"with the example \(float32 \[2, 3\]\): ValueError: expected"),
    "names": (small, {"y": X}, {}, r"with the example \(y: float32 \[2, 64\]\): TypeError"),
    "too many": (small, (X, X), {}, r"example \(float32 \[2, 64\], float32 \[2, 64\]\): TypeError"),
    "meta": (lambda: nn.Linear(64, 4, device="meta").eval(), X, {}, "weight holds no data"),
    "one row": (small, X[:1], {"dynamic_batch": True}, "an example of 2 or more rows, found 1"),
    "two batches": (
        small, (X, X[:1]), {"dynamic_batch": True}, "cannot be called with the example",
    ),
    "odd output": (
        lambda: Returns(Odd).eval(), torch.randn(2, 4), {}, "the model returns a .*Odd, which only",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "example", "options", "message"), WRONG.values(), ids=WRONG)
def test_refused_before_anything_is_written(build, example, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        bs.export.program(build(), tmp_path / "model.pt2", example, **options)
    assert list(tmp_path.iterdir()) == []


def test_first_sizes_that_differ(tmp_path):
    class Two(nn.Module):
        def forward(self, x, y):
            return x @ y

    with pytest.raises(ValueError, match=r"whose first sizes are equal, found \[2, 3\]"):
        example = (torch.randn(2, 3), torch.randn(3, 5))
        bs.export.program(Two().eval(), tmp_path / "a.pt2", example, dynamic_batch=True)
    assert list(tmp_path.iterdir()) == []


def test_layers_for_training_are_refused(tmp_path):
    """They export as float weights that are rounded again in each call, to other bits."""
    model = nn.Sequential(nn.Linear(64, 8))
    bs.prepare_qat(model, bs.Recipe("mxfp4"))
    with pytest.raises(ValueError, match=r"0 is a layer for training .* call bs.convert\(model\)"):
        bs.export.program(model.eval(), tmp_path / "model.pt2", X)
    bs.convert(model)
    bs.export.program(model, tmp_path / "model.pt2", X)
    assert torch.equal(torch.export.load(tmp_path / "model.pt2").module()(X), model(X))


def test_places(tmp_path):
    with pytest.raises(ValueError, match=r"is a directory: name the file to write, e.g. .*pt2"):
        bs.export.program(small(), tmp_path, X)
    with pytest.raises(ValueError, match="nowhere is not a directory: create it first"):
        bs.export.program(small(), tmp_path / "nowhere" / "model.pt2", X)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there(tmp_path):
    path, model = tmp_path / "model.pt2", small()
    path.write_bytes(b"another's")
    with pytest.raises(
        FileExistsError, match=r"model.pt2 exists: remove it, or pass overwrite=True"
    ):
        bs.export.program(model, path, X)
    assert path.read_bytes() == b"another's"
    bs.export.program(model, path, X, overwrite=True)
    assert torch.equal(torch.export.load(path).module()(X), model(X))


def test_what_is_no_model(tmp_path):
    with pytest.raises(TypeError, match="expected a model or an exported program, found str"):
        bs.export.program("model", tmp_path / "model.pt2", X)
    with pytest.raises(
        TypeError, match=r"the example must be a tensor.*keyword arguments, found an int"
    ):
        bs.export.program(small(), tmp_path / "model.pt2", 3)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    bs.export.program(small(), path, X)
    before = path.read_bytes()

    def fails(program, file):
        file.write(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(torch.export, "save", fails)
    with pytest.raises(OSError, match="the disk is full"):
        bs.export.program(small("mxfp8"), path, X, overwrite=True)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt2"]
