"""What stands before a layer changes its input and its weight, and not their product.

Whole numbers and powers of two: nothing rounds, so that all of this is equality.
"""

import copy
import io
import itertools
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.linalg import hadamard
from torch import Tensor, nn

import blockscale as bs
from blockscale.core import philox
from blockscale.core.recipe import Scheme
from blockscale.layers import before
from blockscale.layers.before import Before, Rotate, Scale, random_signs
from blockscale.layers.linear import QTransposedLinear
from blockscale.layers.store import QWeight

K = 24
LOSSLESS = "int16:tensor:pow2/ceil"  # of what these tests put into it
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the bits."""
    with bs.use("reference"):
        yield


def whole(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).float()


def powers(k: int = K) -> Tensor:
    return 2.0 ** torch.randint(-3, 4, (k,))


def kinds(k: int = K) -> list[Before]:
    sizes = [1 << p for p in range(1, 9) if k % (1 << p) == 0]
    rotations = [Rotate(k, s, signs) for s in sizes for signs in (None, random_signs(k, s))]
    return [Scale(powers(k)), *rotations]


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def matrix(each: Rotate) -> Tensor:
    """Its matrix for inputs, from scipy: x' = x @ matrix."""
    signs = np.ones(each.features) if each.signs is None else each.signs.numpy()
    block = hadamard(each.size) / 2.0 ** ((each.size.bit_length() - 1) // 2)
    whole = np.kron(np.eye(each.features // each.size), block)
    return torch.from_numpy(signs[:, None] * whole).float()


@pytest.mark.parametrize("k", [2, 8, 24, 96, 256])
def test_rotations_are_hadamard_matrices(k: int) -> None:
    for each in kinds(k)[1:]:
        h, x, w = matrix(each), whole(5, k), whole(3, k)
        same(each(x), x @ h)
        twice = 1 + (each.size.bit_length() - 1) % 2  # h @ h.T: 2 for odd powers of two
        same(h @ h.T, twice * torch.eye(k))
        same(each.to_weight(w), w @ h / twice)


def test_a_scale_is_one_multiplication() -> None:
    factor, x, w = torch.rand(K) + 0.1, torch.randn(4, K), torch.randn(3, K)
    each = Scale(factor)
    same(each(x), torch.from_numpy(x.numpy() * factor.numpy()))
    same(each.to_weight(w), torch.from_numpy(w.numpy() / factor.numpy()))
    same(each.from_weight(w), torch.from_numpy(w.numpy() * factor.numpy()))


@pytest.mark.parametrize("shape", [(K,), (5, K), (2, 3, K), (0, K), (2, 0, K)])
def test_the_product_stays_and_the_weight_comes_back(shape: tuple[int, ...]) -> None:
    for each in kinds():
        for width in (K, 2 * K):  # 2 K: a kernel of two places
            x, w = whole(*shape[:-1], width // K, K), whole(7, width)
            moved = each.to_weight(w)
            found = each(x).flatten(-2) @ moved.T
            same(found, x.flatten(-2) @ w.T)
            same(each.from_weight(moved), w)
        same(each.to_weight(torch.zeros(0, K)), torch.zeros(0, K))


@pytest.mark.parametrize("dtype", DTYPES)
def test_float32_inside_and_one_rounding(dtype: torch.dtype) -> None:
    x, w = torch.randn(9, K).to(dtype), torch.randn(3, K).to(dtype)
    for each in [Scale(torch.rand(K) + 0.1), *kinds()[1:]]:
        same(each(x), each(x.float()).to(dtype))
        same(each.to_weight(w), each.to_weight(w.float()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            same(each(x), each(x.float()).to(dtype))


def test_random_signs() -> None:
    signs = random_signs(4096, 3)
    assert set(signs.tolist()) == {1, -1}
    assert abs(int(signs.sum())) < 256  # four standard deviations
    same(signs, random_signs(4096, 3))
    assert not torch.equal(signs, random_signs(4096, 4))
    same(signs[:100], random_signs(100, 3))
    drawn = philox.uniform(torch.Size([9]), torch.tensor(3), torch.device("cpu"))
    assert signs[:9].tolist() == [-1 if u < 0.5 else 1 for u in drawn.tolist()]  # test_philox.py
    with pytest.raises(TypeError, match="a seed is an int"):
        random_signs(8, 0.5)


FACTORS = [
    torch.ones(2, 2), torch.ones(0), torch.ones(3, dtype=torch.float64),
    torch.tensor([1.0, 0.0]), torch.tensor([1.0, -1.0]), torch.tensor([1.0, torch.nan]),
    torch.tensor([torch.inf]),
]  # fmt: skip


@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_factors_that_are_none(factor: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected a factor \[features\] of finite float32"):
        Scale(factor)


def test_sizes_signs_and_inputs_that_do_not_fit() -> None:
    for size in (0, 1, -2, 3, 16, 48):
        with pytest.raises(ValueError, match=f"power of two .* divides 24 features, found {size}"):
            Rotate(K, size)
    odd = random_signs(K, 0)
    for signs in (odd.float(), odd[:-1], torch.where(odd < 0, 0, odd), odd * 2):
        with pytest.raises(ValueError, match=r"expected signs \[24\] of \+1 and -1 in int8"):
            Rotate(K, 8, signs)
    for each in kinds():
        for x in (torch.ones(2, 23), torch.ones(2, 48), torch.ones(())):
            with pytest.raises(ValueError, match=r"expected an input \[\.\.\., 24\], found"):
                each(x)
        for w in (torch.ones(2, 36), torch.ones(K), torch.ones(1, 1, K)):
            with pytest.raises(ValueError, match="k a multiple of 24, found"):
                each.to_weight(w)
        with pytest.raises(TypeError, match="found float64"):
            each(torch.ones(2, K, dtype=torch.float64))


def test_spellings() -> None:
    for each in kinds():
        buffers = dict(each.named_buffers())
        stored = {name: (b.dtype, tuple(b.shape)) for name, b in buffers.items()}
        assert before.kinds(each.fmt, K) == stored
        other = before.restore(each.fmt, K, buffers)
        x = whole(3, K)
        same(other(x), each(x))
        assert (repr(other), other.nbytes) == (repr(each), sum(b.nbytes for b in buffers.values()))
    assert [each.fmt for each in kinds()[:3]] == ["scale", "rotate:2", "rotate:2:signs"]
    for text in ("", "scale:2", "rotate", "rotate:", "rotate:+8", "rotate:08", "rotate:8:",
                 "rotate:8:sign", "rotate:８", "rotate:²", "turn:8",
                 f"rotate:{10**30}"):  # fmt: skip
        with pytest.raises(ValueError, match="there are scale, rotate:SIZE, rotate:SIZE:signs"):
            before.kinds(text, K)
    with pytest.raises(ValueError, match="divides 24 features, found 16"):
        before.kinds("rotate:16", K)


# --- in layers


def with_before(layer: nn.Module, each: Before, recipe: object = LOSSLESS) -> nn.Module:
    model = nn.Sequential(copy.deepcopy(layer))
    bs.quantize_(model, bs.Recipe.read(recipe), before={"0": copy.deepcopy(each)})
    return model[0]


def linear() -> nn.Linear:
    layer = nn.Linear(K, 6)
    layer.weight.data, layer.bias.data = whole(6, K), whole(6)
    return layer


CONVS = [
    nn.Conv2d(K, 3, 3, padding=1),
    nn.Conv2d(K, 3, (1, 2), stride=2, padding=1, padding_mode="reflect"),
    nn.Conv2d(K, 3, 3, dilation=2, padding="same", padding_mode="circular"),
    nn.Conv1d(K, 3, 3, padding=2, padding_mode="replicate"),
    nn.Conv1d(K, 3, 1, bias=False),
]


@pytest.mark.parametrize("layer", [linear(), *CONVS], ids=str)
def test_a_layer_computes_what_it_did(layer: nn.Module) -> None:
    """Through a format that loses nothing, input and weight: the float layer's bits, gradients."""
    for parameter in layer.parameters():
        parameter.data = whole(*parameter.shape)
    shape = {nn.Linear: (5, K), nn.Conv1d: (2, K, 6), nn.Conv2d: (2, K, 6, 5)}[type(layer)]
    recipe = bs.Recipe(LOSSLESS, input=LOSSLESS)
    for each in kinds():
        quantized = with_before(layer, each, recipe)
        x = whole(*shape).requires_grad_()
        y, expected = quantized(x), layer(x)
        same(y, expected)
        there = whole(*y.shape)
        same(*(torch.autograd.grad((out * there).sum(), x)[0] for out in (y, expected)))
        same(quantized.dequantize_weight(), layer.weight.detach())
        if len(shape) > 2:
            same(quantized(x[0]), expected[0])


def test_the_transposed_layer() -> None:
    weight = whole(K, 5)
    for each in kinds():
        q = bs.quantize(each.to_weight(weight.t()), LOSSLESS)
        layer = QTransposedLinear(
            QWeight(q, (K, 5), torch.float32, "transposed"), None, Scheme(q.format)
        )
        layer.set_before(each)
        x = whole(2, 3, K)
        same(layer(x), x @ weight)
        same(layer.dequantize_weight(), weight)
        assert layer.dequantize_weight(torch.float16).dtype == torch.float16


@pytest.mark.parametrize("fmt", [None, "int8_token", "mxfp8", "int4:group32:fp32"])
def test_the_layer_is_its_definition(fmt: str | None) -> None:
    """Before, then the input's format, then the product with the codes' values."""
    layer = nn.Linear(K, 6)
    for each, dtype in itertools.product(kinds(), DTYPES):
        plain = copy.deepcopy(layer).to(dtype)
        quantized = with_before(plain, each, bs.Recipe("int4:group8:fp32", input=fmt))
        dense = bs.quantize(each.to_weight(plain.weight.detach()), "int4:group8:fp32").dequantize()
        x = torch.randn(3, K, dtype=dtype)
        moved = each(x).float()
        values = moved if fmt is None else bs.fake_quantize(moved, fmt)
        same(quantized(x), F.linear(values, dense, plain.bias.float()).to(dtype))
        original = each.from_weight(dense).to(dtype)
        same(quantized.dequantize_weight(), original)


def test_static_inputs_are_those_after_it() -> None:
    each, x = Rotate(K, 8), whole(4, K)
    scale, _ = bs.choose_qparams(each(x), "int8")
    layer = with_before(linear(), each, bs.Recipe(LOSSLESS, input="int8"))
    dynamic = layer(x)
    layer.input.set_scale(scale)
    same(layer(x), dynamic)


REFUSED = [
    (nn.Linear(K, 2), Scale(powers(12)), "scale is for 12 features, it has 24"),
    (nn.Linear(K, 2), Rotate(48, 8), "rotate:8 is for 48 features, it has 24"),
    (nn.Conv1d(K, 4, 3), Scale(powers(3 * K)), "scale is for 72 features, it has 24"),
    (nn.Conv2d(K, 4, 3, groups=2), Scale(powers()), "its 2 groups see different channels"),
    (nn.Embedding(9, K), Scale(powers()), "input is indices"),
]


@pytest.mark.parametrize(("layer", "each", "words"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_does_not_fit_is_refused(layer: nn.Module, each: Before, words: str) -> None:
    model = nn.Sequential(layer)
    bs.quantize_(model, LOSSLESS)
    with pytest.raises(ValueError, match=words):
        model[0].set_before(each)
    assert model[0].before is None
    float_model = nn.Sequential(layer)
    with pytest.raises(ValueError, match=words):
        bs.quantize_(float_model, LOSSLESS, before={"0": each})
    assert float_model[0] is layer


def test_each_layer_gets_its_own() -> None:
    """One module may be meant for two layers, which may move to two devices."""
    each = Scale(powers())
    layer, other = with_before(linear(), each), with_before(linear(), each)
    layer.set_before(each)
    other.set_before(each)
    layer.to("meta")
    assert not other.before.factor.is_meta
    assert not each.factor.is_meta


def test_a_layer_without_one_is_as_it_was() -> None:
    model = nn.Sequential(linear())
    bs.quantize_(model, LOSSLESS)
    assert model[0].before is None
    assert not [name for name, _ in model.named_modules() if "before" in name]
    assert sorted(model.state_dict()) == [
        "0.bias", "0.weight._extra_state", "0.weight.codes", "0.weight.scale",
    ]  # fmt: skip
    x = whole(2, K)
    assert model[0].prepared(x) is x


def test_copies_pickles_and_states() -> None:
    for each in kinds():
        layer, x = with_before(linear(), each), whole(3, K)
        expected = layer(x)
        same(copy.deepcopy(layer)(x), expected)
        same(pickle.loads(pickle.dumps(layer))(x), expected)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other = with_before(nn.Linear(K, 6), Scale(torch.ones(K)) if each.fmt == "scale" else each)
        other.load_state_dict(torch.load(file, weights_only=True))
        same(other(x), expected)
        fresh = nn.Sequential(nn.Linear(K, 6))
        bs.quantize_(fresh, LOSSLESS)
        with pytest.raises(RuntimeError, match="before"):
            fresh[0].load_state_dict(layer.state_dict())


def test_a_state_of_another_kind_is_refused() -> None:
    """Many have the same shapes: rotate:4 and rotate:8 hold nothing at all."""
    layer, other = with_before(linear(), Rotate(K, 8)), with_before(linear(), Rotate(K, 4))
    with pytest.raises(RuntimeError, match="rotate:4, the state in rotate:8"):
        other.load_state_dict(layer.state_dict())


def test_conversions_move_it_and_keep_its_dtype() -> None:
    layer = with_before(linear(), Scale(torch.rand(K) + 0.5))
    factor = layer.before.factor.clone()
    for convert in (nn.Module.half, nn.Module.double, nn.Module.bfloat16):
        convert(layer)
        same(layer.before.factor, factor)
    assert layer.to("meta").before.factor.is_meta


@pytest.mark.parametrize("each", [Scale(powers()), Rotate(K, 8, random_signs(K, 1))], ids=str)
def test_compile_and_export_with_any_number_of_rows(each: Before) -> None:
    torch._dynamo.reset()
    layer = with_before(linear(), each, bs.Recipe(LOSSLESS, input="int8_token")).eval()
    rows = torch.export.Dim("rows", min=2, max=99)
    program = torch.export.export(layer, (whole(4, K),), dynamic_shapes=({0: rows},))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (4, 7):
        x = whole(count, K)
        same(program.module()(x), layer(x))
        same(compiled(x), layer(x))


def test_a_convolution_compiles() -> None:
    torch._dynamo.reset()
    conv, x = nn.Conv1d(K, 3, 3, padding=1), whole(2, K, 5)
    conv.weight.data = whole(3, K, 3)
    layer = with_before(conv, Rotate(K, 8), bs.Recipe(LOSSLESS, input="int8_token")).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(compiled(x), layer(x))
