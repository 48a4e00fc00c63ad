"""Photos of coloured shapes and a tiny classifier of them: an export in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

CLASSES = ("circle", "cross", "square")
SIZE = 32
MEAN = STD = (128.0, 128.0, 128.0)


def draw(label: int, rng: np.random.Generator) -> Image.Image:
    """One noisy photo of 48 x 40 pixels."""
    noise = rng.integers(0, 110, (40, 48, 3), np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    x, y = (int(v) for v in rng.integers(10, 28, 2))
    r = int(rng.integers(6, 10))
    colour = tuple(int(v) for v in rng.integers(120, 256, 3))
    box = (x - r + 6, y - r + 2, x + r + 6, y + r + 2)
    if label == 0:
        pen.ellipse(box, fill=colour)
    elif label == 1:
        pen.line(box, fill=colour, width=4)
        pen.line((box[0], box[3], box[2], box[1]), fill=colour, width=4)
    else:
        pen.rectangle(box, outline=colour, width=4)
    return image


def write_photos(root: Path, train: int = 50, held: int = 24, seed: int = 0) -> Path:
    """Write train, validation and test folders with so many photos a class."""
    rng = np.random.default_rng(seed)
    for split, count in (("train", train), ("validation", held), ("test", held)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                draw(label, rng).save(folder / f"{i:03d}.png")
    return root


def conv(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class Net(nn.Module):
    """Four convolutions and a residual; (N, 3, 32, 32) to (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 24, 2)
        self.mix = conv(24, 32)
        self.down = conv(32, 48, 2)
        self.deep = conv(48, 48)
        self.fc = nn.Linear(48, len(CLASSES))

    def forward(self, x):
        x = self.down(self.mix(self.stem(x)))
        x = x + self.deep(x)
        return self.fc(x.mean((2, 3)))


def build() -> nn.Module:
    """The factory that the export gets."""
    return Net()


def trained(root: Path, steps: int = 150) -> nn.Module:
    """Train a `Net` for some seconds on the photos under `root`."""
    torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
    torch.manual_seed(0)
    pixels, labels = [], []
    for label, name in enumerate(CLASSES):
        for file in sorted((root / "train" / name).iterdir()):
            pixels.append(np.asarray(Image.open(file).resize((SIZE, SIZE))))
            labels.append(label)
    x = (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() - 128) / 128
    y = torch.tensor(labels)
    net = Net().train()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(steps):
        rows = torch.randint(0, len(y), (48,))
        flip = torch.rand(1).item() < 0.5
        batch = x[rows].flip(3) if flip else x[rows]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch), y[rows]).backward()
        optimizer.step()
    return net.eval()
