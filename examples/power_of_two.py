# SPDX-License-Identifier: BSD-3-Clause
"""Power-of-two scales end to end: calibrate, train, and run on integers alone.

    python examples/power_of_two.py

A small CNN on scikit-learn's 8 x 8 digits. Every scale is a power of two, so that between two
layers an int32 sum becomes an int8 code by a shift. Needs scikit-learn; about 20 seconds on a CPU.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph import to_integer, with_integer_bias

RECIPE = bs.Recipe(weight="int8:channel0:pow2/nearest", input="int8:tensor:pow2/nearest")


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images [n, 1, 8, 8] in 0 ... 1 and labels [n], for training and for testing."""
    data = load_digits()
    images, labels = torch.tensor(data.images).float()[:, None] / 16, torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1347], order[1347:]
    return images[train], labels[train], images[test], labels[test]


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> str:
    right = int((model(images).argmax(1) == labels).sum())
    return f"{100 * right / len(labels):.2f} %"


def main() -> None:
    torch.manual_seed(0)
    images, labels, *test = digits()
    model = cnn()
    train(model, images, labels, epochs=15, rate=3e-3)
    print("float                     ", accuracy(model, *test))

    # the same layers, batch norms folded in, trained under the scales that will be deployed
    bs.prepare_qat(model, RECIPE)
    train(model, images, labels, epochs=2, rate=3e-4)
    print("fake-quantized, trained   ", accuracy(model, *test))
    bs.convert(model)
    print("quantized layers          ", accuracy(model, *test))

    integer = to_integer(model, test[0])
    print("integers alone            ", accuracy(integer, *test))
    rounded = with_integer_bias(model)  # integers add biases in steps of the sums
    with torch.no_grad():
        print("the same bits             ", torch.equal(integer(test[0]), rounded(test[0])))
    print("\nsum     largest   float32 adds it exactly")
    for each in integer.sums:
        print(f"{each.name:7} {each.largest:7}   {each.exact}")
    print()
    for name, step in integer.steps.named_children():
        print(f"{name:20} {type(step).__name__:14} {step.extra_repr()}")


if __name__ == "__main__":
    main()
