/* Batch normalisation of rows [n, c] of channels that lie side by side: [N, C], and channels-last images as [N * H * W, C], by whole aligned 16-byte items.
 * Where c is no multiple of GK_W, `fold` rows that make whole items together are one row of `items` below: element e of it belongs to channel e % c, and the
 * results of a chunk are those of `fold` chunks. Forward y = act((x - mean) * rstd * gamma + beta + r); backward, with dz = dy * act' and
 * xh = (x - mean) * rstd,
 *
 *   dx (+)= rstd * (gamma * dz - mean(gamma * dz) - xh * mean(gamma * dz * xh))      dr (+)= dz      dgamma = sum of dz * xh      dbeta = sum of dz
 *
 * _moments_channels: mean and m2 of each chunk of rows; _combine_channels: the statistics from them; _apply_channels: the forward map;
 * _bwd_sums_channels: sums of dz * xh, and of dz `second` entries behind, of each chunk of rows; _bwd_join_channels: dgamma, dbeta and the means (coef)
 * from them; _bwd_apply_channels: dx and dr (without coef: statistics were given).
 * A thread keeps what it needs of an item of channels in registers and goes down the rows of a chunk; the maps begin with the last chunk, which may
 * still be cached. Launch: tiles of tx items side by side times chunks of rows, exactly as many blocks as that takes. Arithmetic in gk_f.
 * Deterministic. Reference: F.batch_norm of channels-last tensors, and its gradients.
 */
#include "norm.h"

/* Rows per thread whose reads are in flight at a time. */
#define GK_NORM_ROWS 4

/* The item of channels and the rows of a thread. */
typedef struct { gk_i64 row, end, cols; int item, step, live; } gk_channel_rows;
GK_FN gk_channel_rows gk_channel_rows_of(int block, gk_i64 n, int items, int tx, gk_i64 chunk)
{
    gk_channel_rows a;
    int tiles = (items + tx - 1) / tx, part = block / tiles;
    a.item = (block - part * tiles) * tx + (gk_lid() & (tx - 1));
    a.live = a.item < items;
    a.step = GK_BLOCK / tx;
    a.cols = (gk_i64)items * GK_W;
    a.row = part * chunk + gk_lid() / tx;
    a.end = (part + 1) * chunk < n ? (part + 1) * chunk : n;
    if (!a.live) a.end = 0;
    return a;
}
/* The channels of an item's elements: GK_W in a row from `first` on, where the first follows the last of all `channels`, which are GK_W at least. */
typedef struct { int first, channels; } gk_channel_run;
GK_FN gk_channel_run gk_channels_of(int item, int channels)
{
    gk_channel_run r;
    r.first = (int)((gk_u32)item * GK_W % (gk_u32)channels); r.channels = channels;
    return r;
}
/* The same where rows are whole items. */
GK_FN gk_channel_run gk_channels_of_whole(int item)
{
    gk_channel_run r;
    r.first = item * GK_W; r.channels = 0x7fffffff;
    return r;
}
GK_FN int gk_channel_of(gk_channel_run r, int k) { return r.first + k < r.channels ? r.first + k : r.first + k - r.channels; }
GK_FN gk_vec gk_channel_values(GK_GLOBAL const gk_f* p, gk_channel_run c)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = p[gk_channel_of(c, k)];
    return r;
}
GK_FN gk_vec gk_channel_params(GK_GLOBAL const gk_t* p, gk_channel_run c, gk_f none)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        r.v[k] = none;
        if (p) r.v[k] = gk_load(p, gk_channel_of(c, k));
    }
    return r;
}

/* The sum of value v, which thread t has at v * GK_BLOCK + t, over the threads of the item of channels `lane`. */
GK_FN gk_f gk_channel_sum(GK_LOCAL_PTR const gk_f* all, int v, int lane, int tx)
{
    gk_f s = GK_R(0.0);
    for (int j = lane; j < GK_BLOCK; j += tx) s += all[v * GK_BLOCK + j];
    return s;
}

