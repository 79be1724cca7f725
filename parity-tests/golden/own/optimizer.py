"""Optimizer steps in other forms: rules that PyTorch lacks from their papers in f64, sparse ones from torch.optim on the touched rows."""
import math
import torch
from core import EXACT, Tol, kernel
from optimizer import OPT, TAIL, inputs

S = "optimizer"
COMMON = {"steps": 1, "step": 1, "maximize": False}


@kernel("O48", S, "adan_update", "w g m:f32? v:f32? n:f32? prev:f32?" + TAIL, "w m:f32? v:f32? n:f32? prev:f32? w_copy?",
        {"lr": 1e-3, "b1": 0.98, "b2": 0.92, "b3": 0.99, "eps": 1e-8, "wd": 0.0, **COMMON, "copy": None})
def adan(c, shape, lr=1e-3, b1=0.98, b2=0.92, b3=0.99, eps=1e-8, wd=0.0, steps=1, step=1, maximize=False, resume=False, found_inf=None,
         inv_scale=None, gdtype=None):
    names = [("m", False), ("v", False), ("n", True), ("prev", False)] if resume else []
    w, g, st, skip = inputs(c, shape, steps, gdtype, 1.0, inv_scale, found_inf, maximize, names)
    m, v, n, prev = (st.get(k, torch.zeros_like(w)).to(w.dtype) for k in ("m", "v", "n", "prev"))
    for i in range(0 if skip else steps):
        t = step + i
        d = torch.zeros_like(w) if t == 1 else g[i] - prev
        m, v, n, prev = b1 * m + (1 - b1) * g[i], b2 * v + (1 - b2) * d, b3 * n + (1 - b3) * (g[i] + b2 * d) ** 2, g[i]
        up = m / (1 - b1 ** t) + b2 * v / (1 - b2 ** t)
        w = (w - lr * up / (torch.sqrt(n / (1 - b3 ** t)) + eps)) / (1 + lr * wd)
    for k, x in (("w", w), ("m", m), ("v", v), ("n", n), ("prev", prev)):
        c.out(k, x, EXACT if skip else OPT)


@kernel("O49", S, "sophia_update", "w g m:f32? h:f32?" + TAIL, "w m:f32? h:f32? w_copy?",
        {"lr": 1e-4, "b1": 0.965, "gamma": 0.01, "eps": 1e-12, "wd": 0.0, **COMMON, "copy": None})
def sophia(c, shape, lr=1e-4, b1=0.965, gamma=0.01, eps=1e-12, wd=0.0, steps=1, step=1, maximize=False, found_inf=None, inv_scale=None):
    w, g, st, skip = inputs(c, shape, steps, None, 1.0, inv_scale, found_inf, maximize, [("m", False), ("h", True)])
    m, h = (st[k].to(w.dtype) for k in ("m", "h"))
    for i in range(0 if skip else steps):
        m = b1 * m + (1 - b1) * g[i]
        w = w * (1 - lr * wd) - lr * (m / torch.clamp(gamma * h, min=eps)).clamp(-1, 1)
    for k, x in (("w", w), ("m", m), ("h", h)):
        c.out(k, x, EXACT if skip else OPT)


@kernel("O49", S, "sophia_curvature", "w g m:f32? h:f32?" + TAIL, "w m:f32? h:f32? w_copy?",
        {"lr": 1e-4, "b2": 0.99, "batch": 1.0, **COMMON, "copy": None})
def sophia_curvature(c, shape, lr=1e-4, b2=0.99, batch=1.0, steps=1, step=1, maximize=False):
    w, g, st, _ = inputs(c, shape, steps, None, 1.0, None, None, maximize, [("h", True)])
    h = st["h"].to(w.dtype)
    for i in range(steps):
        h = b2 * h + (1 - b2) * batch * g[i] ** 2
    c.out("w", w, EXACT)
    c.out("h", h, OPT)


