"""Writes second-order.json beside this file: products with Hessians from PyTorch's double backward, points that
torch.optim.LBFGS visits, and what Muon and Adafactor make of matrices. `python second_order.py`, with PyTorch; everything is float64."""

import json
import pathlib

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(2024)


def noise(*shape):
    return torch.randn(*shape, generator=generator)


def entry(t):
    return {"shape": list(t.shape), "data": t.detach().flatten().tolist()}


def mlp(x, w1, b1, w2):
    h = F.gelu(F.linear(x, w1, b1))
    return F.cross_entropy(F.linear(h, w2), torch.tensor([1, 0, 2]))


def norms(x, weight, bias):
    y = F.layer_norm(x, (4,), weight, bias)
    return F.mse_loss(F.silu(y), torch.linspace(-1, 1, 12).reshape(3, 4))


def images(x, w, b):
    y = F.avg_pool2d(torch.tanh(F.conv2d(x, w, b, stride=1, padding=1)), 2)
    return y.square().sum()


def attention(q, k, v):
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return (y * torch.linspace(0, 1, y.numel()).reshape(y.shape)).exp().sum()


def batches(x, weight, bias):
    y = F.batch_norm(x, None, None, weight, bias, training=True)
    return F.binary_cross_entropy_with_logits(y, torch.full_like(y, 0.3))


def indices(table, scores):
    rows = F.embedding(torch.tensor([2, 0, 2]), table)
    picked = torch.gather(scores, 1, torch.tensor([[1], [0], [2]]))
    return (rows.sum(1, keepdim=True) * picked).logsumexp(0).sum() + F.softplus(rows).prod(1).sum()


def transposed(x, w):
    return F.conv_transpose1d(x, w, stride=2).cos().sum() + F.log_softmax(x, 1).pow(3).mean()


CASES = (
    ("mlp", mlp, (3, 4), (5, 4), (5,), (3, 5)),
    ("layer_norm", norms, (3, 4), (4,), (4,)),
    ("images", images, (1, 2, 4, 4), (3, 2, 3, 3), (3,)),
    ("attention", attention, (1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)),
    ("batch_norm", batches, (5, 3), (3,), (3,)),
    ("indices", indices, (3, 2), (3, 3)),
    ("transposed", transposed, (2, 3, 4), (3, 2, 3)),
)


def products():
    out = []
    # The fused attention of PyTorch has no second derivative.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for name, f, *shapes in CASES:
            inputs = tuple(noise(*s) for s in shapes)
            vectors = tuple(noise(*s) for s in shapes)
            value, found = torch.autograd.functional.hvp(f, inputs, vectors)
            lists = {"inputs": inputs, "vectors": vectors, "products": found}
            case = {key: [entry(t) for t in list] for key, list in lists.items()}
            out.append({"name": name, "value": value.item(), **case})
    return out


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def bowl(x):
    return (x.exp() - x).sum() + 0.5 * (x.diff() ** 2).sum()


def lbfgs():
    points = []
    x = torch.tensor([0.9, -0.7, 1.4, 0.2, -1.1], requires_grad=True)
    optimizer = torch.optim.LBFGS([x], lr=0.7, max_iter=1, history_size=4, tolerance_grad=0, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        loss = bowl(x)
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
        points.append(x.detach().tolist())
    y = torch.tensor([-1.2, 1.0, -1.2, 1.0], requires_grad=True)
    search = torch.optim.LBFGS([y], history_size=10, max_iter=200, line_search_fn="strong_wolfe")

    def again():
        search.zero_grad()
        loss = rosenbrock(y)
        loss.backward()
        return loss

    search.step(again)
    return {"points": points, "rosenbrock": y.detach().tolist()}


def matrices():
    """Parameters after ten steps of Muon (in bf16 inside) and of Adafactor on the same loss."""
    out = {}
    for name, make in (
        ("muon", lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.1)),
        ("adafactor", lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.1)),
    ):
        own = torch.Generator().manual_seed(5)
        start = [torch.randn(*s, generator=own) for s in ((4, 6), (5, 3))]
        goal = [torch.randn(*s, generator=own) for s in ((4, 6), (5, 3))]
        vector = torch.randn(7, generator=own)
        if name == "adafactor":
            start.append(vector)
            goal.append(torch.zeros(7))
        params = [s.clone().requires_grad_() for s in start]
        optimizer = make(params)
        for _ in range(10):
            optimizer.zero_grad()
            loss = sum(((p - g) ** 2).sum() + 0.1 * p.exp().sum() for p, g in zip(params, goal))
            loss.backward()
            optimizer.step()
        lists = {"start": start, "goal": goal, "end": params}
        out[name] = {key: [entry(t) for t in list] for key, list in lists.items()}
    return out


out = {"torch": torch.__version__, "hvp": products(), "lbfgs": lbfgs(), "matrices": matrices()}
path = pathlib.Path(__file__).with_name("second-order.json")
path.write_text(json.dumps(out) + "\n")
