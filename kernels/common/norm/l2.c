/* Scaling to unit length along an axis of a contiguous tensor [outer, K, inner]:  y = x / max(r, eps), r = sqrt(sum x^2);
 * dx (+)= (dy - x * sum(dy * x) / r^2) / r, and dy / eps where r <= eps.
 * _registers: inner = 1, a row of aligned 16-byte items in the registers of `lanes` threads, read once; _rows: inner = 1, `lanes` threads per row;
 * _columns: inner > 1, threads side by side on the inner axis. The last two read twice, the second time from cache.
 * Launch: blocks on axis 0 loop. Arithmetic in gk_f. Deterministic. Reference: F.normalize.
 */
#include "common/prelude/rows.h"

GK_FN gk_vec gk_l2_grad(gk_vec g, gk_vec a, gk_f r, gk_f t, gk_f eps)
{
    gk_f scale = r <= eps ? GK_R(1.0) / eps : GK_R(1.0) / r, c = r <= eps ? GK_R(0.0) : t * scale * scale;
    GK_UNROLL for (int k = 0; k < GK_W; k++) g.v[k] = (g.v[k] - a.v[k] * c) * scale;
    return g;
}
GK_FN void gk_l2_add(GK_GLOBAL gk_t* dx, gk_i64 i, gk_vec g, int wide, int accumulate)
{
    if (accumulate) {
        gk_vec o = gk_item(dx, i, wide);
        GK_UNROLL for (int k = 0; k < GK_W; k++) g.v[k] += o.v[k];
    }
    gk_put_item(dx, i, g, wide);
}

/* Items that a thread of l2_registers holds. */
#define GK_L2_KEEP 4

// Units: FLOATS64
/* dy null: forward, y = dx. */
GK_KERNEL(l2_registers)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 items, int lanes, gk_f eps, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, base = row * items, end = row < rows ? items : 0;
        gk_f s = GK_R(0.0), t = GK_R(0.0);
        gk_vec a[GK_L2_KEEP], g[GK_L2_KEEP];
        GK_UNROLL for (int j = 0; j < GK_L2_KEEP; j++) {
            gk_i64 i = (base + lane + j * lanes) * GK_W;
            a[j] = gk_loadv_if(x, i, lane + j * lanes < end, GK_R(0.0));
            g[j] = gk_loadv_if(dy, i, dy && lane + j * lanes < end, GK_R(0.0));
        }
        GK_UNROLL for (int j = 0; j < GK_L2_KEEP; j++)
            GK_UNROLL for (int k = 0; k < GK_W; k++) { s += a[j].v[k] * a[j].v[k]; t += a[j].v[k] * g[j].v[k]; }
        s = gk_sqrt(gk_group_sum(s, tmp, lanes));
        if (dy) t = gk_group_sum(t, tmp, lanes);
        GK_UNROLL for (int j = 0; j < GK_L2_KEEP; j++)
            if (lane + j * lanes < end) {
                gk_f scale = GK_R(1.0) / gk_max(s, eps);
                if (dy) g[j] = gk_l2_grad(g[j], a[j], s, t, eps);
                else GK_UNROLL for (int k = 0; k < GK_W; k++) g[j].v[k] = a[j].v[k] * scale;
                gk_l2_add(y, (base + lane + j * lanes) * GK_W, g[j], 1, accumulate);
            }
    }
}

GK_KERNEL(l2_rows)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, int lanes, int wide, gk_f eps)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1), w = wide ? GK_W : 1;
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, base = row * cols, end = row < rows ? cols / w : 0;
        gk_f s = GK_R(0.0);
        for (gk_i64 i = lane; i < end; i += lanes) {
            gk_vec a = gk_item(x, base + i * w, wide);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s += a.v[k] * a.v[k];
        }
        s = GK_R(1.0) / gk_max(gk_sqrt(gk_group_sum(s, tmp, lanes)), eps);
        for (gk_i64 i = lane; i < end; i += lanes) {
            gk_vec a = gk_item(x, base + i * w, wide);
            GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] *= s;
            gk_put_item(y, base + i * w, a, wide);
        }
    }
}

