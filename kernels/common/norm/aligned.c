/* Normalisation, forward, of rows and planes that consist of whole aligned 16-byte items: y = act((x - mean) * rstd * (gamma + offset) + beta).
 * What norm/norm.c does for all layouts, here with few registers and all reads of a thread in flight at a time.
 *
 * _rows_aligned, _long: a row per `lanes` threads, in registers, raw; parameters per column. _add: of x + r, written to s where wanted.
 * _partial_aligned: mean and m2 of runs of rows; _apply_aligned: the map over planes of one channel; _add: with r added before act.
 * _sets_even: groups whose second read comes from a cache.
 * Statistics in two passes over registers, combined after Chan et al. Runs cut a row of `items` into `splits` pieces of `chunk` items.
 * Launch: GK_BLOCK >> bits rows or runs per block, lanes = 1 << bits; exactly as many blocks as that takes. Arithmetic in gk_f. Deterministic.
 * Reference: F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm.
 */
#include "norm.h"

#define GK_NORM_LOW_REGISTER (GK_DTYPE != GK_F64 && !GK_ACTS)
/* 40 registers; the longer rows, double precision and activations take what they need. */
#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 6
#endif

GK_FN gk_vec gk_aligned_value(gk_raw16 a, gk_raw16 c, const int adds)
{
    gk_vec v = gk_decode16(a);
    if (adds) {
        gk_vec w = gk_decode16(c);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += w.v[k];
    }
    return v;
}

/* Moments of a run of `items` items of which each lane holds `keep`, in all of its lanes. Items past the end are zeros. */
GK_FN gk_moments gk_aligned_moments(const gk_raw16* a, const gk_raw16* c, int items, gk_f count, int lane, int lanes, GK_LOCAL_PTR gk_f* tmp,
                                 GK_LOCAL_PTR gk_f* sets, int raw, const int keep, const int adds)
{
    int sub = lanes < GK_NORM_SUB ? lanes : GK_NORM_SUB, first = lane & ~(sub - 1), n = 0;
    gk_f s = GK_R(0.0), q = GK_R(0.0);
    gk_moments m;
    GK_UNROLL for (int u = 0; u < keep; u++) {
        int left = items - (first + u * lanes);
        if (left > 0) n += left < sub ? left : sub;
    }
    if (!raw) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            gk_vec v = gk_aligned_value(a[u], c[u], adds);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s += v.v[k];
        }
        s = gk_group_sum(s, tmp, sub);
        if (n > 0) s *= gk_recip((gk_f)(n * GK_W));
    }
    GK_UNROLL for (int u = 0; u < keep; u++)
        if (lane + u * lanes < items) {
            gk_vec v = gk_aligned_value(a[u], c[u], adds);
            GK_UNROLL for (int k = 0; k < GK_W; k++) q += (v.v[k] - s) * (v.v[k] - s);
        }
    q = gk_group_sum(q, tmp, sub);
    if (lanes > GK_NORM_SUB) {
        int set = gk_lid() / GK_NORM_SUB, per = lanes / GK_NORM_SUB, from = set & ~(per - 1);
        if ((gk_lid() & (GK_NORM_SUB - 1)) == 0) {
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

/* Rows of `items` items over 1 << bits lanes, `keep` (up to 8) items per thread; adds: with r. */
GK_FN void gk_aligned_rows(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* r, GK_GLOBAL const gk_t* gamma, GK_GLOBAL const gk_t* beta, GK_GLOBAL gk_t* y,
                        GK_GLOBAL gk_t* s, GK_GLOBAL gk_f* mean, GK_GLOBAL gk_f* rstd, int rows, int items, int bits, int raw, gk_f eps, gk_f offset,
                        int act, gk_f p, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* sets, const int keep, const int adds)
{
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), row = gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits), live = row < rows ? items : 0;
    gk_i64 base = (gk_i64)row * items * GK_W;
    gk_raw16 a[8], c[8];
    gk_moments m;
    gk_f scale;
    gk_aligned_load(a, x, base, live, lane, lanes, keep);
    if (adds) gk_aligned_load(c, r, base, live, lane, lanes, keep);
    m = gk_aligned_moments(a, adds ? c : a, live, (gk_f)items * (gk_f)GK_W, lane, lanes, tmp, sets, raw, keep, adds);
    scale = GK_R(1.0) / gk_sqrt(m.m2 * gk_recip(m.n) + eps);
    if (lane == 0 && row < rows) {
        if (mean) mean[row] = m.mean;
        if (rstd) rstd[row] = scale;
    }
    GK_UNROLL for (int u = 0; u < keep; u++) {
        int i = lane + u * lanes;
        if (i < live) {
            gk_vec v = gk_aligned_value(a[u], adds ? c[u] : a[u], adds);
            gk_vec g = gk_loadv_if(gamma, i * GK_W, gamma != 0, GK_R(0.0)), b = gk_loadv_if(beta, i * GK_W, beta != 0, GK_R(0.0));
            if (adds && s) gk_storev_stream(s, base + i * GK_W, v);
            gk_storev_stream(y, base + i * GK_W, gk_norm_out(v, m.mean, scale, gamma != 0, g, offset, b, act, p));
        }
    }
}

