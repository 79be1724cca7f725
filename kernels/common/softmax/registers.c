/* Softmax of rows that threads hold in registers, so that they are read once: short rows by `lanes` threads of a block, longer ones by the blocks
 * of a cluster. softmax/softmax.h has the formulas.
 *
 * wide: K is a multiple of GK_W and all rows are aligned; otherwise a piece is GK_W elements that lie `lanes` apart.
 * Launch: registersN, N pieces of GK_W elements per thread: blocks on axis 0 loop over rows; clusterN, N elements per thread: a cluster per row.
 */
#include "softmax.h"

#define GK_KEEP 8 /* most pieces of a row per thread */

/* The pieces of a row that a lane holds; `fill` where the row has ended. One branch for all pieces, so that their loads are in flight together. */
GK_FN void gk_hold(gk_vec* a, GK_GLOBAL const gk_t* p, gk_i64 base, int lane, int lanes, int cols, int wide, gk_f fill, const int keep)
{
    if (wide) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            int i = (lane + u * lanes) * GK_W;
            a[u] = gk_loadv_if(p, base + i, i < cols, fill);
        }
    } else {
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = fill;
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
            if (i < cols && !once) gk_storev(p, base + i, a[u]);
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
        gk_hold(a, x, base, lane, lanes, n_cols, wide, -GK_INF, keep);
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
        gk_hold(g, dy, base, lane, lanes, n_cols, wide, GK_R(0.0), keep);
        gk_hold(a, y, base, lane, lanes, n_cols, wide, GK_R(0.0), keep);
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) t += GK_TERM(g[u].v[k], a[u].v[k]);
        t = gk_group_sum(t, tmp, lanes);
        GK_UNROLL for (int u = 0; u < keep; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) g[u].v[k] = GK_SOFTMAX_GRAD(g[u].v[k], a[u].v[k], t);
        if (accumulate) {
            gk_hold(a, dx, base, lane, lanes, n_cols, wide, GK_R(0.0), keep);
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

/* Longer rows: a cluster per row. met: what the blocks of the cluster found, maximum and sum, or their shares of the sum. */

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
        gk_hold(a, x, base + c * step, lane, lanes, cols - c * step, wide, -GK_INF, keep);
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
    gk_hold(g, dy, base, lane, lanes, cols, wide, GK_R(0.0), keep);
    GK_UNROLL for (int c = 0; c < keep / GK_IN_FLIGHT; c++) {
        gk_hold(a, y, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), GK_IN_FLIGHT);
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
        gk_hold(a, y, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), GK_IN_FLIGHT);
        if (accumulate) gk_hold(o, dx, base + c * step, lane, lanes, cols - c * step, wide, GK_R(0.0), GK_IN_FLIGHT);
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
