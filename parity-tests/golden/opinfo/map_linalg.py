"""Products of matrices and vectors."""
import torch
from core import Tol, matmul_tol, summed, ulp
from harness import Skip, maps
from conv import clean

SUITE = "linalg"


def gemm(s, a, b, y, kernel="gemm", c=None, alpha=1.0, beta=0.0):
    "y = alpha*a b + beta*c and, for the plain product of two matrices, its gradients"
    k = a.shape[-1]
    mag = abs(alpha) * (clean(a) @ clean(b)) + (0 if c is None else abs(beta) * clean(c))
    s.emit(kernel, {"A": a, "B": b, "C": c}, {"alpha": alpha, "beta": beta}, {"C": (y, matmul_tol(k, mag))})
    if kernel == "gemm" and c is None and y.numel() and k:
        dy = s.grad_like(y)
        da, db = s.grad(dy, a, b, y=a @ b)
        s.emit("gemm_backward", {"dC": dy, "A": a, "B": b}, {},
               {"dA": (da, matmul_tol(b.shape[1], clean(dy) @ clean(b).mT)), "dB": (db, matmul_tol(a.shape[0], clean(a).mT @ clean(dy)))})


def gemv(s, a, x, y, c=None, alpha=1.0, beta=0.0):
    mag = abs(alpha) * (clean(a) @ clean(x)) + (0 if c is None else abs(beta) * clean(c))
    s.emit("gemv", {"A": a, "x": x, "y": c}, {"alpha": alpha, "beta": beta}, {"y": (y, matmul_tol(a.shape[1], mag))})


@maps(SUITE, "mm matmul bmm mv __rmatmul__")
def matmul(s):
    b, = s.bind("other")
    a, b = (b, s.x) if s.op.name == "__rmatmul__" else (s.x, b)
    ranks = (a.dim(), b.dim())
    if ranks == (2, 2):
        return gemm(s, a, b, s.y)
    if ranks == (2, 1):
        return gemv(s, a, b, s.y)
    if ranks == (1, 1):
        return s.emit("dot", {"a": a, "b": b}, {}, {"y": (s.y, matmul_tol(a.numel(), (clean(a) * clean(b)).sum()))})
    if ranks == (3, 3) and a.shape[0] == b.shape[0]:
        return gemm(s, a, b, s.y, "gemm_strided_batched")
    raise Skip("a product whose batch axes broadcast")


@maps(SUITE, "addmm addmm.decomposed baddbmm addmv")
def addmm(s):
    a, b, beta, alpha = s.bind("mat1 mat2 beta alpha", beta=1.0, alpha=1.0)
    if s.x.shape != s.y.shape:
        raise Skip("an addend that broadcasts")
    if s.op.name == "addmv":
        return gemv(s, a, b, s.y, s.x, float(alpha), float(beta))
    gemm(s, a, b, s.y, "gemm_strided_batched" if a.dim() == 3 else "gemm", s.x, float(alpha), float(beta))


@maps(SUITE, "addr")
def addr(s):
    x, y, beta, alpha = s.bind("vec1 vec2 beta alpha", beta=1.0, alpha=1.0)
    if beta != 1.0 or s.x.shape != s.y.shape:
        raise Skip("an addend that broadcasts")
    mag = clean(s.x) + abs(alpha) * clean(x)[:, None] * clean(y)[None]
    s.emit("ger", {"A": s.x, "x": x, "y": y}, {"alpha": float(alpha)}, {"A": (s.y, matmul_tol(1, mag))})


@maps(SUITE, "outer")
def outer(s):
    b, = s.bind("vec2")
    s.emit("mul", {"a": s.x.reshape(-1, 1), "b": b}, {}, {"y": (s.y, ulp())})


@maps(SUITE, "nn.functional.linear")
def linear(s):
    w, bias = s.bind("weight bias")
    x, y = (s.x, s.y) if s.x.dim() > 1 else (s.x.unsqueeze(0), s.y.unsqueeze(0))
    if w.dim() != 2 or y.dim() < 2:
        raise Skip("a linear map to one number")
    k = x.shape[-1]
    t = matmul_tol(k, torch.nn.functional.linear(clean(x), clean(w), None if bias is None else clean(bias)))
    if bias is None:
        if x.dim() != 2:
            raise Skip("a product whose batch axes broadcast")
        return s.emit("gemm", {"A": x, "B": w}, {"trans_b": True}, {"C": (y, t)})
    s.emit("gemm_bias", {"A": x, "B": w, "bias": bias}, {"trans_b": True}, {"Y": (y, Tol(6e-7, 1.2 * t.atol + 1e-7))})
    if not y.numel():
        return
    dy = s.grad_like(y)
    dx, dw, db = s.grad(dy, s.x, w, bias, y=y)
    two = lambda v: v.reshape(-1, v.shape[-1])
    rows = two(dy).shape[0]
    s.emit("gemm_bias_backward", {"dY": dy, "A": x, "B": w}, {"trans_b": True},
           {"dA": (dx.reshape(x.shape), matmul_tol(w.shape[0], clean(dy) @ clean(w), 1.5)), "dB": (dw, matmul_tol(rows, two(clean(dy)).T @ two(clean(x)), 1.5)),
            "dbias": (db, summed(max(rows, w.shape[0]), two(clean(dy)).sum(0) * 1.5))})


@maps(SUITE, "einsum")
def einsum(s):
    equation = s.args[0].replace(" ", "")
    xs = list(s.x)
    if equation not in ("ij,jk->ik", "ij,jk", "aij,ajk->aik"):
        raise Skip(f"einsum {equation}")
    if equation.startswith("ij,jk"):
        return gemm(s, *xs, s.y)
    gemm(s, *xs, s.y, "gemm_strided_batched")


@maps(SUITE, "linalg.multi_dot")
def multi_dot(s):
    if len(s.x) != 2 or any(t.dim() != 2 for t in s.x):
        raise Skip("a chain of more than two matrices")
    gemm(s, *s.x, s.y)
