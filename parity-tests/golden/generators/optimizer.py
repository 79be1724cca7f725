"""Optimizer steps (section 8). A case makes `steps` consecutive calls with t = step, step+1, ...; the gradients g carry a leading axis of
that length. State buffers that are not listed as inputs start at zero (or empty: `v` of SGD is set to g at t = 1)."""
import math
import torch
from core import EXACT, HALF_UNIT, Tol, kernel, splice

S = "optimizer"
OPT = Tol(1e-5, 1e-7)
COMMON = {"steps": 1, "step": 1, "maximize": False}


def inputs(c, shape, steps, gdtype=None, scale=1.0, inv_scale=None, found_inf=None, maximize=False, states=(), special=None):
    """w, g [steps, ...], resumed states, [dev] scalars; returns (parameter, gradients after unscaling, states, skip)"""
    w = c.x("w", *shape)
    graw = splice(c.rnd(steps, *shape, scale=scale), special)
    if gdtype:
        g = c.put("g", graw, gdtype).to(c.compute)
    else:
        g = c.put("g", graw)
    st = {}
    for name, positive in states:
        raw = c.rnd(*shape)
        st[name] = c.put(name, raw.abs() * 0.3 if positive else raw * 0.3, "f32")
    if inv_scale is not None:
        g = g * c.put("inv_scale", torch.tensor(float(inv_scale)), "f32").to(g.dtype)
    skip = False
    if found_inf is not None:
        c.put("found_inf", torch.tensor(float(found_inf)), "f32")
        skip = found_inf != 0
    return w, (-g if maximize else g), st, skip


TAIL = " inv_scale:f32? found_inf:f32?"


def _torch_optim(name, sec, cls, names, defaults, make, states, note=""):
    """names: state buffer -> (key in the torch state, non-negative); make: arguments -> torch keyword arguments"""
    def gen(c, shape, steps=1, step=1, maximize=False, gdtype=None, inv_scale=None, found_inf=None, resume=False, copy=None, scale=1.0,
            special=None, gshape=None, **a):
        a = {**defaults, **{k: v for k, v in a.items() if k in defaults}}
        st_in = [(s, pos) for s, (_, pos) in names(a).items()] if resume else []
        w, g, st, skip = inputs(c, shape, steps, gdtype, scale, inv_scale, found_inf, maximize, st_in, special)
        if step < 1:
            raise ValueError("step")
        p = torch.nn.Parameter(w.clone())
        opt = cls([p], **make(a))
        if resume:
            opt.state[p] = {key: st[s].clone().to(w.dtype) for s, (key, _) in names(a).items()}
            if cls is not torch.optim.SGD:
                opt.state[p]["step"] = torch.tensor(float(step - 1))
        elif cls is torch.optim.Adagrad and step != 1:
            opt.state[p]["step"] = torch.tensor(float(step - 1))
        if not skip:
            for i in range(steps):
                p.grad = g[i].clone()
                opt.step()
        t = EXACT if skip else OPT
        c.out("w", p.detach(), t)
        for s, (key, _) in names(a).items():
            v = opt.state[p].get(key) if p in opt.state else None
            if skip:
                v = st.get(s, torch.zeros(shape, dtype=w.dtype))
            if v is not None:
                c.out(s, v, t)
        if copy:
            c.args["copy"] = copy
            c.out("w_copy", p.detach(), Tol(HALF_UNIT[copy] * 1.01, 1e-7))
    gen.__doc__ = note
    ins = "w g" + "".join(f" {s}:f32?" for s in states) + TAIL
    kernel(sec, S, name, ins, "w" + "".join(f" {s}:f32?" for s in states) + " w_copy?", {**defaults, **COMMON, "copy": None})(gen)


SGD = torch.optim.SGD
_torch_optim("sgd_step", "S8.1", SGD, lambda a: {}, {"lr": "required", "wd": 0.0}, lambda a: dict(lr=a["lr"], weight_decay=a["wd"]), (),
             "copy f16 or bf16: the rounded parameter w_copy is written in the same pass")
_torch_optim("sgd_momentum_update", "S8.2", SGD, lambda a: {"v": ("momentum_buffer", False)},
             {"lr": "required", "mu": 0.9, "damp": 0.0, "wd": 0.0, "nesterov": False},
             lambda a: dict(lr=a["lr"], momentum=a["mu"], dampening=a["damp"], weight_decay=a["wd"], nesterov=a["nesterov"]), ("v",),
             "first call (step 1, no v given): v = g")
_torch_optim("nag_step", "S8.7", SGD, lambda a: {"v": ("momentum_buffer", False)}, {"lr": "required", "mu": 0.9, "wd": 0.0},
             lambda a: dict(lr=a["lr"], momentum=a["mu"], weight_decay=a["wd"], nesterov=True), ("v",))
_torch_optim("adam_step", "S8.3", torch.optim.Adam, lambda a: {"m": ("exp_avg", False), "v": ("exp_avg_sq", True)},
             {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0},
             lambda a: dict(lr=a["lr"], betas=(a["b1"], a["b2"]), eps=a["eps"], weight_decay=a["wd"]), ("m", "v"))
