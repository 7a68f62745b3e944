# SPDX-License-Identifier: BSD-3-Clause
"""bs.calibrate: quantize a model with what can be learned from data."""

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration import observers
from blockscale.calibration.algorithms import Transform, WeightAlgorithm, check_rotatable, rotates
from blockscale.calibration.batches import Batches, device_of
from blockscale.calibration.bias import CORRECT, KEEP, correct_biases, correctable
from blockscale.calibration.block_calls import BlockAlgorithm
from blockscale.calibration.experts import (
    StackNotes,
    same_modules,
    split_stacks,
    stacks_of,
    streamed_stacks,
    tell_lists,
)
from blockscale.calibration.learn import Data, Methods, choose, read_methods
from blockscale.calibration.mixing import ALL, all_tokens
from blockscale.calibration.padding import MASK, Padding, notes_of
from blockscale.calibration.ranks import Ranks
from blockscale.calibration.rotated import Rotated, rotated
from blockscale.calibration.session import Session
from blockscale.calibration.walk.resume import method_text
from blockscale.calibration.walk.weights import Source, stream_weights
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.format import Format
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import quote
from blockscale.core.work import Progress
from blockscale.layers.apply import apply, check, plans_for
from blockscale.layers.computed import folded
from blockscale.layers.guards import (
    Group,
    agreeing,
    check_group,
    check_whole,
    is_group,
    ordinary_tensors,
    replacing,
)
from blockscale.layers.model import without_wrappers
from blockscale.layers.parameters import ParameterPlan, plan_parameters
from blockscale.layers.plan import Plan


