/* Softmax and log-softmax along an axis of a contiguous tensor [outer, K, inner], forward and backward. GK_OP names the function.
 *
 *   softmax:     y = e^(x - m) / s             dx (+)= y * (dy - sum of dy * y)
 *   log-softmax: y = x - m - ln s              dx (+)= dy - e^y * sum of dy             m = max x, s = sum of e^(x - m) along the axis
 * _shortN: inner = 1, `lanes` threads hold a row in registers, N pieces of 16 bytes each.  _heldN: the same over the blocks of a cluster, N
 * elements per thread.  _rows: inner = 1, `lanes` threads read a row twice; m and s are found in
 * one pass, in which s is rescaled when m grows.  _part and _apply: the same for long rows cut into `splits` runs of `chunk` elements, whose
 * statistics pass through memory.  _cols: inner > 1, threads lie side by side on the inner axis.
 * Launch: blocks on axis 0 loop over rows or tiles. Arithmetic in gk_f. Deterministic. A slice of only -inf, or with +inf or NaN, is all NaN.
 * Output and input may be one tensor. Reference: torch.softmax, torch.log_softmax; Milakov and Gimelshein, 2018 (one-pass normaliser).
 */
#include "common/prelude/rows.h"
#define gk_softmax_log 0
#define gk_log_softmax_log 1
#if GK_CAT(GK_OP, _log)
#define GK_OUT_OF(x, m, r) ((x) - (m) - (r))
#define GK_SCALE_OF(s) gk_log(s)
#define GK_TERM(g, y) ((void)(y), (g))
#define GK_SOFTMAX_GRAD(g, y, t) ((g) - gk_exp_t(y) * (t))
#else
#define GK_OUT_OF(x, m, r) (gk_exp_t((x) - (m)) * (r))
#define GK_SCALE_OF(s) (GK_R(1.0) / (s))
#define GK_TERM(g, y) ((g) * (y))
#define GK_SOFTMAX_GRAD(g, y, t) ((y) * ((g) - (t)))
#endif

#define GK_SOFTMAX_DEPTH 4 /* 16-byte accesses in flight per thread */
#define GK_DEPTH_PART 2 /* the same where the statistics of long rows are found; more are slower (measured) */
#define GK_SOFTMAX_GROUP 32 /* threads that exchange without barriers on current GPUs */
#define GK_SOFTMAX_RUNS (2 * GK_BLOCK / GK_SOFTMAX_GROUP)

/* The larger number in one instruction. A NaN is not seen by the maximum, but by the sum of exponentials. */
#define gk_fmax(a, b) GK_M(fmax)(a, b)
/* Maximum and sum of exponentials relative to it. */
typedef struct { gk_f m, s; } gk_norm;
GK_FN gk_norm gk_norm_begin(void) { gk_norm n; n.m = -GK_INF; n.s = GK_R(0.0); return n; }
/* The sum relative to m instead of n.m <= m; beside -inf it is 0, or NaN where one was seen. */
GK_FN gk_f gk_norm_at(gk_norm n, gk_f m) { return n.m == m || n.m == -GK_INF ? n.s : n.s * gk_exp_t(n.m - m); }
/* Takes in n values, n a constant power of two; v is used up. */
GK_FN void gk_norm_take(gk_norm* a, gk_f* v, const int n)
{
    gk_f m = a->m;
    GK_UNROLL for (int k = 0; k < n; k++) m = gk_fmax(m, v[k]);
    gk_f from = m == -GK_INF ? GK_R(0.0) : m;
    GK_UNROLL for (int k = 0; k < n; k++) v[k] = gk_exp_t(v[k] - from);
    GK_UNROLL for (int w = n / 2; w > 0; w /= 2)
        GK_UNROLL for (int k = 0; k < w; k++) v[k] += v[k + w];
    a->s = v[0] + gk_norm_at(*a, m);
    a->m = m;
}
/* Combines the statistics of runs of `lanes` threads, at most GK_SOFTMAX_GROUP; result in all of them. */
GK_FN gk_norm gk_norm_combine_group(gk_norm a, GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_norm r;
    r.m = gk_group_max(a.m, tmp, lanes);
    r.s = gk_group_sum(gk_norm_at(a, r.m), tmp, lanes);
    return r;
}
/* Combines statistics that the threads of each group share already, over `lanes` threads; runs: GK_SOFTMAX_RUNS numbers. */
GK_FN gk_norm gk_norm_combine_groups(gk_norm a, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs, int lanes)
{
    int t = gk_lid(), g = t / GK_SOFTMAX_GROUP, per = lanes / GK_SOFTMAX_GROUP, from = g / per * per + (t & (per - 1));
    GK_BARRIER();
    if (t % GK_SOFTMAX_GROUP == 0) { runs[2 * g] = a.m; runs[2 * g + 1] = a.s; }
    GK_BARRIER();
    a.m = runs[2 * from];
    a.s = runs[2 * from + 1];
    return gk_norm_combine_group(a, tmp, per);
}
/* Combines the statistics of runs of `lanes` threads; result in all of them. */
GK_FN gk_norm gk_norm_combine_rows(gk_norm a, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs, int lanes)
{
    a = gk_norm_combine_group(a, tmp, lanes < GK_SOFTMAX_GROUP ? lanes : GK_SOFTMAX_GROUP);
    return lanes > GK_SOFTMAX_GROUP ? gk_norm_combine_groups(a, tmp, runs, lanes) : a;
}
/* What the outputs need besides m; NaN for a slice of only -inf or with +inf. */
GK_FN gk_f gk_norm_scale(gk_norm a) { return gk_isinf(a.m) ? GK_NAN : GK_SCALE_OF(a.s); }

