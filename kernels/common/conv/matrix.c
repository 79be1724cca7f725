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

/* Room for two blocks on an SM: while one waits for its copies the other multiplies. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

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

/* A divisor below 2^31 (1 in place of none) and its reciprocal: quotients of many numbers cost five instructions each. */
typedef struct { int d; gk_u32 reciprocal; } gk_divisor;
GK_FN gk_divisor gk_divisor_of(gk_i64 d)
{
    gk_divisor r;
    r.d = d > 0 ? (int)d : 1; r.reciprocal = 0xffffffffu / (gk_u32)r.d;
    return r;
}
/* n / d of a non-negative n: the product is the quotient or one less. */
GK_FN int gk_divide(int n, gk_divisor d)
{
    int q = (int)gk_mulhi((gk_u32)n, d.reciprocal);
    return n - q * d.d >= d.d ? q + 1 : q;
}

/* How windows lie along an axis, for places of y of the same `phase` modulo the stride (of an adjoint; all places of a convolution): `size` of them, of
 * which number i begins at place i * advance + begin of x and has `count` taps, `dilation` apart: the window's taps first, first + step, ... */
typedef struct { int phase, size, advance, begin, first, step, count, dilation; } gk_axis;

GK_FN gk_axis gk_axis_of(int phase, int out, int taps, int stride, int pad, int dilation, const int back)
{
    gk_axis a;
    a.phase = 0; a.size = out; a.advance = stride; a.begin = -pad; a.first = 0; a.step = 1; a.count = taps; a.dilation = dilation;
    if (back) {
        /* Tap t meets x where place + pad - t * dilation is a multiple of the stride. */
        int t = 0, u = 1;
        while (t < taps && (phase + pad - t * dilation) % stride != 0) t++;
        while (u * dilation % stride != 0) u++;
        a.phase = phase; a.size = (out - phase + stride - 1) / stride; a.advance = 1;
        a.first = t; a.step = u; a.count = t < taps ? (taps - t + u - 1) / u : 0;
        a.begin = (phase + pad - t * dilation) / stride; a.dilation = -(u * dilation / stride);
    }
    return a;
}

/* The axes, taps of a window and places of an image (a phase may have none), and how numbers of places split into images and places along the axes. */
typedef struct { gk_axis d, h, w; int taps, places; gk_divisor plane, height, width; } gk_windows;

GK_FN gk_windows gk_windows_of(int phase, gk_dims out, gk_dims win, gk_dims geo, const int back)
{
    gk_windows a;
    int r = phase / (int)win.v[5], pw = phase - r * (int)win.v[5], pd = r / (int)win.v[4], ph = r - pd * (int)win.v[4];
    a.d = gk_axis_of(pd, (int)out.v[0], (int)win.v[0], (int)win.v[3], (int)geo.v[0], (int)geo.v[3], back);
    a.h = gk_axis_of(ph, (int)out.v[1], (int)win.v[1], (int)win.v[4], (int)geo.v[1], (int)geo.v[4], back);
    a.w = gk_axis_of(pw, (int)out.v[2], (int)win.v[2], (int)win.v[5], (int)geo.v[2], (int)geo.v[5], back);
    a.taps = a.d.count * a.h.count * a.w.count;
    if (a.taps == 0) a.h.count = a.w.count = 1;
    a.places = a.d.size * a.h.size * a.w.size;
    a.plane = gk_divisor_of(a.places); a.height = gk_divisor_of(a.h.size); a.width = gk_divisor_of(a.w.size);
    return a;
}

/* A place of y: its image and its numbers along the axes. */
typedef struct { int n, d, h, w; } gk_place;
GK_FN gk_place gk_place_of(int q, const gk_windows* a)
{
    gk_place p;
    int i, r;
    p.n = gk_divide(q, a->plane); i = q - p.n * a->plane.d;
    r = gk_divide(i, a->width); p.w = i - r * a->width.d;
    p.d = gk_divide(r, a->height); p.h = r - p.d * a->height.d;
    return p;
}

/* On by n places. */
GK_FN void gk_place_on(gk_place* p, int n, const gk_windows* a)
{
    for (p->w += n; p->w >= a->w.size; p->w -= a->w.size) {
        int end = ++p->h == a->h.size;
        if (end) p->h = 0;
        end = end && ++p->d == a->d.size;
        if (end) { p->d = 0; p->n++; }
    }
}

/* Far outside every map. */
#define GK_NOWHERE (-0x10000000)

/* Where a window begins in x, along the axes and as an element, channel 0, which need not exist; and what a tap adds to it. */
typedef struct { int element, d, h, w; } gk_window;

GK_FN int gk_element(int d, int h, int w, gk_dims map) { return ((d * (int)map.v[1] + h) * (int)map.v[2] + w) * (int)map.v[3]; }

