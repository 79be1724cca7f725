"""The network of digits_cnn.rs in PyTorch on the CPU, to compare accuracy and time: python nn/examples/digits_cnn.py [SEED]"""

import pathlib
import sys
import time

import torch
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
path = pathlib.Path(__file__).resolve().parents[2] / "data" / "digits.csv"
rows = torch.tensor([[float(v) for v in line.split(",")] for line in path.read_text().splitlines()[1:]])
x, y = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
(x, xt), (y, yt) = (x[:1437], x[-360:]), (y[:1437], y[-360:])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
    nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(15):
    start = time.perf_counter()
    model.train()
    for at in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[at]), y[at]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(xt).argmax(1) == yt).float().mean().item()
    print(f"epoch {epoch + 1}: test accuracy {accuracy:.3f}, {time.perf_counter() - start:.3f} s")
