/* Convolution of f16 and bf16 on matrix cores as an implicit matrix product, forward, adjoint and weight gradient; no groups.
 *
 *   y[n, m, q] = act(scale * sum over taps t and channels c of wt[m, t, c] * x[n, place(q, t), c] + bias + residual[n, m, q])
 *   dw[m, c, t] = sum over images n and places q of dy[n, m, q] * x[n, place(q, t), c]
 *
 * Forward place(q, t) = q * stride - pad + t * dilation; adjoint (input gradient, transposed convolution) (q + pad - t * dilation) / stride where that is
 * whole. Outside the map x is 0. x has its channels last, C of them, a multiple of 8 (zeros behind the last), so that a chunk of 16 bytes lies at one tap;
 * y and dy have channels first. Stages of 64 terms are copied to local memory while earlier ones are multiplied. Sums are float, in the order of taps,
 * channels fastest, or of images and places. Deterministic. Reference: F.conv2d, torch.nn.grad.conv2d_input, conv2d_weight.
 *
 * map = {depth, height, width, C, images} of x, out = {depth, height, width, rows, row tiles, ...} of y, win = {taps, strides}, geo = {paddings,
 * dilations}.
 */
#include "common/prelude/matrix.h"
#include "window_table.h"
#include "matrix_windows.h"

/* Room for two blocks on an SM: while one waits for its copies the other multiplies. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

#define GK_CONV_PARTS 1
/* Where copies are not asynchronous, one stage ahead is enough. */
#ifdef GK_PTX
#define GK_CONV_STAGES(rows) 3
#else
#define GK_CONV_STAGES(rows) 2
#endif
/* 128 rows and 128 places, or 64 rows and 256 places, of which each half of the warps has one. */
#define GK_CONV_PLACES(rows) (16384 / (rows))

typedef struct { float c[16][4]; } gk_sums;
GK_FN void gk_conv_clear(gk_sums* s)
{
    gk_mm_clear(s->c, 128);
    gk_mm_ready(s->c, 128);
}
GK_FN void gk_conv_multiply(gk_sums* s, GK_LOCAL_PTR const gk_raw16* stage, const int rows, const int by)
{
    int row0 = gk_lid() / 32 * 16;
    if (by) gk_mm_tiles_by(s->c, 128, stage, rows, row0, 0, 64, stage + rows * 8, 1);
    else gk_mm_tiles_add(s->c, 128, stage, rows, row0 % rows, 64, stage + rows * 8 + row0 / rows * 1024);
}
GK_FN void gk_conv_products_wait(gk_sums* s, int n)
{
    (void)s;
    (void)n;
    GK_MM_WAIT(1);
}
GK_FN void gk_conv_join(gk_sums* s, GK_LOCAL_PTR float* room)
{
    (void)room;
    gk_mm_ready(s->c, 128);
}

#include "matrix_tile.h"

// Units: HALVES
/* out.v[5] = tiles of places of a phase, at most. Launch: axis 0 = row tiles (fastest) x tiles of places of all images x phases: an adjoint has as many as
 * the product of its strides. `wide`: runs of four places lie side by side in one image and are aligned for them. */
GK_KERNEL(conv_matrix128)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES(128) * 2048);
    GK_CONV_BIND();
    GK_CONV_TILE(128);
}

GK_KERNEL(conv_matrix64)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                         GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES(64) * 2560);
    GK_CONV_BIND();
    GK_CONV_TILE(64);
}

/* wt[m, t, c] of w: forward [m, r, taps], adjoint [r, m, taps]; 0 for the channels from r on. Launch: grid-stride over the n elements of wt. */
GK_KERNEL(conv_matrix_weights)(GK_IN(gk_t, w), GK_OUT(gk_t, wt), gk_i64 n, int rows, int r, int channels, int taps, int back)
{
    GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_t, wt);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 line = i / channels, c = i - line * channels, m = line / taps, t = line - m * taps;
        gk_f v = GK_R(0.0);
        if (c < r) v = gk_load(w, (back ? c * rows + m : m * r + c) * taps + t);
        gk_store(wt, i, v);
    }
}

GK_KERNEL(conv_matrix_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), GK_DIMS(size))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES(128) * 2048);
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    gk_weight_tile(x, dy, part, map, out, win, geo, size, 128, tiles);
}
