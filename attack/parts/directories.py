# SPDX-License-Identifier: BSD-3-Clause
"""Directories that a stranger made: `blockscale quantize` and `inspect` on them.

A command ends with exit code 0 or 1 and one message; it hangs on nothing, takes no more memory than is
sensible, and changes nothing outside the output.
"""

import os
import shutil
import sys
import traceback
from pathlib import Path

import typer

from attack import models
from attack.part import Case, Counts, Found, Part
from attack.tricks import TRICKS

# what a trick meets where an earlier one was
_NOTHING_TO_PLAY_ON = (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError, RecursionError)  # fmt: skip


def _run(folder: Path, words: list[str]) -> tuple[int, str]:
    """The command in a process of its own, without a terminal; its exit code and what it printed."""
    said = folder / "said"
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.chdir(folder)
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = _command(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said.read_bytes().decode(errors="backslashreplace")


def _command(words: list[str]) -> int:
    from blockscale.cli.app import app

    try:
        typer.main.get_command(app).main(words, standalone_mode=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def case(case: Case) -> Counts:
    rng, user = case.random(), case.folder / "user"
    shutil.rmtree(user, ignore_errors=True)
    user.mkdir()
    (user / "victim").mkdir()
    (user / "victim" / "file").write_text("precious")
    models.write_directory(user / "model")
    chosen = rng.choices(TRICKS, k=rng.choice((1, 1, 2)))
    for trick in chosen:
        try:
            trick(rng, user / "model")
        except _NOTHING_TO_PLAY_ON:
            continue
    before = _outside(user)
    names = " + ".join(trick.__name__.strip("_") for trick in chosen)
    words = rng.choice((["quantize", "model", "out", "--recipe", "int8:group16:fp32"], ["inspect", "model"],
                        ["quantize", "model", "out", "--recipe", "nvfp4", "--force"],
                        ["clean", "out", "--yes"], ["verify", "model"]))  # fmt: skip
    code, said = _run(user, words)
    where = f"{names}: {' '.join(words)}: exit code {code}: {said[-1200:]}"
    if code not in (0, 1, 2) or "Traceback" in said:
        last = next((line for line in reversed(said.splitlines()) if line[:1].isalpha()), "")
        raise Found(
            f"{words[0]}: {'a traceback' if code > 0 else f'signal {-code}'}: {last.split(':')[0]}",
            where,
        )
    if "\x1b" in said:
        raise Found(f"{words[0]}: an escape sequence reaches the terminal", repr(where))
    if _outside(user) != before:
        raise Found(f"{words[0]}: something outside the output has changed", where)
    if code == 0 and words[0] == "quantize":
        again, text = _run(user, ["inspect", "out"])
        if again:
            raise Found("what was published cannot be read", f"{names}: {text[-500:]}")
    shutil.rmtree(user, ignore_errors=True)
    return {"hostile directories": 1}


def _outside(user: Path) -> dict[str, str]:
    """What the command must leave alone: sizes and times, as some files have no end."""
    found = {}
    for folder in (user / "victim", user / "model"):
        for path in sorted(folder.rglob("*")):
            status = path.lstat()
            found[os.fsencode(path).hex()] = (
                f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
            )
    found["mine"] = str((user / "out" / "mine.txt").exists() or "--force")
    return found


def prepare(folder: Path) -> None:
    """Load all that the command needs, before processes are forked."""
    user = folder / "user"
    user.mkdir()
    models.write_directory(user / "model")
    from blockscale.cli.app import app

    typer.main.get_command(app)  # all commands are imported
    code, said = _run(user, ["quantize", "model", "out", "--recipe", "int8:group16:fp32"])
    assert code == 0, said


PARTS = (
    Part(
        "directories",
        "hostile directories",
        1000,
        case,
        seconds=20,
        prepare=prepare,
        memory=6 << 30,
    ),
)