def calibrate(  # noqa: PLR0913 - the first four are the call, the rest are options
    model: nn.Module,
    batches: Iterable[Any],
    recipe: Recipe | Format | str | Path | None = None,
    observer: observers.Spec | None = None,
    *,
    weight: str | WeightAlgorithm | BlockAlgorithm | None = None,
    transform: str | Transform | None = None,
    strict: bool = False,
    progress: bool | Progress = True,
    sequential: bool | str = True,
    blocks: bool | str = True,
    budget: float = 2e9,
    seed: int | None = None,
    source: Source | None = None,
    resume: str | Path | None = None,
    group: Group = None,
    padding: str | bool | None = MASK,
    experts: int | str = 128,
    bias: str | None = None,
) -> Ledger:
    """Quantize a model in place, with scales and weights that are chosen from data; or let a
    graph that `bs.graph.prepare` gave learn from it what its convert needs.

    Inputs and outputs whose block is `tensor` or `channel-1` get a static scale from an observer;
    with other blocks they stay dynamic, and the ledger says so. The model runs in evaluation mode
    and without gradients; its batches are moved to its device.

    batches: an iterable of mappings (keyword arguments), tuples or lists (positional arguments) or
        single arguments. What can be read only once, such as a generator, will do for one pass.
    recipe: as in `quantize_`; None for a prepared graph, which has one, and what follows. Where it
        says how it is calibrated, as presets do (`bs.preset`), that holds for each of observer,
        weight, transform and bias that is None.
    observer: a name (`bs.observers.names()`), also with a setting; a class; a function of a format.
        None is "mse".
    weight: "absmax", which None is; "mse", "search", "hqq", "gptq", "signround", an instance, also
        of a BlockAlgorithm; "auto": the recipe's own, else weight and transform of a close preset.
    transform: None, "smoothquant", "awq", "hadamard", "quarot", "spinquant", or an instance.
    strict: raise SkippedError, before anything is changed, if something that the recipe covers
        cannot be quantized, or saw no data. Otherwise one warning names them.
    progress: a bar on stderr if that is a terminal; False for none; or a Progress that listens.
    sequential: with a weight algorithm that needs the layers' inputs, quantize one block of the
        model after the other, each seeing the inputs that the blocks before leave it; "layers":
        inside of a block as well, one group of layers side by side after the other, at a run of the
        block for each. False: all see the inputs of the float model.
    blocks: True: where several passes are needed, walk the model's repeated blocks (children of one
        class of an nn.ModuleList or nn.Sequential): each is run at most three times for a batch.
        A pattern such as "model.layers.*" names them. Where there are none, and with False, whole
        passes are made instead, with `sequential` one for each group of layers.
    budget: bytes for statistics that are held at one time; what exceeds it takes another run. A
        layer of k inputs needs 12 k² for a weight algorithm or a transform. As many bytes again are
        for the inputs of blocks; what exceeds them lies in a temporary directory.
    seed: for stochastic rounding of weights, and for what block algorithms draw by chance, such as
        the samples of each step; None is 0 there.
    source: for a model on the meta device: a directory of safetensors files (or one of them), a
        mapping or a function of names. The weights of one block are read at a time, quantized and
        kept as codes.
    resume: a directory for finished blocks: a run that was stopped goes on after them. ResumeError
        if they are another run's.
    group: in a group of several processes (torch.distributed), what each of them sees. A process
        group: batch i of all is that of process i mod N, and all end with one model, made from all
        batches, whose bits do not depend on N (docs/scale.md). "same": the same batches, so that
        all have to end with the same codes and scales, which is compared. "local": batches of its
        own, for a model of its own. None is refused there.
    padding: the name of the mask [batch, tokens] of 0 and 1 in batches that are mappings: tokens
        that it says are padding stay out of observers, statistics and errors where a layer's input
        is [batch, tokens, features]; the ledger says how many, and which layers see them. None or
        False: all tokens count.
    experts: tokens that an expert's own statistics need; those that saw fewer are filled up with
        those of all of their layer, which the ledger says. 0: none; "all": each sees every token.
    bias: "correct": the mean of each layer's error over the batches is taken out of its bias, in a
        pass of the quantized model (Nagel et al. 2019, arXiv 1906.04721). "keep": it stays.

    Returns the Ledger. Raises TypeError and ValueError for arguments that do not fit, and a model
    that is sharded or dispatched; RuntimeError where processes end with other codes, or another
    one raised something; and what the model raises. Whatever is raised, also by Ctrl-C, the model
    is as it was before.
    """
    data = Data(batches, strict, progress, _read(sequential), budget, blocks, resume,
                seed=seed, padding=Padding(padding).key, **_of_experts(experts))  # fmt: skip
    own: Any = getattr(model, "calibrate_from", None)
    check_group(group, "bs.calibrate", compared=own is None)
    if own is not None:
        return _calibrate_prepared(own, data, recipe, observer, weight, transform, bias)
    check_whole(model, "bs.calibrate")
    recipe, methods = _methods(recipe, observer, weight, transform, bias, source)
    algorithm = methods.algorithm if sequential else None
    corrects = asks_correction(recipe, bias) and correctable(batches, source, group, algorithm)
    methods.check_profiles(recipe)
    data = deal(model, data, recipe, methods, group)
    with without_wrappers(model) as plain, ordinary_tensors(), replacing(plain, "bs.calibrate"):
        with (
            subnormals_kept(),  # also in what is learned outside ops
            folded(plain, recipe) as folding,
            _rotation(plain, recipe, methods, data) as rotation,
            nullcontext() if source is None else stream_weights(plain, source, seed) as settler,
        ):
            data = data._replace(settler=settler)
            if rotation is not None:
                methods = methods._replace(transform=rotation.transform)
                data = data._replace(batches=rotation.batches)
            with agreeing(plain, group):
                ledger = _quantized(plain, recipe, methods, data, seed, corrects=corrects)
        ledger = folding.with_details(ledger)
        if rotation is not None:
            ledger = rotation.with_details(ledger)
    ledger.warn()
    return ledger


def _rotation(
    model: nn.Module, recipe: Recipe, methods: Methods, data: Data
) -> AbstractContextManager[Rotated | None]:
    """The model with its residual stream rotated, where the transform does so."""
    if not rotates(methods.transform):
        return nullcontext()
    return rotated(model, methods.transform, recipe, data.batches, data.padding, data.ranks)


def _of_experts(experts: int | str) -> dict[str, Any]:
    if experts == ALL:
        return {"every": True}
    if isinstance(experts, bool) or not isinstance(experts, int) or experts < 0:
        raise ValueError(
            "experts must be the least number of tokens that an expert's own statistics need, a "
            f"whole number >= 0, or 'all', got {experts!r}"
        )
    return {"minimum": experts}


