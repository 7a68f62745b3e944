# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale quantize --calibrate`: a model's directory, quantized with what a text shows."""

import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.ranks import ALONE, ElsewhereError, Ranks
from blockscale.cli.evaluating import tokenizer_of
from blockscale.cli.model_directory import fitting, read_model
from blockscale.core.ledger import Ledger
from blockscale.core.recipe import Recipe
from blockscale.evaluation.texts import Text, held_out, windows
from blockscale.files.directory.journal import file_digest
from blockscale.files.directory.model_files import LEDGER
from blockscale.files.directory.output import absolute, check_apart, check_names, check_target
from blockscale.files.directory.quantize_directory import as_json
from blockscale.files.directory.swap import restore, whole_folder
from blockscale.files.metadata import VERSION
from blockscale.layers.guards import is_launched

_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".index.json")
_PATIENCE = timedelta(days=1)  # for the slowest process: torchrun ends all if one dies
_NO_TOKENIZER = "put the model's there (tokenizer.json), which --calibrate reads the text with"


@dataclass(frozen=True)
class Calibrating:
    """text: a file, or "-" for Python's help texts; length and count of the sequences of it;
    strict, seed and weight as in `bs.calibrate`."""

    text: Path
    length: int
    count: int
    strict: bool = False
    seed: int = 0
    weight: str | None = None

    @property
    def source(self) -> Text:
        """The text itself."""
        return held_out(None if str(self.text) == "-" else self.text)

    def rows(self, model: nn.Module, path: Path) -> Tensor:
        """int64 [sequences, tokens]. Raises ValueError for a text that fills none."""
        length = fitting(model, self.length)
        return windows(self.source, tokenizer_of(path, _NO_TOKENIZER), length, self.count)


def calibrated_directory(
    path: Path, out: Path, recipe: Recipe, how: Calibrating, *, force: int = 0, quiet: bool = False
) -> Ledger:
    """Calibrate the model of a directory, and write it with the files beside its weights.

    `out` appears when it is complete. Where torchrun has started several processes, sequence i is
    that of process i mod N, and the first of them writes. Raises FileError for directories that
    cannot be used, ValueError for a model that is quantized, a text that is too short, and as
    `bs.calibrate`.
    """
    goal = absolute(out)
    with process_group() as ranks:
        show = not quiet and ranks.rank == 0
        try:
            ranks.by_first(lambda: _prepare(path, goal, force))
            model, rows, ledger = _calibrated(path, recipe, how, ranks, progress=show)

            def write() -> None:
                with whole_folder(goal, bool(force)) as folder:
                    model.save_pretrained(folder)
                    _copy_others(path, folder)
                    about = _about(model, path, how, tuple(rows.shape), folder)
                    (folder / LEDGER).write_bytes(as_json(about | ledger.to_dict()))

            ranks.by_first(write)
        except ElsewhereError as error:
            raise ValueError(str(error)) from None
    return ledger


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The processes that torchrun has started, which are in a group as long as this lasts; without
    torchrun there is one."""
    if not is_launched():
        yield ALONE
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)  # models are calibrated on the CPU here
    try:
        yield Ranks(dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def _prepare(path: Path, goal: Path, force: int) -> None:
    """Raise for a target that cannot be written, before hours of work."""
    check_apart(path, goal)
    restore(goal)
    check_names(goal, ())
    check_target(goal, force)


def _calibrated(
    path: Path, recipe: Recipe, how: Calibrating, ranks: Ranks, *, progress: bool
) -> tuple[Any, Tensor, Ledger]:
    """The model of a directory, calibrated; the rows of all processes; and the ledger."""
    model, ours = read_model(path, "auto")
    if ours:
        raise ValueError(f"{path} is quantized already: name the float model's directory")
    rows = how.rows(model, path)
    own = rows[ranks.rank :: ranks.size]
    batches = [{"input_ids": x[None], "attention_mask": torch.ones_like(x[None])} for x in own]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "blockscale:", UserWarning)  # the ledger is shown
        ledger = calibrate(
            model, batches, recipe, weight=how.weight or "auto", strict=how.strict,
            seed=how.seed, progress=progress, group=ranks.group,
        )  # fmt: skip
    if not ledger.quantized:
        raise ValueError(f"the recipe quantizes nothing in {path}")
    return model, rows, ledger


def _copy_others(path: Path, folder: Path) -> None:
    """What lies beside a model's weights: tokenizer, settings, its card."""
    for file in sorted(path.iterdir()):
        is_copied = file.is_file() and not file.name.startswith(".")
        is_copied = is_copied and not file.name.endswith(_NOT_COPIED) and file.name != LEDGER
        if is_copied and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _about(
    model: Any, path: Path, how: Calibrating, shape: tuple[int, ...], folder: Path
) -> dict[str, Any]:
    """What the ledger says besides, as of a directory that was rounded; and of the text."""
    text = how.source
    recipe = model.hf_quantizer.quantization_config.recipe
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_digest(file)}
        for file in sorted(folder.iterdir())
    }
    return {
        "version": VERSION, "source": str(path.absolute()), "recipe": recipe.to_dict(),
        "calibrated_with": {"text": text.name, "text_sha256": text.digest,
                            "sequences": shape[0], "length": shape[1]},
        "seed": how.seed, "blockscale": sys.modules["blockscale"].__version__,
        "torch": torch.__version__, "files": files,
    }  # fmt: skip
