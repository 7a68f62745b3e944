# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of one model of the zoo: the cells of its row in docs/models.md, each of them run.

A cell says that something works, or that it does not, with the reason, or it is empty, with the
reason: what the float model cannot do either is no fault of ours.
"""

import contextlib
import importlib.util
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_model
from torch import nn

import blockscale as bs
from tests.models import states
from tests.models.registry import Model, tensors

RECIPE = "mxfp4"
CLOSE = 1e-3  # of a result's length: kernels and torch add in different orders
LONGEST = 240  # letters of a reason
BACKEND = "aot_eager"  # traces and lowers like the default one, and compiles no C++


class Cell(NamedTuple):
    """ok: whether it works; None where there is nothing to say. told: what was found, or why."""

    ok: bool | None
    told: str


class EmptyError(Exception):
    """There is nothing to say here, for this reason."""


class WrongError(Exception):
    """It ran, and what came out is wrong."""


HUBS = ("transformers", "diffusers")  # whose models have from_pretrained and save_pretrained


class Run:
    """One model on its way through the cells: what several of them need is made once."""

    def __init__(self, model: Model, folder: Path):
        self.model, self.folder = model, folder
        self.recipe = bs.Recipe(RECIPE, skip=list(model.skip))
        self.inputs = model.inputs()
        self.not_strict = ""

    def fresh(self) -> nn.Module:
        """The float model, with other weights: what is loaded must come from the file."""
        return self.model.build(seed=7)

    @cached_property
    def ledger_and_model(self) -> tuple[bs.Ledger, nn.Module]:
        """Quantized in memory, strictly where that is possible."""
        model = self.model.build()
        try:
            return bs.quantize_(model, self.recipe, strict=True), model
        except bs.SkippedError as error:
            self.not_strict = str(error)
        return bs.quantize_(model, self.recipe), model

    @property
    def quantized(self) -> nn.Module:
        """The model that was quantized in memory."""
        return self.ledger_and_model[1]

    @cached_property
    def result(self) -> list[torch.Tensor]:
        """What the quantized model computes."""
        return states.run(self.quantized, self.inputs)

    @cached_property
    def float_directory(self) -> Path:
        """The float model as its library writes it."""
        path = self.folder / "float"
        model: Any = self.model.build()
        if self.model.library in HUBS:
            model.save_pretrained(path)
        else:
            path.mkdir()
            save_model(model, str(path / "model.safetensors"))
        return path

    @cached_property
    def quantized_directory(self) -> Path:
        """What `blockscale quantize` makes of it."""
        path = self.folder / "quantized"
        bs.quantize_directory(self.float_directory, path, self.recipe)
        return path


def share(run: Run) -> str:
    """How much of the parameters is in codes, by counting; the ledger must count the same."""
    ledger, model = run.ledger_and_model
    made = run.model.build()
    before, left = states.float_bytes(made), states.float_bytes(model)
    if ledger.bytes_before != before:  # or as it is with each computed weight computed
        before = states.float_bytes(states.folded(made))
    after = left + states.quantized_bytes(model)
    if (ledger.bytes_before, ledger.bytes_after) != (before, after):
        said = f"{ledger.bytes_before} -> {ledger.bytes_after} bytes"
        raise WrongError(f"the ledger says {said}, counted are {before} -> {after}")
    part = 1 - left / before
    return f"{100 * part:.1f} %" + ("" if part >= 0.95 else f"; in float: {_left(ledger, before)}")


def _left(ledger: bs.Ledger, before: int) -> str:
    """What most of the rest is."""
    reasons: Counter[str] = Counter()
    for entry in ledger:
        if entry.status != "quantized":
            reasons[f"{entry.kind}, {entry.reason}"] += entry.bytes_before
    largest = reasons.most_common(2)
    return "; ".join(f"{100 * n / before:.0f} % {reason}" for reason, n in largest)


def forward(run: Run) -> str:
    """It runs, its results are finite, and those of its float twin up to the order of sums."""
    result = run.result
    expected = states.run(states.twin(run.model.build(), run.quantized), run.inputs)
    _check_close(result, expected, "its dequantized twin")
    if not run.not_strict:
        because = "; ".join(f"skip={pattern!r}: {why}" for pattern, why in run.model.skip.items())
        return because or "strict"
    lines = [line.strip() for line in run.not_strict.splitlines()[1:-1]]
    return f"{len(lines)} skipped: {lines[0]}"


def _check_close(result: list[torch.Tensor], expected: list[torch.Tensor], whose: str) -> None:
    found = states.distance(result, expected)
    if not result or not found <= CLOSE:
        raise WrongError(f"the result is {found:.2g} of its length away from that of {whose}")


def compiled(run: Run) -> str:
    """torch.compile, in one graph where the float model is one, gives the same."""
    try:
        _same_in_float(lambda model: _compile(model, run, fullgraph=True), run)
        whole = True
    except Exception:  # whatever it is, the float model's
        whole = False
        _or_empty(
            lambda: _same_in_float(lambda model: _compile(model, run, fullgraph=False), run),
            "compile",
        )
    result = _compile(run.quantized, run, fullgraph=whole)
    _check_close(result, run.result, "the model that is not compiled")
    return "one graph" if whole else "graphs, as in float"


def _same_in_float(changed: Callable[[nn.Module], list[torch.Tensor]], run: Run) -> None:
    """Raise WrongError where the float model computes something else when it is changed so."""
    expected = states.run(run.model.build(), run.inputs)
    _check_close(changed(run.model.build()), expected, "itself")


def _compile(model: nn.Module, run: Run, fullgraph: bool) -> list[torch.Tensor]:
    torch._dynamo.reset()
    try:
        return states.run(torch.compile(model, fullgraph=fullgraph, backend=BACKEND), run.inputs)
    finally:
        torch._dynamo.reset()


def exported(run: Run) -> str:
    """torch.export gives a program that computes the same."""

    def ours() -> str:
        _check_close(_export(run.quantized, run), run.result, "the model that is not exported")
        return "yes"

    return _ours_or_empty(
        ours, lambda: _same_in_float(lambda model: _export(model, run), run), "export"
    )


def _export(model: nn.Module, run: Run) -> list[torch.Tensor]:
    with torch.no_grad():
        program = torch.export.export(model, (), run.model.inputs())
    return states.run(program.module(), run.inputs)


def saved(run: Run) -> str:
    """bs.save, then bs.load into the float model with other weights: the same bits."""
    path = run.folder / "model.safetensors"
    bs.save(run.quantized, path)
    return _same(run, bs.load(run.fresh(), path))


def directory(run: Run) -> str:
    """A directory that `blockscale quantize` wrote, loaded: the bits of the flow in memory."""
    return _ours_or_empty(
        lambda: _same(run, bs.load(run.fresh(), run.quantized_directory)),
        lambda: _reload_float(run),
        "come back from its own directory",
    )


def _reload_float(run: Run) -> None:
    """What the float model's own library makes of its directory. Raises WrongError."""
    if run.model.library == "transformers":
        model = run.model.build()
        kind: Any = type(model)
        if found := states.differences(model, kind.from_pretrained(run.float_directory)):
            raise WrongError(f"{found[0]} differs")