#define GK_NORM_BIND() \
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, s); \
    GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd); \
    GK_LOCAL gk_f tmp[GK_BLOCK]; \
    GK_LOCAL gk_f sets[3 * GK_BLOCK / GK_NORM_SUB]

// Units: FLOATS64 x EPILOGUES
GK_KERNEL(norm_rows_aligned)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                             GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
{
    GK_NORM_BIND();
    gk_aligned_rows(x, r, gamma, beta, y, s, mean, rstd, rows, items, bits, raw, eps, offset, act, p, tmp, sets, 4, 0);
}
#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#endif
GK_KERNEL(norm_rows_aligned_looped)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                               GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
{
    GK_NORM_BIND();
    gk_aligned_rows(x, r, gamma, beta, y, s, mean, rstd, rows, items, bits, raw, eps, offset, act, p, tmp, sets, 8, 0);
}
GK_KERNEL(norm_rows_aligned_add)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_t, s),
                              GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int rows, int items, int bits, int raw, gk_f eps, gk_f offset, int act, gk_f p)
{
    GK_NORM_BIND();
    gk_aligned_rows(x, r, gamma, beta, y, s, mean, rstd, rows, items, bits, raw, eps, offset, act, p, tmp, sets, 4, 1);
}

#undef GK_NORM_BIND

/* Items whose moments are found together: their numbers are in registers at a time. */
#define GK_NORM_MOMENTS (GK_W >= 8 ? 2 : 4)
/* Takes in the moments of a lane's first `keep` items of a run, which has `items` of all lanes. */
GK_FN void gk_few_moments(gk_moments* m, const gk_raw16* a, int items, int lane, int lanes, const int keep)
{
    gk_f s = GK_R(0.0), q = GK_R(0.0);
    int n = 0;
    GK_UNROLL for (int u = 0; u < keep; u++) {
        gk_vec v = gk_decode16(a[u]);
        if (lane + u * lanes < items) n += GK_W;
        GK_UNROLL for (int k = 0; k < GK_W; k++) s += v.v[k];
    }
    if (n > 0) {
        s *= gk_recip((gk_f)n);
        GK_UNROLL for (int u = 0; u < keep; u++)
            if (lane + u * lanes < items) {
                gk_vec v = gk_decode16(a[u]);
                GK_UNROLL for (int k = 0; k < GK_W; k++) q += (v.v[k] - s) * (v.v[k] - s);
            }
        gk_moments_combine(m, (gk_f)n, s, q);
    }
}
GK_FN void gk_piece_moments(gk_moments* m, const gk_raw16* a, int items, int lane, int lanes, const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u += GK_NORM_MOMENTS)
        gk_few_moments(m, a + u, items - u * lanes, lane, lanes, keep - u < GK_NORM_MOMENTS ? keep - u : GK_NORM_MOMENTS);
}

