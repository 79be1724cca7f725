/* Places that a convolution reads, and its epilogue: what all of its kernels share.
 *
 * A plan is a list of runs of four ints: {offset within the image, displacement along depth, height, width} per index k of the products.
 * Displacements beyond GK_FAR count as outside whatever they are added to; the host sends images of GK_FAR and more elements along an axis elsewhere.
 */
#include "common/prelude/tile.h"

#define GK_FAR 0x10000000

/* Where a window starts: in memory, and along the axes; sizes of the image. */
typedef struct { gk_i64 base; int d, h, w, depth, height, width; } gk_column;

GK_FN int gk_inside(gk_column c, int d, int h, int w)
{
    return ((gk_u32)(c.d + d) < (gk_u32)c.depth) & ((gk_u32)(c.h + h) < (gk_u32)c.height) & ((gk_u32)(c.w + w) < (gk_u32)c.width);
}

/* The element that entry k of the plan displaces a window's start to. */
GK_FN gk_f gk_at(GK_GLOBAL const gk_t* x, gk_column c, GK_GLOBAL const int* plan, int k)
{
    gk_raw16 e = gk_load16((GK_GLOBAL const void*)(plan + (gk_i64)k * 4));
    gk_f v = GK_R(0.0);
    if (gk_inside(c, (int)e.y, (int)e.z, (int)e.w)) v = gk_load(x, c.base + (int)e.x);
    return v;
}

/* Window number (qd, qh, qw) of image n, group g. img = {depth, height, width, image stride, group stride}, step = {steps, paddings}. */
GK_FN gk_column gk_column_at(gk_dims img, gk_dims step, gk_i64 n, gk_i64 g, int qd, int qh, int qw)
{
    gk_column c;
    c.depth = (int)img.v[0]; c.height = (int)img.v[1]; c.width = (int)img.v[2];
    c.d = qd * (int)step.v[0] - (int)step.v[3];
    c.h = qh * (int)step.v[1] - (int)step.v[4];
    c.w = qw * (int)step.v[2] - (int)step.v[5];
    c.base = n * img.v[3] + g * img.v[4] + ((gk_i64)c.d * c.height + c.h) * c.width + c.w;
    return c;
}

/* Four values of the arithmetic type. */
GK_FN gk_four gk_run(GK_GLOBAL const gk_f* p)
{
    gk_four r;
#if GK_DTYPE != GK_F64
    gk_raw16 q = gk_load16((GK_GLOBAL const void*)p);
    r.v[0] = gk_as_f32(q.x); r.v[1] = gk_as_f32(q.y); r.v[2] = gk_as_f32(q.z); r.v[3] = gk_as_f32(q.w);
#else
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = p[u];
#endif
    return r;
}
GK_FN gk_four gk_run_zero(void)
{
    gk_four r;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = GK_R(0.0);
    return r;
}

/* What a convolution adds and writes, in memory: gk_t, or float where a file defines GK_CONV_FLOAT. */
#ifdef GK_CONV_FLOAT
typedef float gk_result;
#define gk_result_load(p, i) ((p)[i])
#define gk_result_store(p, i, v) ((p)[i] = (v))
#else
typedef gk_t gk_result;
#define gk_result_load(p, i) gk_load(p, i)
#define gk_result_store(p, i, v) gk_store(p, i, v)
#endif

/* y[at[u]] = act(scale * v[u] + bias + residual[at[u]]) (+ y[at[u]]) for the first `have` values, all of channel `ch`; z gets the value before act.
 * `wide`: four neighbours from a place that is aligned for them. */
GK_FN void gk_conv_store(gk_four v, const gk_i64 at[4], int have, int wide, gk_i64 ch, GK_GLOBAL const gk_result* scale, GK_GLOBAL const gk_result* bias,
                         GK_GLOBAL const gk_result* residual, GK_GLOBAL gk_result* y, GK_GLOBAL gk_result* z, int accumulate, int act, gk_f p)
{
    gk_f s = scale ? gk_result_load(scale, ch) : GK_R(1.0), b = bias ? gk_result_load(bias, ch) : GK_R(0.0);
    GK_UNROLL for (int u = 0; u < 4; u++) v.v[u] = s * v.v[u] + b;
    if (residual) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) v.v[u] += gk_result_load(residual, at[u]);
    }
    if (z) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) gk_result_store(z, at[u], v.v[u]);
    }
    v = gk_activate(act, v, p);
    if (accumulate) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) v.v[u] += gk_result_load(y, at[u]);
    }
#if GK_DTYPE == GK_F32 || defined(GK_CONV_FLOAT)
    if (wide && have >= 4) {
        gk_store16((GK_GLOBAL void*)(y + at[0]), gk_make16(gk_as_u32(v.v[0]), gk_as_u32(v.v[1]), gk_as_u32(v.v[2]), gk_as_u32(v.v[3])));
        return;
    }
#elif GK_DTYPE != GK_F64
    if (wide && have >= 4) {
        GK_GLOBAL gk_u32* q = (GK_GLOBAL gk_u32*)(y + at[0]);
        q[0] = GK_PACK2(v.v[0], v.v[1]);
        q[1] = GK_PACK2(v.v[2], v.v[3]);
        return;
    }
#endif
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (u < have) gk_result_store(y, at[u], v.v[u]);
}
