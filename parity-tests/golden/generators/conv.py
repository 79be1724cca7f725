"""Convolutions (section 3 and B4). Oracles: F.conv*, F.conv_transpose*, F.unfold, F.fold and autograd."""
import math
import torch
import torch.nn.functional as F
from core import EXACT, Tol, ag, kernel, matmul_tol, summed

S, B4 = "conv", "conv_extra"
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONVT = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def full(v, nd):
    return [v] * nd if isinstance(v, int) else list(v)


def clean(t):
    return torch.nan_to_num(t.detach().double(), 0, 0, 0).abs()


def conv_tol(fn, x, w, b, kk, factor=1.0):
    "bound from the same operation on magnitudes"
    mag = fn(clean(x), clean(w), None if b is None else clean(b))
    return matmul_tol(kk, mag, factor)


def winograd(nd, k, s, d, g):
    "3x3, stride 1: the implementation may use Winograd, whose bound is eight times wider"
    return 8.0 if nd == 2 and k == [3, 3] and set(s) == {1} and set(d) == {1} and g == 1 else 1.0


def _conv(nd, sec, suite, name, depthwise=False):
    def forward(c, x, co, k, s=1, p=0, d=1, g=1, bias=True, special=None, wshape=None, bn=None):
        k, s, p, d = (full(v, nd) for v in (k, s, p, d))
        g = x[1] if depthwise else g
        X = c.x("x", *x, special=special)
        W = c.x("w", *(wshape or [co, x[1] // g] + k), scale=0.5)
        b = c.x("b", bn or co) if bias else None
        fn = lambda X, W, b: CONV[nd](X, W, b, s, p, d, g)
        y = fn(X, W, b)
        if 0 in y.shape and y.shape[0] and x[1]:
            raise ValueError("empty output plane")
        c.out("y", y, conv_tol(fn, X, W, b, math.prod(k) * x[1] // g, winograd(nd, k, s, d, g)))
    kernel(sec, suite, name, "x w b?", "y", "s p d" if depthwise else "s p d g")(forward)


_conv(2, "S3.2", S, "conv2d_direct")
_conv(2, "S3.3", S, "depthwise_conv2d", True)
_conv(3, "S3.5", S, "conv3d_direct")
_conv(1, "B4.1", B4, "conv1d")
_conv(2, "B4.7", B4, "conv2d_half")


def _conv_input(nd, sec, suite, name):
    def gen(c, x, co, k, s=1, p=0, d=1, g=1, dyshape=None):
        "input_size is the full shape of dx"
        k, s, p, d = (full(v, nd) for v in (k, s, p, d))
        c.arg("input_size", list(x))
        o = [(i + 2 * pp - dd * (kk - 1) - 1) // ss + 1 for i, pp, dd, kk, ss in zip(x[2:], p, d, k, s)]
        dy = c.x("dy", *(dyshape or [x[0], co] + o))
        W = c.x("w", co, x[1] // g, *k, scale=0.5)
        X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
        fn = lambda dy, W, _=None: ag(CONV[nd](X.to(dy.dtype), W, None, s, p, d, g), [X], dy)[0]
        c.out("dx", fn(dy, W), matmul_tol(co // g * math.prod(k), ag(CONV[nd](X.double(), clean(W), None, s, p, d, g), [X], clean(dy))[0],
                                          winograd(nd, k, s, d, g)))
    kernel(sec, suite, name, "dy w", "dx", {"input_size": "required", "s": 1, "p": 0, "d": 1, "g": 1})(gen)


_conv_input(2, "S3.7", S, "conv2d_backward_input")
_conv_input(3, "S3.9", S, "conv3d_backward_input")
_conv_input(1, "B4.1", B4, "conv1d_backward_input")


def grad_w(nd, X, dy, wshape, s, p, d, g):
    W = torch.zeros(*wshape, dtype=X.dtype, requires_grad=True)
    return ag(CONV[nd](X, W, None, s, p, d, g), [W], dy)[0]


def _conv_weights(nd, sec, suite, name):
    def gen(c, x, co, k, s=1, p=0, d=1, g=1, bias=True, dyshape=None):
        k, s, p, d = (full(v, nd) for v in (k, s, p, d))
        c.arg("k", k)
        X = c.x("x", *x)
        o = [(i + 2 * pp - dd * (kk - 1) - 1) // ss + 1 for i, pp, dd, kk, ss in zip(x[2:], p, d, k, s)]
        dy = c.x("dy", *(dyshape or [x[0], co] + o))
        ws, n = [co, x[1] // g] + k, x[0] * math.prod(o)
        c.out("dw", grad_w(nd, X, dy, ws, s, p, d, g),
              matmul_tol(n, grad_w(nd, clean(X), clean(dy), ws, s, p, d, g), winograd(nd, k, s, d, g)))
        if bias:
            ax = [0] + list(range(2, nd + 2))
            c.out("db", dy.sum(ax), summed(n, clean(dy).sum(ax)))
    kernel(sec, suite, name, "x dy", "dw db?", {"k": "required", "s": 1, "p": 0, "d": 1, "g": 1})(gen)


_conv_weights(2, "S3.8", S, "conv2d_backward_weights")
_conv_weights(3, "S3.10", S, "conv3d_backward_weights")
_conv_weights(1, "B4.1", B4, "conv1d_backward_weights")


def _transpose(nd, sec, suite, name):
    def gen(c, x, co, k, s=1, p=0, op=0, d=1, g=1, bias=True):
        "w is [Ci, Co/g, k...]; op is the output padding"
        k, s, p, op, d = (full(v, nd) for v in (k, s, p, op, d))
        X = c.x("x", *x)
        W = c.x("w", x[1], co // g, *k, scale=0.5)
        b = c.x("b", co) if bias else None
        if any(o >= max(a, e) for o, a, e in zip(op, s, d)):
            raise ValueError("output padding")
        fn = lambda X, W, b: CONVT[nd](X, W, b, s, p, op, g, d)
        c.out("y", fn(X, W, b), conv_tol(fn, X, W, b, x[1] // g * math.prod(k)))
    kernel(sec, suite, name, "x w b?", "y", "s p op d g")(gen)


_transpose(2, "S3.4", S, "conv_transpose2d")
_transpose(1, "B4.2", B4, "conv_transpose1d")
_transpose(3, "B4.2", B4, "conv_transpose3d")


def _deconv(nd, suite, sec_i, name_i, sec_w, name_w):
    def tsize(x, k, s, p, op, d):
        return [(i - 1) * a - 2 * b + e * (q - 1) + o + 1 for i, q, a, b, o, e in zip(x[2:], k, s, p, op, d)]

    def gen_i(c, x, co, k, s=1, p=0, op=0, d=1, g=1):
        "dx has the shape of the forward input"
        k, s, p, op, d = (full(v, nd) for v in (k, s, p, op, d))
        dy = c.x("dy", x[0], co, *tsize(x, k, s, p, op, d))
        W = c.x("w", x[1], co // g, *k, scale=0.5)

        def fn(dy, W):
            X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
            return ag(CONVT[nd](X, W, None, s, p, op, g, d), [X], dy)[0]
        c.out("dx", fn(dy, W), matmul_tol(co // g * math.prod(k), fn(clean(dy), clean(W))))
    kernel(sec_i, suite, name_i, "dy w", "dx", "s p op d g")(gen_i)

    def gen_w(c, x, co, k, s=1, p=0, op=0, d=1, g=1, bias=True):
        k, s, p, op, d = (full(v, nd) for v in (k, s, p, op, d))
        c.arg("k", k)
        X = c.x("x", *x)
        dy = c.x("dy", x[0], co, *tsize(x, k, s, p, op, d))

        def fn(X, dy):
            W = torch.zeros(x[1], co // g, *k, dtype=X.dtype, requires_grad=True)
            return ag(CONVT[nd](X, W, None, s, p, op, g, d), [W], dy)[0]
        n = x[0] * math.prod(x[2:])
        c.out("dw", fn(X, dy), matmul_tol(n, fn(clean(X), clean(dy))))
        if bias:
            ax = [0] + list(range(2, nd + 2))
            c.out("db", dy.sum(ax), summed(dy.numel() // max(co, 1), clean(dy).sum(ax)))
    kernel(sec_w, suite, name_w, "x dy", "dw db?", {"k": "required", "s": 1, "p": 0, "op": 0, "d": 1, "g": 1})(gen_w)


_deconv(2, S, "S3.11", "deconv_backward_input", "S3.12", "deconv_backward_weights")
_deconv(1, B4, "B4.2", "conv_transpose1d_backward_input", "B4.2", "conv_transpose1d_backward_weights")
_deconv(3, B4, "B4.2", "conv_transpose3d_backward_input", "B4.2", "conv_transpose3d_backward_weights")


def _pair(name, sec, depthwise):
    def gen(c, x, co, k, s=1, p=0, d=1, g=1, bias=True):
        k, s, p, d = (full(v, 2) for v in (k, s, p, d))
        g = x[1] if depthwise else g
        o = [(i + 2 * pp - dd * (kk - 1) - 1) // ss + 1 for i, pp, dd, kk, ss in zip(x[2:], p, d, k, s)]
        dy = c.x("dy", x[0], co, *o)
        X, W = c.var("x", *x), c.var("w", co, x[1] // g, *k, scale=0.5)
        dx, dw = ag(F.conv2d(X, W, None, s, p, d, g), [X, W], dy)
        aX, aW = clean(X).requires_grad_(), clean(W).requires_grad_()
        mx, mw = ag(F.conv2d(aX, aW, None, s, p, d, g), [aX, aW], clean(dy))
        n = x[0] * math.prod(o)
        c.out("dx", dx, matmul_tol(co // g * math.prod(k), mx))
        c.out("dw", dw, matmul_tol(n, mw))
        if bias:
            c.out("db", dy.sum((0, 2, 3)), summed(n, clean(dy).sum((0, 2, 3))))
    kernel(sec, S, name, "dy x w", "dx dw db?", "s p d" if depthwise else "s p d g")(gen)


_pair("depthwise_conv2d_backward", "S3.13", True)
_pair("dilated_conv2d_backward", "S3.14", False)


@kernel("S3.1", S, "im2col", "x", "col", "k s p d")
def im2col(c, x, k, s=1, p=0, d=1, special=None):
    X = c.x("x", *x, special=special)
    c.out("col", F.unfold(X, k, d, p, s), EXACT)


@kernel("S3.6", S, "col2im", "col", "x", "output_size k s p d")
def col2im(c, n, channels, output_size, k, s=1, p=0, d=1, cols=None):
    "output_size = [H, W]"
    k, s, p, d = (full(v, 2) for v in (k, s, p, d))
    o = [(i + 2 * pp - dd * (kk - 1) - 1) // ss + 1 for i, pp, dd, kk, ss in zip(output_size, p, d, k, s)]
    col = c.x("col", n, channels * math.prod(k), cols or math.prod(o))
    fn = lambda t: F.fold(t, output_size, k, d, p, s)
    c.out("x", fn(col), summed(math.prod(k), fn(clean(col))))


# ------------------------------------------------------------------------------------------------ B4
def _causal(X, w, b, state, act):
    pad = state if state is not None else torch.zeros(X.shape[0], X.shape[1], w.shape[1] - 1, dtype=X.dtype)
    full_x = torch.cat([pad, X], 2)
    y = F.conv1d(full_x, w[:, None], b, groups=X.shape[1])
    return (F.silu(y) if act == "swish" else y), full_x[:, :, full_x.shape[2] - (w.shape[1] - 1):]


@kernel("B4.3", B4, "causal_conv1d", "x w b? state?", "y state?", "act")
def causal_conv1d(c, x, k, bias=True, state=False, act="none"):
    "w is [C, k]; state [N, C, k-1] holds the inputs before x and is replaced by the last k-1 inputs"
    X, w = c.x("x", *x), c.x("w", x[1], k)
    b = c.x("b", x[1]) if bias else None
    st = c.x("state", x[0], x[1], k - 1) if state else None
    y, new = _causal(X, w, b, st, act)
    mag, _ = _causal(clean(X), clean(w), None if b is None else clean(b), None if st is None else clean(st), "none")
    t = matmul_tol(k, mag, 2.0)
    c.out("y", y, Tol(1e-6, t.atol))
    if state:
        c.out("state", new, EXACT)


@kernel("B4.3", B4, "causal_conv1d_backward", "dy x w b?", "dx dw db?", "act")
def causal_conv1d_backward(c, x, k, bias=True, act="none"):
    "the pre-activation is recomputed from x, w, b"
    dy, X, w = c.x("dy", *x), c.var("x", *x), c.var("w", x[1], k)
    b = c.var("b", x[1]) if bias else None
    y, _ = _causal(X, w, b, None, act)
    g = ag(y, [X, w] + ([b] if bias else []), dy)
    n = x[0] * x[2]
    c.out("dx", g[0], Tol(2e-6, 2e-6))
    c.out("dw", g[1], Tol(2e-6, summed(n, clean(dy).sum((0, 2)).max() * clean(X).max()).atol if n else 1e-7))
    if bias:
        c.out("db", g[2], Tol(2e-6, summed(n, clean(dy).sum((0, 2))).atol + 1e-6))


def gelu(x, approx="none"):
    "the f32 erf form of PyTorch loses digits for negative x; below float64 the erfc form stands in for it"
    if approx == "none" and x.dtype == torch.float32:
        return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))
    return F.gelu(x, approximate=approx)


ACTS = {"none": lambda t: t, "relu": F.relu, "leaky_relu": lambda t: F.leaky_relu(t, 0.01), "gelu": gelu,
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"), "sigmoid": torch.sigmoid, "tanh": torch.tanh, "swish": F.silu,
        "hardswish": F.hardswish}


@kernel("B4.6", B4, "conv_bias_act", "x w b? residual?", "y", "s p d g act")
def conv_bias_act(c, x, co, k, s=1, p=0, d=1, g=1, bias=True, residual=False, act="relu"):
    "y = act(conv(x, w) + b + residual)"
    k, s, p, d = (full(v, 2) for v in (k, s, p, d))
    X, W = c.x("x", *x), c.x("w", co, x[1] // g, *k, scale=0.5)
    b = c.x("b", co) if bias else None
    fn = lambda X, W, b: F.conv2d(X, W, b, s, p, d, g)
    z = fn(X, W, b)
    r = c.x("residual", *z.shape) if residual else 0.0
    t = conv_tol(fn, X, W, b, x[1] // g * math.prod(k), winograd(2, k, s, d, g))
    c.out("y", ACTS[act](z + r), Tol(6e-7, 1.2 * t.atol + 1e-7 + (5e-7 if residual else 0)))
