/* Products of groups of rows with matrices of their own. GK_OP is the type of Y and Z: gk_out_same (that of A) or gk_out_f32.
 *
 *   Z[r] = alpha A[r] B[g] + bias[g],  Y[r] = act(Z[r])  for the rows r of group g, offsets[g] <= r < offsets[g + 1]; 0 for rows of no group
 *
 * size = {rows, N, K, groups, columns of a block, -, 16-byte stores}; sa, sb: as in gemm.c, sb's batch stride leads from group to group; sv = {from group
 * to group of bias, -}; sy, sz = {row, column}. `bias` and `z` may be null. The rows before the first and after the last group are groups without products.
 * Products are accumulated in gk_f in the order of k. Deterministic. Reference: F.grouped_mm.
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

/* Operands, the same for all tiles. */
typedef struct {
    GK_GLOBAL const gk_t *a, *b, *bias;
    GK_GLOBAL gk_o *y, *z;
    gk_dims size, sa, sb, sv, sy, sz;
    gk_f alpha, p;
    int act;
} gk_ragged;

/* The tile of rows m0 ... of `group` up to `end`, and columns n0 ... */
GK_FN void gk_ragged_tile(const gk_ragged* q, gk_i64 group, gk_i64 m0, gk_i64 end, gk_i64 n0, GK_LOCAL_PTR gk_slot* tile)
{
    gk_f acc[4][4];
    int none = group < 0 || group >= q->size.v[3];
    gk_i64 row = m0 + gk_64_row(), col = n0 + gk_64_col(), have = q->size.v[1] - col, g = none ? 0 : group;
    gk_side side = gk_side_of(q->sa);
    /* Tiles of a group start at any row, so vectors along the rows need not be aligned. */
    if (!side.along && m0 % GK_W != 0) side.wide = 0;
    gk_64_product(q->a, q->b + g * q->sb.v[2], end, q->size.v[1], m0, n0, 0, none ? 0 : q->size.v[2], side, gk_side_of(q->sb), tile, acc);
    if (have > 4) have = 4;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_four x;
        if (row + i >= end || have <= 0) continue;
        GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = q->alpha * acc[i][u];
        if (q->bias && !none) {
            GK_UNROLL for (int u = 0; u < 4; u++)
                if (u < have) x.v[u] += gk_load(q->bias, g * q->sv.v[0] + col + u);
        }
        if (q->z) gk_store_four(q->z, (row + i) * q->sz.v[0] + col * q->sz.v[1], q->sz.v[1], (int)have, (int)q->size.v[6] & 2, x);
        if (!none) x = gk_activate(q->act, x, q->p);
        gk_store_four(q->y, (row + i) * q->sy.v[0] + col * q->sy.v[1], q->sy.v[1], (int)have, (int)q->size.v[6] & 1, x);
    }
}

#define GK_RAGGED_BIND() \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_IN(gk_t, bias); GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); \
    GK_BIND_OUT(int, err); \
    gk_ragged q; \
    q.a = a; q.b = b; q.bias = bias; q.y = y; q.z = z; q.size = size; q.sa = sa; q.sb = sb; q.sv = sv; q.sy = sy; q.sz = sz; \
    q.alpha = alpha; q.act = act; q.p = p

/* A block per tile of 64 x 64, columns fastest.
 * Launch: axis 0 = tiles; as many row tiles as any partition into groups can need. */
// Units: FLOATS64 x OUTPUTS
GK_KERNEL(gemm_ragged)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(int, err),
                       GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, int act, gk_f p, int code)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 64) * (GK_W > 4 ? 32 : 16))];
    GK_RAGGED_BIND();
    int tiles = (int)((size.v[1] + 63) / 64);
    gk_row_tile m = gk_row_tile_of(gk_bid(0) / tiles, 64, offsets, size.v[0], (int)size.v[3], err, code);
    gk_ragged_tile(&q, m.group, m.first, m.first + m.rows, (gk_i64)(gk_bid(0) % tiles) * 64, tile);
}

/* ---- many small groups --------------------------------------------------------------------------------------------------------- */

/* Column n of rows m ... of group g, of which `have` exist, up to four: x += A B. wa, wb: whether terms of A and B come in eights, as gk_load8 wants them.
 * */
GK_FN void gk_ragged_few(gk_four* x, const gk_ragged* q, gk_i64 g, gk_i64 m, int have, gk_i64 n, const int wa, const int wb)
{
    GK_GLOBAL const gk_t *left = q->a + m * q->sa.v[0], *right = q->b + g * q->sb.v[2] + n * q->sb.v[0];
    for (gk_i64 k = 0; k < q->size.v[2]; k += 8, left += 8 * q->sa.v[1], right += 8 * q->sb.v[1]) {
        int rest = q->size.v[2] - k < 8 ? (int)(q->size.v[2] - k) : 8;
        gk_f a[4][8], b[8];
        gk_load8(b, right, q->sb.v[1], rest, wb);
        /* Rows that do not exist are read as the last one that does. */
        GK_UNROLL for (int i = 0; i < 4; i++) gk_load8(a[i], left + (i < have ? i : have - 1) * q->sa.v[0], q->sa.v[1], rest, wa);
        GK_UNROLL for (int t = 0; t < 8; t++) {
            GK_UNROLL for (int i = 0; i < 4; i++) x->v[i] += a[i][t] * b[t];
        }
    }
}

/* Each thread waits for its loads most of the time: many at once hide that. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3

/* size.v[4] neighbouring threads, 16 or 64, have as many columns of a group, each one of them for all rows: they look at no other group and wait for
 * nobody.
 * Launch: axis 0 = threads of groups + 2, columns fastest. */
GK_KERNEL(gemm_ragged_by_group)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(int, err),
                                GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    int wide = (int)size.v[4], column = gk_lid() % wide, tiles = (int)((size.v[1] + wide - 1) / wide);
    gk_i64 team = (gk_i64)gk_bid(0) * (GK_BLOCK / wide) + gk_lid() / wide, group = team / tiles - 1, n = team % tiles * wide + column, groups = size.v[3];
    if (group > groups || n >= size.v[1]) return;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], groups, column == 0, err, code);
    int none = group < 0 || group == groups, eights = size.v[2] % 8 == 0, wa = eights && sa.v[3] && sa.v[4], wb = eights && sb.v[3] && sb.v[4];
    gk_f add = bias && !none ? gk_load(bias, group * sv.v[0] + n) : GK_R(0.0);
    for (gk_i64 m = rows.begin; m < rows.end; m += 4) {
        int have = rows.end - m < 4 ? (int)(rows.end - m) : 4;
        gk_four x;
        GK_UNROLL for (int i = 0; i < 4; i++) x.v[i] = GK_R(0.0);
        if (!none) {
            if (wa && wb) gk_ragged_few(&x, &q, group, m, have, n, 1, 1);
            else if (wa) gk_ragged_few(&x, &q, group, m, have, n, 1, 0);
            else gk_ragged_few(&x, &q, group, m, have, n, 0, 0);
        }
        GK_UNROLL for (int i = 0; i < 4; i++) {
            x.v[i] = alpha * x.v[i] + add;
            if (z && i < have) gk_store_o(z, (m + i) * sz.v[0] + n * sz.v[1], x.v[i]);
        }
        if (!none) x = gk_activate(act, x, p);
        GK_UNROLL for (int i = 0; i < 4; i++)
            if (i < have) gk_store_o(y, (m + i) * sy.v[0] + n * sy.v[1], x.v[i]);
    }
}
