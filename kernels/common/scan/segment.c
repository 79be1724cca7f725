/* Reductions of segments of rows: x [n, cols], segment s holds the rows offsets[s] <= r < offsets[s + 1], y [m, cols].
 *
 *   sum, mean, max, min, var (biased), std = sqrt(var + eps); 0 for an empty segment
 *   d sum = dy, d mean = dy / n, d max = dy / ties where x is the extreme, d var = 2 (x - mean) dy / n, d std = (x - mean) dy / (n std)
 *
 * A group of tx * ty threads takes a segment (or one of `splits` parts of it) and tx columns, or with wide tx runs of GK_W columns; ty rows at
 * a time. Groups are numbered with column tiles fastest, then splits, then segments. `dims` = {rows, columns, segments, tx, ty, splits, wide,
 * offsets are i64}. With splits, `part` [m, splits, 2, cols] is combined by segment_combine. A segment's state is (sum), (extreme, ties) or
 * (mean, sum of squared deviations); `state` [m, 2, cols] gets it for the backward, with the variance for the squared deviations.
 * An offset that is negative, beyond n or below its predecessor is reported and taken as the nearest that is valid.
 * Deterministic: trees of fixed shape, one writer per output. Reference: torch.segment_reduce; gradients of ties as torch.amax shares them.
 */
#include "common/prelude/rows.h"

#define GK_SUM 0
#define GK_SCAN_MEAN 1
#define GK_MAX 2
#define GK_MIN 3
#define GK_VAR 4
#define GK_STD 5

typedef struct { gk_i64 lo, hi, r0, r1, col; int s, split, lane, on; } gk_part;

/* The thread's group: its segment, rows and first column. `extra` groups of rows come before and behind the segments. */
GK_FN gk_part gk_part_of(GK_GLOBAL const int* offsets, GK_GLOBAL int* err, gk_dims dims, int extra, int code)
{
    gk_part p;
    int tx = (int)dims.v[3], ty = (int)dims.v[4], size = tx * ty, w = dims.v[6] ? GK_W : 1, wide = (int)dims.v[7];
    gk_i64 n = dims.v[0], m = dims.v[2], tiles = gk_quot(dims.v[1] + tx * w - 1, tx * w);
    gk_i64 q = (gk_i64)gk_bid(0) * (GK_BLOCK / size) + gk_lid() / size, rest = gk_quot(q, tiles), segment = gk_quot(rest, dims.v[5]);
    int i = gk_lid() % size;
    p.split = (int)(rest - segment * dims.v[5]);
    p.s = (int)segment - extra;
    p.col = ((q - rest * tiles) * tx + i % tx) * w;
    p.lane = i / tx;
    p.on = p.s < m + extra && p.col < dims.v[1];
    p.lo = 0; p.hi = 0;
    if (p.s < m + extra) {
        if (p.s >= 0) p.lo = gk_index(offsets, p.s, wide);
        p.hi = n;
        if (p.s < m) p.hi = gk_index(offsets, p.s + 1, wide);
        if (p.lo < 0 || p.lo > n || p.hi < p.lo || p.hi > n) {
            gk_report(err, code);
            p.lo = p.lo < 0 ? 0 : p.lo > n ? n : p.lo;
            p.hi = p.hi < p.lo ? p.lo : p.hi > n ? n : p.hi;
        }
    }
    gk_i64 per = gk_quot(p.hi - p.lo + dims.v[5] - 1, dims.v[5]);
    p.r0 = p.lo + p.split * per;
    p.r1 = p.r0 + per < p.hi ? p.r0 + per : p.hi;
    if (!p.on || p.r0 > p.r1) p.r0 = p.r1;
    return p;
}

GK_FN gk_f gk_combine(int mode, gk_f a, gk_f b)
{
    if (mode == GK_MAX) return gk_max(a, b);
    if (mode == GK_MIN) return gk_min(a, b);
    return a + b;
}
GK_FN gk_f gk_identity(int mode) { return mode == GK_MAX ? -GK_INF : mode == GK_MIN ? GK_INF : GK_R(0.0); }

