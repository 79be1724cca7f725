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

/* Rows and terms of a step. */
#define GK_SMALL_ROWS 16
#define GK_SMALL_TERMS 32
#define GK_SMALL_PITCH 36

/* Rows m0 ... of a group up to `end` and `columns` (16 or 64) from n0 on: a thread has one column, and one or four rows. */
GK_FN void gk_ragged_few(const gk_ragged* q, gk_i64 group, gk_i64 m0, gk_i64 end, gk_i64 n0, const int columns, GK_LOCAL_PTR gk_slot* ta, GK_LOCAL_PTR gk_f* tb)
{
    const int per = GK_SMALL_ROWS * columns / GK_BLOCK, rows = GK_BLOCK / columns, pitch = columns + 1;
    int lid = gk_lid(), c = lid % columns, r = lid / columns, none = group < 0 || group >= q->size.v[3], down = q->sb.v[1] == 1;
    int have = end - m0 < GK_SMALL_ROWS ? (int)(end - m0) : GK_SMALL_ROWS, wide = q->size.v[1] - n0 < columns ? (int)(q->size.v[1] - n0) : columns;
    /* Neighbouring threads read neighbours in memory. */
    int t0 = down ? lid % GK_SMALL_TERMS : r, c0 = down ? lid / GK_SMALL_TERMS : c;
    gk_i64 g = none ? 0 : group, terms = none ? 0 : q->size.v[2];
    GK_GLOBAL const gk_t* a = q->a + (m0 + lid / GK_SMALL_TERMS) * q->sa.v[0] + lid % GK_SMALL_TERMS * q->sa.v[1];
    GK_GLOBAL const gk_t* b = q->b + g * q->sb.v[2] + (n0 + c0) * q->sb.v[0] + t0 * q->sb.v[1];
    gk_four x;
    GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = GK_R(0.0);
    /* Loops with barriers run at least once. */
    do {
        int left = terms < GK_SMALL_TERMS ? (int)terms : GK_SMALL_TERMS;
        GK_UNROLL for (int i = 0; i < 2; i++) {
            int m = lid / GK_SMALL_TERMS + 8 * i, k = lid % GK_SMALL_TERMS;
            gk_slot_put(ta, m * GK_SMALL_PITCH + k, m < have && k < left ? gk_load(a, 8 * i * q->sa.v[0]) : GK_R(0.0));
        }
        GK_UNROLL for (int i = 0; i < columns / 8; i++) {
            int t = down ? t0 : t0 + i * rows, n = down ? c0 + 8 * i : c0;
            tb[t * pitch + n] = n < wide && t < left ? gk_load(b, down ? 8 * i * q->sb.v[0] : i * rows * q->sb.v[1]) : GK_R(0.0);
        }
        GK_BARRIER();
        for (int t = 0; t < left; t += 4) {
            gk_four y;
            GK_UNROLL for (int u = 0; u < 4; u++) y.v[u] = tb[(t + u) * pitch + c];
            GK_UNROLL for (int i = 0; i < per; i++) {
                gk_four z = gk_slot_get4(ta, (r + i * rows) * GK_SMALL_PITCH + t);
                GK_UNROLL for (int u = 0; u < 4; u++) x.v[i] += z.v[u] * y.v[u];
            }
        }
        GK_BARRIER();
        a += GK_SMALL_TERMS * q->sa.v[1];
        b += GK_SMALL_TERMS * q->sb.v[1];
        terms -= GK_SMALL_TERMS;
    } while (terms > 0);
    gk_f bias = q->bias && !none && c < wide ? gk_load(q->bias, g * q->sv.v[0] + n0 + c) : GK_R(0.0);
    GK_UNROLL for (int i = 0; i < per; i++) x.v[i] = q->alpha * x.v[i] + bias;
    if (q->z) {
        GK_UNROLL for (int i = 0; i < per; i++)
            if (c < wide && r + i * rows < have) gk_store_o(q->z, (m0 + r + i * rows) * q->sz.v[0] + (n0 + c) * q->sz.v[1], x.v[i]);
    }
    if (!none) x = gk_activate(q->act, x, q->p);
    GK_UNROLL for (int i = 0; i < per; i++)
        if (c < wide && r + i * rows < have) gk_store_o(q->y, (m0 + r + i * rows) * q->sy.v[0] + (n0 + c) * q->sy.v[1], x.v[i]);
}

/* Each block waits for its loads most of the time: many at once hide that. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 8

/* A block per group and size.v[4] columns, 16 or 64: it takes 16 rows after the others, and looks at no other group.
 * Launch: axis 0 = groups + 2, columns fastest. */
GK_KERNEL(gemm_ragged_by_group)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(int, err),
                                GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, int act, gk_f p, int code)
{
    GK_LOCAL gk_slot ta[GK_SLOTS(GK_SMALL_ROWS * GK_SMALL_PITCH)];
    GK_LOCAL gk_f tb[GK_SMALL_TERMS * 65];
    GK_RAGGED_BIND();
    int wide = (int)size.v[4], tiles = (int)((size.v[1] + wide - 1) / wide);
    gk_i64 group = gk_bid(0) / tiles - 1, n0 = (gk_i64)(gk_bid(0) % tiles) * wide;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], err, code);
    gk_i64 m0 = rows.begin;
    do {
        if (wide == 16) gk_ragged_few(&q, group, m0, rows.end, n0, 16, ta, tb);
        else gk_ragged_few(&q, group, m0, rows.end, n0, 64, ta, tb);
        m0 += GK_SMALL_ROWS;
    } while (m0 < rows.end);
}
