"""Writes pytorch_weights.safetensors: a network of PyTorch, an input, what it answers, and the losses of ten training steps."""

import pathlib

import torch
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    """The network of ../pytorch_weights.rs, named as there."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.gru = nn.GRU(32, 12, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.scale = nn.LayerNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x, _ = self.gru(x.transpose(1, 2).flatten(2))
        x = self.scale(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))


torch.manual_seed(1)
torch.set_num_threads(1)
net, x, y = Net(), torch.randn(16, 1, 8, 8), torch.arange(16) % 10
for _ in range(3):  # the running statistics become something else than 0 and 1
    net(3 * torch.randn(16, 1, 8, 8) + 1)
net.eval()
tensors = {k: v.clone() for k, v in net.state_dict().items()}
tensors |= {"example.input": x, "example.classes": y, "example.output": net(x).detach()}

net.train()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tensors["example.losses"] = torch.tensor(losses)
path = pathlib.Path(__file__).with_suffix(".safetensors")
save_file(tensors, path, metadata={"format": "pt", "pytorch": torch.__version__})
print(path, losses)
