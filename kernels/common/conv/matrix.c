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
 * map = {depth, height, width, C, images} of x, out = {depth, height, width, rows, row tiles} of y, win = {taps, strides}, geo = {paddings, dilations}.
 */
#include "common/prelude/matrix.h"
#include "window_table.h"

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

#define GK_CONV_TERMS 64
/* Stages in local memory. Where copies are not asynchronous, one ahead is enough. */
#ifdef GK_PTX
#define GK_CONV_STAGES 3
#define GK_CONV_WAIT() GK_COPY_WAIT(1)
#else
#define GK_CONV_STAGES 2
#define GK_CONV_WAIT() ((void)0)
#endif
/* Columns of sums that wait in local memory for the epilogue, and the distance of their rows. */
#define GK_CONV_SPILL 64
#define GK_CONV_PITCH 68

/* Where a window begins: the element of its image in x, and its place along the axes; `base` is -1 for none. */
typedef struct { int base, d, h, w; } gk_window;
typedef struct { int d, h, w; } gk_offset;

GK_FN gk_window gk_window_at(int q, gk_dims map, gk_dims out, gk_dims win, gk_dims geo, int back)
{
    gk_window a;
    int height = (int)out.v[1], width = (int)out.v[2], plane = (int)out.v[0] * height * width, n = q / plane, i = q - n * plane, r = i / width;
    a.w = i - r * width; a.d = r / height; a.h = r - a.d * height;
    if (back) {
        a.d += (int)geo.v[0]; a.h += (int)geo.v[1]; a.w += (int)geo.v[2];
    } else {
        a.d = a.d * (int)win.v[3] - (int)geo.v[0]; a.h = a.h * (int)win.v[4] - (int)geo.v[1]; a.w = a.w * (int)win.v[5] - (int)geo.v[2];
    }
    a.base = n < map.v[4] ? n * (int)(map.v[0] * map.v[1] * map.v[2] * map.v[3]) : -1;
    return a;
}

/* What tap number t adds to a window's beginning, or takes from it. */
GK_FN gk_offset gk_offset_of(int t, gk_dims win, gk_dims geo)
{
    gk_offset o;
    int r = t / (int)win.v[2];
    o.w = (t - r * (int)win.v[2]) * (int)geo.v[5]; o.d = r / (int)win.v[1];
    o.h = (r - o.d * (int)win.v[1]) * (int)geo.v[4]; o.d *= (int)geo.v[3];
    return o;
}

/* A place along an axis; negative if it is none. */
GK_FN int gk_place_of(int begin, int offset, int stride, int size, int back)
{
    int at = back ? begin - offset : begin + offset;
    if (back && stride > 1 && at >= 0) at = at % stride == 0 ? at / stride : -1;
    return at < size ? at : -1;
}

/* The element of x of a window's tap, channel 0; negative outside. */
GK_FN int gk_element_of(gk_window a, gk_offset o, gk_dims map, gk_dims win, int back)
{
    int d = gk_place_of(a.d, o.d, (int)win.v[3], (int)map.v[0], back), h = gk_place_of(a.h, o.h, (int)win.v[4], (int)map.v[1], back);
    int w = gk_place_of(a.w, o.w, (int)win.v[5], (int)map.v[2], back);
    if ((d | h | w | a.base) < 0) return -1;
    return a.base + ((d * (int)map.v[1] + h) * (int)map.v[2] + w) * (int)map.v[3];
}

/* ---- forward and adjoint ----------------------------------------------------------------------------------------------------------------- */

/* Queues the copy of stage `stage`: of wt (at the tile's first row) and of the tile's windows. */
GK_FN void gk_conv_fetch(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* wt, const gk_window* at, int stage, int have, gk_dims map, gk_dims win, gk_dims geo,
                         int back, const int rows, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, r = gk_lid() / 8, channels = (int)map.v[3], k = stage * GK_CONV_TERMS + c * GK_PER_CHUNK;
    int terms = (int)(win.v[0] * win.v[1] * win.v[2]) * channels, t = k / channels, within = k < terms;
    gk_offset o = gk_offset_of(t, win, geo);
    GK_UNROLL for (int i = 0; i < rows / 32; i++) {
        int row = r + 32 * i, exists = within && row < have;
        gk_copy16(to + gk_chunk_at(row, c, rows), exists ? wt + (gk_i64)row * terms + k : wt, exists);
    }
    to += rows * 8;
    x += k - t * channels;
    GK_UNROLL for (int i = 0; i < 512 / rows; i++) {
        int e = gk_element_of(at[i], o, map, win, back), exists = within && e >= 0, place = r + 32 * i;
        gk_copy16(to + place / 128 * 1024 + gk_chunk_at(place % 128, c, 128), exists ? x + e : x, exists);
    }
}

