# SPDX-License-Identifier: BSD-3-Clause
"""C files of integer models, compiled and called; an encoder with the words that occur."""

import copy
import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

NO_COMPILER = "no C compiler is installed: cc, gcc or clang is needed to run the file"
_STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
_TYPES = {
    "int8_t": torch.int8, "uint8_t": torch.uint8, "int16_t": torch.int16, "int32_t": torch.int32,
    "int64_t": torch.int64,
}  # fmt: skip
_RUN = re.compile(r"^int model_run\((.*)\);$", re.M)
_DOOR = re.compile(r"(?:const )?(\w+) \*(in|out)_(\w+)")
_HEAD = 200  # lines in which the head, the macros and the declaration stand


def compiler() -> str | None:
    """The path of a C compiler, None without one."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def compiled(path: Path) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    """A C file that bs.export.c wrote under the name "model" -> what calls it, compiled to a
    library beside it: named inputs -> its outputs, float32 by the exponents that it states,
    or integers where it states none.

    Raises RuntimeError without a compiler, or where the compiler refuses the file; what calls it a
    ValueError for an input of another size.
    """
    found = compiler()
    if found is None:
        raise RuntimeError(NO_COMPILER)
    library = path.with_suffix(".so")
    command = [found, *_STRICT, "-O2", "-shared", "-fPIC", str(path), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{found} refuses {path}: {done.stderr[-500:]}")
    with path.open(encoding="ascii") as file:
        head = "".join(line for line, _ in zip(file, range(_HEAD), strict=False))
    declared = _RUN.search(head)
    if declared is None:
        raise RuntimeError(f"{path} does not declare model_run: it was not written by bs.export.c")
    doors = [each.groups() for each in _DOOR.finditer(declared[1])]
    function = ctypes.CDLL(str(library)).model_run
    return lambda given: _called(function, doors, head, given)


def _called(
    function: Any, doors: list[tuple[str, ...]], head: str, given: Mapping[str, Tensor]
) -> list[Tensor]:
    values = []
    for ctype, way, name in doors:
        if way == "in":
            x = given[name].to(_TYPES[ctype]).contiguous()
            if x.numel() != (size := _macro(head, f"IN_{name.upper()}_SIZE")):
                raise ValueError(f"{name} has {x.numel()} elements, the C file is for {size}")
            values.append(x)
        else:
            values.append(torch.empty(_shape(head, f"out_{name}"), dtype=_TYPES[ctype]))
    if function(*(ctypes.c_void_p(each.data_ptr()) for each in values)):
        raise RuntimeError("model_run returned an error: an index lies outside of its table")
    outputs = [(n, y) for (_, way, n), y in zip(doors, values, strict=True) if way == "out"]
    return [_decoded(head, name, y) for name, y in outputs]


def _decoded(head: str, name: str, y: Tensor) -> Tensor:
    if f"MODEL_OUT_{name}_EXPONENT" not in head:
        return y
    zero, exponent = (_macro(head, f"OUT_{name}_{each}") for each in ("ZERO", "EXPONENT"))
    return (y.to(torch.float64) - zero).ldexp(torch.tensor(exponent)).to(torch.float32)


def _shape(head: str, name: str) -> list[int]:
    found = re.search(rf"^ \* output \w+ {name}\[\d+\]: (\d+(?: x \d+)*|one)", head, re.M)
    if found is None:
        raise RuntimeError(f"the C file does not state the shape of {name}")
    return [int(n) for n in found[1].split(" x ") if n != "one"]


def _macro(head: str, name: str) -> int:
    found = re.search(rf"^#define MODEL_{name} \(?(-?\d+)\)?$", head, re.M)
    if found is None:
        raise RuntimeError(f"the C file does not state MODEL_{name}")
    return int(found[1])


def with_occurring_words(
    model: Any, tokens: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of a BERT encoder of transformers whose word embeddings are the rows that occur, and
    the tokens in its numbering. It computes what the model does.

    tokens: input_ids int64 [sentences, length] and what goes with them
    """
    words, ids = tokens["input_ids"].unique(return_inverse=True)
    part = copy.deepcopy(model)
    table = part.embeddings.word_embeddings
    part.embeddings.word_embeddings = nn.Embedding.from_pretrained(table.weight[words].detach())
    return part, dict(tokens) | {"input_ids": ids}
