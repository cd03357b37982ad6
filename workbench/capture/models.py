"""Example models with the parameters of their published versions, and a small transformer."""

import torch
from torch import nn
from torch.nn import functional


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
        # The shortcut comes last, so backward reaches its gradients first, as in torchvision.
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


class LSTM(nn.Module):
    """Language model of two LSTM layers of 1,500 units: 11 gradients, 66,034,000 parameters.

    forward(tokens) of shape (batch, length) gives scores (batch, n_tokens, length). No dropout.
    The large model of Zaremba et al. (arXiv 1409.2329), published with 66 million parameters; torch
    adds a second bias of 6,000 to each layer.
    """

    def __init__(self, n_tokens: int = 10_000, width: int = 1500):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(width, n_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(tokens))[0]).transpose(1, 2)


def _attend(query, key, value, n_heads: int, causal: bool = False) -> torch.Tensor:
    """Return the attention of several heads: (batch, length, width) each -> the same shape."""
    heads = (x.unflatten(-1, (n_heads, -1)).transpose(1, 2) for x in (query, key, value))
    attended = functional.scaled_dot_product_attention(*heads, is_causal=causal)
    return attended.transpose(1, 2).flatten(2)


def _initialise(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02), as BERT and GPT-2 do: losses then start near log(n)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


class _SelfAttention(nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.n_heads = n_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _attend(self.query(x), self.key(x), self.value(x), self.n_heads)


class _Residual(nn.Module):
    """The end of a part of BERT's layer: linear, added to the input, normalised."""

    def __init__(self, n_in: int, width: int):
        super().__init__()
        self.dense = nn.Linear(n_in, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(x) + before)


class _BertLayer(nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        parts = {"self": _SelfAttention(width, n_heads), "output": _Residual(width, width)}
        self.attention = nn.ModuleDict(parts)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = _Residual(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention["output"](self.attention["self"](x), x)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)


class BERT(nn.Module):
    """BERT-base with both heads of its pre-training: 206 gradients, 110,106,428 parameters.

    forward(tokens) of shape (batch, length) gives scores of every token (batch, n_tokens, length)
    and of the next sentence (batch, 2). The word embeddings are also the last layer's weights, so
    their gradient comes last. No dropout. Names and sizes are those of BertForPreTraining in
    Hugging Face's transformers; arXiv 1810.04805.
    """

    def __init__(self, n_tokens=30522, length=512, width=768, n_layers=12, n_heads=12):
        super().__init__()
        embeddings = {
            "word_embeddings": nn.Embedding(n_tokens, width),
            "position_embeddings": nn.Embedding(length, width),
            "token_type_embeddings": nn.Embedding(2, width),
            "LayerNorm": nn.LayerNorm(width, eps=1e-12),
        }
        layers = nn.ModuleList(_BertLayer(width, n_heads) for _ in range(n_layers))
        encoder = nn.ModuleDict({"layer": layers})
        pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})
        embeddings = nn.ModuleDict(embeddings)
        self.bert = nn.ModuleDict({"embeddings": embeddings, "encoder": encoder, "pooler": pooler})
        self.cls = nn.Module()
        self.cls.predictions = nn.Module()
        self.cls.predictions.bias = nn.Parameter(torch.zeros(n_tokens))
        norm = nn.LayerNorm(width, eps=1e-12)
        transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": norm})
        self.cls.predictions.transform = transform
        self.cls.seq_relationship = nn.Linear(width, 2)
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings, predictions = self.bert["embeddings"], self.cls.predictions
        words = embeddings["word_embeddings"]
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        types = torch.zeros_like(tokens)
        x = words(tokens) + embeddings["token_type_embeddings"](types)
        x = embeddings["LayerNorm"](x + embeddings["position_embeddings"](positions))
        for layer in self.bert["encoder"]["layer"]:
            x = layer(x)
        pooled = torch.tanh(self.bert["pooler"]["dense"](x[:, 0]))
        hidden = functional.gelu(predictions.transform["dense"](x))
        hidden = predictions.transform["LayerNorm"](hidden)
        scores = functional.linear(hidden, words.weight, predictions.bias)
        return scores.transpose(1, 2), self.cls.seq_relationship(pooled)


class _GPTAttention(nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.n_heads = n_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(_attend(*self.c_attn(x).chunk(3, -1), self.n_heads, causal=True))


class _GPTBlock(nn.Module):
    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _GPTAttention(width, n_heads)
        self.ln_2 = nn.LayerNorm(width)
        parts = {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        self.mlp = nn.ModuleDict(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT2(nn.Module):
    """GPT-2 small: 148 gradients, 124,439,808 parameters, named as in transformers.

    forward(tokens) of shape (batch, length) gives scores (batch, n_tokens, length). The word
    embeddings are also the last layer's weights, so their gradient comes last. No dropout.
    Source: Radford et al. 2019; sizes of GPT2LMHeadModel in Hugging Face's transformers.
    """

    def __init__(self, n_tokens=50257, length=1024, width=768, n_layers=12, n_heads=12):
        super().__init__()
        parts = {
            "wte": nn.Embedding(n_tokens, width),
            "wpe": nn.Embedding(length, width),
            "h": nn.ModuleList(_GPTBlock(width, n_heads) for _ in range(n_layers)),
            "ln_f": nn.LayerNorm(width),
        }
        self.transformer = nn.ModuleDict(parts)
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.transformer["wte"]
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = words(tokens) + self.transformer["wpe"](positions)
        for block in self.transformer["h"]:
            x = block(x)
        return functional.linear(self.transformer["ln_f"](x), words.weight).transpose(1, 2)


class Transformer(nn.Module):
    """A small transformer encoder predicting tokens: 4 layers of width 256, 8,192 tokens."""

    def __init__(self, n_tokens: int = 8192, width: int = 256, length: int = 128):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, n_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        position = self.position[: tokens.shape[1]]
        return self.head(self.encoder(self.embedding(tokens) + position)).transpose(1, 2)
