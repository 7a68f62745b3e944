# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints become others' with the same values, or nothing is written."""

import json
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.export import conversion as module
from blockscale.export.checkpoints.gguf.container import read_container
from blockscale.export.conversion import bytes_at, check_target, is_one_file, output_place
from blockscale.export.conversion.plan import NotLosslessError
from blockscale.export.writers import PlannedTensor, gptq
from blockscale.export.writers.gguf_files.file import GGUFFile
from blockscale.files.directory.beside import old_path
from blockscale.files.directory.folder import is_held
from blockscale.files.metadata import FileError
from tests.support.conversion_models import CONFIG, tensors, value, write

RECORDED = Path(__file__).parents[2] / "recorded"
ASYM = "uint4:group128:fp16:asym"
# (format of the source, --to, format there)
EXACT = [
    (ASYM, "gptq", ASYM),
    (ASYM, "awq", ASYM),
    (ASYM, "gguf", "int5:group32:fp16:full"),  # codes less zero points, from -15 to 15
    (ASYM, "mlx", "uint4:group128:fp32:offset"),
    ("uint3:group32:fp16:asym", "gptq", "uint3:group32:fp16:asym"),
    ("uint3:group32:fp16:asym", "gguf", "int4:group32:fp16:full"),
    ("uint8:group64:fp16:asym", "mlx", "uint8:group64:fp32:offset"),
    ("int4:group32:fp16:full", "gguf", "int4:group32:fp16:full"),
    ("int4:group32:fp16:full", "mlx", "uint4:group32:fp16:offset"),
    ("int4:group32:fp16:full", "awq", "uint4:group32:fp16:asym"),
    ("int8:channel0:bf16", "gguf", "int8:group32:fp16:full"),
    ("mxfp4", "mlx", "e2m1:group32:e8m0/given"),
    ("mxfp4", "gguf", "e2m1:group32:e8m0/given"),
    ("mxfp8", "mlx", "e4m3:group32:e8m0/given"),
    ("e4m3:tile128x128:fp32", "fp8", "e4m3:tile128x128:fp32"),
    ("nf4:flat64:fp32", "bnb", "nf4:flat64:fp32"),
    ("uint4:group32:fp16:offset", "mlx", "uint4:group32:fp16:offset"),
    ("uint4:group32:fp16:offset", "gguf", "uint4:group32:fp16:offset"),
    ("uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", "gguf",
     "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)"),
    ("uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", "mlx",
     "uint4:group32:fp32:offset"),
]  # fmt: skip


@pytest.mark.some(8)
@pytest.mark.parametrize(("fmt", "to", "wanted"), EXACT)
def test_the_same_values_there_and_back(fmt: str, to: str, wanted: str, tmp_path: Path) -> None:
    held = tensors(fmt)
    source = write(tmp_path / "source", held)
    there = bs.export.convert_checkpoint(source, tmp_path / "there", to)
    assert there.lossless and {t.written for t in there.of("exact")} == {wanted}
    assert len(there.tensors) == len(held) and not there.left_out
    back = bs.export.convert_checkpoint(tmp_path / "there", tmp_path / "back", "blockscale")
    assert back.lossless and {t.compared for t in back.of("exact")} == {"codes"}
    with bs.checkpoint(tmp_path / "back") as found:
        assert set(found) == set(held)
        for name, tensor in held.items():
            assert torch.equal(value(found[name]), value(tensor)), name


def test_gguf_again(tmp_path: Path) -> None:
    """What gguf 0.19.0 wrote, whole and split: every byte but TQ1_0's, which are not alone."""
    source, first, second = RECORDED / "small.gguf", tmp_path / "first", tmp_path / "second"
    done = bs.export.convert_checkpoint(source, first, "gguf")
    assert done.lossless
    one, other = source.read_bytes(), first.read_bytes()
    entries = read_container(source).entries
    start = entries["blk.0.TQ1_0.weight"].start
    stop = start + 6 * 54
    assert one[:start] == other[:start] and one[stop:] == other[stop : len(one)]
    assert not any(other[len(one) :])  # gguf leaves out what fills up the last tensor
    bs.export.convert_checkpoint(first, second, "gguf")
    assert second.read_bytes() == other
    split = RECORDED / "split-00001-of-00002.gguf"
    bs.export.convert_checkpoint(split, second, "gguf", force=True)
    with bs.checkpoint(first) as whole, bs.checkpoint(second) as joined:
        assert whole.metadata == joined.metadata
        assert all(torch.equal(whole.blocks(n), joined.blocks(n)) for n in whole)


