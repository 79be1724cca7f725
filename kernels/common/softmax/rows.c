/* Softmax of rows of any length, which are read twice: m and s are found in one pass, in which s is rescaled when m grows. softmax/softmax.h has the
 * formulas.
 *
 * softmax_rows: `lanes` threads have a row. softmax_partial and softmax_apply: long rows are cut into `splits` runs of `chunk` elements, whose
 * statistics pass through memory. Launch: blocks on axis 0 loop over rows or runs.
 */
#include "softmax.h"

#define GK_DEPTH_PART 2 /* 16-byte accesses in flight per thread where the statistics of long rows are found; more are slower (measured) */

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
            gk_storev(y, run.items_from + (i + u * lanes) * GK_W, a[u]);
        }
    }
    for (; i < run.items; i += lanes) {
        gk_vec a = gk_loadv(x, run.items_from + i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_OUT_OF(a.v[k], m, r);
        gk_storev(y, run.items_from + i * GK_W, a);
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
            gk_storev(dx, run.items_from + (i + u * lanes) * GK_W, g[u]);
        }
    }
    for (; i < run.items; i += lanes) {
        gk_i64 e = run.items_from + i * GK_W;
        gk_vec g = gk_loadv(dy, e), a = gk_loadv(y, e), o = gk_loadv_if(dx, e, accumulate, GK_R(0.0));
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_f d = GK_SOFTMAX_GRAD(g.v[k], a.v[k], t);
            o.v[k] = accumulate ? o.v[k] + d : d;
        }
        gk_storev(dx, e, o);
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

/* Long rows: a block per run. part holds m and s of each run, or its share of the gradient's sum. */
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