def pretrained(run: Run) -> str:
    """from_pretrained: while it loads, of what save_pretrained wrote, of a directory of ours."""
    if run.model.library not in HUBS:
        raise EmptyError("not a model of transformers")
    return _ours_or_empty(
        lambda: _from_pretrained(run),
        lambda: _reload_float(run),
        "come back from its own directory",
    )


def _from_pretrained(run: Run) -> str:
    ours = importlib.import_module(f"blockscale.integrations.{run.model.library}")
    kind: Any = type(run.model.build())
    config = ours.BlockscaleConfig(run.recipe)
    loaded = kind.from_pretrained(run.float_directory, quantization_config=config).eval()
    _same(run, loaded, "quantized while loading: ")
    loaded.save_pretrained(run.folder / "again")
    again = kind.from_pretrained(run.folder / "again").eval()
    _same(run, again, "what save_pretrained wrote: ")
    return _same(run, kind.from_pretrained(run.quantized_directory).eval(), "the directory: ")


def _same(run: Run, other: nn.Module, of: str = "") -> str:
    if found := states.differences(run.quantized, other):
        names = ", ".join(found[:2]) + (f" and {len(found) - 2} more" if len(found) > 2 else "")
        raise WrongError(f"{of}not the bits of the flow in memory: {names}")
    try:
        expected = run.result
    except Exception as error:  # the cell "forward" is about it
        raise WrongError(f"equal bits, but forward fails: {told(error)}") from None
    for mine, theirs in zip(expected, states.run(other, run.inputs), strict=True):
        if states.unequal_bits(mine, theirs):
            raise WrongError(f"{of}the states are equal, the results are not")
    return "equal"


def lora(run: Run) -> str:
    """Adapters of PEFT on every linear layer learn, and nothing else changes."""
    names = _linear(run.model.build())
    if not names:
        raise EmptyError("it has no linear layers")
    _or_empty(lambda: _train(run.model.build(), names, run), "train adapters")
    if _integration("peft"):
        importlib.import_module("blockscale.integrations.peft")
    model = run.model.build()
    bs.quantize_(model, run.recipe)
    return f"{_train(model, names, run)} adapters"


