"""Second formulas of pooling and resampling."""
import math
import numpy as np
from reference.base import R, numeric, ref
from reference.conv import full


def pool_out(i, k, s, p, d, ceil):
    q = i + 2 * p - d * (k - 1) - 1
    o = (-(-q // s) if ceil else q // s) + 1
    if ceil and (o - 1) * s >= i + p:
        o -= 1
    return o


def windows(shape, k, s, p, d, ceil):
    nd = len(shape)
    k, p, d = full(k, nd), full(p, nd), full(d, nd)
    s = k if s is None else full(s, nd)
    return [pool_out(*q, ceil) for q in zip(shape, k, s, p, d)], k, s, p, d


def maxpool(a, v):
    nd = v.x.ndim - 2
    o, k, s, p, d = windows(v.x.shape[2:], a.k, a.s, a.p, a.d, a.ceil_mode)
    y, idx = np.zeros(v.x.shape[:2] + tuple(o)), np.zeros(v.x.shape[:2] + tuple(o), int)
    for n in range(v.x.shape[0]):
        for c in range(v.x.shape[1]):
            for pos in np.ndindex(*o):
                best, bi = None, None
                for tap in np.ndindex(*k):
                    q = [i * t - pp + e * f for i, t, pp, e, f in zip(pos, s, p, tap, d)]
                    if all(0 <= a_ < b_ for a_, b_ in zip(q, v.x.shape[2:])):
                        val = v.x[(n, c) + tuple(q)]
                        if best is None or val > best or np.isnan(val):
                            best, bi = val, np.ravel_multi_index(q, v.x.shape[2:])
                y[(n, c) + pos], idx[(n, c) + pos] = best, bi
    return {"y": y, "idx": idx}


R("maxpool1d maxpool2d maxpool3d", maxpool)


def idx_scatter(a, v):
    N, C = a.input_size[:2]
    dx = np.zeros((N * C, int(np.prod(a.input_size[2:]))))
    m = math.prod(v.dy.shape[2:])
    d, i = v.dy.reshape(N * C, m), v.idx.reshape(N * C, m)
    for r in range(N * C):
        np.add.at(dx[r], i[r], d[r])
    return {"dx": dx.reshape(a.input_size)}


R("maxpool1d_backward maxpool2d_backward maxpool3d_backward global_maxpool2d_backward adaptive_maxpool1d_backward adaptive_maxpool2d_backward "
  "adaptive_maxpool3d_backward", idx_scatter)


def avg_map(shape, a):
    "per axis: list of (start, end, counted size)"
    o, k, s, p, _ = windows(shape, a.k, a.s, a.p, 1, a.ceil_mode)
    res = []
    for i, kk, ss, pp, oo in zip(shape, k, s, p, o):
        ax = []
        for t in range(oo):
            st = t * ss - pp
            e = min(st + kk, i + pp)
            lo, hi = max(st, 0), min(e, i)
            ax.append((lo, hi, e - st if a.count_include_pad else hi - lo))
        res.append(ax)
    return res


def avgpool(a, v):
    m = avg_map(v.x.shape[2:], a)
    y = np.zeros(v.x.shape[:2] + tuple(len(q) for q in m))
    for pos in np.ndindex(*y.shape[2:]):
        w = [q[i] for q, i in zip(m, pos)]
        div = a.divisor_override or math.prod(t[2] for t in w)
        y[(slice(None), slice(None)) + pos] = v.x[(slice(None), slice(None)) + tuple(slice(t[0], t[1]) for t in w)].sum(tuple(range(2, v.x.ndim))) / div
    return {"y": y}


def avgpool_b(a, v):
    m = avg_map(a.input_size[2:], a)
    dx = np.zeros(a.input_size)
    for pos in np.ndindex(*v.dy.shape[2:]):
        w = [q[i] for q, i in zip(m, pos)]
        div = a.divisor_override or math.prod(t[2] for t in w)
        sl = (slice(None), slice(None)) + tuple(slice(t[0], t[1]) for t in w)
        dx[sl] += (v.dy[(slice(None), slice(None)) + pos] / div).reshape(dx.shape[:2] + (1,) * len(w))
    return {"dx": dx}


R("avgpool1d avgpool2d avgpool3d", avgpool)
R("avgpool1d_backward avgpool2d_backward avgpool3d_backward", avgpool_b)


def ada_win(i, o):
    return [(t * i // o, -(-(t + 1) * i // o)) for t in range(o)]


def ada(a, v, red):
    m = [ada_win(i, o) for i, o in zip(v.x.shape[2:], a.output_size)]
    y = np.zeros(v.x.shape[:2] + tuple(a.output_size))
    for pos in np.ndindex(*a.output_size):
        sl = (slice(None), slice(None)) + tuple(slice(*q[i]) for q, i in zip(m, pos))
        y[(slice(None), slice(None)) + pos] = red(v.x[sl], axis=tuple(range(2, v.x.ndim)))
    return {"y": y}


R("adaptive_avgpool1d adaptive_avgpool2d adaptive_avgpool3d", lambda a, v: ada(a, v, np.mean))


def last_nan(x):
    "position of the maximum of the rows of x; the last NaN if there is one"
    n = np.isnan(x)
    return np.where(n.any(-1), x.shape[-1] - 1 - np.argmax(n[..., ::-1], -1), np.argmax(np.where(n, -np.inf, x), -1))


@ref("adaptive_maxpool1d adaptive_maxpool2d adaptive_maxpool3d")
def _(a, v):
    pos = np.arange(math.prod(v.x.shape[2:])).reshape(v.x.shape[2:])
    m = [ada_win(i, o) for i, o in zip(v.x.shape[2:], a.output_size)]
    idx = np.zeros(v.x.shape[:2] + tuple(a.output_size), int)
    for p in np.ndindex(*a.output_size):
        w = tuple(slice(*q[i]) for q, i in zip(m, p))
        k = last_nan(v.x[(slice(None), slice(None)) + w].reshape(v.x.shape[0], v.x.shape[1], -1))
        idx[(slice(None), slice(None)) + p] = pos[w].reshape(-1)[k]
    return {"y": ada(a, v, np.max)["y"], "idx": idx}


def ada_b(a, v):
    o = v.dy.shape[2:]
    dx = np.zeros(a.input_size)
    for cell in np.ndindex(*a.input_size[2:]):
        rng = [range(h * oo // i, -(-(h + 1) * oo // i)) for h, oo, i in zip(cell, o, a.input_size[2:])]
        for w in np.ndindex(*[len(r) for r in rng]):
            win = tuple(r[j] for r, j in zip(rng, w))
            area = math.prod(-(-(t + 1) * i // oo) - t * i // oo for t, i, oo in zip(win, a.input_size[2:], o))
            dx[(slice(None), slice(None)) + cell] += v.dy[(slice(None), slice(None)) + win] / area
    return {"dx": dx}


R("adaptive_avgpool1d_backward adaptive_avgpool2d_backward adaptive_avgpool3d_backward", ada_b)
R("global_avgpool2d", lambda a, v: {"y": v.x.sum((2, 3), keepdims=True) / (v.x.shape[2] * v.x.shape[3])})


@ref("global_maxpool2d")
def _(a, v):
    f = v.x.reshape(v.x.shape[0], v.x.shape[1], -1)
    i = last_nan(f)
    return {"y": np.take_along_axis(f, i[..., None], 2)[..., None], "idx": i[..., None, None]}


R("global_avgpool2d_backward", lambda a, v: {"dx": np.broadcast_to(v.dy / (a.input_size[2] * a.input_size[3]), a.input_size)})


def near(i, o, exact=False):
    return [int(math.floor((t + 0.5) * i / o)) if exact else t * i // o for t in range(o)]


@ref("upsample3d_nearest")
def _(a, v):
    size = a.size or [i * s for i, s in zip(v.x.shape[2:], a.scale)]
    y = v.x
    for ax, o in enumerate(size):
        y = np.take(y, near(v.x.shape[2 + ax], o, a.exact), 2 + ax)
    return {"y": y}


@ref("upsample3d_nearest_backward")
def _(a, v):
    g = v.dy
    for ax in range(3):
        i, o = a.input_size[2 + ax], v.dy.shape[2 + ax]
        m = np.zeros((i, o))
        m[near(i, o, a.exact), range(o)] = 1
        g = np.moveaxis(np.tensordot(m, g, (1, 2 + ax)), 0, 2 + ax)
    return {"dx": g}


def cubic_w(t, A=-0.75):
    t = abs(t)
    return (A + 2) * t ** 3 - (A + 3) * t ** 2 + 1 if t <= 1 else A * t ** 3 - 5 * A * t ** 2 + 8 * A * t - 4 * A if t < 2 else 0.0


def interp_matrix(i, o, mode, align, aa):
    m = np.zeros((o, i))
    for t in range(o):
        if mode in ("nearest", "nearest-exact"):
            m[t, near(i, o, mode != "nearest")[t]] = 1
        elif mode == "area":
            lo, hi = ada_win(i, o)[t]
            m[t, lo:hi] = 1 / (hi - lo)
        elif aa:
            sc = i / o
            f = max(sc, 1.0)
            sup = (1 if mode == "linear" else 2) * f
            ctr = sc * (t + 0.5)
            lo, hi = max(int(ctr - sup + 0.5), 0), min(int(ctr + sup + 0.5), i)
            w = [(max(0, 1 - abs((j - ctr + 0.5) / f)) if mode == "linear" else cubic_w((j - ctr + 0.5) / f, -0.5)) for j in range(lo, hi)]
            m[t, lo:hi] = np.array(w) / sum(w)
        else:
            s = (t * (i - 1) / (o - 1) if o > 1 else 0.0) if align else (t + 0.5) * i / o - 0.5
            if mode == "linear":
                s = max(s, 0.0)
                lo = min(int(math.floor(s)), i - 1)
                m[t, lo] += 1 - (s - lo)
                m[t, min(lo + 1, i - 1)] += s - lo
            else:
                b = math.floor(s)
                for j in range(b - 1, b + 3):
                    m[t, min(max(j, 0), i - 1)] += cubic_w(s - j)
    return m


def interp_apply(x, mats, ax0=2):
    for k, m in enumerate(mats):
        x = np.moveaxis(np.tensordot(m, x, (1, ax0 + k)), 0, ax0 + k)
    return x


R("interpolate", lambda a, v: {"y": interp_apply(v.x, [interp_matrix(i, o, a.mode, a.align_corners, a.antialias) for i, o in zip(v.x.shape[2:], a.size)])})
R("interpolate_backward", lambda a, v: {"dx": interp_apply(v.dy, [interp_matrix(i, o, a.mode, a.align_corners, a.antialias).T for i, o in zip(a.input_size[2:], v.dy.shape[2:])])})


def base_grid(size, align):
    ax = []
    for n in size[2:]:
        p = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        ax.append(p if align else (p * (n - 1) / n if n > 1 else p))
    g = list(np.meshgrid(*ax, indexing="ij"))
    return np.stack(g[::-1] + [np.ones_like(g[0])], -1)


R("affine_grid", lambda a, v: {"grid": np.einsum("...k,njk->n...j", base_grid(a.size, a.align_corners), v.theta)})
R("affine_grid_backward", lambda a, v: {"dtheta": np.einsum("bp,npj->njb", base_grid(a.size, a.align_corners).reshape(-1, len(a.size) - 1).T,
                                                           v.dgrid.reshape(a.size[0], -1, len(a.size) - 2))})


def reflect(c, lo2, hi2):
    if lo2 == hi2:
        return 0.0
    mn, span = lo2 / 2, (hi2 - lo2) / 2
    c = abs(c - mn)
    n, e = int(c // span), c % span
    return e + mn if n % 2 == 0 else span - e + mn


@ref("grid_sample")
def _(a, v):
    nd, sz = v.grid.shape[-1], v.x.shape[2:]
    y = np.zeros(v.x.shape[:2] + v.grid.shape[1:-1])

    def fix(c, n):
        if a.padding_mode == "border":
            return min(max(c, 0), n - 1)
        if a.padding_mode == "reflection":
            c = reflect(c, 0, 2 * (n - 1)) if a.align_corners else reflect(c, -1, 2 * n - 1)
            return min(max(c, 0), n - 1)
        return c
    for b in range(v.x.shape[0]):
        for pos in np.ndindex(*v.grid.shape[1:-1]):
            g = v.grid[(b,) + pos][::-1]
            c = [(q + 1) / 2 * (n - 1) if a.align_corners else ((q + 1) * n - 1) / 2 for q, n in zip(g, sz)]
            if a.mode != "cubic":
                c = [fix(q, n) for q, n in zip(c, sz)]
            if a.mode == "nearest":
                taps = [[(int(np.rint(q)), 1.0)] for q in c]
            elif a.mode == "linear":
                taps = [[(math.floor(q), 1 - (q - math.floor(q))), (math.floor(q) + 1, q - math.floor(q))] for q in c]
            else:
                taps = [[(j, cubic_w(q - j)) for j in range(math.floor(q) - 1, math.floor(q) + 3)] for q in c]
            for w in np.ndindex(*[len(t) for t in taps]):
                ij = [t[i] for t, i in zip(taps, w)]
                cell = [int(fix(q[0], n)) for q, n in zip(ij, sz)] if a.mode == "cubic" else [q[0] for q in ij]
                if all(0 <= q < n for q, n in zip(cell, sz)):
                    y[(b, slice(None)) + pos] += math.prod(q[1] for q in ij) * v.x[(b, slice(None)) + tuple(cell)]
    return {"y": y}


_gs_num = numeric("grid_sample", ["x", "grid"])


@ref("grid_sample_backward")
def _(a, v):
    return _gs_num(a, v)


def roi_weights(a, lo, hi, n, bins):
    "[bins, n]: the mean weights with which a bin reads the cells of an axis"
    lo, hi = lo * a.spatial_scale - 0.5 * a.aligned, hi * a.spatial_scale - 0.5 * a.aligned
    length = hi - lo if a.aligned else max(hi - lo, 1.0)
    q = a.sampling_ratio or math.ceil(length / bins)
    w = np.zeros((bins, n))
    for i in range(bins):
        for s in range(q):
            p = lo + (i + (s + 0.5) / q) * length / bins
            if -1 <= p <= n:
                w[i] += np.maximum(0, 1 - abs(min(max(p, 0), n - 1) - np.arange(n))) / q
    return w


def roi_axes(a, v, k, shape, size):
    b = v.boxes[k]
    return roi_weights(a, b[1], b[3], shape[2], size[0]), roi_weights(a, b[0], b[2], shape[3], size[1])


@ref("roi_align")
def _(a, v):
    y = np.zeros((len(v.boxes), v.x.shape[1], *a.size))
    for k, i in enumerate(v.images):
        h, w = roi_axes(a, v, k, v.x.shape, a.size)
        y[k] = np.einsum("ih,jw,chw->cij", h, w, v.x[i])
    return {"y": y}


@ref("roi_align_backward")
def _(a, v):
    dx = np.zeros(a.input_size)
    for k, i in enumerate(v.images):
        h, w = roi_axes(a, v, k, a.input_size, v.dy.shape[2:])
        dx[i] += np.einsum("ih,jw,cij->chw", h, w, v.dy[k])
    return {"dx": dx}


def iou(b, c):
    w = max(0, min(b[2], c[2]) - max(b[0], c[0]))
    h = max(0, min(b[3], c[3]) - max(b[1], c[1]))
    ar = lambda q: (q[2] - q[0]) * (q[3] - q[1])
    return w * h / (ar(b) + ar(c) - w * h)


@ref("nms batched_nms")
def _(a, v):
    order, keep = sorted(range(len(v.scores)), key=lambda i: (-v.scores[i], i)), []
    for i in order:
        if all(iou(v.boxes[i], v.boxes[j]) <= a.iou_threshold for j in keep if v.ids is None or v.ids[i] == v.ids[j]):
            keep.append(i)
    return {"keep": np.array(keep, dtype=int), "count": np.array(len(keep))}
