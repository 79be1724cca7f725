/* Causal depthwise convolution of sequences [rows = N * C, len].
 *
 *   z[l] = bias + sum over j < k of w[j] * x[l - (k-1) + j],  y = act(z)        elements before the first come from state [rows, k-1], or are 0
 *   dz = dy * act'(z);  dx[i] = sum over j of w[j] * dz[i + (k-1) - j];  dw[j] = sum over images and l of dz[l] * x[l - (k-1) + j];  dbias = sum of
 * dz
 *
 * Arithmetic in gk_f; dz is kept in gk_f. Launch: grid-stride over the elements (causal_state: over the rows); causal_weight: one block per channel
 * and run of places, channels fastest, to part [splits, C, k + 1], the last of which is dbias; causal_combine adds the runs in order. Deterministic.
 * Reference: F.conv1d of the padded sequence with groups=C.
 */
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

#define GK_SLOPE(f) d = f(dy, z, p, GK_R(0.0), GK_R(0.0))
/* dy * act'(z), from z or, where the slope is a function of it, from the activation's result. */
GK_FN gk_f gk_slope(int act, gk_f z, gk_f dy, gk_f p)
{
    gk_f d = dy;
    switch (act) {
    case 1: GK_SLOPE(gk_act_relu_bwd); break;
    case 2: GK_SLOPE(gk_act_leaky_relu_bwd); break;
    case 3: GK_SLOPE(gk_act_gelu_bwd); break;
    case 4: GK_SLOPE(gk_act_gelu_tanh_bwd); break;
    case 5: z = gk_act_sigmoid_fwd(z, p, GK_R(0.0), GK_R(0.0)); GK_SLOPE(gk_act_sigmoid_bwd); break;
    case 6: z = gk_act_tanh_fwd(z, p, GK_R(0.0), GK_R(0.0)); GK_SLOPE(gk_act_tanh_bwd); break;
    case 7: GK_SLOPE(gk_act_swish_bwd); break;
    case 8: GK_SLOPE(gk_act_hardswish_bwd); break;
    default: break;
    }
    return d;
}

GK_KERNEL(causal_slope)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, w), GK_IN(gk_t, bias), GK_IN(gk_t, state), GK_OUT(gk_f, dz), gk_i64 n,
                        gk_i64 len, gk_i64 channels, int k, int act, gk_f p)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, state); GK_BIND_OUT(gk_f, dz);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 row = GK_ROW_OF(i);
        dz[i] = gk_slope(act, gk_causal(x, w, bias, state, row, row % channels, len, k, i - row * len), gk_load(dy, i), p);
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
