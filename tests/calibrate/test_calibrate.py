"""bs.calibrate: scales from data, what it says, and a model unchanged unless all went well."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibrate.calibrate import calibrate
from blockscale.calibrate.progress_bar import BatchBar
from blockscale.core.progress import Progress

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside, while it is imported
    from transformers import BatchEncoding
    from transformers.pytorch_utils import Conv1D

CHANNEL = "int8:channel-1:fp32"
STATIC = bs.Recipe("int8_channel", input="int8", output=CHANNEL)


class Net(nn.Module):
    """Every kind of layer, one of them called twice, and a branch that only `deep` reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.conv = nn.Conv1d(6, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.twice = nn.Linear(4, 4)
        self.gpt = Conv1D(3, 4)
        self.dead = nn.Linear(4, 4)

    def forward(self, ids: Tensor, deep: bool = False) -> Tensor:
        x = self.norm(self.conv(self.table(ids).movedim(1, -1))).movedim(1, -1)
        x = self.twice(torch.relu(self.twice(x)))
        return self.gpt(self.dead(x) if deep else x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def ids(*sizes: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(10, (size, 5)) for size in sizes]


def deep(batches: list[Tensor]) -> list[dict[str, Any]]:
    return [{"ids": each, "deep": True} for each in batches]


def quietly(model: nn.Module, batches: Any, recipe: Any = STATIC, *rest: Any, **more: Any) -> Any:
    return calibrate(model, batches, recipe, *rest, **{"progress": False} | more)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """All that a failure must leave alone: modules, tensors, modes, hooks, gradients."""
    tensors = [(n, id(t), t.detach().clone()) for n, t in model.state_dict(keep_vars=True).items()]
    modules = [
        (n, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
        for n, m in model.named_modules()
    ]
    return modules, [(n, i, t.tolist()) for n, i, t in tensors]


def seen(model: Net, batches: list[Any]) -> dict[str, Tensor]:
    """{layer.input or layer.output: all rows it had} by plain hooks, channels last."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    for name, layer in model.named_children():

        def hook(m: Any, x: Any, y: Tensor, name: str = name) -> None:
            for part, value in (("input", x[0]), ("output", y)):
                value = value.movedim(1, -1) if name == "conv" else value
                found.setdefault(f"{name}.{part}", []).append(value.flatten(0, -2))

        handles.append(layer.register_forward_hook(hook))
    with torch.no_grad():
        for batch in batches:
            model.eval()(**batch)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def test_static_scales_are_those_of_all_the_data() -> None:
    model, batches = net(), deep(ids(4, 1, 7))
    expected = seen(copy.deepcopy(model), batches)
    plain = copy.deepcopy(model)
    ledger = quietly(model, batches, STATIC, "min_max", strict=True)
    for name in ("table", "conv", "twice", "gpt", "dead"):
        layer = model.get_submodule(name)
        y, amax = layer.output.parts[0], expected[f"{name}.output"].abs().amax(0)
        torch.testing.assert_close(y.flatten(), amax / 127, rtol=1e-6, atol=0)
        assert "static output by min_max" in ledger[name].details
        if name == "table":
            assert layer.input is None
            continue
        x, amax = layer.input.parts[0], expected[f"{name}.input"].abs().amax()
        torch.testing.assert_close(x.flatten(), (amax / 127)[None], rtol=1e-6, atol=0)
        assert "static input by min_max" in ledger[name].details
    twin = copy.deepcopy(plain)
    bs.quantize_(twin, "int8_channel")
    for name in ("table", "conv", "twice", "gpt"):  # the codes are those of quantize_
        mine, its = (m.get_submodule(name).weight.codes for m in (model, twin))
        assert torch.equal(mine, its)
    x = batches[0]
    assert (model.eval()(**x) - plain.eval()(**x)).abs().max() < 0.1


def test_asymmetric_and_two_level_scales() -> None:
    for fmt in ("uint8:channel-1:fp32:asym", "e2m1:tensor:e4m3", "int8:tensor:pow2/ceil"):
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.rand(9, 8) - 0.2
        quietly(model, [x[:4], x[4:]], bs.Recipe("int8", input=fmt), "min_max")
        found, expected = model[0].input, bs.quantize(x, fmt)
        scale, zero_point, outer = found.parts
        assert torch.equal(scale, expected.qparams.scale)
        assert outer is None or torch.equal(outer, expected.qparams.outer)
        assert zero_point is None or torch.equal(zero_point, expected.zero_point)
        assert torch.equal(found(x), expected.dequantize())


def test_formats_with_other_blocks_stay_dynamic() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    ledger = quietly(model, [torch.randn(3, 8)], bs.Recipe("int8", "mxfp8", "int8_token"))
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input, dynamic output"
    assert "int8:tensor:fp32, input e4m3:group32:e8m0/floor" in str(ledger)


@pytest.mark.parametrize(
    "kind", ["dict", "encoding", "tuple", "list", "tensor", "generator", "loader"]
)
def test_kinds_of_batches(kind: str) -> None:
    batches = ids(3, 3)
    made: dict[str, Any] = {
        "dict": [{"ids": b} for b in batches],
        "encoding": [BatchEncoding({"ids": b}) for b in batches],
        "tuple": [(b, True) for b in batches],
        "list": [[b] for b in batches],
        "tensor": batches,
        "generator": (b for b in batches),
        "loader": torch.utils.data.DataLoader(torch.cat(batches), batch_size=3),
    }
    model, same = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the dead branch
        quietly(model, made[kind], STATIC, "min_max")
        quietly(same, batches, STATIC, "min_max")
    assert torch.equal(model.twice.input.parts[0], same.twice.input.parts[0])


def test_bad_batches_change_nothing() -> None:
    for batches, words in (
        ({"ids": ids(2)[0]}, r"found one dict: write \[batch\]"),
        (ids(2)[0], r"found one Tensor: write \[batch\]"),
        (3, "iterable of batches, such as a list or a DataLoader, found a int"),
        ([], "batches is empty"),
        (iter([]), "batches is empty"),
    ):
        model = net()
        before = state_of(model)
        with pytest.raises((TypeError, ValueError), match=words):
            quietly(model, batches)
        assert state_of(model) == before


def test_what_can_be_read_once_is_refused_for_several_passes() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    before, batches = state_of(model), (torch.randn(2, 8) for _ in range(3))
    words = (
        r"a generator\), but 3 passes are needed \(1 for static scales, 2 for weight 'gptq'\): "
        r"give a list or a DataLoader"
    )
    with pytest.raises(ValueError, match=words):
        quietly(model, batches, bs.Recipe("int8", "int8"), "min_max", weight="gptq")
    assert state_of(model) == before
    assert len(list(batches)) == 3  # nothing was read


def test_passes_that_differ_are_an_error() -> None:
    class Shrinking:
        left = 3

        def __iter__(self) -> Iterator[Tensor]:
            self.left -= 1
            return iter([torch.randn(2, 8)] * self.left)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(ValueError, match="gave 2 batches in the first pass and 1 now"):
        quietly(model, Shrinking(), "int4:group4:fp32", weight="gptq")


class Wrong:
    """A weight algorithm that fails at one layer, also as Ctrl-C would."""

    name, needs_gram = "wrong", True

    def __init__(self, layer: str, error: BaseException):
        self.layer, self.error = layer, error

    def quantize(self, weight: Tensor, fmt: bs.Format, gram: Any, layer: str) -> Any:
        if layer == self.layer:
            raise self.error
        return bs.quantize(weight, fmt), []


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), KeyboardInterrupt()], ids=["error", "ctrl-c"]
)
@pytest.mark.parametrize("where", ["model", "algorithm", "swap"])
def test_a_failure_leaves_the_model_as_it_was(
    where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = net(), {}
    model.norm.eval()  # modes are mixed, and come back mixed
    model.table.weight.requires_grad_(False)
    model.twice.register_forward_hook(lambda *_: None)
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise error

    if where == "model":
        model.dead.register_forward_pre_hook(fail)
    elif where == "algorithm":
        options["weight"] = Wrong("gpt", error)
    else:
        set_before = nn.Module.__setattr__

        def set_and_fail(self: nn.Module, name: str, value: object) -> None:
            set_before(self, name, value)
            if (
                name == "twice"
                and isinstance(value, nn.Module)
                and not isinstance(value, nn.Linear)
            ):
                raise error

        monkeypatch.setattr(Net, "__setattr__", set_and_fail)
    before = state_of(model)
    with pytest.raises(type(error)) as caught:
        quietly(model, deep(ids(2, 2, 2, 2)), **options)
    assert state_of(model) == before
    assert torch.is_grad_enabled()
    if where == "model" and isinstance(error, RuntimeError):
        assert caught.value.__notes__ == [
            "at batch 2, a mapping, given as keyword arguments: ids, deep"
        ]


def test_modes_and_statistics_come_back() -> None:
    model = net()
    model.norm.eval()
    modes = {n: m.training for n, m in model.named_modules() if not n.count(".")}
    buffers = {n: b.clone() for n, b in model.norm.named_buffers()}
    quietly(model, deep(ids(2)), "int8")
    assert {n: m.training for n, m in model.named_modules() if n in modes} == modes
    assert all(torch.equal(b, buffers[n]) for n, b in model.norm.named_buffers())


def test_layers_without_data() -> None:
    model, batches = net(), ids(2, 3)
    before = state_of(model)
    words = r"1 of 5 layers saw no data in 2 batches; nothing was changed\.\n  dead\nGive batches"
    with pytest.raises(bs.SkippedError, match=words):
        quietly(model, batches, strict=True)
    assert state_of(model) == before
    with pytest.warns(UserWarning, match="dead: saw no data in 2 batches") as caught:
        ledger = quietly(model, batches)
    assert [w.filename for w in caught] == [__file__]
    assert ledger["dead"].details == "dynamic input, dynamic output"
    assert not model.dead.input.static
    assert model.twice.input.static
    assert torch.isfinite(model(batches[0], deep=True)).all()


def test_strict_refuses_what_is_skipped_before_any_data_is_read() -> None:
    def never() -> Iterator[Tensor]:
        raise AssertionError("it read a batch")
        yield

    with pytest.raises(bs.SkippedError, match="LSTM"):
        quietly(nn.Sequential(nn.LSTM(4, 4)), never(), "int8", strict=True)
    with pytest.raises(ValueError, match="no observer 'most'"):
        quietly(net(), never(), STATIC, "most")
    with pytest.raises(ValueError, match="no weight algorithm 'most'"):
        quietly(net(), never(), STATIC, weight="most")
    with pytest.raises(ValueError, match="wrap it"):
        quietly(nn.Linear(4, 4), never(), "int8")


def test_values_that_are_not_finite_are_counted() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(5, 4)
    x[0, 1], x[2, 2] = torch.nan, torch.inf
    with pytest.warns(UserWarning, match="0: 1 NaN, 1 infinite of 20 input values"):
        quietly(model, [x], bs.Recipe("int8", "int8"), "min_max")
    expected = torch.where(x.isfinite(), x, 0).abs().max() / 127
    torch.testing.assert_close(model[0].input.parts[0].flatten()[0], expected)


def test_nothing_but_nan_leaves_an_input_dynamic() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="0: 8 NaN of 8 input values, which were left out"):
        ledger = quietly(model, [torch.full((2, 4), torch.nan)], bs.Recipe("int8", "int8"), "mse")
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input"


def test_an_observer_that_cannot_choose_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    before = state_of(model)
    with pytest.raises(ValueError, match="the input of 0: "):
        quietly(model, [torch.randn(1, 4)], bs.Recipe("int8", CHANNEL), "adaptive")
    assert state_of(model) == before


def test_shared_and_tied_layers() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight
            self.one = nn.Linear(4, 4)
            self.other = self.one

        def forward(self, i: Tensor) -> Tensor:
            return self.head(self.other(10 * self.one(self.table(i))))

    model, i = Tied(), torch.arange(6)
    largest = (10 * model.one(model.table(i))).abs().max()
    ledger = quietly(model, [i], bs.Recipe("int8_channel", "int8"), "min_max", weight="gptq")
    assert model.one is model.other
    torch.testing.assert_close(model.one.input.parts[0].flatten()[0], largest.detach() / 127)
    assert model.head.weight is model.table.weight
    assert model.head.input.static
    assert ledger["other"].reason == "the same layer as one"


def test_autocast_and_half_precision_models() -> None:
    class Cast(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    for model in (
        Cast(nn.Linear(8, 8), nn.Linear(8, 8)),
        nn.Sequential(nn.Linear(8, 8)).bfloat16(),
    ):
        x = torch.randn(4, 8, dtype=model[0].weight.dtype)
        quietly(model, [x], bs.Recipe("int8", "int8", "int8"), "min_max", weight="gptq")
        torch.testing.assert_close(
            model[0].input.parts[0].flatten()[0], x.abs().max().float() / 127
        )
        assert model[0].output.static
        assert torch.isfinite(model(x)).all()


class Recorder(Progress):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, total: int | None) -> None:
        self.told.append(total)

    def advance(self) -> None:
        self.told.append("batch")

    def close(self) -> None:
        self.told.append("closed")


def test_progress_counts_the_batches_of_all_passes() -> None:
    model, told = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), Recorder()
    batches = [torch.randn(2, 8)] * 3
    calibrate(model, batches, bs.Recipe("int8", "int8"), "min_max", weight="gptq", progress=told)
    assert told.told == [9, *["batch"] * 9, "closed"]
    told = Recorder()
    calibrate(nn.Sequential(nn.Linear(8, 8)), iter(batches), "int8", progress=told)
    assert told.told == [None, *["batch"] * 3, "closed"]
    told = Recorder()
    with pytest.raises(RuntimeError):
        calibrate(nn.Sequential(nn.Linear(7, 8)), batches, "int8", progress=told)
    assert told.told == [3, "closed"]


def test_the_bar_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for lively in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda lively=lively: lively)
        bar = BatchBar()
        bar.start(2)
        bar.advance()
        bar.advance()
        bar.close()
        out, err = capsys.readouterr()
        assert out == ""
        assert ("2 of 2 batches" in err) == lively


def test_an_observer_that_does_not_exist_is_an_error_also_where_none_is_needed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    with pytest.raises(ValueError, match="no observer 'nope'"):
        bs.calibrate(model, [torch.randn(2, 8)], "int8_channel", observer="nope")
    assert type(model[0]) is torch.nn.Linear