def _integration(name: str) -> bool:
    """Whether there is one; where there is, it must import."""
    there = importlib.util.find_spec("blockscale.integrations") is not None
    return there and importlib.util.find_spec(f"blockscale.integrations.{name}") is not None


def _linear(model: nn.Module) -> list[str]:
    """What PEFT calls all linear layers: all but the head of a model of transformers."""
    kinds: tuple[type, ...] = (nn.Linear,)
    left: list[Any] = [getattr(model, "get_output_embeddings", lambda: None)()]
    if type(model).__module__.startswith("transformers."):
        from transformers.pytorch_utils import Conv1D

        kinds = (nn.Linear, Conv1D)
        if "mamba" in model.config.model_type:  # PEFT refuses them there, in float as well
            left += [each.out_proj for each in model.modules() if hasattr(each, "out_proj")]
    left += [each.out_proj for each in model.modules() if isinstance(each, nn.MultiheadAttention)]
    return [
        name
        for name, each in model.named_modules()
        if isinstance(each, kinds) and not any(each is one for one in left)
    ]


def _train(model: nn.Module, names: Sequence[str], run: Run) -> int:
    """Train adapters on these layers for three steps; how many learned. Raises WrongError."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    config = LoraConfig(r=4, target_modules=list(names), init_lora_weights="gaussian")
    adapted: Any = get_peft_model(model, config).eval()
    trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    if strange := [n for n, p in trained.items() if "lora_" not in n or not p.is_floating_point()]:
        raise WrongError(f"{strange[0]} would be trained, and is no adapter in float")
    before = {n: t.clone() for n, t in _tensors(adapted) if n not in trained}
    losses = _steps(adapted, trained.values(), run)
    if changed := [n for n, t in _tensors(adapted) if n in before and not _equal(before[n], t)]:
        raise WrongError(f"{changed[0]} changed, and is no adapter")
    learned = sum(bool(p.any()) for n, p in trained.items() if "lora_B" in n)
    if not learned or not min(losses) < losses[0]:
        raise WrongError(f"{learned} adapters learned, the loss went {losses[0]} -> {losses[-1]}")
    return learned


def _steps(adapted: nn.Module, trained: Any, run: Run) -> list[float]:
    optimizer = torch.optim.Adam(list(trained), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        torch.manual_seed(2)
        outputs = [each for each in tensors(adapted(**run.model.inputs())) if each.requires_grad]
        if not outputs:
            raise WrongError("no gradient reaches the adapters")
        loss = sum(((each - 0.5) ** 2).mean() for each in outputs)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((n, t) for n, t in model.state_dict().items() if isinstance(t, torch.Tensor))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return not states.unequal_bits(a, b)


def _ours_or_empty(ours: Callable[[], str], in_float: Callable[[], Any], what: str) -> str:
    """What ours gives. Only where it fails the float model is asked: it takes as long.

    Raises EmptyError where that cannot do it either.
    """
    try:
        return ours()
    except Exception:
        _or_empty(in_float, what)
        raise


def _or_empty(attempt: Callable[[], Any], what: str) -> None:
    """Do it with the float model. Raises EmptyError where that cannot do it."""
    try:
        attempt()
    except Exception as error:  # whatever it is, the float model's
        raise EmptyError(f"the float model does not {what}: {told(error)}") from None


def told(error: BaseException) -> str:
    """An error in one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


CELLS: dict[str, Callable[[Run], str]] = {
    "share": share,
    "forward": forward,
    "compile": compiled,
    "export": exported,
    "save": saved,
    "directory": directory,
    "pretrained": pretrained,
    "lora": lora,
}


def row(model: Model, names: Sequence[str] = tuple(CELLS)) -> dict[str, Cell]:
    """The cells of one model, each run here and now."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        run = Run(model, Path(folder))
        found = {name: _cell(CELLS[name], run) for name in names}
        return {name: Cell(ok, why.replace(folder, "…")) for name, (ok, why) in found.items()}


def _cell(run_cell: Callable[[Run], str], run: Run) -> Cell:
    try:
        return Cell(True, run_cell(run))
    except EmptyError as error:
        return Cell(None, str(error))
    except WrongError as error:
        return Cell(False, str(error))
    except Exception as error:  # it is what the cell reports
        return Cell(False, told(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings, of which libraries have many: what matters is in the cells."""
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
