/* Normalisation, backward, of rows and planes that consist of whole aligned 16-byte items: formulas as in norm/backward.c, which does the same for
 * all layouts.
 *
 * _rows_16, _32: rows of so many values per lane in registers, parameters per column; dx and the sums of each block for the parameters in one pass.
 * _sets: sets of planes (groups) by one block each, the second read from a cache; the sums of the planes for the parameters.
 * _partial_aligned: sums along runs of planes; _apply_aligned: dx of planes whose means are known, from the last to the first, whose operands are
 * still cached. Partial sums: dz * xh first, those of dz `second` entries behind.  Arithmetic in gk_f. Deterministic.
 * Reference: gradients of F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm.
 */
#include "norm.h"

#define GK_NORM_LOW_REGISTER (GK_DTYPE != GK_F64 && !GK_ACTS)
/* 16-byte items per thread that are in flight where planes are summed, and where a set stays. */
#define GK_NORM_RUN 4

/* Sums of two values over `lanes` threads. Calls take turns (0, 1, 0, ...) with the halves of `sets`, so one barrier does. */
GK_FN void gk_pair_sum(gk_f* s1, gk_f* s2, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* sets, int turn, int lanes)
{
    int sub = lanes < GK_NORM_SUB ? lanes : GK_NORM_SUB, set = gk_lid() / GK_NORM_SUB, per = lanes / GK_NORM_SUB, from = set & ~(per - 1);
    GK_LOCAL_PTR gk_f* mine = sets + turn * (2 * GK_BLOCK / GK_NORM_SUB);
    gk_f a = gk_group_sum(*s1, tmp, sub), b = gk_group_sum(*s2, tmp, sub);
    if (lanes > GK_NORM_SUB) {
        if ((gk_lid() & (GK_NORM_SUB - 1)) == 0) { mine[2 * set] = a; mine[2 * set + 1] = b; }
        GK_BARRIER();
        from += gk_lid() & (per - 1);
        a = gk_group_sum(mine[2 * from], tmp, per);
        b = gk_group_sum(mine[2 * from + 1], tmp, per);
    }
    *s1 = a;
    *s2 = b;
}

GK_FN void gk_put_sums(GK_GLOBAL gk_f* p, gk_i64 at, gk_vec v)
{
#if GK_DTYPE == GK_F64
    GK_UNROLL for (int k = 0; k < GK_W; k++) p[at + k] = v.v[k];
#else
    GK_UNROLL for (int k = 0; k < GK_W; k += 4)
        gk_store16((GK_GLOBAL void*)(p + at + k), gk_make16(gk_as_u32(v.v[k]), gk_as_u32(v.v[k + 1]), gk_as_u32(v.v[k + 2]), gk_as_u32(v.v[k + 3])));
#endif
}

/* xh in h (which holds x) and dz in d (which holds dy) of the item at element i; w and b are weight and bias, r is added before the activation. */
GK_FN void gk_aligned_terms(gk_vec* h, gk_vec* d, gk_f m, gk_f q, gk_vec w, gk_vec b, GK_GLOBAL const gk_t* y, GK_GLOBAL const gk_t* r, gk_i64 i,
                         int act, gk_f p)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) h->v[k] = (h->v[k] - m) * q;
#if GK_ACTS
    if (y) {
        b = gk_loadv(y, i);
    } else {
        if (r) {
            gk_vec c = gk_loadv(r, i);
            GK_UNROLL for (int k = 0; k < GK_W; k++) b.v[k] += c.v[k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) b.v[k] += h->v[k] * w.v[k];
    }
    *d = gk_norm_dz(*d, b, act, p, y != 0);
#endif
}
GK_FN gk_vec gk_fill(gk_f x) { gk_vec r; GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = x; return r; }
GK_FN void gk_aligned_plus(gk_vec* v, GK_GLOBAL const gk_t* p, gk_i64 i)
{
    gk_vec o = gk_loadv(p, i);
    GK_UNROLL for (int k = 0; k < GK_W; k++) v->v[k] += o.v[k];
}

