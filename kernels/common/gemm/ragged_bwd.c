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
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], gk_lid() == 0, err, code);
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

/* Column n of rows m ... of a D, eight, of which `have` exist: x += P^T Q. wide: the rows come in eights, as gk_load8 wants them. */
GK_FN void gk_ragged_few(gk_f x[8], GK_GLOBAL const gk_t* p, GK_GLOBAL const gk_t* q, gk_i64 rows, gk_dims sp, gk_dims sq, int have, const int wide)
{
    for (gk_i64 r = 0; r < rows; r += 4, p += 4 * sp.v[1], q += 4 * sq.v[1]) {
        gk_f a[4][8], b[4];
        GK_UNROLL for (int i = 0; i < 4; i++) {
            int exists = r + i < rows;
            b[i] = exists ? gk_load(q, i * sq.v[1]) : GK_R(0.0);
            gk_load8(a[i], exists ? p + i * sp.v[1] : p, sp.v[0], have, wide);
            /* What is read in its place may be infinite. */
            GK_UNROLL for (int u = 0; u < 8; u++) a[i][u] = exists ? a[i][u] : GK_R(0.0);
        }
        GK_UNROLL for (int i = 0; i < 4; i++) {
            GK_UNROLL for (int u = 0; u < 8; u++) x[u] += a[i][u] * b[i];
        }
    }
}

/* Each thread waits for its loads most of the time: many at once hide that. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3

/* size.v[4] neighbouring threads, 16 or 64, have as many columns of eight rows of a D, each one of them: they look at no other group and wait for nobody.
 * Launch: axis 0 = threads of tiles of D, columns fastest, then rows, groups. */
GK_KERNEL(gemm_ragged_bwd_by_group)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(int, offsets), GK_OUT(gk_o, d), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(sp),
                                    GK_DIMS(sq), GK_DIMS(sd), gk_f alpha, int accumulate, int code)
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_o, d); GK_BIND_OUT(int, err);
    int wide = (int)size.v[4], column = gk_lid() % wide, across = (int)((size.v[2] + wide - 1) / wide), down = (int)((size.v[1] + 7) / 8);
    gk_i64 team = (gk_i64)gk_bid(0) * (GK_BLOCK / wide) + gk_lid() / wide, tile = team / across, group = tile / down;
    gk_i64 m = tile % down * 8, n = team % across * wide + column;
    gk_f sums[8];
    if (group >= size.v[3] || n >= size.v[2]) return;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], column == 0, err, code);
    int have = size.v[1] - m < 8 ? (int)(size.v[1] - m) : 8;
    GK_UNROLL for (int i = 0; i < 8; i++) sums[i] = GK_R(0.0);
    p += m * sp.v[0] + rows.begin * sp.v[1];
    q += n * sq.v[0] + rows.begin * sq.v[1];
    if (have == 8 && sp.v[0] == 1 && !sp.v[3] && sp.v[4]) gk_ragged_few(sums, p, q, rows.end - rows.begin, sp, sq, 8, 1);
    else gk_ragged_few(sums, p, q, rows.end - rows.begin, sp, sq, have, 0);
    d += group * sd.v[2] + n * sd.v[1];
    GK_UNROLL for (int i = 0; i < 8; i++) {
        gk_i64 to = (m + i) * sd.v[0];
        if (i < have) gk_store_o(d, to, alpha * sums[i] + (accumulate ? gk_load_o(d, to) : GK_R(0.0)));
    }
}
