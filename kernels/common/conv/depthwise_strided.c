/* Depthwise convolution with 3 x 3 or 5 x 5 taps (`side`), a stride of 2, dilation 1 and a padding of side / 2, forward and adjoint, and its weight
 * gradient: one channel of x per channel of y. The larger maps are [H, W], the smaller ones [ceil(H / 2), ceil(W / 2)]. These are bound by memory: a
 * thread has four columns of GK_CONV_STRIP rows of a larger map, and the two columns of GK_CONV_ROWS rows of the smaller one whose windows have their
 * centres there, so that neighbouring threads read and write neighbouring places of both.
 *
 * conv_depthwise_strided: y[h, w] = sum over a, b of w[a, b] * x[2 h + a - side / 2, 2 w + b - side / 2]. conv_depthwise_strided_adjoint: y[h, w] =
 * sum of w[a, b] * x[(h + side / 2 - a) / 2, (w + side / 2 - b) / 2] over a, b for which both are whole. Epilogue as in conv/conv.c.
 * conv_depthwise_strided_weight: sums of dy * x for all taps of one channel per block and run of items; to part [splits, channels, taps], which
 * conv_combine adds in order.
 * size = {height and width of the larger maps, channels of x, channels of y per channel of x}; by: multipliers that divide by the items of a row, the
 * strips of a map and, but for weights, the channels of y. `wide`: rows of the larger maps are multiples of four and bases aligned for them. Less
 * than 2^31 items.
 * Launch: conv_depthwise_strided, _adjoint grid-stride over items; conv_depthwise_strided_weight: one block per channel (fastest) and split.
 * Sums in gk_f. Deterministic. Reference: F.conv2d(groups=C), torch.nn.grad.
 */
#define GK_CONV_STRIP 8
#define GK_CONV_ROWS (GK_CONV_STRIP / 2)
#define GK_CONV_TAPS 25
#include "depthwise.h"

/* Two neighbours as they lie in memory, like gk_quad. */
#if GK_DTYPE == GK_F64
typedef gk_vec gk_pair;
GK_FN gk_pair gk_pair_zero(void) { gk_pair r; r.v[0] = r.v[1] = 0.0; return r; }
GK_FN gk_pair gk_pair_at(GK_GLOBAL const gk_t* x, gk_i64 i) { return gk_loadv(x, i); }
GK_FN void gk_pair_set(gk_pair* q, int u, GK_GLOBAL const gk_t* x, gk_i64 i) { q->v[u] = x[i]; }
GK_FN gk_f gk_pair_number(gk_pair q, int u) { return q.v[u]; }
GK_FN void gk_pair_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_f a, gk_f b) { gk_pair q; q.v[0] = a; q.v[1] = b; gk_storev(y, i, q); }
#else
#if GK_DTYPE == GK_F32
typedef gk_u64 gk_pair;
GK_FN gk_pair gk_pair_of(gk_f a, gk_f b) { return (gk_pair)gk_as_u32(b) << 32 | gk_as_u32(a); }
#else
typedef gk_u32 gk_pair;
GK_FN gk_pair gk_pair_of(gk_f a, gk_f b) { return GK_PACK2(a, b); }
#endif
GK_FN gk_pair gk_pair_zero(void) { return 0u; }
/* From a place that is aligned for them. */
GK_FN gk_pair gk_pair_at(GK_GLOBAL const gk_t* x, gk_i64 i) { return *(GK_GLOBAL const gk_pair*)(x + i); }
GK_FN void gk_pair_set(gk_pair* q, int u, GK_GLOBAL const gk_t* x, gk_i64 i)
{
    *q |= (gk_pair)*(GK_GLOBAL const gk_b*)(x + i) << (128 / GK_W * u);
}
GK_FN gk_f gk_pair_number(gk_pair q, int u) { return gk_value((gk_b)(q >> (128 / GK_W * u))); }
GK_FN void gk_pair_put(GK_GLOBAL gk_t* y, gk_i64 i, gk_f a, gk_f b) { *(GK_GLOBAL gk_pair*)(y + i) = gk_pair_of(a, b); }
#endif

/* Whether a map of `height` rows has row h. */
GK_FN int gk_live(int h, int height) { return (gk_u32)h < (gk_u32)height; }

/* Columns w and w + 1 of a row, whose column w is at `from`, of a smaller map; 0 outside and where the row is not `live`. */
GK_FN gk_pair gk_pair_in(GK_GLOBAL const gk_t* from, int live, int w, int width, const int wide)
{
    gk_pair r = gk_pair_zero();
    if (!live) return r;
    if (wide) return gk_pair_at(from, 0);
    GK_UNROLL for (int u = 0; u < 2; u++)
        if (w + u < width) gk_pair_set(&r, u, from, u);
    return r;
}

