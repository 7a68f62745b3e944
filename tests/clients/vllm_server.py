# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's OpenAI-compatible server as a process: started on a directory, asked, stopped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.programs import environment, python_of

HOST = "127.0.0.1"
_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
_OPTIONS = [
    "--dtype",
    "float32",
    "--max-model-len",
    "128",
    "--max-num-seqs",
    "4",
    "--enforce-eager",
]
_STARTING = 300  # seconds at most
_STOPPING = 60


@dataclass
class Server:
    """A server that answers. port: where; process: its first one; log: what it printed."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, path: str, **body: object) -> Any:
        """What it answers to a POST of this JSON, or to a GET where there is none."""
        with self._open(path, body) as answer:
            return json.loads(answer.read())

    def stream(self, path: str, **body: object) -> list[Any]:
        """The events of an answer that comes piece by piece, but for the last, which says so."""
        with self._open(path, body | {"stream": True}) as answer:
            lines = answer.read().decode().splitlines()
        events = [each.removeprefix("data: ") for each in lines if each.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(each) for each in events[:-1]]

    def stop(self) -> int:
        """Ask it to end, as Ctrl-C does -> its exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_STOPPING)

    def answers(self) -> bool:
        """Whether anybody listens."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=10) as found:
                return found.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def _open(self, path: str, body: dict[str, object]) -> Any:
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{path}", json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"},
        )  # fmt: skip
        return urllib.request.urlopen(request, timeout=120)


@contextlib.contextmanager
def serving(directory: Path, installed: Path, log: Path, *options: str) -> Iterator[Server]:
    """`vllm serve directory` with these options, ready to answer; no process of it is left after.
    It is started as a module: the command asks for metadata of "vllm", and this build is vllm-cpu.

    Raises AssertionError with the end of its log where it ends before it answers.
    """
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [
        python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", directory,
        "--host", HOST, "--port", str(port), *_OPTIONS, *options,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment(installed) | _VARIABLES,
            start_new_session=True,
        )  # fmt: skip
    server = Server(port, process, log)
    try:
        for _ in range(2 * _STARTING):
            if server.answers():
                break
            assert process.poll() is None, log.read_text()[-8000:]
            time.sleep(0.5)
        else:
            raise AssertionError(f"no answer in {_STARTING} s: {log.read_text()[-8000:]}")
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