def lists(c, shapes, steps, inv_scale, found_inf, maximize):
    "parameters w0, w1, ... and gradients [steps, ...] after unscaling"
    w = [c.x(f"w{i}", *s) for i, s in enumerate(shapes)]
    # Of one sign for the most part, so that products over all tensors do not cancel.
    g = [c.x(f"g{i}", steps, *s, scale=0.5, shift=1.0) for i, s in enumerate(shapes)]
    f = -1.0 if maximize else 1.0
    if inv_scale is not None:
        f = f * c.put("inv_scale", torch.tensor(float(inv_scale)), "f32").to(w[0].dtype)
    if found_inf is not None:
        c.put("found_inf", torch.tensor(float(found_inf)), "f32")
    return w, [f * x for x in g], bool(found_inf)


def adaptive(name, row, args, states, memory, step_fn):
    "step_fn(a, t, w, g, s, k): changes lists of tensors and the list k of numbers in place"
    def fn(c, shapes, steps=1, step=1, maximize=False, inv_scale=None, found_inf=None, **a):
        a = {**{k: v for k, v in args.items()}, **{k: v for k, v in a.items() if k in args}}
        w, g, skip = lists(c, shapes, steps, inv_scale, found_inf, maximize)
        s = {n: [torch.zeros_like(x) for x in w] for n in states}
        k = [torch.zeros((), dtype=w[0].dtype) for _ in memory]
        for i in range(0 if skip else steps):
            step_fn(a, step + i, w, [x[i] for x in g], s, k)
        tol = EXACT if skip else Tol(2e-5, 1e-6)
        for i in range(len(w)):
            c.out(f"w{i}", w[i], tol)
        for n in states:
            for i in range(len(w)):
                c.out(f"{n}{i}", s[n][i], tol)
        c.out("memory", torch.stack(list(k)), tol)
    ins = "w* g*" + "".join(f" {n}*:f32" for n in states) + " memory:f32?" + TAIL
    kernel(row, S, name, ins, "w*" + "".join(f" {n}*:f32" for n in states) + " memory:f32", {**args, **COMMON})(fn)


def dot(a, b):
    return sum((x * y).sum() for x, y in zip(a, b))


def hyper(a, t, w, g, s, k):
    k[0] = torch.tensor(a["lr"], dtype=k[0].dtype) if t == 1 else k[0] + a["rate"] * dot(g, s["prev"])
    for i in range(len(w)):
        w[i], s["prev"][i] = w[i] - k[0] * g[i], g[i]


adaptive("hypergradient_sgd_update", "O34", {"lr": "required", "rate": 1e-8}, ["prev"], ["lr"], hyper)


def schedule_free(adam):
    def fn(a, t, w, g, s, k):
        b, lr = a["b"], a["lr"]
        k[0] = k[0] + lr * lr
        share = lr * lr / k[0] if k[0] > 0 else 0.0
        for i in range(len(w)):
            y = w[i]
            z = y if t == 1 else s["z"][i]
            x = (y - (1 - b) * z) / b
            d = g[i]
            if adam:
                s["v"][i] = a["b2"] * s["v"][i] + (1 - a["b2"]) * d * d
                d = d / (torch.sqrt(s["v"][i] / (1 - a["b2"] ** t)) + a["eps"])
            z = z - lr * (d + a["wd"] * y)
            x = (1 - share) * x + share * z
            s["z"][i], w[i] = z, (1 - b) * z + b * x
    return fn


adaptive("schedule_free_sgd_update", "O35", {"lr": "required", "b": 0.9, "wd": 0.0}, ["z"], ["sum"], schedule_free(False))
adaptive("schedule_free_adamw_update", "O36", {"lr": 0.0025, "b": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0}, ["z", "v"], ["sum"],
         schedule_free(True))


def grown(a, d, best):
    return max(d, min(best, a["growth"] * d))


