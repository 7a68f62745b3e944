"""IQ4_NL and IQ4_XS: the scale that is found is the best of those tried. Bytes: test_gguf.py."""

import torch

import blockscale as bs


def test_it_is_nearer_than_the_contract() -> None:
    x = torch.randn(64, 256)
    found = bs.quantize(x, bs.profile("gguf.iq4_nl"))
    plain = bs.quantize(x, found.format)
    weights = (x * x).reshape(64, -1, 32)

    def errors(q: bs.QTensor) -> torch.Tensor:
        return (weights * (q.dequantize() - x).reshape(64, -1, 32) ** 2).sum(-1)

    assert float(errors(found).sum()) < 0.95 * float(errors(plain).sum())


def test_blocks_of_zeros_have_the_code_nearest_to_zero() -> None:
    for name in ("iq4_nl", "iq4_xs"):
        q = bs.quantize(torch.zeros(1, 256), bs.profile(f"gguf.{name}"))
        assert q.codes.unique().tolist() == [8]  # 1: the table has no 0
        assert not q.dequantize().any()