/* What is read of a row. */
GK_FN void gk_row_read(gk_raw16* g, gk_raw16* a, gk_f* m, gk_f* q, GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_f* mean,
                       GK_GLOBAL const gk_f* rstd, int row, int rows, int items, int lane, int lanes, const int keep)
{
    gk_aligned_load(g, dy, (gk_i64)row * items * GK_W, row < rows ? items : 0, lane, lanes, keep);
    gk_aligned_load(a, x, (gk_i64)row * items * GK_W, row < rows ? items : 0, lane, lanes, keep);
    if (row < rows) { *q = rstd[row]; if (mean) *m = mean[row]; }
}

/* Adds the sums in v of the block's rows, of which each run of 1 << bits threads has one, and stores them at `at`. Rows of a warp are added by exchange,
 * where that is possible. What is left of `sets` items at a time meets in local memory. Little text: it runs once, and is read from memory for that. */
GK_FN void gk_store_row_sums(GK_GLOBAL gk_f* part, gk_i64 at, gk_vec* v, int items, int bits, GK_LOCAL_PTR gk_f* sums, const int keep)
{
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), row = gk_lid() >> bits, per = GK_BLOCK >> bits, leads = 1;
    if (per == 1) {
        GK_UNROLL for (int u = 0; u < keep; u++)
            if (lane + u * lanes < items) gk_put_sums(part, at + (lane + u * lanes) * GK_W, v[u]);
        return;
    }
#ifdef gk_shuffle_xor
    GK_ROLLED for (int m = lanes; m < GK_SHUFFLE_WIDTH; m <<= 1)
        GK_UNROLL for (int u = 0; u < keep; u++) GK_UNROLL for (int k = 0; k < GK_W; k++) v[u].v[k] += gk_shuffle_xor(v[u].v[k], m);
    if (lanes < GK_SHUFFLE_WIDTH) {
        row = gk_lid() / GK_SHUFFLE_WIDTH; leads = gk_lid() % GK_SHUFFLE_WIDTH < lanes; per = GK_BLOCK / GK_SHUFFLE_WIDTH;
    }
#endif
    int each = per << bits, sets = GK_BLOCK / each;
    GK_ROLLED for (int first = 0; first < keep; first += sets) {
        GK_UNROLL for (int u = 0; u < keep; u++) {
            if (!leads || u < first || u >= first + sets) continue;
            GK_UNROLL for (int k = 0; k < GK_W; k++) sums[k * GK_BLOCK + (u - first) * each + (row << bits) + lane] = v[u].v[k];
        }
        GK_BARRIER();
        GK_ROLLED for (int o = gk_lid(); o < sets * lanes * GK_W; o += GK_BLOCK) {
            int k = o % GK_W, i = o / GK_W, item = (first << bits) + i, from = k * GK_BLOCK + (i >> bits) * each + (i & (lanes - 1));
            if (item >= items) break;
            gk_f sum = sums[from];
            for (int j = 1; j < per; j++) sum += sums[from + (j << bits)];
            part[at + item * GK_W + k] = sum;
        }
        GK_BARRIER();
    }
}

/* `keep` items of a row per thread, up to 32 / GK_W; ahead: the next row is read before the current one is finished. Block b takes the rows b * per,
 * (b + blocks) * per, ... and writes its sums to row b of part [blocks, items * GK_W]. */
