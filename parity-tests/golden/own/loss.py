"""Losses that the copied suites do not have; gradients by torch autograd."""
import torch
import torch.nn.functional as F
from core import Tol, kernel

S = "loss"
TOL = Tol(2e-5, 1e-5)


def reduce(item, reduction):
    return item if reduction == "none" else item.sum() if reduction == "sum" else item.mean()


def pair(name, row, ins, args, grads, draw, value):
    "the forward and the gradient of a loss; draw(c, p) registers inputs and returns them, value(inputs, p) gives items"
    def p_of(a):
        return {**args, **a}

    def forward(c, **a):
        p = p_of(a)
        c.out("loss", reduce(value(draw(c, p), p), p["reduction"]), TOL)

    def backward(c, **a):
        p = p_of(a)
        # The upstream gradient comes first among the inputs and has the shape of the loss.
        shape = p["items"] if p["reduction"] == "none" else []
        gy = c.x("gy", *shape, shift=1.0)
        t = draw(c, p)
        x = t[grads[0]].clone().requires_grad_()
        loss = reduce(value({**t, grads[0]: x}, p), p["reduction"])
        loss.backward(gy.to(loss.dtype).reshape(loss.shape))
        c.out("d" + grads[0], x.grad, TOL)

    outs = " ".join("d" + g for g in grads)
    listed = {k: v for k, v in args.items() if k not in ("items", "pairs", "kl", "n")}
    kernel(row, S, name, ins, "loss", listed)(forward)
    kernel(row, S, name + "_backward", "gy " + ins, outs, listed)(backward)


def draw_circle(c, p):
    n = p["n"]
    t = {"x": c.put("x", c.uni(*n, lo=-0.95, hi=0.95))}
    if p["pairs"]:
        t["y"] = c.put("y", c.integers(0, 3, tuple(n)).double())
    else:
        t["target"] = c.idx("target", c.integers(0, n[1], (n[0],)).numpy())
    return t


def circle(t, p):
    x, s, m = t["x"], p["s"], p["m"]
    y = t["y"] if "y" in t else F.one_hot(t["target"], x.shape[1]).to(x.dtype)
    hold = (lambda v: v.detach()) if p["detach"] else (lambda v: v)
    near = -s * hold(F.relu(1 + m - x)) * (x - (1 - m))
    far = s * hold(F.relu(x + m)) * (x - m)
    inf = torch.tensor(float("-inf"), dtype=x.dtype)
    items = []
    for r in range(x.shape[0]):
        a, b = near[r][y[r] == 1], far[r][y[r] == 0]
        items.append(F.softplus(torch.logsumexp(a, 0) + torch.logsumexp(b, 0)) if len(a) and len(b) else 0.0 * x[r].sum())
    return torch.stack(items)


pair("circle_loss", "L72", "x y? target:idx?", {"s": 256.0, "m": 0.25, "detach": True, "reduction": "mean", "n": [3, 4], "pairs": False, "items": [3]},
     ["x"], draw_circle, circle)


def draw_kto(c, p):
    n = p["items"]
    t = {"w": c.put("w", -c.uni(*n, lo=0.2, hi=4.0)), "w_ref": c.put("w_ref", -c.uni(*n, lo=0.2, hi=4.0)),
         "y": c.put("y", c.integers(0, 2, tuple(n)).double())}
    if p["kl"] is not None:
        t["kl"] = c.put("kl", torch.tensor([p["kl"]]))
    return t


def kto(t, p):
    z = torch.clamp(t["kl"], min=0).detach() if "kl" in t else 0.0
    r = t["w"] - t["w_ref"]
    good = p["desirable"] * (1 - torch.sigmoid(p["beta"] * (r - z)))
    bad = p["undesirable"] * (1 - torch.sigmoid(p["beta"] * (z - r)))
    return torch.where(t["y"] == 1, good, bad)


pair("kto_loss", "L74", "w w_ref y kl?", {"beta": 0.1, "desirable": 1.0, "undesirable": 1.0, "reduction": "mean", "kl": None, "items": [5]},
     ["w"], draw_kto, kto)
