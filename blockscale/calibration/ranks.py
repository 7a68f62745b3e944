# SPDX-License-Identifier: BSD-3-Clause
"""Processes that calibrate one model together, each on its own batches.

Global batch i is run by process i mod N. What is added up in an order of its own (gram matrices,
sums of inputs, samples, observers that depend on the order) is gathered by one process for each
layer, its owner, which is sent the layer's inputs of all processes after some rounds of N batches
and adds them up in the order of the global batches, as one process alone does. So sums have the
same bits whatever N is. What merges exactly (ranges, counts) is gathered where it is and merged.
Columns of wide gram matrices have owners of their own, and so have rows of weights, whose codes
they choose; all others get what they chose and compare digests of it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from blockscale.calibration.dealing import Effort, deal
from blockscale.parallel.messages import aligned, exchange, gather_messages, packed, unpacked, wire

T = TypeVar("T")


class AgreedError(Exception):
    """A reason that holds for all processes where one of them finds it: all raise it alike. It can
    be pickled."""


class ElsewhereError(RuntimeError):
    """Another process raised something, which it says itself."""


class Failure(NamedTuple):
    """What one process raised, in words; and itself, where all are to raise it."""

    text: str
    of_all: AgreedError | None


class _Place(NamedTuple):
    """Stands for a tensor among arguments."""

    number: int


class _Order(NamedTuple):
    """A call of what an owner adds: its number, the owner, and its arguments."""

    number: int
    owner: int
    arguments: tuple[Any, ...]


Shapes = list[tuple[tuple[int, ...], torch.dtype]]


class _Letter(NamedTuple):
    """What a process tells the others of one of its batches."""

    tensors: Shapes
    calls: list[_Order]

    def needed_by(self, rank: int) -> list[int]:
        """The numbers of the tensors that this process is sent, in order."""
        calls = [call for call in self.calls if call.owner == rank]
        return sorted({a.number for c in calls for a in c.arguments if isinstance(a, _Place)})

    def nbytes(self, rank: int) -> int:
        """How many bytes this process is sent."""
        return sum(aligned(*self.tensors[number]) for number in self.needed_by(rank))

    @property
    def size(self) -> int:
        """Bytes of all its tensors."""
        return sum(aligned(*each) for each in self.tensors)


class _Dispatch(NamedTuple):
    """What a process tells the others at once: of some batches, the same number in all."""

    failure: Failure | None
    letters: list[_Letter]


_ROUNDS, _BYTES = 8, 1 << 28  # of batches, at most, that are told of at once; of their tensors


class _Outbox:
    """Calls that wait to be sent, and copies of their tensors, each once."""

    def __init__(self) -> None:
        self.calls: list[_Order] = []
        self._tensors: list[Tensor] = []
        self._places: dict[Hashable, tuple[Tensor, _Place]] = {}  # the tensor stays alive

    def add(self, number: int, owner: int, arguments: Iterable[Any]) -> None:
        """A call for `owner`, with tensors as they are now."""
        results = tuple(self._place_of(a) if isinstance(a, Tensor) else a for a in arguments)
        self.calls.append(_Order(number, owner, results))

    def _place_of(self, tensor: Tensor) -> _Place:
        key = None if tensor.is_inference() else (id(tensor), tensor._version)
        if key in self._places:
            return self._places[key][1]
        place = _Place(len(self._tensors))
        self._tensors.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        if key is not None:
            self._places[key] = tensor, place
        return place

    def letter(self) -> _Letter:
        """What the others are told of it."""
        return _Letter([(tuple(x.shape), x.dtype) for x in self._tensors], self.calls)

    def needed_by(self, rank: int) -> list[Tensor]:
        """The tensors that a process is sent."""
        return [self._tensors[number] for number in self.letter().needed_by(rank)]


class Ranks:
    """The processes of a group, and who of them does what; without a group there is one, which does
    everything at once.

    group: of torch.distributed; device: of the model, to which tensors come
    total: how many batches there are in all processes, once `deal_batches` was called
    now: which of this process's batches runs, 0 without a group
    """

    def __init__(self, group: Any = None, device: torch.device | None = None):
        self.group = group
        if device is None or device.type == "meta":  # of a model that is read block by block
            device = torch.device("cpu")
        self.device = device
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.total: int | None = None
        self.now = 0
        self._owners: dict[str, list[int]] = {}
        self._choosers: dict[str, list[int]] = {}
        self._together: Mapping[str, str] = {}
        self._adds: list[Callable[..., None]] = []
        self._outboxes = [_Outbox()]  # of batches whose letters are not sent yet
        self._failure: Exception | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no group: nothing is sent or compared."""
        return self.group is None

    # --- who does what

    def deal(
        self,
        codes: Mapping[str, Effort],
        grams: Mapping[str, Effort] | None = None,
        together: Mapping[str, str] | None = None,
    ) -> None:
        """Let parts of these layers' weights have choosers, and parts of their statistics owners.

        grams: what the statistics take; who chooses the first rows gathers all of them, if
            that is not too much
        together: {layer: the name in `codes` that stands for it and others}
        """
        self._together = together or {}
        if self.size == 1:
            return
        choosers = deal(codes, self.size).who
        home = {name: who[0] for name, who in choosers.items()}
        self._choosers |= choosers
        self._owners |= {name: [rank] for name, rank in home.items()}
        self._owners |= deal(grams or {}, self.size, home).who

    def owner(self, name: str, part: int = 0) -> int:
        """Who gathers for a layer, or for a part of its statistics."""
        return self._process(self._owners, name, part)

    def chooser(self, name: str, part: int) -> int:
        """Who chooses a part of a layer's weight."""
        return self._process(self._choosers, name, part)

    def chooses(self, name: str, part: int) -> bool:
        """Whether that is this process."""
        return self.chooser(name, part) == self.rank

    def _process(self, table: Mapping[str, list[int]], name: str, part: int) -> int:
        """Who has a part; what was dealt as a whole has one process."""
        who = table.get(self._together.get(name, name), [0])
        return who[min(part, len(who) - 1)]

    def owns(self, name: str) -> bool:
        """Whether this process gathers for a layer."""
        return self.owner(name) == self.rank

    def number(self, b: int) -> int:
        """The global number of this process's batch b."""
        return b * self.size + self.rank

    def count(self, own: int) -> int:
        """How many batches there are in all processes, `own` of them here."""
        return own if self.total is None else self.total

    def deal_batches(self, own: int) -> None:
        """Learn how many batches there are. Raises ValueError, in every process, unless batch i is
        that of process i mod N, each process having one or more."""
        counts = self.together(lambda: own)
        total = sum(counts)
        if min(counts) == 0:
            raise ValueError(
                f"process {counts.index(0)} of {self.size} has no batches; {total} batches are "
                f"enough for {total} processes at most: start fewer, or pass more batches"
            )
        expected = [len(range(rank, total, self.size)) for rank in range(self.size)]
        odd = [r for r in range(self.size) if counts[r] != expected[r]]
        if odd:
            raise ValueError(
                f"the processes hold {', '.join(map(str, counts))} batches, but of {total} batches "
                f"process {odd[0]} should hold {expected[odd[0]]}: batch i belongs to process "
                f"i mod {self.size}, so pass batches[rank::{self.size}]"
            )
        self.total = total

    # --- rounds of batches

    def each(self, own: int, do: Callable[[int], None]) -> None:
        """do(b) for each of this process's batches; after some rounds of N, owners add what was
        sent, round by round. Raises in every process what one of them raised."""
        if self.alone:
            for b in range(own):
                do(b)
            return
        error: Exception | None = None
        rounds, next_time = -(-self.count(own) // self.size), 1
        for b in range(rounds):
            try:
                if b < own and error is None and self._failure is None:
                    self.now = b
                    do(b)
            except Exception as raised:
                error = raised
            if self._adds and b + 1 in (next_time, rounds):
                next_time = b + 1 + self._exchange(error or self._failure)
            self._outboxes.append(_Outbox())
        self._adds, self._outboxes = [], [_Outbox()]
        error, self._failure = error or self._failure, None
        self.together(lambda: _raise_error(error))

    def at_owner(self, name: str, add: Callable[..., None]) -> Callable[..., None]:
        """A function that has the layer's owner call add(*the same arguments), tensors or what can
        be pickled, in the order of the global batches. It holds for the next `each`."""
        return self.at_process(self.owner(name), add)

    def at_process(self, rank: int, add: Callable[..., None]) -> Callable[..., None]:
        """The same for a process."""
        if self.alone:
            return add
        number = len(self._adds)
        self._adds.append(add)
        return lambda *arguments: self._outboxes[-1].add(number, rank, arguments)

    def _exchange(self, error: Exception | None) -> int:
        """Send what batches left, and add what arrives; how many rounds may be sent at once next,
        the same in all processes."""
        boxes, self._outboxes = self._outboxes, []
        own = _Dispatch(_failure(error), [box.letter() for box in boxes])
        every: list[_Dispatch] = self._gather(own)
        self._raise(error, [each.failure for each in every])
        letters = [each.letters for each in every]
        if any(letter.calls for some in letters for letter in some):
            parcels = [
                packed([x for box in boxes for x in box.needed_by(rank)])
                for rank in range(self.size)
            ]
            sizes = [sum(letter.nbytes(self.rank) for letter in some) for some in letters]
            incoming = self.swap(parcels, sizes)
            try:
                self._deliver(letters, incoming)
            except Exception as raised:
                self._failure = self._failure or raised
        most = max(letter.size for some in letters for letter in some)
        return max(1, min(_ROUNDS, _BYTES // max(1, most)))

    def _deliver(self, letters: Sequence[Sequence[_Letter]], parcels: Sequence[Tensor]) -> None:
        """Call what was sent to this process, in the order of the global batches: of each round the
        letter of each process."""
        parts = [
            list(parcel.split([letter.nbytes(self.rank) for letter in some]))
            for some, parcel in zip(letters, parcels, strict=True)
        ]
        for b in range(len(letters[0])):
            for some, own in zip(letters, parts, strict=True):
                self._call(some[b], own[b])

    def _call(self, letter: _Letter, parcel: Tensor) -> None:
        """Call what one process has sent to this one of one batch."""
        numbers = letter.needed_by(self.rank)
        result = unpacked(parcel, [letter.tensors[number] for number in numbers])
        tensors = dict(zip(numbers, result, strict=True))
        for call in letter.calls:
            if call.owner == self.rank:
                members = [
                    tensors[a.number] if isinstance(a, _Place) else a for a in call.arguments
                ]
                self._adds[call.number](*members)

    # --- all together

    def together(self, do: Callable[[], T]) -> list[T]:
        """What do() returned in each process. Raises in every process if it raised in one."""
        if self.alone:
            return [do()]
        value: Any = None
        error: Exception | None = None
        try:
            value = do()
        except Exception as raised:
            error = raised
        answers = self._gather((value, _failure(error)))
        self._raise(error, [failure for _, failure in answers])
        return [each for each, _ in answers]

    def by_first(self, do: Callable[[], T]) -> T:
        """What do() returns in the first process, in every process. Raises as `together`."""
        results: list[Any] = self.together(lambda: None if self.rank else do())
        first: T = results[0]
        return first

    def broadcast(
        self, x: Tensor | None, size: int, owner: int, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """x [size] of one process, in every process, on the model's device."""
        place = wire(self.group)
        data = torch.empty(size, dtype=dtype, device=place) if x is None else x.to(place)
        if size:
            dist.broadcast(data, dist.get_global_rank(self.group, owner), self.group)
        return data.to(self.device)

    def swap(self, parcels: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """A parcel uint8 [bytes] to each process -> one from each, on the model's device."""
        return exchange(parcels, sizes, self.device, self.group)

    def join_parts(self, x: Tensor) -> Tensor:
        """x [n] of each process, n the same in all -> [N * n] in every process."""
        return torch.cat(gather_messages(x, self.group, alike=True))

    def _gather(self, value: Any) -> list[Any]:
        members: list[Any] = [None] * self.size
        dist.all_gather_object(members, value, self.group)
        return members

    def _raise(self, error: Exception | None, failures: list[Failure | None]) -> None:
        """Raise the same in every process if there is a failure in any."""
        entries = [(rank, each) for rank, each in enumerate(failures) if each is not None]
        if not entries:
            return
        self._adds, self._failure, self._outboxes = [], None, [_Outbox()]
        others = [(rank, each) for rank, each in entries if each.of_all is None]
        if not others:
            raise entries[0][1].of_all or AgreedError
        if error is not None and not isinstance(error, AgreedError):
            raise error
        rank, failure = others[0]
        raise ElsewhereError(
            f"process {rank} of {self.size} raised {failure.text} (this is process {self.rank}); "
            "nothing was changed in any of them"
        )


ALONE = Ranks()


def _failure(error: Exception | None) -> Failure | None:
    if error is None:
        return None
    of_all = error if isinstance(error, AgreedError) else None
    return Failure(f"{type(error).__name__}: {error}", of_all)


def _raise_error(error: Exception | None) -> None:
    if error is not None:
        raise error
