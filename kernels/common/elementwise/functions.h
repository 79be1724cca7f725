/* What the elementwise kernels share: the macros that declare functions of one, two and three values.
 *
 * A function is one line in elementwise/unary_ops.h, activation/activation_ops.h, elementwise/binary_ops.h or elementwise/ternary_ops.h. Its unit is
 * compiled with GK_OP set to its name, and the kernels call name_fwd and name_bwd through GK_FWD and GK_BWD. p, q, s are scalar parameters. */
#ifndef GK_MAPS_H
#define GK_MAPS_H
#include "common/prelude/strided.h"

/* f(x; p, q, s) and its gradient (dy, x; p, q, s) */
#define GK_UNARY(name, fwd, bwd) \
    GK_FN gk_f name##_fwd(gk_f x, gk_f p, gk_f q, gk_f s) { return fwd; } \
    GK_FN gk_f name##_bwd(gk_f dy, gk_f x, gk_f p, gk_f q, gk_f s) { return bwd; }
/* f(a, b; p, q) and its gradients (dy, a, b; p, q) */
#define GK_BINARY(name, fwd, bwd_a, bwd_b) \
    GK_FN gk_f name##_fwd(gk_f a, gk_f b, gk_f p, gk_f q) { return fwd; } \
    GK_FN void name##_bwd(gk_f dy, gk_f a, gk_f b, gk_f p, gk_f q, gk_f* da, gk_f* db) { *da = bwd_a; *db = bwd_b; }
/* f(a, b, c; p) and its gradients (dy, a, b, c; p) */
#define GK_TERNARY(name, fwd, bwd_a, bwd_b, bwd_c) \
    GK_FN gk_f name##_fwd(gk_f a, gk_f b, gk_f c, gk_f p) { return fwd; } \
    GK_FN void name##_bwd(gk_f dy, gk_f a, gk_f b, gk_f c, gk_f p, gk_f* da, gk_f* db, gk_f* dc) { *da = bwd_a; *db = bwd_b; *dc = bwd_c; }
/* Functions without a gradient: predicates and integers. */
#define GK_UNARY_FLAT(name, fwd) GK_UNARY(name, fwd, 0)
#define GK_BINARY_FLAT(name, fwd) GK_BINARY(name, fwd, 0, 0)

#define GK_FWD GK_CAT(GK_OP, _fwd)
#define GK_BWD GK_CAT(GK_OP, _bwd)
/* 16-byte accesses in flight per thread before the first use. */
#define GK_MAP_DEPTH 4
/* Vectors that a thread of unary_flat, and of unary_bwd_flat, takes: 16-bit values leave more arithmetic per byte, which more loads in flight hide
 * (measured). */
#define GK_MAP_RUNS (GK_W >= 8 ? 4 : 1)
#define GK_BWD_RUNS (GK_W >= 8 ? 2 : 1)

/* GK_W elements, or one element repeated. */
GK_FN gk_vec gk_load_wide(GK_GLOBAL const gk_t* p, gk_i64 i, int wide)
{
    gk_vec r;
    if (wide) return gk_loadv(p, i);
    gk_f x = gk_load(p, i);
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = x;
    return r;
}

/* Truth of GK_W values as bytes at an index divisible by GK_W of a 16-byte aligned base. */
GK_FN void gk_store_mask(GK_GLOBAL gk_u8* p, gk_i64 i, gk_vec r)
{
#if GK_W >= 4
    GK_UNROLL for (int k = 0; k < GK_W; k += 4) {
        gk_u32 w = (gk_u32)(r.v[k] != 0) | (gk_u32)(r.v[k + 1] != 0) << 8 | (gk_u32)(r.v[k + 2] != 0) << 16 | (gk_u32)(r.v[k + 3] != 0) << 24;
        ((GK_GLOBAL gk_u32*)(p + i))[k / 4] = w;
    }
#else
    *(GK_GLOBAL gk_u16*)(p + i) = (gk_u16)((gk_u32)(r.v[0] != 0) | (gk_u32)(r.v[1] != 0) << 8);
#endif
}

#endif
