"""Functions that the copied suites do not have, from PyTorch; gradients by autograd."""
import torch
import torch.nn.functional as F
from core import EXACT, Tol, kernel

S, SPECIAL = "functions", "special"
TOL, GRAD = Tol(1e-6, 4e-7), Tol(1e-5, 2e-6)


def fused(name, f):
    @kernel("T1.22", S, name, "a b", "y")
    def gen(c, shape):
        c.out("y", f(c.x("a", *shape) + c.x("b", *shape)), TOL)


fused("add_relu", torch.relu)
fused("add_sigmoid", torch.sigmoid)
fused("add_gelu", F.gelu)


def incomplete_gamma(name, f):
    "operands that broadcast; a gradient by the second alone"
    @kernel("T2.20", SPECIAL, name, "a b", "y")
    def forward(c, a, b, large=1.0, ends=()):
        x = [c.uni(*shape, lo=0.05, hi=top) * large for shape, top in ((a, 12.0), (b, 15.0))]
        for i, pair in enumerate(ends):
            x[0][i], x[1][i] = pair
        c.out("y", f(c.put("a", x[0]), c.put("b", x[1])), Tol(1e-5, 2e-6))

    @kernel("T2.20", SPECIAL, name + "_backward", "dy a b", "db")
    def backward(c, a, b, large=1.0):
        dy = c.x("dy", *torch.broadcast_shapes(a, b))
        s, x = c.put("a", c.uni(*a, lo=0.05, hi=12.0) * large), c.putv("b", c.uni(*b, lo=0.05, hi=15.0) * large)
        f(s, x).backward(dy.to(s.dtype))
        c.out("db", x.grad, Tol(2e-5, 5e-6))


incomplete_gamma("igamma", torch.special.gammainc)
incomplete_gamma("igammac", torch.special.gammaincc)


@kernel("T2.20", SPECIAL, "airy_ai", "x", "y")
def airy_ai(c, shape, lo=-20.0, hi=9.0, ends=()):
    x = c.uni(*shape, lo=lo, hi=hi)
    for i, end in enumerate(ends):
        x[i] = end
    c.out("y", torch.special.airy_ai(c.put("x", x)), Tol(2e-5, 1e-5))


def reduction(name, row, f, tol, extra=None):
    args = {"axes": "required", "keepdim": False, **(extra or {})}

    @kernel(row, S, name, "x", "y", args)
    def forward(c, shape, axes, keepdim=False, **a):
        c.out("y", f(c.x("x", *shape), axes, keepdim, {**(extra or {}), **a}), tol)

    @kernel(row, S, name + "_backward", "dy x", "dx", args)
    def backward(c, shape, axes, keepdim=False, **a):
        g = lambda v: f(v, axes, keepdim, {**(extra or {}), **a})
        probe = g(torch.zeros(shape, dtype=torch.float64) + torch.arange(torch.Size(shape).numel()).reshape(shape))
        dy = c.x("dy", *probe.shape)
        x = c.x("x", *shape)
        v = x.clone().requires_grad_()
        g(v).backward(dy.to(v.dtype))
        c.out("dx", v.grad, GRAD)


reduction("max_abs", "T3.12", lambda x, a, k, _: x.abs().amax(a, k), EXACT)
reduction("min_abs", "T3.12", lambda x, a, k, _: x.abs().amin(a, k), EXACT)
reduction("log_var", "T3.13", lambda x, a, k, p: torch.log(torch.var(x, a, correction=p["correction"], keepdim=k) + p["eps"]), Tol(1e-5, 2e-6),
          {"correction": 1, "eps": 1e-5})


@kernel("B2.14", S, "pdist_backward", "dy x y", "dx", {"p": 2.0})
def pdist_backward(c, n, k, p=2.0):
    dy, x = c.x("dy", n * (n - 1) // 2), c.x("x", n, k)
    c.put("y", torch.pdist(x, p))
    v = x.clone().requires_grad_()
    torch.pdist(v, p).backward(dy.to(v.dtype))
    c.out("dx", v.grad, GRAD)


@kernel("B2.14", S, "pairwise_distance_backward", "dy a b", "da db", {"p": 2.0, "eps": 1e-6, "keepdim": False})
def pairwise_backward(c, shape, p=2.0, keepdim=False):
    dy = c.x("dy", *shape[:-1], *([1] if keepdim else []))
    a, b = (c.x(n, *shape).clone().requires_grad_() for n in "ab")
    F.pairwise_distance(a, b, p, 1e-6, keepdim).backward(dy.to(a.dtype))
    c.out("da", a.grad, GRAD)
    c.out("db", b.grad, GRAD)


def pruned(x):
    "the two largest magnitudes of every four, the earlier one of equal ones"
    four = x.reshape(-1, 4)
    order = torch.sort(four.abs(), dim=1, descending=True, stable=True).indices[:, :2].sort(1).values
    return four, order


@kernel("G10", S, "sparse_2to4_compress", "x", "values index:u8")
def compress(c, m, k):
    x = c.x("x", m, k)
    four, order = pruned(x)
    c.out("values", four.gather(1, order).reshape(m, k // 2), EXACT)
    c.out("index", (order[:, 0] + 4 * order[:, 1]).reshape(m, k // 4).to(torch.uint8), EXACT)


@kernel("G10", S, "sparse_2to4_prune", "x", "y")
def prune(c, m, k):
    four, order = pruned(c.x("x", m, k))
    c.out("y", torch.zeros_like(four).scatter(1, order, four.gather(1, order)).reshape(m, k), EXACT)


@kernel("G10", S, "gemm_2to4", "values index:u8 b", "y")
def product(c, m, n, k):
    raw = c.rnd(m, k)
    four, order = pruned(raw)
    values = c.put("values", four.gather(1, order).reshape(m, k // 2))
    c.idx("index", (order[:, 0] + 4 * order[:, 1]).reshape(m, k // 4).to(torch.uint8).numpy(), "u8")
    dense = torch.zeros(four.shape, dtype=values.dtype).scatter(1, order, values.reshape(-1, 2)).reshape(m, k)
    b = c.x("b", k, n)
    c.out("y", dense @ b, Tol(1e-6, 1e-5))


def groups(name, f, tol, extra=None):
    "reductions of src [L, N, F] over its rows by index into R groups"
    args = {"R": "required", **(extra or {})}

    @kernel("B12.2", S, name, "src idx:idx", "y", args)
    def forward(c, rows, n, width, R):
        src = c.x("src", rows, n, width)
        idx = c.idx("idx", c.integers(0, R, (n,)).numpy())
        c.out("y", f(src, idx.long(), R), tol)

    @kernel("B12.2", S, name + "_backward", "dy src idx:idx", "dsrc", extra or {})
    def backward(c, rows, n, width, R):
        dy = c.x("dy", rows, R, width)
        src = c.x("src", rows, n, width).clone().requires_grad_()
        idx = c.idx("idx", c.integers(0, R, (n,)).numpy())
        f(src, idx.long(), R).backward(dy.to(src.dtype))
        c.out("dsrc", src.grad, GRAD)


def each_group(f):
    return lambda src, idx, R: torch.stack([f(src[:, idx == r]) for r in range(R)], 1)


groups("scatter_mul", each_group(lambda v: v.prod(1)), Tol(2e-6, 1e-6))
