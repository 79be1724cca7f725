/* Adjoint of a convolution with strides of two across an image and few channels, without columns of windows; no groups, no dilation.
 *
 *   y[n, c, i] = act(scale * sum over channels k and taps t, where (i + pad - t) / 2 is whole, of w[k, c, t] * x[n, k, (i + pad - t) / 2]
 *                    + bias + residual[n, c, i])
 *
 * Four outputs of a channel, two by two, read the same places of x: a thread has those of four neighbouring places, reads a row of x that all of
 * them need once, and multiplies it by a row of weights for the four, with zeros where an output has no tap. A block has a tile of such places; what
 * it needs of x lies in local memory, a channel at a time, the next one on its way. Sums in gk_f in the order of channels, then taps.
 * Deterministic.
 * Reference: torch.nn.grad.conv2d_input, F.conv_transpose2d.
 *
 * img = {height, width, channels, `wide`: rows begin at multiples of four elements} of x, out = {height, width, channels, `wide`} of y,
 * tile = {quads and rows of a tile of places, tiles across and down, rows and columns of a window, rows and columns of it ahead of the place}.
 */
#include "window_table.h"

/* Room for other blocks while one waits for its channel. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Most runs of four elements of x, and most weights, of a channel. */
#define GK_FEW_RUNS 512
#define GK_FEW_WEIGHTS 512
#define GK_FEW_ROOM GK_SLOTS(4 * GK_FEW_RUNS + 4 + GK_FEW_WEIGHTS)

// Units: FLOATS
/* wt [channels of x, rows of a window, 2 rows of y, columns of a window, kept channels of y, 2 columns of y] of w [channels of x, of y, taps].
 * Launch: grid-stride over the n elements of wt. */
GK_KERNEL(conv_few_weights)(GK_IN(gk_t, w), GK_OUT(gk_f, wt), gk_i64 n, int channels, int keep, GK_DIMS(tile), GK_DIMS(win), GK_DIMS(geo))
{
    GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, wt);
    int rows = (int)tile.v[4], columns = (int)tile.v[5], high = (int)win.v[1], across = (int)win.v[2];
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int r = (int)i, pw = r % 2, c = r / 2 % keep, b = r / (2 * keep) % columns, line = r / (2 * keep * columns);
        int ph = line % 2, a = line / 2 % rows, k = line / (2 * rows);
        int h = ph + (int)geo.v[1] - 2 * ((int)tile.v[6] - rows + 1 + a), t = pw + (int)geo.v[2] - 2 * ((int)tile.v[7] - columns + 1 + b);
        gk_f v = GK_R(0.0);
        if (c < channels && h >= 0 && h < high && t >= 0 && t < across) v = gk_load(w, (((gk_i64)k * channels + c) * high + h) * across + t);
        wt[i] = v;
    }
}

/* What a thread copies of a channel: two runs of four elements of x, of which those from `begin` on and before `end` exist, at `from` in the
 * channel's map, to `to`, which is below 0 for none. */
typedef struct { int from[2], begin[2], end[2], to[2]; } gk_few_copies;

GK_FN gk_few_copies gk_few_copies_of(gk_dims img, gk_dims tile, int h0, int w0)
{
    gk_few_copies r;
    int runs = (int)tile.v[0] + 2, rows = (int)(tile.v[1] + tile.v[4]) - 1, width = (int)img.v[1];
    /* Runs begin at multiples of four, windows up to three columns behind. */
    int first = w0 & ~3, shift = w0 - first;
    GK_UNROLL for (int i = 0; i < 2; i++) {
        int at = gk_lid() + i * GK_BLOCK, row = at / runs, run = at - row * runs, h = h0 + row, w = first + 4 * run;
        r.to[i] = at < rows * runs ? 4 * at + 4 - shift : -1;
        r.from[i] = h * width + w;
        r.begin[i] = w < 0 ? -w : 0;
        r.end[i] = h >= 0 && h < img.v[0] && r.to[i] >= 0 ? (width - w < 4 ? width - w : 4) : 0;
    }
    return r;
}

/* A run of four elements, those from `begin` on and before `end`, zeros in place of the others. */
GK_FN gk_four gk_few_run(GK_GLOBAL const gk_t* x, gk_i64 from, int begin, int end, int wide)
{
    gk_four r = gk_run_zero();
#if GK_DTYPE == GK_F32
    if (wide) {
        if (begin == 0 && end == 4) r = gk_run(x + from);
        return r;
    }
#endif
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (u >= begin && u < end) r.v[u] = gk_load(x, from + u);
    return r;
}

