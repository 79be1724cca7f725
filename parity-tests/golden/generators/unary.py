"""Functions of one tensor."""
import numpy as np
import torch
from core import EXACT, TORCH, TRANS, Tol, ULP32, ag, kernel, splice, ulp
from binary import INTS, draw_domain, ints

T2 = "unary"


U = lambda *a: a
# name -> (row, function, domain, tolerance, gradient?)
UNARY = {
    "neg": U("T2.1", torch.neg, "any", EXACT, True), "abs": U("T2.2", torch.abs, "any", EXACT, True),
    "sign": U("T2.3", torch.sign, "any", EXACT, True),
    "exp": U("T2.4", torch.exp, "any", TRANS, True), "exp2": U("T2.4", torch.exp2, "any", TRANS, True),
    "exp10": U("T2.4", lambda x: torch.pow(torch.tensor(10.0, dtype=x.dtype), x), "any", Tol(8 * ULP32, 1e-7), True),
    "expm1": U("T2.5", torch.expm1, "any", TRANS, True), "log1p": U("T2.5", torch.log1p, (-0.7, 5), TRANS, True),
    "log": U("T2.6", torch.log, "positive", TRANS, True), "log2": U("T2.6", torch.log2, "positive", TRANS, True),
    "log10": U("T2.6", torch.log10, "positive", TRANS, True),
    "sqrt": U("T2.7", torch.sqrt, "positive", ulp(), True), "rsqrt": U("T2.7", torch.rsqrt, "positive", TRANS, True),
    "square": U("T2.8", torch.square, "any", ulp(), True), "reciprocal": U("T2.8", torch.reciprocal, "nonzero", ulp(), True),
    "sin": U("T2.9", torch.sin, "any", TRANS, True), "cos": U("T2.9", torch.cos, "any", TRANS, True),
    "tan": U("T2.9", torch.tan, (-1.4, 1.4), Tol(6 * ULP32, 1e-7), True),
    "asin": U("T2.10", torch.asin, (-0.95, 0.95), TRANS, True), "acos": U("T2.10", torch.acos, (-0.95, 0.95), TRANS, True),
    "atan": U("T2.10", torch.atan, "any", TRANS, True),
    "sinh": U("T2.11", torch.sinh, "any", TRANS, True), "cosh": U("T2.11", torch.cosh, "any", TRANS, True),
    "asinh": U("T2.12", torch.asinh, "any", TRANS, True), "acosh": U("T2.12", torch.acosh, (1.05, 6), TRANS, True),
    "atanh": U("T2.12", torch.atanh, (-0.95, 0.95), TRANS, True),
    "erf": U("T2.13", torch.erf, "any", TRANS, True), "erfc": U("T2.13", torch.erfc, "any", Tol(8 * ULP32, 1e-7), True),
    "erfinv": U("T2.13", torch.erfinv, (-0.95, 0.95), Tol(2e-6, 2e-7), True),
    "floor": U("T2.14", torch.floor, "any", EXACT, False), "ceil": U("T2.14", torch.ceil, "any", EXACT, False),
    "trunc": U("T2.14", torch.trunc, "any", EXACT, False), "frac": U("T2.14", torch.frac, "any", EXACT, True),
    "lgamma": U("T2.20", torch.lgamma, (0.3, 9), Tol(2e-6, 2e-6), True), "digamma": U("T2.20", torch.digamma, (0.3, 9), Tol(4e-6, 2e-6), True),
    "i0": U("T2.20", torch.special.i0, (-5, 5), Tol(2e-6, 2e-7), True), "i0e": U("T2.20", torch.special.i0e, (-9, 9), Tol(2e-6, 2e-7), True),
    "i1": U("T2.20", torch.special.i1, (-5, 5), Tol(2e-6, 4e-7), True), "i1e": U("T2.20", torch.special.i1e, (-9, 9), Tol(2e-6, 4e-7), True),
}


def _unary(name, row, fn, dom, tol, grad):
    def forward(c, shape, special=None, scale=1.0, lo=None, hi=None, strict=False):
        v = c.uni(*shape, lo=lo, hi=hi) if lo is not None else draw_domain(c, shape, dom) * scale
        if name in ("exp", "sinh", "cosh", "sin", "cos") and lo is None:
            v = v * 2
        x = c.put("x", splice(v, special))
        c.out("y", fn(x), Tol(8 * ULP32, 1e-44) if strict else tol)
    kernel(row, T2, name, "x", "y", {})(forward)

    def backward(c, shape, special=None):
        dy = c.x("dy", *shape)
        x = c.putv("x", splice(c.away(draw_domain(c, shape, dom)), special))
        c.out("dx", ag(fn(x), [x], dy)[0], EXACT if name in ("neg", "abs", "sign", "frac") else Tol(6e-6 if row == "T2.20" else 2e-6, 1e-30, 1e-6))
    if grad:
        kernel(row, T2, name + "_backward", "dy x", "dx", {})(backward)


for _n, _v in UNARY.items():
    _unary(_n, *_v)


@kernel("T2.7", T2, "cbrt", "x", "y")
def cbrt(c, shape, special=None):
    x = c.x("x", *shape, scale=3, special=special)
    c.out("y", torch.sign(x) * x.abs() ** (1 / 3) if c.compute != torch.float64 else torch.from_numpy(np.cbrt(x.numpy())), Tol(6 * ULP32, 1e-7))


