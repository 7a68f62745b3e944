# SPDX-License-Identifier: BSD-3-Clause
"""nn.LSTM, nn.GRU and nn.RNN whose weights are held in codes.

torch's own forward runs, on all weights of the layer dequantized once a call. Inputs and states
between steps stay in float: only weights have formats. Cells need nothing of this: their forward
reads each weight as anybody does.
"""

from typing import Any

from torch import Tensor, nn

from blockscale.layers.reading.source import ReadTensor


class _Checked:
    """What nn.RNNBase.check_input asks a layer for."""

    def __init__(self, first: Tensor, input_size: int):
        self._flat_weights, self.input_size = [first], input_size


class Recurrent:
    """What replaces torch's own list of a recurrent layer's weights, which holds the parameters
    themselves: a list that is made when it is asked for."""

    @property
    def _flat_weights(self) -> list[Tensor]:
        names = self._flat_weights_names  # type: ignore[attr-defined]
        values = [getattr(self, name) for name in names]
        return [each.dequantize() if isinstance(each, ReadTensor) else each for each in values]

    @_flat_weights.setter
    def _flat_weights(self, value: Any) -> None:
        del value  # torch keeps its list up to date; this one is

    def _init_flat_weights(self) -> None:
        self.__dict__["_flat_weight_refs"] = []

    def _update_flat_weights(self) -> None:
        """Nothing: the list is up to date."""

    def flatten_parameters(self) -> None:
        """Nothing: the weights are no parameters that could lie together for cuDNN."""

    def _weights_have_changed(self) -> bool:
        return False

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """As torch's, which asks the first of the weights for its dtype, without all of them."""
        first = getattr(self, self._flat_weights_names[0])  # type: ignore[attr-defined]
        like: Any = _Checked(first, self.input_size)  # type: ignore[attr-defined]
        nn.RNNBase.check_input(like, input, batch_sizes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_flat_weights()


def parameters_gone(module: nn.Module) -> None:
    """Before a parameter goes: a recurrent layer's list of them would keep its floats."""
    if isinstance(module, nn.RNNBase):
        module.__dict__.pop("_flat_weights", None)
        module.__dict__["_flat_weight_refs"] = []


def parameters_again(module: nn.Module) -> None:
    """After parameters of a module came back: a recurrent layer lists them again."""
    if isinstance(module, nn.RNNBase) and not isinstance(module, Recurrent):
        module._init_flat_weights()
