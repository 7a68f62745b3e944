# SPDX-License-Identifier: BSD-3-Clause
"""Several processes write the bytes of one, and what goes wrong in one is an error in all."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from blockscale.files.directory.beside import beside
from blockscale.files.directory.plan import DirectoryPlan
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.directory.shared_run import difference, pieces_of
from blockscale.files.directory.tops import joined_in
from tests.files.directory import shared
from tests.support import fresh
from tests.support.file_models import contents, tiny_tensors, write_model


def tensors() -> dict[str, torch.Tensor]:
    """With projections of different files that share their outer scale."""
    more = {f"layers.0.attn.{name}_proj.weight": torch.randn(24, 40) * 3 for name in "qkv"}
    return tiny_tensors() | {name: each.bfloat16() for name, each in more.items()}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes went through all cases of `shared.work`."""
    folder = tmp_path_factory.mktemp("two")
    model = write_model(folder / "model", tensors(), 3)
    short = shutil.copytree(model, folder / "short")
    file = short / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes() + b" ")
    with warnings.catch_warnings(action="ignore"):
        quantize_directory(model, folder / "one", {"weight": "nvfp4"})
    fresh.ranks(shared.work, folder, shared.WORLD)
    return folder


def told(folder: Path, case: str) -> list[str]:
    return [torch.load(folder / f"{rank}.pt")[case].get("error", "") for rank in range(2)]


@pytest.mark.slow
def test_the_bytes_are_those_of_one_process(two: Path) -> None:
    assert contents(two / "out-plain") == contents(two / "one")
    assert [path.name for path in beside(two / "out-plain")] == []


@pytest.mark.slow
def test_rank_0_has_the_ledger_and_shows_what_all_have_written(two: Path) -> None:
    first, second = (torch.load(two / f"{rank}.pt")["plain"] for rank in range(2))
    assert first["ledger"] and not second["ledger"]
    assert first["seen"]["advanced"] == first["seen"]["total"] > 0
    assert second["seen"]["total"] == second["seen"]["advanced"] == 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("recipe", ["rank 1 on ", "was given another recipe", "run the same command on all hosts"]),
        ("seed", ["rank 1 on ", "was given another seed (1) than rank 0 (0)"]),
        ("sources", ["rank 1 on ", "sees model-00002-of-00003.safetensors with ", "rank 0 with "]),
        ("refused", ["none does not exist"]),
        ("full", ["the disk of ", " is full: make room on it"]),
    ],
)
def test_what_is_wrong_in_one_is_told_by_all(two: Path, case: str, words: list[str]) -> None:
    for each in told(two, case):
        assert each.startswith("FileError") and all(word in each for word in words), each
    assert not (two / f"out-{case}").exists() or case == "full"


def test_nothing_is_written_before_all_agree(two: Path) -> None:
    for case in ("recipe", "seed", "sources", "refused"):
        assert beside(two / f"out-{case}") == []


def test_a_run_goes_on_after_a_full_disk(two: Path) -> None:
    assert told(two, "full.again") == ["", ""]
    assert contents(two / "out-full") == contents(two / "one")


def test_a_stopped_run_goes_on_with_one_process(two: Path) -> None:
    first, second = told(two, "stopped")
    assert second == "SystemExit: 143"
    assert "rank 1 on " in first and "was stopped: run the same command again to go on" in first
    assert not (two / "out-stopped").exists()
    seen = shared.Seen()
    quantize_directory(two / "model", two / "out-stopped", {"weight": "nvfp4"}, progress=seen)
    assert 0 < seen.done < seen.total  # what both had finished
    assert contents(two / "out-stopped") == contents(two / "one")


def plan_of(path: Path) -> DirectoryPlan:
    return plan_directory(write_model(path / "model", tensors(), 2), path / "out", "nvfp4")


@pytest.mark.parametrize("most", [1, 5000, 10**9])
def test_pieces_hold_each_tensor_once(tmp_path: Path, most: int, monkeypatch) -> None:
    monkeypatch.setattr("blockscale.files.directory.shared_run.PIECE", most)
    plan = plan_of(tmp_path)
    joined = joined_in(plan.shards)
    for shard in plan.shards:
        pieces = list(pieces_of(shard, {}, joined))
        assert [each.name for piece in pieces for each in piece.tensors] == [
            each.name for each in shard.tensors
        ]
        assert {name: each for piece in pieces for name, each in piece.layout.items()} == dict(
            shard.layout
        )
        for piece in pieces:
            nbytes = [each.source.nbytes for each in piece.tensors]
            assert len(nbytes) == 1 or sum(nbytes) <= most
            shared_with = {name for each in piece.tensors for name in each.outer_group}
            assert piece.where.keys() == shared_with
    done = {each.name: () for each in plan.shards[0].tensors}
    [last] = pieces_of(plan.shards[0], done, joined)
    assert last.tensors == () and last.size == plan.shards[0].size


