# SPDX-License-Identifier: BSD-3-Clause
"""What each process of tests/calibration/test_ranks.py does, and the models and batches for it."""

import datetime
import hashlib
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.signround import SignRound
from blockscale.calibration.algorithms.spinquant import SpinQuant
from blockscale.calibration.dealing import Deal, Effort
from blockscale.calibration.ranks import Ranks
from blockscale.calibration.walk.resume import FinishedBlocks
from tests.calibration.walk.networks import Decoder, Plain
from tests.calibration.walk.networks import decoder as plain_decoder
from tests.support.mixtures import K, OfStacks

STATIC = bs.Recipe("int4:group8:fp32", "int8:tensor:fp32")
WEIGHTS = bs.Recipe("int4:group8:fp32")
NVFP4 = bs.Recipe("nvfp4", "nvfp4")


class Routed(nn.Module):
    """Experts of which each batch sees one, the last one never, and a convolution before them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(4, 8, 3, stride=2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, which: int) -> Tensor:
        y = self.conv(x).transpose(1, 2)
        return self.head(self.experts[which](y).relu_())


class Masked(Decoder):
    """Batches that are mappings, with a mask of what is padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        del attention_mask
        return super().forward(input_ids)


def decoder() -> nn.Module:
    return plain_decoder(2)


def masked() -> nn.Module:
    return plain_decoder(2, Masked)


def llama(name: str = "llama") -> nn.Module:
    from tests.support.rotation_models import decoder as of_transformers  # seconds to import

    return of_transformers(name, torch.float32)


def routed() -> nn.Module:
    torch.manual_seed(0)
    return Routed().eval()


def ids(count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(20, (2 + i % 2, 6), generator=draw) for i in range(count)]


def silent(count: int) -> list[Any]:
    """Token ids that are nearly all the same."""
    return [F.pad(x, (0, 40), value=3) for x in ids(count)]


def padded(count: int) -> list[Any]:
    """Token ids of which some are padding in every second batch."""
    rows: list[Any] = []
    for i, x in enumerate(ids(count)):
        mask = torch.ones_like(x)
        mask[0, : 3 * (i % 2)] = 0
        rows.append({"input_ids": x, "attention_mask": mask})
    return rows


def stacked() -> nn.Module:
    return OfStacks(bias=-1e9).eval()


def tokens(count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(1, 20 + i, K, generator=draw) for i in range(count)]


