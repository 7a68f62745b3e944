"""A directory in, a quantized one out: the reference's bits, the rest as it was, clear errors."""

import errno
import json
import os
import shutil
import warnings
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockscale.core import reference
from blockscale.core.layout import to_stored
from blockscale.core.ledger import SkippedError
from blockscale.core.pack import pack
from blockscale.core.parse import formats, parse
from blockscale.core.philox import named_seed
from blockscale.core.recipe import Recipe
from blockscale.files.directory.eligibility import has_conv1d
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.metadata import FileError, Metadata
from blockscale.files.slabs import cutting
from blockscale.files.stream import Reader
from tests.files.models import CONFIG, contents, tiny_tensors, write_model

MATRICES = {
    "embed.weight": "plain",
    "layers.0.proj.weight": "plain",
    "layers.1.proj.weight": "plain",
    "conv.weight": "channels_last",
    "conv1d.weight": "channels_last",
    "experts": "plain",
    "head.weight": "plain",
}
SKIPPED = {"double.weight", "eight.weight"}


@pytest.fixture(autouse=True)
def _tiny_slabs(monkeypatch):
    """Every tensor takes several slabs; skipped tensors are expected here."""
    monkeypatch.setattr(cutting, "SLAB", 150)
    warnings.simplefilter("ignore", UserWarning)


def expected(name, tensor, layout, fmt, seed=0):
    """{stored name: tensor}: what the reference makes of the whole tensor."""
    stored = to_stored(tensor, layout)
    qparams = reference.choose_qparams(stored, fmt)
    codes = reference.quantize(stored, qparams, fmt, torch.tensor(named_seed(seed, name)))
    parts = {"codes": pack(codes, fmt.element), **qparams._asdict()}
    return {f"{name}.{part}": t.contiguous() for part, t in parts.items() if t is not None}


def check_bits(found, tensors, layouts, fmt, seed=0):
    for name, tensor in tensors.items():
        parts = (
            expected(name, tensor, layouts[name], fmt, seed) if name in layouts else {name: tensor}
        )
        for stored, want in parts.items():
            got = found.pop(stored)
            assert got.dtype == want.dtype, stored
            assert got.shape == want.shape, stored
            bits = [t.reshape(-1).view(torch.uint8) for t in (got, want)]
            assert torch.equal(*bits), stored
    assert not found


