"""Functions of two and three tensors, casts."""
import math
import numpy as np
import torch
from core import EXACT, TORCH, TRANS, Tol, ULP32, ag, kernel, splice, summed, ulp
from conv import clean

T1 = "binary"


INTS = ("i32", "i64", "u8")


def top(*ts):
    return max([float(clean(t).max()) if t.numel() else 0.0 for t in ts] + [0.0])


def draw_domain(c, shape, dom):
    "values inside the domain of a function: any, nonzero, positive, (lo, hi)"
    if dom == "any":
        return c.rnd(*shape)
    if dom == "nonzero":
        v = c.rnd(*shape)
        return torch.where(v >= 0, v + 0.3, v - 0.3)
    if dom == "positive":
        return c.uni(*shape, lo=0.2, hi=3)
    return c.uni(*shape, lo=dom[0], hi=dom[1])


def close4(a, b):
    return TRANS


# name -> (row, function, domain a, domain b, tolerance(a, b), has gradient)
BINARY = {
    "sub": ("T1.2", torch.sub, "any", "any", lambda a, b: ulp(), True),
    "mul": ("T1.3", torch.mul, "any", "any", lambda a, b: ulp(), True),
    "pow": ("T1.5", torch.pow, "positive", "any", lambda a, b: Tol(8 * ULP32, 1e-7), True),
    "maximum": ("T1.6", torch.maximum, "any", "any", lambda a, b: EXACT, True),
    "minimum": ("T1.7", torch.minimum, "any", "any", lambda a, b: EXACT, True),
    "fmax": ("T1.8", torch.fmax, "any", "any", lambda a, b: EXACT, True),
    "fmin": ("T1.8", torch.fmin, "any", "any", lambda a, b: EXACT, True),
    "remainder": ("T1.9", torch.remainder, "any", "nonzero", lambda a, b: Tol(ULP32, ULP32 * (top(a) + top(b))), True),
    "fmod": ("T1.10", torch.fmod, "any", "nonzero", lambda a, b: EXACT, True),
    "atan2": ("T1.11", torch.atan2, "any", "any", close4, True),
    "hypot": ("T1.12", torch.hypot, "any", "any", close4, True),
    "copysign": ("T1.13", torch.copysign, "any", "any", lambda a, b: EXACT, True),
    "logaddexp": ("T1.14", torch.logaddexp, "any", "any", lambda a, b: Tol(4 * ULP32, 2e-7), True),
    "logaddexp2": ("T1.14", torch.logaddexp2, "any", "any", lambda a, b: Tol(4 * ULP32, 2e-7), True),
    "xlogy": ("T1.15", torch.special.xlogy, "any", "positive", lambda a, b: Tol(6 * ULP32, 1e-7), True),
    "xlog1py": ("T1.15", torch.special.xlog1py, "any", "positive", lambda a, b: Tol(6 * ULP32, 1e-7), True),
}
COMPARE = {n: getattr(torch, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}
LOGIC = {"logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}
BITS = {"bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
        "bitwise_shl": torch.bitwise_left_shift, "bitwise_shr": torch.bitwise_right_shift}


def mixed(c, a, b, da, db, pairs, gap=None):
    "the two operands, with explicit (a, b) pairs spliced in at equal positions when shapes agree"
    va, vb = draw_domain(c, a, da), draw_domain(c, b, db)
    if gap and a == b:
        vb = torch.where((va - vb).abs() < gap, vb + 2 * gap, vb)
    if pairs:
        va, vb = splice(va, [p[0] for p in pairs]), splice(vb, [p[1] for p in pairs])
    return va, vb


def ints(c, shape, lo=-50, hi=50):
    info = {"u8": (0, 200), "i32": (lo, hi), "i64": (lo, hi)}[c.dtype]
    return c.integers(info[0], info[1], shape).to(TORCH[c.dtype])


def _binary(name, row, fn, da, db, tol, grad):
    def forward(c, a, b, pairs=None):
        va, vb = mixed(c, tuple(a), tuple(b), da, db, pairs)
        A, B = c.put("a", va), c.put("b", vb)
        y = fn(A, B)
        c.out("y", y, tol(A, B))
    kernel(row, T1, name, "a b", "y", {})(forward)
    if grad:
        def backward(c, a, b, pairs=None):
            "da, db have the operands' shapes (broadcast axes summed)"
            shape = torch.broadcast_shapes(tuple(a), tuple(b))
            dy = c.x("dy", *shape)
            va, vb = mixed(c, tuple(a), tuple(b), da, db, pairs, 2e-3)
            A, B = c.putv("a", va), c.putv("b", vb)
            for n, g, X in zip(("da", "db"), ag(fn(A, B), [A, B], dy), (A, B)):
                k = max(1, dy.numel() // max(1, X.numel()))
                if name == "hypot":                       # the specification gives 0 where PyTorch has 0/0
                    g = torch.nan_to_num(g)
                c.out(n, g, grad_tol(g, dy, k))
        kernel(row, T1, name + "_backward", "dy a b", "da db", {})(backward)


def grad_tol(g, dy, k):
    "element-wise factor times dy, summed over k broadcast copies"
    return Tol(2e-6, 1e-30, 1e-6 if k == 1 else (8 + math.log2(k)) * 6e-8 * 4 + 1e-6)


for _n, _v in BINARY.items():
    _binary(_n, *_v)


@kernel("T1.1", T1, "add", "a b", "y", {"alpha": 1})
def add(c, a, b, alpha=1, pairs=None):
    "a + alpha*b; integer dtypes allowed"
    if c.dtype in INTS:
        A, B = c.raw("a", ints(c, a)), c.raw("b", ints(c, b))
        return c.out("y", torch.add(A, B, alpha=alpha), kind=c.dtype)
    va, vb = mixed(c, tuple(a), tuple(b), "any", "any", pairs)
    A, B = c.put("a", va), c.put("b", vb)
    c.out("y", torch.add(A, B, alpha=alpha), ulp() if alpha == 1 else Tol(2 * ULP32, ULP32 * abs(alpha) * top(B)))


@kernel("T1.1", T1, "add_backward", "dy", "da db", {"alpha": 1, "a_shape": "required", "b_shape": "required"})
def add_backward(c, a, b, alpha=1):
    c.arg("a_shape", list(a))
    c.arg("b_shape", list(b))
    dy = c.x("dy", *torch.broadcast_shapes(tuple(a), tuple(b)))
    A, B = torch.zeros(*a, dtype=dy.dtype, requires_grad=True), torch.zeros(*b, dtype=dy.dtype, requires_grad=True)
    for n, g, X in zip(("da", "db"), ag(torch.add(A, B, alpha=alpha), [A, B], dy), (A, B)):
        k = max(1, dy.numel() // max(1, X.numel()))
        c.out(n, g, ulp() if k == 1 else summed(k, abs(alpha) * top(dy) * k))


@kernel("T1.4", T1, "div", "a b", "y", {"mode": "true"})
def div(c, a, b, mode="true", pairs=None, zero=False):
    "mode true, floor or trunc (integers: floor or trunc; division by zero is an error of kind index_out_of_range)"
    m = None if mode == "true" else mode
    if c.dtype in INTS:
        A, Bv = c.raw("a", ints(c, a)), ints(c, b)
        Bv = torch.where(Bv == 0, torch.ones_like(Bv) * 3, Bv)
        if zero:
            Bv.reshape(-1)[0] = 0
        B = c.raw("b", Bv)
        return c.out("y", torch.div(A, B, rounding_mode=m), kind=c.dtype)
    va, vb = mixed(c, tuple(a), tuple(b), "any", "nonzero", pairs)
    A, B = c.put("a", va), c.put("b", vb)
    y = torch.div(A, B, rounding_mode=m)
    c.out("y", y, ulp() if m is None else EXACT)


@kernel("T1.4", T1, "div_backward", "dy a b", "da db")
def div_backward(c, a, b):
    dy = c.x("dy", *torch.broadcast_shapes(tuple(a), tuple(b)))
    A, B = c.putv("a", draw_domain(c, a, "any")), c.putv("b", draw_domain(c, b, "nonzero"))
    for n, g, X in zip(("da", "db"), ag(A / B, [A, B], dy), (A, B)):
        c.out(n, g, grad_tol(g, dy, max(1, dy.numel() // max(1, X.numel()))))


def _compare(name, fn):
    def gen(c, a, b, pairs=None):
        if c.dtype in INTS:
            A, B = c.raw("a", ints(c, a, -4, 4)), c.raw("b", ints(c, b, -4, 4))
        else:
            A, B = (c.put(n, splice((c.rnd(*s) * 2).round() / 2, p)) for n, s, p in
                    (("a", a, pairs and [q[0] for q in pairs]), ("b", b, pairs and [q[1] for q in pairs])))
        c.out("y", fn(A, B), kind="u8")
    kernel("T1.16", T1, name, "a b", "y:u8", {})(gen)


for _n, _f in COMPARE.items():
    _compare(_n, _f)


def _logic(name, fn):
    def gen(c, a, b):
        "u8 masks"
        A, B = c.mask("a", c.uni(*a) < 0.5), c.mask("b", c.uni(*b) < 0.5)
        c.out("y", fn(A, B), kind="u8")
    kernel("T1.17", T1, name, "a:u8 b:u8", "y:u8", {})(gen)


for _n, _f in LOGIC.items():
    _logic(_n, _f)


def _bits(name, fn):
    def gen(c, a, b):
        "integer dtypes; left shift by the width or more gives 0, right shift is arithmetic for signed types"
        width = {"u8": 8, "i32": 32, "i64": 64}[c.dtype] + 9
        A = c.raw("a", ints(c, a, -2 ** 31 + 1, 2 ** 31 - 1))
        if "sh" in name:
            B = c.integers(0, width, b).to(TORCH[c.dtype])
        else:
            B = ints(c, b, -2 ** 31 + 1, 2 ** 31 - 1)
        c.out("y", fn(A, c.raw("b", B)), kind=c.dtype)
    kernel("T1.17", T1, name, "a b", "y", {})(gen)


for _n, _f in BITS.items():
    _bits(_n, _f)


@kernel("T1.18", T1, "lerp", "a b t?", "y", {"t": None})
def lerp(c, a, b, t=None, tshape=None):
    "t scalar (argument) or tensor (input)"
    A, B = c.x("a", *a), c.x("b", *b)
    w = c.put("t", c.uni(*tshape)) if tshape is not None else t
    c.out("y", torch.lerp(A, B, w), Tol(2 * ULP32, 2 * ULP32 * (top(A) + top(B))) if t not in (0, 1) else EXACT)


@kernel("T1.18", T1, "lerp_backward", "dy a b t?", "da db dt?", {"t": None})
def lerp_backward(c, shape, t=None):
    dy, A, B = c.x("dy", *shape), c.var("a", *shape), c.var("b", *shape)
    w = c.putv("t", c.uni(*shape)) if t is None else t
    g = ag(torch.lerp(A, B, w), [A, B] + ([w] if t is None else []), dy)
    for n, v in zip(("da", "db", "dt"), g):
        c.out(n, v, grad_tol(v, dy, 1))


@kernel("T1.19", T1, "add_scaled", "a b", "y", "ca cb")
def add_scaled(c, a, b, ca=1.0, cb=1.0):
    A, B = c.x("a", *a), c.x("b", *b)
    c.out("y", ca * A + cb * B, Tol(ULP32, ULP32 * (abs(ca) * top(A) + abs(cb) * top(B))))


@kernel("T1.20", T1, "fma", "a b c", "y")
def fma(c, a, b, cs, cancel=False):
    "a*b + c with a single rounding"
    va, vb = c.rnd(*a), c.rnd(*b)
    A, B = c.put("a", va), c.put("b", vb)
    vc = c.rnd(*cs)
    if cancel:                                            # c close to -a*b: only a fused product keeps the low bits
        vc = -(c.round(va).double() * c.round(vb).double())
        c.notorch = True
    C = c.put("c", vc)
    c.out("y", A * B + C, Tol(ULP32, 1e-30) if cancel else Tol(ULP32, ULP32 * (top(A) * top(B) + top(C))))


def _addc(name, fn):
    def forward(c, a, b, cs, v=1.0):
        "a + v*b*c, a + v*b/c"
        A, B, C = c.x("a", *a), c.x("b", *b), c.put("c", draw_domain(c, cs, "nonzero"))
        c.out("y", fn(A, B, C, value=v), Tol(2 * ULP32, 2 * ULP32 * (top(A) + abs(v) * top(B) * (top(C) if name == "addcmul" else 3.4))))
    kernel("T1.20", T1, name, "a b c", "y", {"v": 1.0})(forward)

    def backward(c, shape, v=1.0):
        dy, A, B, C = c.x("dy", *shape), c.var("a", *shape), c.var("b", *shape), c.putv("c", draw_domain(c, shape, "nonzero"))
        for n, g in zip(("da", "db", "dc"), ag(fn(A, B, C, value=v), [A, B, C], dy)):
            c.out(n, g, grad_tol(g, dy, 1))
    kernel("T1.20", T1, name + "_backward", "dy a b c", "da db dc", {"v": 1.0})(backward)


_addc("addcmul", torch.addcmul)
_addc("addcdiv", torch.addcdiv)


@kernel("T1.21", T1, "nextafter", "a b", "y")
def nextafter(c, a, b, pairs=None):
    va, vb = mixed(c, tuple(a), tuple(b), "any", "any", pairs)
    A, B = c.put("a", va), c.put("b", vb)
    dt = np.float32
    c.out("y", torch.from_numpy(np.nextafter(A.numpy().astype(dt), B.numpy().astype(dt)).astype(np.float64)), EXACT)


@kernel("T1.21", T1, "ldexp", "a b:i32", "y")
def ldexp(c, a, b, lo=-8, hi=8, pairs=None):
    "b holds i32 exponents"
    A = c.put("a", splice(c.rnd(*a), pairs and [p[0] for p in pairs]))
    e = splice(c.integers(lo, hi, b).double(), pairs and [p[1] for p in pairs])
    e = c.idx("b", e.numpy().astype(np.int64), "i32")
    y = torch.from_numpy(np.ldexp(A.double().numpy(), e.numpy()))
    if c.dtype == "f32":
        y = y.float().double()                           # overflow, underflow and subnormal rounding of the storage type
    c.out("y", y, EXACT)


@kernel("T1.21", T1, "ldexp_backward", "dy b:i32", "da")
def ldexp_backward(c, shape):
    dy = c.x("dy", *shape)
    e = c.idx("b", c.integers(-8, 8, shape).numpy(), "i32")
    c.out("da", dy * torch.pow(torch.tensor(2.0, dtype=dy.dtype), e), EXACT)
