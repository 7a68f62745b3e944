# SPDX-License-Identifier: BSD-3-Clause
"""What stands before a layer, in files: there and back, inspected, compared, damaged."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.inspect import inspect
from blockscale.layers.before import Rotate, Scale, random_signs
from tests.support.saved import GONE, put, rewrite

K = 32
EXACT = "int16:tensor:pow2/ceil"  # of the whole numbers that these models hold
BEFORE = {
    "0": Scale(2.0 ** (torch.arange(K) % 9 - 4)),
    "1": Rotate(K, 32),
    "2": Rotate(K, 8, random_signs(K, 1)),
    "4": Rotate(8, 4),
}


def net() -> nn.Module:
    layers = [*(nn.Linear(K, K, bias=False) for _ in range(3)), nn.Unflatten(-1, (8, 4))]
    model = nn.Sequential(*layers, nn.Conv1d(8, 6, 3, padding=1))
    for parameter in model.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    return model.eval()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return net()


@pytest.fixture
def saved(model, tmp_path):
    bs.save(model, tmp_path / "float.safetensors")
    bs.quantize_(model, bs.Recipe(EXACT, rules={"1": {"input": "int8_token"}}), before=BEFORE)
    bs.save(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_there_and_back(model, saved) -> None:
    x = torch.randint(-2, 3, (3, K)).float()
    with torch.device("meta"):
        on_meta = net()
    for other in (net(), on_meta):
        bs.load(other, saved)
        assert [m.before.fmt for m in other if hasattr(m, "before")] == [
            "scale", "rotate:32", "rotate:8:signs", "rotate:4",
        ]  # fmt: skip
        assert torch.equal(other(x), model(x))
        state, expected = other.state_dict(), model.state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)
    stored = load_file(saved)
    assert {name for name in stored if "before" in name} == {
        "0.before.factor", "2.before.signs",
    }  # fmt: skip
    assert torch.equal(stored["0.before.factor"], BEFORE["0"].factor)


def test_a_file_without_one_says_nothing_of_it(tmp_path) -> None:
    """So that files stay readable by versions that know of no transforms, and as they were."""
    model = net()
    bs.quantize_(model, bs.Recipe(EXACT, input="int8_token"))
    bs.save(model, tmp_path / "m")
    assert b"before" not in (tmp_path / "m").read_bytes()
    assert bs.load(net(), tmp_path / "m")[0].before is None


class Linear2(nn.Linear):
    """One that cannot be a quantized layer: they have an attribute of that name themselves."""

    output = None


def test_what_cannot_hold_codes_gets_the_original_weight(model, saved) -> None:
    float_weights = load_file(saved.parent / "float.safetensors")
    other = net()
    for i in (0, 1, 2):
        other[i] = Linear2(K, K, bias=False)
    with pytest.warns(UserWarning, match=r"cannot hold codes: .*input and output.*: 1$"):
        bs.load(other, saved)
    for i in (0, 1, 2):
        assert torch.equal(other[i].weight, float_weights[f"{i}.weight"])


@pytest.mark.slow
def test_compare_knows_the_original_weight(saved) -> None:
    for elements in (1, K, 1 << 20):
        found = compare(saved.parent / "float.safetensors", saved, elements=elements)
        assert [each.max_error for each in found.differences] == [0.0] * 5
    other = compare(saved, saved.parent / "float.safetensors")
    assert [each.max_error for each in other.differences] == [0.0] * 5


def test_inspect_shows_it(saved) -> None:
    rows = {row.name: row for row in inspect(saved).rows}
    spelled = {f"{name}.weight": each.fmt for name, each in BEFORE.items()}
    assert {name: row.before for name, row in rows.items() if row.before} == spelled
    assert rows["0.weight"].nbytes == 2 * K * K + 4 + 4 * K  # codes, scale, factor
    assert rows["2.weight"].nbytes == 2 * K * K + 4 + K
    assert sum(row.nbytes for row in rows.values()) == sum(
        t.nbytes for t in load_file(saved).values()
    )
    shown = CliRunner().invoke(app, ["inspect", str(saved), "--all"]).output
    for text in ("before scale", "before rotate:32", "input int8", "before rotate:8:signs"):
        assert text in shown.replace("\n", " ")


SPELLINGS = [
    ("0", "rotate:6", "layer '0': expected a power of two"),
    ("0", "turn:8", "layer '0': unknown transform 'turn:8'; choose from order, scale, rotate:SIZE"),
    ("0", "rotate:64", "divides 32 features, found 64"),
    ("0", 5, "damaged"),
    ("0", None, None),
    ("1", "scale", "1.before.factor is missing, though the file says 1 has the transform scale"),
    ("1", "rotate:8:signs", "1.before.signs is missing"),
    ("2", "scale", "2.before.factor is missing"),
    ("2", "rotate:8", "it has 2.before.signs"),
    ("4", "rotate:16", "divides 8 features, found 16"),
    ("0", GONE, "it has 0.before.factor"),
]


@pytest.mark.parametrize(
    ("layer", "spelling", "words"), SPELLINGS, ids=lambda v: "gone" if v is GONE else str(v)
)
def test_other_spellings(layer: str, spelling: object, words: str | None, saved) -> None:
    rewrite(saved, put("before", spelling, "layers", layer))
    refused(saved, words or "it has 0.before.factor|damaged")


def refused(path, words: str) -> None:
    other = net()
    before = {name: t.clone() for name, t in other.state_dict().items()}
    with pytest.raises(bs.FileError, match=words):
        bs.load(other, path)
    assert all(type(m).__module__.startswith("torch") for m in other)
    assert all(torch.equal(t, before[name]) for name, t in other.state_dict().items())


TENSORS = {
    "0.before.factor is missing": ("0.before.factor", GONE),
    r"0.before.factor should be torch.float32 \(32,\), but is torch.float32 \(31,\)": (
        "0.before.factor", torch.ones(31),
    ),
    "0.before.factor should be torch.float32": ("0.before.factor", torch.ones(32).half()),
    "0.before: expected a factor": ("0.before.factor", -torch.ones(32)),
    r"0.before: .*finite": ("0.before.factor", torch.full((32,), torch.nan)),
    "2.before: expected signs": ("2.before.signs", torch.zeros(32, dtype=torch.int8)),
    "it has 1.before.factor": ("1.before.factor", torch.ones(32)),
}  # fmt: skip


@pytest.mark.parametrize("words", TENSORS)
def test_damaged_tensors(words: str, saved) -> None:
    name, tensor = TENSORS[words]

    def change(stored: dict) -> None:
        stored[name] = tensor
        if tensor is GONE:
            del stored[name]

    rewrite(saved, lambda data: None, change)
    refused(saved, words)


def test_layers_of_another_kind(saved) -> None:
    """A transform of a convolution in groups, which no layer could run."""
    other = net()
    other[4] = nn.Conv1d(16, 6, 3, padding=1, groups=2)
    with pytest.raises(bs.FileError, match="its 2 groups read different channels"):
        bs.load(other, saved)
    assert isinstance(other[0], nn.Linear)


def test_what_layers_share_is_stored_once_and_loaded_twice(tmp_path) -> None:
    """One scale for two inputs, one factor for two layers, one tensor of codes for two weights."""
    net2 = lambda: nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))  # noqa: E731
    model, scale, factor = net2(), torch.full((1, 1), 0.1), Scale(torch.rand(8) + 0.5)
    q = bs.quantize(torch.randn(8, 8), "int4")
    both = {"0": scale, "1": scale}, {"0": q, "1": q}, {"0": factor, "1": factor}
    options = dict(zip(("input_scales", "weights", "before"), both, strict=True))
    bs.quantize_(model, bs.Recipe("int4", input="int8"), **options)
    model[1].before.factor = model[0].before.factor  # each got its own
    bs.save(model, tmp_path / "m")
    names = ("0.before.factor", "0.input.scale", "0.weight.codes", "0.weight.scale")
    assert set(load_file(tmp_path / "m")) == set(names)
    other, x = bs.load(net2(), tmp_path / "m"), torch.randn(3, 8)
    assert [layer.input.static for layer in other] == [True, True]
    assert torch.equal(other(x), model(x))
    assert {row.name for row in inspect(tmp_path / "m").rows} == {"0.weight", "1.weight"}