// Units: FLOATS64 x EPILOGUES
/* part[2e], part[2e + 1] = mean and m2 of channel e % c over chunk e / c (Welford, 1962, four rows at a time; combined after Chan et al.). */
GK_KERNEL(norm_moments_channels)(GK_IN(gk_t, x), GK_OUT(gk_f, part), gk_i64 n, int items, int tx, gk_i64 chunk)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f all[2 * GK_W * GK_BLOCK];
    gk_channel_rows at = gk_channel_rows_of(gk_bid(0), n, items, tx, chunk);
    int tiles = (items + tx - 1) / tx, block = gk_bid(0) / tiles, tile = gk_bid(0) - block * tiles;
    gk_i64 first = block * chunk, rows = (first + chunk < n ? first + chunk : n) - first;
    gk_vec mean = gk_zeros(), m2 = gk_zeros();
    gk_f count = GK_R(0.0);
    GK_ROLLED for (gk_i64 row = at.row; row < at.end; row += GK_NORM_ROWS * at.step) {
        gk_raw16 a[GK_NORM_ROWS];
        gk_f live = GK_R(0.0), share;
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++)
            if (row + u * at.step < at.end) {
                a[u] = gk_load16((GK_GLOBAL const void*)(x + (row + u * at.step) * at.cols + at.item * GK_W));
                live += GK_R(1.0);
            }
        share = gk_recip(live);
        gk_vec v[GK_NORM_ROWS], s = gk_zeros(), q = gk_zeros();
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++) {
            v[u] = gk_zeros();
            if (row + u * at.step < at.end) v[u] = gk_decode16(a[u]);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s.v[k] += v[u].v[k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) s.v[k] *= share;
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++)
            if (row + u * at.step < at.end) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) q.v[k] += (v[u].v[k] - s.v[k]) * (v[u].v[k] - s.v[k]);
            }
        share = live * gk_recip(count + live);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            gk_f d = s.v[k] - mean.v[k], joined = mean.v[k] + d * share;
            m2.v[k] += q.v[k] + d * d * count * share;
            /* An infinite mean stays one. */
            mean.v[k] = gk_isnan(joined) ? mean.v[k] + s.v[k] : joined;
        }
        count += live;
    }
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        all[k * GK_BLOCK + gk_lid()] = mean.v[k];
        all[(GK_W + k) * GK_BLOCK + gk_lid()] = m2.v[k];
    }
    GK_BARRIER();
    GK_ROLLED for (int o = gk_lid(); o < GK_W * tx; o += GK_BLOCK) {
        int k = o / tx, lane = o & (tx - 1), item = tile * tx + lane;
        gk_f m = GK_R(0.0), sum = GK_R(0.0);
        /* Thread y of an item has taken (rows - y) / step rows, rounded up. */
        for (int y = 0; y < at.step; y++) {
            gk_f taken = (gk_f)((rows - y + at.step - 1) / at.step);
            if (y < rows) m += taken * all[k * GK_BLOCK + y * tx + lane];
        }
        m /= (gk_f)rows;
        for (int y = 0; y < at.step; y++) {
            gk_f taken = (gk_f)((rows - y + at.step - 1) / at.step), d = all[k * GK_BLOCK + y * tx + lane] - m;
            if (y < rows) sum += all[(GK_W + k) * GK_BLOCK + y * tx + lane] + taken * d * d;
        }
        if (item < items) {
            gk_i64 to = 2 * (block * at.cols + item * GK_W + k);
            part[to] = m;
            part[to + 1] = sum;
        }
    }
}

/* Statistics of the channels from those of chunks of `chunk` rows, of which the last `fold` have `rest`, n in all, and the running ones. The threads of a
 * block lie over tx channels side by side. */
