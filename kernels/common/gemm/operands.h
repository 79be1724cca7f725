/* What products with register tiles share: the type of their results (GK_OP: gk_out_same, or gk_out_f32 for float; gk_t without it), operands and how
 * they come to local memory, and stores of four neighbours. */
#include "common/prelude/tile.h"

#define gk_out_same_f32 0
#define gk_out_f32_f32 1
#define GK_HALVES (GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16)
#if GK_CAT(GK_OP, _f32)
typedef float gk_o;
#define gk_load_o(p, i) ((gk_f)(p)[i])
#define gk_store_o(p, i, v) ((p)[i] = (float)(v))
#else
typedef gk_t gk_o;
#define gk_load_o(p, i) gk_load(p, i)
#define gk_store_o(p, i, v) gk_store(p, i, v)
#endif
#define GK_FLOAT_OUT (GK_DTYPE == GK_F32 || GK_CAT(GK_OP, _f32))

/* An operand: strides of its rows (columns for B) and of k; `along`: vectors run along k. */
typedef struct { gk_i64 step, kstep; int along, wide; } gk_side;

GK_FN gk_side gk_side_of(gk_dims s)
{
    gk_side r;
    r.step = s.v[0]; r.kstep = s.v[1]; r.along = (int)s.v[3]; r.wide = (int)s.v[4];
    return r;
}

/* Place of vector number v within a step of `rows` x `ks` elements. */
GK_FN int gk_row_of(gk_side s, int v, int rows, int ks) { return s.along ? v / (ks / GK_W) : v % (rows / GK_W) * GK_W; }
GK_FN int gk_k_of(gk_side s, int v, int rows, int ks) { return s.along ? v % (ks / GK_W) * GK_W : v / (rows / GK_W); }

/* The thread's vector number i of an operand with `limit` rows, at (r0, k0): its place in memory, its k within the step, and how many of its
 * elements (of its row, when it runs along k) exist. */
typedef struct { GK_GLOBAL const gk_t* p; int k, have; } gk_lane;

GK_FN gk_lane gk_lane_of(GK_GLOBAL const gk_t* p, gk_side s, gk_i64 limit, gk_i64 r0, gk_i64 k0, int rows, int ks, int i)
{
    gk_lane l;
    int v = gk_lid() + i * GK_BLOCK;
    gk_i64 r = r0 + gk_row_of(s, v, rows, ks);
    l.k = gk_k_of(s, v, rows, ks);
    l.p = p + r * s.step + (k0 + l.k) * s.kstep;
    l.have = v * GK_W >= rows * ks || r >= limit ? 0 : limit - r < GK_W ? (int)(limit - r) : GK_W;
    return l;
}

/* Its elements, 0 for those that do not exist; `left` values of k are left, counted from the step's first. */
GK_FN gk_vec gk_fetch(gk_lane l, gk_side s, int left)
{
    gk_vec x;
    int have = s.along ? (l.have ? left - l.k : 0) : (l.k < left ? l.have : 0);
    gk_i64 step = s.along ? s.kstep : s.step;
    if (s.wide && have >= GK_W) return gk_loadv(l.p, 0);
    GK_UNROLL for (int u = 0; u < GK_W; u++) x.v[u] = u < have ? gk_load(l.p, u * step) : GK_R(0.0);
    return x;
}

GK_FN void gk_place(GK_LOCAL_PTR gk_slot* t, gk_side s, gk_vec x, int rows, int ks, int i)
{
    int v = gk_lid() + i * GK_BLOCK, at = gk_k_of(s, v, rows, ks) * rows + gk_row_of(s, v, rows, ks);
    if (v * GK_W >= rows * ks) return;
#if GK_W >= 4
    if (!s.along) {
        GK_UNROLL for (int u = 0; u < GK_W; u += 4) gk_slot_put4(t, at + u, x.v[u], x.v[u + 1], x.v[u + 2], x.v[u + 3]);
        return;
    }
#endif
    GK_UNROLL for (int u = 0; u < GK_W; u++) gk_slot_put(t, at + (s.along ? u * rows : u), x.v[u]);
}

/* Four neighbours of a row, of which `have` exist. */
GK_FN void gk_store_four(GK_GLOBAL gk_o* y, gk_i64 at, gk_i64 step, int have, int wide, gk_four x)
{
#if GK_FLOAT_OUT
    if (wide && have >= 4) {
        gk_store16((GK_GLOBAL void*)(y + at), gk_make16(gk_as_u32((float)x.v[0]), gk_as_u32((float)x.v[1]), gk_as_u32((float)x.v[2]),
            gk_as_u32((float)x.v[3])));
        return;
    }
#elif GK_HALVES
    if (wide && have >= 4) {
        GK_GLOBAL gk_u32* w = (GK_GLOBAL gk_u32*)(y + at);
        w[0] = GK_PACK2(x.v[0], x.v[1]);
        w[1] = GK_PACK2(x.v[2], x.v[3]);
        return;
    }
#endif
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (u < have) gk_store_o(y, at + u * step, x.v[u]);
}
