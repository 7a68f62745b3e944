# SPDX-License-Identifier: BSD-3-Clause
"""A fresh Python for each test that needs one, without the second that importing torch takes.

One process, started when the first test asks, imports torch and nothing else; another one torch,
its compiler and blockscale, for programs that are about something else (`ready=WITH_OURS`). Each
program runs in a fork: what it prints and how it ends is its own, and neither it nor the tests'
process sees what the other imported. Settings that are read before torch is (OMP_NUM_THREADS,
LD_PRELOAD, what the allocator takes) need a Python of their own:
`subprocess.run([sys.executable, ...])`.
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
# What a server has done. Torch imports its compiler, two seconds, where a program exports, trains
# or shards, and what shards need late; tests of several processes are modules that import pytest.
TORCH = "import torch"
WITH_OURS = """
import torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.export._trace
import torch.distributed.checkpoint.state_dict, torch.distributed.tensor.parallel
import blockscale, pytest
"""

# Each job is a line of JSON; the fork that waits for it says "ID is PID" and, when that has ended,
# "ID EXITCODE SECONDS".
_SERVER = """
import atexit, json, os, signal, sys, time, traceback, types, warnings
os.setsid()  # a group of its own, which ends with it
exec(sys.argv[1], {})
os.write(1, f"0 0 {time.process_time()}\\n".encode())

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

for line in sys.stdin:
    job = json.loads(line)
    if os.fork():
        os.wait()  # the fork below ends as soon as it has one of its own
        continue
    if os.fork():
        os._exit(0)
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
os.killpg(0, signal.SIGKILL)  # what still runs when the tests have ended, however they did
"""

_servers: dict[str, subprocess.Popen[str]] = {}
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
        while self.number not in _ended:
            _hear(self.server)
        return self._done(check)

    def stop(self) -> None:
        """End it, wherever it is; what it would have done is not done."""
        while self.number not in _pids | _ended:
            _hear(self.server)
        if self.number not in _ended:
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
    ready: str = TORCH,
) -> Job:
    """Run code as `python -c code args` would, torch imported; env replaces the environment, and
    `warn` is what -W says ("ignore", "error"); ready: what is imported already."""
    global _count
    server = _started(ready)
    _count += 1
    folder: Any = tempfile.TemporaryDirectory()
    job = {
        "id": _count, "code": code, "args": [str(each) for each in args],
        "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd()),
        "warn": warn, "out": f"{folder.name}/out", "err": f"{folder.name}/err",
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


def ranks(work: Callable[[int, str], None], folder: Path, count: int) -> None:
    """Run work(rank, folder), a function of a test module, in so many processes at once; the first
    that fails ends all."""
    code = f"""
import sys
from {work.__module__} import {work.__name__} as work
work(int(sys.argv[1]), sys.argv[2])
"""
    how: dict[str, Any] = {"cwd": ROOT, "ready": WITH_OURS}
    end_all([begin(code, rank, folder, **how) for rank in range(count)])


def run(code: str, *args: object, check: bool = False, **how: Any) -> subprocess.CompletedProcess:
    """`begin` and `end`."""
    return begin(code, *args, **how).end(check)


def _started(ready: str) -> subprocess.Popen[str]:
    server = _servers.get(ready)
    if server is None or server.poll() is not None:
        pipe = subprocess.PIPE
        server = _servers[ready] = subprocess.Popen(
            [sys.executable, "-c", _SERVER, ready], stdin=pipe, stdout=pipe, text=True
        )
        atexit.register(_stop, server)
    return server


def _stop(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()


def _hear(server: subprocess.Popen[str]) -> None:
    global _seconds
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise RuntimeError("the process that tests fork has ended: it says why on stderr")
    number, code, seconds = line.split()
    if code == "is":
        _pids[int(number)] = int(seconds)
        return
    _pids.pop(int(number), None)
    _ended[int(number)] = int(code)
    _seconds += float(seconds)
