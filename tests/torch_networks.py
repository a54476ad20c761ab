"""Small PyTorch networks of four kinds, their data, and PyTorch's own derivatives of their losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

NODES, STEPS, SAMPLES, CLASSES, WORDS, LENGTH = 3, 2, 6, 4, 11, 7


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.AvgPool2d(2))
        self.head = nn.Linear(4 * 3 * 3, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, CLASSES)

    def forward(self, sequences):
        return self.head(self.layer(sequences).mean(1))


class GPT(nn.Module):
    """A causal language model with tied embeddings, a mask that is a plain attribute, and positions made on the way."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.norm, self.attention, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.future = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)

    def forward(self, tokens):
        length = tokens.shape[1]
        h = self.words(tokens) + self.places(torch.arange(length))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.attention(self.norm(h)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(self.future[:length, :length], float("-inf"))
        h = h + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return self.head(h + self.mlp(h))


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, CLASSES))


NETWORKS = {"mlp": mlp, "cnn": CNN, "encoder": Encoder, "gpt": GPT}
INPUTS = {"mlp": (5,), "cnn": (1, 6, 6), "encoder": (LENGTH, 8)}


def network(kind, dtype=torch.float64):
    torch.manual_seed(0)
    return NETWORKS[kind]().to(dtype)


def batches(kind, dtype=torch.float64):
    """Tensors (steps, nodes, samples, ...)."""
    shape = (STEPS, NODES, SAMPLES)
    torch.manual_seed(1)
    if kind == "gpt":
        tokens = torch.randint(WORDS, (*shape, LENGTH + 1))
        return tokens[..., :-1], tokens[..., 1:]
    return torch.randn(*shape, *INPUTS[kind], dtype=dtype), torch.randint(CLASSES, shape)


def loss(module, batch):
    inputs, labels = batch
    ridge = sum(parameter.square().sum() for parameter in module.parameters())
    return F.cross_entropy(module(inputs).flatten(0, -2), labels.flatten()) + 1e-2 * ridge


class Lost(nn.Module):
    """A loss as a module, so that `functional_call` replaces the parameters for the whole of it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, batch):
        return loss(self.module, batch)


def derivatives(module, y, v, batch):
    """(gradient, Hessian times v) by autograd of PyTorch, as dictionaries of tensors."""
    y = {name: leaf.clone().requires_grad_() for name, leaf in y.items()}
    with sdpa_kernel(SDPBackend.MATH):  # the only one with second derivatives
        named = {f"module.{name}": leaf for name, leaf in y.items()}
        value = torch.func.functional_call(Lost(module), named, (batch,))
        gradient = torch.autograd.grad(value, list(y.values()), create_graph=True)
        product = torch.autograd.grad(gradient, list(y.values()), [v[name] for name in y])
    return dict(zip(y, gradient, strict=True)), dict(zip(y, product, strict=True))
