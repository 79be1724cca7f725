/* Samples along rays, what is seen along them (Max, 1995; Mildenhall et al., 2020: NeRF), and the gradients of that.
 *
 * Rendering: with thickness x_s = density_s * delta_s and depth D_s, the sum of the thickness before sample s, a sample has the weight
 *   w_s = exp(-D_s) (1 - exp(-x_s)) and leaves exp(-D_s - x_s) of the light; with the gradient g_s of w_s that of x_s is
 *   g_s exp(-D_s - x_s) - the sum over later samples of g w.
 * density, delta, t, weights [rays, samples], color [rays, samples, channels], y [rays, channels], opacity, depth [rays].
 * Arithmetic in gk_f. Deterministic: one writer per element, sums in trees of fixed shape. Reference: the formulas in numpy.
 */
#include "common/prelude/window.h"

/* Channels per thread. */
#define GK_FIELD_CHANNELS 4

// Units: FLOATS64
/* t[r, s] = low[r] + (high[r] - low[r]) (s + u) / samples, u of the words of the generator, or 1/2 (`middle`). Launch: grid-stride, a thread per
 * block of the generator. */
GK_KERNEL(ray_sampling)(GK_IN(gk_t, low), GK_IN(gk_t, high), GK_OUT(gk_t, t), GK_IN(gk_i64, more), gk_i64 n, gk_i64 samples, gk_i64 seed,
                        gk_i64 stream, gk_i64 offset, int middle)
{
    GK_BIND_IN(gk_t, low); GK_BIND_IN(gk_t, high); GK_BIND_OUT(gk_t, t); GK_BIND_IN(gk_i64, more);
    gk_u64 start = (gk_u64)offset + (more ? (gk_u64)more[0] : 0ul);
    for (gk_i64 b = gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words words = gk_philox(start + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        GK_UNROLL for (int k = 0; k < 4; k++) {
            gk_i64 i = b * 4 + k, r = gk_divide(i, samples);
            if (i < n) {
                gk_f u = middle ? GK_R(0.5) : (gk_f)gk_unit(words.w[k]), first = gk_load(low, r);
                gk_store(t, i, first + (gk_load(high, r) - first) * (((gk_f)(i - r * samples) + u) / (gk_f)samples));
            }
        }
    }
}

/* A weight that counts. */
GK_FN gk_f gk_positive(gk_f w, gk_f padding) { return w < GK_R(0.0) ? padding : w + padding; }

/* sums[r, k] = the sum of the weights before interval k, sums[r, intervals] that of all. Launch: grid-stride over rays. */
GK_KERNEL(importance_sums)(GK_IN(gk_t, weights), GK_OUT(gk_f, sums), gk_i64 rays, gk_i64 intervals, gk_f padding)
{
    GK_BIND_IN(gk_t, weights); GK_BIND_OUT(gk_f, sums);
    for (gk_i64 r = gk_gid(); r < rays; r += gk_gsize()) {
        gk_f sum = GK_R(0.0);
        for (gk_i64 k = 0; k < intervals; k++) {
            sums[r * (intervals + 1) + k] = sum;
            sum += gk_positive(gk_load(weights, r * intervals + k), padding);
        }
        sums[r * (intervals + 1) + intervals] = sum;
    }
}

/* t[r, i] = where the sums reach (i + u) / samples of the whole, linear within an interval; u as for ray_sampling, but in (0, 1]. Without weights all
 * intervals have the same. Launch: as ray_sampling. */
GK_KERNEL(importance_sampling)(GK_IN(gk_t, edges), GK_IN(gk_t, weights), GK_IN(gk_f, sums), GK_OUT(gk_t, t), GK_IN(gk_i64, more), gk_i64 n,
                               gk_i64 samples, gk_i64 intervals, gk_i64 seed, gk_i64 stream, gk_i64 offset, gk_f padding, int middle)
{
    GK_BIND_IN(gk_t, edges); GK_BIND_IN(gk_t, weights); GK_BIND_IN(gk_f, sums); GK_BIND_OUT(gk_t, t); GK_BIND_IN(gk_i64, more);
    gk_u64 start = (gk_u64)offset + (more ? (gk_u64)more[0] : 0ul);
    for (gk_i64 b = gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words words = gk_philox(start + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        for (int j = 0; j < 4; j++) {
            gk_i64 i = b * 4 + j, r = gk_divide(i, samples);
            if (i >= n) break;
            gk_f u = middle ? GK_R(0.5) : (gk_f)gk_unit_open(words.w[j]), share = ((gk_f)(i - r * samples) + u) / (gk_f)samples;
            GK_GLOBAL const gk_f* before = sums + r * (intervals + 1);
            GK_GLOBAL const gk_t* edge = edges + r * (intervals + 1);
            gk_f all = before[intervals], target = share * all, part;
            GK_SEEK(gk_i64, k, intervals, before[v] < target);
            part = (target - before[k]) / gk_positive(gk_load(weights, r * intervals + k), padding);
            if (all == GK_R(0.0)) {
                gk_f at = share * (gk_f)intervals;
                k = (gk_i64)at < intervals ? (gk_i64)at : intervals - 1;
                part = at - (gk_f)k;
            }
            if (part > GK_R(1.0)) part = GK_R(1.0);
            gk_f left = gk_load(edge, k), d = left + part * (gk_load(edge, k + 1) - left);
            gk_store(t, i, gk_isnan(all) || gk_isinf(all) ? GK_NAN : d);
        }
    }
}

/* The weight of a sample of this thickness at this depth. */
GK_FN gk_f gk_ray_weight(gk_f depth, gk_f thickness) { return gk_exp(-depth) * -gk_expm1(-thickness); }

/* The rendering, a thread per ray and group of GK_FIELD_CHANNELS channels. opacity, depth (with t alone) and weights may be null. Launch:
 * grid-stride. */
GK_KERNEL(volume_render)(GK_IN(gk_t, density), GK_IN(gk_t, color), GK_IN(gk_t, delta), GK_IN(gk_t, t), GK_OUT(gk_t, y), GK_OUT(gk_t, opacity),
                         GK_OUT(gk_t, depth), GK_OUT(gk_t, weights), gk_i64 n, gk_i64 samples, gk_i64 channels, gk_i64 groups)
{
    GK_BIND_IN(gk_t, density); GK_BIND_IN(gk_t, color); GK_BIND_IN(gk_t, delta); GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_t, opacity); GK_BIND_OUT(gk_t, depth); GK_BIND_OUT(gk_t, weights);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 r = gk_divide(i, groups), first = (i - r * groups) * GK_FIELD_CHANNELS;
        gk_f before = GK_R(0.0), all = GK_R(0.0), distance = GK_R(0.0), sum[GK_FIELD_CHANNELS];
        GK_UNROLL for (int u = 0; u < GK_FIELD_CHANNELS; u++) sum[u] = GK_R(0.0);
        for (gk_i64 s = r * samples; s < (r + 1) * samples; s++) {
            gk_f x = gk_load(density, s) * gk_load(delta, s), w = gk_ray_weight(before, x);
            GK_UNROLL for (int u = 0; u < GK_FIELD_CHANNELS; u++)
                if (first + u < channels) sum[u] += w * gk_load(color, s * channels + first + u);
            before += x;
            if (first > 0) continue;
            all += w;
            if (t) distance += w * gk_load(t, s);
            if (weights) gk_store(weights, s, w);
        }
        GK_UNROLL for (int u = 0; u < GK_FIELD_CHANNELS; u++)
            if (first + u < channels) gk_store(y, r * channels + first + u, sum[u]);
        if (first == 0 && opacity) gk_store(opacity, r, all);
        if (first == 0 && depth) gk_store(depth, r, distance);
    }
}

