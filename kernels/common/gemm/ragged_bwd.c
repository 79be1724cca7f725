/* Gradient of the matrices of ragged.c: D[g] = alpha P_g^T Q_g, or added to it, with the rows offsets[g] <= r < offsets[g + 1] of P [rows, M] and Q [rows,
 * N]; 0 for a group without rows.
 *
 * size = {rows, M, N, groups, columns of a block, -, 16-byte stores}; sp, sq: the columns of P and Q as sides of gemm.c, their rows being k; sd = {row,
 * column, group}. Products are accumulated in gk_f in the order of the rows. Deterministic. Reference: F.grouped_mm with groups along K.
 */
#include "operands.h"
#include "groups.h"

#define GK_TILE(x) gk_64_##x
#define GK_TILE_BM 64
#define GK_TILE_BN 64
#define GK_TILE_BK (GK_W > 4 ? 32 : 16)
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "tile.h"

/* Launch: axis 0 = tiles of 64 x 64, columns fastest, then rows, groups. */
// Units: FLOATS64
GK_KERNEL(gemm_ragged_bwd)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(int, offsets), GK_OUT(gk_o, d), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(sp), GK_DIMS(sq),
                           GK_DIMS(sd), gk_f alpha, int accumulate, int code)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 64) * (GK_W > 4 ? 32 : 16))];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_o, d); GK_BIND_OUT(int, err);
    gk_i64 down = (size.v[1] + 63) / 64, across = (size.v[2] + 63) / 64, at = gk_bid(0), group = at / across / down;
    gk_i64 m0 = at / across % down * 64, n0 = at % across * 64, row = m0 + gk_64_row(), col = n0 + gk_64_col();
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], err, code);
    gk_side left = gk_side_of(sp), right = gk_side_of(sq);
    gk_f acc[4][4];
    /* Groups start at any row, so vectors along k need not be aligned. */
    if (left.along && rows.begin % GK_W != 0) left.wide = 0;
    if (right.along && rows.begin % GK_W != 0) right.wide = 0;
    gk_64_product(p, q, size.v[1], size.v[2], m0, n0, rows.begin, rows.end, left, right, tile, acc);
    int have = size.v[2] - col < 4 ? (int)(size.v[2] - col) : 4;
    d += group * sd.v[2];
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_four x;
        gk_i64 to = (row + i) * sd.v[0] + col * sd.v[1];
        if (row + i >= size.v[1] || have <= 0) continue;
        GK_UNROLL for (int u = 0; u < 4; u++) {
            x.v[u] = alpha * acc[i][u];
            if (accumulate && u < have) x.v[u] += gk_load_o(d, to + u * sd.v[1]);
        }
        gk_store_four(d, to, sd.v[1], have, (int)size.v[6] & 1, x);
    }
}

/* Rows of the groups in a step. */
#define GK_SMALL_ROWS 16

/* A thread's numbers of a step of P and Q: of `terms` rows, `have` and `wide` columns. */
GK_FN void gk_few_load(gk_f* x, gk_f* y, GK_GLOBAL const gk_t* p, GK_GLOBAL const gk_t* q, gk_i64 left, const int per, const int step, int r, int have, int on,
                       gk_dims sp, gk_dims sq)
{
    int terms = left < GK_SMALL_ROWS ? (int)left : GK_SMALL_ROWS, lid = gk_lid();
    GK_UNROLL for (int i = 0; i < 4; i++) {
        x[i] = GK_R(0.0); y[i] = GK_R(0.0);
        if (lid / 64 + 4 * i < terms && lid % 64 < have) x[i] = gk_load(p, 4 * i * sp.v[1]);
        if (i < per && r + i * step < terms && on) y[i] = gk_load(q, i * step * sq.v[1]);
    }
}

