"""Convolutional networks, with the parameters that torchvision gives them."""

import torch
from torch import nn


class Bottleneck(nn.Module):
    """Residual block of ResNet-50, stride on the 3x3 convolution (arXiv 1512.03385, v1.5)."""

    def __init__(self, n_in: int, width: int, stride: int):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        # The shortcut comes last: backward then reaches its gradients first, as in torchvision.
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50: 161 gradients, 25,557,032 parameters, named as torchvision names them.

    blocks, width : blocks of each of the four stages, and channels of the first
    """

    def __init__(self, n_classes: int = 1000, blocks: tuple = (3, 4, 6, 3), width: int = 64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        n_in = width
        for stage, n_blocks in enumerate(blocks):
            strides = [1 if stage == 0 else 2] + [1] * (n_blocks - 1)
            inner = width * 2**stage
            inputs = [n_in] + [4 * inner] * (n_blocks - 1)
            made = (Bottleneck(n, inner, s) for n, s in zip(inputs, strides, strict=True))
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
            n_in = 4 * inner
        self.fc = nn.Linear(n_in, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


class VGG16(nn.Module):
    """VGG-16 (arXiv 1409.1556, D): 32 gradients, 138,357,544 parameters, as in torchvision.

    width : channels of the first stage; hidden : units of the two hidden linear layers
    """

    def __init__(self, n_classes: int = 1000, width: int = 64, hidden: int = 4096):
        super().__init__()
        layers, n_in = [], 3
        for n_convolutions, widening in ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)):
            for _ in range(n_convolutions):
                n_out = width * widening
                layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(inplace=True)]
                n_in = n_out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            *(nn.Linear(n_in * 49, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(hidden, n_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))
