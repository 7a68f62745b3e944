# SPDX-License-Identifier: BSD-3-Clause
"""A fresh Python for each test that needs one, without the second that importing torch takes.

One process, started when the first test asks, imports torch and nothing else; a fork of it torch's
compiler and blockscale, for programs that are about something else (`ready=WITH_OURS`), and one of
that transformers (`WITH_TRANSFORMERS`). Each program runs in a fork: what it prints and how it ends
is its own, and neither it nor the tests' process sees what the other imported. Settings that are
read before torch is (OMP_NUM_THREADS, LD_PRELOAD, what the allocator takes) need a Python of their
own: `subprocess.run([sys.executable, ...])`.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# What has been done where a program begins, each in a fork of the one before. Torch imports its
# compiler, two seconds, where a program exports, trains or shards, and what shards need late; tests
# of several processes are modules that import pytest.
# A worker of xdist has torch compute on one thread (tests/conftest.py), and so have its programs:
# two that wait for each other at full speed would take a processor from the other worker.
TORCH = ("import os, torch; 'PYTEST_XDIST_WORKER' in os.environ and torch.set_num_threads(1)",)
WITH_OURS = (
    *TORCH,
    """
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.export._trace
import torch.distributed.checkpoint.state_dict, torch.distributed.tensor.parallel
import blockscale, pytest
""",
)
WITH_TRANSFORMERS = (
    *WITH_OURS,
    """
import accelerate, peft, transformers
transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM
""",
)

# Each job is a line of JSON; the fork that waits for it says "ID is PID" and, when that has ended,
# "ID EXITCODE SECONDS".
_SERVER = """
import atexit, gc, json, os, signal, sys, time, traceback, types, warnings
os.setsid()  # a group of its own, which ends with it

