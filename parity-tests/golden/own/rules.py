"""Optimizer rules that torch.optim has and the copied suites do not; Lion, FTRL and proximal steps from their definitions; loss scaling."""
import torch
from core import EXACT, Tol, kernel
from optimizer import OPT, TAIL, _torch_optim, inputs
import core

S = "optimizer_rules"
A = dict(lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, wd=0.0)
O = torch.optim


def rule(name, row, cls, names, defaults, make):
    "a rule of torch.optim: names maps states to its keys"
    before = set(core.REGISTRY)
    _torch_optim(name, row, cls, lambda a: {s: (k, False) for s, k in names.items()}, defaults, make, tuple(names))
    for n in set(core.REGISTRY) - before:
        core.REGISTRY[n].suite = S


def betas(a):
    return dict(lr=a["lr"], betas=(a["b1"], a["b2"]), eps=a["eps"], weight_decay=a["wd"])


rule("adadelta_update", "O10", O.Adadelta, {"s": "square_avg", "x": "acc_delta"}, dict(lr=1.0, rho=0.9, eps=1e-6, wd=0.0),
     lambda a: dict(lr=a["lr"], rho=a["rho"], eps=a["eps"], weight_decay=a["wd"]))
rule("adamax_update", "O11", O.Adamax, {"m": "exp_avg", "u": "exp_inf"}, {**A, "lr": 2e-3}, betas)
rule("amsgrad_update", "O12", O.Adam, {"m": "exp_avg", "v": "exp_avg_sq", "x": "max_exp_avg_sq"}, {**A, "decoupled": False},
     lambda a: dict(betas(a), amsgrad=True))
rule("nadam_update", "O13", O.NAdam, {"m": "exp_avg", "v": "exp_avg_sq"}, {**A, "lr": 2e-3, "psi": 0.004, "decoupled": False},
     lambda a: dict(betas(a), momentum_decay=a["psi"], decoupled_weight_decay=a["decoupled"]))
rule("radam_update", "O28", O.RAdam, {"m": "exp_avg", "v": "exp_avg_sq"}, {**A, "decoupled": False},
     lambda a: dict(betas(a), decoupled_weight_decay=a["decoupled"]))
rule("asgd_update", "O29", O.ASGD, {"ax": "ax"}, dict(lr=0.01, lambd=1e-4, alpha=0.75, t0=1e6, wd=0.0),
     lambda a: dict(lr=a["lr"], lambd=a["lambd"], alpha=a["alpha"], t0=a["t0"], weight_decay=a["wd"]))
rule("rprop_update", "O30", O.Rprop, {"prev": "prev", "size": "step_size"}, dict(lr=0.01, up=1.2, down=0.5, least=1e-6, most=50.0),
     lambda a: dict(lr=a["lr"], etas=(a["down"], a["up"]), step_sizes=(a["least"], a["most"])))

COMMON = {"steps": 1, "step": 1, "maximize": False, "copy": None}


@kernel("O14", S, "lion_update", "w g m:f32?" + TAIL, "w m:f32? w_copy?", {"lr": 1e-4, "b1": 0.9, "b2": 0.99, "wd": 0.0, **COMMON})
def lion(c, shape, lr=1e-4, b1=0.9, b2=0.99, wd=0.0, steps=1, maximize=False, resume=False):
    w, g, st, _ = inputs(c, shape, steps, maximize=maximize, states=[("m", False)] if resume else [])
    m = st.get("m", torch.zeros_like(w)).to(w.dtype)
    for i in range(steps):
        w = w * (1 - lr * wd) - lr * torch.sign(b1 * m + (1 - b1) * g[i])
        m = b2 * m + (1 - b2) * g[i]
    c.out("w", w, OPT)
    c.out("m", m, OPT)


@kernel("O15", S, "ftrl_update", "w g z:f32? n:f32?" + TAIL, "w z:f32? n:f32? w_copy?",
        {"lr": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0, "from_w": False, **COMMON})
def ftrl(c, shape, lr=0.1, beta=1.0, l1=0.0, l2=0.0, steps=1, maximize=False):
    "McMahan et al. (2013), algorithm 1"
    w, g, _, _ = inputs(c, shape, steps, maximize=maximize)
    z, n = torch.zeros_like(w), torch.zeros_like(w)
    for i in range(steps):
        sigma = (torch.sqrt(n + g[i] ** 2) - torch.sqrt(n)) / lr
        z, n = z + g[i] - sigma * w, n + g[i] ** 2
        shrunk = torch.sign(z) * torch.clamp(z.abs() - l1, min=0)
        w = -shrunk / ((beta + torch.sqrt(n)) / lr + l2)
    for name, v in (("w", w), ("z", z), ("n", n)):
        c.out(name, v, Tol(1e-5, 2e-6))


@kernel("O18", S, "proximal_gradient_update", "w g" + TAIL, "w w_copy?",
        {"lr": "required", "prox": "elastic", "l1": 0.0, "l2": 0.0, "lo": 0.0, "hi": float("inf"), **COMMON})
def proximal(c, shape, lr, prox="elastic", l1=0.0, l2=0.0, lo=0.0, hi=float("inf"), steps=1, maximize=False):
    w, g, _, _ = inputs(c, shape, steps, maximize=maximize)
    for i in range(steps):
        v = w - lr * g[i]
        if prox == "elastic":
            w = torch.sign(v) * torch.clamp(v.abs() - lr * l1, min=0) / (1 + lr * l2)
        else:
            w = torch.clamp(v, lo, hi)
    c.out("w", w, OPT)


@kernel("M3", S, "unscale_grads", "g* scale:f32?", "found_inf:f32 g*")
def unscale(c, shapes, scale=None, bad=None):
    gs = []
    for i, shape in enumerate(shapes):
        v = c.rnd(*shape)
        if bad is not None and i == 0:
            v.view(-1)[-1] = bad
        gs.append(c.put(f"g{i}", v))
    s = c.put("scale", torch.tensor(float(scale)), "f32") if scale is not None else None
    found = float(any(not torch.isfinite(g).all() for g in gs))
    c.out("found_inf", torch.tensor(found, dtype=torch.float64), EXACT)
    for i, g in enumerate(gs):
        c.out(f"g{i}", g / s if s is not None else g, Tol(2.4e-7, 0.0) if s is not None else EXACT)


@kernel("M3", S, "update_loss_scale", "scale:f32 good:i64 found_inf:f32 step:i64?", "scale:f32 good:i64 found_inf:f32 inv_scale:f32 step:i64?",
        {"growth": 2.0, "backoff": 0.5, "interval": 2000, "least": 1.0})
def loss_scale(c, scale, good, found, interval=2000):
    "torch.amp's own update"
    s = c.put("scale", torch.tensor(float(scale)), "f32")
    c.idx("good", torch.tensor(good).numpy(), "i64")
    c.put("found_inf", torch.tensor(float(found)), "f32")
    now, tracker = torch.tensor(float(s), dtype=torch.float32), torch.tensor(good, dtype=torch.int32)
    torch._amp_update_scale_(now, tracker, torch.tensor(found, dtype=torch.float32), 2.0, 0.5, interval)
    c.out("scale", now.double(), EXACT)
    c.out("good", tracker.long(), EXACT)
    c.out("found_inf", torch.tensor(0.0, dtype=torch.float64), EXACT)
    c.out("inv_scale", 1 / now.double(), Tol(1.2e-7, 0.0))