def load_all(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = load_file(path)
        assert not found.keys() & part.keys()
        found |= part
    return found


@pytest.mark.parametrize("name", [*formats(), "int8:group8:e8m0:stochastic", "int8:channel1:fp32"])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_bits_are_the_references(name, shards, tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors(), shards)
    quantize_directory(model, tmp_path / "out", name, seed=5)
    check_bits(load_all(tmp_path / "out"), tiny_tensors(), MATRICES, parse(name), 5)


def test_the_ledger_and_the_metadata(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    recipe = Recipe(
        "mxfp4", input="int8_token", rules={"layers.0.proj": "int8_channel"}, skip=["head.weight"]
    )
    ledger = quantize_directory(model, tmp_path / "out", recipe)
    assert {entry.name for entry in ledger.quantized} == MATRICES.keys() - {"head.weight"}
    assert {entry.name for entry in ledger.skipped} == SKIPPED
    reasons = {entry.name: entry.reason for entry in ledger if entry.reason}
    assert reasons == {
        "layers.0.proj.bias": "a vector, such as a norm's weight or a bias",
        "layers.1.proj.bias": "a vector, such as a norm's weight or a bias",
        "layers.0.norm.weight": "a vector, such as a norm's weight or a bias",
        "cls_token": "a vector, such as a norm's weight or a bias",
        "double.weight": "float64; formats take float32, bfloat16, float16",
        "eight.weight": "float8_e4m3fn; formats take float32, bfloat16, float16",
        "steps": "int64, not floating point",
        "positions": "int64, not floating point",
        "mask.weight": "bool, not floating point",
        "empty.weight": "empty",
        "head.weight": "pattern 'head.weight' of the recipe",
    }
    kinds = {entry.name: entry.kind for entry in ledger.quantized}
    assert kinds["conv.weight"] == kinds["conv1d.weight"] == "convolution"
    assert (kinds["experts"], kinds["embed.weight"]) == ("stack", "matrix")
    entry = ledger["layers.0.proj.weight"]
    assert (entry.weight, entry.input) == ("int8:channel0:fp32", "int8:token:fp32")
    assert (entry.bytes_before, entry.bytes_after) == (33 * 40 * 4, 33 * 40 + 33 * 4)
    with Reader(tmp_path / "out" / "model.safetensors") as reader:
        metadata = Metadata.decode(reader.metadata, "file")
        assert reader.metadata["format"] == "pt"
        assert ledger.bytes_after == sum(spec.nbytes for spec in reader.tensors.values())
    assert metadata.tensors.keys() == kinds.keys()
    info = metadata.tensors["conv.weight"]
    assert (info.format, info.shape) == ("e2m1:group32:e8m0/floor", (6, 4, 3, 3))
    assert (info.dtype, info.layout) == ("bfloat16", "channels_last")
    assert metadata.layers["layers.1.proj"] == {"input": "int8:token:fp32"}
    assert "experts" not in metadata.layers
    written = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert written["entries"] == json.loads(ledger.to_json())["entries"]
    assert written["recipe"] == recipe.to_dict()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    method = {"method": "blockscale", "version": 1, "recipe": recipe.to_dict()}
    assert config == CONFIG | {"quantization_config": method}


def test_shards_and_index(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors(), 3)
    quantize_directory(model, tmp_path / "out", "nvfp4")
    before, after = (
        json.loads((folder / "model.safetensors.index.json").read_text())
        for folder in (model, tmp_path / "out")
    )
    assert after["metadata"]["owner"] == "test"
    sizes = 0
    for file in sorted(set(before["weight_map"].values())):
        with Reader(tmp_path / "out" / file) as reader:
            here = {name for name, where in after["weight_map"].items() if where == file}
            assert reader.tensors.keys() == here
            sizes += sum(spec.nbytes for spec in reader.tensors.values())
            owners = {name.removesuffix(".codes") for name in here if name.endswith(".codes")}
            assert all(before["weight_map"][name] == file for name in owners)
    assert after["metadata"]["total_size"] == sizes


@pytest.mark.parametrize("model_type", ["gpt2", "vision-encoder-decoder"])
def test_gpt2_stores_matrices_transposed(model_type, tmp_path):
    config = {"model_type": model_type, "decoder": {"model_type": "gpt2"}}
    x = torch.randn(24, 72)
    tensors = {
        "h.0.attn.c_attn.weight": x,
        "h.0.mlp.c_proj.weight": x.bfloat16(),
        "wte.weight": x + 1,
    }
    model = write_model(tmp_path / "model", tensors, config=config)
    for name in ("int8_channel", "mxfp4", "nvfp4", "int4:group8:fp32:stochastic"):
        quantize_directory(model, tmp_path / name, name)
        layouts = dict.fromkeys(tensors, "transposed") | {"wte.weight": "plain"}
        check_bits(load_all(tmp_path / name), tensors, layouts, parse(name))
    plain = write_model(tmp_path / "plain", tensors)
    quantize_directory(plain, tmp_path / "not", "int8_channel")
    check_bits(
        load_all(tmp_path / "not"), tensors, dict.fromkeys(tensors, "plain"), parse("int8_channel")
    )


def test_model_types():
    assert has_conv1d({"model_type": "openai-gpt"})
    assert not has_conv1d({"model_type": "llama"})
    assert not has_conv1d({})
    assert not has_conv1d(None)


def test_other_files(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    kept = {
        "vocab.txt": b"a\nb", "1_Pooling/config.json": b"{}", "2_Dense/model.safetensors": b"any",
        ".gitattributes": b"*", "code.py": b"x = 1", "optimizer.pt": b"o", "empty": b"",
    }  # fmt: skip
    dropped = {
        "pytorch_model.bin": "format", "pytorch_model-00001-of-00002.bin": "format",
        "tf_model.h5": "format", "flax_model.msgpack": "format", "onnx/model.onnx": "format",
        "consolidated.00.pth": "format", "openvino_model.bin": "format", "model.gguf": "format",
        "consolidated.safetensors": "format",
    }  # fmt: skip
    for name, data in (kept | dict.fromkeys(dropped, b"weights")).items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(data)
    (model / ".git" / "lfs").mkdir(parents=True)
    (model / ".git" / "lfs" / "big").write_bytes(b"big")
    save_file({"embed.weight": torch.ones(2, 2)}, model / "model.fp16.safetensors")
    save_file({"lora_A": torch.ones(2, 2)}, model / "adapter_model.safetensors")
    os.utime(model / "vocab.txt", (1, 1))
    ledger = quantize_directory(model, tmp_path / "out", "mxfp8")
    found = contents(tmp_path / "out")
    for name, data in kept.items():
        assert found.pop(name) == data
    assert (tmp_path / "out" / "vocab.txt").stat().st_mtime == 1
    assert found.keys() == {
        "config.json", "tokenizer.json", "model.safetensors", "blockscale_ledger.json",
        "adapter_model.safetensors",
    }  # fmt: skip
    assert set(ledger.copied) == kept.keys() | {"tokenizer.json", "adapter_model.safetensors"}
    assert ledger.left_out == {
        **dict.fromkeys(dropped, "the float weights in another format"),
        ".git": "a hidden folder, such as git's or a download cache",
        "model.fp16.safetensors": "the same weights again",
    }
    written = json.loads((tmp_path / "out" / "blockscale_ledger.json").read_text())
    assert written["left_out"] == ledger.left_out


def test_links_are_followed_as_in_the_cache_of_hugging_face(tmp_path):
    real = write_model(tmp_path / "blobs", tiny_tensors(), 2)
    (real / "sub").mkdir()
    (real / "sub" / "a.txt").write_text("a")
    model = tmp_path / "snapshot"
    model.mkdir()
    for path in real.iterdir():
        (model / path.name).symlink_to(path)
    quantize_directory(model, tmp_path / "out", "mxfp4")
    quantize_directory(real, tmp_path / "straight", "mxfp4")
    out, straight = contents(tmp_path / "out"), contents(tmp_path / "straight")
    for each in (out, straight):
        del each["blockscale_ledger.json"]  # says where the source is
    assert out == straight
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_any_safetensors_file_is_a_shard_without_an_index(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a.weight": torch.ones(4, 4)}, model / "one.safetensors")
    save_file({"b.weight": torch.ones(4, 4)}, model / "two.safetensors")
    ledger = quantize_directory(model, tmp_path / "out", "int8")
    assert [entry.name for entry in ledger.quantized] == ["a.weight", "b.weight"]
    assert contents(tmp_path / "out").keys() == {
        "one.safetensors", "two.safetensors", "blockscale_ledger.json"
    }  # fmt: skip


def test_tied_names_stay(tmp_path):
    metadata = {"head.weight": "embed.weight"}  # as safetensors.torch.save_model writes it
    model = write_model(tmp_path / "model", {"embed.weight": torch.ones(4, 4)}, metadata=metadata)
    quantize_directory(model, tmp_path / "out", "int8")
    with Reader(tmp_path / "out" / "model.safetensors") as reader:
        assert Metadata.decode(reader.metadata, "file").aliases == metadata
        assert reader.metadata["head.weight"] == "embed.weight"


def test_seeds(tmp_path):
    x = torch.rand(16, 32)
    model = write_model(tmp_path / "model", {"a.weight": x, "b.weight": x.clone()})
    found = {}
    for seed in (0, 1):
        quantize_directory(model, tmp_path / str(seed), "int8:tensor:fp32:stochastic", seed=seed)
        found[seed] = load_all(tmp_path / str(seed))
    assert not torch.equal(found[0]["a.weight.codes"], found[1]["a.weight.codes"])
    assert not torch.equal(found[0]["a.weight.codes"], found[0]["b.weight.codes"])


def test_notes_reach_the_ledger(tmp_path):
    x = torch.ones(16, 32)
    x[3, 4] = torch.nan
    model = write_model(tmp_path / "model", {"a.weight": x})
    with pytest.warns(UserWarning, match=r"a.weight: 1 of 512 weights are NaN or infinite"):
        ledger = quantize_directory(model, tmp_path / "out", "int8")
    assert ledger["a.weight"].notes == ("1 of 512 weights are NaN or infinite",)


def test_skips_are_warned_of_or_refused(tmp_path):
    model = write_model(tmp_path / "model", tiny_tensors())
    recipe = Recipe("mxfp4", skip=["nothing.*"])
    with pytest.warns(UserWarning, match=r"double.weight: skipped, float64(.|\n)*'nothing.\*'"):
        quantize_directory(model, tmp_path / "out", recipe)
    with pytest.raises(SkippedError, match=r"double.weight \(matrix\): float64"):
        quantize_directory(model, tmp_path / "strict", recipe, strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    recipe = Recipe("mxfp4", skip=["double", "eight.weight"])
    quantize_directory(model, tmp_path / "strict", recipe, strict=True)


def test_a_block_that_does_not_fit_is_skipped(tmp_path):
    tensors = {
        "a.weight": torch.ones(4, 8),
        "conv.weight": torch.ones(4, 8, 3, 3),
        "odd": torch.ones(2, 2, 2, 2),
        "conv.parametrizations.weight.original1": torch.ones(4, 4, 8),
    }
    model = write_model(tmp_path / "model", tensors | {"stack": torch.ones(2, 4, 8)})
    ledger = quantize_directory(model, tmp_path / "out", "int8:channel2:fp32")
    assert [entry.name for entry in ledger.quantized] == ["stack"]
    assert "'channel2' needs dimension 2, but the tensor has 2" in ledger["conv.weight"].reason
    assert ledger["odd"].reason == "no layer is known to have so many dimensions and this name"
    reason = ledger["conv.parametrizations.weight.original1"].reason
    assert reason == "part of a parametrized weight: remove the parametrization and save again"


class Untouched:
    """The folder around a model, where an error must leave nothing."""

    def __init__(self, folder, model):
        self.folder, self.model, self.out = folder, model, folder / "out"
        self.before = contents(folder)

    def refuses(self, match, recipe="mxfp4", kind=FileError, out=None, **options):
        with pytest.raises(kind, match=match):
            quantize_directory(self.model, out or self.out, recipe, **options)
        assert contents(self.folder) == self.before
        assert not list(self.folder.glob(".*"))


@pytest.fixture
def place(tmp_path):
    return Untouched(tmp_path, write_model(tmp_path / "model", tiny_tensors(), 2))


def changed(place):
    place.before = contents(place.folder)
    return place


def test_no_model(place, tmp_path):
    place.model = tmp_path / "nowhere"
    place.refuses("nowhere does not exist: name the directory that holds config.json")
    place.model = tmp_path / "model" / "config.json"
    place.refuses("config.json is a file: name the directory")
    place.model = tmp_path / "bin"
    place.model.mkdir()
    place.refuses(r"bin holds no \*.safetensors, only nothing: write it with save_pretrained")
    (place.model / "pytorch_model.bin").write_text("")
    changed(place).refuses(r"bin holds no \*.safetensors, only pytorch_model.bin: write it with")


def test_broken_models(place):
    config = place.model / "config.json"
    text = config.read_text()
    config.write_text("{")
    changed(place).refuses("config.json is not JSON .*: download or copy it again")
    config.write_text("[]")
    changed(place).refuses("config.json holds a list, expected a JSON object")
    config.write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    changed(place).refuses("the weights are already quantized, by gptq: quantize the float model")
    config.write_text(json.dumps({"quantization_config": "odd"}))
    changed(place).refuses(r"the weights are already quantized, by \?: quantize the float model")
    config.write_text(text)
    shard = place.model / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-4])
    changed(place).refuses("00002.safetensors: not a complete safetensors file: it has")
    shard.unlink()
    changed(place).refuses(
        "00002.safetensors is missing, though model.safetensors.index.json names"
    )
    shard.write_bytes(data)
    (place.model / "gone.txt").symlink_to("nowhere")
    changed(place).refuses("gone.txt is a broken link: remove it")
    (place.model / "gone.txt").unlink()
    (place.model / "loop").symlink_to(".")
    place.before = {}
    with pytest.raises(FileError, match="loop is a link to a folder that it lies in"):
        quantize_directory(place.model, place.out, "mxfp4")


def test_broken_indexes(place):
    path = place.model / "model.safetensors.index.json"
    index = json.loads(path.read_text())

    def write(weight_map):
        path.write_text(json.dumps({"weight_map": weight_map}))
        return changed(place)

    first, second = sorted(set(index["weight_map"].values()))
    write({"x": first, "y": second}).refuses("the index says 'x' is in .* which has it not")
    write({"x": "../out.safetensors"}).refuses("out.safetensors is missing")
    save_file({}, place.folder / "other.safetensors")
    write({"x": "../other.safetensors"}).refuses("'../other.safetensors', which is not inside")
    path.write_text(json.dumps(index))
    save_file({"x": torch.ones(2, 2)}, place.model / "model.safetensors")
    changed(place).refuses("holds both model.safetensors and model.safetensors.index.json")
    (place.model / "model.safetensors").unlink()
    path.unlink()
    save_file({"embed.weight": torch.ones(2, 2)}, place.model / "z.safetensors")
    changed(place).refuses(
        "'embed.weight' is in model-00001-of-00002.safetensors and in z.safetensors"
    )


def test_already_quantized(place):
    quantize_directory(place.model, place.folder / "quantized", "mxfp4")
    (place.folder / "quantized" / "config.json").unlink()
    place.model = place.folder / "quantized"
    changed(place).refuses(
        "safetensors is already quantized by blockscale: quantize the float model"
    )


def test_names_that_collide(tmp_path):
    tensors = {"a.weight": torch.ones(2, 2), "a.weight.codes": torch.ones(2)}
    place = Untouched(tmp_path, write_model(tmp_path / "model", tensors))
    place.refuses(
        "has a tensor 'a.weight.codes', as would be called a part of 'a.weight', quantized: skip"
    )


def test_recipes_without_effect(place):
    place.refuses("no format 'mxfp5'", "mxfp5", ValueError)
    match = "the recipe quantizes nothing in .*: a vector, .*the recipe gives its weight no format"
    place.refuses(match, Recipe(), ValueError)
    place.refuses("the recipe quantizes nothing in", Recipe("mxfp4", skip=["*"]), ValueError)


def test_directories_that_lie_in_one_another(place):
    message = "are the same or one holds the other: choose an output elsewhere"
    for out in (place.model, place.model / "out", place.folder, place.model / ".." / "model"):
        place.refuses(message, out=out, force=True)
    (place.folder / "link").symlink_to(place.model)
    changed(place).refuses(message, out=place.folder / "link" / "out")


def test_an_output_that_is_taken(place, monkeypatch):
    place.out.mkdir()
    (place.out / "precious.txt").write_text("mine")
    changed(place).refuses("out exists: choose another output, or replace it with --force")
    place.refuses("precious.txt is not a directory", out=place.out / "precious.txt", force=True)
    monkeypatch.chdir(place.out)
    place.refuses("out, which --force would delete", force=True)
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(place.out / "me"))
    place.refuses("me, which --force would delete", force=True)


def test_force_replaces_and_an_empty_output_is_free(place):
    place.out.mkdir()
    quantize_directory(place.model, place.out, "mxfp4")
    first = contents(place.out)
    (place.out / "more.txt").write_text("more")
    quantize_directory(place.model, place.out, "mxfp8", force=True)
    assert (place.out / "more.txt").exists() is False
    quantize_directory(place.model, place.out, "mxfp4", force=True)
    assert contents(place.out) == first
    assert not list(place.folder.glob(".*"))


def test_force_replaces_a_link_and_not_what_it_leads_to(place):
    other = place.folder / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    place.out.symlink_to(other)
    quantize_directory(place.model, place.out, "mxfp4", force=True)
    assert not place.out.is_symlink()
    assert contents(other) == {"precious.txt": b"mine"}


def test_parents_are_made(place):
    quantize_directory(place.model, place.folder / "a" / "b" / "out", "mxfp4")
    assert (place.folder / "a" / "b" / "out" / "config.json").exists()


def test_too_little_space(place, monkeypatch):
    plan = plan_directory(place.model, place.out, "mxfp4")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, plan.size - 1))
    with warnings.catch_warnings():
        place.refuses(
            r"the output needs 0.00 GB, the disk of .* has 0.00 GB free: make room for 0.00 GB"
        )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, plan.size))
    quantize_directory(place.model, place.out, "mxfp4")