/* The 64 rows of D from m0 on and `columns` (16 or 64) from n0 on: a thread has one column, and four rows or four times four. */
GK_FN void gk_ragged_few(GK_GLOBAL const gk_t* p, GK_GLOBAL const gk_t* q, GK_GLOBAL gk_o* d, gk_run rows, gk_i64 m0, gk_i64 n0, const int columns,
                         gk_dims size, gk_dims sp, gk_dims sq, gk_dims sd, gk_f alpha, int accumulate, GK_LOCAL_PTR gk_slot* tp, GK_LOCAL_PTR gk_f* tq)
{
    const int per = columns / 16, step = GK_BLOCK / columns;
    int lid = gk_lid(), c = lid % columns, r = lid / columns, have = size.v[1] - m0 < 64 ? (int)(size.v[1] - m0) : 64;
    int wide = size.v[2] - n0 < columns ? (int)(size.v[2] - n0) : columns;
    gk_i64 left = rows.end - rows.begin;
    gk_f acc[4][4], x[4], y[4];
    p += (rows.begin + lid / 64) * sp.v[1] + (m0 + lid % 64) * sp.v[0];
    q += (rows.begin + r) * sq.v[1] + (n0 + c) * sq.v[0];
    GK_UNROLL for (int u = 0; u < 16; u++) acc[u / 4][u % 4] = GK_R(0.0);
    gk_few_load(x, y, p, q, left, per, step, r, have, c < wide, sp, sq);
    /* Loops with barriers run at least once. The next step is on its way while one is added. */
    do {
        int terms = left < GK_SMALL_ROWS ? (int)left : GK_SMALL_ROWS;
        GK_UNROLL for (int i = 0; i < 4; i++) gk_slot_put(tp, lid + i * GK_BLOCK, x[i]);
        GK_UNROLL for (int i = 0; i < per; i++) tq[lid + i * GK_BLOCK] = y[i];
        GK_BARRIER();
        p += GK_SMALL_ROWS * sp.v[1];
        q += GK_SMALL_ROWS * sq.v[1];
        left -= GK_SMALL_ROWS;
        gk_few_load(x, y, p, q, left, per, step, r, have, c < wide, sp, sq);
        for (int t = 0; t < terms; t++) {
            gk_f f = tq[t * columns + c];
            GK_UNROLL for (int i = 0; i < per; i++) {
                gk_four v = gk_slot_get4(tp, t * 64 + (r + i * step) * 4);
                GK_UNROLL for (int u = 0; u < 4; u++) acc[i][u] += v.v[u] * f;
            }
        }
        GK_BARRIER();
    } while (left > 0);
    d += (m0 + 4 * r) * sd.v[0] + (n0 + c) * sd.v[1];
    GK_UNROLL for (int i = 0; i < per; i++) {
        GK_UNROLL for (int u = 0; u < 4; u++) {
            gk_i64 to = (4 * i * step + u) * sd.v[0];
            if (4 * (r + i * step) + u < have && c < wide) gk_store_o(d, to, alpha * acc[i][u] + (accumulate ? gk_load_o(d, to) : GK_R(0.0)));
        }
    }
}

/* Each block waits for its loads most of the time: many at once hide that. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 5

/* For groups of few rows: a block has 64 rows of D and size.v[4] columns, 16 or 64. Launch: axis 0 = tiles, columns fastest, then rows, groups. */
GK_KERNEL(gemm_ragged_bwd_by_group)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(int, offsets), GK_OUT(gk_o, d), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(sp),
                                    GK_DIMS(sq), GK_DIMS(sd), gk_f alpha, int accumulate, int code)
{
    GK_LOCAL gk_slot tp[GK_SLOTS(GK_SMALL_ROWS * 64)];
    GK_LOCAL gk_f tq[GK_SMALL_ROWS * 64];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_o, d); GK_BIND_OUT(int, err);
    int wide = (int)size.v[4], down = (int)((size.v[1] + 63) / 64), across = (int)((size.v[2] + wide - 1) / wide), at = gk_bid(0), tile = at / across;
    gk_i64 group = tile / down, m0 = (gk_i64)(tile % down) * 64, n0 = (gk_i64)(at % across) * wide;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], err, code);
    d += group * sd.v[2];
    if (wide == 16) gk_ragged_few(p, q, d, rows, m0, n0, 16, size, sp, sq, sd, alpha, accumulate, tp, tq);
    else gk_ragged_few(p, q, d, rows, m0, n0, 64, size, sp, sq, sd, alpha, accumulate, tp, tq);
}
