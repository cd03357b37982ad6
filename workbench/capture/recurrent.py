"""A recurrent network."""

import torch
from torch import nn


class LSTM(nn.Module):
    """Language model of two LSTM layers of 1,500 units: 11 gradients, 66,034,000 parameters.

    forward(tokens) of shape (batch, length) gives scores (batch, n_tokens, length). No dropout.
    The large model of Zaremba et al. (arXiv 1409.2329), said to have 66 million parameters; torch
    adds a second bias of 6,000 to each layer.
    """

    def __init__(self, n_tokens: int = 10_000, width: int = 1500):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(width, n_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(tokens))[0]).transpose(1, 2)
