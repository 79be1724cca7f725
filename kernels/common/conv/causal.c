/* Causal depthwise convolution of sequences [rows = N * C, len].
 *
 *   z[l] = bias + sum over j < k of w[j] * x[l - (k-1) + j],  y = act(z)        elements before the first come from state [rows, k-1], or are 0
 *   dz = dy * act'(z);  dx[i] = sum over j of w[j] * dz[i + (k-1) - j];  dw[j] = sum over images and l of dz[l] * x[l - (k-1) + j];  dbias = sum of
 * dz
 *
 * Arithmetic in gk_f; dz is kept in gk_f. Launch: grid-stride over the elements (causal_state: over the rows); causal_weight: one block per channel
 * and run of places, channels fastest, to part [splits, C, k + 1], the last of which is dbias; causal_combine adds the runs in order. Kernels whose
 * threads have GK_W neighbours are at the end. Deterministic. Reference: F.conv1d of the padded sequence with groups=C.
 */
#include "common/activation/fused.h"
#include "common/prelude/coordinates.h"
#include "common/prelude/tile.h"

/* Element l of a row, which may be negative. */
GK_FN gk_f gk_before(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* state, gk_i64 row, gk_i64 len, int k, gk_i64 l)
{
    gk_f v = GK_R(0.0);
    if (l >= 0) v = gk_load(x, row * len + l);
    else if (state) v = gk_load(state, row * (k - 1) + (k - 1) + l);
    return v;
}

GK_FN gk_f gk_causal(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* w, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* state, gk_i64 row, gk_i64 ch,
                     gk_i64 len, int k, gk_i64 l)
{
    gk_f z = GK_R(0.0);
    for (int j = 0; j < k; j++) {
        gk_i64 from = l - (k - 1) + j;
        if (from >= 0 || state) z += gk_load(w, ch * k + j) * gk_before(x, state, row, len, k, from);
    }
    if (bias) z += gk_load(bias, ch);
    return z;
}

#define GK_ROW_OF(i) (n <= 0x7fffffffll ? (gk_i64)((gk_u32)(i) / (gk_u32)len) : (i) / len)

// Units: FLOATS64
GK_KERNEL(causal_conv)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, bias), GK_IN(gk_t, state), GK_OUT(gk_t, y), gk_i64 n, gk_i64 len, gk_i64 channels,
                       int k, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row = GK_ROW_OF(i);
        gk_four v;
        v.v[0] = v.v[1] = v.v[2] = v.v[3] = gk_causal(x, w, bias, state, row, row % channels, len, k, i - row * len);
        gk_store(y, i, gk_activate(act, v, p).v[0]);
    }
}

/* The last k-1 elements of state and x. `out` may be `state`: elements move towards the front, in order. */
GK_KERNEL(causal_state)(GK_IN(gk_t, x), GK_IN(gk_t, state), GK_OUT(gk_t, out), gk_i64 rows, gk_i64 len, int k, int same)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_t, out);
    for (gk_i64 row = gk_gid(); row < rows; row += gk_gsize()) {
        for (int j = 0; j < k - 1; j++) {
            gk_i64 l = len - (k - 1) + j, to = row * (k - 1) + j;
            gk_f v = GK_R(0.0);
            if (l >= 0) v = gk_load(x, row * len + l);
            else if (same) v = gk_load(out, to + len);
            else if (state) v = gk_load(state, to + len);
            gk_store(out, to, v);
        }
    }
}

GK_KERNEL(causal_slope)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, bias), GK_IN(gk_t, state), GK_OUT(gk_f, dz), gk_i64 n,
                        gk_i64 len, gk_i64 channels, int k, int act, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_f, dz);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row = GK_ROW_OF(i);
        gk_f at = gk_causal(x, w, bias, state, row, row % channels, len, k, i - row * len), slope = gk_load(dy, i);
        gk_vec z, g;
        GK_UNROLL for (int u = 0; u < GK_W; u++) { z.v[u] = at; g.v[u] = slope; }
        dz[i] = gk_fused_act_bwd(act, g, z, p, 0).v[0];
    }
}

/* dz[i], or dy[i] where the activation is the identity and there is no dz. */
GK_FN gk_f gk_dz(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_f* dz, gk_i64 i)
{
    gk_f v;
    if (dz) v = dz[i];
    else v = gk_load(dy, i);
    return v;
}

