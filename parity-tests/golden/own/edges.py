"""Edges that the copied suites do not reach, of kernels that they have: these kernels' rows go to a suite of their own."""
import numpy as np
import torch
import torch.nn.functional as F
from core import REGISTRY
from loss import _simple, class_ids, loss

S = "edges"

for name in ("multilabel_margin_loss", "nll_loss"):
    del REGISTRY[name], REGISTRY[name + "_backward"]


def repeated_labels(x):
    "lists of labels from the first three classes: most of them repeat one"
    n, classes = x.p["shape"]
    t = np.full((n, classes), -1)
    for i in range(n):
        k = int(x.c.integers(2, classes, (1,)))
        t[i, :k] = x.c.integers(0, 3, (k,)).numpy()
    return x.ids("target", t, "i64")


_simple("multilabel_margin_loss", "x target:idx", "x", {}, lambda x: [x.put("x", x.c.rnd(*x.p["shape"])), repeated_labels(x)],
        lambda t, a, r: F.multilabel_margin_loss(*t, reduction=r))


@loss("L69", "nll_loss", "x target:idx weight?", "x", {"ignore_index": -100})
def nll(x):
    "classes along axis 1, or along the only one"
    shape = list(x.p["shape"])
    axis = min(1, len(shape) - 1)
    v = x.put("x", torch.log_softmax(x.c.rnd(*shape), axis))
    classes = shape.pop(axis)
    t = class_ids(x, shape, classes)
    w = x.put("weight", x.c.uni(classes, lo=0.2, hi=2)) if x.p.get("weight") else None
    f = lambda r: F.nll_loss(v, t, weight=w, ignore_index=x.a["ignore_index"], reduction=r)
    return f("none"), f


for name in ("multilabel_margin_loss multilabel_margin_loss_backward nll_loss nll_loss_backward pad pad_backward meshgrid digamma digamma_backward "
             "layernorm_backward groupnorm_backward instancenorm_backward batchnorm_backward rmsprop_step").split():
    REGISTRY[name].suite = S