GK_FN gk_window gk_window_at(gk_place p, const gk_windows* a, gk_dims map)
{
    gk_window x;
    x.d = p.d * a->d.advance + a->d.begin; x.h = p.h * a->h.advance + a->h.begin; x.w = p.w * a->w.advance + a->w.begin;
    x.element = p.n * (int)(map.v[0] * map.v[1] * map.v[2] * map.v[3]) + gk_element(x.d, x.h, x.w, map);
    if (p.n >= map.v[4]) x.d = GK_NOWHERE;
    return x;
}

/* What number j of the windows' taps adds. */
GK_FN gk_window gk_tap_of(int j, const gk_windows* a, gk_dims map)
{
    gk_window x;
    int across = a->w.count, down = a->h.count, r = j / across, w = j - r * across, d = r / down, h = r - d * down;
    x.d = d * a->d.dilation; x.h = h * a->h.dilation; x.w = w * a->w.dilation;
    x.element = gk_element(x.d, x.h, x.w, map);
    return x;
}

/* Whether a window's tap meets x, at element a.element + tap.element of channel 0. */
GK_FN int gk_meets(gk_window a, gk_window tap, gk_dims map)
{
    int d = a.d + tap.d, h = a.h + tap.h, w = a.w + tap.w;
    return ((gk_u32)d < (gk_u32)map.v[0]) & ((gk_u32)h < (gk_u32)map.v[1]) & ((gk_u32)w < (gk_u32)map.v[2]);
}

/* ---- forward and adjoint ----------------------------------------------------------------------------------------------------------------- */

/* Operands, those that are not needed null, and the parameters of the kernels. */
typedef struct {
    GK_GLOBAL const gk_t *x, *wt, *scale, *bias, *residual;
    GK_GLOBAL gk_t *y, *z;
    gk_dims map, out, win, geo;
    gk_f p;
    int wide, accumulate, act;
} gk_conv;

/* The thread's term of a stage: its channel, the number of its tap along the axes, and of all terms. */
typedef struct { int channel, d, h, w, term; } gk_walk;

/* On by n terms: a stage, or to the thread's chunk of the first one. Divisions would take longer than the products. */
GK_FN void gk_walk_on(gk_walk* t, int n, const gk_windows* a, int channels)
{
    t->term += n;
    for (t->channel += n; t->channel >= channels; t->channel -= channels) {
        int end = ++t->w == a->w.count;
        if (end) t->w = 0;
        end = end && ++t->h == a->h.count;
        if (end) { t->h = 0; t->d++; }
    }
}

/* Queues the copy of the stage of `terms` at which `t` stands: of weights, rows m0 ..., of which `have` exist, and of the tile's windows. */
GK_FN void gk_conv_fetch(const gk_conv* v, const gk_windows* a, const gk_window* at, const gk_walk* t, int terms, int m0, int have, int channels,
                         const int rows, const int back, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, r = gk_lid() / 8, within = t->term < terms, from = t->term;
    gk_i64 line = v->win.v[0] * v->win.v[1] * v->win.v[2] * channels;
    gk_window offset;
    offset.d = t->d * a->d.dilation; offset.h = t->h * a->h.dilation; offset.w = t->w * a->w.dilation;
    offset.element = gk_element(offset.d, offset.h, offset.w, v->map);
    if (back) {
        int tap = ((a->d.first + t->d * a->d.step) * (int)v->win.v[1] + a->h.first + t->h * a->h.step) * (int)v->win.v[2] + a->w.first + t->w * a->w.step;
        from = tap * channels + t->channel;
    }
    GK_GLOBAL const gk_t *x = v->x + t->channel, *wt = v->wt + m0 * line + from;
    GK_UNROLL for (int i = 0; i < rows / 32; i++) {
        int row = r + 32 * i;
        gk_copy16(to + gk_chunk_at(row, c, rows), wt + row * line, within && row < have);
    }
    to += rows * 8;
    GK_UNROLL for (int i = 0; i < 512 / rows; i++) {
        int place = r + 32 * i;
        gk_copy16(to + place / 128 * 1024 + gk_chunk_at(place % 128, c, 128), x + (at[i].element + offset.element),
                  within && gk_meets(at[i], offset, v->map));
    }
}

