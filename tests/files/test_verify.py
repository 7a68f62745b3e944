# SPDX-License-Identifier: BSD-3-Clause
"""Whether a directory is as its ledger says: what is changed, missing or added is found."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError
from blockscale.files.verify import reproduce, verify
from blockscale.kernels import cpu
from tests.support.file_models import tiny_tensors, write_model

LEDGER = "blockscale_ledger.json"
SHARD = "model-00001-of-00002.safetensors"
pytestmark = pytest.mark.filterwarnings("ignore:blockscale:UserWarning")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", tiny_tensors(), 2)


@pytest.fixture
def out(model: Path, tmp_path: Path) -> Path:
    quantize_directory(model, tmp_path / "out", "nvfp4")
    return tmp_path / "out"


def test_all_is_proved(out: Path) -> None:
    found = verify(out)
    files = {each.relative_to(out).as_posix() for each in out.rglob("*") if each.is_file()}
    assert not found.wrong and set(found.proved) == files - {LEDGER}
    assert found.proved[SHARD] == (out / SHARD).stat().st_size
    told = json.loads((out / LEDGER).read_text())
    assert told["blockscale"] == bs.__version__ and told["torch"] == torch.__version__
    assert told["sources"][SHARD]["bytes"] > 0


def test_what_is_wrong(out: Path) -> None:
    data = bytearray((out / SHARD).read_bytes())
    data[-1] ^= 1
    (out / SHARD).write_bytes(data)
    with (out / "config.json").open("a") as file:
        file.write(" ")
    (out / "model-00002-of-00002.safetensors").rename(out / "other.safetensors")
    (out / "model.safetensors.index.json").rename(out.parent / "index")
    (out / "model.safetensors.index.json").symlink_to(out.parent / "index")
    wrong = verify(out).wrong
    size = (out / "config.json").stat().st_size
    assert wrong == {
        SHARD: "has different bytes",
        "config.json": f"has {size:,} bytes, of {size - 1:,}",
        "model-00002-of-00002.safetensors": "is missing",
        "model.safetensors.index.json": "is a link, expected a file",
        "other.safetensors": "is not in the ledger",
    }


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", ""])
def test_names_outside(name: str, out: Path) -> None:
    told = json.loads((out / LEDGER).read_text())
    told["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    (out / LEDGER).write_text(json.dumps(told))
    with pytest.raises(FileError, match="which is not in the directory"):
        verify(out)


@pytest.mark.parametrize(
    "entry", [None, {"bytes": True, "sha256": "0" * 64}, {"bytes": 1, "sha256": "0"}, {"bytes": -1}]
)
def test_entries_that_are_none(entry: object, out: Path) -> None:
    told = json.loads((out / LEDGER).read_text())
    told["files"]["config.json"] = entry
    (out / LEDGER).write_text(json.dumps(told))
    with pytest.raises(FileError, match=r"no size and SHA-256|holds None"):
        verify(out)


def test_directories_of_which_nothing_can_be_proved(out: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="blockscale did not quantize this directory"):
        verify(tmp_path)
    told = json.loads((out / LEDGER).read_text())
    del told["files"]  # as release 0.1.0 wrote it
    (out / LEDGER).write_text(json.dumps(told))
    for call in (verify, lambda path: reproduce(path, tmp_path / "model")):
        with pytest.raises(
            FileError,
            match=r"release 0\.1\.0 wrote it, which stored none\..*verified or reproduced",
        ):
            call(out)
    assert not list(tmp_path.glob(".*"))  # nothing was made before it was known
    (out / LEDGER).write_text(json.dumps(told | {"files": {}}))
    with pytest.raises(FileError, match="lists no file of weights, so there is nothing to verify"):
        verify(out)


def test_what_is_wrong_is_not_made_again(model: Path, out: Path) -> None:
    """`reproduce` alone: a file that was changed behind the ledger's back is not proved."""
    data = bytearray((out / SHARD).read_bytes())
    data[-1] ^= 1
    (out / SHARD).write_bytes(data)
    assert reproduce(out, model).wrong == {SHARD: "has different bytes"}


def test_another_release_is_named(model: Path, out: Path) -> None:
    told = json.loads((out / LEDGER).read_text()) | {"blockscale": "9.9\x1b"}
    shutil.rmtree(model)
    other = tiny_tensors()
    name = next(name for name, each in other.items() if each.ndim == 2)
    write_model(model, other | {name: other[name] + 1}, 2)
    (out / LEDGER).write_text(json.dumps(told))
    [how] = {*reproduce(out, model).wrong.values()}
    assert re.fullmatch(
        r"was reproduced with different bytes \(by blockscale .*, torch .*; the ledger is "
        r"of blockscale 9\.9\\x1b, torch .*\)",
        how,
    )


def test_made_again(model: Path, out: Path) -> None:
    found = reproduce(out, model)
    assert not found.wrong and SHARD in found.proved
    assert not list(out.parent.glob(".out.*"))


def test_made_of_another_source(model: Path, out: Path, tmp_path: Path) -> None:
    other = tiny_tensors()
    name = next(name for name, each in other.items() if each.ndim == 2)
    other[name] = other[name] + 1
    shutil.rmtree(model)
    write_model(model, other, 2)
    assert set(reproduce(out, model).wrong.values()) == {"was reproduced with different bytes"}


@pytest.mark.parametrize("seed", [None, True, "1"])
def test_a_seed_that_is_none(seed: object, model: Path, out: Path) -> None:
    told = json.loads((out / LEDGER).read_text())
    (out / LEDGER).write_text(json.dumps(told | {"seed": seed}))
    with pytest.raises(FileError, match="which is not an integer"):
        reproduce(out, model)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_on_other_threads_and_instruction_sets(isa: str, model: Path, tmp_path: Path) -> None:
    """Stochastic, too: the same bytes whatever computes."""
    recipe, out = "int4:group32:fp32:stochastic", tmp_path / "out"
    torch.set_num_threads(2)
    quantize_directory(model, out, recipe, seed=5)
    if cpu.available() is not None or isa not in cpu.load().isas():
        pytest.skip(f"no kernels of {isa} here")
    script = (
        "import sys, torch\nfrom blockscale.files.verify import reproduce\n"
        "torch.set_num_threads(1)\nfound = reproduce(sys.argv[1], sys.argv[2])\n"
        "print(found.wrong, len(found.proved))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(out), str(model)],
        env=os.environ | {"BLOCKSCALE_CPU_ISA": isa}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("{} ") and int(done.stdout.split()[1]) >= 4