/* ---- short rows, held in registers -------------------------------------------------------------------------------------------
 * `wide`: K is a multiple of GK_W and all rows are aligned; otherwise a piece is GK_W elements that lie `lanes` apart. */

#define GK_KEEP 8 /* most pieces of a row per thread */

/* The pieces of a row that a lane holds; `fill` where the row has ended. One branch for all pieces, so that their loads are in flight together.
 * `once`: caches need not keep them. */
GK_FN void gk_hold(gk_vec* a, GK_GLOBAL const gk_t* p, gk_i64 base, int lane, int lanes, int cols, int wide, gk_f fill, const int once,
                   const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u++)
        GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = fill;
    if (wide) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            int i = (lane + u * lanes) * GK_W;
            if (i < cols) a[u] = once ? gk_loadv_stream(p, base + i) : gk_loadv(p, base + i);
        }
    } else {
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                int i = lane + (u * GK_W + k) * lanes;
                if (i < cols) a[u].v[k] = gk_load(p, base + i);
            }
    }
}
GK_FN void gk_put_held(GK_GLOBAL gk_t* p, gk_i64 base, int lane, int lanes, int cols, int wide, const gk_vec* a, const int once, const int keep)
{
    if (wide) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            int i = (lane + u * lanes) * GK_W;
            if (i < cols && once) gk_storev_stream(p, base + i, a[u]);
            if (i < cols && !once) gk_storev_quick(p, base + i, a[u]);
        }
    } else {
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                int i = lane + (u * GK_W + k) * lanes;
                if (i < cols) gk_store(p, base + i, a[u].v[k]);
            }
    }
}

/* Statistics of the pieces that `group` threads hold. The pieces of a softmax become powers relative to the answer: the maximum of the group, so that
 * the groups of a row meet only once. */
GK_FN gk_f gk_held_norm(gk_vec* a, gk_norm* n, GK_LOCAL_PTR gk_f* tmp, int group, const int keep)
{
    *n = gk_norm_begin();
    GK_UNROLL for (int u = 0; u < keep; u++)
        GK_UNROLL for (int k = 0; k < GK_W; k++) n->m = gk_fmax(n->m, a[u].v[k]);
    n->m = gk_group_max(n->m, tmp, group);
    gk_f own = n->m == -GK_INF ? GK_R(0.0) : n->m;
    GK_UNROLL for (int u = 0; u < keep; u++) {
        gk_f s = GK_R(0.0);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_f e = gk_exp_t(a[u].v[k] - own);
#if !GK_CAT(GK_OP, _log)
            a[u].v[k] = e;
#endif
            s += e;
        }
        n->s += s;
    }
    n->s = gk_group_sum(n->s, tmp, group);
    return own;
}
/* The results from what gk_held_norm left. */
GK_FN void gk_held_out(gk_vec* a, gk_f m, gk_f r, const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u++) {
#if GK_CAT(GK_OP, _log)
        GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = GK_OUT_OF(a[u].v[k], m, r);
#else
        (void)m;
        GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] *= r;