def test_the_predicted_size_is_kept(place):
    for name in formats():
        plan = plan_directory(place.model, place.out, name)
        quantize_directory(place.model, place.out, name, force=True)
        for shard in plan.shards:
            assert (place.out / shard.name).stat().st_size == shard.size
        assert sum(len(data) for data in contents(place.out).values()) <= plan.size


@pytest.mark.parametrize("after", [0, 5, 40])
def test_a_full_disk(place, monkeypatch, after):
    """The source and an old output stay; with room, the next run goes on to the same bytes."""
    quantize_directory(place.model, place.folder / "whole", "nvfp4")
    place.out.mkdir()
    (place.out / "old.txt").write_text("old")
    before, whole = contents(place.folder), contents(place.folder / "whole")
    real, count = os.pwrite, iter(range(10**9))

    def write(*args):
        if next(count) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", write)
    said = Listener()
    with pytest.raises(FileError, match=r"the disk of .* is full: make room on it"):
        quantize_directory(place.model, place.out, "nvfp4", force=True, progress=said)
    monkeypatch.undo()
    assert any("what is finished is kept in" in text for text in said.texts)
    found = contents(place.folder)
    assert {name: found[name] for name in before} == before
    quantize_directory(place.model, place.out, "nvfp4", force=True)
    assert contents(place.out) == whole


