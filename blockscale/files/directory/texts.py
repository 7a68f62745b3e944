"""What a run writes besides weights: config, index, and what the ledger says of the run itself."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

from blockscale.files.directory.digests import file_digest
from blockscale.files.directory.model_files import CONFIG
from blockscale.files.directory.plan import DirectoryPlan
from blockscale.files.directory.workspace import Workspace
from blockscale.files.metadata import KEY, VERSION
from blockscale.files.stored_model import INDEX


def texts_of(plan: DirectoryPlan) -> dict[str, bytes]:
    """{file: its text} of what is written anew, but for the ledger."""
    texts: dict[str, bytes] = {}
    files = plan.files
    if files.config is not None:
        # No "quant_method": transformers refuses a model without it, but fills the weights of one
        # whose method it does not know with random numbers, after a warning (measured with 5.23).
        method = {"method": KEY, "version": VERSION, "recipe": plan.recipe.to_dict()}
        texts[CONFIG] = as_json(files.config | {"quantization_config": method})
    if files.index is not None:
        where = {name: shard.name for shard in plan.shards for name in shard.placed}
        size = sum(tensor.nbytes for shard in plan.shards for tensor in shard.placed.values())
        metadata = (files.index.get("metadata") or {}) | {"total_size": size}
        weight_map = dict(sorted(where.items()))
        texts[INDEX] = as_json(files.index | {"metadata": metadata, "weight_map": weight_map})
    return texts


def about(plan: DirectoryPlan, work: Workspace, texts: list[str]) -> dict[str, Any]:
    """What the ledger says besides: what is needed to quantize again, and to prove the files."""
    files = {
        name: {"bytes": (work.out / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(_digests(plan, work, texts).items())
    }
    sources = {
        shard.name: {"bytes": shard.stamp[0], "mtime_ns": shard.stamp[1]} for shard in plan.shards
    }
    return {
        "version": VERSION, "source": str(plan.files.root), "recipe": plan.recipe.to_dict(),
        "seed": plan.seed, "blockscale": sys.modules["blockscale"].__version__,
        "torch": torch.__version__,
        "sources": sources, "files": files,
    }  # fmt: skip


def _digests(plan: DirectoryPlan, work: Workspace, texts: list[str]) -> dict[str, str]:
    """{file: SHA-256} of all but the ledger: of shards as they were finished, of others now."""
    shards = {shard.name: work.journal.digest(shard.name) for shard in plan.shards}
    assert all(shards.values())
    return {name: str(known) for name, known in shards.items()} | {
        name: file_digest(work.out / name) for name in (*plan.files.others, *texts)
    }


def as_json(data: Mapping[str, Any]) -> bytes:
    """JSON as people read it, of a whole file."""
    return (json.dumps(data, indent=2) + "\n").encode()
