/* Products of groups of rows (ragged.c) and the gradient of their matrices (ragged_bwd.c) on matrix cores, for f16 and bf16.
 *
 *   gemm_ragged_matrix, _terms   Z[r] = alpha A[r] B[g] + bias[g],  Y[r] = act(Z[r])  for the rows r of group g; 0 for rows of no group
 *   gemm_ragged_bwd_matrix       D[g] = alpha P_g^T Q_g, or added to it
 *
 * By the tiles of matrix_tile.h; rows of results begin at multiples of 16 bytes, too. Deterministic: one writer per output. */
#include "matrix_tile.h"
#include "common/prelude/tile.h"
#include "groups.h"

/* ---- forward ----------------------------------------------------------------------------------------------------------------------------------- */

/* Operands, those that are not needed null, and the parameters `size` and `steps` of the kernels. */
typedef struct {
    GK_GLOBAL const gk_t *a, *b, *bias;
    GK_GLOBAL gk_t *y, *z;
    gk_dims size, steps;
    gk_f alpha, p;
    int act;
} gk_ragged;

/* Four neighbours, at a multiple of 8 bytes. */
GK_FN void gk_ragged_put(GK_GLOBAL gk_t* p, gk_four x)
{
    gk_store2(p, 0, x.v[0], x.v[1]);
    gk_store2(p, 2, x.v[2], x.v[3]);
}

/* Z and Y from sums, by runs of four columns that lie in local memory meanwhile. */
GK_FN void gk_ragged_store(const gk_ragged* q, float (*sums)[4], gk_row_tile m, gk_i64 n0, GK_LOCAL_PTR float* spill)
{
    int none = m.group < 0;
    gk_i64 columns = q->size.v[1] - n0;
    GK_GLOBAL gk_t *y = q->y + m.first * q->steps.v[3] + n0, *z = q->z ? q->z + m.first * q->steps.v[4] + n0 : q->z;
    GK_GLOBAL const gk_t* bias = q->bias && !none ? q->bias + m.group * q->steps.v[5] + n0 : 0;
    GK_UNROLL for (int first = 0; first < GK_TILE_COLUMNS; first += GK_TILE_SPILL) {
        gk_tile_spill(sums, first, spill);
        for (int i = 0; i < GK_TILE_RUNS; i++) {
            int row = GK_RUN_ROW(i), c = GK_RUN_COLUMN(i);
            gk_four x;
            if (row >= m.rows || first + c >= columns) continue;
            GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = q->alpha * spill[row * GK_TILE_PITCH + c + u];
            if (bias) GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] += gk_load(bias, first + c + u);
            if (z) gk_ragged_put(z + row * q->steps.v[4] + first + c, x);
            if (!none) x = gk_activate(q->act, x, q->p);
            gk_ragged_put(y + row * q->steps.v[3] + first + c, x);
        }
    }
}

GK_FN void gk_ragged_product(const gk_ragged* q, GK_GLOBAL const int* offsets, GK_GLOBAL int* err, const int by_terms, int code,
                             GK_LOCAL_PTR gk_raw16* tiles)
{
    gk_i64 wide = (q->size.v[1] + GK_TILE_COLUMNS - 1) / GK_TILE_COLUMNS, n0 = gk_bid(0) % wide * GK_TILE_COLUMNS;
    gk_row_tile m = gk_row_tile_of(gk_bid(0) / wide, GK_TILE_ROWS, offsets, q->size.v[0], (int)q->size.v[3], err, code);
    GK_GLOBAL const gk_t* b = q->b + (m.group < 0 ? 0 : m.group) * q->steps.v[2] + n0 * (by_terms ? 1 : q->steps.v[1]);
    gk_tile_copy left = gk_tile_copy_of(q->a + m.first * q->steps.v[0], q->steps.v[0], m.rows, GK_TILE_ROWS, 0);
    gk_tile_copy right = gk_tile_copy_of(b, q->steps.v[1], q->size.v[1] - n0, GK_TILE_COLUMNS, by_terms);
    float sums[GK_TILE_COLUMNS / 8][4];
    gk_tile_multiply(sums, left, 0, right, by_terms, m.group < 0 ? 0 : q->size.v[2], tiles);
    gk_ragged_store(q, sums, m, n0, (GK_LOCAL_PTR float*)tiles);
}