def dadapt_sgd(a, t, w, g, s, k):
    n = range(len(w))
    g = [g[i] + a["wd"] * w[i] for i in n]
    if t == 1:
        k[0], k[1], k[2] = torch.tensor(a["d0"], dtype=k[0].dtype), k[1] * 0, torch.sqrt(dot(g, g))
        s["start"] = list(w)
    e = a["lr"] * k[0] / k[2]
    k[1] = k[1] + e * dot(g, s["s"])
    for i in n:
        s["s"][i] = s["s"][i] + e * g[i]
        w[i] = a["mu"] * w[i] + (1 - a["mu"]) * (s["start"][i] - s["s"][i])
    k[0] = grown(a, k[0], 2 * k[1] / torch.sqrt(dot(s["s"], s["s"])))


adaptive("dadapt_sgd_update", "O37", {"lr": 1.0, "d0": 1e-6, "mu": 0.0, "wd": 0.0, "growth": math.inf}, ["s", "start"], ["d", "r", "norm"],
         dadapt_sgd)


def dadapt_adam(a, t, w, g, s, k):
    n, q = range(len(w)), math.sqrt(a["b2"])
    if t == 1:
        k[0] = torch.tensor(a["d0"], dtype=k[0].dtype)
    e = a["lr"] * k[0]
    along = sum((g[i] * s["s"][i] / (torch.sqrt(s["v"][i]) + a["eps"])).sum() for i in n)
    for i in n:
        s["m"][i] = a["b1"] * s["m"][i] + (1 - a["b1"]) * e * g[i]
        s["v"][i] = a["b2"] * s["v"][i] + (1 - a["b2"]) * g[i] ** 2
        s["s"][i] = q * s["s"][i] + (1 - q) * e * g[i]
        w[i] = w[i] * (1 - e * a["wd"]) - s["m"][i] / (torch.sqrt(s["v"][i]) + a["eps"])
    k[1] = q * k[1] + (1 - q) * e * along
    k[0] = grown(a, k[0], k[1] / ((1 - q) * sum(x.abs().sum() for x in s["s"])))


adaptive("dadapt_adam_update", "O38", {"lr": 1.0, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0, "d0": 1e-6, "growth": math.inf},
         ["m", "v", "s"], ["d", "r"], dadapt_adam)


def prodigy(a, t, w, g, s, k):
    n, q = range(len(w)), math.sqrt(a["b2"])
    if t == 1:
        k[0] = torch.tensor(a["d0"], dtype=k[0].dtype)
        s["start"] = list(w)
    d, lr = k[0], a["lr"]
    along = sum((g[i] * (s["start"][i] - w[i])).sum() for i in n)
    for i in n:
        s["m"][i] = a["b1"] * s["m"][i] + (1 - a["b1"]) * d * g[i]
        s["v"][i] = a["b2"] * s["v"][i] + (1 - a["b2"]) * d * d * g[i] ** 2
        s["s"][i] = q * s["s"][i] + (1 - q) * lr * d * d * g[i]
        w[i] = w[i] * (1 - lr * d * a["wd"]) - lr * d * s["m"][i] / (torch.sqrt(s["v"][i]) + d * a["eps"])
    k[1] = q * k[1] + (1 - q) * lr * d * d * along
    k[0] = grown(a, d, a["coef"] * k[1] / sum(x.abs().sum() for x in s["s"]))


adaptive("prodigy_update", "O39", {"lr": 1.0, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0, "d0": 1e-6, "coef": 1.0, "growth": math.inf},
         ["m", "v", "s", "start"], ["d", "r"], prodigy)


# ---------------------------------------------------------------------------------------------------- touched rows
def rows(c, shape, n, steps, itype, inv_scale, found_inf, maximize):
    w = c.x("w", *shape)
    ids = c.idx("ids", c.integers(0, shape[0], (steps, n)).numpy(), itype)
    g = c.x("g", steps, n, *shape[1:])
    f = -1.0 if maximize else 1.0
    if inv_scale is not None:
        f = f * c.put("inv_scale", torch.tensor(float(inv_scale)), "f32").to(w.dtype)
    if found_inf is not None:
        c.put("found_inf", torch.tensor(float(found_inf)), "f32")
    return w, ids, f * g, bool(found_inf)


@kernel("O33", S, "sparse_adam_step", "w ids:idx g m:f32? v:f32?" + TAIL, "w m:f32 v:f32",
        {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, **COMMON})