GK_KERNEL(causal_input)(GK_IN(gk_t, dy), GK_IN(gk_f, dz), GK_IN(gk_t, w), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 len, gk_i64 channels, int k,
                        int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, dz); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row = GK_ROW_OF(i), l = i - row * len, ch = row % channels;
        gk_f sum = GK_R(0.0);
        for (int j = k - 1; j >= 0 && l + (k - 1) - j < len; j--) sum += gk_load(w, ch * k + j) * gk_dz(dy, dz, i + (k - 1) - j);
        gk_store(dx, i, accumulate ? gk_load(dx, i) + sum : sum);
    }
}

#define GK_CONV_WINDOW 4
GK_KERNEL(causal_weight)(GK_IN(gk_t, dy), GK_IN(gk_f, dz), GK_IN(gk_t, x), GK_IN(gk_t, state), GK_OUT(gk_f, part), gk_i64 images, gk_i64 len,
                         gk_i64 channels, int k, gk_i64 per)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_f, dz); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 ch = gk_bid(0) % channels, split = gk_bid(0) / channels, n = images * len, end = (split + 1) * per < n ? (split + 1) * per : n;
    part += (split * channels + ch) * (k + 1);
    for (int j0 = 0; j0 < k; j0 += GK_CONV_WINDOW) {
        gk_f acc[GK_CONV_WINDOW], bias = GK_R(0.0);
        GK_UNROLL for (int u = 0; u < GK_CONV_WINDOW; u++) acc[u] = GK_R(0.0);
        for (gk_i64 i = split * per + gk_lid(); i < end; i += GK_BLOCK) {
            gk_i64 image = GK_ROW_OF(i), l = i - image * len, row = image * channels + ch;
            gk_f d = gk_dz(dy, dz, row * len + l);
            bias += d;
            GK_UNROLL for (int u = 0; u < GK_CONV_WINDOW; u++)
                if (j0 + u < k) acc[u] += d * gk_before(x, state, row, len, k, l - (k - 1) + j0 + u);
        }
        GK_UNROLL for (int u = 0; u < GK_CONV_WINDOW; u++) {
            gk_f sum = gk_block_sum(acc[u], tmp);
            if (gk_lid() == 0 && j0 + u < k) part[j0 + u] = sum;
        }
        if (j0 == 0) {
            bias = gk_block_sum(bias, tmp);
            if (gk_lid() == 0) part[k] = bias;
        }
    }
}

/* dw [C, k] and dbias [C], where not null, from part [splits, C, k + 1]. */
GK_KERNEL(causal_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, dw), GK_OUT(gk_t, dbias), gk_i64 channels, int k, int splits, int accumulate_w,
                          int accumulate_b)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dw); GK_BIND_OUT(gk_t, dbias);
    gk_i64 n = channels * (k + 1);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ch = i / (k + 1);
        int j = (int)(i - ch * (k + 1));
        gk_f sum = GK_R(0.0);
        for (int s = 0; s < splits; s++) sum += part[s * n + i];
        if (j < k && dw) gk_store(dw, ch * k + j, accumulate_w ? gk_load(dw, ch * k + j) + sum : sum);
        if (j == k && dbias) gk_store(dbias, ch, accumulate_b ? gk_load(dbias, ch) + sum : sum);
    }
}

/* ---- runs: a thread has GK_W neighbours of a row, which are loaded and stored as 16 bytes; rows are multiples of that and aligned. k is at most
 * GK_TAPS. Less than 2^31 runs: `runs` of a row; by: multipliers that divide by them and by the channels. Tap t is the one t places back, with weight
 * w[k - 1 - t]. --------------------------------------------------------------------------------------------------------------------------- */

#if GK_W < 4
#define GK_TAPS 3
#else
#define GK_TAPS 4
#endif
#define GK_BACK (GK_TAPS - 1)

/* A run and the one before it as they lie in memory: they become numbers when all other loads are on their way, too. */
typedef struct { gk_raw16 own, before; } gk_reach_bits;
GK_FN gk_reach_bits gk_reach_load(GK_GLOBAL const gk_t* x, gk_i64 at, int begins)
{
    gk_reach_bits b;
    b.own = gk_load16((GK_GLOBAL const void*)(x + at));
    b.before = gk_load16((GK_GLOBAL const void*)(x + (begins ? at : at - GK_W)));
    return b;
}

