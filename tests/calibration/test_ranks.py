# SPDX-License-Identifier: BSD-3-Clause
"""bs.calibrate(group=…) in real processes (gloo): one model, whose bits do not depend on how many
there are; what does not fit is refused in all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from blockscale.calibration.dealing import Effort
from blockscale.calibration.ranks import Ranks
from tests.calibration.dealing import (
    CASES,
    EVERY,
    LEARNED,
    MORE_LEARNED,
    SHARED,
    SIZES,
    STATIC,
    calibrated,
    decoder,
    ids,
    work,
    work_again,
    work_of_all,
    work_shared,
)
from tests.support import fresh

Found = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products have the bits that they have in the processes."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two processes found, from one spawn."""
    folder = tmp_path_factory.mktemp("ranks")
    fresh.ranks(work, folder, 2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_choose_what_one_chooses(found: Found, name: str) -> None:
    """To the bit, and with the same ledger."""
    digest, ledger = calibrated(CASES[name], 0, 1, None)
    assert [each[name][0] for each in found] == [digest] * 2
    assert [each[name][1] for each in found] == [ledger] * 2


def test_every_process_says_that_rows_are_alike(found: Found) -> None:
    for each in found:
        assert "calibration data: in 13 of 13 layers" in each["silence"][1]["notes"][0]


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned_does_not_depend_on_the_number(found: Found, name: str) -> None:
    alone = found[0]["alone"][name]
    assert [each[name] for each in found] == [alone] * 2


def test_what_only_some_see_is_known_to_all(found: Found) -> None:
    """An expert of one process's batches alone, and one that nobody sees."""
    entries = {e["name"]: e for e in found[0]["routed"][1]["entries"]}
    assert "weight by gptq" in entries["experts.1"]["details"]
    assert any("saw no data in 5 batches" in note for note in entries["experts.3"]["notes"])


def test_what_does_not_fit_is_refused_in_every_process(found: Found) -> None:
    both = [each["refusals"] for each in found]
    for told in both:
        assert "process 1 has another recipe than process 0" in told["recipe"]
        assert "another tensor 'head.weight' in its model than process 0" in told["model"]
        assert "process 1 has another seed than process 0: 1 and not 0" in told["option"]
        assert "hold 1, 4 batches" in told["dealt"] and "pass batches[rank::2]" in told["dealt"]
        assert "process 0 should hold 3" in told["dealt"]
        assert "process 0 of 2 has no batches" in told["none"]
        assert "learns from the calls of one process" in told["block algorithm"]
        assert "process 1 received other bytes than process " in told["digest"]
        assert told["digest"].startswith("RuntimeError: ")
        assert "first" not in told["digest"]
    assert both[1]["choosing"].startswith("OverflowError: these rows")
    assert "process 1 of 2 raised OverflowError: these rows" in both[0]["choosing"]
    assert both[1]["raised"].startswith("OverflowError: three rows")
    assert "process 1 of 2 raised OverflowError: three rows" in both[0]["raised"]


def test_several_rounds_are_in_one_message(found: Found) -> None:
    """Of 11 rounds the first, up to 8, and the rest, or as many as have so many bytes; owners add
    in the order of the batches. Where there is nobody to tell, processes talk once."""
    for size, messages in ((0, 3), (1, 6)):
        (seen, of), (_, other) = (each["rounds"][size] for each in found)
        assert seen == [(number, {number}) for number in range(21)]
        # one more that all are done, and one for the pass in which nobody is told of anything
        assert of["all_gather_object"] == other["all_gather_object"] == messages + 2
        assert of["all_to_all_single"] == messages and other["bytes"] == of["bytes"] - 16 * 6


def test_what_is_raised_between_messages_is_told_to_all(found: Found) -> None:
    (first, second, third), (other, last, quiet) = (each["failures"] for each in found)
    assert other == quiet == "OverflowError: batch 9 there"
    assert second == "OverflowError: batch 6 here"
    for each in (first, third):
        assert each.startswith("ElsewhereError: process 1 of 2 raised OverflowError: batch 9 there")
    assert last.startswith("ElsewhereError: process 0 of 2 raised OverflowError: batch 6 here")


def test_what_a_block_takes_is_counted(found: Found) -> None:
    """Of 24 batches in two processes (docs/scale.md): the 12 rounds of each of two passes with
    inputs are in three messages."""
    both = [dict(each["counts"]) for each in found]
    assert [of.pop("bytes") for of in both] == [113600, 168896]
    assert both == [{"all_gather_object": 20, "all_to_all_single": 6, "broadcast": 6}] * 2


@pytest.mark.slow
def test_a_run_of_a_group_goes_on_in_any_number_of_processes(tmp_path: Path) -> None:
    """The first process keeps the blocks that are finished; what fails there is told to all."""
    fresh.ranks(work_again, tmp_path, 2)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert both[0]["stopped"] == "OSError: no space left"
    assert "process 0 of 2 raised OSError: no space left" in both[1]["stopped"]
    assert "holds blocks of another run" in both[0]["other"]
    assert "process 0 of 2 raised ResumeError: " in both[1]["other"]
    whole = calibrated((decoder, ids, STATIC, {}), 0, 1, None)
    for each in both:
        assert each["finished"] == ["block-00000.safetensors", "run.json"]
        assert each["together"] == whole
    assert both[0]["alone"] == whole


def test_owners_are_dealt_by_cost() -> None:
    """Who chooses the first rows of a layer gathers for it, unless that is shared; sets have one
    process, whatever is asked of it."""
    ranks = Ranks()
    ranks.size = 3
    costs = {
        name: Effort(cost) for name, cost in zip("abcde", (5.0, 3.0, 3.0, 2.0, 1.0), strict=True)
    }
    ranks.deal(costs, {"a": Effort(0.0, 2.0, 3), "b": Effort(1.0)}, {"x": "d", "y": "d"})
    assert [ranks.chooser(name, 0) for name in "abcde"] == [0, 1, 2, 1, 2]
    assert sorted(ranks.owner("a", part) for part in range(3)) == [0, 1, 2]
    assert [ranks.owner(name) for name in "bcde"] == [1, 2, 1, 2]
    assert ranks.owner("x") == ranks.chooser("y", 7) == 1
    assert ranks.owner("unknown") == ranks.chooser("unknown", 2) == 0


@pytest.mark.parametrize("name", SHARED)
def test_layers_that_four_processes_share(shared: Found, name: str) -> None:
    """Rows of each weight and columns of each gram matrix are in all of three or four processes,
    whose numbers do not divide them; the bits and the ledger are those of one process."""
    alone = calibrated(SHARED[name], 0, 1, None)
    for size in (3, 4):
        assert [each[f"{name} {size}"] for each in shared[:size]] == [alone] * size


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("shared")
    fresh.ranks(work_shared, folder, 4)
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


@pytest.mark.slow
def test_every_algorithm_in_one_to_four_processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("four")
    fresh.ranks(work_of_all, folder, 4, fresh.WITH_TRANSFORMERS)
    each = [torch.load(folder / f"{rank}.pt") for rank in range(4)]
    for name, case in EVERY.items():
        digests = {
            f"{size} {rank}": each[rank][f"{name} {size}"][0]
            for size in SIZES[name]
            for rank in range(size)
        }
        if name not in LEARNED | MORE_LEARNED:
            digests["alone"] = calibrated(case, 0, 1, None)[0]
        assert len(digests) > 2 and len(set(digests.values())) == 1, (name, digests)
