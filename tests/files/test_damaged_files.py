"""Files that are damaged, incomplete, newer or of another model: FileError, nothing is changed."""

import hashlib
import json
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import blockscale as bs
from blockscale.files import save as save_module
from tests.files.test_save_load import IDS, Net, bits, quantized

GONE = object()


def refused(path, words: str = "", model: nn.Module | None = None) -> None:
    """FileError, with the file's name, and a model that is as it was."""
    model = model or Net()
    before, modules = bits(model), [id(m) for m in model.modules()]
    with pytest.raises(bs.FileError, match=words) as caught:
        bs.load(model, path)
    assert path.name.split(".")[0] in str(caught.value)
    assert bits(model) == before
    assert [id(m) for m in model.modules()] == modules


def rewrite(path, change, tensors=lambda tensors: None) -> None:
    """The file again with other metadata (what `change` makes of it, or returns) and tensors."""
    stored = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    old = metadata["blockscale"]
    data = json.loads(old)
    text = change(data)
    metadata["blockscale"] = json.dumps(data, sort_keys=True) if text is None else text
    for key, value in metadata.items():  # a digest of it is made again
        if value == hashlib.sha256(old.encode()).hexdigest():
            metadata[key] = hashlib.sha256(metadata["blockscale"].encode()).hexdigest()
    tensors(stored)
    save_file(stored, path, metadata)