def sent(count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(2)
    return [(torch.randn(2, 4, 5 + i, generator=draw), (0, 2, 1)[i % 3]) for i in range(count)]


def scattered(costs: Mapping[str, Effort], size: int, home: object = None) -> Deal:
    """Neighbouring parts to other processes, whatever that costs."""
    del home
    who = {
        name: [(i + part) % size for part in range(cost.parts)]
        for i, (name, cost) in enumerate(costs.items())
    }
    return Deal(who, [0.0] * size)


@contextmanager
def small_parts() -> Iterator[None]:
    """Weights are chosen seven rows at a time, gram matrices are summed up in six columns, and
    processes share all of them."""
    with (
        patch("blockscale.calibration.dealing.ROWS", 7),
        patch("blockscale.calibration.weighing._STRIP", 6),
        patch("blockscale.calibration.ranks.deal", scattered),
    ):
        yield


Case = tuple[Callable[[], nn.Module], Callable[[int], list[Any]], bs.Recipe, dict[str, Any]]

# what one process that has all batches chooses as well; parts: with `small_parts`; source: of a
# model on the meta device
CASES: dict[str, Case] = {
    "gptq": (decoder, ids, STATIC, {"weight": "gptq"}),
    "routed": (routed, sent, STATIC, {"weight": "gptq", "transform": "smoothquant"}),
    "stacks, few tokens": (stacked, tokens, bs.Recipe("int4:group32:fp32"), {"weight": "gptq"}),
    "padding, shared scales": (masked, padded, NVFP4, {"weight": "gptq", "parts": True}),
    "silence": (decoder, silent, WEIGHTS, {"weight": "gptq", "parts": True}),
    "source": (decoder, ids, WEIGHTS, {"weight": "gptq", "source": True}),
}  # fmt: skip
# what sums gradients batch by batch, and so other bits than one process that joins rows
LEARNED: dict[str, Case] = {
    "signround": (
        decoder, ids, STATIC, {"weight": SignRound(2, start="absmax", positions=24, whole=2)},
    ),
}  # fmt: skip
MORE: dict[str, Case] = (
    {
        f"{name} of {kind}": (make, batches, recipe, how)
        for kind, make, batches in (
            ("decoder", decoder, ids),
            ("llama", llama, padded),
            ("gpt2", lambda: llama("gpt2"), padded),
            ("routed", routed, sent),
        )
        for name, recipe, how in (
            ("absmax", STATIC, {}),
            ("mse", STATIC, {"weight": "mse", "observer": "min_max", "parts": True}),
            ("hqq", WEIGHTS, {"weight": "hqq"}),
            ("search", STATIC, {"weight": "search", "observer": "percentile:99", "parts": True}),
            ("gptq", NVFP4, {"weight": "gptq", "transform": "smoothquant", "parts": True}),
            ("layers", STATIC, {"weight": "gptq", "sequential": "layers", "observer": "entropy"}),
            (
                "passes",
                STATIC,
                {"weight": "gptq", "blocks": False, "observer": "adaptive", "parts": True},
            ),
            ("float", STATIC, {"weight": "gptq", "sequential": False, "budget": 1e5}),
            (
                "hadamard",
                STATIC,
                {"weight": GPTQ(asymmetric=0.5), "transform": "hadamard", "parts": True},
            ),
            ("means", bs.Recipe("binary", "ternary:tensor:fp32"), {"observer": "mean"}),
        )
    }
    | {
        "gptaq, awq": (
            decoder,
            ids,
            STATIC,
            {"weight": GPTQ(asymmetric=True), "transform": "awq"},
        ),
        "moving average": (
            decoder,
            ids,
            STATIC,
            {"weight": "search", "observer": "moving_average:0.1"},
        ),
    }
    | {
        f"{name} of llama": (llama, padded, STATIC, how)
        for name, how in (
            ("quarot", {"transform": "quarot", "weight": "gptq"}),
            ("spinquant", {"transform": SpinQuant(3, batches=3)}),
        )
    }
)
MORE_LEARNED: dict[str, Case] = {
    "signround of llama": (
        llama, padded, STATIC,
        {"weight": SignRound(10, positions=8), "transform": "awq"},
    ),
    "signround of routed": (routed, sent, STATIC, {"weight": SignRound(10, start="mse")}),
}  # fmt: skip
EVERY = CASES | LEARNED | MORE | MORE_LEARNED
# how many processes calibrate each: every algorithm and every model in two, three and four, and
# in one what those that learn are compared with, and each algorithm once
SIZES = {
    name: (*((1,) if name in LEARNED | MORE_LEARNED or name.endswith(" of decoder") else ()),
           2 + (i + i // 10) % 3)
    for cases in (MORE, CASES | LEARNED | MORE_LEARNED)
    for i, name in enumerate(cases)
}  # fmt: skip
# what four processes, and three of them, share
SHARED: dict[str, Case] = {
    "drift": (
        decoder, ids, NVFP4,
        {"weight": GPTQ("absmax", asymmetric=True), "transform": "smoothquant", "parts": True},
    ),
    "search": (decoder, ids, WEIGHTS, {"weight": "search", "parts": True}),
}  # fmt: skip
COUNT = 5  # batches of all processes


def calibrated(case: Case, rank: int, size: int, group: Any) -> tuple[str, Any]:
    """A digest of the model that was calibrated on a process's batches, and its ledger."""
    make, batches, recipe, how = case
    how = dict(how)
    model, own = make(), batches(COUNT)[rank::size]
    parts = small_parts() if how.pop("parts", False) else nullcontext()
    if how.get("source"):
        how["source"], model = model.state_dict(), model.to("meta")
    with parts, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an expert that saw no data, on purpose
        ledger = bs.calibrate(model, own, recipe, progress=False, group=group, **how)
    return digest_of(model), ledger.to_dict()


def digest_of(model: nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            found.update(name.encode() + bytes(value.flatten().view(torch.uint8).tolist()))
    return found.hexdigest()


class Broken(nn.Module):
    """A decoder that fails at batches of three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = decoder()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 3:
            raise OverflowError("three rows")
        y: Tensor = self.inner(x)
        return y


class Failing(GPTQ):
    """GPTQ that fails in the last process, once some of its rows are chosen."""

    def quantize_each(self, weights: Any, *more: Any) -> Any:
        chosen = super().quantize_each(weights, *more)
        if dist.get_rank() == dist.get_world_size() - 1:
            raise OverflowError("these rows")
        return chosen


def words(model: nn.Module, batches: list[Any], *more: Any, **how: Any) -> str:
    """What a call is refused with; the model has to be as it was then."""
    before = digest_of(model)
    try:
        bs.calibrate(model, batches, *more, progress=False, group=dist.group.WORLD, **how)
    except (ValueError, RuntimeError, OverflowError, OSError) as error:
        assert digest_of(model) == before
        return f"{type(error).__name__}: {error}"
    return ""


def refusals(rank: int, size: int) -> dict[str, str]:
    """What processes that do not fit together are told."""
    net, own = decoder(), ids(COUNT)[rank::size]
    other = decoder()
    with torch.no_grad():
        other.head.weight[-1, -1] += rank  # type: ignore[index, union-attr, operator]
    found = {
        "recipe": words(net, own, WEIGHTS if rank else STATIC),
        "model": words(other, own, WEIGHTS),
        "option": words(net, own, WEIGHTS, weight="gptq", seed=rank),
        "dealt": words(net, ids(COUNT)[: 1 + 3 * rank], WEIGHTS),
        "none": words(net, own if rank else [], WEIGHTS),
        "raised": words(Broken(), own, WEIGHTS, weight="gptq"),
        "block algorithm": words(net, own, WEIGHTS, weight=Plain()),
    }
    with small_parts():
        found["choosing"] = words(net, own, WEIGHTS, weight=Failing())
    whole = Ranks.broadcast

    def one_bit(self: Ranks, x: Tensor | None, size: int, owner: int, *dtype: Any) -> Tensor:
        data = whole(self, x, size, owner, *dtype)
        if data.dtype == torch.uint8:
            data[-1 - size // 2] ^= rank  # the last process receives another bit
        return data

    with patch.object(Ranks, "broadcast", one_bit):
        found["digest"] = words(net, own, STATIC, weight="gptq")
    return found


@contextmanager
def messages(of: Counter[str]) -> Iterator[None]:
    """Counts calls of torch.distributed, and tensors' bytes, as long as this lasts."""
    names = ("all_gather_object", "all_to_all_single", "broadcast")
    whole = {name: getattr(dist, name) for name in names}

    def counting(name: str, *arguments: Any) -> Any:
        of[name] += 1
        sent = {"all_to_all_single": 1, "broadcast": 0}  # which argument is what is sent
        if name in sent:
            of["bytes"] += arguments[sent[name]].nbytes
        return whole[name](*arguments)

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(dist, name, partial(counting, name)))
        yield


def counts(rank: int, size: int) -> dict[str, int]:
    """What one block more takes: how many rounds of objects, of inputs and of chosen tensors, and
    bytes; of 24 batches in all."""
    every = []
    for blocks in (2, 3):
        net, own, of = plain_decoder(blocks), ids(24)[rank::size], Counter[str]()
        with messages(of):
            bs.calibrate(
                net, own, STATIC, weight="gptq", transform="smoothquant", progress=False,
                group=dist.group.WORLD,
            )  # fmt: skip
        every.append(of)
    return dict(every[1] - every[0])


FAILS = ("batch", "owner", "quiet batch")


def rounds(rank: int, size: int, most: int = 1 << 28, fails: str = "") -> Any:
    """Which batches the first process was told of, in its order, what it was told, and how often
    processes had messages; of 21 batches, whose tensors grow. fails: one of FAILS."""
    ranks, seen, of = Ranks(dist.group.WORLD), list[Any](), Counter[str]()
    own = len(range(rank, 21, size))
    ranks.deal_batches(own)

    def add(x: Tensor, number: int) -> None:
        if fails == "owner" and number == 6:
            raise OverflowError("batch 6 here")
        seen.append((number, set(x.tolist())))

    def do(b: int) -> None:
        if fails == "batch" and ranks.number(b) == 9:
            raise OverflowError("batch 9 there")
        tell(torch.full((b + 1,), ranks.number(b)), ranks.number(b))

    def quietly(b: int) -> None:
        if fails == "quiet batch" and ranks.number(b) == 9:
            raise OverflowError("batch 9 there")

    with patch("blockscale.calibration.ranks._BYTES", most), messages(of):
        tell = ranks.at_process(0, add)
        try:
            ranks.each(own, do)
            ranks.each(own, quietly)  # nobody is to be told of anything
        except (OverflowError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
    return seen, dict(of)


def resumed(rank: int, folder: str, size: int) -> dict[str, Any]:
    """A run whose disk is full after one block goes on in all processes, and in one."""
    own, done, group = ids(COUNT)[rank::size], Path(folder) / "done", dist.group.WORLD
    write = FinishedBlocks._write

    def full(self: FinishedBlocks, place: Path, data: bytes) -> None:
        if place.name == "block-00001.safetensors":
            raise OSError("no space left")
        write(self, place, data)

    with patch.object(FinishedBlocks, "_write", full):
        found: dict[str, Any] = {"stopped": words(decoder(), own, STATIC, resume=done)}
    found["finished"] = sorted(path.name for path in done.iterdir())
    found["other"] = words(decoder(), own, WEIGHTS, resume=done)
    dist.barrier()
    if rank == 0:
        shutil.copytree(done, done.with_name("copy"))
        case: Case = decoder, ids, STATIC, {"resume": done.with_name("copy")}
        found["alone"] = calibrated(case, 0, 1, "local")
    found["together"] = calibrated((decoder, ids, STATIC, {"resume": done}), rank, size, group)
    return found


def begin(rank: int, folder: str, size: int) -> None:
    torch.set_num_threads(1)
    meet, limit = f"file://{folder}/meet", datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size, timeout=limit)


def work(rank: int, folder: str) -> None:
    """Two processes."""
    begin(rank, folder, 2)
    alone = dist.new_group([0])
    found: dict[str, Any] = {}
    for name, case in (CASES | LEARNED).items():
        found[name] = calibrated(case, rank, 2, dist.group.WORLD)
    if rank == 0:
        found["alone"] = {n: calibrated(case, 0, 1, alone) for n, case in LEARNED.items()}
    found["refusals"] = refusals(rank, 2)
    found["counts"] = counts(rank, 2)
    found["rounds"] = [rounds(rank, 2), rounds(rank, 2, 100)]
    found["failures"] = [rounds(rank, 2, fails=which) for which in FAILS]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def work_again(rank: int, folder: str) -> None:
    """Two processes that go on."""
    begin(rank, folder, 2)
    torch.save(resumed(rank, folder, 2), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def work_shared(rank: int, folder: str) -> None:
    """Four processes that share layers: all of them, and three."""
    work_of_four(rank, folder, SHARED, dict.fromkeys(SHARED, (3, 4)))


def work_of_all(rank: int, folder: str) -> None:
    """Four processes: every algorithm, in groups of one to four."""
    work_of_four(rank, folder, EVERY, SIZES)


def work_of_four(
    rank: int, folder: str, cases: Mapping[str, Case], sizes: Mapping[str, tuple[int, ...]]
) -> None:
    begin(rank, folder, 4)
    groups = {size: dist.new_group(list(range(size))) for size in (1, 2, 3, 4)}
    found: dict[str, Any] = {}
    for name, case in cases.items():
        for size in sizes[name]:
            if rank < size:
                found[f"{name} {size}"] = calibrated(case, rank, size, groups[size])
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
