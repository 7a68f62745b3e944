# SPDX-License-Identifier: BSD-3-Clause
"""Every call that changes a file, killed before, after and in its middle, or failing; then once more.

Afterwards what a user had is there, and a rerun gives the bytes of a run that nobody disturbed.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import blockscale as bs
from attack import calls, models
from attack.part import Case, Counts, Found, Part
from blockscale.files.directory import journal, leftovers
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.directory.swap import restore, whole_folder

_FORMAT = "int8:group16:fp32"


@dataclass(frozen=True)
class Scenario:
    """had: makes what a user has, below `user`; run: writes `user`/out or a part of it."""

    had: Callable[[Path], None]
    run: Callable[[Path], object]


def _source(user: Path) -> None:
    models.write_directory(user / "model")


def _source_and_output(user: Path) -> None:
    models.write_directory(user / "model")
    quantize_directory(user / "model", user / "out", "int4:group16:fp32")
    shutil.rmtree(user / "model")
    models.write_directory(user / "model")


def _file(user: Path) -> None:
    (user / "out").mkdir()
    (user / "out" / "net.pt2").write_bytes(b"what was here before")
    bs.save(_quantized("int4:group8:fp32"), user / "out" / "net.safetensors")


def _quantized(fmt: str) -> nn.Module:
    model = models.net()
    bs.quantize_(model, fmt)
    return model


def _quantize(user: Path, force: bool = False) -> object:
    return quantize_directory(user / "model", user / "out", _FORMAT, force=force)


def _save(user: Path) -> object:
    return bs.save(_quantized(_FORMAT), user / "out" / "net.safetensors")


def _program(user: Path) -> object:
    """Its bytes are not the same twice: torch writes the time. What it computes is."""
    place, x = user / "out" / "net.pt2", torch.ones(1, 32)
    bs.export.program(_quantized(_FORMAT), place, x, overwrite=True)
    values = torch.export.load(place).module()(x)
    place.write_bytes(values.detach().numpy().tobytes())
    return values


def _calibrate(user: Path) -> object:
    """The second run goes on from the blocks that are in the folder."""
    model = models.decoder()
    batches = [torch.linspace(-1, 1, 64).view(2, 32) * scale for scale in (1.0, 2.0)]
    bs.calibrate(model, batches, _FORMAT, weight="gptq", progress=False, resume=user / "state")
    return bs.save(model, user / "out" / "net.safetensors")


def _folder(user: Path) -> object:
    """As an exporter writes a directory in the place of another one."""
    with whole_folder(user / "out", force=True) as made:
        made.mkdir()
        for name in ("config.json", "model.safetensors"):
            (made / name).write_text(name * 100)
    return None


SCENARIOS = {
    "quantize": Scenario(_source, _quantize),
    "quantize --force": Scenario(_source_and_output, lambda user: _quantize(user, force=True)),
    "save": Scenario(_file, _save),
    "calibrate": Scenario(_file, _calibrate),
    "a folder": Scenario(_file, _folder),
}
_KILLS, _ERRORS = ("before", "after", "torn"), ("ENOSPC", "EIO", "EACCES", "short")
_known: dict[str, tuple[int, dict[str, str]]] = {}  # how many calls, and what they end in


def _clean(user: Path, scenario: Scenario) -> dict[str, str]:
    shutil.rmtree(user, ignore_errors=True)
    user.mkdir()
    scenario.had(user)
    return models.snapshot(user)


def prepare(folder: Path) -> None:
    """Run each scenario undisturbed."""
    leftovers._RECENT = -1.0  # nothing is too young to be cleaned away
    journal.SECONDS = 0.0  # each tensor is committed by itself, so that a kill finds some done
    for name, scenario in SCENARIOS.items():
        user = folder / "user"
        _clean(user, scenario)
        calls.plan(user)
        scenario.run(user)
        _known[name] = calls.stop(), models.snapshot(user)


def _points() -> list[tuple[str, int, str]]:
    """Every scenario, call and way to end."""
    modes = (*_KILLS, *_ERRORS)
    return [
        (name, call, mode)
        for name in SCENARIOS
        for call in range(_known[name][0])
        for mode in modes
    ]


def disturbed(user: Path, scenario: Scenario, call: int, mode: str) -> tuple[int, str]:
    """Run it in a process of its own; how that ended, and the error that it ended with."""
    said = user.parent / "said"
    said.write_text("")
    child = os.fork()
    if child == 0:
        code = 0
        try:
            calls.plan(user, call, mode)
            scenario.run(user)
        except (ValueError, OSError) as error:
            code = 1
            said.write_text(str(error))
        except BaseException as error:
            code = 2
            said.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read_text()


def _had_is_there(user: Path, had: dict[str, str], end: dict[str, str]) -> None:
    """What a user had is as it was, or has become the finished result."""
    now = models.snapshot(user)
    lost = [name for name, what in had.items() if now.get(name) not in (what, end.get(name))]
    kept = [name for name in now if ".blockscale-" in name.split("/")[0]]
    if lost and not (kept and all(name.startswith("out") for name in lost)):
        raise Found(
            "a user's file is lost", f"{lost[:3]} of {sorted(had)}; there is {sorted(now)[:20]}"
        )


def case(case: Case) -> Counts:
    points = _points()
    name, call, mode = points[case.number * 7919 % len(points)]  # all kinds early, each once
    scenario, user = SCENARIOS[name], case.folder / "user"
    had, end = _clean(user, scenario), _known[name][1]
    code, said = disturbed(user, scenario, call, mode)
    where = f"{name}, call {call} of {_known[name][0]} ends {mode}"
    if mode in _KILLS and code != -9:
        raise Found(f"{name}: a kill does not come", f"{where}: exit code {code}: {said}")
    if code == 2:
        raise Found(f"{name}: an error that is no OSError", f"{where}: {said}")
    if code == 1 and not said.strip():
        raise Found(f"{name}: an error without words", where)
    if mode == "short" and code != 0:
        raise Found(f"{name}: a short write is an error", f"{where}: {said}")
    _had_is_there(user, had, end)
    cleaned = 0
    if case.number % 2:  # what `blockscale clean` deletes is nobody's only copy
        left = [each for each in leftovers.find_leftovers(user / "out") if not each.keep]
        cleaned = sum(leftovers.delete(each) for each in left)
        _had_is_there(user, had, end)
    if name == "a folder":
        restore(user / "out")  # as the command does before it begins
    if code == 0 and (now := models.snapshot(user)) != end:
        raise Found(f"{name}: finished, but not what it should be", f"{where}: {_unlike(now, end)}")
    published = (user / "out").exists() and name.startswith("quantize") and mode not in _ERRORS
    if not published or "force" in name:
        _again(scenario, user, where, name)
    now = models.snapshot(user)
    now = {n: what for n, what in now.items() if not any(p[0] == "." for p in n.split("/"))}
    if now != end:
        raise Found(f"{name}: a rerun gives something else", f"{where}: {_unlike(now, end)}")
    ended = {"kill points": int(mode in _KILLS), "failing calls": int(mode in _ERRORS)}
    return ended | {"leftovers cleaned": cleaned}


def _again(scenario: Scenario, user: Path, where: str, name: str) -> None:
    if name == "quantize" and (user / "out").exists():
        return
    try:
        scenario.run(user)
    except (ValueError, OSError) as error:
        raise Found(f"{name}: a rerun is refused", f"{where}: {error}") from error


def _unlike(now: dict[str, str], end: dict[str, str]) -> str:
    names = [n for n in sorted(now.keys() | end.keys()) if now.get(n) != end.get(n)]
    return json.dumps({n: [now.get(n), end.get(n)] for n in names[:4]})


PARTS = (
    Part(
        "kills",
        "kill points",
        2000,
        case,
        seconds=60,
        share=2.0,
        prepare=prepare,
        missing=calls.missing,
    ),
)