/* Columns w - 2 .. w + 4 of a row of a larger map, as they lie in memory and as numbers; 0 for those that three taps do not read. */
typedef struct { gk_quad middle; gk_pair before; gk_b behind; } gk_line_bits;
typedef struct { gk_f v[7]; } gk_line;

/* Of the row whose column w is at `from`; 0 outside and where it is not `live`. */
GK_FN gk_line_bits gk_line_at(GK_GLOBAL const gk_t* from, int live, int w, int width, const int side, const int wide)
{
    gk_line_bits r;
    r.middle = gk_quad_zero();
    if (live) r.middle = gk_row_middle(from, w, width, wide);
    r.before = gk_pair_zero();
    r.behind = side == 5 && live && w + 4 < width ? *((GK_GLOBAL const gk_b*)from + 4) : 0;
    if (live && w > 0) {
        if (side == 5 && wide) r.before = gk_pair_at(from, -2);
        else {
            GK_UNROLL for (int u = 0; u < 2; u++)
                if (u == 1 || side == 5) gk_pair_set(&r.before, u, from, u - 2);
        }
    }
    return r;
}
GK_FN gk_line gk_line_numbers(gk_line_bits b)
{
    gk_four m = gk_quad_numbers(b.middle);
    gk_line r;
    GK_UNROLL for (int u = 0; u < 2; u++) r.v[u] = gk_pair_number(b.before, u);
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u + 2] = m.v[u];
    r.v[6] = gk_value(b.behind);
    return r;
}
/* All rows whose windows the strip at s has. */
GK_FN void gk_lines_of(gk_line l[GK_CONV_STRIP + 3], GK_GLOBAL const gk_t* x, gk_spot s, int height, int width, const int side, const int wide)
{
    gk_line_bits bits[GK_CONV_STRIP + 3];
    GK_GLOBAL const gk_t* from = x + (s.h - side / 2) * (gk_i64)width + s.w;
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + side - 2; a++, from += width)
        bits[a] = gk_line_at(from, gk_live(s.h + a - side / 2, height), s.w, width, side, wide);
    GK_UNROLL for (int a = 0; a < GK_CONV_STRIP + side - 2; a++) l[a] = gk_line_numbers(bits[a]);
}

/* Sums of the strip at s, two in each row of the smaller map, which begin at `first`; w: the channel's weights. */
GK_FN void gk_sums(gk_four v[GK_CONV_ROWS], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_spot s, gk_f first, int height, int width,
                   const int side, const int wide)
{
    gk_line l[GK_CONV_STRIP + 3];
    gk_f k[GK_CONV_TAPS];
    gk_lines_of(l, x, s, height, width, side, wide);
    GK_UNROLL for (int t = 0; t < side * side; t++) k[t] = gk_load(w, t);
    GK_UNROLL for (int r = 0; r < GK_CONV_ROWS; r++) {
        v[r] = gk_run_zero();
        GK_UNROLL for (int u = 0; u < 2; u++) v[r].v[u] = first;
        GK_UNROLL for (int a = 0; a < side; a++) {
            GK_UNROLL for (int b = 0; b < side; b++) {
                GK_UNROLL for (int u = 0; u < 2; u++) v[r].v[u] += k[a * side + b] * l[2 * r + a].v[2 * u + b + 2 - side / 2];
            }
        }
    }
}

/* A block alone on a multiprocessor would wait for its loads. As many fit as have registers for all loads at once. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_DTYPE == GK_F32 ? 2 : 3)
#endif
/* Sizes of the smaller maps. */
#define GK_CONV_HALVES int rows = (height + 1) / 2, columns = (width + 1) / 2; gk_i64 smaller = (gk_i64)rows * columns

// Units: FLOATS64
GK_KERNEL(conv_depthwise_strided)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                                  GK_OUT(gk_t, z), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, int wide, int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    GK_SIZES;
    GK_CONV_HALVES;
    int fused = act != 0 || scale || residual || z;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        gk_source o = gk_source_of(s.map, each, size.v[2], channels, by.v[2]);
        GK_GLOBAL const gk_t *from = x + o.from * plane, *k = w + (gk_i64)o.ch * (side * side);
        int have = columns - s.w / 2 < 2 ? columns - s.w / 2 : 2;
        gk_f first = bias && !fused ? gk_load(bias, o.ch) : GK_R(0.0);
        gk_four v[GK_CONV_ROWS];
        if (side == 3 && wide) gk_sums(v, from, k, s, first, height, width, 3, 1);
        else if (side == 3) gk_sums(v, from, k, s, first, height, width, 3, 0);
        else if (wide) gk_sums(v, from, k, s, first, height, width, 5, 1);
        else gk_sums(v, from, k, s, first, height, width, 5, 0);
        gk_i64 at = s.map * smaller + s.h / 2 * (gk_i64)columns + s.w / 2;
        GK_UNROLL for (int r = 0; r < GK_CONV_ROWS; r++, at += columns) {
            if (s.h / 2 + r >= rows) continue;
            if (wide && !fused && !accumulate) gk_pair_put(y, at, v[r].v[0], v[r].v[1]);
            else gk_store_row(v[r], at, have, 0, fused, o.ch, scale, bias, residual, y, z, accumulate, act, p);
        }
    }
}

