/* Normalisation, forward, of rows and planes that consist of whole aligned 16-byte items: y = act((x - mean) * rstd * (gamma + offset) + beta).
 * What norm.c does for all layouts, here with few registers and all reads of a work-item in flight at a time.
 *
 * _rows_even, _long: a row per `lanes` work-items, in registers, raw; parameters per column. _add: of x + r, written to s where wanted.
 * _part_even: mean and m2 of runs of rows; _apply_even: the map over planes of one channel; _add: with r added before act.
 * Statistics in two passes over registers, joined after Chan et al. Runs cut a row of `items` into `splits` pieces of `chunk` items.
 * Launch: GK_BLOCK >> bits rows or runs per block, lanes = 1 << bits; exactly as many blocks as that takes. Arithmetic in gk_f. Deterministic.
 * Reference: F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm.
 */
#include "norm.h"

/* 40 registers; the longer rows, double precision and activations take what they need. */
#if GK_DTYPE != GK_F64 && !GK_ACTS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 6
#endif

#define GK_SUB 32 /* lanes that join their sums before the others' are looked at */

GK_FN void gk_even_load(gk_raw16* a, GK_GLOBAL const gk_t* p, gk_i64 base, int items, int lane, int lanes, const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u++) {
        a[u] = gk_make16(0u, 0u, 0u, 0u);
        if (lane + u * lanes < items) a[u] = gk_load16((GK_GLOBAL const void*)(p + base + (lane + u * lanes) * GK_W));
    }
}
GK_FN gk_vec gk_even_value(gk_raw16 a, gk_raw16 c, const int adds)
{
    gk_vec v = gk_decode16(a);
    if (adds) {
        gk_vec w = gk_decode16(c);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += w.v[k];
    }
    return v;
}

/* Moments of a run of `items` items of which each lane holds `keep`, in all of its lanes. Items past the end are zeros. */
GK_FN gk_moments gk_even_moments(const gk_raw16* a, const gk_raw16* c, int items, gk_f count, int lane, int lanes, GK_LOCAL_PTR gk_f* tmp,
                                 GK_LOCAL_PTR gk_f* sets, int raw, const int keep, const int adds)
{
    int sub = lanes < GK_SUB ? lanes : GK_SUB, first = lane & ~(sub - 1), n = 0;
    gk_f s = GK_R(0.0), q = GK_R(0.0);
    gk_moments m;
    GK_UNROLL for (int u = 0; u < keep; u++) {
        int left = items - (first + u * lanes);
        if (left > 0) n += left < sub ? left : sub;
    }
    if (!raw) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            gk_vec v = gk_even_value(a[u], c[u], adds);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s += v.v[k];
        }
        s = gk_group_sum(s, tmp, sub);
        if (n > 0) s *= gk_recip((gk_f)(n * GK_W));
    }
    GK_UNROLL for (int u = 0; u < keep; u++)
        if (lane + u * lanes < items) {
            gk_vec v = gk_even_value(a[u], c[u], adds);
            GK_UNROLL for (int k = 0; k < GK_W; k++) q += (v.v[k] - s) * (v.v[k] - s);
        }
    q = gk_group_sum(q, tmp, sub);
    if (lanes > GK_SUB) {
        int set = gk_lid() / GK_SUB, per = lanes / GK_SUB, from = set & ~(per - 1);
        if ((gk_lid() & (GK_SUB - 1)) == 0) {
            sets[3 * set] = (gk_f)(n * GK_W);
            sets[3 * set + 1] = s;
            sets[3 * set + 2] = q;
        }
        GK_BARRIER();
        s = q = GK_R(0.0);
        if (!raw) {
            GK_ROLLED for (int k = from; k < from + per; k++) s += sets[3 * k] * sets[3 * k + 1];
            s *= gk_recip(count);
        }
        GK_ROLLED for (int k = from; k < from + per; k++) q += sets[3 * k + 2] + sets[3 * k] * (sets[3 * k + 1] - s) * (sets[3 * k + 1] - s);
    }
    m.n = count; m.mean = s; m.m2 = q;
    return m;
}

