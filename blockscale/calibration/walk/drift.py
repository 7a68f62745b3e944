# SPDX-License-Identifier: BSD-3-Clause
"""What layers are given in the float model, beside what the quantized layers before them leave."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from blockscale.calibration.hooks import Callback
from blockscale.calibration.input_stats import DriftCollector
from blockscale.calibration.layer_rows import rows_of
from blockscale.calibration.session import Session, width
from blockscale.layers.plan import Plan


class FloatInputs:
    """Gathers the drift of layers' inputs, batch by batch: the float model runs first and its
    inputs are held, then the model as it is quantized so far runs on the same batch."""

    def __init__(self, session: Session):
        self._session = session
        self._float_runs = False
        self._collectors: dict[str, DriftCollector] = {}
        self._held: dict[str, list[Tensor]] = {}
        self._unlike: dict[str, int] = {}

    def begin(self, plans: Sequence[Plan]) -> None:
        """Gather for these layers from now on."""
        self._collectors = {p.name: DriftCollector(width(p), p.parameter.device) for p in plans}
        self._held = {plan.name: [] for plan in plans}
        self._unlike = dict.fromkeys(self._held, 0)

    @contextmanager
    def of_the_float_model(self) -> Iterator[None]:
        """As long as this lasts, the float model runs on one batch. Nobody else is told of it."""
        for held in self._held.values():
            held.clear()
        self._float_runs = True
        try:
            yield
        finally:
            self._float_runs = False

    def beside(self, plan: Plan, told: Callback | None) -> Callback | None:
        """The callback of a layer that gathers, and tells `told` what the quantized model does."""
        gathers = plan.name in self._collectors
        if told is None and not gathers:
            return None

        def tell(x: Tensor, y: Any) -> None:
            if self._float_runs:
                if gathers:  # cloned, as the model may write into it
                    self._held[plan.name].append(x.detach().clone())
                return
            if gathers:
                self._add(plan, x, y)
            if told is not None:
                told(x, y)

        return tell

    def _add(self, plan: Plan, x: Tensor, y: Any) -> None:
        """A call's input, and that of the same call in the float model. Inputs that are as far from
        each other as from zero are of other rows: an expert's, to whom other tokens were sent."""
        held, x = self._held[plan.name], x.detach()
        wanted = held.pop(0) if held else None
        if wanted is None or wanted.shape != x.shape or _apart(x, wanted):
            self._unlike[plan.name] += 1
            return
        before, into = self._session.places[plan.name].before, self._collectors[plan.name]
        pairs = zip(rows_of(plan, x, before, y), rows_of(plan, wanted, before, y), strict=True)
        for quantized, of_float in pairs:
            into.add(quantized, of_float)

    def result(self) -> dict[str, Tensor]:
        """The drifts of those that saw any input, Xq^T (Xf - Xq) / rows [k, k] float64."""
        for name, count in self._unlike.items():
            if count:
                note = f"{count} of its calls have other inputs in the float model, left out of it"
                self._session.details[name].append(f"drift: {note}")
        found = {name: each.result() for name, each in self._collectors.items()}
        self._collectors, self._held = {}, {}
        return {name: drift for name, drift in found.items() if drift is not None}


def _apart(x: Tensor, wanted: Tensor) -> bool:
    far = (wanted.float() - x.float()).square().sum()
    return bool(far > wanted.float().square().sum())  # False where either is NaN