/* Combines the lanes of each group, in every lane; tmp holds GK_BLOCK. */
GK_FN gk_f gk_lanes(gk_f v, int mode, GK_LOCAL_PTR gk_f* tmp, int lane, int tx, int ty)
{
    int t = gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = ty / 2; m > 0; m >>= 1) {
        if (lane < m) tmp[t] = gk_combine(mode, tmp[t], tmp[t + m * tx]);
        GK_BARRIER();
    }
    v = tmp[t - lane * tx];
    GK_BARRIER();
    return v;
}

/* Writes a segment's result and state; `a`, `b` as in the header, n its rows. */
GK_FN void gk_segment_end(GK_GLOBAL gk_t* y, GK_GLOBAL gk_f* state, gk_i64 s, gk_i64 cols, gk_i64 col, int mode, gk_f eps, gk_i64 n, gk_f a, gk_f b)
{
    gk_f var = b / (gk_f)n, r = a;
    if (mode == GK_SCAN_MEAN) r = a / (gk_f)n;
    if (mode == GK_VAR) r = var;
    if (mode == GK_STD) r = gk_sqrt(var + eps);
    if (n == 0) r = GK_R(0.0);
    if (y) gk_store(y, s * cols + col, r);
    if (state) {
        state[2 * s * cols + col] = a;
        state[(2 * s + 1) * cols + col] = mode >= GK_VAR ? var : b;
    }
}

/* Rows that are added one by one: a longer sum would lose some of what each adds. */
#define GK_SCAN_RUN 32
#define GK_SEGMENT_AHEAD 4 /* of them, reads that are in flight at a time */

/* Items of columns at rows r, r + step, .. below `to`, GK_SEGMENT_AHEAD of them; `fill` beyond. They become numbers when all loads are on their way: a
 * conversion beside a load, in its branch, waits for it. */
GK_FN void gk_rows_ahead(gk_vec v[GK_SEGMENT_AHEAD], GK_GLOBAL const gk_t* x, gk_i64 r, gk_i64 to, int step, gk_i64 cols, gk_i64 col, int wide,
                         gk_f fill)
{
    gk_raw16 q[GK_SEGMENT_AHEAD];
    GK_UNROLL for (int k = 0; k < GK_SEGMENT_AHEAD; k++) {
        q[k] = gk_make16(0u, 0u, 0u, 0u);
        if (r + k * step < to) q[k] = gk_item_bits(x, (r + k * step) * cols + col, wide);
    }
    GK_UNROLL for (int k = 0; k < GK_SEGMENT_AHEAD; k++) {
        v[k] = gk_decode16(q[k]);
        GK_UNROLL for (int u = 0; u < GK_W; u++) v[k].v[u] = r + k * step < to ? v[k].v[u] : fill;
    }
}

