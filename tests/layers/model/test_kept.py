# SPDX-License-Identifier: BSD-3-Clause
"""What torch itself keeps of quantized models: copies, pickles, states, averages."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import blockscale as bs
from blockscale.layers import held_parameters
from blockscale.layers.store import all_held
from tests.support.saved import bits

X = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
RECIPE = bs.Recipe("mxfp4", "int8_token", bias="int8")


def doubled(module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
    """A hook that pickle can name."""
    del module, args
    return 2 * y


def net() -> nn.Module:
    """A held parameter (in_proj_weight), two layers that share a weight, a hook."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(encoder, nn.Linear(32, 32), nn.Linear(32, 32))
    model[2].weight = model[1].weight
    return model.eval()


@pytest.fixture
def model() -> nn.Module:
    made = net()
    bs.quantize_(made, "mxfp4")
    made[1].register_forward_hook(doubled)
    assert [name for name, _ in all_held(made)] == ["0.self_attn.in_proj_weight"]
    return made


def stored(value: object, **options: bool) -> object:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: stored(model, weights_only=False),
    "twice": lambda model: copy.deepcopy(pickle.loads(pickle.dumps(model))),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_are_the_same_and_apart(way: str, model: nn.Module) -> None:
    expected = model(X)
    other = COPIES[way](model)
    assert bits(other) == bits(model)
    assert torch.equal(other(X), expected)
    assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
    assert other[1].qweight is other[2].qweight is not model[1].qweight
    other[1].qweight.codes.fill_(0)
    dict(all_held(other))["0.self_attn.in_proj_weight"].codes.fill_(0)
    assert torch.equal(model(X), expected)
    with pytest.raises(RuntimeError, match=r"writes to 0\.self_attn\.in_proj_weight"):
        other[0].self_attn.in_proj_weight.zero_()


def test_classes_of_held_parameters_are_made_again(model: nn.Module, monkeypatch) -> None:
    """As in another process: they exist in no module by name."""
    data, expected = pickle.dumps(model), model(X)
    monkeypatch.setattr(held_parameters, "_classes", {})
    other = pickle.loads(data)
    assert type(other[0].self_attn) is not type(model[0].self_attn)
    assert type(other[0].self_attn).__name__ == "MultiheadAttention"
    assert torch.equal(other(X), expected)


@pytest.mark.slow
def test_another_process_reads_it(model: nn.Module, tmp_path: Path) -> None:
    torch.save((model, X, model(X)), tmp_path / "m.pt")
    code = (
        f"import torch; model, x, y = torch.load({str(tmp_path / 'm.pt')!r}, weights_only=False)\n"
        "assert torch.equal(model(x), y); print(type(model[0].self_attn).__name__)"
    )
    root = Path(bs.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "MultiheadAttention"), done.stderr


def _run(model: nn.Module, x: Tensor, results: "torch.multiprocessing.Queue[Tensor]") -> None:
    results.put(model(x).detach().numpy())  # type: ignore[arg-type]


@pytest.mark.slow
def test_processes_that_are_spawned_get_the_model(model: nn.Module) -> None:
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_run, args=(model, X, results))
    process.start()
    got = torch.from_numpy(results.get())
    process.join()
    assert process.exitcode == 0
    assert torch.equal(got, model(X))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_states(assign: bool, device: str, model: nn.Module) -> None:
    state = stored(model.state_dict(), weights_only=True)
    other = net()
    for parameter in other.parameters():
        parameter.data.normal_()
    bs.quantize_(other, "mxfp4")
    other[1].register_forward_hook(doubled)
    if device == "meta" and not assign:
        return  # torch says that such a load copies nothing
    other.to(device)
    other.load_state_dict(state, assign=assign)
    assert bits(other) == bits(model)
    assert torch.equal(other(X), model(X))
    with pytest.raises(
        RuntimeError,
        match=(r"has the format e2m1\S*, and the state was saved with int8"),
    ):
        wrong = net()
        bs.quantize_(wrong, "int8")
        other.load_state_dict(wrong.state_dict(), assign=assign)


def test_float_states_and_quantized_ones_do_not_mix(model: nn.Module) -> None:
    for target, source in ((net(), model), (model, net())):
        before = bits(target)
        with pytest.raises(RuntimeError, match=r"Missing key.*in_proj_weight"):
            target.load_state_dict(source.state_dict())
        assert {n for n, was in bits(target).items() if was != before[n]} <= {
            n for n, _ in target.named_parameters()
        }


def test_a_tensor_that_was_read_is_a_plain_one_elsewhere(model: nn.Module) -> None:
    for made in (pickle.loads(pickle.dumps(model[1].weight)), stored(model[1].weight)):
        assert type(made) is Tensor
        assert torch.equal(made, model[1].dequantize_weight())


def test_what_torch_does_not_keep(model: nn.Module) -> None:
    """Hooks without a name, and weights that are still computed: torch's own limits and words."""
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        stored(model, weights_only=True)
    handle = model[0].register_forward_hook(lambda *_: None)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(model)
    handle.remove()
    assert pickle.dumps(model)
    computed = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 8))
    bs.quantize_(computed, bs.Recipe("int8", skip=["0*"]))
    with pytest.raises(RuntimeError, match="parametrized modules is only supported through state"):
        pickle.dumps(computed)
    other = copy.deepcopy(computed)
    other.load_state_dict(stored(computed.state_dict()))
    assert torch.equal(other(x := torch.randn(3, 8)), computed(x))


def test_averages() -> None:
    """AveragedModel averages parameters, so no codes; states that were computed are refused."""
    model = net()
    with pytest.warns(UserWarning, match="only the weight is quantized"):
        bs.quantize_(model, RECIPE)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(model)
    norm = model[0].norm1.weight
    with torch.no_grad():
        norm.fill_(3.0)
    average.update_parameters(model)
    assert torch.equal(average.module[0].norm1.weight, torch.full_like(norm, 2.0))
    codes = {n: t for n, t in model.state_dict().items() if n.endswith(("codes", "scale"))}
    assert all(torch.equal(average.module.state_dict()[n], t) for n, t in codes.items())
    mixed = {n: 0.5 * t + 0.5 * t for n, t in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"codes cannot be averaged or scaled; do that in float"):
        model.load_state_dict(mixed)
    with pytest.raises((RuntimeError, NotImplementedError)):
        for t in codes.values():
            t.lerp_(t.clone(), 0.5)