def test_a_full_disk_is_found_before_work_begins(place, monkeypatch):
    def reserve(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with pytest.raises(FileError, match="is full"):
        quantize_directory(place.model, place.out, "nvfp4")


def test_a_source_that_changes(place):
    class Meddler(Listener):
        def advance(self, name, nbytes):
            os.utime(place.model / "model-00001-of-00002.safetensors")

    with pytest.raises(FileError, match=r"00001-of-00002.safetensors changed while it was read"):
        quantize_directory(place.model, place.out, "nvfp4", progress=Meddler())
    assert not place.out.exists()


def test_an_output_that_appears_meanwhile(place):
    class Meddler(Listener):
        def advance(self, name, nbytes):
            place.out.mkdir(exist_ok=True)
            (place.out / "precious.txt").write_text("mine")

    with pytest.raises(
        FileError, match=r"appeared while the model was quantized. The result is complete"
    ):
        quantize_directory(place.model, place.out, "nvfp4", progress=Meddler())
    assert contents(place.out) == {"precious.txt": b"mine"}
    said = Listener()
    quantize_directory(place.model, place.out, "nvfp4", force=True, progress=said)
    assert said.advanced == 0
    assert "model.safetensors.index.json" in contents(place.out)


class Listener:
    """A Progress that remembers."""

    def __init__(self):
        self.texts, self.total, self.done, self.advanced, self.names = [], 0, 0, 0, []

    def start(self, total, done):
        self.total, self.done = total, done

    def advance(self, name, nbytes):
        self.advanced += nbytes
        self.names.append(name)

    def say(self, text):
        self.texts.append(text)


def test_progress_adds_up(place):
    for recipe in ("mxfp4", "nvfp4", "int8", "ternary"):
        said = Listener()
        quantize_directory(place.model, place.folder / recipe, recipe, progress=said)
        assert said.total == said.advanced == sum(t.nbytes for t in tiny_tensors().values())
        assert said.done == 0


def test_the_result_loads(tmp_path):
    """`bs.load` reads the directory into a float model."""
    from blockscale.files.load import load

    torch.manual_seed(0)
    source = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Conv2d(3, 4, 3))
    model = write_model(tmp_path / "model", source.state_dict(), 2)
    quantize_directory(model, tmp_path / "out", "int8_channel")
    loaded = load(
        torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Conv2d(3, 4, 3)), tmp_path / "out"
    )
    x = torch.randn(2, 32)
    error = (loaded[0](x) - source[0](x)).abs().max()
    assert 0 < error < 0.05


def test_paths_may_be_text(place):
    quantize_directory(str(place.model), str(place.out), parse("int8"))
    assert Path(place.out, "config.json").exists()