def _read(sequential: bool | str) -> bool | str:
    if sequential == "once":
        raise ValueError(
            "sequential='once' is gone, as it lost no less than True and took longer: use "
            "sequential=True, or 'layers' where each layer is to see the quantized layers before it"
        )
    if sequential not in (True, False, "layers"):
        raise ValueError(f"unknown sequential {sequential!r}; choose from True, False, 'layers'")
    return sequential


def _methods(
    choice: Any, observer: Any, weight: Any, transform: Any, bias: Any, source: Source | None
) -> tuple[Recipe, Methods]:
    """The recipe as it is carried out, and its methods. Raises ValueError where there is none, for
    unknown ones and what cannot be streamed."""
    if choice is None:
        raise ValueError("no recipe: pass one, such as 'int8'; only a prepared graph has its own")
    recipe, methods = read_methods(Recipe.read(choice), observer, weight, transform, bias)
    if source is not None:
        check_rotatable(methods.transform, _STREAMED)
    return recipe, methods


def asks_correction(recipe: Recipe, bias: str | None) -> bool:
    """Whether biases are to be corrected: what was asked for, else what the recipe says.

    Raises ValueError for another word.
    """
    own = recipe.calibration.bias if recipe.calibration is not None else None
    choice = own if bias is None else bias
    if choice not in (CORRECT, KEEP, None):
        words = f"{CORRECT!r}, {KEEP!r}, None"
        raise ValueError(f"unknown bias {quote(str(choice))}; choose from {words}")
    return choice == CORRECT


_STREAMED = (
    "it needs the whole model, and source= reads one block at a time. Load the weights "
    "first, or use transform='hadamard'"
)


def _quantized(
    model: nn.Module,
    recipe: Recipe,
    methods: Methods,
    data: Data,
    seed: int | None,
    *,
    corrects: bool,
) -> Ledger:
    """Plan, learn from the batches and swap the layers in; the ledger says how each was done."""
    plans = plans_for(model, recipe)
    parameters = list(plan_parameters(model, plans, recipe))
    if data.settler is None:
        check(plans, parameters, recipe, strict=data.strict)
    else:
        data.settler.parameters = [p for p in parameters if isinstance(p, ParameterPlan)]
    modules = dict(model.named_modules(remove_duplicate=False))
    with split_stacks(model, parameters if data.settler is None else [], recipe) as stacks:
        every = [*plans, *(layer for stack in stacks for layer in stack.layers)]
        layers = [plan for plan in every if isinstance(plan, Plan)] if data.every else []
        with all_tokens(model, layers, methods.algorithm):
            session = choose(model, every, methods, data)
    same_modules(modules, model)
    tell_lists(session)
    of_stacks = stacks_of(session, stacks)
    if data.settler is not None:
        of_stacks |= streamed_stacks(model, parameters)
    ledger = apply(
        model, plans, recipe, session.places, strict=data.strict, seed=seed,
        qweights=session.weights, ready=session.ready,
    )  # fmt: skip
    if corrects:
        correct_biases(model, session, data.batches, data.padding)
    return with_notes(ledger, session, of_stacks)


def _calibrate_prepared(calibrate_from: Any, data: Data, *methods: object) -> Ledger:
    """Let a prepared graph learn, which knows its recipe and methods."""
    if any(each is not None for each in methods):
        raise ValueError(
            "the recipe, observer, weight algorithm and transform of a prepared graph are "
            "set in bs.graph.prepare: pass them there (bias='correct' is for models)"
        )
    with subnormals_kept():
        ledger: Ledger = calibrate_from(data)
    return ledger


_READ = "plain rounding: it is not the weight of a layer, so there is no data about its inputs"