// Units: FLOATS64
/* Launch: one block per GK_BLOCK / (tx * ty) groups. */
GK_KERNEL(segment_reduce)(GK_IN(gk_t, x), GK_IN(int, offsets), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_OUT(gk_f, part), GK_OUT(int, err),
                          GK_DIMS(dims), int mode, gk_f eps, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int tx = (int)dims.v[3], ty = (int)dims.v[4], wide = (int)dims.v[6];
    /* Values that lanes have to exchange. */
    int lists = ty == 1 ? 0 : wide ? GK_W : 1;
    gk_i64 cols = dims.v[1];
    gk_part p = gk_part_of(offsets, err, dims, 0, code);
    gk_f a[GK_W], b[GK_W];
    GK_UNROLL for (int u = 0; u < GK_W; u++) {
        a[u] = gk_identity(mode);
        b[u] = GK_R(0.0);
    }
    for (gk_i64 from = p.r0 + p.lane; from < p.r1; from += GK_SCAN_RUN * ty) {
        gk_f run[GK_W];
        gk_i64 to = from + GK_SCAN_RUN * ty < p.r1 ? from + GK_SCAN_RUN * ty : p.r1;
        GK_UNROLL for (int u = 0; u < GK_W; u++) run[u] = gk_identity(mode);
        for (gk_i64 r = from; r < to; r += GK_SEGMENT_AHEAD * ty) {
            gk_vec v[GK_SEGMENT_AHEAD];
            gk_rows_ahead(v, x, r, to, ty, cols, p.col, wide, gk_identity(mode));
            GK_UNROLL for (int k = 0; k < GK_SEGMENT_AHEAD; k++)
                GK_UNROLL for (int u = 0; u < GK_W; u++) run[u] = gk_combine(mode, run[u], v[k].v[u]);
        }
        GK_UNROLL for (int u = 0; u < GK_W; u++) a[u] = gk_combine(mode, a[u], run[u]);
    }
    GK_UNROLL for (int u = 0; u < GK_W && u < lists; u++) a[u] = gk_lanes(a[u], mode, tmp, p.lane, tx, ty);
    if (mode >= GK_VAR) {
        GK_UNROLL for (int u = 0; u < GK_W; u++) a[u] = p.r1 > p.r0 ? a[u] / (gk_f)(p.r1 - p.r0) : GK_R(0.0);
    }
    /* Squared deviations, or the number of ties where the backward asks for it. */
    gk_i64 end = mode >= GK_VAR || (mode >= GK_MAX && state) ? p.r1 : p.r0;
    for (gk_i64 from = p.r0 + p.lane; from < end; from += GK_SCAN_RUN * ty) {
        gk_f run[GK_W];
        gk_i64 to = from + GK_SCAN_RUN * ty < end ? from + GK_SCAN_RUN * ty : end;
        GK_UNROLL for (int u = 0; u < GK_W; u++) run[u] = GK_R(0.0);
        for (gk_i64 r = from; r < to; r += GK_SEGMENT_AHEAD * ty) {
            gk_vec v[GK_SEGMENT_AHEAD];
            gk_rows_ahead(v, x, r, to, ty, cols, p.col, wide, GK_R(0.0));
            GK_UNROLL for (int k = 0; k < GK_SEGMENT_AHEAD; k++)
                GK_UNROLL for (int u = 0; u < GK_W; u++) {
                    gk_f d = v[k].v[u] - a[u];
                    if (mode < GK_VAR) d = v[k].v[u] == a[u] ? GK_R(1.0) : GK_R(0.0);
                    run[u] += r + k * ty < to ? d * d : GK_R(0.0);
                }
        }
        GK_UNROLL for (int u = 0; u < GK_W; u++) b[u] += run[u];
    }
    GK_UNROLL for (int u = 0; u < GK_W && u < lists; u++) b[u] = gk_lanes(b[u], GK_SUM, tmp, p.lane, tx, ty);
    if (p.on && p.lane == 0) {
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            if (u > 0 && !wide) continue;
            if (part) {
                gk_i64 at = ((gk_i64)p.s * dims.v[5] + p.split) * 2 * cols + p.col + u;
                part[at] = a[u];
                part[at + cols] = b[u];
            } else {
                gk_segment_end(y, state, p.s, cols, p.col + u, mode, eps, p.hi - p.lo, a[u], b[u]);
            }
        }
    }
}

