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

/* Rows and terms that a thread multiplies at a time, and rows of a run. */
#define GK_FEW_ROWS 4 /* a gk_four of results */
#define GK_FEW_TERMS 16
#define GK_RUN_ROWS 32

/* acc += GK_FEW_TERMS terms of a column of B, `along` them in memory or not, and of rows of A by vectors, all of which are on their way before the first
 * is used; for rows that do not exist those of the last one. */
GK_FN void gk_few_whole(gk_f* acc, GK_GLOBAL const gk_t* a, gk_side sa, GK_GLOBAL const gk_t* b, gk_side sb, const int along, int rows)
{
    gk_vec y[GK_FEW_TERMS / GK_W], x[GK_FEW_TERMS / GK_W][GK_FEW_ROWS];
    GK_UNROLL for (int t = 0; t < GK_FEW_TERMS / GK_W; t++) {
        if (along) y[t] = gk_loadv(b, t * GK_W);
        else GK_UNROLL for (int u = 0; u < GK_W; u++) y[t].v[u] = gk_load(b, (t * GK_W + u) * sb.kstep);
        GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++) x[t][i] = gk_loadv(a + (i < rows ? i : rows - 1) * sa.step, t * GK_W);
    }
    GK_UNROLL for (int t = 0; t < GK_FEW_TERMS / GK_W; t++)
        GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++)
            GK_UNROLL for (int u = 0; u < GK_W; u++) acc[i] += x[t][i].v[u] * y[t].v[u];
}

/* acc = the products of up to four rows of A from a on with a column of B. */
GK_FN void gk_few_sums(gk_f* acc, GK_GLOBAL const gk_t* a, gk_side sa, GK_GLOBAL const gk_t* b, gk_side sb, gk_i64 terms, int rows)
{
    int wa = sa.along && sa.wide, wb = sb.along && sb.wide;
    GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++) acc[i] = GK_R(0.0);
    for (gk_i64 k = 0; k < terms; k += GK_FEW_TERMS) {
        int left = terms - k < GK_FEW_TERMS ? (int)(terms - k) : GK_FEW_TERMS;
        if (wa && left == GK_FEW_TERMS) {
            if (wb) gk_few_whole(acc, a + k, sa, b + k, sb, 1, rows);
            else gk_few_whole(acc, a + k, sa, b + k * sb.kstep, sb, 0, rows);
            continue;
        }
        for (int t = 0; t < left; t++) {
            gk_f y = gk_load(b, (k + t) * sb.kstep);
            GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++)
                if (i < rows) acc[i] += gk_load(a, i * sa.step + (k + t) * sa.kstep) * y;
        }
    }
}

/* Column n of up to four rows m ... of `group`, or of no group. */
GK_FN void gk_few_rows(const gk_ragged* q, gk_i64 group, gk_i64 m, int rows, gk_i64 n)
{
    gk_f acc[GK_FEW_ROWS];
    int none = group < 0 || group >= q->size.v[3];
    gk_i64 g = none ? 0 : group;
    gk_side sa = gk_side_of(q->sa), sb = gk_side_of(q->sb);
    gk_few_sums(acc, q->a + m * sa.step, sa, q->b + g * q->sb.v[2] + n * sb.step, sb, none ? 0 : q->size.v[2], rows);
    gk_f bias = q->bias && !none ? gk_load(q->bias, g * q->sv.v[0] + n) : GK_R(0.0);
    gk_four x;
    GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++) x.v[i] = q->alpha * acc[i] + bias;
    if (q->z) {
        GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++)
            if (i < rows) gk_store_o(q->z, (m + i) * q->sz.v[0] + n * q->sz.v[1], x.v[i]);
    }
    if (!none) x = gk_activate(q->act, x, q->p);
    GK_UNROLL for (int i = 0; i < GK_FEW_ROWS; i++)
        if (i < rows) gk_store_o(q->y, (m + i) * q->sy.v[0] + n * q->sy.v[1], x.v[i]);
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* Threads with size.v[4] neighbouring columns, 16 or 64, have a run of rows, of whichever groups these are: many small groups cost what their rows cost,
 * and a large one is shared by many blocks. Launch: axis 0 = runs, columns fastest. */
GK_KERNEL(gemm_ragged_by_rows)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(int, err),
                               GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    int wide = (int)size.v[4], tiles = (int)((size.v[1] + wide - 1) / wide);
    gk_i64 total = size.v[0], groups = size.v[3], n = (gk_i64)(gk_bid(0) % tiles) * wide + gk_lid() % wide;
    gk_i64 m = (gk_bid(0) / tiles * (GK_BLOCK / wide) + gk_lid() / wide) * (gk_i64)GK_RUN_ROWS, end = m + GK_RUN_ROWS < total ? m + GK_RUN_ROWS : total;
    for (gk_i64 g = gk_gid(); g <= groups; g += gk_gsize()) {
        int first = offsets[g], last = (int)total;
        if (g < groups) last = offsets[g + 1];
        if (first < 0 || last < first || last > total) gk_report(err, code);
    }
    if (m >= end || n >= size.v[1]) return;
    /* The last group that begins at or before the run; -1 and `groups` are none. */
    GK_SEEK(gk_i64, group, groups + 1, offsets[v] <= m)
    if (offsets[0] > m) group = -1;
    while (m < end) {
        gk_i64 stop = total;
        if (group < groups) stop = offsets[group + 1];
        if (stop <= m && group < groups) { group++; continue; }
        if (stop > end) stop = end;
        int rows = stop - m < GK_FEW_ROWS ? (int)(stop - m) : GK_FEW_ROWS;
        gk_few_rows(&q, group, m, rows, n);
        m += rows;
    }
}
