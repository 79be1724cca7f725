/* Depthwise convolution with 3 x 3 taps, stride and dilation 1 and a padding of 1, forward and adjoint, and its weight gradient: one channel of
 * x per channel of y, maps of one size. These are bound by memory: a thread has four columns of GK_CONV_STRIP rows, whose windows share x.
 *
 * conv_depthwise: y[h, w] = sum over a, b of w[a, b] * x[h + a - 1, w + b - 1]; adjoint (`back`): with the taps in the opposite order. Epilogue as
 * in conv/conv.c. conv_depthwise_weight: sums of dy * x for all taps of one channel per block and run of items; to part [splits, channels, taps],
 * which conv_combine adds in order.
 * size = {height, width, channels of x, channels of y per channel of x}; by: multipliers that divide by the items of a row, the strips of a map
 * and, forward, the channels of y. `wide`: rows are multiples of four and bases aligned for them. Less than 2^31 items.
 * Launch: conv_depthwise grid-stride over items; conv_depthwise_weight: one block per channel (fastest) and split.
 * Sums in gk_f. Deterministic. Reference: F.conv2d(groups=C), torch.nn.grad.
 */
#define GK_CONV_STRIP 2
#define GK_SIDE 3
#include "depthwise.h"

/* Columns w - 1 .. w + 4 of a row, as they lie in memory and as numbers. */
typedef struct { gk_quad middle; gk_b before, behind; } gk_line_bits;
typedef struct { gk_f v[6]; } gk_line;
/* Of row h of a map; 0 outside. */
GK_FN gk_line_bits gk_line_at(GK_GLOBAL const gk_t* x, int h, int w, int height, int width, int wide)
{
    int live = h >= 0 && h < height;
    GK_GLOBAL const gk_b* row = (GK_GLOBAL const gk_b*)x + h * (gk_i64)width + w;
    gk_line_bits r;
    r.middle = gk_middle(x, h, w, height, width, wide);
    r.before = live && w > 0 ? row[-1] : 0;
    r.behind = live && w + 4 < width ? row[4] : 0;
    return r;
}
GK_FN gk_line gk_line_numbers(gk_line_bits b)
{
    gk_four m = gk_quad_numbers(b.middle);
    gk_line r;
    r.v[0] = gk_value(b.before);
    r.v[5] = gk_value(b.behind);
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u + 1] = m.v[u];
    return r;
}
/* All rows whose windows the strip at s has. */
GK_FN void gk_lines_of(gk_line l[GK_CONV_STRIP + 2], GK_GLOBAL const gk_t* x, gk_spot s, int height, int width, int wide)
{
    gk_line_bits b[GK_CONV_STRIP + 2];
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + 2; a++) b[a] = gk_line_at(x, s.h + a - 1, s.w, height, width, wide);
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + 2; a++) l[a] = gk_line_numbers(b[a]);
}

// Units: FLOATS64
GK_KERNEL(conv_depthwise)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, z), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int wide, int back, int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    GK_SIZES;
    int fused = act != 0 || scale || residual || z;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        gk_source o = gk_source_of(s.map, each, size.v[2], channels, by.v[2]);
        int have = width - s.w < 4 ? width - s.w : 4;
        gk_line l[GK_CONV_STRIP + 2];
        gk_f k[GK_SIDE * GK_SIDE], first = bias && !fused ? gk_load(bias, o.ch) : GK_R(0.0);
        gk_four v[GK_CONV_STRIP];
        gk_lines_of(l, x + o.from * plane, s, height, width, wide);
        GK_UNROLL for (int t = 0; t < GK_SIDE * GK_SIDE; t++) k[t] = gk_load(w, (gk_i64)o.ch * (GK_SIDE * GK_SIDE) + (back
            ? GK_SIDE * GK_SIDE - 1 - t : t));
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            GK_UNROLL for (int u = 0; u < 4; u++) v[r].v[u] = first;
            GK_UNROLL for (int a = 0; a < GK_SIDE; a++) {
                GK_UNROLL for (int b = 0; b < GK_SIDE; b++) {
                    GK_UNROLL for (int u = 0; u < 4; u++) v[r].v[u] += k[a * GK_SIDE + b] * l[r + a].v[u + b];
                }
            }
        }
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            gk_i64 at = (gk_i64)s.map * plane + (s.h + r) * (gk_i64)width + s.w;
            if (s.h + r < height) gk_store_row(v[r], at, have, wide, fused, o.ch, scale, bias, residual, y, z, accumulate, act, p);
        }
    }
}

/* `per` items of the `n` of a channel (over all images) to a block. */
GK_KERNEL(conv_depthwise_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), gk_i64 n, gk_i64 per, GK_DIMS(size), GK_DIMS(by), int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sums[GK_SIDE * GK_SIDE * (GK_BLOCK / 32)];
    GK_SIZES;
    int t = gk_lid(), split = gk_bid(0) / (int)channels, ch = gk_bid(0) - split * (int)channels;
    gk_i64 end = (split + 1) * per < n ? (split + 1) * per : n;
    gk_f acc[GK_SIDE * GK_SIDE];
    GK_UNROLL for (int k = 0; k < GK_SIDE * GK_SIDE; k++) acc[k] = GK_R(0.0);
    for (gk_i64 i = split * per + t; i < end; i += GK_BLOCK) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        GK_GLOBAL const gk_t* from = x + ((gk_i64)s.map * size.v[2] + ch / each) * plane;
        GK_GLOBAL const gk_t* to = dy + ((gk_i64)s.map * channels + ch) * plane;
        gk_line l[GK_CONV_STRIP + 2];
        gk_quad q[GK_CONV_STRIP];
        gk_four d[GK_CONV_STRIP];
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) q[r] = gk_middle(to, s.h + r, s.w, height, width, wide);
        gk_lines_of(l, from, s, height, width, wide);
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) d[r] = gk_quad_numbers(q[r]);
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
            GK_UNROLL for (int a = 0; a < GK_SIDE; a++) {
                GK_UNROLL for (int b = 0; b < GK_SIDE; b++) {
                    GK_UNROLL for (int u = 0; u < 4; u++) acc[a * GK_SIDE + b] += d[r].v[u] * l[r + a].v[u + b];
                }
            }
        }
    }
    gk_sum_taps(acc, GK_SIDE * GK_SIDE, GK_SIDE * GK_SIDE, tmp, sums);
    GK_BARRIER();
    gk_store_taps(sums, GK_SIDE * GK_SIDE, GK_SIDE * GK_SIDE, part + ((gk_i64)split * channels + ch) * (GK_SIDE * GK_SIDE));
}
