/* Convolution on meshes as a product: the features of an element and its neighbours side by side.
 *
 *   blocks of C columns, J of them, per element e:   concat  x[e], x[n_1], ..., x[n_n];   symmetric  x[e], |a - c|, a + c, |b - d|, b + d with the
 *   neighbours a, b, c, d (Hanocka et al., 2019: MeshCNN);   spiral  x[s_0], ..., x[s_(L-1)] (Bouritsas et al., 2019)
 *
 * A neighbour of -1 counts as 0; another one outside [0, elements) does too and is reported. Launch: `lanes` threads, a power of two, take the J
 * blocks of one element and lanes * w columns, w = GK_W where `wide`; axis 1 of the grid covers the columns, axis 2 over the batch.
 * Movement (and one rounding in symmetric); deterministic.
 */
#include "common/graph/graph.h"

#define GK_CONCAT 0
#define GK_SYMMETRIC 1
#define GK_SPIRAL 2

GK_FN gk_vec gk_neighbour(GK_GLOBAL const gk_t* x, GK_GLOBAL const int* list, gk_i64 at, gk_i64 base, gk_i64 elements, gk_i64 width, int wide_index,
                          int wide, GK_GLOBAL int* err, int code)
{
    gk_i64 i = gk_index(list, at, wide_index);
    if (i < -1 || i >= elements) gk_report(err, code);
    if (i >= 0 && i < elements) return gk_row_get(x, base + i * width, wide);
    return gk_splat(GK_R(0.0));
}

// Units: FLOATS64
/* f [batch, elements, J, width] of x [batch, elements, width]; list [elements, ways]. */
GK_KERNEL(mesh_gather)(GK_IN(gk_t, x), GK_IN(int, list), GK_OUT(gk_t, f), GK_OUT(int, err), gk_i64 elements, gk_i64 width, int ways, gk_i64 batch,
                       int mode, int lanes, int wide_index, int wide, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, list); GK_BIND_OUT(gk_t, f); GK_BIND_OUT(int, err);
    int w = wide ? GK_W : 1, blocks = mode == GK_SYMMETRIC ? 5 : mode == GK_CONCAT ? ways + 1 : ways;
    gk_i64 per = GK_BLOCK / lanes, column = ((gk_i64)gk_bid(1) * lanes + gk_lid() % lanes) * w;
    gk_i64 last = column < width ? elements : 0;
    for (gk_i64 b = gk_bid(2); b < batch; b += gk_nblocks(2)) {
        gk_i64 base = b * elements * width + column;
        for (gk_i64 e = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; e < last; e += (gk_i64)gk_nblocks(0) * per) {
            gk_i64 to = (b * elements + e) * blocks * width + column;
            if (mode != GK_SPIRAL) {
                gk_row_put(f, to, gk_row_get(x, base + e * width, wide), wide);
                to += width;
            }
            if (mode == GK_SYMMETRIC) {
                GK_UNROLL for (int k = 0; k < 2; k++) {
                    gk_vec p = gk_neighbour(x, list, e * 4 + k, base, elements, width, wide_index, wide, err, code);
                    gk_vec q = gk_neighbour(x, list, e * 4 + k + 2, base, elements, width, wide_index, wide, err, code), d;
                    GK_UNROLL for (int l = 0; l < GK_W; l++) {
                        d.v[l] = gk_fabs(p.v[l] - q.v[l]);
                        p.v[l] = p.v[l] + q.v[l];
                    }
                    gk_row_put(f, to + 2 * k * width, d, wide);
                    gk_row_put(f, to + (2 * k + 1) * width, p, wide);
                }
            } else {
                for (int j = 0; j < ways; j += 4) {
                    gk_vec v[4];
                    GK_UNROLL for (int k = 0; k < 4; k++) {
                        if (j + k < ways) v[k] = gk_neighbour(x, list, e * ways + j + k, base, elements, width, wide_index, wide, err, code);
                    }
                    GK_UNROLL for (int k = 0; k < 4; k++) {
                        if (j + k < ways) gk_row_put(f, to + (j + k) * width, v[k], wide);
                    }
                }
            }
        }
    }
}

/* The gradient of the symmetric features, in place: the blocks of df, in gk_f, become those of x[e], a, b, c and d. sign(0) = 0. */
GK_KERNEL(mesh_unfold)(GK_IN(gk_t, x), GK_IN(int, list), GK_OUT(gk_f, df), GK_OUT(int, err), gk_i64 elements, gk_i64 width, gk_i64 batch, int lanes,
                       int wide_index, int wide, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, list); GK_BIND_OUT(gk_f, df); GK_BIND_OUT(int, err);
    int w = wide ? GK_W : 1;
    gk_i64 per = GK_BLOCK / lanes, column = ((gk_i64)gk_bid(1) * lanes + gk_lid() % lanes) * w;
    gk_i64 last = column < width ? elements : 0;
    for (gk_i64 b = gk_bid(2); b < batch; b += gk_nblocks(2)) {
        gk_i64 base = b * elements * width + column;
        for (gk_i64 e = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; e < last; e += (gk_i64)gk_nblocks(0) * per) {
            gk_i64 at = (b * elements + e) * 5 * width + column;
            gk_vec d[2], s[2], r[4];
            GK_UNROLL for (int k = 0; k < 2; k++) {
                gk_vec p = gk_neighbour(x, list, e * 4 + k, base, elements, width, wide_index, wide, err, code);
                gk_vec q = gk_neighbour(x, list, e * 4 + k + 2, base, elements, width, wide_index, wide, err, code);
                d[k] = gk_part_get(df, at + (1 + 2 * k) * width, wide);
                s[k] = gk_part_get(df, at + (2 + 2 * k) * width, wide);
                GK_UNROLL for (int l = 0; l < GK_W; l++) {
                    gk_f diff = p.v[l] - q.v[l], g = diff > GK_R(0.0) ? d[k].v[l] : diff < GK_R(0.0) ? -d[k].v[l] : diff == GK_R(0.0) ? GK_R(0.0)
                        : diff;
                    r[k].v[l] = s[k].v[l] + g;
                    r[k + 2].v[l] = s[k].v[l] - g;
                }
            }
            GK_UNROLL for (int k = 0; k < 4; k++) gk_part_put(df, at + (1 + k) * width, r[k], wide);
        }
    }
}
