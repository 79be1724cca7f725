"""Recurrent kernels (section 10). Oracles: torch.nn.LSTM/GRU functional forms, LSTMCell/GRUCell, and F.conv2d compositions, with autograd."""
import math
import torch
import torch.nn.functional as F
from core import Tol, ag, kernel, matmul_tol, recurrent
from conv import clean

S = "rnn"
CELL = Tol(1e-5, 1e-6)


def lstm_run(X, h, cc, Wi, Wh, bi, bh, reverse=False, lengths=None):
    "Y, h_T, c_T, gates [T,B,4H], c [T+1,B,H]; saved tensors in processing order"
    T, ys, gs, cs = X.shape[0], [], [], [cc]
    for t in (range(T - 1, -1, -1) if reverse else range(T)):
        z = F.linear(X[t], Wi, bi) + F.linear(h, Wh, bh)
        i, f, g, o = z.chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c2 = f * cc + i * g
        h2 = o * torch.tanh(c2)
        y = h2
        if lengths is not None:
            live = (t < lengths)[:, None]
            h2, c2, y = torch.where(live, h2, h), torch.where(live, c2, cc), torch.where(live, h2, torch.zeros_like(h2))
        h, cc = h2, c2
        ys.append(y)
        gs.append(torch.cat([i, f, g, o], -1))
        cs.append(cc)
    Y = torch.stack(ys[::-1] if reverse else ys) if T else X.new_zeros(0, X.shape[1], h.shape[1])
    G = torch.stack(gs) if T else X.new_zeros(0, X.shape[1], 4 * h.shape[1])
    return Y, h, cc, G, torch.stack(cs)


def gru_run(X, h, Wi, Wh, bi, bh, reverse=False, lengths=None, reset_before=False):
    "Y, h_T, (r, z, n, u_n) [T,B,H] each, h [T+1,B,H]"
    T, H = X.shape[0], h.shape[1]
    ys, saved, hs = [], [], [h]
    for t in (range(T - 1, -1, -1) if reverse else range(T)):
        a = F.linear(X[t], Wi, bi)
        u = F.linear(h, Wh, bh)
        r, z = torch.sigmoid(a[:, :H] + u[:, :H]), torch.sigmoid(a[:, H:2 * H] + u[:, H:2 * H])
        un = u[:, 2 * H:]
        if reset_before:
            n = torch.tanh(a[:, 2 * H:] + F.linear(r * h, Wh[2 * H:], None if bh is None else bh[2 * H:]))
        else:
            n = torch.tanh(a[:, 2 * H:] + r * un)
        h2 = (1 - z) * n + z * h
        y = h2
        if lengths is not None:
            live = (t < lengths)[:, None]
            h2, y = torch.where(live, h2, h), torch.where(live, h2, torch.zeros_like(h2))
        h = h2
        ys.append(y)
        saved.append((r, z, n, un))
        hs.append(h)
    Y = torch.stack(ys[::-1] if reverse else ys) if T else X.new_zeros(0, X.shape[1], H)
    st = [torch.stack([s[k] for s in saved]) if T else X.new_zeros(0, X.shape[1], H) for k in range(4)]
    return Y, h, st, torch.stack(hs)


def weights(c, n, I, H, bias, var, hn=None):
    draw = c.var if var else c.x
    return (draw("W_ih", n * H, I, scale=0.5), draw("W_hh", n * H, hn or H, scale=0.5),
            draw("b_ih", n * H, scale=0.3) if bias else None, draw("b_hh", n * H, scale=0.3) if bias else None)