def test_how_ranks_differ() -> None:
    own = {"host": "a", "blockscale": "1", "torch": "2.13", "recipe": {}, "seed": 0,
           "sources": {"x.safetensors": (8, "abc")}}  # fmt: skip
    assert difference(own, own | {"host": "b"}) == ""
    words = {
        "torch": ("2.12", "RANK on b has torch 2.12, rank 0 on a has 2.13: install the same"),
        "blockscale": ("2", "RANK on b has blockscale 2, rank 0 on a has 1"),
        "sources": ({}, "RANK on b does not see x.safetensors of the model"),
    }
    for what, (other, text) in words.items():
        assert difference(own, own | {"host": "b", what: other}).startswith(text)
    changed = own | {"host": "b", "sources": {"x.safetensors": (8, "abd")}}
    assert "another header than rank 0" in difference(own, changed)


@pytest.mark.slow
def test_a_killed_rank_is_missed_and_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", tensors(), 3)
    with warnings.catch_warnings(action="ignore"):
        quantize_directory(model, tmp_path / "one", {"weight": "nvfp4"})
    how = {"cwd": fresh.ROOT, "ready": fresh.WITH_OURS}
    code = "import sys; from tests.files.directory.shared import killed as work; "
    code += "work(int(sys.argv[1]), sys.argv[2])"
    jobs = [fresh.begin(code, rank, tmp_path, **how) for rank in range(3)]
    assert [job.end().returncode for job in jobs] == [0, 0, -signal.SIGKILL]
    for rank in range(2):
        told = (tmp_path / f"error-{rank}").read_text()
        assert "rank 2 gave no sign of life" in told and "run the same command again" in told
    assert not (tmp_path / "out").exists()
    fresh.ranks(shared.resumed, tmp_path, 2)
    done, total = map(int, (tmp_path / "done").read_text().split())
    assert 0 < done < total
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    """As a user says it; the answer of a wrong command is that of one process."""
    model = write_model(tmp_path / "model", tensors(), 3)
    with warnings.catch_warnings(action="ignore"):
        quantize_directory(model, tmp_path / "one", "nvfp4")
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run = [*start, "-m", "blockscale", "quantize", str(model), str(tmp_path / "out"), "-r", "nvfp4"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=fresh.ROOT, check=True)
    assert done.stdout.count("wrote ") == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "one")
    again = subprocess.run(run, capture_output=True, text=True, cwd=fresh.ROOT)
    assert again.returncode and "exists: choose another output" in again.stderr


HOST = """
import errno, fcntl, os, runpy, socket
def flock(file, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
socket.gethostname = lambda: "host" + os.environ["GROUP_RANK"]
runpy.run_module("blockscale", run_name="__main__")
"""


@pytest.mark.slow
def test_two_hosts_over_a_disk_without_locks(tmp_path: Path) -> None:
    """A torchrun of two processes on each, and one folder whose disk cannot lock, as NFS."""
    model = write_model(tmp_path / "model", tensors(), 3)
    with warnings.catch_warnings(action="ignore"):
        quantize_directory(model, tmp_path / "one", "nvfp4")
    (tmp_path / "host.py").write_text(HOST)
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--nnodes",
        "2",
    ]
    start += ["--rdzv-backend", "c10d", "--rdzv-id", "two", "--rdzv-endpoint"]
    run = [str(tmp_path / "host.py"), "quantize", str(model), str(tmp_path / "out"), "-r", "nvfp4"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    hosts = [
        subprocess.Popen(
            [*start, place, *run], stdout=-1, stderr=-1, text=True, cwd=fresh.ROOT,
            env=os.environ | {"PYTHONPATH": str(fresh.ROOT)},
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [host.communicate(timeout=300) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert sum(out.count("wrote ") for out, _ in said) == 1
    assert sum(err.count("has no locks (No locks available)") for _, err in said) == 1
    assert contents(tmp_path / "out") == contents(tmp_path / "one")
    assert [path.name for path in beside(tmp_path / "out")] == []