/* part[2b], part[2b + 1] = mean and m2 of run b = row * splits + k. */
GK_KERNEL(norm_partial_aligned)(GK_IN(gk_t, x), GK_OUT(gk_f, part), int runs, int items, int splits, int chunk, int bits)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits), row = b, from = 0, live = 0;
    gk_moments m = gk_moments_none();
    if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; }
    if (b < runs) live = items - from < chunk ? items - from : chunk;
    GK_ROLLED for (int i = 0; i < live; i += 4 * lanes) {
        gk_raw16 a[4];
        gk_aligned_load(a, x, ((gk_i64)row * items + from + i) * GK_W, live - i, lane, lanes, 4);
        gk_piece_moments(&m, a, live - i, lane, lanes, 4);
    }
    m = gk_moments_group(m, (gk_f)live * (gk_f)GK_W, tmp, lanes, 0);
    if (lane == 0 && b < runs) { part[2 * (gk_i64)b] = m.mean; part[2 * (gk_i64)b + 1] = m.m2; }
}

/* Rows are planes of one channel, of `channels`; statistics of row / share, or (share = 0) of the channel. From the last run to the first: what the
 * statistics read last is still in the cache. adds: with r. */
GK_FN void gk_aligned_apply(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* r, GK_GLOBAL const gk_t* gamma, GK_GLOBAL const gk_t* beta,
                         GK_GLOBAL const gk_f* mean, GK_GLOBAL const gk_f* rstd, GK_GLOBAL gk_t* y, int runs, int items, int splits, int chunk,
                         int bits, int channels, int share, int act, gk_f p, const int adds)
{
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = runs - 1 - (gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits));
    int row = b, from = 0, live, channel, stat;
    gk_i64 base;
    gk_raw16 a[4], c[4];
    gk_f m, q, shift = GK_R(0.0);
    if (b < 0) return;
    if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; }
    live = items - from < chunk ? items - from : chunk;
    base = ((gk_i64)row * items + from) * GK_W;
    gk_aligned_load(a, x, base, live, lane, lanes, 4);
    if (adds) gk_aligned_load(c, r, base, live, lane, lanes, 4);
    channel = row % channels;
    stat = share ? row / share : channel;
    m = mean[stat];
    q = rstd[stat];
    if (gamma) q *= gk_load(gamma, channel);
    if (beta) shift = gk_load(beta, channel);
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (lane + u * lanes < live) {
            gk_vec v = gk_decode16(a[u]), w = gk_decode16(adds ? c[u] : a[u]);
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = (v.v[k] - m) * q + (adds ? shift + w.v[k] : shift);
            gk_storev_stream(y, base + (lane + u * lanes) * GK_W, GK_ACT(act, v, p));
        }
}

#define GK_NORM_BIND() \
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); \
    GK_BIND_OUT(gk_t, y)

GK_KERNEL(norm_apply_aligned)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                           GK_OUT(gk_t, y), int runs, int items, int splits, int chunk, int bits, int channels, int share, int act, gk_f p)
{
    GK_NORM_BIND();
    gk_aligned_apply(x, r, gamma, beta, mean, rstd, y, runs, items, splits, chunk, bits, channels, share, act, p, 0);
}
GK_KERNEL(norm_apply_aligned_add)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                               GK_OUT(gk_t, y), int runs, int items, int splits, int chunk, int bits, int channels, int share, int act, gk_f p)
{
    GK_NORM_BIND();
    gk_aligned_apply(x, r, gamma, beta, mean, rstd, y, runs, items, splits, chunk, bits, channels, share, act, p, 1);
}
#undef GK_NORM_BIND

/* Other sets are read while one is written. */
#if GK_DTYPE != GK_F64
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_NORM_HELD ? 2 : 3)
#endif
/* Items of the second pass over a set that are read together. */
#define GK_NORM_OUT 4
/* The map of n items of a plane from element `base` on: a thread's first GK_KEPT items are in local memory if `near`, the rest in a cache. */
GK_FN void gk_set_out(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* y, GK_LOCAL_PTR const gk_raw16* kept, int near, gk_i64 base, int n, int lane, int lanes,
                      gk_f mean, gk_f q, gk_f shift, int act, gk_f p)
{
    GK_ROLLED for (int first = 0; first < GK_SET && first * lanes < n; first += GK_NORM_OUT) {
        gk_raw16 a[GK_NORM_OUT];
        GK_UNROLL for (int j = 0; j < GK_NORM_OUT; j++) {
            int u = first + j, i = lane + u * lanes;
            a[j] = gk_make16(0u, 0u, 0u, 0u);
            if (near && u < GK_KEPT) a[j] = kept[u * GK_BLOCK + gk_lid()];
            else if (u < GK_SET && i < n) a[j] = gk_load16((GK_GLOBAL const void*)(x + base + i * GK_W));
        }
        GK_UNROLL for (int j = 0; j < GK_NORM_OUT; j++) {
            int u = first + j, i = lane + u * lanes;
            gk_vec v = gk_decode16(a[j]);
            if (u >= GK_SET || i >= n) break;
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = (v.v[k] - mean) * q + shift;
            gk_storev_stream(y, base + i * GK_W, GK_ACT(act, v, p));
        }
    }
}