/* Columns w - 1 .. w + 2 of a row of a smaller map, as they lie in memory and as numbers; 0 for the one that three taps do not read. */
typedef struct { gk_pair middle; gk_b before, behind; } gk_short_bits;
typedef struct { gk_f v[4]; } gk_short;

/* Of the row whose column w is at `from`; 0 outside and where it is not `live`. */
GK_FN gk_short_bits gk_short_at(GK_GLOBAL const gk_t* from, int live, int w, int width, const int side, const int wide)
{
    gk_short_bits r;
    r.middle = gk_pair_in(from, live, w, width, wide);
    r.before = side == 5 && live && w > 0 ? *((GK_GLOBAL const gk_b*)from - 1) : 0;
    r.behind = live && w + 2 < width ? *((GK_GLOBAL const gk_b*)from + 2) : 0;
    return r;
}
GK_FN gk_short gk_short_numbers(gk_short_bits b)
{
    gk_short r;
    r.v[0] = gk_value(b.before);
    GK_UNROLL for (int u = 0; u < 2; u++) r.v[u + 1] = gk_pair_number(b.middle, u);
    r.v[3] = gk_value(b.behind);
    return r;
}

/* Sums of the strip at s of a larger map, which begin at `first`; height and width: of x. Which taps reach a row, or a column, depends on whether it
 * is even, and the first ones of a strip are. Row i that is read, and column i of it, is half of the strip's first, less 1, plus i. */
GK_FN void gk_adjoint_sums(gk_four v[GK_CONV_STRIP], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, gk_spot s, gk_f first, int height, int width,
                           const int side, const int wide)
{
    gk_short_bits bits[GK_CONV_ROWS + 2];
    gk_short l[GK_CONV_ROWS + 2];
    GK_GLOBAL const gk_t* from = x + (s.h / 2 - (side == 5)) * (gk_i64)width + s.w / 2;
    gk_f k[GK_CONV_TAPS];
    GK_UNROLL for (int i = side == 3; i < GK_CONV_ROWS + 2; i++, from += width)
        bits[i] = gk_short_at(from, gk_live(s.h / 2 + i - 1, height), s.w / 2, width, side, wide);
    GK_UNROLL for (int i = side == 3; i < GK_CONV_ROWS + 2; i++) l[i] = gk_short_numbers(bits[i]);
    GK_UNROLL for (int t = 0; t < side * side; t++) k[t] = gk_load(w, t);
    GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++) {
        GK_UNROLL for (int u = 0; u < 4; u++) v[r].v[u] = first;
        GK_UNROLL for (int a = (r + side / 2) % 2; a < side; a += 2) {
            GK_UNROLL for (int u = 0; u < 4; u++) {
                GK_UNROLL for (int b = (u + side / 2) % 2; b < side; b += 2)
                    v[r].v[u] += k[a * side + b] * l[1 + (r + side / 2 - a) / 2].v[1 + (u + side / 2 - b) / 2];
            }
        }
    }
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3
#endif
GK_KERNEL(conv_depthwise_strided_adjoint)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual),
                                          GK_OUT(gk_t, y), GK_OUT(gk_t, z), gk_i64 n, GK_DIMS(size), GK_DIMS(by), int side, int wide,
                                          int accumulate, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    GK_SIZES;
    GK_CONV_HALVES;
    int fused = act != 0 || scale || residual || z;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_spot s = gk_spot_of((gk_u32)i, quads, strips, by.v[0], by.v[1]);
        gk_source o = gk_source_of(s.map, each, size.v[2], channels, by.v[2]);
        GK_GLOBAL const gk_t *from = x + o.from * smaller, *k = w + (gk_i64)o.ch * (side * side);
        int have = width - s.w < 4 ? width - s.w : 4;
        gk_f first = bias && !fused ? gk_load(bias, o.ch) : GK_R(0.0);
        gk_four v[GK_CONV_STRIP];
        if (side == 3 && wide) gk_adjoint_sums(v, from, k, s, first, rows, columns, 3, 1);
        else if (side == 3) gk_adjoint_sums(v, from, k, s, first, rows, columns, 3, 0);
        else if (wide) gk_adjoint_sums(v, from, k, s, first, rows, columns, 5, 1);
        else gk_adjoint_sums(v, from, k, s, first, rows, columns, 5, 0);
        gk_i64 at = s.map * plane + s.h * (gk_i64)width + s.w;
        GK_UNROLL for (int r = 0; r < GK_CONV_STRIP; r++, at += width) {
            if (s.h + r < height) gk_store_row(v[r], at, have, wide, fused, o.ch, scale, bias, residual, y, z, accumulate, act, p);
        }
    }
}