GK_KERNEL(norm_combine_channels)(GK_IN(gk_f, part), GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd), GK_OUT(gk_f, running_mean), GK_OUT(gk_f, running_var),
                                 GK_IN(gk_i64, counter), int chunks, int fold, int channels, int tx, gk_i64 chunk, gk_i64 rest,
                                 gk_i64 n, gk_f eps, gk_f momentum)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd); GK_BIND_OUT(gk_f, running_mean); GK_BIND_OUT(gk_f, running_var);
    GK_BIND_IN(gk_i64, counter);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int c = gk_bid(0) * tx + (gk_lid() & (tx - 1)), step = GK_BLOCK / tx, from = c < channels ? gk_lid() / tx : chunks;
    gk_f sum = GK_R(0.0), m2 = GK_R(0.0), rows = (gk_f)chunk, last = (gk_f)rest, m;
    for (int i = from; i < chunks; i += step) sum += (i + fold < chunks ? rows : last) * part[2 * ((gk_i64)i * channels + c)];
    m = gk_across_sum(sum, tmp, tx) / (gk_f)n;
    for (int i = from; i < chunks; i += step) {
        gk_i64 at = 2 * ((gk_i64)i * channels + c);
        gk_f d = part[at] - m;
        m2 += part[at + 1] + (i + fold < chunks ? rows : last) * d * d;
    }
    m2 = gk_across_sum(m2, tmp, tx);
    if (gk_lid() < tx && c < channels) {
        gk_f f = counter ? GK_R(1.0) / (gk_f)(counter[0] + 1) : momentum;
        if (mean) mean[c] = m;
        rstd[c] = GK_R(1.0) / gk_sqrt(m2 / (gk_f)n + eps);
        if (running_mean) {
            running_mean[c] = (GK_R(1.0) - f) * running_mean[c] + f * m;
            running_var[c] = (GK_R(1.0) - f) * running_var[c] + f * (m2 / ((gk_f)n - GK_R(1.0)));
        }
    }
}

GK_KERNEL(norm_apply_channels)(GK_IN(gk_t, x), GK_IN(gk_t, r), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_f, mean), GK_IN(gk_f, rstd),
                               GK_OUT(gk_t, y), gk_i64 n, int items, int channels, int tx, gk_i64 chunk, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd);
    GK_BIND_OUT(gk_t, y);
    gk_channel_rows at = gk_channel_rows_of(gk_nblocks(0) - 1 - gk_bid(0), n, items, tx, chunk);
    gk_vec m, q, w, b;
    if (!at.live) return;
    gk_channel_run of = gk_channels_of(at.item, channels);
    m = gk_channel_values(mean, of);
    q = gk_channel_values(rstd, of);
    w = gk_channel_params(gamma, of, GK_R(1.0));
    b = gk_channel_params(beta, of, GK_R(0.0));
    GK_UNROLL for (int k = 0; k < GK_W; k++) q.v[k] *= w.v[k];
    GK_ROLLED for (gk_i64 row = at.row; row < at.end; row += GK_NORM_ROWS * at.step) {
        gk_raw16 a[GK_NORM_ROWS], c[GK_NORM_ROWS];
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++) {
            gk_i64 i = (row + u * at.step) * at.cols + at.item * GK_W;
            if (row + u * at.step < at.end) {
                a[u] = gk_load16((GK_GLOBAL const void*)(x + i));
                if (r) c[u] = gk_load16((GK_GLOBAL const void*)(r + i));
            }
        }
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++)
            if (row + u * at.step < at.end) {
                gk_vec v = gk_decode16(a[u]);
                GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = (v.v[k] - m.v[k]) * q.v[k] + b.v[k];
                if (r) {
                    gk_vec o = gk_decode16(c[u]);
                    GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += o.v[k];
                }
                gk_storev(y, (row + u * at.step) * at.cols + at.item * GK_W, GK_ACT(act, v, p));
            }
    }
}

/* xh in h (which holds x), dz in d (which holds dy) of the item at element i. e holds y where that is given; else the slope is that at xh * gamma +
 * beta + r, and rows are whole items. */
GK_FN void gk_channel_terms(gk_vec* h, gk_vec* d, gk_vec e, gk_vec m, gk_vec q, int item, GK_GLOBAL const gk_t* gamma, GK_GLOBAL const gk_t* beta,
                            GK_GLOBAL const gk_t* y, GK_GLOBAL const gk_t* r, gk_i64 i, int act, gk_f p)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) h->v[k] = (h->v[k] - m.v[k]) * q.v[k];
