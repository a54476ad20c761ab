"""Data hyper-cleaning with a PyTorch model: every training sample has a weight of its own, learned from clean data.

In BOAT an example for one machine, here over five nodes on a ring that keep their images. Lines that a script for one
machine does not have end in `# Decibel`.

Run it with `python examples/torch_hyper_cleaning.py`: half a minute, no download; with the extras [torch] and [tasks].
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import decibel as db  # Decibel

NODES, WRONG = 5, 0.5
torch.manual_seed(0)

# Digits, of which half of the training labels are wrong, and 300 clean samples.
images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = images[order].float() / 16, labels[order]
wrong = torch.rand(1000) < WRONG
given = torch.where(wrong, (labels[:1000] + torch.randint(1, 10, (1000,))) % 10, labels[:1000])
train, clean, test = (images[:1000], given), (images[1000:1300], labels[1000:1300]), (images[1300:], labels[1300:])

net = nn.Linear(64, 10)
nn.init.zeros_(net.weight)
x = torch.zeros(1000)


def upper(x, net, batch):
    images, labels = batch
    return F.cross_entropy(net(images), labels)


def lower(x, net, batch):
    images, labels, sample = batch
    losses = F.cross_entropy(net(images), labels, reduction="none")
    return (torch.sigmoid(x[sample]) * losses).mean() + 1e-3 * net.weight.square().sum()


train = (*train, torch.arange(1000))  # Decibel
train, clean = (tuple(part.unflatten(0, (NODES, -1)) for part in data) for data in (train, clean))  # Decibel
problem = db.torch.problem(net, upper=upper, lower=lower, upper_data=clean, lower_data=train, x0=x)  # Decibel
for name, alpha in (("all labels trusted", 0.0), ("learned trust", 100.0)):
    method = db.sparkle("ed", alpha=alpha, beta=1.0, gamma=1.0, theta=0.2)  # Decibel
    result = db.solve(problem, method, db.graphs.ring(NODES), steps=1_000, batch_size=50, metrics=[])  # Decibel
    db.torch.from_torch(net).back(result.y)  # Decibel
    print(f"test accuracy with {name}: {(net(test[0]).argmax(1) == test[1]).float().mean():.1%}")

trust = torch.sigmoid(torch.tensor(result.x.tolist()))  # Decibel
print(f"mean trust in right labels {trust[~wrong].mean():.2f}, in wrong ones {trust[wrong].mean():.2f}")