/* The same of items that a thread has in registers, without an activation, whose call would need these. */
#define GK_NORM_HELD (!GK_ACTS)
GK_FN void gk_held_out(GK_GLOBAL gk_t* y, const gk_raw16* a, gk_i64 base, int n, int lane, int lanes, gk_f mean, gk_f q, gk_f shift, int act, gk_f p)
{
    GK_UNROLL for (int u = 0; u < GK_SET; u++) {
        int i = lane + u * lanes;
        gk_vec v = gk_decode16(a[u]);
        if (i >= n) break;
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = (v.v[k] - mean) * q + shift;
        gk_storev_stream(y, base + i * GK_W, GK_ACT(act, v, p));
    }
}

/* A set of `share` planes of `items` per block, its statistics and its map: the second pass runs backwards, from registers, then over what is still in
 * a cache, to what is in local memory. Planes lie over 1 << bits lanes each; the parameters are those of channel (set * share + plane) % channels. */
GK_KERNEL(norm_sets_aligned)(GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_OUT(gk_t, y), GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), int sets,
                             int share, int channels, int items, int bits, gk_f eps, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_raw16 kept[GK_KEPT * GK_BLOCK];
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), sub = gk_lid() >> bits, per = GK_BLOCK >> bits;
    int pieces = (items + GK_SET * lanes - 1) / (GK_SET * lanes), chunk = ((items + pieces - 1) / pieces + lanes - 1) / lanes * lanes;
    for (int set = gk_bid(0); set < sets; set += gk_nblocks(0)) {
        gk_moments m = gk_moments_none();
        gk_f scale;
        gk_raw16 a[GK_SET];
        int met = 0, held = GK_NORM_HELD;
        GK_ROLLED for (int plane = sub; plane < share; plane += per) {
            gk_i64 base = ((gk_i64)set * share + plane) * items * GK_W;
            GK_ROLLED for (int from = 0; from < items; from += chunk) {
                int n = items - from < chunk ? items - from : chunk;
                gk_aligned_load(a, x, base + from * GK_W, n, lane, lanes, GK_SET);
                gk_piece_moments(&m, a, n, lane, lanes, GK_SET);
                if (met++ == 0) gk_aligned_keep(kept, a);
            }
        }
        m = gk_moments_group(m, (gk_f)share * (gk_f)items * (gk_f)GK_W, tmp, GK_BLOCK, 0);
        scale = GK_R(1.0) / gk_sqrt(m.m2 / m.n + eps);
        if (gk_lid() == 0) {
            if (mean) mean[set] = m.mean;
            if (rstd) rstd[set] = scale;
        }
        GK_ROLLED for (int plane = (share - 1) / per * per + sub; plane >= 0; plane -= per)
            if (plane < share) {
                gk_i64 row = (gk_i64)set * share + plane, base = row * items * GK_W;
                int channel = (int)(row % channels);
                gk_f q = scale, shift = GK_R(0.0);
                if (gamma) q *= gk_load(gamma, channel);
                if (beta) shift = gk_load(beta, channel);
                GK_ROLLED for (int from = (pieces - 1) * chunk; from >= 0; from -= chunk) {
                    int n = items - from < chunk ? items - from : chunk;
                    met--;
                    if (held) gk_held_out(y, a, base + from * GK_W, n, lane, lanes, m.mean, q, shift, act, p);
                    else gk_set_out(x, y, kept, met == 0, base + from * GK_W, n, lane, lanes, m.mean, q, shift, act, p);
                    held = 0;
                }
            }
    }
}
