# SPDX-License-Identifier: BSD-3-Clause
"""Tests with a bug in memory, each run in a fork of a process that has imported everything.

Two processes stand ready, started when first asked. One is a pytest session that has collected the
tests: its forks swap functions' code and run. Where a bug must be there before its module is
imported, or nothing failed, a fork of the other, which has imported torch and all that is not ours,
imports our code anew and is the last word.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import hypothesis
import pytest

from tests.support.marks import current_tests
from tests.support.planted import TooLateError, functions, plant, swap

ROOT = Path(__file__).parents[2]
PASSED, FAILED = int(pytest.ExitCode.OK), int(pytest.ExitCode.TESTS_FAILED)
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
TOO_LATE, TIMED_OUT = 100, 101
COMMON = [
    "-p",
    "no:cacheprovider",
    "-p",
    "no:durations",
    "--every-case",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]


@dataclass(frozen=True)
class Outcome:
    """How tests ended: pytest's exit code, or TIMED_OUT; what was printed; processor seconds."""

    code: int
    output: str
    seconds: float


_alive: set[int] = set()


def spent() -> float:
    """Processor seconds of the processes that stand ready and of their forks, until they are ended
    and are children like others; 0 where the system does not say."""
    return sum(_spent(number) for number in _alive)


def _spent(number: int) -> float:
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own_and_children = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime: proc(5)
    return own_and_children / os.sysconf("SC_CLK_TCK")


class Process:
    """One of the two that stand ready: `imported` or `bare`."""

    def __init__(self, kind: str, root: Path):
        here, there = os.pipe(), os.pipe()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
        for name in (
            "PYTEST_XDIST_WORKER",
            "PYTEST_CURRENT_TEST",
            "PYTEST_ADDOPTS",
            "BLOCKSCALE_CPU_ISA",
        ):
            environment.pop(name, None)
        command = [sys.executable, "-B", "-m", __name__, kind, str(there[0]), str(here[1])]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, pass_fds=(there[0], here[1]),
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _alive.add(self._process.pid)
        os.close(there[0])
        os.close(here[1])
        self._ask, self._answer = os.fdopen(there[1], "w"), os.fdopen(here[0])

    def run(self, request: dict[str, Any]) -> Outcome:
        """What a fork did. Raises RuntimeError, with what was printed, if the process is gone."""
        try:
            self._ask.write(json.dumps(request) + "\n")
            self._ask.flush()
            answer = self._answer.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(
                f"the process that tests fork from ended:\n{self._log.read()[-8000:]}"
            )
        return Outcome(**json.loads(answer))

    def close(self) -> None:
        """End it."""
        self._ask.close()
        self._answer.close()
        self._process.wait()
        self._log.close()
        _alive.discard(self._process.pid)