/* A run with the GK_BACK elements before it. */
typedef struct { gk_f v[GK_W + GK_BACK]; } gk_reach;

/* `begins`: the run is the first of its row, and what is before it as in gk_before. */
GK_FN gk_reach gk_reach_numbers(gk_reach_bits b, GK_GLOBAL const gk_t* state, gk_i64 row, int k, int begins)
{
    gk_vec q = gk_decode16(b.own), before = gk_decode16(b.before);
    gk_reach r;
    GK_UNROLL for (int u = 0; u < GK_W; u++) r.v[GK_BACK + u] = q.v[u];
    GK_UNROLL for (int j = 0; j < GK_BACK; j++) r.v[j] = begins ? GK_R(0.0) : before.v[GK_W - GK_BACK + j];
    if (begins && state) {
        GK_UNROLL for (int j = 0; j < GK_BACK; j++)
            if (GK_BACK - j < k) r.v[j] = gk_load(state, (row + 1) * (k - 1) - (GK_BACK - j));
    }
    return r;
}

/* The weights by tap. */
typedef struct { gk_f v[GK_TAPS]; } gk_taps;
GK_FN gk_taps gk_taps_of(GK_GLOBAL const gk_t* w, gk_i64 ch, int k)
{
    gk_taps r;
    GK_UNROLL for (int t = 0; t < GK_TAPS; t++) {
        r.v[t] = GK_R(0.0);
        if (t < k) r.v[t] = gk_load(w, ch * k + k - 1 - t);
    }
    return r;
}

/* z of a run; `all`: there are elements before it. */
GK_FN gk_vec gk_causal_run(gk_reach s, gk_taps w, int k, gk_f bias, int all)
{
    gk_vec z;
    GK_UNROLL for (int u = 0; u < GK_W; u++) z.v[u] = GK_R(0.0);
    GK_UNROLL for (int t = GK_TAPS - 1; t >= 0; t--) {
        if (t >= k) continue;
        GK_UNROLL for (int u = 0; u < GK_W; u++)
            if (u >= t || all) z.v[u] += w.v[t] * s.v[GK_BACK + u - t];
    }
    GK_UNROLL for (int u = 0; u < GK_W; u++) z.v[u] += bias;
    return z;
}

GK_KERNEL(causal_runs)(GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, bias), GK_IN(gk_t, state), GK_OUT(gk_t, y), gk_i64 n, gk_i64 runs, gk_i64 channels,
                       GK_DIMS(by), int k, int act, gk_f p)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_u32 row = gk_quotient((gk_u32)i, by.v[0]), ch = row - gk_quotient(row, by.v[1]) * (gk_u32)channels;
        int begins = i == (gk_i64)row * runs;
        gk_reach_bits b = gk_reach_load(x, i * GK_W, begins);
        gk_taps taps = gk_taps_of(w, (gk_i64)ch, k);
        gk_f add = bias ? gk_load(bias, (gk_i64)ch) : GK_R(0.0);
        gk_vec z = gk_causal_run(gk_reach_numbers(b, state, (gk_i64)row, k, begins), taps, k, add, !begins || state);
        gk_storev(y, i * GK_W, gk_fused_act(act, z, p));
    }
}

/* dz of the run whose elements of x are s. */
GK_FN gk_vec gk_slope_run(gk_reach s, gk_taps w, int k, gk_f bias, int all, gk_vec dy, int act, gk_f p)
{
    if (act == 0) return dy;
    return gk_fused_act_bwd(act, dy, gk_causal_run(s, w, k, bias, all), p, 0);
}

/* dx[i] (+)= sum over taps of w * dz; `next`: the GK_BACK elements of dz behind the run, if `more`. */
GK_FN void gk_input_run(GK_GLOBAL gk_t* dx, gk_i64 at, gk_vec dz, const gk_f next[GK_BACK], int more, gk_taps w, int k, int accumulate)
{
    gk_vec sum;
    GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] = GK_R(0.0);
    GK_UNROLL for (int t = 0; t < GK_TAPS; t++) {
        if (t >= k) continue;
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            if (u + t < GK_W) sum.v[u] += w.v[t] * dz.v[(u + t) % GK_W];
            else if (more) sum.v[u] += w.v[t] * next[(u + t - GK_W) % GK_BACK];
        }
    }
    if (accumulate) {
        gk_vec old = gk_loadv(dx, at);
        GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] += old.v[u];
    }
    gk_storev(dx, at, sum);
}