def test_rows_of_q_and_k_move(tmp_path: Path) -> None:
    """As transformers 5.23's own reader of GGUF moves them back (`reverse_permute_weights`)."""
    held = tensors("int8:group32:fp16:full")
    source = write(tmp_path / "source", held)
    bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    with bs.checkpoint(tmp_path / "m.gguf") as found:
        for name, heads in (("q", 4), ("k", 2)):
            there = found[f"blk.0.attn_{name}.weight"].dequantize()
            rows = there.shape[0]
            moved = there.reshape(heads, rows // heads // 2, 2, -1).swapaxes(2, 1).reshape(rows, -1)
            expected = value(held[f"model.layers.0.self_attn.{name}_proj.weight"])
            assert torch.equal(moved, expected) and not torch.equal(there, expected)
        assert found.metadata["llama.attention.head_count_kv"] == 2
        assert found.stored["blk.0.attn_norm.weight"].kind == "F32"


def test_what_cannot_be_carried_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors("nf4:group64:fp32"))
    with pytest.raises(NotLosslessError) as error:
        bs.export.convert_checkpoint(source, tmp_path / "there", "gguf")
    text = str(error.value)
    assert "7 tensors cannot be written as gguf with the same values" in text
    assert "'blk.0.ffn_down.weight'" in text and "codes of nf4 are not codes" in text
    assert "--float PATTERN" in text and "--requantize RECIPE" in text
    assert len(error.value.reasons) == 7
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_quantized_again_with_the_error_of_each(tmp_path: Path) -> None:
    held = tensors("nf4:group64:fp32")
    source = write(tmp_path / "source", held)
    done = bs.export.convert_checkpoint(
        source, tmp_path / "m.gguf", "gguf", requantize="int8:group32:fp16:full"
    )
    again = done.of("requantized")
    assert not done.lossless and len(again) == 7
    before = value(held["model.layers.0.mlp.down_proj.weight"]).double()
    after = value(bs.quantize(before.float(), "int8:group32:fp16:full")).double()
    [one] = [each for each in again if each.source == "model.layers.0.mlp.down_proj.weight"]
    relative = float((after - before).norm() / before.norm())
    assert one.relative == pytest.approx(relative, rel=1e-6) and relative > 0
    assert one.sqnr == pytest.approx(-20 * torch.tensor(relative).log10().item(), rel=1e-5)
    assert "codes of nf4" in one.notes[0] and one.compared == "codes"


def test_a_recipe_that_the_target_cannot_hold(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors("nf4:group64:fp32"))
    with pytest.raises(NotLosslessError, match="the recipe's format: int8:group48:fp16"):
        bs.export.convert_checkpoint(
            source, tmp_path / "m.gguf", "gguf", requantize="int8:group48:fp16"
        )


def test_floats_where_asked_for(tmp_path: Path) -> None:
    """A quantized table of embeddings, for which GPTQ has no place."""
    held = tensors(ASYM, embedding=ASYM)
    source = write(tmp_path / "source", held)
    with pytest.raises(
        NotLosslessError, match="of this layout do not support quantized embeddings"
    ):
        bs.export.convert_checkpoint(source, tmp_path / "there", "gptq")
    done = bs.export.convert_checkpoint(
        source, tmp_path / "there", "gptq", floats=["model.embed_tokens"]
    )
    assert done.lossless and [t.name for t in done.of("dequantized")] == [
        "model.embed_tokens.weight"
    ]
    with bs.checkpoint(tmp_path / "there") as found:
        table = found["model.embed_tokens.weight"]
        assert table.dtype == torch.float32
        assert torch.equal(table, value(held["model.embed_tokens.weight"]))