@kernel("T2.7", T2, "cbrt_backward", "dy x", "dx")
def cbrt_backward(c, shape):
    dy, x = c.x("dy", *shape), c.put("x", draw_domain(c, shape, "nonzero"))
    c.out("dx", dy / (3 * x.abs() ** (2 / 3)), Tol(2e-6, 1e-7))


@kernel("T2.9", T2, "sincos", "x", "s co")
def sincos(c, shape, scale=3.0):
    "outputs s = sin x and co = cos x"
    x = c.x("x", *shape, scale=scale)
    c.out("s", torch.sin(x), TRANS)
    c.out("co", torch.cos(x), TRANS)


@kernel("T2.14", T2, "round", "x", "y", {"decimals": 0})
def round_(c, shape, decimals=0, special=None, scale=3.0):
    "half to even"
    x = c.x("x", *shape, scale=scale, special=special)
    c.out("y", torch.round(x, decimals=decimals), EXACT if decimals == 0 else Tol(3 * ULP32, 1e-30))


def _test(name, fn):
    def gen(c, shape, special=None):
        c.out("y", fn(c.x("x", *shape, special=special)), kind="u8")
    kernel("T2.15", T2, name, "x", "y:u8", {})(gen)


for _n in ("isnan", "isinf", "isfinite"):
    _test(_n, getattr(torch, _n))


@kernel("T2.16", T2, "nan_to_num", "x", "y", {"nan": 0.0, "posinf": None, "neginf": None})
def nan_to_num(c, shape, nan=0.0, posinf=None, neginf=None, special=None):
    "posinf, neginf null: largest finite value of the storage type and its negative"
    x = c.x("x", *shape, special=special)
    big = torch.finfo(TORCH[c.dtype]).max
    c.out("y", torch.nan_to_num(x, nan, big if posinf is None else posinf, -big if neginf is None else neginf), EXACT)


@kernel("T2.16", T2, "nan_to_num_backward", "dy x", "dx")
def nan_to_num_backward(c, shape, special=None):
    dy, x = c.x("dy", *shape), c.var("x", *shape, special=special)
    c.out("dx", ag(torch.nan_to_num(x), [x], dy)[0], EXACT)


@kernel("T2.17", T2, "logical_not", "x:u8", "y:u8")
def logical_not(c, shape):
    c.out("y", ~c.mask("x", c.uni(*shape) < 0.5), kind="u8")


@kernel("T2.17", T2, "bitwise_not", "x", "y")
def bitwise_not(c, shape):
    x = c.raw("x", ints(c, shape, -2 ** 31 + 1, 2 ** 31 - 1))
    c.out("y", torch.bitwise_not(x), kind=c.dtype)


def _scalar(name, fn):
    def forward(case, shape, special=None, dom="any", **a):
        x = case.put("x", splice(draw_domain(case, shape, dom), special))
        case.out("y", fn(x, a["c"]), ulp() if name != "pow_scalar" else Tol(6 * ULP32, 1e-7))
    kernel("T2.18", T2, name, "x", "y", {"c": "required"})(forward)

    def backward(case, shape, dom="any", **a):
        dy, x = case.x("dy", *shape), case.putv("x", draw_domain(case, shape, dom))
        case.out("dx", ag(fn(x, a["c"]), [x], dy)[0], Tol(2e-6, 1e-30, 5e-7))
    kernel("T2.18", T2, name + "_backward", "dy x", "dx", {"c": "required"})(backward)


_scalar("scale", lambda x, v: v * x)
_scalar("add_scalar", lambda x, v: x + v)
_scalar("rsub_scalar", lambda x, v: v - x)
_scalar("pow_scalar", lambda x, v: torch.pow(x, v))

LIMITS = {"i32": (-2 ** 31, 2 ** 31 - 1), "i64": (-2 ** 63, 2 ** 63 - 1), "u8": (0, 255)}


@kernel("T2.19", T2, "cast", "x", "y", {"to": "required"})
def cast(c, shape, to, special=None, scale=3.0):
    "float to integer truncates and saturates, NaN gives 0; float results are rounded to nearest even (expected value = the rounded one)"
    if c.dtype in INTS:
        x = c.raw("x", ints(c, shape, -40000, 40000))
        xv = x
    else:
        xv = c.x("x", *shape, scale=scale, special=special).double()
    if to in LIMITS:
        if c.dtype in INTS:
            lo, hi = LIMITS[to]
            y = xv.to(torch.int64).clamp(lo, hi) if to != "u8" else xv.to(torch.int64) % 256
        else:
            v = np.trunc(np.nan_to_num(xv.numpy(), nan=0.0, posinf=1e300, neginf=-1e300))
            lo, hi = LIMITS[to]
            y = torch.tensor([lo if q <= lo else hi if q >= hi else int(q) for q in v.reshape(-1)], dtype=torch.int64).reshape(tuple(shape))
        c.out("y", y, kind=to)
    else:
        c.out("y", xv.to(TORCH[to]).double(), EXACT)


@kernel("T2.20", T2, "polygamma", "x", "y", {"n": "required"})
def polygamma(c, shape, n):
    c.out("y", torch.polygamma(n, c.put("x", c.uni(*shape, lo=0.4, hi=6))), Tol(1e-5, 1e-6))


@kernel("T2.20", T2, "zeta", "x q", "y")
def zeta(c, shape):
    c.out("y", torch.special.zeta(c.put("x", c.uni(*shape, lo=1.5, hi=6)), c.put("q", c.uni(*shape, lo=0.5, hi=4))), Tol(1e-5, 1e-6))
