# SPDX-License-Identifier: BSD-3-Clause
"""Device maps with the disk in them, and models that are to be dealt out to processes."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import blockscale as bs
from blockscale.integrations.transformers import BlockscaleConfig
from blockscale.integrations.transformers.placement import check_one_process, loading_places
from tests.support.layers_offload import X, held_bytes, llama
from tests.support.transformers_models import same_bits


@pytest.mark.parametrize("places", [{"": "cpu"}, {"": "meta"}, {"a": 0, "b": 1}, {"a": "cuda:0"}])
def test_other_places_stay(places: dict[str, Any]) -> None:
    assert loading_places(places) == places


def test_the_disk_is_read_by_the_cpu() -> None:
    assert loading_places({"a": 0, "b": "disk"}) == {"a": 0, "b": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, and its quantized directory."""
    folder = tmp_path_factory.mktemp("placement")
    llama().save_pretrained(folder / "float")
    bs.quantize_directory(folder / "float", folder / "quantized", "mxfp4")
    return folder


@pytest.mark.some(3)
@pytest.mark.parametrize("source", ["float", "quantized"])
@pytest.mark.parametrize("places", ["auto", {"": "disk"}], ids=str)
def test_a_model_larger_than_the_limit(
    folders: Path, source: str, places: Any, tmp_path: Path
) -> None:
    """It is on disk in codes, computes the same bits, and saves them; the files go with it."""
    options = {} if source == "quantized" else {"quantization_config": BlockscaleConfig("mxfp4")}
    loader: Any = hf.LlamaForCausalLM.from_pretrained
    whole = loader(folders / source, **options)
    limit = {"cpu": int(held_bytes(whole) * 0.75)} if places == "auto" else None
    with pytest.warns(UserWarning, match=r"kept on disk, in .*blockscale-offload-") as told:
        model = loader(folders / source, device_map=places, max_memory=limit, **options)
    [words] = [str(each.message) for each in told if "blockscale-offload-" in str(each.message)]
    folder = Path(words.partition("kept on disk, in ")[2].partition(",")[0])
    assert folder.is_dir() and held_bytes(model) <= 0.75 * held_bytes(whole)
    assert "disk" in model.hf_device_map.values()
    with torch.no_grad():
        assert torch.equal(model(X).logits, whole(X).logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # transformers says that it reads all of it
        model.save_pretrained(tmp_path / "again")
    same_bits(loader(tmp_path / "again"), whole)
    del model
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("size", ["tp_size", "fsdp_size"])
@pytest.mark.parametrize("source", ["float", "quantized"])
def test_what_is_dealt_out_to_processes_is_refused(
    folders: Path, source: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers makes the mesh before it asks: one is enough for the question."""
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.mixin import DistributedMixin

    asked = DistributedConfig(**{size: 2})
    found = lambda *_, device_map: (asked, device_map, None)  # noqa: E731
    monkeypatch.setattr(DistributedMixin, "prepare_distribute_model", found)
    options = {} if source == "quantized" else {"quantization_config": BlockscaleConfig("mxfp4")}
    with pytest.raises(ValueError, match=rf"asks for {size}=2, .*whole in each process"):
        hf.LlamaForCausalLM.from_pretrained(folders / source, distributed_config=asked, **options)


def test_expert_parallel_and_one_process() -> None:
    class Config:
        distributed_config: Any = None

    check_one_process(Config())
    Config.distributed_config = type("Asked", (), {"ep_size": 2, "tp_size": 2, "fsdp_size": 1})
    with pytest.raises(ValueError, match="asks for tp_size=2, ep_size=2, and codes"):
        check_one_process(Config())
    Config.distributed_config = type("Asked", (), {"ep_size": 1})
    check_one_process(Config())