/* The sum of v over the threads before this one, or behind it (`back`). */
GK_FN gk_f gk_sum_beside(gk_f v, GK_LOCAL_PTR gk_f* tmp, int back)
{
    int t = back ? GK_BLOCK - 1 - gk_lid() : gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = 1; m < GK_BLOCK; m <<= 1) {
        gk_f add = t >= m ? tmp[t - m] : GK_R(0.0);
        GK_BARRIER();
        if (t >= m) tmp[t] += add;
        GK_BARRIER();
    }
    v = t > 0 ? tmp[t - 1] : GK_R(0.0);
    GK_BARRIER();
    return v;
}

/* The samples [first, end) of a ray that a thread of a block takes. */
typedef struct { gk_i64 first, end; } gk_ray_run;

GK_FN gk_ray_run gk_ray_run_of(gk_i64 r, gk_i64 samples)
{
    gk_ray_run run;
    gk_i64 per = (samples + GK_BLOCK - 1) / GK_BLOCK, from = gk_lid() * per, to = from + per;
    run.first = r * samples + (from < samples ? from : samples);
    run.end = r * samples + (to < samples ? to : samples);
    return run;
}

/* The thickness of a run. */
GK_FN gk_f gk_ray_thickness(GK_GLOBAL const gk_t* density, GK_GLOBAL const gk_t* delta, gk_ray_run run)
{
    gk_f sum = GK_R(0.0);
    for (gk_i64 s = run.first; s < run.end; s++) sum += gk_load(density, s) * gk_load(delta, s);
    return sum;
}