#if GK_ACTS
    if (!y) {
        gk_vec w = gk_channel_params(gamma, gk_channels_of_whole(item), GK_R(1.0)), b = gk_channel_params(beta, gk_channels_of_whole(item), GK_R(0.0));
        if (r) {
            gk_vec o = gk_loadv(r, i);
            GK_UNROLL for (int k = 0; k < GK_W; k++) b.v[k] += o.v[k];
        }
        GK_UNROLL for (int k = 0; k < GK_W; k++) e.v[k] = h->v[k] * w.v[k] + b.v[k];
    }
    *d = gk_norm_dz(*d, e, act, p, y != 0);
#endif
}

/* The items of dy, x and (where the slope is taken from it) y of GK_NORM_ROWS rows. */
GK_FN void gk_channel_read(gk_raw16* g, gk_raw16* a, gk_raw16* e, GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* y,
                           gk_channel_rows at, gk_i64 row)
{
    GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++) {
        gk_i64 i = (row + u * at.step) * at.cols + at.item * GK_W;
        e[u] = gk_make16(0u, 0u, 0u, 0u);
        if (row + u * at.step < at.end) {
            g[u] = gk_load16((GK_GLOBAL const void*)(dy + i));
            a[u] = gk_load16((GK_GLOBAL const void*)(x + i));
            if (GK_ACTS && y) e[u] = gk_load16((GK_GLOBAL const void*)(y + i));
        }
    }
}

GK_KERNEL(norm_bwd_sums_channels)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r),
                                  GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_OUT(gk_f, part), gk_i64 n, int items, int channels, int tx, gk_i64 chunk,
                                  gk_i64 second, int act, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f all[2 * GK_W * GK_BLOCK];
    gk_channel_rows at = gk_channel_rows_of(gk_bid(0), n, items, tx, chunk);
    gk_vec m = gk_zeros(), q = gk_zeros(), s1 = gk_zeros(), s2 = gk_zeros();
    int tiles = (items + tx - 1) / tx, block = gk_bid(0) / tiles, tile = gk_bid(0) - block * tiles;
    if (at.live) {
        gk_channel_run of = gk_channels_of(at.item, channels);
        m = gk_channel_values(mean, of);
        q = gk_channel_values(rstd, of);
    }
    GK_ROLLED for (gk_i64 row = at.row; row < at.end; row += GK_NORM_ROWS * at.step) {
        gk_raw16 g[GK_NORM_ROWS], a[GK_NORM_ROWS], e[GK_NORM_ROWS];
        gk_channel_read(g, a, e, dy, x, y, at, row);
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++)
            if (row + u * at.step < at.end) {
                gk_vec d = gk_decode16(g[u]), h = gk_decode16(a[u]);
                gk_channel_terms(&h, &d, gk_decode16(e[u]), m, q, at.item, gamma, beta, y, r, (row + u * at.step) * at.cols + at.item * GK_W, act, p);
                GK_UNROLL for (int k = 0; k < GK_W; k++) { s1.v[k] += d.v[k]; s2.v[k] += d.v[k] * h.v[k]; }
            }
    }
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        all[k * GK_BLOCK + gk_lid()] = s2.v[k];
        all[(GK_W + k) * GK_BLOCK + gk_lid()] = s1.v[k];
    }
    GK_BARRIER();
    GK_ROLLED for (int o = gk_lid(); o < 2 * GK_W * tx; o += GK_BLOCK) {
        int v = o / tx, lane = o & (tx - 1), item = tile * tx + lane;
        gk_f sum = gk_channel_sum(all, v, lane, tx);
        if (item < items) part[(v < GK_W ? 0 : second) + block * at.cols + item * GK_W + (v & (GK_W - 1))] = sum;
    }
}

/* dgamma (+)= sums of dz * xh and dbeta (+)= sums of dz over all chunks; coef[2c], coef[2c + 1] = their means times gamma, of dz first. The threads of
 * a block lie over tx channels side by side. */