GK_FN void gk_aligned_bwd_rows(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* gamma, GK_GLOBAL const gk_t* beta,
                            GK_GLOBAL const gk_t* y, GK_GLOBAL const gk_f* mean, GK_GLOBAL const gk_f* rstd, GK_GLOBAL const gk_t* add,
                            GK_GLOBAL gk_t* dx, GK_GLOBAL gk_f* part, int rows, int items, int bits, gk_i64 second, int raw, gk_f offset, int act,
                            gk_f p, int accumulate, GK_LOCAL_PTR gk_f* tmp, GK_LOCAL_PTR gk_f* sets, GK_LOCAL_PTR gk_f* sums, const int keep,
                            const int ahead)
{
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), per = GK_BLOCK >> bits, step = gk_nblocks(0) * per, turn = 0;
    int row = gk_bid(0) * per + (gk_lid() >> bits);
    gk_f scale = gk_recip((gk_f)items * (gk_f)GK_W), shift = gamma ? offset : GK_R(1.0), m = GK_R(0.0), q = GK_R(0.0);
    gk_vec dg[32 / GK_W], db[32 / GK_W], t[32 / GK_W], h[32 / GK_W];
    gk_raw16 g[32 / GK_W], a[32 / GK_W], w[32 / GK_W];
    GK_UNROLL for (int u = 0; u < keep; u++) {
        dg[u] = db[u] = t[u] = h[u] = gk_zeros();
        w[u] = gk_make16(0u, 0u, 0u, 0u);
    }
    if (gamma) gk_aligned_load(w, gamma, 0, items, lane, lanes, keep);
    if (ahead) gk_row_read(g, a, &m, &q, dy, x, mean, rstd, row, rows, items, lane, lanes, keep);
    GK_ROLLED for (int b = gk_bid(0) * per; b < rows; b += step) {
        gk_i64 base = (gk_i64)row * items * GK_W;
        int live = row < rows ? items : 0;
        gk_f c1 = GK_R(0.0), c2 = GK_R(0.0), k0, k1, k2;
        if (!ahead) gk_row_read(g, a, &m, &q, dy, x, mean, rstd, row, rows, items, lane, lanes, keep);
        GK_UNROLL for (int u = 0; u < keep; u++) {
            int i = lane + u * lanes;
            if (i < live) {
                gk_vec e = gk_decode16(g[u]), f = gk_decode16(a[u]), v = gk_decode16(w[u]), z = gk_zeros();
                GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += shift;
                if (GK_ACTS && beta) z = gk_loadv(beta, i * GK_W);
                gk_aligned_terms(&f, &e, m, q, v, z, y, 0, base + i * GK_W, act, p);
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    dg[u].v[k] += e.v[k] * f.v[k];
                    db[u].v[k] += e.v[k];
                    e.v[k] *= v.v[k];
                    c1 += e.v[k];
                    c2 += e.v[k] * f.v[k];
                }
                t[u] = e;
                h[u] = f;
            }
        }
        k0 = q;
        row += step;
        if (ahead) gk_row_read(g, a, &m, &q, dy, x, mean, rstd, row, rows, items, lane, lanes, keep);
        if (dx) {
            gk_pair_sum(&c1, &c2, tmp, sets, turn, lanes);
            turn ^= 1;
            k1 = raw ? GK_R(0.0) : -k0 * (c1 * scale);
            k2 = -k0 * (c2 * scale);
            GK_UNROLL for (int u = 0; u < keep; u++) {
                int i = lane + u * lanes;
                if (i < live) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) t[u].v[k] = k0 * t[u].v[k] + (k1 + h[u].v[k] * k2);
                    if (add) gk_aligned_plus(&t[u], add, base + i * GK_W);
                    if (accumulate) gk_aligned_plus(&t[u], dx, base + i * GK_W);
                    gk_storev_stream(dx, base + i * GK_W, t[u]);
                }
            }
        }
    }
    if (!part) return;
    gk_store_row_sums(part, (gk_i64)gk_bid(0) * items * GK_W, dg, items, bits, sums, keep);
    gk_store_row_sums(part, second + (gk_i64)gk_bid(0) * items * GK_W, db, items, bits, sums, keep);
}

#define GK_NORM_BIND() \
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, mean); \
    GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_t, add); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part); \
    GK_LOCAL gk_f tmp[GK_BLOCK]; \
    GK_LOCAL gk_f sets[4 * GK_BLOCK / GK_NORM_SUB]; \
    GK_LOCAL gk_f sums[GK_BLOCK * GK_W]

