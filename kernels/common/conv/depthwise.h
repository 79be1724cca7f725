/* What kernels for depthwise convolutions that keep a map's size share: a thread has four columns of GK_STRIP rows, which is defined by then. */
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
    s.h = (int)(r - s.map * (gk_u32)strips) * GK_STRIP;
    return s;
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

/* Columns w .. w + 3 of row h of a map; 0 outside. */
GK_FN gk_quad gk_middle(GK_GLOBAL const gk_t* x, int h, int w, int height, int width, int wide)
{
    gk_quad r = gk_quad_zero();
    if (h < 0 || h >= height) return r;
    if (wide) return gk_quad_at(x, h * (gk_i64)width + w);
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (w + u < width) gk_quad_set(&r, u, x, h * (gk_i64)width + w + u);
    return r;
}

/* The epilogue with everything. */
GK_FN_CALL void gk_store_fused(gk_four v, gk_i64 first, int have, int wide, int ch, GK_GLOBAL const gk_t* scale, GK_GLOBAL const gk_t* bias,
                               GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, int accumulate, int act, gk_f p)
{
    gk_i64 at[4];
    GK_UNROLL for (int u = 0; u < 4; u++) at[u] = first + u;
    gk_conv_store(v, at, have, wide, ch, scale, bias, residual, y, z, accumulate, act, p);
}

#define GK_SIZES \
    int height = (int)size.v[0], width = (int)size.v[1], each = (int)size.v[3]; \
    int quads = (width + 3) / 4, strips = (height + GK_STRIP - 1) / GK_STRIP; \
    gk_i64 plane = size.v[0] * size.v[1], channels = size.v[2] * size.v[3]