/* The thread's runs of x, and four weights. */
typedef struct { gk_four x[2], w; } gk_few_next;

GK_FN gk_few_next gk_few_fetch(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_f* wt, const gk_few_copies* a, int weights, int wide)
{
    gk_few_next r;
    GK_UNROLL for (int i = 0; i < 2; i++) r.x[i] = gk_few_run(x, a->from[i], a->begin[i], a->end[i], wide);
    r.w = 4 * gk_lid() < weights ? gk_run(wt + 4 * gk_lid()) : gk_run_zero();
    return r;
}

GK_FN void gk_few_place(gk_few_next r, const gk_few_copies* a, int weights, GK_LOCAL_PTR gk_slot* room)
{
    GK_UNROLL for (int i = 0; i < 2; i++) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (a->to[i] >= 0) gk_slot_put(room, a->to[i] + u, r.x[i].v[u]);
    }
    if (4 * gk_lid() < weights) gk_slot_put4(room, 4 * (GK_FEW_RUNS + 1 + gk_lid()), r.w.v[0], r.w.v[1], r.w.v[2], r.w.v[3]);
}

/* Adds a channel's products. `rows` of the window, of which bit 2 a + ph of `taps` says whether row a has a tap for row ph of y; line: the thread's
 * first run, pitch: slots of a row. Places of weights are constants beyond a pointer: to work them out takes as long as the products. */
GK_FN void gk_few_multiply(gk_f sums[2][8][4], GK_LOCAL_PTR const gk_slot* line, GK_LOCAL_PTR const gk_slot* weights, int pitch, int rows,
                           gk_u32 taps, const int keep, const int columns)
{
    GK_ROLLED for (int a = 0; a < rows; a++, line += pitch) {
        gk_four x0 = gk_slot_get4(line, 0), x1 = gk_slot_get4(line, 4);
        gk_f x[8];
        GK_UNROLL for (int u = 0; u < 4; u++) { x[u] = x0.v[u]; x[u + 4] = x1.v[u]; }
        GK_UNROLL for (int ph = 0; ph < 2; ph++) {
            GK_LOCAL_PTR const gk_slot* from = weights;
            weights += GK_SLOTS(2 * keep * columns);
            if ((taps >> (2 * a + ph) & 1) == 0) continue;
            GK_UNROLL for (int i = 0; i < 2 * keep * columns; i += 4) {
                gk_four w = gk_slot_get4(from, i);
                GK_UNROLL for (int e = 0; e < 4; e++) {
                    GK_UNROLL for (int u = 0; u < 4; u++)
                        sums[ph][(i + e) % (2 * keep)][u] = gk_fma(w.v[e], x[(i + e) / (2 * keep) + u], sums[ph][(i + e) % (2 * keep)][u]);
                }
            }
        }
    }
}

typedef struct {
    GK_GLOBAL const gk_t *x, *scale, *bias, *residual;
    GK_GLOBAL const gk_f* wt;
    GK_GLOBAL gk_t *y, *z;
    gk_dims img, out, tile;
    gk_f p;
    int accumulate, act;
} gk_few;

/* Stores four outputs of channel c, of which `have` exist, that lie side by side from `first` on. Called, since a thread has up to 16 such runs. */
GK_FN_CALL void gk_few_store(const gk_few* v, gk_four r, int c, gk_i64 first, int have)
{
    gk_i64 at[4];
    GK_UNROLL for (int u = 0; u < 4; u++) at[u] = first + u;
    gk_conv_store(r, at, have, (int)v->out.v[3], c, v->scale, v->bias, v->residual, v->y, v->z, v->accumulate, v->act, v->p);
}

