/* What kernels for depthwise convolutions share: a thread has four columns of GK_CONV_STRIP rows, which is defined by then. */
#include "common/prelude/coordinates.h"
#include "window_table.h"

/* Map, and first row and column of the strip. */
typedef struct { gk_u32 map; int h, w; } gk_spot;

GK_FN gk_spot gk_spot_of(gk_u32 i, int quads, int strips, gk_i64 by_quads, gk_i64 by_strips)
{
    gk_u32 r = gk_quotient(i, by_quads);
    gk_spot s;
    s.map = gk_quotient(r, by_strips);
    s.w = (int)(i - r * (gk_u32)quads) * 4;
    s.h = (int)(r - s.map * (gk_u32)strips) * GK_CONV_STRIP;
    return s;
}

/* Channel of y that a map is, and the place of what it reads among the maps of x, which has `inputs` channels with `each` of the `channels` of y. */
typedef struct { gk_i64 from; int ch; } gk_source;

GK_FN gk_source gk_source_of(gk_u32 map, int each, gk_i64 inputs, gk_i64 channels, gk_i64 by_channels)
{
    gk_u32 image = gk_quotient(map, by_channels);
    gk_source r;
    r.ch = (int)(map - image * (gk_u32)channels);
    r.from = each == 1 ? (gk_i64)map : (gk_i64)image * inputs + r.ch / each;
    return r;
}

/* Four neighbours as they lie in memory. They become numbers when all loads are on their way: a conversion beside a load, in its branch, waits for it. */
#if GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16
typedef gk_u64 gk_quad;
GK_FN gk_quad gk_quad_zero(void) { return 0u; }
/* From a place that is aligned for them. */
GK_FN gk_quad gk_quad_at(GK_GLOBAL const gk_t* x, gk_i64 i) { return *(GK_GLOBAL const gk_u64*)(x + i); }
GK_FN void gk_quad_set(gk_quad* q, int u, GK_GLOBAL const gk_t* x, gk_i64 i) { *q |= (gk_u64)*(GK_GLOBAL const gk_b*)(x + i) << (16 * u); }
GK_FN gk_four gk_quad_numbers(gk_quad q)
{
    gk_four r;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = gk_value((gk_b)(q >> (16 * u)));
    return r;
}
#else
typedef gk_four gk_quad;
GK_FN gk_quad gk_quad_zero(void) { return gk_run_zero(); }
GK_FN gk_quad gk_quad_at(GK_GLOBAL const gk_t* x, gk_i64 i)
{
    gk_four r;
#if GK_DTYPE == GK_F64
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = x[i + u];
#else
    gk_vec q = gk_loadv(x, i);
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = q.v[u];
#endif
    return r;
}
GK_FN void gk_quad_set(gk_quad* q, int u, GK_GLOBAL const gk_t* x, gk_i64 i) { q->v[u] = gk_load(x, i); }
#define gk_quad_numbers(q) (q)
#endif

/* Columns w .. w + 3 of a row whose column w is at `from`; 0 outside. */
GK_FN gk_quad gk_row_middle(GK_GLOBAL const gk_t* from, int w, int width, int wide)
{
    gk_quad r = gk_quad_zero();
    if (wide) return gk_quad_at(from, 0);
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (w + u < width) gk_quad_set(&r, u, from, u);
    return r;
}
/* The same of row h of a map. */
GK_FN gk_quad gk_middle(GK_GLOBAL const gk_t* x, int h, int w, int height, int width, int wide)
{
    if (h < 0 || h >= height) return gk_quad_zero();
    return gk_row_middle(x + h * (gk_i64)width + w, w, width, wide);
}

/* The epilogue with everything. */
GK_FN_CALL void gk_store_fused(gk_four v, gk_i64 first, int have, int wide, int ch, GK_GLOBAL const gk_t* scale, GK_GLOBAL const gk_t* bias,
                               GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, int accumulate, int act, gk_f p)
{
    gk_i64 at[4];
    GK_UNROLL for (int u = 0; u < 4; u++) at[u] = first + u;
    gk_conv_store(v, at, have, wide, ch, scale, bias, residual, y, z, accumulate, act, p);
}

/* Stores four neighbours of channel ch from place `first` on, of which `have` exist. `fused`: with all of the epilogue, else as they are. */
GK_FN void gk_store_row(gk_four v, gk_i64 first, int have, int wide, int fused, int ch, GK_GLOBAL const gk_t* scale, GK_GLOBAL const gk_t* bias,
                        GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, int accumulate, int act, gk_f p)
{
    gk_i64 at[4];
    GK_UNROLL for (int u = 0; u < 4; u++) at[u] = first + u;
    if (fused) gk_store_fused(v, first, have, wide, ch, scale, bias, residual, y, z, accumulate, act, p);
    else gk_conv_store(v, at, have, wide, ch, 0, 0, 0, y, 0, accumulate, 0, GK_R(0.0));
}

/* Sums of the first `count` of acc, which has room for `most`, over 32 threads each; behind a barrier gk_store_taps adds them up. */
GK_FN void gk_sum_taps(const gk_f* acc, const int most, int count, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* sums)
{
    int t = gk_lid();
    GK_UNROLL for (int k = 0; k < most; k++) {
        if (k < count) {
            gk_f sum = gk_group_sum(acc[k], tmp, 32);
            if (t % 32 == 0) sums[t / 32 * most + k] = sum;
        }
    }
}
GK_FN void gk_store_taps(GK_LOCAL_PTR const gk_f* sums, const int most, int taps, GK_GLOBAL gk_f* part)
{
    int t = gk_lid();
    if (t < taps) {
        gk_f sum = GK_R(0.0);
        for (int k = 0; k < GK_BLOCK / 32; k++) sum += sums[k * most + t];
        part[t] = sum;
    }
}

#define GK_SIZES \
    int height = (int)size.v[0], width = (int)size.v[1], each = (int)size.v[3]; \
    int quads = (width + 3) / 4, strips = (height + GK_CONV_STRIP - 1) / GK_CONV_STRIP; \
    gk_i64 plane = size.v[0] * size.v[1], channels = size.v[2] * size.v[3]
