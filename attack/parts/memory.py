# SPDX-License-Identifier: BSD-3-Clause
"""The directory command and ops with less and less memory: they say so, or their result is right.

Native calls of their own are `python -m attack.scarce`.
"""

import os
import resource
import shutil
from pathlib import Path

import torch

from attack import models
from attack.part import Case, Counts, Found, Part
from attack.scarce import used
from blockscale.files.directory.quantize_directory import quantize_directory

_RECIPES = ("int8:group16:fp32", "nvfp4", "binary:tensor:fp32", "int4:tensor:fp32:asym")
_known: dict[str, dict[str, str]] = {}


def prepare(folder: Path) -> None:
    from safetensors.torch import save_file

    models.write_directory(folder / "model")
    torch.manual_seed(0)
    weights = {"large.weight": torch.randn(768, 1024), "small.weight": torch.randn(4, 64)}
    save_file(weights, folder / "model" / "model-00001-of-00002.safetensors", {"format": "pt"})
    (folder / "model" / "model.safetensors.index.json").unlink()
    for recipe in _RECIPES:
        assert _limited(folder, recipe, None)[0] == 0
        _known[recipe] = models.snapshot(folder / "out")
        shutil.rmtree(folder / "out")


def _limited(folder: Path, recipe: str, room: int | None) -> tuple[int, str]:
    """In a process of its own, always: what one leaves free would be there for the next."""
    said = folder / "said"
    said.write_text("nothing was said")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if room is not None:
                limit = used() + room
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            quantize_directory(folder / "model", folder / "out", recipe)
            code = 0
        except BaseException as error:
            said.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read_text()


def case(case: Case) -> Counts:
    rng, folder = case.random(), case.folder
    recipe = rng.choice(_RECIPES)
    # with less than a megabyte, CPython waits for a thread that never began
    room = int(1e6 + 64e6 * rng.random() ** 3)
    for path in folder.glob(".out.*"):
        shutil.rmtree(path)
    shutil.rmtree(folder / "out", ignore_errors=True)
    code, said = _limited(folder, recipe, room)
    where = f"{recipe} with {room / 1e6:.1f} MB: exit code {code}: {said}"
    if code not in (0, 1):
        raise Found("a run without memory ends without a word", where)
    words = (
        "MemoryError",
        "can't allocate memory",
        "bad_alloc",
        "can't start new thread",
        "Cannot allocate",
    )
    if code == 1 and not any(word in said for word in words):
        raise Found("a lack of memory is called something else", where)
    if (folder / "out").exists() != (code == 0):
        raise Found("a run without memory publishes what it has not finished", where)
    if code and (again := _limited(folder, recipe, None))[0]:
        raise Found("a rerun fails after a lack of memory", f"{where}; then {again[1]}")
    if models.snapshot(folder / "out") != _known[recipe]:
        raise Found("the result is another one after a lack of memory", where)
    return {"limits of memory": 1, "lacks": code}


PARTS = (Part("memory", "limits of memory", 1000, case, seconds=60, share=0.7, prepare=prepare),)
