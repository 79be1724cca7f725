/* Convolutional LSTM. A convolution of one step is a product: W [4 Hc, C kh kw] times the unfolded images [C kh kw, N H W] gives the gates
 * [4 Hc, N H W]. These kernels unfold and fold, and do what happens between the products. Images are [N, C, H, W]. Deterministic: one writer
 * per output, fixed order of sums. Reference: Shi et al. (2015), with torch.nn.functional.conv2d.
 */
#if GK_IS_FLOAT
#include "gates.h"

/* Image and pixel of column q of [N, pixels]. */
GK_FN gk_i64 gk_image_of(gk_i64 q, gk_i64 pixels)
{
    if (q <= 0x7fffffff && pixels <= 0x7fffffff) return (gk_i64)((gk_u32)q / (gk_u32)pixels);
    return q / pixels;
}

// Units: FLOATS64
/* col[(c kh + y) kw + x][n, p] = images[n, c, p shifted by (y, x)], 0 outside. Launch: axis 0 = columns, axis 1 = channels (looped over). */
GK_KERNEL(conv_lstm_unfold)(GK_IN(gk_t, images), GK_OUT(gk_t, col), gk_i64 count, int channels, int height, int width, int kh, int kw)
{
    GK_BIND_IN(gk_t, images); GK_BIND_OUT(gk_t, col);
    gk_i64 pixels = (gk_i64)height * width, columns = count * pixels;
    for (gk_i64 q = gk_gid(); q < columns; q += gk_gsize()) {
        gk_i64 n = gk_image_of(q, pixels);
        int p = (int)(q - n * pixels), py = p / width, px = p - py * width;
        for (int c = gk_bid(1); c < channels; c += gk_nblocks(1)) {
            GK_GLOBAL const gk_t* from = images + (n * channels + c) * pixels;
            gk_i64 to = (gk_i64)c * kh * kw * columns + q;
            for (int y = 0; y < kh; y++) {
                for (int x = 0; x < kw; x++) {
                    int sy = py + y - kh / 2, sx = px + x - kw / 2;
                    gk_f v = GK_R(0.0);
                    if (sy >= 0 && sy < height && sx >= 0 && sx < width) v = gk_load(from, (gk_i64)sy * width + sx);
                    gk_store(col, to, v);
                    to += columns;
                }
            }
        }
    }
}

/* The adjoint: images[n, c, p] = sum of the entries of col (gk_f) that were read there. The result goes to `grad` (added to it where `accumulate`
 * is set), or to `carry` in the arithmetic type; the other one is null. Launch: as conv_lstm_unfold. */
GK_KERNEL(conv_lstm_fold)(GK_IN(gk_f, col), GK_OUT(gk_t, grad), GK_OUT(gk_f, carry), gk_i64 count, int channels, int height, int width, int kh,
                          int kw, int accumulate)
{
    GK_BIND_IN(gk_f, col); GK_BIND_OUT(gk_t, grad); GK_BIND_OUT(gk_f, carry);
    gk_i64 pixels = (gk_i64)height * width, columns = count * pixels;
    for (gk_i64 q = gk_gid(); q < columns; q += gk_gsize()) {
        gk_i64 n = gk_image_of(q, pixels);
        int p = (int)(q - n * pixels), py = p / width, px = p - py * width;
        for (int c = gk_bid(1); c < channels; c += gk_nblocks(1)) {
            gk_i64 at = (gk_i64)c * kh * kw * columns + n * pixels, to = (n * channels + c) * pixels + p;
            gk_f sum = GK_R(0.0);
            for (int y = 0; y < kh; y++) {
                for (int x = 0; x < kw; x++) {
                    int sy = py - y + kh / 2, sx = px - x + kw / 2;
                    if (sy >= 0 && sy < height && sx >= 0 && sx < width) sum += col[at + (gk_i64)sy * width + sx];
                    at += columns;
                }
            }
            if (carry) carry[to] = sum;
            else gk_add_to(grad, to, sum, accumulate);
        }
    }
}

typedef struct { gk_i64 n, c, p; } gk_cell;

/* Coordinates of element e of [N, hidden, pixels]. */
GK_FN gk_cell gk_cell_of(gk_i64 e, gk_i64 hidden, gk_i64 pixels)
{
    gk_cell k;
    gk_i64 q = gk_image_of(e, pixels);
    k.p = e - q * pixels;
    k.n = gk_image_of(q, hidden);
    k.c = q - k.n * hidden;
    return k;
}

/* Peephole weight number `which` of an element, 0 without. */
GK_FN gk_f gk_peep(GK_GLOBAL const gk_t* peep, int which, gk_cell k, gk_i64 hidden, gk_i64 pixels, int shared)
{
    gk_f v = GK_R(0.0);
    if (peep) v = gk_load(peep, shared ? which * hidden + k.c : (which * hidden + k.c) * pixels + k.p);
    return v;
}

