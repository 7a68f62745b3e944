"""A run that is killed at any point goes on, redoes nothing that it finished, and ends the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blockscale.files.directory import journal as journals
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.directory.workspace import work_path
from blockscale.files.slabs import cutting
from tests.files.directory.places import Listener
from tests.files.models import contents, tiny_tensors, write_model

ROOT = Path(__file__).parents[3]


# Kills itself at the n-th step of progress; commits each tensor, so that a kill finds some done.
DRIVER = """
import os, signal, sys, warnings
from blockscale.files.directory import journal
from blockscale.files.slabs import cutting
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.core.progress import Progress

model, out, steps, sig, force = sys.argv[1:]
journal.SECONDS = 0.0
cutting.SLAB = 150
warnings.simplefilter("ignore")

class Killer(Progress):
    left = int(steps)
    def advance(self, name, nbytes):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), int(sig))
            while True:
                pass

quantize_directory(model, out, "nvfp4", force=force == "force", progress=Killer())
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Every tensor is committed by itself, so that a kill finds some done."""
    monkeypatch.setattr(journals, "SECONDS", 0.0)


def drive(model, out, steps, sig=signal.SIGKILL, force=""):
    command = [sys.executable, "-c", DRIVER, str(model), str(out), str(steps), str(int(sig)), force]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == -sig, done.stderr
    return done


def finished(model, out):
    """The tensors that the journal in the work directory lists."""
    work = work_path(out, plan_directory(model, out, "nvfp4").digest)
    lines = (work / "journal").read_text().splitlines() if (work / "journal").exists() else []
    return [json.loads(line)["tensor"] for line in lines]


@pytest.mark.parametrize("steps", [1, 30, 60])
def test_killed_and_resumed(model, whole, tmp_path, steps):
    out = tmp_path / "out"
    source = contents(model)
    drive(model, out, steps)
    assert not out.exists()
    assert contents(model) == source
    before = finished(model, out)
    assert len(before) >= {1: 0, 30: 2, 60: 5}[steps]
    counter = Listener()
    quantize_directory(model, out, "nvfp4", progress=counter)
    assert contents(out) == whole
    assert not set(counter.names) & set(before)
    tensors = tiny_tensors()
    assert counter.done == sum(tensors[name].nbytes for name in before)
    assert counter.done + counter.advanced == counter.total
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "whole"]


def test_killed_many_times(model, whole, tmp_path):
    for _ in range(2):
        drive(model, tmp_path / "out", 25)
    quantize_directory(model, tmp_path / "out", "nvfp4")
    assert contents(tmp_path / "out") == whole


def test_an_old_output_stays_until_the_new_one_is_complete(model, whole, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")
    drive(model, out, 60, force="force")
    assert contents(out) == {"old.txt": b"old"}
    quantize_directory(model, out, "nvfp4", force=True)
    assert contents(out) == whole


@pytest.mark.parametrize("step", ["rename", "sync_folder", "_remove", "_copy"])
def test_stopped_at_the_end(model, whole, tmp_path, monkeypatch, step):
    """At each step of putting the result in its place, with an old output there."""
    from blockscale.files.directory import quantize_directory as runs
    from blockscale.files.directory import workspace

    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")

    def stop(*args):
        raise KeyboardInterrupt

    owner = {"rename": Path, "_copy": runs}.get(step, workspace)
    if step == "rename":
        real = Path.rename
        monkeypatch.setattr(
            owner,
            step,
            lambda path, to: stop() if path.name == "out" and to == out else real(path, to),
        )
    else:
        monkeypatch.setattr(owner, step, stop)
    with pytest.raises(KeyboardInterrupt):
        quantize_directory(model, out, "nvfp4", force=True)
    monkeypatch.undo()
    cutting.SLAB = 150
    kept = [
        contents(path) for path in (out, *tmp_path.glob(".out.blockscale-old-*")) if path.exists()
    ]
    assert {"old.txt": b"old"} in kept
    quantize_directory(model, out, "nvfp4", force=True)
    assert contents(out) == whole


def test_another_plan_starts_anew(model, tmp_path):
    out = tmp_path / "out"
    drive(model, out, 60)
    [left] = tmp_path.glob(".out.blockscale-*")
    for recipe, seed in (("mxfp4", 0), ("nvfp4", 1)):
        counter = Listener()
        quantize_directory(model, out, recipe, seed=seed, force=True, progress=counter)
        assert counter.done == 0
        assert counter.texts == [
            f"{left} is left from an earlier run: delete it if nothing in it is needed"
        ]
    os.utime(model / "model-00001-of-00002.safetensors")
    counter = Listener()
    quantize_directory(model, out, "nvfp4", force=True, progress=counter)
    assert counter.done == 0
    assert left.exists()


def test_a_shard_that_is_gone_is_done_again(model, whole, tmp_path):
    out = tmp_path / "out"
    drive(model, out, 60)
    [left] = tmp_path.glob(".out.blockscale-*")
    for path in (left / "out").iterdir():
        path.unlink()
    drive(model, out, 1)  # has forgotten the journal's lines, and been killed again
    counter = Listener()
    quantize_directory(model, out, "nvfp4", progress=counter)
    assert contents(out) == whole
    assert counter.done + counter.advanced == counter.total


def test_a_copy_that_changed_is_made_again(model, tmp_path):
    drive(model, tmp_path / "out", 60)
    [left] = tmp_path.glob(".out.blockscale-*")
    (left / "out" / "tokenizer.json").write_text("half")
    quantize_directory(model, tmp_path / "out", "nvfp4")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"tokens": []}'


def test_an_interrupt_keeps_what_is_finished(model, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SECONDS", 1e9)  # nothing is committed on the way

    class Stopper(Listener):
        def advance(self, name, nbytes):
            super().advance(name, nbytes)
            if len(self.names) == 60:
                raise KeyboardInterrupt

    stopper = Stopper()
    with pytest.raises(KeyboardInterrupt):
        quantize_directory(model, tmp_path / "out", "nvfp4", progress=stopper)
    assert stopper.texts[-1].endswith("the same command goes on from there")
    counter = Listener()
    quantize_directory(model, tmp_path / "out", "nvfp4", progress=counter)
    assert set(counter.names) & set(stopper.names) == {stopper.names[-1]}
    assert contents(tmp_path / "out") == whole


def test_notes_survive(tmp_path):
    import torch

    x = torch.ones(16, 32)
    x[3, 4] = torch.nan
    tensors = {"a.weight": x, "b.weight": torch.ones(16, 32), "c.weight": torch.ones(160, 32)}
    model = write_model(tmp_path / "model", tensors)
    plan = plan_directory(model, tmp_path / "out", "nvfp4")
    first = plan.shards[0].tensors[0].name
    assert first == "a.weight"
    drive(model, tmp_path / "out", 9)
    assert "a.weight" in finished(model, tmp_path / "out")
    ledger = quantize_directory(model, tmp_path / "out", "nvfp4")
    assert ledger["a.weight"].notes == ("1 of 512 weights are NaN or infinite",)