_torch_optim("adamw_step", "S8.4", torch.optim.AdamW, lambda a: {"m": ("exp_avg", False), "v": ("exp_avg_sq", True)},
             {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.01},
             lambda a: dict(lr=a["lr"], betas=(a["b1"], a["b2"]), eps=a["eps"], weight_decay=a["wd"]), ("m", "v"))


def _rms_names(a):
    n = {"s": ("square_avg", True)}
    if a["centered"]:
        n["ga"] = ("grad_avg", False)
    if a["mu"] > 0:
        n["b"] = ("momentum_buffer", False)
    return n


_torch_optim("rmsprop_step", "S8.5", torch.optim.RMSprop, _rms_names,
             {"lr": 1e-2, "a": 0.99, "eps": 1e-8, "wd": 0.0, "mu": 0.0, "centered": False},
             lambda a: dict(lr=a["lr"], alpha=a["a"], eps=a["eps"], weight_decay=a["wd"], momentum=a["mu"], centered=a["centered"]),
             ("s", "ga", "b"))
_torch_optim("adagrad_step", "S8.6", torch.optim.Adagrad, lambda a: {"s": ("sum", True)},
             {"lr": 1e-2, "lr_decay": 0.0, "eps": 1e-10, "wd": 0.0},
             lambda a: dict(lr=a["lr"], lr_decay=a["lr_decay"], eps=a["eps"], weight_decay=a["wd"]), ("s",))


@kernel("S8.8", S, "lars_step", "w g v:f32?" + TAIL, "w v:f32",
        {"lr": 0.1, "mu": 0.9, "wd": 1e-4, "eta": 1e-3, "eps": 1e-8, **COMMON})
def lars_step(c, shape, lr=0.1, mu=0.9, wd=1e-4, eta=1e-3, eps=1e-8, steps=1, step=1, maximize=False, resume=False, found_inf=None,
              inv_scale=None, zero=False):
    w, g, st, skip = inputs(c, shape, steps, None, 0.0 if zero else 1.0, inv_scale, found_inf, maximize, [("v", False)] if resume else [])
    v = st.get("v", torch.zeros_like(w)).to(w.dtype)
    for i in range(0 if skip else steps):
        a, b = w.norm(), g[i].norm()
        q = eta * a / (b + wd * a + eps) if a > 0 and b > 0 else 1.0
        v = mu * v + lr * q * (g[i] + wd * w)
        w = w - v
    c.out("w", w, EXACT if skip else OPT)
    c.out("v", v, EXACT if skip else OPT)


@kernel("S8.9", S, "lamb_step", "w g m:f32? v:f32?" + TAIL, "w m:f32 v:f32",
        {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-6, "wd": 0.01, **COMMON})
def lamb_step(c, shape, lr=1e-3, b1=0.9, b2=0.999, eps=1e-6, wd=0.01, steps=1, step=1, maximize=False, resume=False, found_inf=None,
              inv_scale=None, zero=False):
    w, g, st, skip = inputs(c, shape, steps, None, 1.0, inv_scale, found_inf, maximize, [("m", False), ("v", True)] if resume else [])
    m, v = (st.get(n, torch.zeros_like(w)).to(w.dtype) for n in "mv")
    for i in range(0 if skip else steps):
        t = step + i
        m, v = b1 * m + (1 - b1) * g[i], b2 * v + (1 - b2) * g[i] ** 2
        u = (m / (1 - b1 ** t)) / (torch.sqrt(v / (1 - b2 ** t)) + eps) + wd * w
        r = w.norm() / u.norm() if w.norm() > 0 and u.norm() > 0 else 1.0
        w = w - lr * r * u
    for n, val in (("w", w), ("m", m), ("v", v)):
        c.out(n, val, EXACT if skip else OPT)


@kernel("S8.10", S, "gradient_clip_norm", "g*", "total g*", {"max_norm": "required", "p": 2.0})
def gradient_clip_norm(c, shapes, max_norm, p=2.0, scale=1.0, special=None):
    "all gradients g0, g1, ... share one norm; p may be the string inf; total is the norm before clipping"
    ps = []
    for i, s in enumerate(shapes):
        t = torch.nn.Parameter(torch.zeros(s))
        t.grad = c.put(f"g{i}", splice(c.rnd(*s, scale=scale), special if i == 0 else None)).clone()
        t.data = torch.zeros(s, dtype=t.grad.dtype)
        ps.append(t)
    total = torch.nn.utils.clip_grad_norm_(ps, max_norm, p, foreach=False)
    c.out("total", total, Tol(3e-6, 1e-7), "f32")
    for i, t in enumerate(ps):
        c.out(f"g{i}", t.grad, Tol(4e-6, 1e-9))


@kernel("S8.11", S, "gradient_clip_value", "g*", "g*", {"c": "required"})
def gradient_clip_value(case, shapes, special=None, **a):
    "argument c is the bound"
    for i, s in enumerate(shapes):
        g = case.put(f"g{i}", splice(case.rnd(*s, scale=2), special if i == 0 else None))
        t = torch.nn.Parameter(torch.zeros(s, dtype=g.dtype))
        t.grad = g.clone()
        torch.nn.utils.clip_grad_value_([t], a["c"], foreach=False)
        case.out(f"g{i}", t.grad, EXACT)
