/* Depthwise convolution with 5 x 5 or 7 x 7 taps (`side`), stride and dilation 1 and paddings that keep the map's size, forward and adjoint, and its
 * weight gradient. As conv/depthwise.c, with more rows to a thread: rows of x are read one after the other, each for all rows of outputs whose
 * windows have it.
 */
#define GK_CONV_STRIP 4
#define GK_REACH 3
#include "depthwise.h"

/* Columns w - 3 .. w + 6 of a row. */
typedef struct { gk_f v[4 + 2 * GK_REACH]; } gk_line;

/* Of row h of a map; 0 outside. */
GK_FN gk_line gk_line_at(GK_GLOBAL const gk_t* x, int h, int w, int height, int width, int wide)
{
    gk_quad near = gk_quad_zero(), far = gk_quad_zero(), mid = gk_middle(x, h, w, height, width, wide);
    gk_four before, m, behind;
    gk_line r;
    if (w > 0) near = gk_middle(x, h, w - 4, height, width, wide);
    if (w + 4 < width) far = gk_middle(x, h, w + 4, height, width, wide);
    before = gk_quad_numbers(near);
    m = gk_quad_numbers(mid);
    behind = gk_quad_numbers(far);
    GK_UNROLL for (int u = 0; u < GK_REACH; u++) {
        r.v[u] = before.v[4 - GK_REACH + u];
        r.v[4 + GK_REACH + u] = behind.v[u];
    }
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[GK_REACH + u] = m.v[u];
    return r;
}

/* Sums of the strip at s; k: the channel's weights, `back`: in the opposite order. */
GK_FN void gk_sums(gk_four v[GK_CONV_STRIP], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_spot s, int height, int width, int back,
                   const int side, const int wide)
{
    gk_f k[49];
    GK_UNROLL for (int t = 0; t < side * side; t++) k[t] = gk_load(w, back ? side * side - 1 - t : t);
    GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++)
        GK_UNROLL for (int u = 0; u < 4; u++) v[r].v[u] = GK_R(0.0);
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + side - 1; a++) {
        gk_line l = gk_line_at(x, s.h + a - side / 2, s.w, height, width, wide);
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            if (a < r || a >= r + side) continue;
            GK_UNROLL for (int b = 0; b < side; b++) {
                GK_UNROLL for (int u = 0; u < 4; u++) v[r].v[u] += k[(a - r) * side + b] * l.v[GK_REACH - side / 2 + u + b];
            }
        }
    }
}
GK_FN void gk_sums_by(gk_four v[GK_CONV_STRIP], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_spot s, int height, int width, int wide,
                      int back, const int side)
{
    if (wide) gk_sums(v, x, w, s, height, width, back, side, 1);
    else gk_sums(v, x, w, s, height, width, back, side, 0);
}

/* A block alone on a multiprocessor would wait for its loads. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
#endif
// Units: FLOATS64
GK_KERNEL(conv_depthwise_large)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                                GK_OUT(gk_t, z), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, int wide, int back, int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    GK_SIZES;
    int fused = act != 0 || scale || bias || residual || z;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        gk_source o = gk_source_of(s.map, each, size.v[2], channels, by.v[2]);
        int have = width - s.w < 4 ? width - s.w : 4;
        gk_four v[GK_CONV_STRIP];
        if (side == 5) gk_sums_by(v, x + o.from * plane, w + (gk_i64)o.ch * 25, s, height, width, wide, back, 5);
        else gk_sums_by(v, x + o.from * plane, w + (gk_i64)o.ch * 49, s, height, width, wide, back, 7);
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            gk_i64 at = (gk_i64)s.map * plane + (s.h + r) * (gk_i64)width + s.w;
            if (s.h + r < height) gk_store_row(v[r], at, have, wide, fused, o.ch, scale, bias, residual, y, z, accumulate, act, p);
        }
    }
}

/* Adds the products of dy and x of the strip at s for all taps. */
GK_FN void gk_add_taps(gk_f acc[49], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, gk_spot s, int height, int width, const int side,
                       const int wide)
{
    gk_four d[GK_CONV_STRIP];
    GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) d[r] = gk_quad_numbers(gk_middle(dy, s.h + r, s.w, height, width, wide));
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + side - 1; a++) {
        gk_line l = gk_line_at(x, s.h + a - side / 2, s.w, height, width, wide);
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            if (a < r || a >= r + side) continue;
            GK_UNROLL for (int b = 0; b < side; b++) {
                GK_UNROLL for (int u = 0; u < 4; u++) acc[(a - r) * side + b] += d[r].v[u] * l.v[GK_REACH - side / 2 + u + b];
            }
        }
    }
}

/* `per` items of the `n` of a channel (over all images) to a block. */
GK_KERNEL(conv_depthwise_large_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), gk_i64 n, gk_i64 per, GK_DIMS(size), GK_DIMS(by),
                                       int side, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sums[49 * (GK_BLOCK / 32)];
    GK_SIZES;
    int t = gk_lid(), split = gk_bid(0) / (int)channels, ch = gk_bid(0) - split * (int)channels, taps = side * side;
    gk_i64 end = (split + 1) * per < n ? (split + 1) * per : n;
    gk_f acc[49];
    GK_UNROLL for (int k = 0; k < 49; k++) acc[k] = GK_R(0.0);
    for (gk_i64 i = split * per + t; i < end; i += GK_BLOCK) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        GK_GLOBAL const gk_t* from = x + ((gk_i64)s.map * size.v[2] + ch / each) * plane;
        GK_GLOBAL const gk_t* to = dy + ((gk_i64)s.map * channels + ch) * plane;
        if (side == 5 && wide) gk_add_taps(acc, from, to, s, height, width, 5, 1);
        else if (side == 5) gk_add_taps(acc, from, to, s, height, width, 5, 0);
        else if (wide) gk_add_taps(acc, from, to, s, height, width, 7, 1);
        else gk_add_taps(acc, from, to, s, height, width, 7, 0);
    }
    gk_sum_taps(acc, 49, 49, tmp, sums);
    GK_BARRIER();
    gk_store_taps(sums, 49, taps, part + ((gk_i64)split * channels + ch) * taps);
}
