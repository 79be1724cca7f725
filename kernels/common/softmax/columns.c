/* Softmax along an axis with others inside: `tx` threads lie side by side on the inner axis, and the others of a block share the slices.
 * softmax/softmax.h has the formulas.
 *
 * wide: inner is a multiple of GK_W and all is aligned. Launch: blocks on axis 0 loop over tiles of `tx` slices (items of GK_W slices if wide).
 */
#include "softmax.h"

// Units: FLOATS64 x SOFTMAXES
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
