/* Weight gradients of convolutions as gathered matrix products with a split sum.
 *
 *   dw[g, m, c] = sum over images n and places q of dy[n, g, m, q] * x[n, g, start(q) + plan[c]]        c: input channel and tap
 *
 * For a transposed convolution dy is its input and x its output's gradient. The sum over k = (n, q) is long and dw small: k is cut into `splits`
 * runs of `per` places, whose sums go to part [splits, groups, m, c]; conv_combine adds them in order. The plan is that of the forward, without
 * weights. conv_weight128, conv_weight64: one block per tile, all on grid axis 0: column tiles fastest, then row tiles, groups, splits.
 * Sums in gk_f in the order of k within a run. Deterministic. Reference: torch.nn.grad.conv2d_weight.
 */
#include "window_table.h"

/* A place that moves on by a fixed number of places: its coordinates, those of the distance, and the element of dy's first row. */
typedef struct { int n, d, h, w, bn, bd, bh, bw, depth, height, width; gk_i64 row, plane, image; int by; } gk_position;

/* Place k of the map out = {depth, height, width, rows, groups, images}. */
GK_FN gk_position gk_position_at(int k, int by, gk_dims out, gk_i64 first_row)
{
    gk_position s;
    s.depth = (int)out.v[0]; s.height = (int)out.v[1]; s.width = (int)out.v[2];
    s.plane = out.v[0] * out.v[1] * out.v[2];
    s.image = s.plane * out.v[3] * out.v[4];
    int r = k / s.width;
    s.w = k - r * s.width; s.h = r % s.height; r /= s.height; s.d = r % s.depth; s.n = r / s.depth;
    s.by = by;
    r = by / s.width;
    s.bw = by - r * s.width; s.bh = r % s.height; r /= s.height; s.bd = r % s.depth; s.bn = r / s.depth;
    s.row = s.n * s.image + first_row * s.plane + ((gk_i64)s.d * s.height + s.h) * s.width + s.w;
    return s;
}

GK_FN void gk_position_next(gk_position* s)
{
    int n = s->n;
    s->w += s->bw; s->h += s->bh; s->d += s->bd; s->n += s->bn;
    if (s->w >= s->width) { s->w -= s->width; s->h++; }
    if (s->h >= s->height) { s->h -= s->height; s->d++; }
    if (s->d >= s->depth) { s->d -= s->depth; s->n++; }
    s->row += s->by + (s->n - n) * (s->image - s->plane);
}

GK_FN gk_column gk_position_column(gk_position s, gk_dims img, gk_dims step, gk_i64 g) { return gk_column_at(img, step, s.n, g, s.d, s.h, s.w); }

#if GK_DTYPE != GK_F64
#define GK_TILE(x) gk_w128_##x
#define GK_TILE_BM 128
#define GK_TILE_BN 128
#define GK_TILE_BK 8
#define GK_TILE_TM 8
#define GK_TILE_TN 8
#include "weight_tile.h"
#endif

#define GK_TILE(x) gk_w64_##x
#define GK_TILE_BM 64
#define GK_TILE_BN 64
#define GK_TILE_BK 8
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "weight_tile.h"

#if GK_DTYPE != GK_F64
// Units: FLOATS
/* size = {columns, splits, places per split, row tiles, column tiles, places}. */
GK_KERNEL(conv_weight128)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_IN(int, plan), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step),
                          GK_DIMS(size))
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (132 + 132) * 8)];
    GK_LOCAL gk_raw16 cols[128];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, plan); GK_BIND_OUT(gk_f, part);
    gk_w128_compute(x, dy, plan, part, img, out, step, size, tile, cols, 4);
}
#endif

// Units: FLOATS64
GK_KERNEL(conv_weight64)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_IN(int, plan), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step),
                         GK_DIMS(size))
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (68 + 68) * 8)];
    GK_LOCAL gk_raw16 cols[64];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, plan); GK_BIND_OUT(gk_f, part);
    gk_w64_compute(x, dy, plan, part, img, out, step, size, tile, cols, 2);
}

/* dw (+)= sum over `splits` of part, in order; 0 for none. Launch: grid-stride over the n elements of dw. */
GK_KERNEL(conv_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, dw), gk_i64 n, int splits, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, dw);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f sum = GK_R(0.0);
        for (int s = 0; s < splits; s++) sum += part[s * n + i];
        gk_store(dw, i, accumulate ? gk_load(dw, i) + sum : sum);
    }
}