/* Stores what the place h and the four from w on have: two rows of eight outputs for each channel. */
GK_FN void gk_few_finish(const gk_few* v, gk_f sums[2][8][4], int n, int h, int w, const int keep)
{
    gk_i64 height = v->out.v[0], width = v->out.v[1], channels = v->out.v[2];
    GK_UNROLL for (int ph = 0; ph < 2; ph++) {
        GK_UNROLL for (int c = 0; c < keep; c++) {
            GK_UNROLL for (int side = 0; side < 2; side++) {
                int w2 = 2 * w + 4 * side, have = (int)width - w2 < 4 ? (int)width - w2 : 4;
                gk_four r;
                GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = sums[ph][2 * c + u % 2][2 * side + u / 2];
                if (c < channels && 2 * h + ph < height && have > 0)
                    gk_few_store(v, r, c, ((n * channels + c) * height + 2 * h + ph) * width + w2, have);
            }
        }
    }
}

/* A tile of outputs of `keep` channels (3, or 4), for windows of `columns` columns (2, or 4). */
GK_FN void gk_few_tile(const gk_few* v, gk_u32 taps, const int keep, const int columns, GK_LOCAL_PTR gk_slot* room)
{
    int across = (int)v->tile.v[2], rest = gk_bid(0) / across, n = rest / (int)v->tile.v[3];
    int quads = (int)v->tile.v[0], high = (int)v->tile.v[1], rows = (int)v->tile.v[4], channels = (int)v->img.v[2], wide = (int)v->img.v[3];
    int h0 = (rest - n * (int)v->tile.v[3]) * high, w0 = gk_bid(0) % across * quads * 4, row = gk_lid() / quads, quad = gk_lid() - row * quads;
    int exists = row < high, pitch = GK_SLOTS(4 * quads + 8), weights = rows * 4 * keep * columns;
    int at = GK_SLOTS(4) + (exists ? row : 0) * pitch + GK_SLOTS(4 * quad);
    gk_i64 plane = v->img.v[0] * v->img.v[1];
    GK_GLOBAL const gk_t* x = v->x + (gk_i64)n * channels * plane;
    GK_GLOBAL const gk_f* wt = v->wt;
    gk_few_copies copies = gk_few_copies_of(v->img, v->tile, h0 + (int)v->tile.v[6] - rows + 1, w0 + (int)v->tile.v[7] - (int)v->tile.v[5] + 1);
    gk_f sums[2][8][4];
    GK_UNROLL for (int i = 0; i < 16 * 4; i++) sums[i / 32][i / 4 % 8][i % 4] = GK_R(0.0);
    gk_few_place(gk_few_fetch(x, wt, &copies, weights, wide), &copies, weights, room);
    GK_BARRIER();
    for (int k = 0; k < channels; k++) {
        int more = k + 1 < channels;
        GK_LOCAL_PTR const gk_slot* now = room + k % 2 * GK_FEW_ROOM;
        gk_few_next next;
        x += plane;
        wt += weights;
        if (more) next = gk_few_fetch(x, wt, &copies, weights, wide);
        gk_few_multiply(sums, now + at, now + GK_SLOTS(4 * GK_FEW_RUNS + 4), pitch, rows, taps, keep, columns);
        if (more) gk_few_place(next, &copies, weights, room + (k + 1) % 2 * GK_FEW_ROOM);
        GK_BARRIER();
    }
    if (exists) gk_few_finish(v, sums, n, h0 + row, w0 + 4 * quad, keep);
}

/* `taps` as in gk_few_multiply. Launch: axis 0 = tiles across (fastest) x tiles down x images. */
GK_KERNEL(conv_few)(GK_IN(gk_t, x), GK_IN(gk_f, wt), GK_IN(gk_t, scale), GK_IN(gk_t, bias), GK_IN(gk_t, residual), GK_OUT(gk_t, y), GK_OUT(gk_t, z),
                    GK_DIMS(img), GK_DIMS(out), GK_DIMS(tile), int accumulate, int act, gk_f q_act, gk_u32 taps)
{
    GK_LOCAL gk_slot room[2 * GK_FEW_ROOM];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, wt); GK_BIND_IN(gk_t, scale); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, residual);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z);
    gk_few v;
    v.x = x; v.wt = wt; v.scale = scale; v.bias = bias; v.residual = residual; v.y = y; v.z = z;
    v.img = img; v.out = out; v.tile = tile; v.p = q_act; v.accumulate = accumulate; v.act = act;
    /* The host sends up to three channels to keep = 3. */
    if (out.v[2] > 3) gk_few_tile(&v, taps, 4, 4, room);
    else if (tile.v[5] > 2) gk_few_tile(&v, taps, 3, 4, room);
    else gk_few_tile(&v, taps, 3, 2, room);
}