/* A tile of 128 rows and 128 places, or of 64 rows and 256 places, of which each half of the warps has one. */
GK_FN void gk_conv_matrix(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* wt, GK_GLOBAL const gk_t* scale, GK_GLOBAL const gk_t* bias,
                          GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, gk_dims map, gk_dims out, gk_dims win, gk_dims geo,
                          int back, int wide, int accumulate, int act, gk_f q_act, const int rows, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int places = 16384 / rows, chunks = (rows + places) * 8;
    int m0 = (int)(gk_bid(0) % out.v[4]) * rows, q0 = (int)(gk_bid(0) / out.v[4]) * places, have = (int)out.v[3] - m0;
    int terms = (int)(win.v[0] * win.v[1] * win.v[2] * map.v[3]), stages = (terms + GK_CONV_TERMS - 1) / GK_CONV_TERMS;
    int plane = (int)(out.v[0] * out.v[1] * out.v[2]), count = plane * (int)map.v[4], row0 = gk_lid() / 32 * 16 % rows, side = gk_lid() / 32 * 16 / rows;
    float sums[16][4];
    gk_window at[8];
    wt += (gk_i64)m0 * terms;
    GK_UNROLL for (int i = 0; i < 512 / rows; i++) at[i] = gk_window_at(q0 + gk_lid() / 8 + 32 * i, map, out, win, geo, back);
    gk_mm_clear(sums, 128);
    for (int n = 1 - GK_CONV_STAGES; n < stages; n++) {
        int next = n + GK_CONV_STAGES - 1;
        if (n >= 0) {
            GK_CONV_WAIT();
            GK_BARRIER();
        }
        if (next < stages) gk_conv_fetch(x, wt, at, next, have, map, win, geo, back, rows, tiles + next % GK_CONV_STAGES * chunks);
        GK_COPY_COMMIT();
        if (n < 0) continue;
        GK_LOCAL_PTR gk_raw16* left = tiles + n % GK_CONV_STAGES * chunks;
        gk_mm_tiles_add(sums, 128, left, rows, row0, GK_CONV_TERMS, left + rows * 8 + side * 1024);
        GK_MM_WAIT(0);
        gk_mm_ready(sums, 128);
    }
    /* Runs of four places of a row, from local memory. */
    GK_LOCAL_PTR float* spill = (GK_LOCAL_PTR float*)tiles;
    GK_UNROLL for (int first = 0; first < 128; first += GK_CONV_SPILL) {
        GK_BARRIER();
        GK_UNROLL for (int j = 0; j < GK_CONV_SPILL / 8; j++) {
            GK_UNROLL for (int e = 0; e < 4; e++)
                spill[(side * rows + row0 + GK_FRAG_ROW(e)) * GK_CONV_PITCH + 8 * j + GK_FRAG_COL(e)] = sums[first / 8 + j][e];
        }
        GK_BARRIER();
        for (int i = 0; i < 8; i++) {
            int run = gk_lid() + i * GK_BLOCK, line = run / 16, m = m0 + line % rows, q = q0 + line / rows * 128 + first + run % 16 * 4;
            int left = count - q < 4 ? count - q : 4;
            gk_i64 to[4];
            gk_four v;
            if (m >= out.v[3] || left <= 0) continue;
            GK_UNROLL for (int u = 0; u < 4; u++) {
                int image = (q + u) / plane;
                v.v[u] = spill[line * GK_CONV_PITCH + run % 16 * 4 + u];
                to[u] = (image * out.v[3] + m) * plane + (q + u - image * plane);
            }
            gk_conv_store(v, to, left, wide, m, scale, bias, residual, y, z, accumulate, act, q_act);
        }
    }
}

// Units: HALVES
/* Launch: axis 0 = row tiles (fastest) x tiles of places of all images. `wide`: runs of four places lie in one image and are aligned for them. */
GK_KERNEL(conv_matrix128)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES * 2048);
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, wt); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_t, z);
    gk_conv_matrix(x, wt, scale, bias, residual, y, z, map, out, win, geo, back, wide, accumulate, act, q_act, 128, tiles);
}