def test_a_wrong_byte_is_found_and_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    store = gptq.GPTQWriter.store

    def wrong(self: gptq.GPTQWriter, name: str, q: bs.QTensor) -> dict:
        found = store(self, name, q)
        if "down_proj" in name:
            found["model.layers.0.mlp.down_proj.qweight"][3, 5] ^= 1 << 8
        return found

    monkeypatch.setattr(gptq.GPTQWriter, "store", wrong)
    with pytest.raises(bs.FileError, match=r"down_proj.*1 values differ from the source"):
        bs.export.convert_checkpoint(source, tmp_path / "there", "gptq")
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", ["gguf", "gptq"])
def test_a_full_disk_leaves_nothing(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    (tmp_path / "there").mkdir() if to == "gptq" else (tmp_path / "there").write_text("mine")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_stream", full)
    with pytest.raises(OSError, match="No space"):
        bs.export.convert_checkpoint(source, tmp_path / "there", to, force=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", "there"]
    assert to == "gptq" or (tmp_path / "there").read_text() == "mine"


def test_what_is_there_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors("int8:group32:fp16:full"))
    (tmp_path / "m.gguf").write_text("mine")
    with pytest.raises(ValueError, match="exists: choose another place, or replace it"):
        bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    assert (tmp_path / "m.gguf").read_text() == "mine"
    bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf", force=True)
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    done = bs.export.convert_checkpoint(source, tmp_path / "there", "gptq", dry_run=True)
    assert len(done.of("exact")) == 7
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_other_files_and_the_configuration(tmp_path: Path) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "gone"}}
    source = write(tmp_path / "source", tensors(ASYM), config=config)
    (source / "tokenizer.json").write_text("{}")
    (source / "quantize_config.json").write_text("{}")
    done = bs.export.convert_checkpoint(source, tmp_path / "there", "mlx")
    assert done.copied == ("tokenizer.json",)
    found = json.loads((tmp_path / "there" / "config.json").read_text())
    assert found["quantization"] == {"group_size": 128, "bits": 4, "mode": "affine"}
    assert found["quantization_config"] == found["quantization"] and found["hidden_size"] == 256
    assert not (tmp_path / "there" / "quantize_config.json").exists()
    told = json.loads((tmp_path / "there" / "blockscale_ledger.json").read_text())
    assert told["lossless"] is True and len(told["tensors"]) == 12


def test_unknown_targets_and_names(tmp_path: Path) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    with pytest.raises(
        ValueError, match="cannot write checkpoints of kind 'exl2'; choose from awq"
    ):
        bs.export.convert_checkpoint(source, tmp_path / "there", "exl2")
    with pytest.raises(ValueError, match="names must be 'auto' or 'keep'"):
        bs.export.convert_checkpoint(source, tmp_path / "there", "gguf", names="new")
    with pytest.raises(bs.FileError, match="does not exist"):
        bs.export.convert_checkpoint(tmp_path / "gone", tmp_path / "there", "gguf")
    floats = write(tmp_path / "floats", {"a.weight": torch.ones(32, 32)})
    with pytest.raises(ValueError, match=r".* holds no quantized tensor to convert"):
        bs.export.convert_checkpoint(floats, tmp_path / "there", "awq", names="keep")
    assert not (tmp_path / "there").exists()


