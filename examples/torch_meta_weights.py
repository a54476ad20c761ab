"""A PyTorch network that learns which samples to trust: a second network maps a sample's loss to its weight.

Meta-Weight-Net (Shu et al., 2019), in Betty an example for one machine ("learning to reweight"), here over five nodes
on a ring that keep their images. Lines that a script for one machine does not have end in `# Decibel`.

Run it with `python examples/torch_meta_weights.py`: half a minute, no download; with the extras [torch] and [tasks].
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import decibel as db  # Decibel

NODES, WRONG = 5, 0.4
torch.manual_seed(0)

# Digits, of which 40 % of the training labels are wrong, and 200 samples whose labels were checked.
images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = images[order].float() / 16, labels[order]
given = torch.where(torch.rand(1000) < WRONG, (labels[:1000] + 1) % 10, labels[:1000])
train, checked, test = (images[:1000], given), (images[1000:1200], labels[1000:1200]), (images[1200:], labels[1200:])

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
weigh = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid())


def upper(weigh, net, batch):
    images, labels = batch
    return F.cross_entropy(net(images), labels)


def lower(weigh, net, batch):
    images, labels = batch
    losses = F.cross_entropy(net(images), labels, reduction="none")[:, None]
    ridge = sum(parameter.square().sum() for parameter in net.parameters())
    weights = weigh(losses.detach())
    return (weights * losses).sum() / weights.sum() + 5e-3 * ridge


def accuracy():
    return (net(test[0]).argmax(1) == test[1]).float().mean()


train, checked = (tuple(part.unflatten(0, (NODES, -1)) for part in data) for data in (train, checked))  # Decibel
data = {"upper_data": checked, "lower_data": train}  # Decibel
problem = db.torch.problem(net, upper=upper, lower=lower, x0=weigh, **data)  # Decibel
for name, alpha in (("all samples alike", 0.0), ("learned weights", 0.01)):
    method = db.sparkle("adam-ed", alpha=alpha, beta=0.01, gamma=0.01)  # Decibel
    result = db.solve(problem, method, db.graphs.ring(NODES), steps=2_000, batch_size=32, metrics=[])  # Decibel
    db.torch.from_torch(net).back(result.y)  # Decibel
    print(f"test accuracy with {name}: {accuracy():.1%}")

db.torch.from_torch(weigh).back(result.x)  # Decibel
for loss in (0.1, 1.0, 5.0):
    print(f"weight of a sample with loss {loss}: {weigh(torch.tensor([loss])).item():.2f}")