#endif
    }
}

GK_FN void gk_softmax_short(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs, gk_i64 rows, int cols,
                            int lanes, int wide, const int keep)
{
    int lane = gk_lid() & (lanes - 1), group = lanes < GK_SOFTMAX_GROUP ? lanes : GK_SOFTMAX_GROUP;
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, base = row * cols;
        int n_cols = row < rows ? cols : 0;
        gk_vec a[GK_KEEP];
        gk_norm n;
        gk_hold(a, x, base, lane, lanes, n_cols, wide, -GK_INF, 0, keep);
        gk_f own = gk_held_norm(a, &n, tmp, group, keep);
        if (lanes > GK_SOFTMAX_GROUP) n = gk_norm_combine_groups(n, tmp, runs, lanes);
        gk_f r = gk_norm_scale(n);
        if (!GK_CAT(GK_OP, _log) && lanes > GK_SOFTMAX_GROUP) r *= gk_exp_t(own - n.m);
        gk_held_out(a, n.m, r, keep);
        gk_put_held(y, base, lane, lanes, n_cols, wide, a, 0, keep);
    }
}

GK_FN void gk_softmax_bwd_short(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, GK_GLOBAL gk_t* dx, GK_LOCAL_PTR gk_f* tmp, gk_i64 rows, int cols,
                                int lanes, int wide, int accumulate, const int keep)
{
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, base = row * cols;
        int n_cols = row < rows ? cols : 0;
        gk_vec g[GK_KEEP], a[GK_KEEP];
        gk_f t = GK_R(0.0);
        gk_hold(g, dy, base, lane, lanes, n_cols, wide, GK_R(0.0), 0, keep);
        gk_hold(a, y, base, lane, lanes, n_cols, wide, GK_R(0.0), 0, keep);
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) t += GK_TERM(g[u].v[k], a[u].v[k]);
        t = gk_group_sum(t, tmp, lanes);
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] = GK_SOFTMAX_GRAD(g[u].v[k], a[u].v[k], t);
        if (accumulate) {
            gk_hold(a, dx, base, lane, lanes, n_cols, wide, GK_R(0.0), 0, keep);
            GK_UNROLL for (int u = 0; u < keep; u++)
                GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] += a[u].v[k];
        }
        gk_put_held(dx, base, lane, lanes, n_cols, wide, g, 0, keep);
    }
}

/* What a row takes, and no more: other rows hide the wait for this one. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_W >= 8 ? 3 : 6)
#endif
// Units: FLOATS64 x SOFTMAXES
GK_KERNEL(softmax_registers1)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, int cols, int lanes, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    gk_softmax_short(x, y, tmp, runs, rows, cols, lanes, wide, 1);
}

GK_KERNEL(softmax_registers2)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, int cols, int lanes, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    gk_softmax_short(x, y, tmp, runs, rows, cols, lanes, wide, 2);
}

GK_KERNEL(softmax_registers4)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, int cols, int lanes, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    gk_softmax_short(x, y, tmp, runs, rows, cols, lanes, wide, 4);
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3
#endif
GK_KERNEL(softmax_registers8)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, int cols, int lanes, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    gk_softmax_short(x, y, tmp, runs, rows, cols, lanes, wide, 8);
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_W >= 8 ? 3 : 6)
#endif
GK_KERNEL(softmax_bwd_registers1)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 rows, int cols, int lanes, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_softmax_bwd_short(dy, y, dx, tmp, rows, cols, lanes, wide, accumulate, 1);
}

GK_KERNEL(softmax_bwd_registers2)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 rows, int cols, int lanes, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_softmax_bwd_short(dy, y, dx, tmp, rows, cols, lanes, wide, accumulate, 2);
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_W >= 8 ? 2 : 4)
#endif
GK_KERNEL(softmax_bwd_registers4)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 rows, int cols, int lanes, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_softmax_bwd_short(dy, y, dx, tmp, rows, cols, lanes, wide, accumulate, 4);
}

/* ---- longer rows, held by the blocks of a cluster: read once ------------------------------------------------------------------------
 * A cluster per row. met: what the blocks of the cluster found, maximum and sum, or their shares of the sum. */

