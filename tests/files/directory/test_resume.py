# SPDX-License-Identifier: BSD-3-Clause
"""A run that is killed at any point goes on, redoes nothing that it finished, and ends the same."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from blockscale.files.directory import journal as journals
from blockscale.files.directory.beside import work_path
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.metadata import FileError
from blockscale.files.slabs import cutting
from tests.files.directory.places import Listener
from tests.support import fresh
from tests.support.file_models import contents, tiny_tensors, write_model
from tests.support.some import crossed

ROOT = Path(__file__).parents[3]


# Kills itself at the n-th step of progress; commits each tensor, so that a kill finds some done.
DRIVER = """
import os, signal, sys, warnings
from blockscale.files.directory import journal
from blockscale.files.slabs import cutting
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.core.work import Progress

model, out, steps, sig, force = sys.argv[1:]
journal.SECONDS = 0.0
cutting.SLAB, cutting.BY_KERNEL = 150, 1
warnings.simplefilter("ignore")

class Killer(Progress):
    left = int(steps)
    def advance(self, name, nbytes):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), int(sig))
            for _ in range(10**8):  # it ends in here
                pass

quantize_directory(model, out, "nvfp4", force=2 * (force == "force"), progress=Killer())
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Every tensor is committed by itself, so that a kill finds some done."""
    monkeypatch.setattr(journals, "SECONDS", 0.0)


def drive(model, out, steps, sig=signal.SIGKILL, force=""):
    how = {"cwd": ROOT, "ready": fresh.WITH_OURS}
    done = fresh.run(DRIVER, model, out, steps, int(sig), force, **how)
    assert done.returncode == -sig, done.stderr
    return done


def finished(model, out):
    """The tensors that the journal in the work directory lists."""
    work = work_path(out, plan_directory(model, out, "nvfp4").digest)
    lines = (work / "journal").read_text().splitlines() if (work / "journal").exists() else []
    return [json.loads(line)["tensor"] for line in lines]


@pytest.mark.parametrize("steps", crossed(3, [30, 1, 60]))
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
    quantize_directory(model, out, "nvfp4", force=2)
    assert contents(out) == whole


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("step", ["rename", "sync_folder", "remove", "_copy"])
def test_stopped_at_the_end(model, whole, tmp_path, monkeypatch, step):
    """At each step of putting the result in its place, with an old output there."""
    from blockscale.files.directory import quantize_directory as runs
    from blockscale.files.directory import swap

    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")

    def stop(*args):
        raise KeyboardInterrupt

    owner = {"rename": Path, "_copy": runs}.get(step, swap)
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
        quantize_directory(model, out, "nvfp4", force=2)
    monkeypatch.undo()
    cutting.SLAB = 150
    kept = [
        contents(path) for path in (out, *tmp_path.glob(".out.blockscale-[og]*")) if path.exists()
    ]
    assert {"old.txt": b"old"} in kept
    quantize_directory(model, out, "nvfp4", force=2)
    assert contents(out) == whole


@pytest.mark.slow
def test_another_plan_starts_anew(model, tmp_path):
    out = tmp_path / "out"
    drive(model, out, 60)
    [left] = tmp_path.glob(".out.blockscale-*")
    for recipe, seed in (("mxfp4", 0), ("nvfp4", 1)):
        counter = Listener()
        quantize_directory(model, out, recipe, seed=seed, force=2, progress=counter)
        assert counter.done == 0
        assert counter.texts == [
            f"{left} is left from an earlier run (blockscale clean {out} lists what can be deleted)"
        ]
    os.utime(model / "model-00001-of-00002.safetensors")
    counter = Listener()
    quantize_directory(model, out, "nvfp4", force=2, progress=counter)
    assert counter.done == 0
    assert left.exists()


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert stopper.texts[-1].endswith("the same command again to continue")
    counter = Listener()
    quantize_directory(model, tmp_path / "out", "nvfp4", progress=counter)
    assert set(counter.names) & set(stopper.names) == {stopper.names[-1]}
    assert contents(tmp_path / "out") == whole


@pytest.mark.slow
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


def stopped_in_the_second_shard(model, out):
    """The work directory of a run that has finished one shard of two."""

    class Stop(Listener):
        def advance(self, name, nbytes):
            super().advance(name, nbytes)
            if len(list(out.parent.glob(".out.blockscale-*/out/*.safetensors"))) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_directory(model, out, "nvfp4", progress=Stop())
    [work] = out.parent.glob(".out.blockscale-*")
    [shard] = (work / "out").glob("*.safetensors")
    return work, shard


@pytest.mark.slow
def test_a_planted_shard_is_not_published(model, whole, tmp_path):
    out = tmp_path / "out"
    _, shard = stopped_in_the_second_shard(model, out)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    said = Listener()
    quantize_directory(model, out, "nvfp4", progress=said)
    assert contents(out) == whole
    assert any("is not what an earlier run finished" in text for text in said.texts)


def test_a_shard_that_no_journal_knows(model, whole, tmp_path):
    out = tmp_path / "out"
    work, shard = stopped_in_the_second_shard(model, out)
    (work / "journal").unlink()
    shard.write_bytes(b"planted")
    quantize_directory(model, out, "nvfp4")
    assert contents(out) == whole


@pytest.mark.slow
def test_a_finished_shard_is_not_written_again(model, whole, tmp_path):
    out, counter = tmp_path / "out", Listener()
    stopped_in_the_second_shard(model, out)
    quantize_directory(model, out, "nvfp4", progress=counter)
    assert contents(out) == whole and counter.done > 0


@pytest.mark.slow
def test_a_source_of_the_same_size_and_time(model, tmp_path):
    """A shard is replaced by another of the same size, and its time is set back."""
    out = tmp_path / "out"
    _, shard = stopped_in_the_second_shard(model, out)
    source = model / shard.name
    status, data = source.stat(), bytearray(source.read_bytes())
    data[-4:] = b"\0\0\0\0"
    source.write_bytes(data)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    quantize_directory(model, out, "nvfp4")
    quantize_directory(model, tmp_path / "again", "nvfp4")
    assert (out / shard.name).read_bytes() == (tmp_path / "again" / shard.name).read_bytes()


@pytest.mark.slow
def test_a_finished_shards_source_changes_while_the_next_one_runs(model, tmp_path):
    out = tmp_path / "out"

    class Meddler(Listener):
        def advance(self, name, nbytes):
            for shard in tmp_path.glob(".out.blockscale-*/out/*.safetensors"):
                (model / shard.name).touch()

    with pytest.raises(FileError, match="changed while it was read"):
        quantize_directory(model, out, "nvfp4", progress=Meddler())
    assert not out.exists()


def test_what_the_source_has_no_more_is_not_published(model, tmp_path):
    """A side file that an earlier run has copied, and that is gone since."""
    out = tmp_path / "out"
    (model / "notes").mkdir()
    (model / "notes" / "extra.txt").write_text("x")

    class Stop(Listener):
        def advance(self, name, nbytes):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_directory(model, out, "nvfp4", progress=Stop())
    [work] = tmp_path.glob(".out.blockscale-*")
    (work / "out" / "notes").mkdir(exist_ok=True)
    (work / "out" / "notes" / "extra.txt").write_text("x")
    shutil.rmtree(model / "notes")
    quantize_directory(model, out, "nvfp4")
    assert not (out / "notes").exists() and (out / "config.json").exists()
