"""Ten small encoders as users write them, with torch's default initialisation, and a plain training loop with SDGMLoss.

Fresh, most of them place all descriptors within the anti-noise threshold of each other. `learn` trains one of them on
smooth random patches seen under two exposures, and measures it on points that it has not seen.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet import SDGMLoss

SIDE = 16
POINTS, TEST_POINTS = 512, 256
BATCH = 64


def conv(inputs: int, outputs: int, stride: int = 2) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(conv(channels, channels, 1), nn.ReLU(), conv(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.inner(x))


class MeanOfTokens(nn.Module):
    """Squares of 4 x 4 pixels with positions, one transformer layer, their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 32, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(16, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.last = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).mT + self.position
        return self.last(self.layer(tokens).mean(1))


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 32)),
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 32)),
    "two convolutions": lambda: nn.Sequential(
        conv(1, 16), nn.ReLU(), conv(16, 16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32)
    ),
    "four convolutions": lambda: nn.Sequential(
        conv(1, 16), nn.ReLU(), conv(16, 32), nn.ReLU(), conv(32, 32), nn.ReLU(), conv(32, 32), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 32),
    ),
    "mean pooling": lambda: nn.Sequential(
        conv(1, 16), nn.ReLU(), conv(16, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32)
    ),
    "tanh": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.Tanh(), nn.Flatten(), nn.Linear(512, 32)
    ),
    "positive descriptors": lambda: nn.Sequential(
        conv(1, 16), nn.ReLU(), conv(16, 32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.Softplus()
    ),
    "batch normalisation": lambda: nn.Sequential(
        conv(1, 16), nn.BatchNorm2d(16), nn.ReLU(), conv(16, 32), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 32),
    ),
    "residual": lambda: nn.Sequential(conv(1, 16), nn.ReLU(), Residual(16), Residual(16), nn.Flatten(), nn.Linear(1024, 32)),
    "transformer": MeanOfTokens,
}  # fmt: skip


class Learned(NamedTuple):
    """Of unseen points, before and after training."""

    before: float  # share of points whose own second view is nearer than any other point
    after: float
    spread: float  # median angle of two points after training, in radians


def views(generator: torch.Generator, count: int) -> Tensor:
    """(2, count, 1, SIDE, SIDE): smooth random patches under two exposures, with noise."""
    coarse = torch.rand(count, 1, 6, 6, generator=generator)
    smooth = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    gain, offset = (torch.rand(2, count, 1, 1, 1, generator=generator) for _ in range(2))
    noise = 0.1 * torch.randn(2, *smooth.shape, generator=generator)
    return (0.3 + 0.7 * gain) * (smooth + noise - 0.5) + 0.3 + 0.4 * offset


@torch.no_grad()
def recall(encoder: nn.Module, sides: Tensor) -> tuple[float, float]:
    """Share of points whose second view is nearest to their first one, and the median angle of two points."""
    a, p = (F.normalize(encoder(side).double(), dim=1) for side in sides)
    nearest = (a @ p.T).argmax(dim=1) == torch.arange(len(a))
    others = (a @ p.T)[~torch.eye(len(a), dtype=torch.bool)]
    return float(nearest.double().mean()), float(others.clamp(-1, 1).acos().median())


def learn(name: str, seed: int, steps: int, warm: bool = True) -> Learned:
    """Train a fresh encoder; warm: the loop gives the loss its progress, which starts the warm-up."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    encoder, loss = ENCODERS[name](), SDGMLoss(decay=0.9)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    train, test = views(generator, POINTS), views(generator, TEST_POINTS)
    before, _ = recall(encoder.eval(), test)
    encoder.train()
    for step in range(steps):
        rows = torch.randperm(POINTS, generator=generator)[:BATCH]
        anchor, positive = (F.normalize(encoder(train[side, rows]), dim=1) for side in range(2))
        value = loss(anchor, positive, progress=step / steps) if warm else loss(anchor, positive)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return Learned(before, *recall(encoder.eval(), test))
