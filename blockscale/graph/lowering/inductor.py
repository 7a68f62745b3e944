# SPDX-License-Identifier: BSD-3-Clause
"""Compiling graphs that were lowered to "inductor"."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx

from blockscale.graph.program import exported
from blockscale.graph.state import state

OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}


def compiled(graph: fx.GraphModule, **options: Any) -> Callable[..., Any]:
    """torch.compile of a graph lowered to "inductor", keeping every rounding to 16 bits.

    options: further ones of Inductor
    By default Inductor keeps the float32 number where a graph rounds to bfloat16 or float16 and
    goes on, so that plain torch.compile changes bits of models in 16 bits and under 16-bit scales.
    Everything else has the same bits either way.

    Raises ValueError for a graph that was not lowered to "inductor". Warns where Inductor freezes:
    it then computes the weights beforehand, and the program holds them as floats.
    """
    _check(graph)
    return torch.compile(graph, options=OPTIONS | options)


def package(graph: fx.GraphModule, path: str | Path, **options: Any) -> Path:
    """Compile a graph lowered to "inductor" ahead of time and write the package (`.pt2`).

    options: as in `compiled`
    `torch._inductor.aoti_load_package(path)` reads it, in processes without blockscale too; a C++
    compiler is needed here. Returns the path. Raises ValueError as `compiled`, where ops of
    ours are left in the graph and for a path where no such file can be; torch's errors where
    compiling fails.
    """
    _check(graph)
    path = _check_place(Path(path))
    left = sorted({n.name for n in graph.graph.nodes if str(n.target).startswith("blockscale.")})
    if left:
        raise ValueError(
            f"{', '.join(left)} stayed on the reference, whose Python ops a package cannot "
            "hold: see the graph's ledger, and use formats that can be traced"
        )
    program = exported(graph)
    with torch.no_grad():
        made = torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=OPTIONS | options
        )
    return Path(made)


def _check_place(path: Path) -> Path:
    """The path, if a package can be written there; compiling takes long before torch says no."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a directory: name the file to write, e.g. {path / 'model.pt2'}"
        )
    if path.suffix != ".pt2":
        expected = path.with_suffix(".pt2")
        raise ValueError(f"{path}: the name of a package must end in .pt2: write it to {expected}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory: create it first")
    return path


def _check(graph: fx.GraphModule) -> None:
    known = state(graph)
    if known.target != "inductor":
        raise ValueError(
            f"expected a graph lowered to 'inductor', found one of stage {known.stage!r}"
            + (f" for {known.target!r}" if known.target else "")
            + ": pass bs.graph.lower(graph, 'inductor')"
        )
    from torch._inductor import config

    if config.freezing:
        warnings.warn(
            "Inductor is set to freeze: it decodes the weights while it compiles, and the program "
            "will hold them as floats; set torch._inductor.config.freezing = False to keep codes",
            stacklevel=3,
        )
