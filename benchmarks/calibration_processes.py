# SPDX-License-Identifier: BSD-3-Clause
"""How GPTQ of one block scales over the GPUs of this host.

    python -m benchmarks.calibration_processes [--hidden 2048] [--batches 32] [--tokens 1024]
        [--blocks 1] [--backend nccl]

A block of Llama's shape, or some, is calibrated by one process, and by one for each GPU, each with
its own batches. One block is calibrated in passes, group by group of its layers; of several the
layers of each are chosen for at once. Prints JSON: seconds of `bs.calibrate`, the ratio of ideal
scaling, and whether codes and scales are equal. The first call of each process, with a batch or
two, loads and compiles what later blocks find; its seconds are printed, too.
"""

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import blockscale as bs


def llama(hidden: int, blocks: int) -> Any:
    """A Llama of so many blocks, in bfloat16."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=hidden, intermediate_size=7 * hidden // 2,
        num_hidden_layers=blocks, num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 256,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def calibrate(
    hidden: int, blocks: int, batches: list[torch.Tensor], group: Any
) -> tuple[float, str]:
    """Seconds, and a digest of the codes."""
    model = llama(hidden, blocks)
    torch.cuda.synchronize()
    if group is not None:
        dist.barrier()
    began = time.monotonic()
    bs.calibrate(model, batches, "w4a16", weight="gptq", group=group)
    torch.cuda.synchronize()
    if group is not None:
        dist.barrier()
    took = time.monotonic() - began
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return took, digest.hexdigest()


def work(rank: int, size: int, folder: str, given: argparse.Namespace) -> None:
    """What each process does; the first one writes."""
    torch.cuda.set_device(rank)
    group = None
    if size > 1:
        meet = f"file://{folder}/meet"
        dist.init_process_group(given.backend, init_method=meet, rank=rank, world_size=size)
        group = dist.group.WORLD
    generator = torch.Generator().manual_seed(1)
    every = torch.randint(0, 1024, (given.batches, 1, given.tokens), generator=generator)
    own = [each.cuda() for each in every[rank::size]]
    first, _ = calibrate(given.hidden, given.blocks, own[:2], group)
    took, digest = calibrate(given.hidden, given.blocks, own, group)
    if rank == 0:
        Path(folder, str(size)).write_text(json.dumps([took, digest, first]))
    if size > 1:
        dist.destroy_process_group()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--backend", default="nccl", help="or cpu:gloo,cuda:nccl")
    given, most = parser.parse_args(), torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, most):
            mp.spawn(work, (size, folder, given), nprocs=size)
        (one, digest, of_one), (several, other, of_several) = (
            json.loads(Path(folder, str(size)).read_text()) for size in (1, most)
        )
    told = {"gpu": torch.cuda.get_device_name(), "processes": most, "seconds": [one, several]}
    told |= {"backend": given.backend, "blocks": given.blocks}
    told["first call"] = [of_one, of_several]
    print(json.dumps(told | {"of ideal": one / several / most, "equal": digest == other}))


if __name__ == "__main__":
    main()
