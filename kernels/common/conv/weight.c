/* Weight gradients of convolutions as gathered matrix products with a split sum.
 *
 *   dw[g, m, c] = sum over images n and places q of dy[n, g, m, q] * x[n, g, start(q) + plan[c]]        c: input channel and tap
 *
 * For a transposed convolution dy is its input and x its output's gradient. The sum over k = (n, q) is long and dw small: k is cut into `splits`
 * runs of `per` places, whose sums go to part [splits, groups, m, c]; conv_combine adds them in order. The plan is that of the forward, without weights.
 * conv_weight128, conv_weight64: one block per tile, all on grid axis 0: column tiles fastest, then row tiles, groups, splits.
 * Sums in gk_f in the order of k within a run. Deterministic. Reference: torch.nn.grad.conv2d_weight.
 */
#include "window_table.h"

/* A place that moves on by a fixed number of places: its coordinates, those of the distance, and the element of dy's first row. */
typedef struct { int n, d, h, w, bn, bd, bh, bw, depth, height, width; gk_i64 row, plane, image; int by; } gk_walk;

/* Place k of the map out = {depth, height, width, rows, groups, images}. */
GK_FN gk_walk gk_walk_from(int k, int by, gk_dims out, gk_i64 first_row)
{
    gk_walk s;
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

GK_FN void gk_walk_on(gk_walk* s)
{
    int n = s->n;
    s->w += s->bw; s->h += s->bh; s->d += s->bd; s->n += s->bn;
    if (s->w >= s->width) { s->w -= s->width; s->h++; }
    if (s->h >= s->height) { s->h -= s->height; s->d++; }
    if (s->d >= s->depth) { s->d -= s->depth; s->n++; }
    s->row += s->by + (s->n - n) * (s->image - s->plane);
}

GK_FN gk_column gk_walk_column(gk_walk s, gk_dims img, gk_dims step, gk_i64 g) { return gk_column_at(img, step, s.n, g, s.d, s.h, s.w); }

#if GK_DTYPE != GK_F64
#define GK_CONV_TILE(x) gk_w128_##x
#define GK_CONV_BM 128
#define GK_CONV_BN 128
#define GK_CONV_BK 8
#define GK_CONV_TM 8
#define GK_CONV_TN 8
#include "weight_tile.h"
#undef GK_CONV_TILE
#undef GK_CONV_BM
#undef GK_CONV_BN
#undef GK_CONV_BK
#undef GK_CONV_TM
#undef GK_CONV_TN
#endif

#define GK_CONV_TILE(x) gk_w64_##x
#define GK_CONV_BM 64
#define GK_CONV_BN 64
#define GK_CONV_BK 8
#define GK_CONV_TM 4
#define GK_CONV_TN 4
#include "weight_tile.h"
#undef GK_CONV_TILE
#undef GK_CONV_BM
#undef GK_CONV_BN
#undef GK_CONV_BK
#undef GK_CONV_TM
#undef GK_CONV_TN

/* size = {columns, splits, places per split, row tiles, column tiles, places}. */
#define GK_WEIGHT_BODY(tile_of, bm, bn, bk, tm, tn, per) \
    int block = gk_bid(0), lid = gk_lid(), n_cols = (int)size.v[0], m = (int)out.v[3]; \
    int n0 = block % (int)size.v[4] * bn, rest = block / (int)size.v[4], m0 = rest % (int)size.v[3] * bm; \
    rest /= (int)size.v[3]; \
    int g = rest % (int)out.v[4], split = rest / (int)out.v[4]; \
    int k0 = split * (int)size.v[2], k1 = k0 + (int)size.v[2] < (int)size.v[5] ? k0 + (int)size.v[2] : (int)size.v[5]; \
    for (int i = lid; i < bn; i += GK_BLOCK) { \
        gk_raw16 e = gk_make16(0u, 0u, 0u, (gk_u32)-GK_FAR); \
        if (n0 + i < n_cols) e = gk_load16((GK_GLOBAL const void*)(plan + (n0 + i + 1) * (gk_i64)4)); \
        cols[i] = e; \
    } \
    GK_BARRIER(); \
    gk_walk s = gk_walk_from(k0 + lid % bk, bk, out, (gk_i64)g * m + m0); \
    gk_f acc[tm][tn]; \
    tile_of##product(x, dy, cols, s, img, step, g, m - m0, k0, k1, tile, acc); \
    int row = m0 + tile_of##row(), col = n0 + tile_of##col(); \
    part += ((gk_i64)split * (int)out.v[4] + g) * m * n_cols; \
    GK_UNROLL for (int first = 0; first < tm * tn / 4; first += per) { \
        GK_UNROLL for (int q = 0; q < per; q++) { \
            int i = (first + q) / (tn / 4), u = (first + q) % (tn / 4) * 4; \
            gk_slot_put4(tile, (q * GK_BLOCK + lid) * 4, acc[i][u], acc[i][u + 1], acc[i][u + 2], acc[i][u + 3]); \
        } \
        GK_ROLL for (int q = 0; q < per; q++) { \
            int i = (first + q) / (tn / 4), u = (first + q) % (tn / 4); \
            gk_four v = gk_slot_get4(tile, (q * GK_BLOCK + lid) * 4); \
            int r = row + i / 4 * (bm / tm * 4) + i % 4, to = col + u * (bn / tn * 4); \
            if (r >= m) continue; \
            GK_UNROLL for (int j = 0; j < 4; j++) \
                if (to + j < n_cols) part[(gk_i64)r * n_cols + to + j] = v.v[j]; \
        } \
    }

#if GK_DTYPE != GK_F64
// Units: FLOATS
GK_KERNEL(conv_weight128)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_IN(int, plan), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(size))
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (132 + 132) * 8)];
    GK_LOCAL gk_raw16 cols[128];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, plan); GK_BIND_OUT(gk_f, part);
    GK_WEIGHT_BODY(gk_w128_, 128, 128, 8, 8, 8, 4)
}
#endif

// Units: FLOATS64
GK_KERNEL(conv_weight64)(GK_IN(gk_t, x), GK_IN(gk_t, dy), GK_IN(int, plan), GK_OUT(gk_f, part), GK_DIMS(img), GK_DIMS(out), GK_DIMS(step), GK_DIMS(size))
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (68 + 68) * 8)];
    GK_LOCAL gk_raw16 cols[64];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, plan); GK_BIND_OUT(gk_f, part);
    GK_WEIGHT_BODY(gk_w64_, 64, 64, 8, 4, 4, 2)
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