def test_split_files(tmp_path: Path) -> None:
    """The tensors, metadata and bytes of one file, in several that appear together."""
    source = write(tmp_path / "source", tensors("int8:group32:fp16:full"))
    bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    done = bs.export.convert_checkpoint(source, tmp_path / "m", "gguf", shard_size=200_000)
    files = sorted((tmp_path / "m").iterdir())
    assert done.lossless and done.bytes_after == sum(each.stat().st_size for each in files)
    assert len(files) > 2 and files[0].name == f"m-00001-of-{len(files):05}.gguf"
    with bs.checkpoint(tmp_path / "m.gguf") as whole, bs.checkpoint(files[1]) as split:
        added = {key for key in split.metadata if key.startswith("split.")}
        assert {k: v for k, v in split.metadata.items() if k not in added} == whole.metadata
        assert len(added) == 3 and list(whole) == list(split)
        assert all(torch.equal(whole.blocks(n), split.blocks(n)) for n in whole)
    bs.export.convert_checkpoint(files[0], tmp_path / "again.gguf", "gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    bs.export.convert_checkpoint(source, tmp_path / "m", "gguf", shard_size=10**9, force=True)
    assert [each.name for each in (tmp_path / "m").iterdir()] == ["m-00001-of-00001.gguf"]


def test_split_files_of_other_kinds_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "source", tensors(ASYM))
    done = bs.export.convert_checkpoint(source, tmp_path / "awq", "awq", shard_size=100_000)
    assert done.lossless and len(list((tmp_path / "awq").glob("model-*-of-*.safetensors"))) > 2
    with pytest.raises(ValueError, match=r"shard_size \(bytes of a file\) must be >= 1, got 0"):
        bs.export.convert_checkpoint(source, tmp_path / "m", "gguf", shard_size=0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_stream", full)
    with pytest.raises(OSError, match="No space"):
        bs.export.convert_checkpoint(source, tmp_path / "m", "gguf", shard_size=200_000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["awq", "source"]


def test_nvfp4_with_a_scale_of_scales(tmp_path: Path) -> None:
    """In GGUF that is a tensor beside the weight's; read back, it is a part of the weight again."""
    held = tensors("nvfp4")
    source = write(tmp_path / "source", held)
    done = bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    assert done.lossless and "products instead" in str(done.tensors)
    entries = read_container(tmp_path / "m.gguf").entries
    scales = {name for name in entries if name.endswith(".scale")}
    assert len(scales) == 7 and entries["blk.0.ffn_down.scale"].shape == (1,)
    assert read_container(tmp_path / "m.gguf").values["general.file_type"] == 39
    with bs.checkpoint(tmp_path / "m.gguf") as found:
        assert not scales & set(found)
        down = found["blk.0.ffn_down.weight"]
        assert torch.equal(value(down), value(held["model.layers.0.mlp.down_proj.weight"]))
        assert float(down.qparams.outer) != 1
    again = bs.export.convert_checkpoint(tmp_path / "m.gguf", tmp_path / "again.gguf", "gguf")
    assert again.lossless
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    back = bs.export.convert_checkpoint(tmp_path / "m.gguf", tmp_path / "back", "blockscale")
    assert {each.compared for each in back.of("exact")} == {"codes"}
    split = bs.export.convert_checkpoint(source, tmp_path / "parts", "gguf", shard_size=40_000)
    assert split.lossless


def test_scales_of_scales_that_llama_cpp_leaves_out(tmp_path: Path) -> None:
    """Its graph of qwen2 reads them and does not multiply; beside a table there is none."""
    held = tensors("nvfp4")
    config = CONFIG | {"model_type": "qwen2"}
    source = write(tmp_path / "qwen2", held, config=config)
    with pytest.raises(NotLosslessError, match=r"llama.cpp's graph of qwen2 does not apply"):
        bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    held = tensors("int8:group32:fp16:full", embedding="nvfp4")
    source = write(tmp_path / "table", held)
    with pytest.raises(NotLosslessError, match=r"llama.cpp does not read for this tensor"):
        bs.export.convert_checkpoint(source, tmp_path / "m.gguf", "gguf")
    requantized = bs.export.convert_checkpoint(
        write(tmp_path / "nf4", tensors("nf4:group64:fp32")), tmp_path / "m.gguf", "gguf",
        requantize="nvfp4",
    )  # fmt: skip
    assert len(requantized.of("requantized")) == 7
    with bs.checkpoint(tmp_path / "m.gguf") as found:
        assert float(found["blk.0.ffn_up.weight"].qparams.outer) != 1


def test_scales_of_scales_of_experts_that_differ(tmp_path: Path) -> None:
    """A file of llama.cpp's converter: each expert has its own, and no format here has that."""
    blocks = bs.quantize(torch.randn(2, 64, 64), "e2m1:group16:e4m3")
    scale = torch.tensor([1.0, 2.0])
    held = {"blk.0.ffn_up_exps.weight": blocks, "blk.0.ffn_up_exps.scale": scale}
    planned = [
        PlannedTensor(n, tuple(t.shape), getattr(t, "format", None), torch.float32)
        for n, t in held.items()
    ]
    file = GGUFFile(tmp_path / "m.gguf", planned, {}, 32, {})
    for name, tensor in held.items():
        file.write(name, tensor)
    file.close()
    with bs.checkpoint(tmp_path / "m.gguf") as found:
        unread = found.stored["blk.0.ffn_up_exps.weight"].unread
        assert "its experts have different outer scales (blk.0.ffn_up_exps.scale)" in unread
        assert torch.equal(found["blk.0.ffn_up_exps.scale"], scale)


def test_rows_that_are_no_whole_blocks_of_256(tmp_path: Path) -> None:
    """Requantized in a K type, they get what llama-quantize would give them; said in the ledger."""
    held = {
        "a.weight": bs.quantize(torch.randn(4, 384), "nf4:group64:fp32"),
        "b.weight": bs.quantize(torch.randn(4, 512), "nf4:group64:fp32"),
    }
    source, q4_k = write(tmp_path / "source", held), bs.profile("gguf.q4_k").format
    done = bs.export.convert_checkpoint(
        source, tmp_path / "m.gguf", "gguf", requantize=str(q4_k), names="keep"
    )
    found = {each.name: each for each in done.tensors}
    assert found["a.weight"].written == "int5:group32:fp16:full"
    assert found["b.weight"].written == str(q4_k)
    told = "rows of [384] do not divide into blocks of 256 (Q4_K): int5:group32:fp16:full, as llama"
    assert told in found["a.weight"].notes[-1] and len(found["b.weight"].notes) == 1
    held["a.weight"] = bs.quantize(torch.randn(4, 48), "nf4:group16:fp32")
    source = write(tmp_path / "other", held)
    with pytest.raises(NotLosslessError, match=r"format: rows of \[48\] do not divide"):
        bs.export.convert_checkpoint(
            source, tmp_path / "n.gguf", "gguf", requantize=str(q4_k), names="keep"
        )


def test_places_that_cannot_be_taken(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is the source itself: choose"):
        check_target(source, source, False, True)
    with pytest.raises(ValueError, match="is inside"):
        check_target(tmp_path, source / "model.safetensors", False, True)
    with pytest.raises(ValueError, match="is a file: name a directory"):
        check_target(tmp_path / "file", source, False, True)
    with pytest.raises(ValueError, match="is a directory: name the file"):
        check_target(source, tmp_path / "x", True, True)
    with pytest.raises(ValueError, match="is not a directory: create it first"):
        check_target(tmp_path / "no" / "where", source, False, False)
    with pytest.raises(ValueError, match="exists: choose another place"):
        check_target(tmp_path / "file", source, True, False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", source, False, False)
    check_target(tmp_path / "file", source, True, True)


def test_directories_are_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(RuntimeError, match="stop"), output_place(target, False) as path:
        (path / "new").write_text("half")
        raise RuntimeError("stop")
    assert [each.name for each in target.iterdir()] == ["old"]
    with output_place(target, False) as path:
        (path / "new").write_text("new")
    assert [each.name for each in target.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    with pytest.raises(RuntimeError, match="stop"), output_place(target, True) as path:
        path.write_text("half")
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []
    with output_place(target, True) as path:
        path.write_text("whole")
    assert target.read_text() == "whole"


def test_two_conversions_at_once_keep_apart(tmp_path: Path) -> None:
    """Each has a work directory of its own, which is locked: `blockscale clean` leaves it alone."""
    target = tmp_path / "there"
    with output_place(target, False) as path:
        assert is_held(path.parent)
        with output_place(target, False) as other:
            assert other != path
            (other / "first").write_text("first")
        assert [each.name for each in target.iterdir()] == ["first"]
        (path / "second").write_text("second")
    assert [each.name for each in target.iterdir()] == ["second"]
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_what_a_killed_run_put_aside_is_back_first(tmp_path: Path) -> None:
    target = tmp_path / "there"
    old_path(target, "0123abcd").mkdir()
    (old_path(target, "0123abcd") / "mine").write_text("mine")
    with pytest.raises(ValueError, match="exists: choose another place"):
        check_target(target, tmp_path / "source", False, False)
    assert (target / "mine").read_text() == "mine"


def test_names_that_leave_no_room(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is too long"):
        check_target(tmp_path / ("n" * 240), tmp_path / "source", False, False)


def test_files_of_a_size(tmp_path: Path) -> None:
    assert is_one_file(True, None) and not is_one_file(True, 1) and not is_one_file(False, None)
    with pytest.raises(ValueError, match=r"shard_size \(bytes of a file\) must be >= 1, got -1"):
        is_one_file(True, -1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(5))
    (tmp_path / "c").write_bytes(bytes(2))
    assert bytes_at(tmp_path) == 7 and bytes_at(tmp_path / "c") == 2