def begin(job):
    # the tests may run where interrupts are ignored, as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    sys.argv[:] = ["-c", *job["args"]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if job["warn"]:
        warnings.resetwarnings()
        warnings.simplefilter(job["warn"])
    code = 0
    try:
        exec(compile(job["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = 1
        if isinstance(error, KeyboardInterrupt):  # as Python ends itself then
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

def fork_for(job):
    waiting = os.fork()
    if waiting:
        os.waitpid(waiting, 0)  # it ends as soon as it has a fork of its own
        return
    if os.fork():
        os._exit(0)
    for name in ("out", "err"):  # there, too, for who ends the program before it begins
        os.close(os.open(job[name], os.O_WRONLY | os.O_CREAT))
    child = os.fork()
    if not child:
        begin(job)
    os.write(1, f"{job['id']} is {child}\\n".encode())
    status = os.waitpid(child, 0)[1]
    used = os.times()
    seconds = used.children_user + used.children_system
    answer = f"{job['id']} {os.waitstatus_to_exitcode(status)} {seconds}\\n"
    os.write(1, answer.encode())
    os._exit(0)

def serve(ready, lines):
    exec(ready, {})
    gc.freeze()  # forks need not look at it, nor copy it
    os.write(1, f"0 0 {time.process_time()}\\n".encode())
    further = {}  # what else is to be done first -> where a fork that has done it reads its jobs
    for line in lines:
        job = json.loads(line)
        if not job["ready"]:
            fork_for(job)
            continue
        first = job["ready"].pop(0)
        if first not in further:
            reader, writer = os.pipe()
            if not os.fork():
                os.close(writer)
                serve(first, os.fdopen(reader))
            os.close(reader)
            further[first] = os.fdopen(writer, "w")
        further[first].write(json.dumps(job) + "\\n")
        further[first].flush()
    os.killpg(0, signal.SIGKILL)  # what still runs when the tests have ended, however they did

try:
    serve(sys.argv[1], sys.stdin)
except BaseException:
    traceback.print_exc()
    os.killpg(0, signal.SIGKILL)
"""

_server: subprocess.Popen[str] | None = None
_pids: dict[int, int] = {}
_ended: dict[int, int] = {}
_seconds = 0.0
_count = 0


def spent() -> float:
    """Processor seconds of all programs that have ended, and of the servers' imports."""
    return _seconds


@dataclass
class Job:
    """A program that runs; `end` waits for it."""

    number: int
    server: subprocess.Popen[str]
    command: Sequence[str]
    folder: tempfile.TemporaryDirectory[str]

    def end(self, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Its exit code (minus the signal that ended it), stdout and stderr, as of subprocess."""
        try:
            while self.number not in _ended:
                _hear(self.server)
        except RuntimeError:  # it is gone, too
            self.folder.cleanup()
            raise
        return self._done(check)

    def pid(self) -> int:
        """The number of its process, before `end`; 0 where it is known that it has ended."""
        while self.number not in _pids | _ended:
            _hear(self.server)
        return _pids.get(self.number, 0)

    def stop(self) -> None:
        """End it, wherever it is; what it would have done is not done."""
        if self.pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pids[self.number], signal.SIGKILL)
        self.end()

    def _done(self, check: bool) -> subprocess.CompletedProcess[str]:
        texts = [(Path(self.folder.name) / name).read_text() for name in ("out", "err")]
        self.folder.cleanup()
        done = subprocess.CompletedProcess(self.command, _ended.pop(self.number), *texts)
        if check and done.returncode:
            raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done


def begin(
    code: str,
    *args: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    warn: str = "",
    ready: tuple[str, ...] = TORCH,
) -> Job:
    """Run code as `python -c code args` would, torch imported; env replaces the environment, and
    `warn` is what -W says ("ignore", "error"); ready: what is imported already."""
    global _count
    server = _started(ready[0])
    _count += 1
    folder: Any = tempfile.TemporaryDirectory()
    job = {
        "id": _count, "code": code, "args": [str(each) for each in args],
        "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd()),
        "warn": warn, "ready": ready[1:], "out": f"{folder.name}/out", "err": f"{folder.name}/err",
    }  # fmt: skip
    assert server.stdin is not None
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.flush()
    return Job(_count, server, ("python", "-c", code, *job["args"]), folder)


def end_all(jobs: Sequence[Job]) -> None:
    """Wait until all have ended well. Raises AssertionError with what the first one that fails
    printed; the others, which may wait for it, are stopped."""
    left = list(jobs)
    try:
        while left:
            while not any(job.number in _ended for job in left):
                _hear(left[0].server)
            job = next(job for job in left if job.number in _ended)
            left.remove(job)
            job.end(check=True)
    finally:
        for job in left:
            job.stop()


def ranks(
    work: Callable[[int, str], None],
    folder: Path,
    count: int,
    ready: tuple[str, ...] = WITH_OURS,
) -> None:
    """Run work(rank, folder), a function of a test module, in so many processes at once; the first
    that fails ends all."""
    code = f"""
import sys
from {work.__module__} import {work.__name__} as work
work(int(sys.argv[1]), sys.argv[2])
"""
    how: dict[str, Any] = {"cwd": ROOT, "ready": ready}
    end_all([begin(code, rank, folder, **how) for rank in range(count)])


def run(code: str, *args: object, check: bool = False, **how: Any) -> subprocess.CompletedProcess:
    """`begin` and `end`."""
    return begin(code, *args, **how).end(check)


def _started(ready: str) -> subprocess.Popen[str]:
    global _server
    if _server is None or _server.poll() is not None:
        pipe = subprocess.PIPE
        _server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, ready], stdin=pipe, stdout=pipe, text=True
        )
        atexit.register(_stop, _server)
    return _server


def _stop(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        server.stdin.close()
    server.wait()
    server.stdout.close()


def _hear(server: subprocess.Popen[str]) -> None:
    global _seconds
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        server.wait()
        raise RuntimeError("the process that tests fork has ended: it says why on stderr")
    number, code, seconds = line.split()
    if code == "is":
        _pids[int(number)] = int(seconds)
        return
    _pids.pop(int(number), None)
    _ended[int(number)] = int(code)
    _seconds += float(seconds)