class Forks:
    """Both processes, in a copy of the repository. A context manager, which ends them."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def _run(self, kind: str, request: dict[str, Any]) -> Outcome:
        if kind not in self._processes:
            self._processes[kind] = Process(kind, self._root)
        return self._processes[kind].run(request)

    def run(
        self, tests: list[str], path: Path | None = None, text: str = "",
        slow: bool | None = None, timeout: float = 600,
    ) -> Outcome:  # fmt: skip
        """Run tests (pytest's names), until the first fails, while a file has another text.

        slow: those marked so, and no others; None: the others first, and those where all others
        pass or there are none.
        """
        request = {"tests": tests, "path": path and str(path), "text": text,
                   "slow": slow or False, "timeout": timeout}  # fmt: skip
        return _by_speed(self._run_both, request, slow)

    def _run_both(self, request: dict[str, Any]) -> Outcome:
        first = self._run("imported", request)
        if first.code == FAILED or request["path"] is None:
            return first
        last = self._run("bare", request)
        return Outcome(last.code, last.output, first.seconds + last.seconds)

    def run_anew(
        self, tests: list[str], environment: dict[str, str], slow: bool | None = None,
        timeout: float = 600,
    ) -> Outcome:  # fmt: skip
        """Run tests, until the first fails, with our code imported anew in this environment; slow
        as in `run`."""
        request = {"tests": tests, "path": None, "text": "", "slow": slow or False,
                   "timeout": timeout, "environment": environment}  # fmt: skip
        return _by_speed(partial(self._run, "bare"), request, slow)


def _by_speed(
    run: Callable[[dict[str, Any]], Outcome], request: dict[str, Any], slow: bool | None
) -> Outcome:
    """As `request` says; without a choice of `slow` then slow tests, too, where no other fails."""
    fast = run(request)
    if slow is None and fast.code in (PASSED, NO_TESTS):
        more = run(request | {"slow": True})
        if more.code == FAILED or fast.code == NO_TESTS:
            return more
    return fast


# In the processes


def forked(work: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Do work in a fork; its exit code, output and processor seconds."""
    with tempfile.TemporaryFile("w+") as log:
        before = os.times()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _become(work, request, log)
        code = _ended(child, time.monotonic() + request["timeout"])
        after = os.times()
        log.seek(0)
        seconds = after[2] + after[3] - before[2] - before[3]
        return {"code": code, "output": log.read()[-20000:], "seconds": round(seconds, 3)}


def _become(work: Any, request: dict[str, Any], log: IO[str]) -> None:
    os.setpgid(0, 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        code = work(request)
    except TooLateError:
        code = TOO_LATE
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the other process registered to be done at its exit is not done here


def _ended(child: int, end: float) -> int:
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMED_OUT
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it started and left
    return os.waitstatus_to_exitcode(status)


class FirstFailure:
    """Hypothesis ends with the first example that fails, and looks for no smaller one."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Before tests take over the settings; tests/conftest.py has chosen its profile."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("first failure", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("first failure")


def files_of_bugs() -> set[str]:
    """The files of all tests that find the planted bugs."""
    lists = (tomllib.loads(path.read_text()) for path in (ROOT / "tests/mutate").glob("*.toml"))
    bugs = [bug for each in lists for bug in each["sabotage"]]
    tests = current_tests(sorted({test for bug in bugs for test in bug["tests"]}))
    return {test.partition("::")[0] for test in tests}


class Imported(FirstFailure):
    """The pytest session that collects tests when they are first asked for."""

    def __init__(self, ask: IO[str], answer: IO[str]):
        self._ask, self._answer = ask, answer
        self._items: dict[str, list[pytest.Item]] = {}  # of each file
        self._alive: Any = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:  # type: ignore[override]
        """Nothing at the start."""
        super().pytest_collection()
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve until nobody asks any more."""
        for line in self._ask:
            request = json.loads(line)
            asked = {test.partition("::")[0] for test in request["tests"]}
            if not asked <= set(self._items):
                self._collect(session, sorted({*asked, *self._items, *files_of_bugs()}))
            result = forked(lambda asked: self._work(session, asked), request)
            self._answer.write(json.dumps(result) + "\n")
            self._answer.flush()
        return True

    def _collect(self, session: pytest.Session, files: list[str]) -> None:
        """At once: pytest gives fixtures of a conftest to the tests of one collection alone."""
        gc.unfreeze()
        self._items = {file: [] for file in files}
        for item in session.perform_collect(files):
            self._items[item.nodeid.partition("::")[0]].append(item)
        self._alive = functions(ROOT)
        gc.collect()
        gc.freeze()  # forks share what they do not write to

    def _work(self, session: pytest.Session, request: dict[str, Any]) -> int:
        if request["path"]:
            path = Path(request["path"])
            if path.suffix != ".py":
                plant(path, request["text"])
            elif path.is_relative_to(ROOT / "tests"):
                raise TooLateError("tests' own files are imported by pytest")
            else:
                swap(path, request["text"], self._alive)
        items = [item for test in request["tests"] for item in self._chosen(test, request["slow"])]
        session.testsfailed = 0
        session.shouldfail = session.shouldstop = False
        for item, following in pairwise([*dict.fromkeys(items), None]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                reporter = session.config.pluginmanager.get_plugin("terminalreporter")
                failures = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
                print("", *(each.longreprtext for each in failures), sep="\n")
                return FAILED
        return PASSED if items else NO_TESTS

    def _chosen(self, test: str, slow: bool) -> list[pytest.Item]:
        file = test.partition("::")[0]
        return [
            item for item in self._items[file]
            if test in (file, item.nodeid) or item.nodeid.startswith((f"{test}[", f"{test}::"))
            if (item.get_closest_marker("slow") is not None) == slow
            if not any(item.get_closest_marker(each) for each in ("gpu", "clients"))
        ]  # fmt: skip


class Bare:
    """The process that has imported nothing of ours: what forks import of others', it has too."""

    def __init__(self, ask: IO[str], answer: IO[str]):
        self._ask, self._answer = ask, answer

    def serve(self) -> None:
        """Until nobody asks any more."""
        importlib.import_module("torch")
        for line in self._ask:
            with tempfile.TemporaryDirectory() as folder:
                result = forked(self._work, json.loads(line) | {"folder": folder})
                names = Path(folder, "names")
                for name in names.read_text().split() if names.exists() else ():
                    with contextlib.suppress(Exception):
                        importlib.import_module(name)
            self._answer.write(json.dumps(result) + "\n")
            self._answer.flush()

    def _work(self, request: dict[str, Any]) -> int:
        before = set(sys.modules)
        os.environ.update(request.get("environment", {}))
        if request["path"]:
            plant(Path(request["path"]), request["text"])
            self._plant_below(request)
        arguments = [*COMMON, "-x", *(["-m", "slow"] if request["slow"] else []), *request["tests"]]
        code = int(pytest.main(arguments, [FirstFailure()]))
        places = {name: getattr(module, "__file__", None) or str(ROOT)
                  for name, module in list(sys.modules.items()) if name not in before}  # fmt: skip
        others = [name for name, file in places.items()
                  if f"{sys.prefix}/" in file or not file.startswith(str(ROOT))]  # fmt: skip
        Path(request["folder"], "names").write_text("\n".join(others))
        return code

    def _plant_below(self, request: dict[str, Any]) -> None:
        """In the Pythons that tests start, too: each begins with this."""
        text = f"""import sys
sys.path.append({str(ROOT)!r})
from pathlib import Path
from tests.support.planted import plant
plant(Path({request["path"]!r}), {request["text"]!r})
"""
        Path(request["folder"], "sitecustomize.py").write_text(text)
        paths = [request["folder"], *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def main(kind: str, ask: int, answer: int) -> None:
    """One of the two processes, until nobody asks any more."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # as tests/conftest.py does, before Triton is imported
    torch.set_num_threads(1)
    with os.fdopen(ask) as asked, os.fdopen(answer, "w") as answered:
        if kind == "bare":
            Bare(asked, answered).serve()
        else:
            pytest.main([*COMMON, "-s", "-m", "", "tests/support"], [Imported(asked, answered)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