#define GK_HELD (64 / GK_W)    /* most pieces of a thread in registers */
#define GK_IN_FLIGHT (16 / GK_W) /* pieces that are looked at together */
#define GK_PARTS 2             /* most parts of a row */

/* `parts` times `keep` pieces per thread: the last part waits in registers, those before it in `kept`, so that more rows are under way. */
GK_FN void gk_softmax_held(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_LOCAL_PTR gk_f* met, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* runs,
                           GK_LOCAL_PTR gk_f* kept, int cols, int wide, const int keep, const int parts)
{
    const int lanes = GK_CLUSTER * GK_BLOCK, step = keep * lanes * GK_W;
    int block = gk_bid(0) % GK_CLUSTER, lane = block * GK_BLOCK + gk_lid();
    gk_i64 base = (gk_i64)(gk_bid(0) / GK_CLUSTER) * cols;
    gk_vec a[GK_KEEP];
    gk_f own[GK_PARTS];
    gk_norm n = gk_norm_begin(), all = gk_norm_begin();
    GK_CLUSTER_ARRIVE();
    GK_UNROLL for (int c = 0; c < parts; c++) {
        gk_norm part;
        gk_hold(a, x, base + c * step, lane, lanes, cols - c * step, wide, -GK_INF, 1, keep);
        own[c] = gk_held_norm(a, &part, tmp, GK_SOFTMAX_GROUP, keep);
        gk_f m = gk_fmax(n.m, part.m);
        n.s = gk_norm_at(n, m) + gk_norm_at(part, m);
        n.m = m;
        if (c + 1 < parts)
            GK_UNROLL for (int u = 0; u < keep; u++)
                GK_UNROLL for (int k = 0; k < GK_W; k++) kept[((c * keep + u) * GK_W + k) * GK_BLOCK + gk_lid()] = a[u].v[k];
    }
    n = gk_norm_combine_groups(n, tmp, runs, GK_BLOCK);
    GK_CLUSTER_WAIT();
    if (gk_lid() < GK_CLUSTER) {
        gk_cluster_put(met + 2 * block, n.m, gk_lid());
        gk_cluster_put(met + 2 * block + 1, n.s, gk_lid());
    }
    GK_CLUSTER_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_CLUSTER; k++) all.m = gk_fmax(all.m, met[2 * k]);
    GK_UNROLL for (int k = 0; k < GK_CLUSTER; k++) {
        n.m = met[2 * k];
        n.s = met[2 * k + 1];
        all.s += gk_norm_at(n, all.m);
    }
    gk_f r = gk_norm_scale(all);
    GK_UNROLL for (int c = parts - 1; c >= 0; c--) {
        if (c + 1 < parts)
            GK_UNROLL for (int u = 0; u < keep; u++)
                GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = kept[((c * keep + u) * GK_W + k) * GK_BLOCK + gk_lid()];
        gk_held_out(a, all.m, GK_CAT(GK_OP, _log) ? r : r * gk_exp_t(own[c] - all.m), keep);
        gk_put_held(y, base + c * step, lane, lanes, cols - c * step, wide, a, 1, keep);
    }
}

/* dy stays in registers; y is read again, from a cache. */
GK_FN void gk_softmax_bwd_held(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, GK_GLOBAL gk_t* dx, GK_LOCAL_PTR gk_f* met, GK_LOCAL_PTR gk_f* tmp,
                               int cols, int wide, int accumulate, const int keep)
{
    const int lanes = GK_CLUSTER * GK_BLOCK, step = GK_IN_FLIGHT * lanes * GK_W;
    int block = gk_bid(0) % GK_CLUSTER, lane = block * GK_BLOCK + gk_lid();
    gk_i64 base = (gk_i64)(gk_bid(0) / GK_CLUSTER) * cols;
    gk_vec g[GK_HELD], a[GK_IN_FLIGHT], o[GK_IN_FLIGHT];
    gk_f t = GK_R(0.0);
    GK_CLUSTER_ARRIVE();
    gk_hold(g, dy, base, lane, lanes, cols, wide, GK_R(0.0), 0, keep);
    GK_UNROLL for (int c = 0; c < keep / GK_IN_FLIGHT; c++) {
        gk_hold(a, y, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), 0, GK_IN_FLIGHT);
        GK_UNROLL for (int u = 0; u < GK_IN_FLIGHT; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) t += GK_TERM(g[c * GK_IN_FLIGHT + u].v[k], a[u].v[k]);
    }
    t = gk_block_sum(t, tmp);
    GK_CLUSTER_WAIT();
    if (gk_lid() < GK_CLUSTER) gk_cluster_put(met + block, t, gk_lid());
    GK_CLUSTER_BARRIER();
    t = GK_R(0.0);
    GK_UNROLL for (int k = 0; k < GK_CLUSTER; k++) t += met[k];
    GK_UNROLL for (int c = 0; c < keep / GK_IN_FLIGHT; c++) {
        gk_hold(a, y, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), 0, GK_IN_FLIGHT);
        if (accumulate) gk_hold(o, dx, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), 0, GK_IN_FLIGHT);
        GK_UNROLL for (int u = 0; u < GK_IN_FLIGHT; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_f d = GK_SOFTMAX_GRAD(g[c * GK_IN_FLIGHT + u].v[k], a[u].v[k], t);
                a[u].v[k] = accumulate ? o[u].v[k] + d : d;
            }
        gk_put_held(dx, base + c * step, lane, lanes, cols - c * step, wide, a, 0, GK_IN_FLIGHT);
    }
}