/* Combines the parts of segments in order (Chan's formula for variances). Launch: grid-stride over [m, cols]. */
GK_KERNEL(segment_combine)(GK_IN(gk_f, part), GK_IN(int, offsets), GK_OUT(gk_t, y), GK_OUT(gk_f, state), GK_DIMS(dims), int mode, gk_f eps)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, state);
    gk_i64 n = dims.v[0], cols = dims.v[1];
    for (gk_i64 i = gk_gid(); i < dims.v[2] * cols; i += gk_gsize()) {
        gk_i64 s = gk_quot(i, cols), col = i - s * cols, lo = gk_index(offsets, s, dims.v[7]), hi = gk_index(offsets, s + 1, dims.v[7]), before = 0;
        lo = lo < 0 ? 0 : lo > n ? n : lo;
        hi = hi < lo ? lo : hi > n ? n : hi;
        gk_i64 per = gk_quot(hi - lo + dims.v[5] - 1, dims.v[5]);
        gk_f a = gk_identity(mode), b = GK_R(0.0);
        for (gk_i64 k = 0; k < dims.v[5]; k++) {
            gk_i64 rows = hi - lo - k * per < per ? hi - lo - k * per : per;
            if (rows <= 0) break;
            gk_f pa = part[((s * dims.v[5] + k) * 2) * cols + col], pb = part[((s * dims.v[5] + k) * 2 + 1) * cols + col];
            if (mode >= GK_VAR) {
                gk_f share = (gk_f)rows / (gk_f)(before + rows), d = pa - a;
                a += d * share;
                b += pb + d * d * share * (gk_f)before;
            } else if (mode >= GK_MAX) {
                gk_f best = gk_combine(mode, a, pa);
                b = (a == best ? b : GK_R(0.0)) + (pa == best ? pb : GK_R(0.0));
                a = best;
            } else {
                a += pa;
            }
            before += rows;
        }
        gk_segment_end(y, state, s, cols, col, mode, eps, hi - lo, a, b);
    }
}

/* dx of every row, 0 for rows of no segment. Launch: as segment_reduce, with one group of rows more before and behind the segments. */
GK_KERNEL(segment_spread)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(int, offsets), GK_IN(gk_f, state), GK_OUT(gk_t, dx), GK_OUT(int, err),
                          GK_DIMS(dims), int mode, gk_f eps, int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(int, offsets); GK_BIND_IN(gk_f, state); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    int ty = (int)dims.v[4], wide = (int)dims.v[6];
    gk_i64 cols = dims.v[1];
    gk_part p = gk_part_of(offsets, err, dims, 1, code);
    int covered = p.s >= 0 && p.s < dims.v[2];
    gk_f n = (gk_f)(p.hi - p.lo);
    gk_vec g, a;
    GK_UNROLL for (int u = 0; u < GK_W; u++) {
        g.v[u] = GK_R(0.0);
        a.v[u] = GK_R(0.0);
    }
    if (covered && p.r0 < p.r1) {
        g = gk_item(dy, (gk_i64)p.s * cols + p.col, wide);
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            if (u > 0 && !wide) continue;
            gk_f b = GK_R(0.0);
            if (state) {
                a.v[u] = state[2 * (gk_i64)p.s * cols + p.col + u];
                b = state[(2 * (gk_i64)p.s + 1) * cols + p.col + u];
            }
            if (mode == GK_SCAN_MEAN) g.v[u] /= n;
            if (mode == GK_MAX || mode == GK_MIN) g.v[u] = b == GK_R(0.0) ? GK_NAN : g.v[u] / b;
            if (mode == GK_VAR) g.v[u] *= GK_R(2.0) / n;
            if (mode == GK_STD) g.v[u] /= n * gk_sqrt(b + eps);
        }
    }
    for (gk_i64 r = p.r0 + p.lane; r < p.r1; r += ty) {
        gk_i64 at = r * cols + p.col;
        gk_vec d = g;
        if (covered && mode >= GK_MAX) {
            gk_vec v = gk_item(x, at, wide);
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                if (mode >= GK_VAR) d.v[u] *= v.v[u] - a.v[u];
                else if (v.v[u] != a.v[u] && !gk_isnan(a.v[u])) d.v[u] = GK_R(0.0);
            }
        }
        if (wide) {
            if (accumulate) {
                gk_vec o = gk_loadv(dx, at);
                GK_UNROLL for (int u = 0; u < GK_W; u++) d.v[u] += o.v[u];
            }
            gk_storev(dx, at, d);
        } else {
            gk_store(dx, at, accumulate ? gk_load(dx, at) + d.v[0] : d.v[0]);
        }
    }
}
