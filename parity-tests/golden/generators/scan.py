"""Scans, segments, sorting, search, distances."""
import scipy.optimize
import torch
import torch.nn.functional as F
from core import EXACT, Tol, ag, kernel, splice, summed
from conv import clean
from binary import INTS, ints

B2 = "scan_sort_distance"


@kernel("B2.1", B2, "cumsum", "x", "y", {"axis": "required", "exclusive": False, "reverse": False})
def cumsum(c, shape, axis, exclusive=False, reverse=False, special=None):
    x = c.x("x", *shape, special=special)
    fn = lambda v: _scan(v, axis, exclusive, reverse)
    c.out("y", fn(x), summed(shape[axis], fn(clean(x))))


def _scan(x, axis, exclusive, reverse):
    v = x.flip(axis) if reverse else x
    y = v.cumsum(axis)
    if exclusive:
        y = torch.cat([torch.zeros_like(y.narrow(axis, 0, 1)), y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return y.flip(axis) if reverse else y


@kernel("B2.1", B2, "cumsum_backward", "dy", "dx", {"axis": "required", "exclusive": False, "reverse": False})
def cumsum_backward(c, shape, axis, exclusive=False, reverse=False):
    dy = c.x("dy", *shape)

    def fn(g):
        x = torch.zeros(*shape, dtype=g.dtype, requires_grad=True)
        return ag(_scan(x, axis, exclusive, reverse), [x], g)[0]
    c.out("dx", fn(dy), summed(shape[axis], fn(clean(dy))))


def _sort(name):
    def gen(c, shape, axis=-1, descending=False, ties=False, special=None, index="i64"):
        "stable; NaN last when ascending, first when descending"
        if c.dtype in INTS:
            x = c.raw("x", ints(c, shape, -9, 9))
        else:
            x = c.put("x", splice(c.integers(-3, 4, shape).double() if ties else c.rnd(*shape), special))
        y, i = torch.sort(x, dim=axis, descending=descending, stable=True)
        if name == "sort":
            c.out("y", y, EXACT, c.dtype if c.dtype in INTS else None)
        c.out("idx", i, kind=index)
    kernel("B2.5", B2, name, "x", "y idx:i64" if name == "sort" else "idx:i64", {"axis": -1, "descending": False, "index": "i64"})(gen)


_sort("sort")
_sort("argsort")


@kernel("B2.5", B2, "sort_backward", "dy idx:idx", "dx", {"axis": -1})
def sort_backward(c, shape, axis=-1, itype="i64"):
    dy = c.x("dy", *shape)
    i = c.idx("idx", torch.argsort(c.rnd(*shape), axis).numpy(), itype)
    c.out("dx", torch.zeros(*shape, dtype=dy.dtype).scatter(axis, i, dy), EXACT)


@kernel("B2.6", B2, "topk", "x", "y idx:i64", {"k": "required", "axis": -1, "largest": True, "sorted": True})
def topk(c, shape, k, axis=-1, largest=True, ties=False, special=None):
    "NaN counts as largest; equal values: lower index first; cases use sorted = true"
    x = c.put("x", splice(c.integers(-3, 4, shape).double() if ties else c.rnd(*shape), special))
    if not 0 <= k <= shape[axis]:
        raise ValueError("k")
    y, i = torch.sort(x, dim=axis, descending=largest, stable=True)
    y, i = y.narrow(axis, 0, k), i.narrow(axis, 0, k)
    ref = torch.topk(x, k, axis, largest, True).values
    assert torch.equal(torch.nan_to_num(ref, 77.0), torch.nan_to_num(y, 77.0))
    c.out("y", y, EXACT)
    c.out("idx", i, kind="i64")


@kernel("L57", B2, "linear_assignment", "cost counts:idx?", "column:i64")
def linear_assignment(c, shape, counts=None, whole=False, special=None, itype="i64"):
    "column of each row, -1 for none; with counts only the first rows of each problem take part; infinite costs forbid a pair"
    b, r, n = shape
    # Distinct powers of two leave no two sums equal.
    v = c.rnd(*shape) if not whole else torch.stack([2.0 ** torch.from_numpy(c.rng.permutation(r * n)).double() for _ in range(b)]).reshape(shape)
    cost = c.put("cost", splice(v, special))
    rows = c.idx("counts", counts, itype).tolist() if counts is not None else [r] * b
    column = torch.full((b, r), -1, dtype=torch.int64)
    for i, k in enumerate(rows):
        for row, col in zip(*scipy.optimize.linear_sum_assignment(cost[i, :k].double().numpy())):
            column[i, row] = int(col)
    c.out("column", column, kind="i64")


@kernel("B2.6", B2, "topk_backward", "dy idx:idx", "dx", {"input_size": "required", "axis": -1})
def topk_backward(c, shape, k, axis=-1, itype="i64"):
    c.arg("input_size", list(shape))
    i = torch.topk(c.rnd(*shape), k, axis).indices
    dy = c.x("dy", *i.shape)
    i = c.idx("idx", i.numpy(), itype)
    c.out("dx", torch.zeros(*shape, dtype=dy.dtype).scatter(axis, i, dy), EXACT)


def _search(name):
    def gen(c, values, edges, rows=None, right=False, special=None, index="i64"):
        "sorted: ascending [.., E]; right false: first i with sorted[i] >= v, right true: first i with sorted[i] > v; NaN after everything"
        e = torch.sort((c.rnd(*((rows,) if rows and name == "searchsorted" else ()), edges) * 4).round() / 4)[0]
        s = c.put("sorted", e)
        v = c.put("values", splice((c.rnd(*((rows,) if rows else ()), values) * 4).round() / 4, special))
        y = torch.searchsorted(s, v, right=right) if name == "searchsorted" else torch.bucketize(v, s, right=right)
        c.out("y", y, kind=index)
    kernel("B2.10", B2, name, "sorted values", "y:i64", {"right": False, "index": "i64"})(gen)


_search("searchsorted")
_search("bucketize")


@kernel("B2.14", B2, "cdist", "a b", "y", {"p": 2.0})
def cdist(c, P, Rn, M, batch=None, p=2.0, same=False):
    "a [.., P, M], b [.., R, M]; p may be the string inf"
    lead = (batch,) if batch else ()
    A = c.rnd(*lead, P, M)
    B = c.rnd(*lead, Rn, M)
    if same:
        B[..., 0, :] = A[..., 0, :]
    A, B = c.put("a", A), c.put("b", B)
    c.out("y", torch.cdist(A, B, float(p), compute_mode="donot_use_mm_for_euclid_dist"), Tol(3e-6, 2e-6))


@kernel("B2.14", B2, "cdist_backward", "dy a b y", "da db", {"p": 2.0})
def cdist_backward(c, P, Rn, M, p=2.0, same=False):
    dy, A, B = c.x("dy", P, Rn), c.rnd(P, M), c.rnd(Rn, M)
    if same:                                              # distance 0: the gradient of that pair is 0
        B[0] = A[0]
    a, b = c.putv("a", A), c.putv("b", B)
    c.put("y", torch.cdist(a.detach().double(), b.detach().double(), float(p), compute_mode="donot_use_mm_for_euclid_dist"))
    y = torch.cdist(a, b, float(p), compute_mode="donot_use_mm_for_euclid_dist")
    for n, g in zip(("da", "db"), ag(y, [a, b], dy)):
        c.out(n, g, Tol(2e-5, 1e-5))


@kernel("B2.14", B2, "pdist", "x", "y", {"p": 2.0})
def pdist(c, n, M, p=2.0):
    "pairs i < j in row-major order"
    c.out("y", F.pdist(c.x("x", n, M), float(p)), Tol(3e-6, 2e-6))


@kernel("B2.14", B2, "pairwise_distance", "a b", "y", {"p": 2.0, "eps": 1e-6, "keepdim": False})
def pairwise_distance(c, shape, p=2.0, eps=1e-6, keepdim=False):
    "norm of a - b + eps over the last axis"
    c.out("y", F.pairwise_distance(c.x("a", *shape), c.x("b", *shape), float(p), eps, keepdim), Tol(3e-6, 2e-6))


@kernel("B2.15", B2, "cosine_similarity", "a b", "y", {"axis": -1, "eps": 1e-8})
def cosine_similarity(c, shape, axis=-1, eps=1e-8, zero=False):
    A, B = c.rnd(*shape), c.rnd(*shape)
    if zero:
        A[0] = 0
    c.out("y", F.cosine_similarity(c.put("a", A), c.put("b", B), axis, eps), Tol(3e-6, 1e-6))


@kernel("B2.15", B2, "cosine_similarity_backward", "dy a b", "da db", {"axis": -1, "eps": 1e-8})
def cosine_similarity_backward(c, shape, axis=-1, eps=1e-8):
    ds = list(shape)
    ds.pop(axis)
    dy, a, b = c.x("dy", *ds), c.var("a", *shape), c.var("b", *shape)
    for n, g in zip(("da", "db"), ag(F.cosine_similarity(a, b, axis, eps), [a, b], dy)):
        c.out(n, g, Tol(1e-5, 2e-6))