def check_torch(kind, X, states, W, out):
    "plain forward runs must agree with PyTorch's own layer"
    if X.dtype != torch.float64 or not X.shape[0]:
        return
    flat = [w.detach() for w in W if w is not None]
    f = torch._VF.lstm if kind == "lstm" else torch._VF.gru
    hx = tuple(s.detach()[None] for s in states)
    r = f(X.detach(), hx if kind == "lstm" else hx[0], flat, W[2] is not None, 1, 0.0, False, False, False)
    assert torch.allclose(r[0], out.detach(), rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------------------------ LSTM
@kernel("S10.1", S, "lstm_forward", "X h_0 c_0 W_ih W_hh b_ih? b_hh? lengths:i32?", "Y h_T c_T gates? c?", "reverse batch_first")
def lstm_forward(c, T, B, I, H, bias=True, reverse=False, batch_first=False, lengths=None, hn=None):
    "gates (activated, order i,f,g,o) [T,B,4H] and c [T+1,B,H] are the saved tensors, in processing order when reverse"
    X = c.x("X", *((B, T, I) if batch_first else (T, B, I)))
    h, c0 = c.x("h_0", B, H), c.x("c_0", B, H)
    W = weights(c, 4, I, H, bias, False, hn)
    L = torch.tensor(lengths) if lengths is not None else None
    if L is not None:
        c.idx("lengths", lengths, "i32")
    Xt = X.transpose(0, 1) if batch_first else X
    Y, hT, cT, G, C = lstm_run(Xt, h, c0, *W, reverse, L)
    if L is None and not reverse:
        check_torch("lstm", Xt, (h, c0), W, Y)
    t = recurrent(T)
    c.out("Y", Y.transpose(0, 1) if batch_first else Y, t)
    c.out("h_T", hT, t)
    c.out("c_T", cT, t)
    if L is None and not batch_first:
        c.out("gates", G, t)
        c.out("c", C, t)


@kernel("S10.2", S, "lstm_backward", "dY? dh_T? dc_T? X W_ih W_hh gates c h lengths:i32?", "dX dh_0 dc_0 dW_ih dW_hh db_ih? db_hh?",
        "reverse")
def lstm_backward(c, T, B, I, H, given=("dY", "dh_T", "dc_T"), bias=True, reverse=False, lengths=None):
    "gates [T,B,4H], c and h [T+1,B,H] (entry 0 = initial state) in processing order; without lengths all steps are live"
    ups = {n: c.x(n, *((T, B, H) if n == "dY" else (B, H))) for n in ("dY", "dh_T", "dc_T") if n in given}
    X = c.var("X", T, B, I)
    Wi, Wh = c.var("W_ih", 4 * H, I, scale=0.5), c.var("W_hh", 4 * H, H, scale=0.5)
    b = [c.round(c.rnd(4 * H) * 0.3).to(c.compute).requires_grad_() for _ in range(2)]
    h0, c0 = (c.round(c.rnd(B, H)).to(c.compute).requires_grad_() for _ in range(2))
    L = torch.tensor(lengths) if lengths is not None else None
    d = lambda t: t.detach().double()
    Y, _, _, G, C = lstm_run(d(X), d(h0), d(c0), d(Wi), d(Wh), d(b[0]), d(b[1]), reverse, L)
    hs = [d(h0)]
    for t in (range(T - 1, -1, -1) if reverse else range(T)):
        hs.append(Y[t] if L is None else torch.where((t < L)[:, None], Y[t], hs[-1]))
    c.put("gates", G)
    c.put("c", C)
    c.put("h", torch.stack(hs))
    if L is not None:
        c.idx("lengths", lengths, "i32")
    Y, hT, cT, _, _ = lstm_run(X, h0, c0, Wi, Wh, *b, reverse, L)
    outs = dict(dY=Y, dh_T=hT, dc_T=cT)
    y = sum((outs[n] * g).sum() for n, g in ups.items())
    grads = torch.autograd.grad(y, [X, h0, c0, Wi, Wh] + b)
    for n, g in zip("dX dh_0 dc_0 dW_ih dW_hh db_ih db_hh".split(), grads):
        if bias or not n.startswith("db"):
            c.out(n, g, Tol(2e-5 * math.sqrt(T), 3e-6 * math.sqrt(T)))


@kernel("S10.3", S, "lstm_cell_forward", "z c", "h_next c_next gates")
def lstm_cell_forward(c, B, H, special=None):
    "pointwise part: z [B,4H] are the gate pre-activations"
    z, cc = c.x("z", B, 4 * H, special=special), c.x("c", B, H)
    i, f, g, o = z.chunk(4, 1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c2 = f * cc + i * g
    if special is None and z.dtype == torch.float64 and B:                       # the same through LSTMCell with an identity input matrix
        h_ref, c_ref = torch._VF.lstm_cell(z, (torch.zeros(B, H), cc), torch.eye(4 * H), torch.zeros(4 * H, H), None, None)
        assert torch.allclose(c_ref, c2) and torch.allclose(h_ref, o * torch.tanh(c2))
    c.out("h_next", o * torch.tanh(c2), CELL)
    c.out("c_next", c2, CELL)
    c.out("gates", torch.cat([i, f, g, o], 1), CELL)


@kernel("S10.4", S, "lstm_cell_backward", "dh_next dc_next gates c c_next", "dz dc")
def lstm_cell_backward(c, B, H):
    dh, dc = c.x("dh_next", B, H), c.x("dc_next", B, H)
    z = c.rnd(B, 4 * H).requires_grad_()
    cp = c.round(c.rnd(B, H)).double().requires_grad_()
    i, f, g, o = z.chunk(4, 1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c2 = f * cp + i * g
    gates = c.put("gates", torch.cat([i, f, g, o], 1).detach())
    cv = c.put("c", cp.detach())
    cn = c.put("c_next", c2.detach())
    # autograd on the rounded saved tensors: activations are leaves, their derivative is applied with the aten ops
    leaves = [v.clone().requires_grad_() for v in gates.chunk(4, 1)]
    i, f, g, o = leaves
    cl = cv.clone().requires_grad_()
    c2 = f * cl + i * g
    tc = torch.tanh(cn.detach()).requires_grad_()
    dtc = dh * o.detach()
    dc2 = dc + torch.ops.aten.tanh_backward(dtc, tc.detach())
    gi, gf, gg, gc = torch.autograd.grad(c2, [i, f, g, cl], dc2)
    sb, tb = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    dz = torch.cat([sb(gi, i.detach()), sb(gf, f.detach()), tb(gg, g.detach()), sb(dh * tc.detach(), o.detach())], 1)
    c.out("dz", dz, CELL)
    c.out("dc", gc, CELL)


@kernel("S10.4", S, "lstm_gates_precompute", "x h W_ih W_hh b_ih? b_hh?", "z")
def lstm_gates_precompute(c, B, I, H, bias=True):
    x, h = c.x("x", B, I), c.x("h", B, H)
    W = weights(c, 4, I, H, bias, False)
    fn = lambda x, h, Wi, Wh, bi, bh: F.linear(x, Wi, bi) + F.linear(h, Wh, bh)
    c.out("z", fn(x, h, *W), matmul_tol(I + H, fn(clean(x), clean(h), *[None if w is None else clean(w) for w in W])))


# ------------------------------------------------------------------------------------------------ GRU
@kernel("S10.5", S, "gru_forward", "X h_0 W_ih W_hh b_ih? b_hh? lengths:i32?", "Y h_T r? z? n? u_n?", "reverse batch_first reset_before")
def gru_forward(c, T, B, I, H, bias=True, reverse=False, batch_first=False, reset_before=False, lengths=None):
    "saved r, z, n, u_n [T,B,H] (u_n = third block of h W_hh^T + b_hh), in processing order when reverse"
    X = c.x("X", *((B, T, I) if batch_first else (T, B, I)))
    h = c.x("h_0", B, H)
    W = weights(c, 3, I, H, bias, False)
    L = torch.tensor(lengths) if lengths is not None else None
    if L is not None:
        c.idx("lengths", lengths, "i32")
    Xt = X.transpose(0, 1) if batch_first else X
    Y, hT, st, _ = gru_run(Xt, h, *W, reverse, L, reset_before)
    if L is None and not reverse and not reset_before:
        check_torch("gru", Xt, (h,), W, Y)
    t = recurrent(T)
    c.out("Y", Y.transpose(0, 1) if batch_first else Y, t)
    c.out("h_T", hT, t)
    if L is None and not batch_first and not reset_before:
        for n, v in zip(("r", "z", "n", "u_n"), st):
            c.out(n, v, t)


@kernel("S10.6", S, "gru_backward", "dY? dh_T? X W_ih W_hh r z n u_n h", "dX dh_0 dW_ih dW_hh db_ih? db_hh?", "reverse")
def gru_backward(c, T, B, I, H, given=("dY", "dh_T"), bias=True, reverse=False):
    "h [T+1,B,H] (entry 0 = initial state); saved tensors in processing order"
    ups = {n: c.x(n, *((T, B, H) if n == "dY" else (B, H))) for n in ("dY", "dh_T") if n in given}
    X = c.var("X", T, B, I)
    Wi, Wh = c.var("W_ih", 3 * H, I, scale=0.5), c.var("W_hh", 3 * H, H, scale=0.5)
    b = [c.round(c.rnd(3 * H) * 0.3).to(c.compute).requires_grad_() for _ in range(2)]
    h0 = c.round(c.rnd(B, H)).to(c.compute).requires_grad_()
    d = lambda t: t.detach().double()
    _, _, st, hs = gru_run(d(X), d(h0), d(Wi), d(Wh), d(b[0]), d(b[1]), reverse)
    for n, v in zip(("r", "z", "n", "u_n"), st):
        c.put(n, v)
    c.put("h", hs)
    Y, hT, _, _ = gru_run(X, h0, Wi, Wh, *b, reverse)
    y = sum((dict(dY=Y, dh_T=hT)[n] * g).sum() for n, g in ups.items())
    grads = torch.autograd.grad(y, [X, h0, Wi, Wh] + b)
    for n, g in zip("dX dh_0 dW_ih dW_hh db_ih db_hh".split(), grads):
        if bias or not n.startswith("db"):
            c.out(n, g, Tol(2e-5 * math.sqrt(T), 3e-6 * math.sqrt(T)))


def gru_cell(a, u, h):
    H = h.shape[1]
    r, z = torch.sigmoid(a[:, :H] + u[:, :H]), torch.sigmoid(a[:, H:2 * H] + u[:, H:2 * H])
    n = torch.tanh(a[:, 2 * H:] + r * u[:, 2 * H:])
    return (1 - z) * n + z * h, r, z, n


@kernel("S10.7", S, "gru_cell_forward", "a u h", "h_next r z n")
def gru_cell_forward(c, B, H):
    "a = x W_ih^T + b_ih, u = h W_hh^T + b_hh, both [B,3H]; the fourth saved tensor u_n is the last third of u"
    a, u, h = c.x("a", B, 3 * H), c.x("u", B, 3 * H), c.x("h", B, H)
    for n, v in zip(("h_next", "r", "z", "n"), gru_cell(a, u, h)):
        c.out(n, v, CELL)


@kernel("S10.8", S, "gru_cell_backward", "dh_next r z n u_n h", "da du dh")
def gru_cell_backward(c, B, H):
    "dh is the direct part only; the product with W_hh is a separate GEMM"
    dh = c.x("dh_next", B, H)
    a, u, h = c.rnd(B, 3 * H), c.rnd(B, 3 * H), c.rnd(B, H)
    h = c.round(h).double()
    _, r, z, n = gru_cell(a, u, h)
    R, Z, N, UN = (c.put(k, v) for k, v in (("r", r), ("z", z), ("n", n), ("u_n", u[:, 2 * H:])))
    Hs = c.put("h", h)
    sb, tb = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    dn = tb(dh * (1 - Z), N)
    dz = sb(dh * (Hs - N), Z)
    dr = sb(dn * UN, R)
    c.out("da", torch.cat([dr, dz, dn], 1), CELL)
    c.out("du", torch.cat([dr, dz, dn * R], 1), CELL)
    c.out("dh", dh * Z, CELL)


# ------------------------------------------------------------------------------------------------ ConvLSTM
def convlstm_run(X, h, cc, Wx, Wh, b, P):
    k = Wx.shape[-1]
    pi, pf, po = (P[0], P[1], P[2]) if P is not None else (0.0, 0.0, 0.0)
    ys, gs, cs = [], [], [cc]
    for t in range(X.shape[0]):
        zi, zf, zg, zo = (F.conv2d(X[t], Wx, b, padding=(k - 1) // 2) + F.conv2d(h, Wh, None, padding=(k - 1) // 2)).chunk(4, 1)
        i, f, g = torch.sigmoid(zi + pi * cc), torch.sigmoid(zf + pf * cc), torch.tanh(zg)
        cc = f * cc + i * g
        o = torch.sigmoid(zo + po * cc)
        h = o * torch.tanh(cc)
        ys.append(h)
        gs.append(torch.cat([i, f, g, o], 1))
        cs.append(cc)
    return torch.stack(ys), h, cc, torch.stack(gs), torch.stack(cs)


@kernel("S10.9", S, "convlstm_forward", "X h_0 c_0 Wx Wh b? P?", "Y h_T c_T gates c")
def convlstm_forward(c, T, N, ci, hc, hw, k, bias=True, peep=None):
    "gates (activated, i,f,g,o) [T,N,4Hc,H,W], c [T+1,N,Hc,H,W]; P [3,Hc,H,W] or [3,Hc,1,1] in the order i,f,o"
    X, h, cc = c.x("X", T, N, ci, *hw), c.x("h_0", N, hc, *hw), c.x("c_0", N, hc, *hw)
    Wx, Wh = c.x("Wx", 4 * hc, ci, k, k, scale=0.4), c.x("Wh", 4 * hc, hc, k, k, scale=0.3)
    b = c.x("b", 4 * hc, scale=0.3) if bias else None
    P = c.x("P", 3, hc, *(hw if peep == "full" else (1, 1)), scale=0.3) if peep else None
    if k % 2 == 0:
        raise ValueError("even kernel")
    for n, v in zip(("Y", "h_T", "c_T", "gates", "c"), convlstm_run(X, h, cc, Wx, Wh, b, P)):
        c.out(n, v, Tol(2e-5, 4e-6))


@kernel("S10.10", S, "convlstm_backward", "dY? dh_T? dc_T? X Wx Wh P? gates c h", "dX dh_0 dc_0 dWx dWh db dP?")
def convlstm_backward(c, T, N, ci, hc, hw, k, peep=None, given=("dY", "dh_T", "dc_T")):
    "gates, c [T+1], h [T+1] as saved by the forward (entry 0 = initial state)"
    ups = {n: c.x(n, *((T,) if n == "dY" else ()), N, hc, *hw) for n in ("dY", "dh_T", "dc_T") if n in given}
    X = c.var("X", T, N, ci, *hw)
    Wx, Wh = c.var("Wx", 4 * hc, ci, k, k, scale=0.4), c.var("Wh", 4 * hc, hc, k, k, scale=0.3)
    P = c.var("P", 3, hc, *(hw if peep == "full" else (1, 1)), scale=0.3) if peep else None
    b = c.round(c.rnd(4 * hc) * 0.3).to(c.compute).requires_grad_()
    h0, c0 = (c.round(c.rnd(N, hc, *hw)).to(c.compute).requires_grad_() for _ in range(2))
    d = lambda t: None if t is None else t.detach().double()
    Y, _, _, G, C = convlstm_run(*map(d, (X, h0, c0, Wx, Wh, b, P)))
    c.put("gates", G)
    c.put("c", C)
    c.put("h", torch.cat([d(h0)[None], Y]))
    Y, hT, cT, _, _ = convlstm_run(X, h0, c0, Wx, Wh, b, P)
    y = sum((dict(dY=Y, dh_T=hT, dc_T=cT)[n] * g).sum() for n, g in ups.items())
    xs = [X, h0, c0, Wx, Wh, b] + ([P] if peep else [])
    for n, g in zip("dX dh_0 dc_0 dWx dWh db dP".split(), torch.autograd.grad(y, xs)):
        c.out(n, g, Tol(3e-5, 1e-5))