#define GK_RAGGED_BIND() \
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_GEMM_CHUNKS); \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_IN(gk_t, bias); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, z); \
    GK_BIND_OUT(int, err); \
    gk_ragged q; \
    q.a = a; q.b = b; q.bias = bias; q.y = y; q.z = z; q.size = size; q.steps = steps; q.alpha = alpha; q.act = act; q.p = p

/* B has the terms of a column side by side ([groups, N, K]); for gemm_ragged_matrix_terms the columns of a term ([groups, K, N]).
 * size = {rows, N, K, groups}, steps = {from row to row of A, of B, from group to group of B, from row to row of Y, of Z, from group to group of bias}. A
 * wrong offset is reported and taken as the nearest that is valid. The rows before the first and after the last group are groups without products.
 * Launch: axis 0 = tiles, columns fastest; as many row tiles as any partition into groups can need. */
// Units: HALVES
GK_KERNEL(gemm_ragged_matrix)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_OUT(gk_t, z), GK_OUT(int, err),
                              GK_DIMS(size), GK_DIMS(steps), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    gk_ragged_product(&q, offsets, err, 0, code, tiles);
}

GK_KERNEL(gemm_ragged_matrix_terms)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_OUT(gk_t, z),
                                    GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps), gk_f alpha, int act, gk_f p, int code)
{
    GK_RAGGED_BIND();
    gk_ragged_product(&q, offsets, err, 1, code, tiles);
}

/* ---- gradient of the matrices ------------------------------------------------------------------------------------------------------------------ */

/* size = {rows, M, N, groups}, steps = {from row to row of P, of Q, of D, from group to group of D}.
 * Launch: axis 0 = tiles of D, columns fastest, then rows, groups. */
GK_KERNEL(gemm_ragged_bwd_matrix)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(int, offsets), GK_OUT(gk_t, d), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(steps),
                                  gk_f alpha, int accumulate, int code)
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_GEMM_CHUNKS);
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, d); GK_BIND_OUT(int, err);
    gk_i64 down = (size.v[1] + GK_TILE_ROWS - 1) / GK_TILE_ROWS, across = (size.v[2] + GK_TILE_COLUMNS - 1) / GK_TILE_COLUMNS, at = gk_bid(0);
    gk_i64 m0 = at / across % down * GK_TILE_ROWS, n0 = at % across * GK_TILE_COLUMNS, group = at / across / down;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[3], err, code);
    gk_tile_copy left = gk_tile_copy_of(p + rows.begin * steps.v[0] + m0, steps.v[0], size.v[1] - m0, GK_TILE_ROWS, 1);
    gk_tile_copy right = gk_tile_copy_of(q + rows.begin * steps.v[1] + n0, steps.v[1], size.v[2] - n0, GK_TILE_COLUMNS, 1);
    float sums[GK_TILE_COLUMNS / 8][4];
    gk_tile_multiply(sums, left, 1, right, 1, rows.end - rows.begin, tiles);
    int width = size.v[2] - n0 < GK_TILE_COLUMNS ? (int)(size.v[2] - n0) : GK_TILE_COLUMNS;
    d += group * steps.v[3] + n0;
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_i64 i = m0 + gk_lid() / 32 * 16 + GK_FRAG_ROW(2 * h);
        if (i < size.v[1]) gk_mm_store(d + i * steps.v[2], sums, GK_TILE_COLUMNS, h, width, (float)alpha, accumulate);
    }
}
