# SPDX-License-Identifier: BSD-3-Clause
"""A process of its own for the cases of a part: what crashes or hangs ends it, and the rest goes on."""

import json
import mmap
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack.part import Case, Counts, Found, Part

# Of what both processes see, each a store of its own, as one that is half done would be read: the
# case that runs; 1 once all are done; when the case began, in ns, or that it has not; the processor
# time that the process had used by then, in ns.
_CASE, _FINISHED, _BEGAN, _USED = range(4)
_NOT_YET = 2**62
_ROOM = 3 << 30
# A case hangs once it has used its seconds of processor time, or waited for so many times as long:
# on a machine with other work the clock on the wall says nothing about a case.
PATIENCE = 20


class Worker:
    """Runs cases from `first` on in a forked process until `until`, or until `count` of them."""

    def __init__(self, part: Part, seed: int, folder: Path):
        self._part, self._seed, self._folder = part, seed, folder

    def run(self, first: int, until: float, count: int | None = None) -> dict[str, Any]:
        """{next: the case to go on with, counts, failures: [{case, kind, text}]}."""
        counts: Counts = {}
        failures: list[dict[str, Any]] = []
        done = first
        while time.monotonic() < until and (count is None or done < first + count):
            last = None if count is None else first + count
            done, ended = self._some(done, until, last, counts, failures)
            if failures and failures[-1]["kind"] == "prepare":
                raise RuntimeError(f"{self._part.name}: {failures[-1]['text']}")
            if not ended:
                done += 1  # what ended it is a failure; go on behind it
        return {"next": done, "counts": counts, "failures": failures}

    def _some(
        self, first: int, until: float, last: int | None, counts: Counts, failures: list[dict]
    ) -> tuple[int, bool]:
        own = Path(tempfile.mkdtemp(dir=self._folder))  # what a crash left lies in another one
        shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        shared[_CASE] = first
        shared[_BEGAN] = shared[_USED] = _NOT_YET  # what is prepared may take long
        notes = own.with_suffix(".notes")
        notes.write_bytes(b"")
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                self._serve(first, until, last, shared, own)
            finally:
                os._exit(3)
        how = self._watch(child, shared)
        number, finished = shared[_CASE], shared[_FINISHED]
        for line in notes.read_text(errors="replace").splitlines():
            note = json.loads(line)
            failures += [note["failure"]] if "failure" in note else []
            for name, more in note.get("counts", {}).items():
                counts[name] = counts.get(name, 0) + more
        broken = failures and failures[-1]["kind"] == "prepare"
        if not finished and not broken:
            counts[self._part.unit] = counts.get(self._part.unit, 0) + number - first + 1
            failures.append({"case": number, "kind": how, "text": how})
        return number, bool(finished)

    def _watch(self, child: int, shared: memoryview) -> str:
        """Wait for the process; kill one whose case takes too long. How it ended."""
        pause = 0.002
        try:
            while True:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    sent = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                    code = os.waitstatus_to_exitcode(status)
                    return f"killed by {signal.Signals(sent).name}" if sent else f"exit code {code}"
                if self._hangs(child, shared):
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return f"hangs: more than {self._part.seconds:g} s"
                time.sleep(pause)
                pause = min(pause * 1.5, 0.1)
        except BaseException:  # Ctrl-C
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise

    def _hangs(self, child: int, shared: memoryview) -> bool:
        limit = 1e9 * self._part.seconds
        used = time.clock_gettime_ns(
            (~child << 3) | 2
        )  # the process's clock, as pthread.h makes it
        waited = time.monotonic_ns() - shared[_BEGAN]
        return used - shared[_USED] > limit or waited > PATIENCE * limit

    def _serve(
        self, first: int, until: float, last: int | None, shared: memoryview, folder: Path
    ) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        if self._part.memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + self._part.memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        counts: Counts = {}
        number = first
        with folder.with_suffix(".notes").open("a") as file:
            try:
                if self._part.prepare:
                    self._part.prepare(folder)
            except Exception as error:
                text = "".join(traceback.format_exception(error)[-3:])
                file.write(
                    json.dumps({"failure": {"case": first, "kind": "prepare", "text": text}})
                )
                return
            # one at least: where time was up before all was prepared it always would be
            while number == first or (time.monotonic() < until and number != last):
                shared[_BEGAN], shared[_USED] = time.monotonic_ns(), time.process_time_ns()
                shared[_CASE] = number
                failure = attempt(
                    self._part.case, Case(number, self._seed, folder), counts, self._part.unit
                )
                if failure is not None:
                    file.write(json.dumps({"failure": failure}) + "\n")
                    file.flush()
                number += 1
            file.write(json.dumps({"counts": counts}) + "\n")
        shared[_CASE], shared[_FINISHED] = number, 1
        os._exit(0)


def attempt(
    run: Callable[[Case], Counts | None], case: Case, counts: Counts, unit: str
) -> dict[str, Any] | None:
    """Run one case; what failed, or None."""
    try:
        more = run(case)
    except Exception as error:
        more = {}
        kind = error.kind if isinstance(error, Found) else _place(error)
        text = (
            str(error)
            if isinstance(error, Found)
            else "".join(traceback.format_exception(error)[-3:])
        )
        failure = {"case": case.number, "kind": kind, "text": text[:1500]}
    else:
        failure = None
    for name, count in (more or {unit: 1}).items():
        counts[name] = counts.get(name, 0) + count
    return failure


def _place(error: BaseException) -> str:
    """The kind of an exception, and the innermost line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/blockscale/" in f.filename] or list(frames)
    place = ours[-1] if ours else None
    where = f" at {Path(place.filename).name}:{place.name}" if place else ""
    return f"{type(error).__name__}{where}"