def with_notes(
    ledger: Ledger, session: Session, stacks: Mapping[str, StackNotes] | None = None
) -> Ledger:
    """The ledger with how each layer was done, and what was noted on the way.

    stacks: what is said of stacks of experts
    """
    entries = []
    for entry in ledger:
        details = session.details.get(entry.name)
        if details is not None:
            dynamic = [
                f"dynamic {part}"
                for part in ("input", "output")
                if getattr(entry, part) and not getattr(session.places[entry.name], part)
            ]
            text = ", ".join(dict.fromkeys([*details, *dynamic]))
            notes = (*entry.notes, *session.notes[entry.name])
            entry = replace(entry, details=text, notes=notes)  # noqa: PLW2901
        elif entry.status == "quantized" and entry.name in (stacks or {}):
            of_stack = (stacks or {})[entry.name]
            text = "; ".join(filter(None, [*of_stack.details, entry.details]))
            entry = replace(entry, details=text, notes=(*entry.notes, *of_stack.notes))  # noqa: PLW2901
        elif entry.status == "quantized" and entry.kind.startswith("parameter of "):
            text = "; ".join(filter(None, [_READ, entry.details]))
            entry = replace(entry, details=text)  # noqa: PLW2901
        entries.append(entry)
    notes = (*ledger.notes, *notes_of(session.alike))
    return replace(ledger, entries=entries, notes=notes)


# What processes that calibrate one model together have to agree on, compared before they begin.


def deal(model: nn.Module, data: Data, recipe: Recipe, methods: Methods, group: Any) -> Data:
    """The data with this process's batches as a list, and with who has the others; as it is unless
    `group` is a process group.

    Raises ValueError, in every process and before anything was changed, where processes hold other
    models, recipes, methods, options or versions, or not the batches that are theirs.
    """
    if not is_group(group):
        return data
    ranks = Ranks(group, device_of(model))
    by_block = callable(getattr(methods.algorithm, "quantize_block", None))
    if by_block and not getattr(methods.algorithm, "dealt", False):
        raise ValueError(
            f"{method_text(methods.algorithm)} learns from the calls of one process: leave out "
            "group=, or let it sum over task.ranks and say so by an attribute dealt = True"
        )
    compare_facts(ranks, lambda: _facts(model, data, recipe, methods), "bs.calibrate")
    batches: list[Any] = []
    ranks.together(lambda: batches.extend(Batches(data.batches, 1, "", Progress(), empty=True)))
    ranks.deal_batches(len(batches))
    return data._replace(batches=batches, ranks=ranks)


def compare_facts(ranks: Ranks, own: Callable[[], dict[str, str]], function: str) -> None:
    """Raise ValueError, in every process, where one has other facts than the first.

    own: {what it is: what it is here}
    function: that was called
    """
    facts = ranks.together(own)
    for rank, other in enumerate(facts):
        for what in {**facts[0], **other}:
            first, second = (each.get(what, "none") for each in (facts[0], other))
            if first != second:
                raise ValueError(
                    f"{function}: process {rank} has another {what} than process 0: {second} "
                    f"and not {first} (this is process {ranks.rank}). Nothing was changed: call it "
                    "with the same model and arguments, but for the batches, in all processes"
                )


def _facts(model: nn.Module, data: Data, recipe: Recipe, methods: Methods) -> dict[str, str]:
    """{what it is: what it is here}"""
    settings = data._asdict()
    facts = {
        "recipe": json.dumps(recipe.to_dict()),
        "weight algorithm": method_text(methods.algorithm),
        "transform": method_text(methods.transform),
        "observer": method_text(methods.observer),
    }
    facts |= {name: str(settings[name]) for name in _OPTIONS}
    return facts | model_facts(model)


def model_facts(model: nn.Module) -> dict[str, str]:
    """{what it is: what it is here}, of a model and what runs it"""
    facts = {
        "version of blockscale": str(sys.modules["blockscale"].__version__),
        "version of torch": str(torch.__version__),
    }
    with without_wrappers(model) as plain:
        for name, tensor in plain.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                facts[f"tensor {name!r} in its model"] = _checksum(tensor.detach())
    return facts


_OPTIONS = ("strict", "sequential", "budget", "blocks", "seed", "padding")


def _checksum(tensor: Tensor) -> str:
    """Shape, dtype, and sums of its bits that are as fast as memory and do not depend on order."""
    about = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.is_meta:
        return about
    data = tensor.contiguous().flatten().view(torch.uint8)
    whole = data[: data.numel() // 8 * 8].clone().view(torch.int64)
    first = bytes(data[:256].cpu().tolist())
    rest = int(data[data.numel() // 8 * 8 :].sum()) + zlib.crc32(first)
    return f"{about} {(int(whole.sum()) + rest) % 2**64:016x}"