#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#endif
GK_KERNEL(softmax_cluster16)(GK_IN(gk_t, x), GK_OUT(gk_t, y), int cols, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f met[2 * GK_CLUSTER], tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    gk_softmax_held(x, y, met, tmp, runs, tmp, cols, wide, 16 / GK_W, 1);
}

GK_KERNEL(softmax_bwd_cluster16)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), int cols, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f met[GK_CLUSTER], tmp[GK_BLOCK];
    gk_softmax_bwd_held(dy, y, dx, met, tmp, cols, wide, accumulate, 16 / GK_W);
}

/* Longer rows of doubles would not fit. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
// Units: FLOATS x SOFTMAXES
GK_KERNEL(softmax_cluster64)(GK_IN(gk_t, x), GK_OUT(gk_t, y), int cols, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f met[2 * GK_CLUSTER], tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS], kept[32 * GK_BLOCK];
    gk_softmax_held(x, y, met, tmp, runs, kept, cols, wide, 32 / GK_W, GK_PARTS);
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
GK_KERNEL(softmax_bwd_cluster64)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), int cols, int wide, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f met[GK_CLUSTER], tmp[GK_BLOCK];
    gk_softmax_bwd_held(dy, y, dx, met, tmp, cols, wide, accumulate, 64 / GK_W);
}
#endif
#undef GK_CLUSTERING
#define GK_CLUSTERING

/* ---- rows of any length ------------------------------------------------------------------------------------------------------ */

GK_FN gk_norm gk_run_norm(GK_GLOBAL const gk_t* x, gk_run run, int lane, int lanes, const int depth)
{
    gk_norm n = gk_norm_begin();
    gk_i64 i = lane;
    for (; i + (depth - 1) * lanes < run.items; i += depth * lanes) {
        gk_vec a[GK_SOFTMAX_DEPTH];
        gk_f v[GK_SOFTMAX_DEPTH * GK_W];
        GK_UNROLL for (int u = 0; u < depth; u++) a[u] = gk_loadv(x, run.items_from + (i + u * lanes) * GK_W);
        GK_UNROLL for (int u = 0; u < depth; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) v[u * GK_W + k] = a[u].v[k];
        gk_norm_take(&n, v, depth * GK_W);
    }
    for (; i < run.items; i += lanes) {
        gk_vec a = gk_loadv(x, run.items_from + i * GK_W);
        gk_norm_take(&n, a.v, GK_W);
    }
    for (i = run.from + lane; i < run.items_from; i += lanes) { gk_f v[1]; v[0] = gk_load(x, i); gk_norm_take(&n, v, 1); }
    for (i = run.tail_from + lane; i < run.to; i += lanes) { gk_f v[1]; v[0] = gk_load(x, i); gk_norm_take(&n, v, 1); }
    return n;
}

