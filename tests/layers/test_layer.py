# SPDX-License-Identifier: BSD-3-Clause
"""What every quantized layer shares."""

import torch
from torch import nn

import blockscale as bs


def test_hooks_still_run_and_can_be_removed() -> None:
    for quantize in (False, True):
        linear, calls = nn.Linear(4, 4), []
        model, kw = nn.Sequential(linear), {"with_kwargs": True}

        def say(word: str, calls=calls):
            return lambda *arguments: calls.append((word, len(arguments)))

        handles = [
            linear.register_forward_pre_hook(say("pre")),
            linear.register_forward_pre_hook(say("pre"), **kw),
            linear.register_forward_hook(say("post")),
            linear.register_forward_hook(say("post"), **kw),
            linear.register_full_backward_hook(say("back")),
        ]
        if quantize:
            bs.quantize_(model, "int8")
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        assert calls == [("pre", 2), ("pre", 3), ("post", 3), ("post", 4), ("back", 3)]
        for handle in handles:
            handle.remove()
        model(torch.randn(2, 4)).sum()
        assert len(calls) == 5
