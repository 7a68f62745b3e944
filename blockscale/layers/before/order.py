# SPDX-License-Identifier: BSD-3-Clause
"""A layer's inputs in another order, so that those that share a scale stand together."""

from collections.abc import Mapping

import torch
from torch import Tensor

from blockscale.layers.before.before import Before, BufferSpecs


class Order(Before):
    """x'[..., i] = x[..., order[i]], w'[:, i] = w[:, order[i]]; no number is rounded.

    order: int32 [features], each of 0 … features - 1 once. What GPTQ calls act-order (`desc_act`,
    `g_idx`): groups of inputs of like importance, which lie anywhere in the weight.

    Raises ValueError for anything else.
    """

    name = "order"
    SPELLINGS = "order"

    order: Tensor

    def __init__(self, order: Tensor):
        super().__init__()
        one = order.ndim == 1 and order.numel() and order.dtype == torch.int32
        every = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
        if not one or not torch.equal(order.sort().values, every):
            raise ValueError(
                f"expected an order [features] of int32 with each of 0 … features - 1 once, found "
                f"{str(order.dtype).removeprefix('torch.')} {tuple(order.shape)}: {order}"
            )
        self.features, self.fmt = order.shape[0], self.name
        self.register_buffer("order", order.detach().clone())

    @classmethod
    def stored_buffers(cls, settings: str | None, features: int) -> BufferSpecs | None:
        return {"order": (torch.int32, (features,))} if settings is None else None

    @classmethod
    def restore(cls, settings: str | None, features: int, buffers: Mapping[str, Tensor]) -> Before:
        del settings, features
        return cls(buffers["order"])

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> the same numbers, in the order of `order`."""
        return self._input(x).index_select(-1, self.order).to(x.dtype)

    def to_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> its columns in the order of `order`, for each `features` of them."""
        return self._weight(weight).index_select(-1, self.order).reshape(weight.shape)

    def from_weight(self, weight: Tensor) -> Tensor:
        """[n, k] -> its columns where they were."""
        back = self.order.argsort()
        return self._weight(weight).index_select(-1, back).reshape(weight.shape)