GK_KERNEL(l2_bwd_rows)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, dx), gk_i64 rows, gk_i64 cols, int lanes, int wide, gk_f eps, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1), w = wide ? GK_W : 1;
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 b = (gk_i64)gk_bid(0) * per; b < rows; b += gk_nblocks(0) * per) {
        gk_i64 row = b + gk_lid() / lanes, base = row * cols, end = row < rows ? cols / w : 0;
        gk_f s = GK_R(0.0), t = GK_R(0.0);
        for (gk_i64 i = lane; i < end; i += lanes) {
            gk_vec a = gk_item(x, base + i * w, wide), g = gk_item(dy, base + i * w, wide);
            GK_UNROLL for (int k = 0; k < GK_W; k++) { s += a.v[k] * a.v[k]; t += a.v[k] * g.v[k]; }
        }
        s = gk_sqrt(gk_group_sum(s, tmp, lanes));
        t = gk_group_sum(t, tmp, lanes);
        for (gk_i64 i = lane; i < end; i += lanes) {
            gk_vec a = gk_item(x, base + i * w, wide), g = gk_item(dy, base + i * w, wide);
            gk_l2_add(dx, base + i * w, gk_l2_grad(g, a, s, t, eps), wide, accumulate);
        }
    }
}

/* Sums of x^2 and, unless dy is null, of dy * x over every `step`-th row from k to end, GK_L2_KEEP of them in flight. */
GK_FN void gk_l2_column_sums(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, gk_i64 base, gk_i64 k, gk_i64 end, int step, gk_i64 inner, int wide,
                             gk_vec* s, gk_vec* t)
{
    GK_UNROLL for (int c = 0; c < GK_W; c++) s->v[c] = t->v[c] = GK_R(0.0);
    for (; k < end; k += GK_L2_KEEP * step) {
        gk_vec a[GK_L2_KEEP], g[GK_L2_KEEP];
        GK_UNROLL for (int u = 0; u < GK_L2_KEEP; u++) {
            a[u] = gk_item_if(x, base + (k + u * step) * inner, wide, k + u * step < end);
            g[u] = gk_item_if(dy, base + (k + u * step) * inner, wide, dy && k + u * step < end);
        }
        GK_UNROLL for (int u = 0; u < GK_L2_KEEP; u++)
            GK_UNROLL for (int c = 0; c < GK_W; c++) { s->v[c] += a[u].v[c] * a[u].v[c]; t->v[c] += a[u].v[c] * g[u].v[c]; }
    }
}

/* dy null: forward, y = dx. */
GK_KERNEL(l2_columns)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 outer, gk_i64 cols, gk_i64 inner, int tx, int wide, gk_f eps,
                      int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int ty = gk_lid() / tx, step = GK_BLOCK / tx, w = wide ? GK_W : 1;
    gk_i64 across = inner / w, items = outer * across, tiles = (items + tx - 1) / tx;
    for (gk_i64 b = gk_bid(0); b < tiles; b += gk_nblocks(0)) {
        gk_i64 item = b * tx + (gk_lid() & (tx - 1)), base = item / across * cols * inner + item % across * w, end = item < items ? cols : 0;
        gk_vec s, t;
        gk_l2_column_sums(dy, x, base, ty, end, step, inner, wide, &s, &t);
        GK_UNROLL for (int c = 0; c < GK_W; c++)
            if (c == 0 || wide) {
                gk_f r = gk_sqrt(gk_across_sum(s.v[c], tmp, tx)), scale = GK_R(1.0) / gk_max(r, eps);
                t.v[c] = gk_across_sum(t.v[c], tmp, tx);
                /* Factors of dy and of x. */
                s.v[c] = scale;
                t.v[c] = r <= eps ? GK_R(0.0) : t.v[c] * scale * scale;
            }
        for (gk_i64 k = ty; k < end; k += step) {
            gk_vec a = gk_item(x, base + k * inner, wide), g = gk_item_if(dy, base + k * inner, wide, dy != 0);
            GK_UNROLL for (int c = 0; c < GK_W; c++) g.v[c] = dy ? (g.v[c] - a.v[c] * t.v[c]) * s.v[c] : a.v[c] * s.v[c];
            gk_l2_add(y, base + k * inner, g, wide, accumulate);
        }
    }
}