@pytest.fixture
def path(tmp_path):
    bs.save(quantized(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model"
    bs.save(quantized(), path)
    return path.read_bytes()


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_header_is_refused_or_harmless(tmp_path, whole, data) -> None:
    raw = bytearray(whole)
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(0, header - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path, model, expected = tmp_path / "damaged.safetensors", Net().eval(), quantized()
    path.write_bytes(raw)
    before = bits(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bs.load(model, path)
    except bs.FileError:
        assert bits(model) == before
    else:
        assert bits(model) == bits(expected)
        assert torch.equal(model(IDS), expected(IDS))


def test_truncated(path) -> None:
    data = path.read_bytes()
    for sevenths in range(7):
        path.write_bytes(data[: len(data) * sevenths // 7])
        refused(path, "not a whole safetensors file")
    path.write_bytes(data[:-1])
    refused(path, "not a whole safetensors file")


def put(key: str, value, *place: str):
    """A change of the metadata: the entry at `place` becomes `value`, or goes away."""

    def change(data: dict) -> None:
        for step in place:
            data = data[step]
        data[key] = value
        if value is GONE:
            del data[key]

    return change


HEAD, LAYER = ("tensors", "head.weight"), ("layers", "head")
DAMAGE = [
    (
        put("version", 2),
        r"version 2 of the file format, this blockscale reads version 1: install a n",
    ),
    (put("version", "1"), "version '1' of the file format"),
    (put("version", GONE), "metadata is damaged"),
    (put("tensors", GONE), "metadata is damaged"),
    (put("tensors", 5), "metadata is damaged"),
    (put("tensors", {}), r"it lacks .*weight.*it has|no quantized weight"),
    (put("layers", []), "metadata is damaged"),
    (put("aliases", 5), "metadata is damaged"),
    (put("format", "int99:tensor:fp32", *HEAD), "tensor 'head.weight': .*no element 'int99'"),
    (put("format", 5, *HEAD), "damaged"),
    (put("format", "int8:channel5:fp32", *HEAD), "head.weight.*channel5|channel5.*head.weight"),
    (put("format", "mxint8", *HEAD), r"head.weight.codes should be torch.int8 \(64, 64\), but is"),
    (put("format", "e2m1:group16:e5m2:asym", *HEAD), "asym"),
    (put("layout", "sideways", *HEAD), "no layout 'sideways'; there are plain, transposed"),
    (put("layout", ["plain"], *HEAD), "layout|damaged"),
    (put("shape", [64, "64"], *HEAD), "head.weight"),
    (put("shape", [], *HEAD), "head.weight"),
    (put("shape", [-64, 64], *HEAD), "head.weight"),
    (put("shape", None, *HEAD), "damaged"),
    (put("colour", "red", *HEAD), "damaged"),
    (put("input", None, *LAYER), "damaged"),
    (put("colour", "int8", *LAYER), "layer 'head': no part 'colour'; there are input, output"),
    (put("haed", {"input": "int8"}, "layers"), "haed"),
    (lambda data: "{", "metadata is damaged"),
    (lambda data: "null", "metadata is damaged"),
    (lambda data: "[" * 20_000, "metadata is damaged"),  # deeper than the parser goes
]


@pytest.mark.parametrize(("change", "words"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_metadata(change, words: str, path) -> None:
    rewrite(path, change)
    refused(path, words)


OTHER_TENSORS = {
    "head.weight.scale is missing": {"head.weight.scale": GONE},
    "head.weight.outer is missing": {"head.weight.outer": GONE},
    r"head.weight.scale should be torch.uint8 \(64, 4\), but is torch.float32 \(64, 4\)": {
        "head.weight.scale": torch.ones(64, 4)
    },
    "it lacks head.bias": {"head.bias": GONE},
    "it has extra": {"extra": torch.ones(1)},
    r"conv.bias has shape \(6,\), this model's has \(5,\)": {"conv.bias": torch.ones(6)},
    "conv.bias": {"conv.bias": torch.ones(5, dtype=torch.int32)},  # no float, though of its size
    "mask": {"mask": torch.ones(2)},
}


@pytest.mark.parametrize("words", OTHER_TENSORS)
def test_stored_tensors(words: str, path) -> None:
    def change(stored: dict) -> None:
        stored |= OTHER_TENSORS[words]
        for name in [n for n, t in stored.items() if t is GONE]:
            del stored[name]

    rewrite(path, lambda data: None, change)
    refused(path, words)


class Wider(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(65, 64)


def test_another_model(path) -> None:
    without, more = Net(), Net()
    del without.head
    more.another = nn.Linear(2, 2)
    for model, words in (
        (
            Wider(),
            r"head.weight has shape \(64, 64\), this model's has \(64, 65\): build the model",
        ),
        (without, "it has head.weight, which this model has not"),
        (more, "it lacks another.weight, another.bias"),
        (nn.ReLU(), "it has .*weight, which this model has not"),
    ):
        refused(path, words, model)
    again = quantized()
    before = bits(again)
    with pytest.raises(bs.FileError, match="of this model is quantized already: load into the f"):
        bs.load(again, path)
    assert bits(again) == before


def test_a_second_file_beside_the_model_is_not_read(path) -> None:
    save_file({"adapter": torch.ones(2)}, path.parent / "adapter_model.safetensors")
    assert bits(bs.load(Net(), path.parent).eval()) == bits(quantized())


def test_other_files(tmp_path) -> None:
    file, folder = tmp_path / "model.safetensors", tmp_path / "model"
    refused(file, "does not exist")
    for content in (b"", b"{}", b"PK\x03\x04" + bytes(100), b"\xff" * 100):
        file.write_bytes(content)
        refused(file, "is not a whole safetensors file")
    refused(file / "inside", "inside")
    folder.mkdir()
    refused(folder, "holds no safetensors file")
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


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_write_that_fails_leaves_what_was_there(error, there, path, monkeypatch) -> None:
    old = path.read_bytes()
    if not there:
        path.unlink()

    def fail(tensors, filename, metadata) -> None:
        filename.write_bytes(old[:100])
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(save_module, "save_file", fail)
        bs.save(quantized("int8"), path)
    assert [(f, f.read_bytes()) for f in path.parent.iterdir()] == [(path, old)] * there
    bs.save(quantized("int8"), path)
    assert bits(bs.load(Net(), path).eval()) == bits(quantized("int8"))