/* The same, a block per ray; its threads take runs of samples. Launch: blocks, which loop over rays. */
GK_KERNEL(volume_render_block)(GK_IN(gk_t, density), GK_IN(gk_t, color), GK_IN(gk_t, delta), GK_IN(gk_t, t), GK_OUT(gk_t, y), GK_OUT(gk_t, opacity),
                               GK_OUT(gk_t, depth), GK_OUT(gk_t, weights), gk_i64 rays, gk_i64 samples, gk_i64 channels)
{
    GK_BIND_IN(gk_t, density); GK_BIND_IN(gk_t, color); GK_BIND_IN(gk_t, delta); GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_t, opacity); GK_BIND_OUT(gk_t, depth); GK_BIND_OUT(gk_t, weights);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 r = gk_bid(0); r < rays; r += gk_nblocks(0)) {
        gk_ray_run run = gk_ray_run_of(r, samples);
        gk_f ahead = gk_sum_beside(gk_ray_thickness(density, delta, run), tmp, 0);
        /* One round at least, for opacity and weights. */
        for (gk_i64 first = 0; first == 0 || first < channels; first += GK_FIELD_CHANNELS) {
            gk_f before = ahead, all = GK_R(0.0), distance = GK_R(0.0), sum[GK_FIELD_CHANNELS];
            GK_UNROLL for (int u = 0; u < GK_FIELD_CHANNELS; u++) sum[u] = GK_R(0.0);
            for (gk_i64 s = run.first; s < run.end; s++) {
                gk_f x = gk_load(density, s) * gk_load(delta, s), w = gk_ray_weight(before, x);
                GK_UNROLL for (int u = 0; u < GK_FIELD_CHANNELS; u++)
                    if (first + u < channels) sum[u] += w * gk_load(color, s * channels + first + u);
                before += x;
                all += w;
                if (t) distance += w * gk_load(t, s);
                if (weights && first == 0) gk_store(weights, s, w);
            }
            for (int u = 0; u < GK_FIELD_CHANNELS; u++) {
                gk_f seen = gk_block_sum(sum[u], tmp);
                if (gk_lid() == 0 && first + u < channels) gk_store(y, r * channels + first + u, seen);
            }
            if (first > 0) continue;
            all = gk_block_sum(all, tmp);
            distance = gk_block_sum(distance, tmp);
            if (gk_lid() == 0 && opacity) gk_store(opacity, r, all);
            if (gk_lid() == 0 && depth) gk_store(depth, r, distance);
        }
    }
}

/* Gradients that are null are not wanted; upstream ones that are null are 0. */
GK_FN gk_f gk_optional(GK_GLOBAL const gk_t* p, gk_i64 i) { return p ? gk_load(p, i) : GK_R(0.0); }

/* The gradient of the weight of sample s of ray r. */
GK_FN gk_f gk_weight_gradient(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* color, GK_GLOBAL const gk_t* t, GK_GLOBAL const gk_t* dopacity,
                              GK_GLOBAL const gk_t* ddepth, GK_GLOBAL const gk_t* dweights, gk_i64 r, gk_i64 s, gk_i64 channels)
{
    gk_f g = gk_optional(dopacity, r) + gk_optional(dweights, s);
    if (ddepth) g += gk_load(ddepth, r) * gk_load(t, s);
    if (dy)
        for (gk_i64 c = 0; c < channels; c++) g += gk_load(dy, r * channels + c) * gk_load(color, s * channels + c);
    return g;
}

GK_FN void gk_put_gradient(GK_GLOBAL gk_t* p, gk_i64 i, gk_f d, int accumulate)
{
    if (p) gk_store(p, i, accumulate ? gk_load(p, i) + d : d);
}

/* Stores the gradients of sample s, from that of its weight and the sum of g w over later samples; returns its own g w. `add`: which of ddensity,
 * dcolor, ddelta, dt accumulate. */
GK_FN gk_f gk_sample_gradients(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* density, GK_GLOBAL const gk_t* delta, GK_GLOBAL const gk_t* ddepth,
                               GK_GLOBAL gk_t* ddensity, GK_GLOBAL gk_t* dcolor, GK_GLOBAL gk_t* ddelta, GK_GLOBAL gk_t* dt, gk_f before, gk_f g,
                               gk_f later, gk_i64 r, gk_i64 s, gk_i64 channels, int add)
{
    gk_f sigma = gk_load(density, s), length = gk_load(delta, s), x = sigma * length, w = gk_ray_weight(before, x);
    gk_f dx = g * gk_exp(-(before + x)) - later;
    gk_put_gradient(ddensity, s, length * dx, add & 1);
    gk_put_gradient(ddelta, s, sigma * dx, add & 4);
    gk_put_gradient(dt, s, w * gk_optional(ddepth, r), add & 8);
    if (dcolor)
        for (gk_i64 c = 0; c < channels; c++) gk_put_gradient(dcolor, s * channels + c, w * gk_optional(dy, r * channels + c), add & 2);
    return g * w;
}

