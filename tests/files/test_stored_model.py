# SPDX-License-Identifier: BSD-3-Clause
"""Files and directories that are truncated, incomplete or something else are refused."""

import json
import os
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import blockscale as bs
from blockscale.files import stored_model
from blockscale.files.stored_model import OpenFiles, open_stored_model
from tests.support.saved import Net, bits, quantized, refused


def test_truncated(path) -> None:
    data = path.read_bytes()
    for sevenths in range(7):
        path.write_bytes(data[: len(data) * sevenths // 7])
        refused(path, "not a whole safetensors file")
    path.write_bytes(data[:-1])
    refused(path, "not a whole safetensors file")


def test_a_second_file_beside_the_model_is_not_read(path) -> None:
    save_file({"adapter": torch.ones(2)}, path.parent / "adapter_model.safetensors")
    assert bits(bs.load(Net(), path.parent).eval()) == bits(quantized())


def test_other_files(tmp_path) -> None:
    file, folder = tmp_path / "model.safetensors", tmp_path / "model"
    refused(file, "does not exist")
    for content in (b"", b"{}", b"PK\x03\x04" + bytes(100), b"\xff" * 100):
        file.write_bytes(content)
        refused(file, "not a whole safetensors file")
    refused(file / "inside", "inside")
    folder.mkdir()
    refused(folder, "unrecognised checkpoint format; supported: GGUF, ")
    save_file({"x": torch.ones(2)}, file)
    refused(file, "it lacks .*it has x")


def test_shards(path, tmp_path) -> None:
    """A directory with an index, as `blockscale quantize` writes; read without one, too."""
    folder, stored = tmp_path / "model", load_file(path)
    folder.mkdir()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    names = sorted(stored)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for name, each in parts.items():
        save_file({n: stored[n] for n in each}, folder / name, metadata)
    index = folder / "model.safetensors.index.json"
    text = json.dumps({"weight_map": {n: name for name, each in parts.items() for n in each}})
    for write in (lambda: index.write_text(text), index.unlink):
        write()
        assert bits(bs.load(Net(), folder).eval()) == bits(quantized())
    for content in ("[]", "{", "{}", '{"weight_map": {"a": 5}}', '{"weight_map": []}', "\x00"):
        index.write_text(content)
        refused(folder, "is damaged")
    index.write_text(text)
    (folder / "b.safetensors").rename(folder / "c.safetensors")
    refused(folder, "b.safetensors is missing, though model.safetensors.index.json names it")


@pytest.fixture
def folder(path, tmp_path):
    """A directory of two shards with a right index."""
    folder, stored = tmp_path / "model", load_file(path)
    folder.mkdir()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    names = sorted(stored)
    where = {n: f"{'ab'[i % 2]}.safetensors" for i, n in enumerate(names)}
    for name in ("a.safetensors", "b.safetensors"):
        save_file({n: stored[n] for n in names if where[n] == name}, folder / name, metadata)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def test_an_index_says_what_is_stored(folder) -> None:
    index = folder / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    first, *rest = where
    other = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}[where[first]]
    for wrong, words in (
        ({n: where[n] for n in rest}, "is nowhere, but it is in "),
        (where | {"more": "a.safetensors"}, "'more' is in a.safetensors, but it is in none"),
        (where | {first: other}, f"is in {other}, but it is in {where[first]}"),
        (where | {"\x1b[2J\n": "a.safetensors"}, "x1b"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        refused(folder, words)
    text = json.dumps({"weight_map": where})
    index.write_text(f'{text[:-2]}, "{first}": "a.safetensors"' + "}}")
    refused(folder, "appears twice")
    index.write_text(json.dumps({"weight_map": {n: f"./{f}" for n, f in where.items()}}))
    assert bits(bs.load(Net(), folder).eval()) == bits(quantized())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../a.safetensors", "not inside the directory"),
        ("b/../../a.safetensors", "not inside the directory"),
        ("/etc/a.safetensors", "not inside the directory"),
        ("C:\\a.safetensors", "not inside the directory"),
        ("..\\a.safetensors", "not inside the directory"),
        ("blockscale_ledger.json", "is not a \\*.safetensors file"),
        ("config.json", "is not a \\*.safetensors file"),
        ("model.safetensors.index.json", "is not a \\*.safetensors file"),
        ("a\n.safetensors", "is not a \\*.safetensors file"),
        ("a\0.safetensors", "is not a \\*.safetensors file"),
        ("", "is not a \\*.safetensors file"),
    ],
)
def test_what_an_index_must_not_name(folder, name, words) -> None:
    index = folder / "model.safetensors.index.json"
    save_file({"x": torch.ones(1)}, folder.parent / "a.safetensors")
    index.write_text(json.dumps({"weight_map": {"x": name}}))
    refused(folder, words)


def test_one_tensor_in_two_files(folder) -> None:
    (folder / "model.safetensors.index.json").unlink()
    with safe_open(folder / "a.safetensors", "pt") as file:
        save_file({n: file.get_tensor(n) for n in file.keys()}, folder / "c.safetensors")  # noqa: SIM118
    refused(folder, "is both in .*a.safetensors and in .*c.safetensors")


def test_pipes_in_the_place_of_files(folder) -> None:
    """Reading one waited for a writer."""
    index = folder / "model.safetensors.index.json"
    index.unlink()
    os.mkfifo(index)
    refused(folder, "not a regular file")
    pipe = folder.parent / "pipe.safetensors"
    os.mkfifo(pipe)
    refused(pipe, "not a regular file")


def test_a_file_is_opened_once_for_all_of_its_tensors(path, monkeypatch) -> None:
    opens = []
    monkeypatch.setattr(stored_model, "safe_open", lambda *a: opens.append(a[0]) or safe_open(*a))
    assert bits(bs.load(Net(), path).eval()) == bits(quantized())
    assert opens == [str(path)]


def test_files_that_are_held_open_are_closed_and_opened_again(path) -> None:
    source = open_stored_model(path)
    name = next(iter(source.files))
    with OpenFiles() as held:
        kept = replace(source, held=held)
        first = kept.read([name])[name]
        copy = pickle.loads(pickle.dumps(kept))  # as servers send it to their processes
        assert torch.equal(copy.read([name])[name], first)
        copy.held.close()
    assert torch.equal(kept.read([name])[name], first)
    held.close()