/* Results of a tile at row m0 and place q0, by runs of four places that lie in local memory meanwhile. */
GK_FN void gk_conv_finish(const gk_conv* v, const gk_windows* a, float (*sums)[4], int m0, int q0, const int rows, const int back,
                          GK_LOCAL_PTR float* spill)
{
    int count = a->places * (int)v->map.v[4], row0 = gk_lid() / 32 * 16, apart = back && (v->win.v[3] > 1 || v->win.v[4] > 1 || v->win.v[5] > 1);
    gk_i64 plane = v->out.v[0] * v->out.v[1] * v->out.v[2];
    GK_UNROLL for (int first = 0; first < 128; first += GK_CONV_SPILL) {
        GK_BARRIER();
        GK_UNROLL for (int j = 0; j < GK_CONV_SPILL / 8; j++) {
            GK_UNROLL for (int e = 0; e < 4; e++) spill[(row0 + GK_FRAG_ROW(e)) * GK_CONV_PITCH + 8 * j + GK_FRAG_COL(e)] = sums[first / 8 + j][e];
        }
        GK_BARRIER();
        /* A thread has the same places in every 16th row. */
        GK_UNROLL for (int side = 0; side < 128 / rows; side++) {
            int q = q0 + side * 128 + first + gk_lid() % 16 * 4, left = count - q < 4 ? count - q : 4, m = m0 + gk_lid() / 16;
            gk_place p = gk_place_of(q, a);
            gk_i64 to[4];
            GK_UNROLL for (int u = 0; u < 4; u++) {
                int d = a->d.phase + p.d * (int)v->win.v[3], h = a->h.phase + p.h * (int)v->win.v[4], w = a->w.phase + p.w * (int)v->win.v[5];
                if (!apart) { d = p.d; h = p.h; w = p.w; }
                to[u] = (p.n * v->out.v[3] + m) * plane + ((gk_i64)d * v->out.v[1] + h) * v->out.v[2] + w;
                gk_place_on(&p, 1, a);
            }
            if (left <= 0) continue;
            for (int line = gk_lid() / 16; line < rows && m < v->out.v[3]; line += 16, m += 16) {
                gk_raw16 r = *(GK_LOCAL_PTR const gk_raw16*)(spill + (side * rows + line) * GK_CONV_PITCH + gk_lid() % 16 * 4);
                gk_four x;
                x.v[0] = gk_as_f32(r.x); x.v[1] = gk_as_f32(r.y); x.v[2] = gk_as_f32(r.z); x.v[3] = gk_as_f32(r.w);
                gk_conv_store(x, to, left, v->wide, m, v->scale, v->bias, v->residual, v->y, v->z, v->accumulate, v->act, v->p);
                GK_UNROLL for (int u = 0; u < 4; u++) to[u] += 16 * plane;
            }
        }
    }
}

/* A tile of 128 rows and 128 places, or of 64 rows and 256 places, of which each half of the warps has one. */
GK_FN void gk_conv_tile(const gk_conv* v, const int back, const int rows, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int places = 16384 / rows, chunks = (rows + places) * 8;
    int number = (int)(gk_bid(0) / v->out.v[4]), m0 = (int)(gk_bid(0) % v->out.v[4]) * rows, q0 = number % (int)v->out.v[5] * places;
    int have = (int)v->out.v[3] - m0, row0 = gk_lid() / 32 * 16 % rows, side = gk_lid() / 32 * 16 / rows;
    gk_windows a = gk_windows_of(number / (int)v->out.v[5], v->out, v->win, v->geo, back);
    int channels = (int)v->map.v[3];
    gk_walk t = {0, 0, 0, 0, 0};
    /* Behind the last place there is nothing to do. */
    int terms = q0 < a.places * (int)v->map.v[4] ? a.taps * channels : 0, stages = (terms + GK_CONV_TERMS - 1) / GK_CONV_TERMS;
    float sums[16][4];
    gk_window at[8];
    GK_UNROLL for (int i = 0; i < 512 / rows; i++) at[i] = gk_window_at(gk_place_of(q0 + gk_lid() / 8 + 32 * i, &a), &a, v->map);
    gk_mm_clear(sums, 128);
    gk_walk_on(&t, gk_lid() % 8 * GK_PER_CHUNK, &a, channels);
    for (int n = 1 - GK_CONV_STAGES; n < stages; n++) {
        int next = n + GK_CONV_STAGES - 1;
        GK_LOCAL_PTR gk_raw16 *now = tiles + (n + GK_CONV_STAGES) % GK_CONV_STAGES * chunks, *then = tiles + next % GK_CONV_STAGES * chunks;
        if (n >= 0) {
            GK_CONV_WAIT();
            GK_BARRIER();
            gk_mm_tiles_add(sums, 128, now, rows, row0, GK_CONV_TERMS, now + rows * 8 + side * 1024);
            /* The stage before is done; the next one takes its place while this one is multiplied. */
            GK_MM_WAIT(1);
            GK_BARRIER();
        }
        if (next < stages) gk_conv_fetch(v, &a, at, &t, terms, m0, have, channels, rows, back, then);
        gk_walk_on(&t, GK_CONV_TERMS, &a, channels);
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_mm_ready(sums, 128);
    gk_conv_finish(v, &a, sums, m0, q0, rows, back, (GK_LOCAL_PTR float*)tiles);
}

#define GK_CONV_BIND() \
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, wt); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual); GK_BIND_OUT(gk_t, y); \
    GK_BIND_OUT(gk_t, z); \
    gk_conv v; \
    v.x = x; v.wt = wt; v.scale = scale; v.bias = bias; v.residual = residual; v.y = y; v.z = z; \
    v.map = map; v.out = out; v.win = win; v.geo = geo; v.p = q_act; v.wide = wide; v.accumulate = accumulate; v.act = act