def sparse_adam(c, shape, n=6, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, steps=1, step=1, maximize=False, inv_scale=None, found_inf=None, itype="i64"):
    "torch.optim.SparseAdam"
    w, ids, g, skip = rows(c, shape, n, steps, itype, inv_scale, found_inf, maximize)
    p = torch.nn.Parameter(w.clone())
    opt = torch.optim.SparseAdam([p], lr=lr, betas=(b1, b2), eps=eps)
    m = v = torch.zeros_like(w)
    if not skip:
        for i in range(steps):
            p.grad = torch.sparse_coo_tensor(ids[i][None], g[i], p.shape)
            opt.step()
        m, v = opt.state[p]["exp_avg"], opt.state[p]["exp_avg_sq"]
    for k, x in (("w", p.detach()), ("m", m), ("v", v)):
        c.out(k, x, EXACT if skip else OPT)


O = torch.optim
RULES = {
    "sgd": (O.SGD, {}, []),
    "momentum": (O.SGD, {"momentum": 0.9}, ["momentum_buffer"]),
    "nag": (O.SGD, {"momentum": 0.9, "nesterov": True}, ["momentum_buffer"]),
    "adam": (O.Adam, {}, ["exp_avg", "exp_avg_sq"]),
    "adamw": (O.AdamW, {}, ["exp_avg", "exp_avg_sq"]),
    "amsgrad": (O.Adam, {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    "radam": (O.RAdam, {}, ["exp_avg", "exp_avg_sq"]),
    "adamax": (O.Adamax, {}, ["exp_avg", "exp_inf"]),
    "rmsprop": (O.RMSprop, {}, ["square_avg"]),
    "rmsprop_momentum": (O.RMSprop, {"momentum": 0.9}, ["square_avg", "momentum_buffer"]),
    "rmsprop_centered": (O.RMSprop, {"centered": True}, ["square_avg", "grad_avg"]),
    "adagrad": (O.Adagrad, {}, ["sum"]),
    "adadelta": (O.Adadelta, {}, ["square_avg", "acc_delta"]),
}


@kernel("O33", S, "sparse_step", "w ids:idx g s*:f32" + TAIL, "w s*:f32", {"rule": "sgd", "lr": 0.01, "wd": 0.0, **COMMON})
def sparse_step(c, shape, rule="sgd", n=6, lr=0.01, wd=0.0, steps=1, step=1, maximize=False, inv_scale=None, found_inf=None, itype="i64"):
    "the dense optimizer of torch on the touched rows, whose state is taken out and put back"
    w, ids, g, skip = rows(c, shape, n, steps, itype, inv_scale, found_inf, maximize)
    cls, options, names = RULES[rule]
    state = [torch.zeros_like(w) for _ in names]
    for i in range(0 if skip else steps):
        t = step + i
        some, where = torch.unique(ids[i], return_inverse=True)
        total = torch.zeros(len(some), *shape[1:], dtype=w.dtype).index_add_(0, where, g[i])
        p = torch.nn.Parameter(w[some].clone())
        opt = cls([p], lr=lr, weight_decay=wd, **options)
        # torch.optim.SGD takes an absent buffer for the first step.
        if t > 1 or cls is not O.SGD:
            opt.state[p] = {k: s[some].clone() for k, s in zip(names, state)}
        if cls is not O.SGD:
            opt.state[p]["step"] = torch.tensor(float(t - 1))
        p.grad = total
        opt.step()
        w = w.index_copy(0, some, p.detach())
        state = [s.index_copy(0, some, opt.state[p][k]) for k, s in zip(names, state)]
    tol = EXACT if skip else OPT
    c.out("w", w, tol)
    for k, s in enumerate(state):
        c.out(f"s{k}", s, tol)


# ---------------------------------------------------------------------------------------------------- packed moments
PACKED = {"lr": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.0, "decoupled": False, "seed": None, "stream": 0, "offset": 0}


def adam(a, t, w, g, m, v):
    if a["decoupled"]:
        w = w * (1 - a["lr"] * a["wd"])
    else:
        g = g + a["wd"] * w
    m, v = a["b1"] * m + (1 - a["b1"]) * g, a["b2"] * v + (1 - a["b2"]) * g * g
    return w - a["lr"] * m / (1 - a["b1"] ** t) / (torch.sqrt(v / (1 - a["b2"] ** t)) + a["eps"]), m, v


@kernel("O32", S, "adam_bf16_step", "w g m:bf16? v:bf16?" + TAIL, "w m:bf16 v:bf16", {**PACKED, **COMMON})
def adam_bf16(c, shape, step=1, maximize=False, resume=False, inv_scale=None, **a):
    "one step, moments to nearest even"
    a = {**PACKED, **a}
    w = c.x("w", *shape)
    g = c.x("g", 1, *shape)[0]
    m = v = torch.zeros_like(w)
    if resume:
        m, v = c.x("m", *shape, scale=0.3, kind="bf16").to(w.dtype), c.put("v", c.rnd(*shape).abs() * 0.3, "bf16").to(w.dtype)
    if inv_scale is not None:
        g = g * c.put("inv_scale", torch.tensor(float(inv_scale)), "f32").to(w.dtype)
    w, m, v = adam(a, step, w, -g if maximize else g, m, v)
    c.out("w", w, OPT)
    # A value between two of bf16 may be rounded either way.
    for k, x in (("m", m), ("v", v)):
        c.out(k, x, Tol(2.0 ** -8, 1e-30), "bf16")


def coded(c, shape, a, step, maximize, resume):
    w = c.x("w", *shape)
    g = c.x("g", *shape)
    n = w.numel()
    blocks = (n + 255) // 256
    m = v = torch.zeros_like(w)
    if resume:
        cm, cv = c.integers(-127, 128, tuple(shape)), c.integers(0, 256, tuple(shape))
        c.raw("m", (cm % 256).to(torch.uint8))
        c.raw("v", cv.to(torch.uint8))
        s = c.put("scales", c.uni(2, blocks, lo=0.2, hi=1.0), "f32").to(w.dtype)
        at = torch.arange(n).reshape(shape) // 256
        m, v = cm.to(w.dtype) / 127 * s[0][at], (cv.to(w.dtype) / 255 * s[1][at]) ** 2
    w, m, v = adam(a, step, w, -g if maximize else g, m, v)
    pad = lambda x: torch.cat([x.reshape(-1), torch.zeros(blocks * 256 - n, dtype=x.dtype)]).reshape(blocks, 256)
    m, r = pad(m), pad(torch.sqrt(v))
    s = torch.stack([m.abs().amax(1), r.amax(1)])
    cm = torch.round(m / s[0][:, None] * 127)
    cv = torch.where(r > 0, torch.round(r / s[1][:, None] * 255).clamp(1, 255), torch.zeros_like(r))
    return w, s, cm.reshape(-1)[:n], cv.reshape(-1)[:n]


CODES = {**PACKED, "step": 1, "maximize": False}


@kernel("O31", S, "adam8bit_step", "w g m:u8? v:u8? scales:f32?" + TAIL, "w scales:f32", CODES)
def adam8bit(c, shape, step=1, maximize=False, resume=False, **a):
    w, s, _, _ = coded(c, shape, {**PACKED, **a}, step, maximize, resume)
    c.out("w", w, OPT)
    c.out("scales", s, OPT)


@kernel("O31", S, "adam8bit_codes", "w g m:u8? v:u8? scales:f32?" + TAIL, "new_w scales:f32 codes_m:bf16 codes_v:bf16", CODES)
def adam8bit_codes(c, shape, step=1, maximize=False, resume=False, **a):
    "codes as numbers; one on a boundary may be its neighbour"
    w, s, cm, cv = coded(c, shape, {**PACKED, **a}, step, maximize, resume)
    c.out("new_w", w, OPT)
    c.out("scales", s, OPT)
    c.out("codes_m", cm, Tol(0.0, 1.0), "bf16")
    c.out("codes_v", cv, Tol(0.0, 1.0), "bf16")