/* part[j] = the block's sum for weight j, part[k] that for the bias. */
GK_FN void gk_part_sums(GK_GLOBAL gk_f* part, const gk_f acc[GK_TAPS], gk_f bias, int k, GK_LOCAL_PTR gk_f* tmp)
{
    GK_UNROLL for (int t = 0; t < GK_TAPS; t++) {
        gk_f sum = gk_block_sum(acc[t], tmp);
        if (gk_lid() == 0 && t < k) part[k - 1 - t] = sum;
    }
    bias = gk_block_sum(bias, tmp);
    if (gk_lid() == 0) part[k] = bias;
}

/* All gradients in one pass: dz of a run is in registers, and the first of it reach the run before through local memory. The block's last thread
 * has dz of the run behind the block's too. dx and part may be null. Blocks, part and causal_combine as for causal_weight: `per` (a multiple of
 * GK_BLOCK) of a channel's `n` runs. */
GK_KERNEL(causal_runs_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, bias), GK_IN(gk_t, state), GK_OUT(gk_t, dx),
                           GK_OUT(gk_f, part), gk_i64 n, gk_i64 runs, gk_i64 channels, GK_DIMS(by), int k, int act, gk_f p, gk_i64 per,
                           int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, state);
    GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f heads[(GK_BLOCK + 1) * GK_BACK];
    int t = gk_lid(), split = gk_bid(0) / (int)channels, ch = gk_bid(0) - split * (int)channels;
    gk_i64 end = (split + 1) * per < n ? (split + 1) * per : n;
    gk_taps taps = gk_taps_of(w, ch, k);
    gk_f acc[GK_TAPS], total = GK_R(0.0), add = bias ? gk_load(bias, ch) : GK_R(0.0);
    GK_UNROLL for (int u = 0; u < GK_TAPS; u++) acc[u] = GK_R(0.0);
    for (gk_i64 base = split * per; base < end; base += GK_BLOCK) {
        gk_vec dz;
        gk_reach s;
        gk_i64 run = 0, at = 0;
        int live = base + t < n;
        GK_UNROLL for (int u = 0; u < GK_W; u++) dz.v[u] = GK_R(0.0);
        for (int e = dx && t == GK_BLOCK - 1 && base + t + 1 < n; e >= 0 && live; e--) {
            gk_u32 i = (gk_u32)(base + t + e), image = gk_quotient(i, by.v[0]);
            gk_i64 row = (gk_i64)image * channels + ch;
            run = (gk_i64)(i - image * (gk_u32)runs);
            at = (row * runs + run) * GK_W;
            gk_reach_bits b = gk_reach_load(x, at, run == 0);
            gk_raw16 g = gk_load16((GK_GLOBAL const void*)(dy + at));
            s = gk_reach_numbers(b, state, row, k, run == 0);
            dz = gk_slope_run(s, taps, k, add, run > 0 || state, gk_decode16(g), act, p);
            GK_UNROLL for (int u = 0; u < GK_BACK; u++) heads[(t + e) * GK_BACK + u] = dz.v[u];
        }
        GK_BARRIER();
        if (live && dx) {
            gk_f next[GK_BACK];
            int more = run + 1 < runs;
            GK_UNROLL for (int u = 0; u < GK_BACK; u++) next[u] = more ? heads[(t + 1) * GK_BACK + u] : GK_R(0.0);
            gk_input_run(dx, at, dz, next, more, taps, k, accumulate);
        }
        if (live) {
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                total += dz.v[u];
                GK_UNROLL for (int b = 0; b < GK_TAPS; b++)
                    if (b < k) acc[b] += dz.v[u] * s.v[GK_BACK + u - b];
            }
        }
        GK_BARRIER();
    }
    if (part) gk_part_sums(part + ((gk_i64)split * channels + ch) * (k + 1), acc, total, k, tmp);
}