#define GK_CONV_TILE(rows) \
    if (back) gk_conv_tile(&v, 1, rows, tiles); \
    else gk_conv_tile(&v, 0, rows, tiles)

// Units: HALVES
/* out.v[5] = tiles of places of a phase, at most. Launch: axis 0 = row tiles (fastest) x tiles of places of all images x phases: an adjoint has as many as
 * the product of its strides. `wide`: runs of four places lie side by side in one image and are aligned for them. */
GK_KERNEL(conv_matrix128)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES * 2048);
    GK_CONV_BIND();
    GK_CONV_TILE(128);
}

GK_KERNEL(conv_matrix64)(GK_IN(gk_t, x), GK_IN(gk_t, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y),
                         GK_OUT(gk_t, z), GK_DIMS(map), GK_DIMS(out), GK_DIMS(win), GK_DIMS(geo), int back, int wide, int accumulate, int act, gk_f q_act)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_CONV_STAGES * 2560);
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

/* ---- weight gradient --------------------------------------------------------------------------------------------------------------------- */

/* dy: elements from row to row and from image to image, and places of an image that lie side by side. */
typedef struct { gk_i64 line, image; gk_divisor run; } gk_rows_of_dy;

/* Queues the copy of a stage: of dy, rows m0 ... and places from k on, and of x at the column's tap and channels; p is the place of the thread's first
 * term, and moves on to that of the next stage. */
GK_FN void gk_weight_fetch(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, int k, int end, int have, gk_rows_of_dy rows, gk_window tap, int column,
                           gk_place* p, const gk_windows* a, gk_dims map, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, at = k + c * GK_PER_CHUNK, n = gk_divide(at, rows.run);
    GK_GLOBAL const gk_t* from = dy + n * rows.image + (at - n * rows.run.d);
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int row = gk_lid() / 8 + 32 * i, exists = at < end && row < have;
        gk_copy16(to + gk_chunk_at(row, c, 128), exists ? from + row * rows.line : dy, exists);
    }
    to += 1024;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int term = gk_lid() / 16 + 16 * i;
        gk_window at = gk_window_at(*p, a, map);
        gk_copy16(to + gk_chunk_at(term, gk_lid() % 16, GK_CONV_TERMS), x + (at.element + tap.element + column),
                  k + term < end && column >= 0 && gk_meets(at, tap, map));
        gk_place_on(p, 16, a);
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
    gk_windows a = gk_windows_of(0, out, win, geo, 0);
    gk_window offset = gk_tap_of(tap, &a, map);
    gk_place at = gk_place_of(begin + gk_lid() / 16, &a);
    gk_rows_of_dy rows;
    float sums[16][4];
    gk_mm_clear(sums, 128);
    rows.line = size.v[4]; rows.image = size.v[5]; rows.run = gk_divisor_of(size.v[3]);
    dy += m0 * size.v[4];
    column = tap < taps ? column - tap * channels : -1;
    for (int n = 1 - GK_CONV_STAGES; n < stages; n++) {
        int next = n + GK_CONV_STAGES - 1;
        GK_LOCAL_PTR gk_raw16 *now = tiles + (n + GK_CONV_STAGES) % GK_CONV_STAGES * 2048, *then = tiles + next % GK_CONV_STAGES * 2048;
        if (n >= 0) {
            GK_CONV_WAIT();
            GK_BARRIER();
            gk_mm_tiles_by(sums, 128, now, 128, row0, 0, GK_CONV_TERMS, now + 1024, 1);
            GK_MM_WAIT(1);
            GK_BARRIER();
        }
        if (next < stages)
            gk_weight_fetch(x, dy, begin + next * GK_CONV_TERMS, end, have, rows, offset, column, &at, &a, map, then);
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_mm_ready(sums, 128);
    GK_UNROLL for (int j = 0; j < 16; j++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int m = m0 + row0 + GK_FRAG_ROW(e), at = n0 + 8 * j + GK_FRAG_COL(e), t = at / channels, c = at - t * channels;
            if (m < out.v[3] && t < taps && c < r) part[(((gk_i64)split * out.v[3] + m) * r + c) * taps + t] = sums[j][e];
        }
    }
}