/* KEEP: items of a row per work-item; ADDS: with r. */
#define GK_NORM_ROWS_EVEN(KEEP, ADDS) \
    { \
        GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, s); \
        GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd); \
        GK_LOCAL gk_f tmp[GK_BLOCK]; \
        GK_LOCAL gk_f sets[3 * GK_BLOCK / GK_SUB]; \
        int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), row = gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits), live = row < rows ? items : 0; \
        gk_i64 base = (gk_i64)row * items * GK_W; \
        gk_raw16 a[KEEP], c[KEEP]; \
        gk_moments m; \
        gk_f scale; \
        gk_even_load(a, x, base, live, lane, lanes, KEEP); \
        if (ADDS) gk_even_load(c, r, base, live, lane, lanes, KEEP); \
        m = gk_even_moments(a, ADDS ? c : a, live, (gk_f)items * (gk_f)GK_W, lane, lanes, tmp, sets, raw, KEEP, ADDS); \
        scale = GK_R(1.0) / gk_sqrt(m.m2 * gk_recip(m.n) + eps); \
        if (lane == 0 && row < rows) { \
            if (mean) mean[row] = m.mean; \
            if (rstd) rstd[row] = scale; \
        } \
        GK_UNROLL for (int u = 0; u < KEEP; u++) { \
            int i = lane + u * lanes; \
            if (i < live) { \
                gk_vec v = gk_even_value(a[u], ADDS ? c[u] : a[u], ADDS), g = gk_zeros(), b = gk_zeros(); \
                if (gamma) g = gk_loadv(gamma, i * GK_W); \
                if (beta) b = gk_loadv(beta, i * GK_W); \
                if (ADDS && s) gk_storev_quick(s, base + i * GK_W, v); \
                gk_storev_quick(y, base + i * GK_W, gk_norm_out(v, m.mean, scale, gamma != 0, g, offset, b, act, p)); \
            } \
        } \
    }
GK_KERNEL(norm_rows_even)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s), GK_OUT(gk_f, mean),
                          GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
GK_NORM_ROWS_EVEN(4, 0)
#if GK_DTYPE != GK_F64 && !GK_ACTS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#endif
GK_KERNEL(norm_rows_even_long)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                               GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
GK_NORM_ROWS_EVEN(8, 0)
GK_KERNEL(norm_rows_even_add)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                              GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
GK_NORM_ROWS_EVEN(4, 1)

/* part[2b], part[2b + 1] = mean and m2 of run b = row * splits + k; a run is at most 4 items per lane. */
GK_KERNEL(norm_part_even)(GK_IN(gk_t, x), GK_OUT(gk_f, part), int runs, int items, int splits, int chunk, int bits, int raw)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sets[3 * GK_BLOCK / GK_SUB];
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits), row = b, from = 0, live = 0;
    gk_raw16 a[4];
    gk_moments m;
    if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; }
    if (b < runs) live = items - from < chunk ? items - from : chunk;
    gk_even_load(a, x, ((gk_i64)row * items + from) * GK_W, live, lane, lanes, 4);
    m = gk_even_moments(a, a, live, (gk_f)live * (gk_f)GK_W, lane, lanes, tmp, sets, raw, 4, 0);
    if (lane == 0 && b < runs) { part[2 * (gk_i64)b] = m.mean; part[2 * (gk_i64)b + 1] = m.m2; }
}

/* Rows are planes of one channel, of `channels`; statistics of row / share, or (share = 0) of the channel. From the last run to the first: what the
 * statistics read last is still in the cache. */
#define GK_NORM_APPLY_EVEN(ADDS) \
    { \
        GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); \
        GK_BIND_OUT(gk_t, y); \
        int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = runs - 1 - (gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits)); \
        if (b >= 0) { \
            int row = b, from = 0, live, channel, stat; \
            gk_i64 base; \
            gk_raw16 a[4], c[4]; \
            gk_f m, q, shift = GK_R(0.0); \
            if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; } \
            live = items - from < chunk ? items - from : chunk; \
            base = ((gk_i64)row * items + from) * GK_W; \
            gk_even_load(a, x, base, live, lane, lanes, 4); \
            if (ADDS) gk_even_load(c, r, base, live, lane, lanes, 4); \
            channel = row % channels; \
            stat = share ? row / share : channel; \
            m = mean[stat]; \
            q = rstd[stat]; \
            if (gamma) q *= gk_load(gamma, channel); \
            if (beta) shift = gk_load(beta, channel); \
            GK_UNROLL for (int u = 0; u < 4; u++) \
                if (lane + u * lanes < live) { \
                    gk_vec v = gk_decode16(a[u]), w = gk_decode16(ADDS ? c[u] : a[u]); \
                    GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = (v.v[k] - m) * q + (ADDS ? shift + w.v[k] : shift); \
                    gk_storev_quick(y, base + (lane + u * lanes) * GK_W, GK_ACT(act, v, p)); \
                } \
        } \
    }
GK_KERNEL(norm_apply_even)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                           GK_OUT(gk_t, y), int runs, int items, int splits, int chunk, int bits, int channels, int share, int act, gk_f p)
GK_NORM_APPLY_EVEN(0)
GK_KERNEL(norm_apply_even_add)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                               GK_OUT(gk_t, y), int runs, int items, int splits, int chunk, int bits, int channels, int share, int act, gk_f p)
GK_NORM_APPLY_EVEN(1)