GK_FN void gk_run_out(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, gk_run run, int lane, int lanes, gk_f m, gk_f r)
{
    gk_i64 i = lane;
    for (; i + (GK_SOFTMAX_DEPTH - 1) * lanes < run.items; i += GK_SOFTMAX_DEPTH * lanes) {
        gk_vec a[GK_SOFTMAX_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++) a[u] = gk_loadv(x, run.items_from + (i + u * lanes) * GK_W);
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = GK_OUT_OF(a[u].v[k], m, r);
            gk_storev_quick(y, run.items_from + (i + u * lanes) * GK_W, a[u]);
        }
    }
    for (; i < run.items; i += lanes) {
        gk_vec a = gk_loadv(x, run.items_from + i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_OUT_OF(a.v[k], m, r);
        gk_storev_quick(y, run.items_from + i * GK_W, a);
    }
    for (i = run.from + lane; i < run.items_from; i += lanes) gk_store(y, i, GK_OUT_OF(gk_load(x, i), m, r));
    for (i = run.tail_from + lane; i < run.to; i += lanes) gk_store(y, i, GK_OUT_OF(gk_load(x, i), m, r));
}

GK_FN gk_f gk_run_sum(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, gk_run run, int lane, int lanes)
{
    gk_f t = GK_R(0.0);
    gk_i64 i = lane;
    for (; i + (GK_SOFTMAX_DEPTH - 1) * lanes < run.items; i += GK_SOFTMAX_DEPTH * lanes) {
        gk_vec g[GK_SOFTMAX_DEPTH], a[GK_SOFTMAX_DEPTH];
        gk_f p = GK_R(0.0);
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++) {
            g[u] = gk_loadv(dy, run.items_from + (i + u * lanes) * GK_W);
            a[u] = gk_loadv(y, run.items_from + (i + u * lanes) * GK_W);
        }
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) p += GK_TERM(g[u].v[k], a[u].v[k]);
        t += p;
    }
    for (; i < run.items; i += lanes) {
        gk_vec g = gk_loadv(dy, run.items_from + i * GK_W), a = gk_loadv(y, run.items_from + i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) t += GK_TERM(g.v[k], a.v[k]);
    }
    for (i = run.from + lane; i < run.items_from; i += lanes) t += GK_TERM(gk_load(dy, i), gk_load(y, i));
    for (i = run.tail_from + lane; i < run.to; i += lanes) t += GK_TERM(gk_load(dy, i), gk_load(y, i));
    return t;
}

GK_FN void gk_grad_one(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, GK_GLOBAL gk_t* dx, gk_i64 i, gk_f t, int accumulate)
{
    gk_f g = GK_SOFTMAX_GRAD(gk_load(dy, i), gk_load(y, i), t);
    gk_store(dx, i, accumulate ? gk_load(dx, i) + g : g);
}

GK_FN void gk_run_grad(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, GK_GLOBAL gk_t* dx, gk_run run, int lane, int lanes, gk_f t, int accumulate)
{
    gk_i64 i = lane;
    for (; !accumulate && i + (GK_SOFTMAX_DEPTH / 2 - 1) * lanes < run.items; i += GK_SOFTMAX_DEPTH / 2 * lanes) {
        gk_vec g[GK_SOFTMAX_DEPTH / 2], a[GK_SOFTMAX_DEPTH / 2];
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH / 2; u++) {
            g[u] = gk_loadv(dy, run.items_from + (i + u * lanes) * GK_W);
            a[u] = gk_loadv(y, run.items_from + (i + u * lanes) * GK_W);
        }
        GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH / 2; u++) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] = GK_SOFTMAX_GRAD(g[u].v[k], a[u].v[k], t);
            gk_storev_quick(dx, run.items_from + (i + u * lanes) * GK_W, g[u]);
        }
    }
    for (; i < run.items; i += lanes) {
        gk_i64 e = run.items_from + i * GK_W;
        gk_vec g = gk_loadv(dy, e), a = gk_loadv(y, e), o = a;
        if (accumulate) o = gk_loadv(dx, e);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_f d = GK_SOFTMAX_GRAD(g.v[k], a.v[k], t);
            o.v[k] = accumulate ? o.v[k] + d : d;
        }
        gk_storev_quick(dx, e, o);
    }
    for (i = run.from + lane; i < run.items_from; i += lanes) gk_grad_one(dy, y, dx, i, t, accumulate);
    for (i = run.tail_from + lane; i < run.to; i += lanes) gk_grad_one(dy, y, dx, i, t, accumulate);
}

