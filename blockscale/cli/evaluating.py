# SPDX-License-Identifier: BSD-3-Clause
"""What `blockscale eval` opens: models in every form that we read, tokenizers, lm-eval's tasks."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core.untrusted import json_object, read_json
from blockscale.evaluation.texts import Text
from blockscale.files.metadata import FileError


def open_model(path: Path, device: str) -> nn.Module:
    """The model of a directory or file, as its config names it, with the codes it holds.

    Raises ValueError for what no model of transformers can be made of, and for a device that this
    machine does not have.
    """
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from None
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "models are read by transformers, which is not installed: pip install transformers"
        ) from None
    from blockscale.integrations.transformers import from_checkpoint

    transformers.utils.logging.disable_progress_bar()
    names: list[Any] = []
    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").is_file():
        config = folder / "config.json"
        names = json_object(read_json(config, unique_keys=False, finite=False), config).get(
            "architectures"
        ) or []  # fmt: skip
    first = names[0] if isinstance(names, list) and names else None
    kind = getattr(transformers, first, None) if isinstance(first, str) else None
    kind = kind if kind is not None else transformers.AutoModelForCausalLM
    model: nn.Module = from_checkpoint(path, kind)
    return model.to(place)


_ELSEWHERE = "name a directory that has, with --tokenizer"


def tokenizer_of(path: Path, instead: str = _ELSEWHERE) -> Callable[[str], Sequence[int]]:
    """What makes a text the tokens of a model, without marks of its beginning and end.

    path: the directory of a tokenizer, or a GGUF file, which carries its own (the extra `gguf`)
    instead: what to do where a directory has none, for the error
    Raises ValueError where there is none.
    """
    from transformers import AutoTokenizer

    where: dict[str, Any] = {}
    folder = path
    if path.is_file():
        folder, where = path.parent, {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    if not where and not any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")
    ):
        raise ValueError(f"{folder} has no tokenizer: {instead}")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, **where)
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{path}: its tokenizer cannot be read ({reason}): pip install 'blockscale[gguf]', or "
            f"name a directory with --tokenizer"
        ) from None
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def about_of(model: Path, against: Path | None, text: Text, rows: Tensor) -> dict[str, Any]:
    """What an evaluation was measured on."""
    return {
        "model": str(model),
        "against": None if against is None else str(against),
        "text": text.name,
        "text_sha256": text.digest,
        "sequences": rows.shape[0],
        "length": rows.shape[1],
        "blockscale": bs.__version__,
        "torch": torch.__version__,
    }


def tasks_of(
    model: nn.Module, tokenizer: Path, names: Sequence[str], limit: int | None
) -> dict[str, dict[str, float]]:
    """{task: {metric: value}} of lm-eval's tasks. Raises ValueError without the extra `eval`."""
    try:
        from blockscale.integrations.lm_eval import evaluate_tasks
    except ImportError:
        raise ValueError(
            "tasks are lm-eval's, which is not installed: pip install 'blockscale[eval]'"
        ) from None
    from transformers import AutoTokenizer

    if not tokenizer.exists():
        raise FileError(
            f"{tokenizer} does not exist: name a directory with a tokenizer by --tokenizer"
        )
    words = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    return evaluate_tasks(model, words, names, limit=limit)
