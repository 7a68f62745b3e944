# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale eval`: what a quantized model has lost, on a text and on tasks."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import blockscale as bs
from blockscale.calibration.batches import BatchBar
from blockscale.cli.evaluating import about_of, open_model, tasks_of, tokenizer_of
from blockscale.cli.model_directory import fitting
from blockscale.core.untrusted import shown
from blockscale.core.work import Progress
from blockscale.evaluation.figures import Evaluation
from blockscale.evaluation.stored import StoredReference
from blockscale.evaluation.texts import held_out, windows
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.table import aligned


def eval(  # noqa: A001, PLR0913 - the command's name; one argument an option
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A directory or checkpoint that we read.")
    ],
    against: Annotated[
        Path | None, typer.Option(metavar="FLOAT", help="The float model, or what --store wrote.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A text in UTF-8. [default: Python's own help texts]")
    ] = None,
    sequences: Annotated[int, typer.Option(help="Sequences of the text.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 512,
    batch: Annotated[int, typer.Option(help="Sequences at one time.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its directory, where MODEL has none.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    layers: Annotated[bool, typer.Option("--layers", help="Each layer's error as well.")] = False,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B", help="Tasks of lm-eval (extra `eval`).")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Examples of each task at most.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="A file to go on from, if it was stopped.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep MODEL's logits, for --against.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(metavar="K", help="... of the K likeliest tokens alone.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure a model on a text, and against its float model.

    Loss, perplexity, divergence and agreement, each with its standard error. The text is cut into
    sequences that do not overlap. A model that gives no logits, such as an encoder, needs
    --against: its outputs are compared. Where both models do not fit, store one's logits first.
    """
    if out is not None:
        check_place(out, "evaluation.json")
    content = held_out(text)
    network = open_model(model, device)
    reference: Any = None
    if against is not None:
        stored = StoredReference.is_one(against)
        reference = against if stored else open_model(against, device)
    words = tokenizer_of(tokenizer or model)
    rows = windows(content, words, fitting(network, length), sequences)
    evaluation = bs.evaluate(
        network,
        [{"input_ids": part} for part in rows.split(batch)],
        reference,
        layers=layers,
        resume=state,
        about=about_of(model, against, content, rows),
        store=store,
        top=top,
        progress=Progress() if quiet else BatchBar("evaluating", "batches"),
    )
    data = evaluation.to_dict()
    if tasks is not None:
        data["tasks"] = tasks_of(network, tokenizer or model, tasks.split(","), limit)
    if out is not None:
        with written_whole(out) as temporary:
            temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    print(json.dumps(data, indent=2) if as_json else _text(evaluation, data))


def _text(evaluation: Evaluation, data: dict[str, Any]) -> str:
    lines = [str(evaluation)]
    if evaluation.layers is not None:
        lines += ["", str(evaluation.layers)]
    for task, values in data.get("tasks", {}).items():
        rows = [(shown(name), f"{value:.4f}") for name, value in values.items()]
        lines += ["", aligned((shown(task), "value"), rows)]
    return "\n".join(lines)