GK_KERNEL(conv_matrix64)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                         GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES * 2560);
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, wt); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_t, z);
    gk_conv_matrix(x, wt, scale, bias, residual, y, z, map, out, win, geo, back, wide, accumulate, act, q_act, 64, tiles);
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

/* ---- weight gradient --------------------------------------------------------------------------------------------------------------------- */

/* Queues the copy of a stage: of dy, rows m0 ... and places from k on, and of x at the column's tap and channels. `line`, `image`, `run`: elements from row
 * to row of dy and from image to image, and places of an image that lie side by side. */
GK_FN void gk_weight_fetch(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, int k, int end, int have, gk_i64 line, gk_i64 image, int run, gk_offset o,
                           int column, gk_dims map, gk_dims out, gk_dims win, gk_dims geo, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, at = k + c * GK_PER_CHUNK, n = at / run;
    GK_GLOBAL const gk_t* from = dy + n * image + (at - n * run);
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int row = gk_lid() / 8 + 32 * i, exists = at < end && row < have;
        gk_copy16(to + gk_chunk_at(row, c, 128), exists ? from + row * line : dy, exists);
    }
    to += 1024;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int term = gk_lid() / 16 + 16 * i, e = -1;
        if (k + term < end && column >= 0) e = gk_element_of(gk_window_at(k + term, map, out, win, geo, 0), o, map, win, 0);
        gk_copy16(to + gk_chunk_at(term, gk_lid() % 16, GK_CONV_TERMS), e >= 0 ? x + e + column : x, e >= 0);
    }
}

/* part [splits, m, c, t]: a block has 128 rows, 128 columns (t, c; c below C) and `per` places. size = {column tiles, places per split, c, places of a run,
 * elements from row to row and from image to image of dy}. Launch: axis 0 = row tiles (fastest) x column tiles x splits. */
GK_KERNEL(conv_matrix_weight)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_OUT(gk_f, part), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), GK_DIMS(size))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES * 2048);
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_f, part);
    int rest = (int)(gk_bid(0) / out.v[4]), m0 = (int)(gk_bid(0) % out.v[4]) * 128, n0 = rest % (int)size.v[0] * 128, split = rest / (int)size.v[0];
    int channels = (int)map.v[3], taps = (int)(win.v[0] * win.v[1] * win.v[2]), r = (int)size.v[2], have = (int)out.v[3] - m0;
    int all = (int)(out.v[0] * out.v[1] * out.v[2] * map.v[4]), begin = split * (int)size.v[1];
    int end = begin + (int)size.v[1] < all ? begin + (int)size.v[1] : all, stages = (end - begin + GK_CONV_TERMS - 1) / GK_CONV_TERMS;
    int column = n0 + gk_lid() % 16 * GK_PER_CHUNK, tap = column / channels, row0 = gk_lid() / 32 * 16;
    gk_offset o = gk_offset_of(tap, win, geo);
    float sums[16][4];
    gk_frag_a left[GK_CONV_TERMS / GK_FRAG_TERMS];
    gk_mm_clear(sums, 128);
    dy += m0 * size.v[4];
    column = tap < taps ? column - tap * channels : -1;
    for (int n = 1 - GK_CONV_STAGES; n < stages; n++) {
        int next = n + GK_CONV_STAGES - 1;
        if (n >= 0) {
            GK_CONV_WAIT();
            GK_BARRIER();
        }
        if (next < stages)
            gk_weight_fetch(x, dy, begin + next * GK_CONV_TERMS, end, have, size.v[4], size.v[5], (int)size.v[3], o, column, map, out, win, geo,
                            tiles + next % GK_CONV_STAGES * 2048);
        GK_COPY_COMMIT();
        if (n < 0) continue;
        GK_LOCAL_PTR gk_raw16* a = tiles + n % GK_CONV_STAGES * 2048;
        GK_UNROLL for (int d = 0; d < GK_CONV_TERMS / GK_FRAG_TERMS; d++) left[d] = gk_load_a(a, 128, row0, d);
        gk_mm_terms_begin(sums, 128, left, a + 1024, GK_CONV_TERMS);
        GK_MM_WAIT(0);
        gk_mm_ready(sums, 128);
    }
    GK_UNROLL for (int j = 0; j < 16; j++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int m = m0 + row0 + GK_FRAG_ROW(e), at = n0 + 8 * j + GK_FRAG_COL(e), t = at / channels, c = at - t * channels;
            if (m < out.v[3] && t < taps && c < r) part[(((gk_i64)split * out.v[3] + m) * r + c) * taps + t] = sums[j][e];
        }
    }
}