/* Loads in flight matter more than other rows. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#endif
// Units: FLOATS64 x SOFTMAXES
GK_KERNEL(softmax_rows)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, int lanes, int wide, int phase)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, end = row < rows ? (row + 1) * cols : row * cols;
        gk_run run = gk_run_of(row * cols, end, wide, phase);
        gk_norm n = gk_norm_combine_rows(gk_run_norm(x, run, lane, lanes, GK_SOFTMAX_DEPTH), tmp, runs, lanes);
        gk_run_out(x, y, run, lane, lanes, n.m, gk_norm_scale(n));
    }
}

GK_KERNEL(softmax_bwd_rows)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 rows, gk_i64 cols, int lanes, int wide, int phase,
                            int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, end = row < rows ? (row + 1) * cols : row * cols;
        gk_run run = gk_run_of(row * cols, end, wide, phase);
        gk_f t = gk_group_sum(gk_run_sum(dy, y, run, lane, lanes), tmp, lanes);
        gk_run_grad(dy, y, dx, run, lane, lanes, t, accumulate);
    }
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 0
#endif

/* ---- long rows: a block per run; part holds (m, s) of each run, or its share of the sum ---------------------------------------------- */

GK_KERNEL(softmax_partial)(GK_IN(gk_t, x), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols, int splits, gk_i64 chunk, int wide, int phase)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK], runs[GK_SOFTMAX_RUNS];
    for (gk_i64 b = gk_bid(0); b < rows * splits; b += gk_nblocks(0)) {
        gk_run run = gk_run_of_block(b, cols, splits, chunk, wide, phase);
        gk_norm n = gk_norm_combine_rows(gk_run_norm(x, run, gk_lid(), GK_BLOCK, GK_DEPTH_PART), tmp, runs, GK_BLOCK);
        if (gk_lid() == 0) { part[2 * b] = n.m; part[2 * b + 1] = n.s; }
    }
}

/* norms[2r], norms[2r + 1] = m and scale of row r from its runs. Thread per row. */
GK_KERNEL(softmax_combine)(GK_IN(gk_f, part), GK_OUT(gk_f, norms), gk_i64 rows, int splits)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_f, norms);
    for (gk_i64 row = gk_gid(); row < rows; row += gk_gsize()) {
        gk_norm n = gk_norm_begin();
        for (int k = 0; k < splits; k++) {
            gk_norm o;
            o.m = part[2 * (row * splits + k)];
            o.s = part[2 * (row * splits + k) + 1];
            gk_f m = gk_max(n.m, o.m);
            n.s = gk_norm_at(n, m) + gk_norm_at(o, m);
            n.m = m;
        }
        norms[2 * row] = n.m;
        norms[2 * row + 1] = gk_norm_scale(n);
    }
}

GK_KERNEL(softmax_apply)(GK_IN(gk_t, x), GK_IN(gk_f, norms), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, int splits, gk_i64 chunk, int wide, int phase)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, norms); GK_BIND_OUT(gk_t, y);
    for (gk_i64 b = gk_bid(0); b < rows * splits; b += gk_nblocks(0)) {
        gk_run run = gk_run_of_block(b, cols, splits, chunk, wide, phase);
        gk_i64 row = b / splits;
        gk_run_out(x, y, run, gk_lid(), GK_BLOCK, norms[2 * row], norms[2 * row + 1]);
    }
}

GK_KERNEL(softmax_bwd_partial)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_f, part), gk_i64 rows, gk_i64 cols, int splits, gk_i64 chunk, int wide,
                               int phase)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 b = gk_bid(0); b < rows * splits; b += gk_nblocks(0)) {
        gk_run run = gk_run_of_block(b, cols, splits, chunk, wide, phase);
        gk_f t = gk_block_sum(gk_run_sum(dy, y, run, gk_lid(), GK_BLOCK), tmp);
        if (gk_lid() == 0) part[b] = t;
    }
}

GK_KERNEL(softmax_bwd_apply)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_IN(gk_f, part), GK_OUT(gk_t, dx), gk_i64 rows, gk_i64 cols, int splits, gk_i64 chunk,
                             int wide, int phase, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 b = gk_bid(0); b < rows * splits; b += gk_nblocks(0)) {
        gk_run run = gk_run_of_block(b, cols, splits, chunk, wide, phase);
        gk_f t = GK_R(0.0);
        for (int k = gk_lid(); k < splits; k += GK_BLOCK) t += part[b / splits * splits + k];
        t = gk_block_sum(t, tmp);
        gk_run_grad(dy, y, dx, run, gk_lid(), GK_BLOCK, t, accumulate);
    }
}

