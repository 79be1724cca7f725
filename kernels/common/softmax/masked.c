/* Softmax of scale * x + mask along rows, and its gradient: y = e^(v - max v) / sum of e^(v - max v);  dx (+)= scale * y * (dy - sum of dy * y).
 * The mask (0 and -inf, or any number to add) broadcasts over the rows: row r lies at the sum of digit * steps over the digits of r in the sizes of
 * the leading axes, its columns `step` apart (0 or 1). `lanes` threads share a row: what their registers hold is read once, the rest three times,
 * from cache. Launch: blocks on axis 0 loop. Arithmetic in gk_f. Deterministic. A row of only -inf is all NaN. Reference: torch.softmax.
 */
#include "common/prelude/rows.h"

#define GK_KEEP (32 / GK_W)

typedef struct {
    GK_GLOBAL const gk_t* x;
    GK_GLOBAL const gk_t* mask;
    gk_i64 start, mask_at;
    gk_f scale;
    int step, aligned;
} gk_masked_row;

GK_FN gk_vec gk_masked(const gk_masked_row* o, gk_i64 i, int wide)
{
    gk_vec v = gk_item(o->x, i, wide), m;
    gk_i64 e = i - o->start, at = o->mask_at + e * o->step;
    GK_UNROLL for (int k = 0; k < GK_W; k++) { v.v[k] *= o->scale; m.v[k] = GK_R(0.0); }
    if (o->mask) {
        if (wide && o->step == 1 && o->aligned && (at & (GK_W - 1)) == 0) {
            m = gk_loadv(o->mask, at);
        } else {
            GK_UNROLL for (int k = 0; k < GK_W; k++)
                if (k == 0 || wide) m.v[k] = gk_load(o->mask, at + k * o->step);
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += m.v[k];
    }
    return v;
}

// Units: FLOATS64
GK_KERNEL(softmax_masked)(GK_IN(gk_t, x), GK_IN(gk_t, mask), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, int lanes, int wide, int phase, gk_f scale,
                          int rank, GK_DIMS(sizes), GK_DIMS(steps), int step, int aligned)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, mask); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, end = row < rows ? (row + 1) * cols : row * cols, left = row;
        gk_run run = gk_run_of(row * cols, end, wide, phase);
        gk_masked_row o;
        gk_vec a[GK_KEEP];
        gk_f m = -GK_INF, s = GK_R(0.0);
        gk_i64 rest = (gk_i64)GK_KEEP * lanes + lane;
        o.x = x; o.mask = mask; o.start = row * cols; o.mask_at = 0; o.scale = scale; o.step = step; o.aligned = aligned;
        if (mask && row < rows)
            for (int d = rank - 1; d >= 0; d--) {
                gk_i64 up = gk_quot(left, sizes.v[d]);
                o.mask_at += (left - up * sizes.v[d]) * steps.v[d];
                left = up;
            }
        GK_UNROLL for (int u = 0; u < GK_KEEP; u++) {
            gk_i64 i = lane + (gk_i64)u * lanes;
            if (i < run.items) {
                a[u] = gk_masked(&o, run.items_from + i * GK_W, 1);
            } else {
                GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] = -GK_INF;
            }
            GK_UNROLL for (int k = 0; k < GK_W; k++) m = gk_max(m, a[u].v[k]);
        }
        for (gk_i64 i = rest; i < run.items; i += lanes) {
            gk_vec v = gk_masked(&o, run.items_from + i * GK_W, 1);
            GK_UNROLL for (int k = 0; k < GK_W; k++) m = gk_max(m, v.v[k]);
        }
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) m = gk_max(m, gk_masked(&o, i, 0).v[0]);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) m = gk_max(m, gk_masked(&o, i, 0).v[0]);
        m = gk_group_max(m, tmp, lanes);
        GK_UNROLL for (int u = 0; u < GK_KEEP; u++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) { a[u].v[k] = gk_exp(a[u].v[k] - m); s += a[u].v[k]; }
        for (gk_i64 i = rest; i < run.items; i += lanes) {
            gk_vec v = gk_masked(&o, run.items_from + i * GK_W, 1);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s += gk_exp(v.v[k] - m);
        }
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) s += gk_exp(gk_masked(&o, i, 0).v[0] - m);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) s += gk_exp(gk_masked(&o, i, 0).v[0] - m);
        s = GK_R(1.0) / gk_group_sum(s, tmp, lanes);
        GK_UNROLL for (int u = 0; u < GK_KEEP; u++) {
            gk_i64 i = lane + (gk_i64)u * lanes;
            if (i < run.items) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) a[u].v[k] *= s;
                gk_storev(y, run.items_from + i * GK_W, a[u]);
            }
        }
        for (gk_i64 i = rest; i < run.items; i += lanes) {
            gk_vec v = gk_masked(&o, run.items_from + i * GK_W, 1);
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = gk_exp(v.v[k] - m) * s;
            gk_storev(y, run.items_from + i * GK_W, v);
        }
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) gk_store(y, i, gk_exp(gk_masked(&o, i, 0).v[0] - m) * s);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) gk_store(y, i, gk_exp(gk_masked(&o, i, 0).v[0] - m) * s);
    }
}

GK_FN void gk_scaled_grad(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* y, GK_GLOBAL gk_t* dx, gk_i64 i, gk_f t, gk_f scale, int wide,
                          int accumulate)
{
    gk_vec g = gk_item(dy, i, wide), a = gk_item(y, i, wide);
    GK_UNROLL for (int k = 0; k < GK_W; k++) g.v[k] = scale * (a.v[k] * (g.v[k] - t));
    if (accumulate) {
        gk_vec o = gk_item(dx, i, wide);
        GK_UNROLL for (int k = 0; k < GK_W; k++) g.v[k] += o.v[k];
    }
    gk_put_item(dx, i, g, wide);
}

GK_KERNEL(softmax_masked_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, y), GK_OUT(gk_t, dx), gk_i64 rows, gk_i64 cols, int lanes, int wide, int phase, gk_f scale,
                              int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, y); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, end = row < rows ? (row + 1) * cols : row * cols;
        gk_run run = gk_run_of(row * cols, end, wide, phase);
        gk_f t = GK_R(0.0);
        for (gk_i64 i = lane; i < run.items; i += lanes) {
            gk_vec g = gk_loadv(dy, run.items_from + i * GK_W), a = gk_loadv(y, run.items_from + i * GK_W);
            GK_UNROLL for (int k = 0; k < GK_W; k++) t += g.v[k] * a.v[k];
        }
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) t += gk_load(dy, i) * gk_load(y, i);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) t += gk_load(dy, i) * gk_load(y, i);
        t = gk_group_sum(t, tmp, lanes);
        for (gk_i64 i = lane; i < run.items; i += lanes) gk_scaled_grad(dy, y, dx, run.items_from + i * GK_W, t, scale, 1, accumulate);
        for (gk_i64 i = run.from + lane; i < run.items_from; i += lanes) gk_scaled_grad(dy, y, dx, i, t, scale, 0, accumulate);
        for (gk_i64 i = run.tail_from + lane; i < run.to; i += lanes) gk_scaled_grad(dy, y, dx, i, t, scale, 0, accumulate);
    }
}