/* The gradients, a thread per ray. depths [rays, samples] is memory for the D_s. Launch: grid-stride. */
GK_KERNEL(volume_render_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, density), GK_IN(gk_t, color), GK_IN(gk_t, delta), GK_IN(gk_t, t), GK_IN(gk_t, dopacity),
                             GK_IN(gk_t, ddepth), GK_IN(gk_t, dweights), GK_OUT(gk_t, ddensity), GK_OUT(gk_t, dcolor), GK_OUT(gk_t, ddelta),
                             GK_OUT(gk_t, dt), GK_OUT(gk_f, depths), gk_i64 rays, gk_i64 samples, gk_i64 channels, int add)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, density); GK_BIND_IN(gk_t, color); GK_BIND_IN(gk_t, delta); GK_BIND_IN(gk_t, t);
    GK_BIND_IN(gk_t, dopacity); GK_BIND_IN(gk_t, ddepth); GK_BIND_IN(gk_t, dweights); GK_BIND_OUT(gk_t, ddensity); GK_BIND_OUT(gk_t, dcolor);
    GK_BIND_OUT(gk_t, ddelta); GK_BIND_OUT(gk_t, dt); GK_BIND_OUT(gk_f, depths);
    for (gk_i64 r = gk_gid(); r < rays; r += gk_gsize()) {
        gk_f before = GK_R(0.0), later = GK_R(0.0);
        for (gk_i64 s = r * samples; s < (r + 1) * samples; s++) {
            depths[s] = before;
            before += gk_load(density, s) * gk_load(delta, s);
        }
        for (gk_i64 s = (r + 1) * samples - 1; s >= r * samples; s--) {
            gk_f g = gk_weight_gradient(dy, color, t, dopacity, ddepth, dweights, r, s, channels);
            later += gk_sample_gradients(dy, density, delta, ddepth, ddensity, dcolor, ddelta, dt, depths[s], g, later, r, s, channels, add);
        }
    }
}

/* The same, a block per ray; its threads take runs of samples. depths and slopes [rays, samples] are memory for the D_s and the g_s. Launch: blocks,
 * which loop over rays. */
GK_KERNEL(volume_render_bwd_block)(GK_IN(gk_t, dy), GK_IN(gk_t, density), GK_IN(gk_t, color), GK_IN(gk_t, delta), GK_IN(gk_t, t),
                                   GK_IN(gk_t, dopacity), GK_IN(gk_t, ddepth), GK_IN(gk_t, dweights), GK_OUT(gk_t, ddensity), GK_OUT(gk_t, dcolor),
                                   GK_OUT(gk_t, ddelta), GK_OUT(gk_t, dt), GK_OUT(gk_f, depths), GK_OUT(gk_f, slopes), gk_i64 rays, gk_i64 samples,
                                   gk_i64 channels, int add)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, density); GK_BIND_IN(gk_t, color); GK_BIND_IN(gk_t, delta); GK_BIND_IN(gk_t, t);
    GK_BIND_IN(gk_t, dopacity); GK_BIND_IN(gk_t, ddepth); GK_BIND_IN(gk_t, dweights); GK_BIND_OUT(gk_t, ddensity); GK_BIND_OUT(gk_t, dcolor);
    GK_BIND_OUT(gk_t, ddelta); GK_BIND_OUT(gk_t, dt); GK_BIND_OUT(gk_f, depths); GK_BIND_OUT(gk_f, slopes);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 r = gk_bid(0); r < rays; r += gk_nblocks(0)) {
        gk_ray_run run = gk_ray_run_of(r, samples);
        gk_f before = gk_sum_beside(gk_ray_thickness(density, delta, run), tmp, 0), later = GK_R(0.0);
        for (gk_i64 s = run.first; s < run.end; s++) {
            gk_f x = gk_load(density, s) * gk_load(delta, s);
            gk_f g = gk_weight_gradient(dy, color, t, dopacity, ddepth, dweights, r, s, channels);
            depths[s] = before;
            slopes[s] = g;
            later += g * gk_ray_weight(before, x);
            before += x;
        }
        later = gk_sum_beside(later, tmp, 1);
        for (gk_i64 s = run.end - 1; s >= run.first; s--)
            later += gk_sample_gradients(dy, density, delta, ddepth, ddensity, dcolor, ddelta, dt, depths[s], slopes[s], later, r, s, channels, add);
    }
}