/* ---- an axis with others inside: `inner` is a multiple of GK_W and all is aligned if `wide` ------------------------------------------ */


GK_KERNEL(softmax_columns)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 outer, gk_i64 cols, gk_i64 inner, int tx, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 across = inner / w, items = outer * across, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles; b += gk_nblocks(0)) {
        gk_i64 item = b * tx + (gk_lid() & (tx - 1)), base = item / across * cols * inner + item % across * w, end = item < items ? cols : 0;
        gk_norm n[GK_W];
        gk_f r[GK_W];
        GK_UNROLL for (int c = 0; c < GK_W; c++) n[c] = gk_norm_begin();
        gk_i64 k = ty;
        for (; k + (GK_SOFTMAX_DEPTH - 1) * step < end; k += GK_SOFTMAX_DEPTH * step) {
            gk_vec a[GK_SOFTMAX_DEPTH];
            GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++) a[u] = gk_item(x, base + (k + u * step) * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) {
                gk_f v[GK_SOFTMAX_DEPTH];
                GK_UNROLL for (int u = 0; u < GK_SOFTMAX_DEPTH; u++) v[u] = a[u].v[c];
                if (c == 0 || wide) gk_norm_take(&n[c], v, GK_SOFTMAX_DEPTH);
            }
        }
        for (; k < end; k += step) {
            gk_vec a = gk_item(x, base + k * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++)
                if (c == 0 || wide) gk_norm_take(&n[c], &a.v[c], 1);
        }
        GK_UNROLL for (int c = 0; c < GK_W; c++) {
            r[c] = GK_R(0.0);
            if (c == 0 || wide) {
                gk_f m = gk_across_max(n[c].m, tmp, tx);
                n[c].s = gk_across_sum(gk_norm_at(n[c], m), tmp, tx);
                n[c].m = m;
                r[c] = gk_norm_scale(n[c]);
            }
        }
        for (k = ty; k < end; k += step) {
            gk_vec a = gk_item(x, base + k * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) a.v[c] = GK_OUT_OF(a.v[c], n[c].m, r[c]);
            gk_put_item(y, base + k * inner, a, wide);
        }
    }
}

GK_KERNEL(softmax_bwd_columns)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 outer, gk_i64 cols, gk_i64 inner, int tx, int wide,
                               int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 across = inner / w, items = outer * across, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles; b += gk_nblocks(0)) {
        gk_i64 item = b * tx + (gk_lid() & (tx - 1)), base = item / across * cols * inner + item % across * w, end = item < items ? cols : 0;
        gk_f t[GK_W];
        GK_UNROLL for (int c = 0; c < GK_W; c++) t[c] = GK_R(0.0);
        gk_i64 k = ty;
        for (; k + step < end; k += 2 * step) {
            gk_vec g0 = gk_item(dy, base + k * inner, wide), g1 = gk_item(dy, base + (k + step) * inner, wide);
            gk_vec a0 = gk_item(y, base + k * inner, wide), a1 = gk_item(y, base + (k + step) * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) t[c] += GK_TERM(g0.v[c], a0.v[c]) + GK_TERM(g1.v[c], a1.v[c]);
        }
        for (; k < end; k += step) {
            gk_vec g = gk_item(dy, base + k * inner, wide), a = gk_item(y, base + k * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) t[c] += GK_TERM(g.v[c], a.v[c]);
        }
        GK_UNROLL for (int c = 0; c < GK_W; c++)
            if (c == 0 || wide) t[c] = gk_across_sum(t[c], tmp, tx);
        for (k = ty; k < end; k += step) {
            gk_vec g = gk_item(dy, base + k * inner, wide), a = gk_item(y, base + k * inner, wide), o = a;
            if (accumulate) o = gk_item(dx, base + k * inner, wide);
            GK_UNROLL for (int c = 0; c < GK_W; c++) {
                gk_f d = GK_SOFTMAX_GRAD(g.v[c], a.v[c], t[c]);
                o.v[c] = accumulate ? o.v[c] + d : d;
            }
            gk_put_item(dx, base + k * inner, o, wide);
        }
    }
}
