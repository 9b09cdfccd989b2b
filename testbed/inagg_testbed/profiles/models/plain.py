"""AlexNet and VGG-11: convolutions, then three large linear layers that hold most of the parameters."""

from __future__ import annotations

import torch
from torch import nn


class AlexNet(nn.Module):
    """The one-column AlexNet (Krizhevsky 2014, arXiv 1404.5997), 61,100,840 parameters; takes (count, 3, 224, 224)."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, classes)."""
        scores: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return scores


class VGG11(nn.Module):
    """VGG-11, configuration A without batch normalization (Simonyan and Zisserman 2014, arXiv 1409.1556, table 1),
    132,863,336 parameters; takes (count, 3, 224, 224)."""

    WIDTHS = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
    """Channels of each convolution; 0: a pooling."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in self.WIDTHS:
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of shape (count, classes)."""
        scores: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return scores
