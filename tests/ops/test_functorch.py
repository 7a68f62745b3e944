# SPDX-License-Identifier: BSD-3-Clause
"""torch.func over our ops: gradients and tangents are those of the float layer that holds the
dequantized weight, and where the input is quantized those of the straight-through rule."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import blockscale as bs

# torch's own rules of forward mode are torch.jit.script functions
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

torch.manual_seed(0)
X = torch.randn(5, 32)
V = torch.randn(5, 32)
RECIPES: list[Any] = [
    "mxfp4",
    bs.Recipe("int8_channel", input="int8_token"),
    bs.Recipe("nf4", input="nvfp4"),
    bs.Recipe("int4:group16:fp32:asym", input="int8"),
]


def pair(recipe: Any, *layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A quantized model, and the float one that holds its dequantized weights."""
    torch.manual_seed(1)
    model = nn.Sequential(*(layers or (nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 32))))
    plain = copy.deepcopy(model)
    bs.quantize_(model, recipe)
    weights = dict(recipe.to_dict() if isinstance(recipe, bs.Recipe) else {"weight": recipe})
    other = copy.deepcopy(plain)
    bs.quantize_(other, weights["weight"])
    for name, layer in plain.named_modules():
        if hasattr(layer, "weight"):
            layer.weight.data.copy_(other.get_submodule(name).dequantize_weight())
    return model, plain


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert b.count_nonzero() > b.numel() / 4  # a lost tangent would be 0
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_transforms_of_a_weight_only_model_are_those_of_the_float_one() -> None:
    model, plain = pair("mxfp4")
    for f in (
        lambda m: grad(lambda x: m(x).square().sum())(X),
        lambda m: vmap(grad(lambda x: m(x).square().sum()))(X),
        lambda m: vjp(m, X)[1](V)[0],
        lambda m: jvp(m, (X,), (V,))[1],
        lambda m: vmap(lambda x, v: jvp(m, (x,), (v,))[1])(X, V),
        lambda m: jacrev(m)(X[0]),
        lambda m: jacfwd(m)(X[0]),
        lambda m: hessian(lambda x: m(x).square().sum())(X[0]),
        lambda m: jacrev(jacrev(lambda x: m(x).square().sum()))(X[0]),
        lambda m: torch.autograd.functional.jacobian(m, X[0], vectorize=True),
    ):
        close(f(model).detach(), f(plain).detach())


@pytest.mark.some(8)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_all_ways_to_one_derivative_agree(recipe: Any) -> None:
    """Against autograd's own backward pass, row by row, which the transforms do not touch."""
    model, _ = pair(recipe)
    x = X[0].clone().requires_grad_()
    y = model(x)
    rows = [torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(len(y))]
    expected = torch.stack(rows)
    for way in (jacrev, jacfwd):
        close(way(model)(X[0]).detach(), expected)
    close(jvp(model, (X[0],), (V[0],))[1].detach(), expected @ V[0])
    close(vjp(model, X[0])[1](V[0])[0].detach(), expected.T @ V[0])
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(X[0], V[0]))).tangent
        close(tangent.detach(), expected @ V[0])


@pytest.mark.slow
def test_parameters_that_stay_float() -> None:
    """Per-sample gradients of biases, by functional_call."""
    model, plain = pair("mxfp4")

    def of(m: nn.Module) -> Any:
        held = {name: p.detach() for name, p in m.named_parameters() if name.endswith("bias")}

        def loss(biases: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(m, biases, (x,)).square().sum()

        return held, vmap(grad(loss), (None, 0))(held, X), jvp(loss, (held, X), (held, V))[1]

    (names, ours, tangent), (_, theirs, expected) = of(model), of(plain)
    for name in names:
        close(ours[name], theirs[name])
    close(tangent.detach(), expected.detach())


@pytest.mark.some(2)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(transposed: bool) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, 2) if transposed else nn.Conv2d(4, 6, 3, padding=1)
    model, plain = pair("int8_channel", layer)
    x, v = torch.randn(2, 4, 5, 5), torch.randn(2, 4, 5, 5)
    for f in (
        lambda m: jvp(m, (x,), (v,))[1],
        lambda m: grad(lambda x: m(x).square().sum())(x),
        lambda m: vmap(grad(lambda x: m(x[None]).square().sum()))(x),
    ):
        close(f(model).detach(), f(plain).detach())
    quantized, _ = pair(bs.Recipe("int8_channel", input="mxint8"), copy.deepcopy(layer))
    x.requires_grad_()
    given = torch.autograd.grad(quantized(x), x, torch.ones_like(quantized(x)))[0]
    _, tangent = jvp(quantized, (x.detach(),), (v,))
    torch.testing.assert_close((given * v).sum(), tangent.sum(), rtol=1e-4, atol=1e-4)


def test_fake_quantize_and_its_second_derivative() -> None:
    close(jvp(lambda x: bs.fake_quantize(x, "int8_token"), (X,), (V,))[1], V)
    inside = hessian(lambda x: bs.fake_quantize(x, "int8_token").pow(3).sum())(X[0])
    expected = 6 * torch.diag(bs.fake_quantize(X[0], "int8_token"))
    torch.testing.assert_close(inside, expected)


def test_what_has_no_forward_mode_says_so() -> None:
    q = bs.quantize(X, "int8_token")

    def dequantized(scale: Tensor) -> Tensor:
        return bs.QTensor(q.packed, q.qparams._replace(scale=scale), q.format, q.size).dequantize()

    with pytest.raises(NotImplementedError) as refused:
        jvp(dequantized, (q.scale,), (torch.ones_like(q.scale),))
    assert str(refused.value) == (
        "blockscale::dequantize has no forward-mode derivative for scale (torch.func.jvp, jacfwd, "
        "hessian, torch.autograd.forward_ad): use reverse mode, torch.func.vjp, jacrev or grad"
    )
    assert grad(lambda scale: dequantized(scale).sum())(q.scale).count_nonzero() > 0
    with pytest.raises(RuntimeError, match=r"^blockscale::choose_quantize has no gradient: use bs"):
        grad(lambda x: bs.ops.primitives.choose_quantize(x, "int8_token", None)[1].sum())(X)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_compiled_transforms_are_the_same(recipe: Any) -> None:
    model, _ = pair(recipe)
    for f in (
        lambda x: vmap(lambda y: model(y))(x),
        lambda x: vmap(grad(lambda y: model(y).square().sum()))(x),
        lambda x: jvp(lambda y: model(y), (x,), (V,))[1],
    ):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend="aot_eager")(X), f(X))