/* The maps of a channel: those of the first image, and how far apart those of two images are. */
typedef struct { GK_GLOBAL const gk_t *x, *dy; gk_i64 x_step, dy_step; } gk_channel;

/* Adds the products of dy and x of every GK_BLOCK-th of the items i .. end - 1 for all taps; height and width: of x. */
GK_FN void gk_add_items(gk_f acc[GK_CONV_TAPS], gk_channel c, gk_i64 i, gk_i64 end, int height, int width, gk_i64 by_quads, gk_i64 by_strips,
                        const int side, const int wide)
{
    int rows = (height + 1) / 2, columns = (width + 1) / 2;
    for (; i < end; i += GK_BLOCK) {
        gk_spot s = gk_spot_of((gk_u32)i, (width + 3) / 4, (height + GK_CONV_STRIP - 1) / GK_CONV_STRIP, by_quads, by_strips);
        GK_GLOBAL const gk_t* to = c.dy + s.map * c.dy_step + s.h / 2 * (gk_i64)columns + s.w / 2;
        gk_line l[GK_CONV_STRIP + 3];
        gk_pair q[GK_CONV_ROWS];
        GK_UNROLL for (int r = 0; r < GK_CONV_ROWS; r++, to += columns)
            q[r] = gk_pair_in(to, gk_live(s.h / 2 + r, rows), s.w / 2, columns, wide);
        gk_lines_of(l, c.x + s.map * c.x_step, s, height, width, side, wide);
        GK_UNROLL for (int r = 0; r < GK_CONV_ROWS; r++) {
            GK_UNROLL for (int u = 0; u < 2; u++) {
                gk_f d = gk_pair_number(q[r], u);
                GK_UNROLL for (int a = 0; a < side; a++) {
                    GK_UNROLL for (int b = 0; b < side; b++) acc[a * side + b] += d * l[2 * r + a].v[2 * u + b + 2 - side / 2];
                }
            }
        }
    }
}

#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
#endif
/* `per` items of the `n` of a channel (over all images) to a block. */
GK_KERNEL(conv_depthwise_strided_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), gk_i64 n, gk_i64 per, GK_DIMS(size), GK_DIMS(by),
                                         int side, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sums[GK_CONV_TAPS * (GK_BLOCK / 32)];
    int height = (int)size.v[0], width = (int)size.v[1], channels = (int)(size.v[2] * size.v[3]), taps = side * side;
    int split = gk_bid(0) / channels, ch = gk_bid(0) - split * channels;
    gk_i64 first = split * per + gk_lid(), end = (split + 1) * per < n ? (split + 1) * per : n;
    gk_i64 plane = size.v[0] * size.v[1];
    GK_CONV_HALVES;
    gk_f acc[GK_CONV_TAPS];
    gk_channel c;
    c.x = x + ch / (int)size.v[3] * plane;
    c.dy = dy + ch * smaller;
    c.x_step = size.v[2] * plane;
    c.dy_step = channels * smaller;
    GK_UNROLL for (int k = 0; k < GK_CONV_TAPS; k++) acc[k] = GK_R(0.0);
    if (side == 3 && wide) gk_add_items(acc, c, first, end, height, width, by.v[0], by.v[1], 3, 1);
    else if (side == 3) gk_add_items(acc, c, first, end, height, width, by.v[0], by.v[1], 3, 0);
    else if (wide) gk_add_items(acc, c, first, end, height, width, by.v[0], by.v[1], 5, 1);
    else gk_add_items(acc, c, first, end, height, width, by.v[0], by.v[1], 5, 0);
    gk_sum_taps(acc, GK_CONV_TAPS, taps, tmp, sums);
    GK_BARRIER();
    gk_store_taps(sums, GK_CONV_TAPS, taps, part + ((gk_i64)split * channels + ch) * taps);
}
