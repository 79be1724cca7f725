/* What the normalisation kernels share: moments that can be combined, and the affine map.
 *
 * GK_OP is gk_norm_plain, or gk_norm_act for the units that apply an activation: the plain ones then carry none of its text. */
#ifndef GK_NORM_H
#define GK_NORM_H
#include "common/prelude/rows.h"
#define gk_norm_plain_acts 0
#define gk_norm_act_acts 1
#define GK_ACTS GK_CAT(GK_OP, _acts)
#if GK_ACTS
#include "common/activation/fused.h"
#define GK_ACT(act, v, p) gk_fused_act(act, v, p)
#else
#define GK_ACT(act, v, p) (v)
#endif

/* Count, mean and sum of squared deviations (Welford, 1962; combined as in Chan, Golub and LeVeque, 1979). Without a mean (`raw`): the sum of
 * squares. */
typedef struct { gk_f n, mean, m2; } gk_moments;
GK_FN gk_moments gk_moments_none(void) { gk_moments m; m.n = m.mean = m.m2 = GK_R(0.0); return m; }
GK_FN void gk_moments_combine(gk_moments* a, gk_f n, gk_f mean, gk_f m2)
{
    gk_f all = a->n + n, part = n / all, d = mean - a->mean, joined = a->mean + d * part;
    a->m2 += m2 + d * d * a->n * part;
    /* An infinite mean stays one. */
    a->mean = gk_isnan(joined) ? a->mean + mean : joined;
    a->n = all;
}
/* Takes in n values, n a constant. */
GK_FN void gk_moments_take(gk_moments* a, const gk_f* v, const int n, int raw)
{
    gk_f s = GK_R(0.0), q = GK_R(0.0);
    if (!raw) {
        GK_UNROLL for (int k = 0; k < n; k++) s += v[k];
        s *= GK_R(1.0) / (gk_f)n;
    }
    GK_UNROLL for (int k = 0; k < n; k++) q += (v[k] - s) * (v[k] - s);
    gk_moments_combine(a, (gk_f)n, s, q);
}
/* Combines the moments of `lanes` threads which took `count` values together. */
GK_FN gk_moments gk_moments_group(gk_moments a, gk_f count, GK_LOCAL_PTR gk_f* tmp, int lanes, int raw)
{
    gk_moments r;
    gk_f d;
    r.n = count;
    r.mean = GK_R(0.0);
    if (!raw) r.mean = gk_group_sum(a.n * a.mean, tmp, lanes) / count;
    d = a.mean - r.mean;
    if (a.n == GK_R(0.0)) d = GK_R(0.0);
    r.m2 = gk_group_sum(a.m2 + a.n * d * d, tmp, lanes);
    return r;
}

/* Parameters of the elements from position e of a row on: entry e of p, or (inner > 0) that of the channel, first + e / inner. A 16-byte item where
 * `wide` (`affine`: in one aligned access, or of one channel), else one element in component 0. */
GK_FN gk_vec gk_affine(GK_GLOBAL const gk_t* p, gk_i64 e, gk_i64 first, gk_i64 inner, int wide, int affine)
{
    gk_vec r;
    if (wide && affine && inner == 0) return gk_loadv(p, e);
    if (!wide || affine) {
        gk_i64 at = inner ? first + gk_quot(e, inner) : e;
        gk_f x = gk_load(p, at);
        GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = x;
    } else {
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_i64 at = inner ? first + gk_quot(e + k, inner) : e + k;
            r.v[k] = gk_load(p, at);
        }
    }
    return r;
}

GK_FN gk_vec gk_zeros(void) { gk_vec r; GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = GK_R(0.0); return r; }

/* xh = (x - mean) * rstd, then the affine map, late residual and activation. One 16-byte item, or one element in component 0. */
GK_FN gk_vec gk_norm_out(gk_vec v, gk_f mean, gk_f rstd, int has_gamma, gk_vec gamma, gk_f offset, gk_vec beta, int act, gk_f p)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        gk_f xh = (v.v[k] - mean) * rstd;
        if (has_gamma) xh *= gamma.v[k] + offset;
        v.v[k] = xh + beta.v[k];
    }
    return GK_ACT(act, v, p);
}

/* dy through the activation; v is the affine map's result, or y. */
GK_FN gk_vec gk_norm_dz(gk_vec dy, gk_vec v, int act, gk_f p, int from_y)
{
#if GK_ACTS
    return gk_fused_act_bwd(act, dy, v, p, from_y);
#else
    return dy;
#endif
}

#define GK_NORM_SUB 32 /* lanes that combine their sums before the others' are looked at */

/* The `keep` items of a lane out of `items` from element `base` on; zeros past the end. */
GK_FN void gk_aligned_load(gk_raw16* a, GK_GLOBAL const gk_t* p, gk_i64 base, int items, int lane, int lanes, const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u++) {
        a[u] = gk_make16(0u, 0u, 0u, 0u);
        if (lane + u * lanes < items) a[u] = gk_load16((GK_GLOBAL const void*)(p + base + (lane + u * lanes) * GK_W));
    }
}

/* Sets that a block reads twice: a thread has GK_SET items in flight, and GK_KEPT of the first ones wait in local memory. */
#define GK_SET 13
#define GK_KEPT 11
GK_FN void gk_aligned_keep(GK_LOCAL_PTR gk_raw16* kept, const gk_raw16* a)
{
    GK_UNROLL for (int u = 0; u < GK_KEPT; u++) kept[u * GK_BLOCK + gk_lid()] = a[u];
}
/* gk_aligned_load of the items that were kept and of the few that were not. */
GK_FN void gk_aligned_reload(gk_raw16* a, GK_LOCAL_PTR const gk_raw16* kept, GK_GLOBAL const gk_t* p, gk_i64 base, int items, int lane, int lanes)
{
    int far = GK_KEPT * lanes;
    gk_aligned_load(a + GK_KEPT, p, base + far * GK_W, items - far, lane, lanes, GK_SET - GK_KEPT);
    GK_UNROLL for (int u = 0; u < GK_KEPT; u++) a[u] = kept[u * GK_BLOCK + gk_lid()];
}

#endif