#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2
#endif
// Units: FLOATS64 x EPILOGUES
GK_KERNEL(norm_bwd_rows_16)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_f, mean),
                            GK_IN(gk_f, rstd), GK_IN(gk_t, add), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), int rows, int items, int bits, gk_i64 second,
                            int raw, gk_f offset, int act, gk_f p, int accumulate)
{
    GK_NORM_BIND();
    gk_aligned_bwd_rows(dy, x, gamma, beta, y, mean, rstd, add, dx, part, rows, items, bits, second, raw, offset, act, p, accumulate, tmp, sets, sums,
                     16 / GK_W, GK_W >= 8);
}
#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#endif
GK_KERNEL(norm_bwd_rows_32)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_f, mean),
                            GK_IN(gk_f, rstd), GK_IN(gk_t, add), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), int rows, int items, int bits, gk_i64 second,
                            int raw, gk_f offset, int act, gk_f p, int accumulate)
{
    GK_NORM_BIND();
    gk_aligned_bwd_rows(dy, x, gamma, beta, y, mean, rstd, add, dx, part, rows, items, bits, second, raw, offset, act, p, accumulate, tmp, sets, sums,
                     32 / GK_W, 1);
}
#undef GK_NORM_BIND
#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#endif

/* Weight and bias of a channel. */
GK_FN gk_f gk_weight(GK_GLOBAL const gk_t* gamma, int channel) { gk_f w = GK_R(1.0); if (gamma) w = gk_load(gamma, channel); return w; }
GK_FN gk_f gk_bias(GK_GLOBAL const gk_t* beta, int channel) { gk_f b = GK_R(0.0); if (GK_ACTS && beta) b = gk_load(beta, channel); return b; }

/* Adds the sums over a lane's items of a plane: those of dz to s1, of dz * xh to s2. */
GK_FN void gk_plane_sums(gk_f* s1, gk_f* s2, const gk_raw16* g, const gk_raw16* a, gk_f m, gk_f q, gk_f w, gk_f b, GK_GLOBAL const gk_t* y,
                         GK_GLOBAL const gk_t* r, gk_i64 base, int items, int lane, int lanes, int act, gk_f p, const int keep)
{
    GK_UNROLL for (int u = 0; u < keep; u++)
        if (lane + u * lanes < items) {
            gk_vec d = gk_decode16(g[u]), h = gk_decode16(a[u]);
            gk_aligned_terms(&h, &d, m, q, gk_fill(w), gk_fill(b), y, r, base + (lane + u * lanes) * GK_W, act, p);
            /* An item adds up on its own first: the long sum is rounded once per item. */
            gk_f t1 = d.v[0], t2 = d.v[0] * h.v[0];
            GK_UNROLL for (int k = 1; k < GK_W; k++) { t1 += d.v[k]; t2 += d.v[k] * h.v[k]; }
            *s1 += t1;
            *s2 += t2;
        }
}
/* dx and dr of a lane's items of a plane: k0 = rstd * w, k1 = -rstd * mean(g), k2 = -rstd * mean(g * xh). */
GK_FN void gk_plane_apply(const gk_raw16* g, const gk_raw16* a, gk_f m, gk_f q, gk_f w, gk_f b, gk_f k1, gk_f k2, GK_GLOBAL const gk_t* y,
                          GK_GLOBAL const gk_t* r, GK_GLOBAL const gk_t* add, GK_GLOBAL gk_t* dx, GK_GLOBAL gk_t* dr, gk_i64 base, int items,
                          int lane, int lanes, int act, gk_f p, int accumulate, int accumulate_r, const int keep)
{
    gk_f k0 = q * w;
    GK_UNROLL for (int u = 0; u < keep; u++)
        if (lane + u * lanes < items) {
            gk_i64 i = base + (lane + u * lanes) * GK_W;
            gk_vec d = gk_decode16(g[u]), h = gk_decode16(a[u]);
            gk_aligned_terms(&h, &d, m, q, gk_fill(w), gk_fill(b), y, r, i, act, p);
            if (dr) {
                gk_vec o = d;
                if (accumulate_r) gk_aligned_plus(&o, dr, i);
                gk_storev_stream(dr, i, o);
            }
            if (dx) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] = k0 * d.v[k] + (k1 + h.v[k] * k2);
                if (add) gk_aligned_plus(&d, add, i);
                if (accumulate) gk_aligned_plus(&d, dx, i);
                gk_storev_stream(dx, i, d);
            }
        }
}