/* One step from z [4 hidden, N pixels] (gk_f). Launch: grid-stride over the n elements of a state. */
GK_KERNEL(conv_lstm_step)(GK_IN(gk_f, z), GK_IN(gk_t, c), GK_IN(gk_t, peep), GK_OUT(gk_t, h_next), GK_OUT(gk_t, c_next), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, gates), GK_OUT(gk_t, h_last), GK_OUT(gk_t, c_last), gk_i64 n, gk_i64 hidden, gk_i64 pixels, int shared)
{
    GK_BIND_IN(gk_f, z); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, peep); GK_BIND_OUT(gk_t, h_next); GK_BIND_OUT(gk_t, c_next);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, gates); GK_BIND_OUT(gk_t, h_last); GK_BIND_OUT(gk_t, c_last);
    gk_i64 columns = n / hidden;
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_cell k = gk_cell_of(e, hidden, pixels);
        gk_f v[4], c_new = gk_load(c, e);
        GK_UNROLL for (int q = 0; q < 4; q++) v[q] = z[(q * hidden + k.c) * columns + k.n * pixels + k.p];
        gk_f pi = gk_peep(peep, 0, k, hidden, pixels, shared), pf = gk_peep(peep, 1, k, hidden, pixels, shared), po = gk_peep(peep, 2, k, hidden,
            pixels, shared);
        gk_f h_new = gk_lstm(v, &c_new, pi, pf, po);
        gk_store(h_next, e, h_new);
        gk_store(c_next, e, c_new);
        gk_store(y, e, h_new);
        if (gates) {
            GK_UNROLL for (int q = 0; q < 4; q++) gk_store(gates, (k.n * 4 * hidden + q * hidden + k.c) * pixels + k.p, v[q]);
        }
        if (h_last) gk_store(h_last, e, h_new);
        if (c_last) gk_store(c_last, e, c_new);
    }
}

/* Backward of a step: dz [4 hidden, N pixels]; dh and dc (gk_f) as in rnn/rnn.c, `first` takes dh_last and dc_last (0 where null) instead.
 * Launch: as conv_lstm_step. */
GK_KERNEL(conv_lstm_step_bwd)(GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, c_next), GK_IN(gk_t, peep), GK_IN(gk_t, dy), GK_IN(gk_t, dh_last),
                              GK_IN(gk_t, dc_last), GK_IN(gk_f, dh), GK_OUT(gk_f, dc), GK_OUT(gk_t, dz), gk_i64 n, gk_i64 hidden, gk_i64 pixels,
                              int shared, int first)
{
    GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, c_next); GK_BIND_IN(gk_t, peep); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, dh_last);
    GK_BIND_IN(gk_t, dc_last); GK_BIND_IN(gk_f, dh); GK_BIND_OUT(gk_f, dc); GK_BIND_OUT(gk_t, dz);
    gk_i64 columns = n / hidden;
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_cell k = gk_cell_of(e, hidden, pixels);
        gk_f g[4], d[4], up = GK_R(0.0), s = GK_R(0.0);
        if (!first) {
            up = dh[e];
            s = dc[e];
        } else {
            if (dh_last) up = gk_load(dh_last, e);
            if (dc_last) s = gk_load(dc_last, e);
        }
        if (dy) up += gk_load(dy, e);
        GK_UNROLL for (int q = 0; q < 4; q++) g[q] = gk_load(gates, (k.n * 4 * hidden + q * hidden + k.c) * pixels + k.p);
        s = gk_lstm_grad(g, gk_load(c, e), gk_load(c_next, e), up, s, gk_peep(peep, 2, k, hidden, pixels, shared), d);
        if (peep) s += d[0] * gk_peep(peep, 0, k, hidden, pixels, shared) + d[1] * gk_peep(peep, 1, k, hidden, pixels, shared);
        dc[e] = s;
        GK_UNROLL for (int q = 0; q < 4; q++) gk_store(dz, (q * hidden + k.c) * columns + k.n * pixels + k.p, d[q]);
    }
}

/* dp[which, c, p] (+)= sum over steps and images of dz c: c before the step for i and f, behind it for o. dz [T, 4 hidden, N pixels], c
 * [T+1, N, hidden, pixels]. One weight per element: `lanes` = 1, a thread each; a shared weight: `lanes` = GK_BLOCK, a block sums over its
 * pixels. Launch: as many blocks as weights need. */
GK_KERNEL(conv_lstm_peep)(GK_IN(gk_t, dz), GK_IN(gk_t, c), GK_OUT(gk_t, dp), gk_i64 weights, gk_i64 steps, gk_i64 count, gk_i64 hidden, gk_i64 pixels,
                          int lanes, int accumulate)
{
    GK_BIND_IN(gk_t, dz); GK_BIND_IN(gk_t, c); GK_BIND_OUT(gk_t, dp);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 w = ((gk_i64)gk_bid(0) * GK_BLOCK + gk_lid()) / lanes, state = count * hidden * pixels;
    gk_i64 row = lanes > 1 ? w : w / pixels, first = lanes > 1 ? lane : w - row * pixels, which = row / hidden, ch = row - which * hidden;
    gk_i64 gate = which == 2 ? 3 : which, later = which == 2 ? 1 : 0;
    gk_f sum = GK_R(0.0);
    if (w < weights) {
        for (gk_i64 t = 0; t < steps; t++) {
            for (gk_i64 n = 0; n < count; n++) {
                gk_i64 at = ((t * 4 + gate) * hidden + ch) * count * pixels + n * pixels, from = (t + later) * state + (n * hidden + ch) * pixels;
                for (gk_i64 p = first; p < pixels; p += lanes > 1 ? lanes : pixels) sum += gk_load(dz, at + p) * gk_load(c, from + p);
            }
        }
    }
    if (lanes > 1) sum = gk_block_sum(sum, tmp);
    if (w < weights && lane == 0) gk_add_to(dp, w, sum, accumulate);
}
#endif
