"""Pooling of the elements of a mesh from torch.topk and indexing; gradients by autograd."""
import torch
from core import kernel, rel

S = "mesh_pool"


def pooled(x, w, keep, temperature):
    s = x @ w
    share = torch.softmax(s / temperature, 0)
    kept = torch.sort(s, descending=True, stable=True).indices[:keep]
    return share[kept, None] * x[kept], kept, share


def inputs(c, n, width, ties, put):
    # Scores that are equal, or far apart.
    x = (c.rnd(n, width) * 2).round() / 2 if ties else c.rnd(n, width)
    return put("x", x), put("w", (c.rnd(width) * 2).round() / 2 if ties else c.rnd(width))


@kernel("B11.8", S, "mesh_pool", "x w", "y kept:i64 share:f32", {"keep": "required", "temperature": 1.0})
def mesh_pool(c, n, width, keep, temperature=1.0, ties=False):
    x, w = inputs(c, n, width, ties, c.put)
    y, kept, share = pooled(x, w, min(keep, n), temperature)
    c.out("y", y, rel(1e-5, 1e-6))
    c.out("kept", kept, kind="i64")
    c.out("share", share, rel(1e-5, 1e-6))


@kernel("B11.8", S, "mesh_pool_backward", "dy x w kept:idx share:f32", "dx dw", {"temperature": 1.0})
def mesh_pool_backward(c, n, width, keep, temperature=1.0, ties=False):
    dy = c.x("dy", keep, width)
    x, w = inputs(c, n, width, ties, c.putv)
    y, kept, share = pooled(x, w, keep, temperature)
    c.idx("kept", kept.numpy(), "i64")
    c.put("share", share.detach(), "f32")
    for name, g in zip(("dx", "dw"), torch.autograd.grad((y * dy).sum(), [x, w])):
        c.out(name, g, rel(2e-5, 1e-5))