/* A set of `share` planes of `items` per block; planes lie over 1 << bits lanes each and are of channel (set * share + plane) % channels. The second
 * pass runs backwards: from registers, then over what is still in a cache, to what is half in local memory. */
#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#endif
GK_KERNEL(norm_bwd_sets)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                         GK_IN(gk_t, add), GK_OUT(gk_t, dx), GK_OUT(gk_f, part), int sets, int share, int channels, int items, int bits,
                         gk_i64 second, int act, gk_f p, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, mean);
    GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_t, add); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f both[4 * GK_BLOCK / GK_NORM_SUB];
    GK_LOCAL gk_raw16 kept[GK_KEPT * GK_BLOCK];
    int turn = 0, lanes = 1 << bits, lane = gk_lid() & (lanes - 1), sub = gk_lid() >> bits, per = GK_BLOCK >> bits;
    int pieces = (items + GK_SET * lanes - 1) / (GK_SET * lanes), chunk = ((items + pieces - 1) / pieces + lanes - 1) / lanes * lanes;
    gk_f scale = gk_recip((gk_f)share * (gk_f)items * (gk_f)GK_W);
    for (int set = gk_bid(0); set < sets; set += gk_nblocks(0)) {
        gk_f m = mean[set], q = rstd[set], c1 = GK_R(0.0), c2 = GK_R(0.0);
        gk_raw16 g[GK_SET], a[GK_SET];
        int met = 0, held = 1;
        GK_ROLLED for (int first = 0; first < share; first += per) {
            int plane = first + sub, live = plane < share ? items : 0, channel = 0;
            gk_i64 row = (gk_i64)set * share + plane, base = row * items * GK_W;
            gk_f s1 = GK_R(0.0), s2 = GK_R(0.0), w, b;
            if (live > 0) channel = (int)(row % channels);
            w = gk_weight(gamma, channel);
            b = gk_bias(beta, channel);
            GK_ROLLED for (int from = 0; from < live; from += chunk) {
                int n = live - from < chunk ? live - from : chunk;
                gk_aligned_load(g, dy, base + from * GK_W, n, lane, lanes, GK_SET);
                gk_aligned_load(a, x, base + from * GK_W, n, lane, lanes, GK_SET);
                gk_plane_sums(&s1, &s2, g, a, m, q, w, b, y, 0, base + from * GK_W, n, lane, lanes, act, p, GK_SET);
                if (met++ == 0) gk_aligned_keep(kept, g);
            }
            s1 = gk_group_sum(s1, tmp, lanes);
            s2 = gk_group_sum(s2, tmp, lanes);
            if (lane == 0 && live > 0) {
                if (part) { part[row] = s2; part[second + row] = s1; }
                c1 += w * s1;
                c2 += w * s2;
            }
        }
        if (dx) {
            gk_pair_sum(&c1, &c2, tmp, both, turn, GK_BLOCK);
            turn ^= 1;
            c1 *= -q * scale;
            c2 *= -q * scale;
            GK_ROLLED for (int plane = (share - 1) / per * per + sub; plane >= 0; plane -= per)
                if (plane < share) {
                    gk_i64 row = (gk_i64)set * share + plane, base = row * items * GK_W;
                    int channel = (int)(row % channels);
                    gk_f w = gk_weight(gamma, channel), b = gk_bias(beta, channel);
                    GK_ROLLED for (int from = (pieces - 1) * chunk; from >= 0; from -= chunk) {
                        int n = items - from < chunk ? items - from : chunk;
                        met--;
                        if (!held) {
                            if (met > 0) gk_aligned_load(g, dy, base + from * GK_W, n, lane, lanes, GK_SET);
                            else gk_aligned_reload(g, kept, dy, base + from * GK_W, n, lane, lanes);
                            gk_aligned_load(a, x, base + from * GK_W, n, lane, lanes, GK_SET);
                        }
                        held = 0;
                        gk_plane_apply(g, a, m, q, w, b, c1, c2, y, 0, add, dx, 0, base + from * GK_W, n, lane, lanes, act, p, accumulate, 0, GK_SET);
                    }
                }
        }
    }
}