GK_KERNEL(norm_bwd_join_channels)(GK_IN(gk_f, part), GK_IN(gk_t, gamma), GK_OUT(gk_f, coef), GK_OUT(gk_t, dgamma), GK_OUT(gk_t, dbeta), int chunks,
                                  int channels, int tx, gk_f n, int accumulate_gamma, int accumulate_beta)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_t, gamma); GK_BIND_OUT(gk_f, coef); GK_BIND_OUT(gk_t, dgamma); GK_BIND_OUT(gk_t, dbeta);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int c = gk_bid(0) * tx + (gk_lid() & (tx - 1)), step = GK_BLOCK / tx;
    gk_i64 second = (gk_i64)chunks * channels;
    gk_f s1 = GK_R(0.0), s2 = GK_R(0.0);
    if (c < channels) {
        GK_ROLLED for (int i = gk_lid() / tx; i < chunks; i += step) {
            gk_i64 at = (gk_i64)i * channels + c;
            s2 += part[at];
            s1 += part[second + at];
        }
    }
    s1 = gk_across_sum(s1, tmp, tx);
    s2 = gk_across_sum(s2, tmp, tx);
    if (gk_lid() < tx && c < channels) {
        if (coef) {
            gk_f w = GK_R(1.0);
            if (gamma) w = gk_load(gamma, c);
            coef[2 * c] = w * s1 / n;
            coef[2 * c + 1] = w * s2 / n;
        }
        if (dgamma) gk_store(dgamma, c, accumulate_gamma ? gk_load(dgamma, c) + s2 : s2);
        if (dbeta) gk_store(dbeta, c, accumulate_beta ? gk_load(dbeta, c) + s1 : s1);
    }
}

/* With a few registers less a second block of 16-bit units fits on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_W == 8 ? 2 : 0)
GK_KERNEL(norm_bwd_apply_channels)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, gamma), GK_IN(gk_t, beta), GK_IN(gk_t, y), GK_IN(gk_t, r),
                                   GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_IN(gk_f, coef), GK_OUT(gk_t, dx), GK_OUT(gk_t, dr), gk_i64 n, int items,
                                   int channels, int tx, gk_i64 chunk, int alone, int act, gk_f p, int accumulate, int accumulate_r)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, gamma); GK_BIND_IN(gk_t, beta); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, r);
    GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_f, coef); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, dr);
    gk_channel_rows at = gk_channel_rows_of(gk_nblocks(0) - 1 - gk_bid(0), n, items, tx, chunk);
    gk_vec m, q, w, c1, c2;
    if (!at.live) return;
    gk_channel_run of = gk_channels_of(at.item, channels);
    m = gk_channel_values(mean, of);
    q = gk_channel_values(rstd, of);
    w = gk_channel_params(gamma, of, GK_R(1.0));
    /* dx = w * dz - c1 - c2 * xh, with rstd in all three. */
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        gk_f scale = alone ? GK_R(0.0) : q.v[k];
        gk_i64 c = gk_channel_of(of, k);
        c1.v[k] = c2.v[k] = GK_R(0.0);
        if (coef) { c1.v[k] = scale * coef[2 * c]; c2.v[k] = scale * coef[2 * c + 1]; }
        w.v[k] *= scale;
    }
    GK_ROLLED for (gk_i64 row = at.row; row < at.end; row += GK_NORM_ROWS * at.step) {
        gk_raw16 g[GK_NORM_ROWS], a[GK_NORM_ROWS], e[GK_NORM_ROWS];
        gk_channel_read(g, a, e, dy, x, y, at, row);
        GK_UNROLL for (int u = 0; u < GK_NORM_ROWS; u++)
            if (row + u * at.step < at.end) {
                gk_vec d = gk_decode16(g[u]), h = gk_decode16(a[u]);
                gk_i64 i = (row + u * at.step) * at.cols + at.item * GK_W;
                gk_channel_terms(&h, &d, gk_decode16(e[u]), m, q, at.item, gamma, beta, y, r, i, act, p);
                if (dr) {
                    gk_vec o = d;
                    if (accumulate_r) {
                        o = gk_loadv(dr, i);
                        GK_UNROLL for (int k = 0; k < GK_W; k++) o.v[k] += d.v[k];
                    }
                    gk_storev(dr, i, o);
                }
                if (dx) {
                    GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] = w.v[k] * d.v[k] - c1.v[k] - h.v[k] * c2.v[k];
                    if (accumulate) {
                        gk_vec o = gk_loadv(dx, i);
                        GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] += o.v[k];
                    }
                    gk_storev(dx, i, d);
                }
            }
    }
}
