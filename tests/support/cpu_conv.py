# SPDX-License-Identifier: BSD-3-Clause
"""Ways of the CPU's convolutions, whatever their sizes."""

import pytest

from blockscale.kernels.cpu import conv, conv_way
from blockscale.kernels.cpu.conv_way import ConvWay


def always(monkeypatch: pytest.MonkeyPatch, chosen: ConvWay = ConvWay.PATCHES) -> None:
    """That way wherever it can give the result, however many outputs and channels there are."""
    patches, direct = (1 if chosen is each else 10**6 for each in (ConvWay.PATCHES, ConvWay.DIRECT))
    most = 10**6 if chosen in (ConvWay.DIRECT, ConvWay.PLANES) else 0
    planes = 10**6 if chosen is ConvWay.PLANES else 0
    for module in (conv, conv):
        monkeypatch.setattr(module, "chosen", conv_way.way)  # which remembers nothing
    for name in ("OUTPUTS", "OUTPUTS_OF_BLOCKS", "CHANNELS"):
        monkeypatch.setattr(conv_way, name, patches)
    monkeypatch.setattr(conv_way, "DIRECT_OUTPUTS", direct)
    for name in ("DIRECT_CHANNELS", "DIRECT_GROUPED"):
        monkeypatch.setattr(conv_way, name, most)
    for name in ("PLANES_NUMBERS", "PLANES_PRODUCTS"):
        monkeypatch.setattr(conv_way, name, planes)
    if chosen is not ConvWay.PLANES:
        monkeypatch.setattr(conv_way, "by_planes", lambda *_: False)