#if GK_NORM_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#endif
/* Sums of run b = row * splits + k of planes: `chunk` items of a row. Statistics of row / share, or (share = 0) of the channel. */
GK_KERNEL(norm_bwd_partial_aligned)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r),
                                    GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_OUT(gk_f, part), int runs, int items, int splits, int chunk, int bits,
                                    int channels, int share, gk_i64 second, int act, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f sets[4 * GK_BLOCK / GK_NORM_SUB];
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits);
    gk_f s1 = GK_R(0.0), s2 = GK_R(0.0);
    if (b < runs) {
        int row = b, from = 0, live, channel, stat;
        gk_i64 base;
        gk_f m, q, w, shift;
        if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; }
        live = items - from < chunk ? items - from : chunk;
        base = ((gk_i64)row * items + from) * GK_W;
        channel = row % channels;
        stat = share ? row / share : channel;
        m = mean[stat];
        q = rstd[stat];
        w = gk_weight(gamma, channel);
        shift = gk_bias(beta, channel);
        GK_ROLLED for (int i = 0; i < live; i += GK_NORM_RUN * lanes) {
            gk_raw16 g[GK_NORM_RUN], a[GK_NORM_RUN];
            gk_aligned_load(g, dy, base + i * GK_W, live - i, lane, lanes, GK_NORM_RUN);
            gk_aligned_load(a, x, base + i * GK_W, live - i, lane, lanes, GK_NORM_RUN);
            gk_plane_sums(&s1, &s2, g, a, m, q, w, shift, y, r, base + i * GK_W, live - i, lane, lanes, act, p, GK_NORM_RUN);
        }
    }
    gk_pair_sum(&s1, &s2, tmp, sets, 0, lanes);
    if (lane == 0 && b < runs) { part[b] = s2; part[second + b] = s1; }
}

/* dx of runs of planes, at most GK_NORM_RUN items per lane. */
GK_KERNEL(norm_bwd_apply_aligned)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r),
                                  GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_IN(gk_f, coef), GK_IN(gk_t, add), GK_OUT(gk_t, dx), GK_OUT(gk_t, dr),
                                  int runs, int items, int splits, int chunk, int bits, int channels, int share, int act, gk_f p, int accumulate,
                                  int accumulate_r)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_f, coef); GK_BIND_IN(gk_t, add); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, dr);
    int lanes = 1 << bits, lane = gk_lid() & (lanes - 1), b = runs - 1 - (gk_bid(0) * (GK_BLOCK >> bits) + (gk_lid() >> bits));
    if (b >= 0) {
        int row = b, from = 0, live, channel, stat;
        gk_i64 base;
        gk_raw16 g[GK_NORM_RUN], a[GK_NORM_RUN];
        gk_f q, k1 = GK_R(0.0), k2 = GK_R(0.0);
        if (splits > 1) { row = b / splits; from = (b - row * splits) * chunk; }
        live = items - from < chunk ? items - from : chunk;
        base = ((gk_i64)row * items + from) * GK_W;
        gk_aligned_load(g, dy, base, live, lane, lanes, GK_NORM_RUN);
        gk_aligned_load(a, x, base, live, lane, lanes, GK_NORM_RUN);
        channel = row % channels;
        stat = share ? row / share : channel;
        q = rstd[stat];
        if (coef) { k1 = -q * coef[2 * stat]; k2 = -q * coef[2 * stat + 1]; }
        gk_plane_apply(g, a, mean[stat], q, gk_weight(gamma, channel), gk_bias(beta, channel), k1, k2, y, r, add, dx, dr, base, live, lane, lanes,
            act, p,
                       accumulate, accumulate_r, GK_NORM_RUN);
    }
}
