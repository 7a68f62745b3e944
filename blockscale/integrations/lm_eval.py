# SPDX-License-Identifier: BSD-3-Clause
"""Our models in EleutherAI's lm-eval (https://github.com/EleutherAI/lm-evaluation-harness, 0.4).

Importing it needs the extra `eval`. `harness_model` gives what `lm_eval.simple_evaluate(model=)`
takes; `evaluate_tasks` runs tasks by name or from a file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import nn

from blockscale.layers.guards import device_of


def harness_model(model: nn.Module, tokenizer: Any, *, batch_size: int = 1) -> Any:
    """The `LM` of a model of transformers whose layers we quantized, on the device where it is.

    model: a causal language model of transformers, in any of our forms
    tokenizer: its tokenizer of transformers
    batch_size: requests at one time
    Raises TypeError for a model without a configuration of transformers, which the harness asks.
    """
    if getattr(model, "config", None) is None:
        raise TypeError(
            f"lm-eval asks a model's config for its lengths and kind, found a "
            f"{type(model).__name__} without one: pass a model of transformers"
        )
    if getattr(tokenizer, "pad_token_id", None) is None:
        tokenizer.pad_token = tokenizer.eos_token
    with torch.no_grad():
        return HFLM(
            pretrained=model.eval(),
            tokenizer=tokenizer,
            batch_size=batch_size,
            device=str(device_of(model)),
        )


def evaluate_tasks(
    model: nn.Module,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    batch_size: int = 1,
) -> dict[str, dict[str, float]]:
    """{task: {metric: value}} of tasks, each with its standard error as the harness has it.

    tasks: names that lm-eval knows, whose data it loads (from the hub, unless they are here
        already), or paths of .yaml files of tasks with data of your own
    limit: examples of each task at most
    Raises ValueError for tasks that lm-eval does not know.
    """
    files = [name for name in tasks if name.endswith((".yaml", ".yml"))]
    manager = TaskManager(include_path=sorted({str(Path(f).parent) for f in files}) or None)
    names = [Path(name).stem if name in files else name for name in tasks]
    every = set(manager.all_tasks)
    if unknown := sorted(set(names) - every):
        raise ValueError(
            f"unknown task {unknown[0]!r}; lm-eval has {len(every)}: `lm-eval ls tasks` lists "
            f"them, and a .yaml file's name must be its task's"
        )
    item: Any = lm_eval.simple_evaluate(
        model=harness_model(model, tokenizer, batch_size=batch_size),
        tasks=names,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=0 if limit is not None and limit < 2 else 1000,
    )
    return {
        task: {
            metric.removesuffix(",none").replace(",", " "): float(value)
            for metric, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for task, values in item["results"].items()
    }
