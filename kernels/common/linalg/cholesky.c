/* Cholesky factorisation A = L L^T of symmetric positive definite matrices, in place of their lower triangles (block.h).
 *
 * A block has a matrix and goes through 32 columns at a time. From them it takes the products of the columns before, GK_STEP of which lie in local
 * memory at a time: each thread adds up four rows and eight columns of these in registers. Then a thread has a row of the 32 columns: the whole block
 * factors the diagonal tile, and every thread below it solves its row. The upper triangle counts for nothing and stays as it is.
 * A pivot that is not above 0 (or NaN) puts its number, plus `first`, into info, unless something is there already.
 * Launch: one block per matrix. Arithmetic in gk_f. Deterministic. References: torch.linalg.cholesky_ex, LAPACK potrf; N. Higham, "Accuracy and
 * Stability of Numerical Algorithms", chapter 10.
 */
#include "common/linalg/block.h"

/* Factors the tile of which acc has the thread's elements, two columns between barriers; the first pivot that is not positive, or 0. d is memory of a
 * tile. */
GK_FN int gk_tile_cholesky(gk_f acc[4], GK_LOCAL_PTR gk_f* d, int n)
{
    int c = gk_tile_col(), failed = 0;
    for (int j = 0; j < n; j += 2) {
        gk_f pivot[2], root[2], inverse[2], below, mine[2];
        if (c == j || c == j + 1) gk_tile_put(d, acc);
        GK_BARRIER();
        pivot[0] = d[j * GK_NB_PITCH + j];
        root[0] = gk_sqrt(pivot[0]);
        inverse[0] = GK_R(1.0) / root[0];
        below = d[(j + 1) * GK_NB_PITCH + j] * inverse[0];
        pivot[1] = d[(j + 1) * GK_NB_PITCH + j + 1] - below * below;
        root[1] = gk_sqrt(pivot[1]);
        inverse[1] = GK_R(1.0) / root[1];
        mine[0] = d[c * GK_NB_PITCH + j] * inverse[0];
        mine[1] = (d[c * GK_NB_PITCH + j + 1] - mine[0] * below) * inverse[1];
        GK_UNROLL for (int i = 0; i < 2; i++) {
            if (!(pivot[i] > GK_R(0.0)) && failed == 0 && j + i < n) failed = j + i + 1;
        }
        GK_EACH_ROW(q) {
            int r = gk_tile_row(q);
            gk_f first = d[r * GK_NB_PITCH + j] * inverse[0], second = (d[r * GK_NB_PITCH + j + 1] - first * below) * inverse[1];
            if (c == j) acc[q] = r == j ? root[0] : first;
            else if (c == j + 1) acc[q] = r == j + 1 ? root[1] : second;
            else if (c > j && r >= c) acc[q] = acc[q] - first * mine[0] - second * mine[1];
        }
    }
    GK_BARRIER();
    gk_tile_put(d, acc);
    GK_BARRIER();
    return failed;
}

/* Columns in local memory at a time. */
#if GK_DTYPE == GK_F64
#define GK_STEP 8
#else
#define GK_STEP 16
#endif
/* Elements between rows of GK_STEP columns, and of runs of GK_NB that are read four at a time. */
#define GK_STEP_PITCH (GK_STEP + 1)
#define GK_RUN_PITCH (GK_NB + 4)

/* Items of 16 bytes for a number of elements. */
#define GK_RAW_OF(n) ((n) / (16 / (int)sizeof(gk_f)))

GK_FN void gk_run_of_four(GK_LOCAL_PTR const gk_f* run, int at, gk_f v[4])
{
#if GK_DTYPE == GK_F64
    GK_UNROLL for (int i = 0; i < 4; i++) v[i] = run[at + i];
#else
    gk_raw16 q = ((GK_LOCAL_PTR const gk_raw16*)run)[at / 4];
    v[0] = gk_as_f32(q.x); v[1] = gk_as_f32(q.y); v[2] = gk_as_f32(q.z); v[3] = gk_as_f32(q.w);
#endif
}

/* Item e of the rows x GK_STEP elements of a matrix, in the order in which they lie in memory. */
GK_FN int gk_step_row(int e, int along) { return along ? e / GK_STEP : e % GK_BLOCK; }
GK_FN int gk_step_col(int e, int along) { return along ? e % GK_STEP : e / GK_BLOCK; }

/* A thread's part of the first rows x cols elements of a matrix, up to GK_BLOCK x GK_STEP; zeros beyond. */
GK_FN void gk_step_load(gk_f part[GK_STEP], GK_GLOBAL const gk_t* x, gk_matrix m, gk_i64 rows, gk_i64 cols)
{
    int along = gk_by_rows(m);
    GK_UNROLL for (int q = 0; q < GK_STEP; q++) {
        int e = gk_lid() + q * GK_BLOCK, r = gk_step_row(e, along), c = gk_step_col(e, along);
        part[q] = GK_R(0.0);
        if (r < rows && c < cols) part[q] = gk_load(x, m.at + r * m.rs + c * m.cs);
    }
}

GK_FN void gk_step_put(GK_LOCAL_PTR gk_f* step, const gk_f part[GK_STEP], int along)
{
    GK_UNROLL for (int q = 0; q < GK_STEP; q++) {
        int e = gk_lid() + q * GK_BLOCK;
        step[gk_step_row(e, along) * GK_STEP_PITCH + gk_step_col(e, along)] = part[q];
    }
}

/* Back, without what lies above the diagonal, where element (r, c) has r + below < c. */
GK_FN void gk_step_store(GK_LOCAL_PTR const gk_f* step, GK_GLOBAL gk_t* x, gk_matrix m, gk_i64 rows, gk_i64 cols, gk_i64 below)
{
    int along = gk_by_rows(m);
    GK_UNROLL for (int q = 0; q < GK_STEP; q++) {
        int e = gk_lid() + q * GK_BLOCK, r = gk_step_row(e, along), c = gk_step_col(e, along);
        if (r < rows && c < cols && r + below >= c) gk_store(x, m.at + r * m.rs + c * m.cs, step[r * GK_STEP_PITCH + c]);
    }
}

/* Element q of a thread of the 32 x GK_STEP by which the rows of a block are multiplied. */
#define GK_RUN_EACH (GK_NB * GK_STEP / GK_BLOCK)
GK_FN int gk_run_row(int q, int along) { return along ? (gk_lid() + q * GK_BLOCK) / GK_STEP : (gk_lid() + q * GK_BLOCK) % GK_NB; }
GK_FN int gk_run_col(int q, int along) { return along ? (gk_lid() + q * GK_BLOCK) % GK_STEP : (gk_lid() + q * GK_BLOCK) / GK_NB; }

/* What a thread loads of columns k .. of the rows from i on, and of the rows j .. j + cols. */
GK_FN void gk_products_load(gk_f part[GK_STEP], gk_f runs[GK_RUN_EACH], GK_GLOBAL const gk_t* l, gk_matrix m, gk_i64 i, gk_i64 j, gk_i64 k, gk_i64 n,
                            gk_i64 cols)
{
    int along = gk_by_rows(m);
    gk_matrix above = gk_submatrix(m, j, k);
    gk_step_load(part, l, gk_submatrix(m, i, k), n - i, GK_STEP);
    GK_UNROLL for (int q = 0; q < GK_RUN_EACH; q++) {
        int r = gk_run_row(q, along);
        runs[q] = GK_R(0.0);
        if (r < cols) runs[q] = gk_load(l, above.at + r * m.rs + gk_run_col(q, along) * m.cs);
    }
}

/* A thread's part of the products: so many rows and columns of the GK_BLOCK x GK_NB. */
#define GK_PART_ROWS 4
#define GK_PART_COLS 8
#define GK_PART_GROUPS (GK_BLOCK / GK_PART_ROWS)
GK_FN int gk_part_row(int q) { return gk_lid() % GK_PART_GROUPS + q * GK_PART_GROUPS; }
GK_FN int gk_part_col(void) { return gk_lid() / GK_PART_GROUPS * GK_PART_COLS; }

/* Adds the products of GK_STEP columns with those of the 32 rows in `runs`, [GK_STEP, 32], to the first `active` rows of a thread's part. */
GK_FN void gk_part_add(gk_f sum[GK_PART_ROWS][GK_PART_COLS], GK_LOCAL_PTR const gk_f* step, GK_LOCAL_PTR const gk_f* runs, const int active)
{
    for (int k = 0; k < GK_STEP; k++) {
        gk_f b[GK_PART_COLS];
        GK_UNROLL for (int c = 0; c < GK_PART_COLS; c += 4) gk_run_of_four(runs, k * GK_RUN_PITCH + gk_part_col() + c, b + c);
        GK_UNROLL for (int q = 0; q < active; q++) {
            gk_f v = step[gk_part_row(q) * GK_STEP_PITCH + k];
            GK_UNROLL for (int c = 0; c < GK_PART_COLS; c++) sum[q][c] += v * b[c];
        }
    }
}

/* The products of the columns before j, of the rows from i on: `rows` are there. */
GK_FN void gk_part_products(gk_f sum[GK_PART_ROWS][GK_PART_COLS], GK_GLOBAL const gk_t* l, gk_matrix m, gk_i64 n, gk_i64 i, gk_i64 j, gk_i64 cols,
                            GK_LOCAL_PTR gk_f* step, GK_LOCAL_PTR gk_f* columns)
{
    int along = gk_by_rows(m);
    gk_f part[GK_STEP], runs[GK_RUN_EACH];
    gk_i64 rows = n - i;
    GK_UNROLL for (int q = 0; q < GK_PART_ROWS; q++) {
        GK_UNROLL for (int c = 0; c < GK_PART_COLS; c++) sum[q][c] = GK_R(0.0);
    }
    if (j > 0) gk_products_load(part, runs, l, m, i, j, 0, n, cols);
    for (gk_i64 k = 0; k < j; k += GK_STEP) {
        gk_step_put(step, part, along);
        GK_UNROLL for (int q = 0; q < GK_RUN_EACH; q++) columns[gk_run_col(q, along) * GK_RUN_PITCH + gk_run_row(q, along)] = runs[q];
        /* On its way during the products. */
        if (k + GK_STEP < j) gk_products_load(part, runs, l, m, i, j, k + GK_STEP, n, cols);
        GK_BARRIER();
        if (rows > 2 * GK_PART_GROUPS) gk_part_add(sum, step, columns, 4);
        else if (rows > GK_PART_GROUPS) gk_part_add(sum, step, columns, 2);
        else gk_part_add(sum, step, columns, 1);
        GK_BARRIER();
    }
}

/* A thread's row less the products, by way of local memory: GK_STEP columns at a time. */
GK_FN void gk_row_less(gk_f acc[GK_NB], gk_f sum[GK_PART_ROWS][GK_PART_COLS], GK_LOCAL_PTR gk_f* step)
{
    GK_UNROLL for (int c0 = 0; c0 < GK_NB; c0 += GK_STEP) {
        if (gk_part_col() / GK_STEP * GK_STEP == c0) {
            GK_UNROLL for (int q = 0; q < GK_PART_ROWS; q++) {
                GK_UNROLL for (int c = 0; c < GK_PART_COLS; c++) step[gk_part_row(q) * GK_STEP_PITCH + gk_part_col() - c0 + c] = sum[q][c];
            }
        }
        GK_BARRIER();
        GK_UNROLL for (int c = 0; c < GK_STEP; c++) acc[c0 + c] -= step[gk_lid() * GK_STEP_PITCH + c];
        GK_BARRIER();
    }
}

/* row <- row d^-T for the lower triangle of which `runs` has the columns, with the inverse of its diagonal. */
GK_FN void gk_row_solve(gk_f acc[GK_NB], GK_LOCAL_PTR const gk_f* runs, int n)
{
    GK_UNROLL for (int k = 0; k < GK_NB; k++) {
        if (k < n) {
            gk_f b[4];
            acc[k] *= runs[k * GK_RUN_PITCH + k];
            GK_UNROLL for (int c = k / 4 * 4; c < GK_NB; c += 4) {
                gk_run_of_four(runs, k * GK_RUN_PITCH + c, b);
                GK_UNROLL for (int i = 0; i < 4; i++) {
                    if (c + i > k) acc[c + i] -= acc[k] * b[i];
                }
            }
        }
    }
}

typedef struct { GK_LOCAL_PTR gk_f* step; GK_LOCAL_PTR gk_f* runs; GK_LOCAL_PTR gk_f* tile; GK_LOCAL_PTR gk_f* triangle; } gk_cholesky_tmp;

/* Up to GK_BLOCK rows from row i of the columns j .. j + cols; the first pivot of the diagonal tile that is not positive, or 0. */
GK_FN int gk_cholesky_rows(GK_GLOBAL gk_t* l, gk_matrix m, gk_i64 n, gk_i64 i, gk_i64 j, gk_i64 cols, gk_cholesky_tmp t)
{
    int failed = 0, along = gk_by_rows(m);
    gk_i64 rows = n - i;
    gk_f acc[GK_NB], sum[GK_PART_ROWS][GK_PART_COLS], part[GK_STEP];
    gk_part_products(sum, l, m, n, i, j, cols, t.step, t.runs);
    GK_UNROLL for (int c0 = 0; c0 < GK_NB; c0 += GK_STEP) {
        gk_step_load(part, l, gk_submatrix(m, i, j + c0), rows, cols - c0);
        gk_step_put(t.step, part, along);
        GK_BARRIER();
        GK_UNROLL for (int c = 0; c < GK_STEP; c++) acc[c0 + c] = t.step[gk_lid() * GK_STEP_PITCH + c];
        GK_BARRIER();
    }
    if (j > 0) gk_row_less(acc, sum, t.step);
    if (i == j) {
        gk_f four[4];
        GK_UNROLL for (int c = 0; c < GK_NB; c++) {
            if (gk_lid() < GK_NB) t.tile[gk_lid() * GK_NB_PITCH + c] = acc[c];
        }
        GK_BARRIER();
        gk_tile_get(four, t.tile);
        GK_BARRIER();
        failed = gk_tile_cholesky(four, t.tile, (int)cols);
        GK_EACH_ROW(q) {
            gk_f v = t.tile[gk_tile_row(q) * GK_NB_PITCH + gk_tile_col()];
            t.triangle[gk_tile_col() * GK_RUN_PITCH + gk_tile_row(q)] = gk_tile_row(q) == gk_tile_col() ? GK_R(1.0) / v : v;
        }
        GK_BARRIER();
    }
    if (i > j || gk_lid() >= GK_NB) gk_row_solve(acc, t.triangle, (int)cols);
    GK_UNROLL for (int c = 0; c < GK_NB; c++) {
        if (i == j && gk_lid() < GK_NB) acc[c] = t.tile[gk_lid() * GK_NB_PITCH + c];
    }
    GK_UNROLL for (int c0 = 0; c0 < GK_NB; c0 += GK_STEP) {
        GK_UNROLL for (int c = 0; c < GK_STEP; c++) t.step[gk_lid() * GK_STEP_PITCH + c] = acc[c0 + c];
        GK_BARRIER();
        gk_step_store(t.step, l, gk_submatrix(m, i, j + c0), rows, cols - c0, i - j - c0);
        GK_BARRIER();
    }
    return failed;
}

// Units: REALS
GK_KERNEL(cholesky_block)(GK_OUT(gk_t, l), GK_OUT(int, info), GK_DIMS(sl), gk_i64 n, gk_i64 first, gk_i64 batch)
{
    GK_BIND_OUT(gk_t, l); GK_BIND_OUT(int, info);
    GK_LOCAL gk_f step[GK_BLOCK * GK_STEP_PITCH];
    GK_LOCAL gk_raw16 runs[GK_RAW_OF(GK_STEP * GK_RUN_PITCH)];
    GK_LOCAL gk_f tile[GK_NB_TILE];
    GK_LOCAL gk_raw16 triangle[GK_RAW_OF(GK_NB * GK_RUN_PITCH)];
    gk_cholesky_tmp t;
    t.step = step; t.runs = (GK_LOCAL_PTR gk_f*)runs; t.tile = tile; t.triangle = (GK_LOCAL_PTR gk_f*)triangle;
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        gk_matrix m = gk_matrix_of(sl, w);
        gk_i64 failed = 0;
        for (gk_i64 j = 0; j < n; j += GK_NB) {
            gk_i64 cols = n - j < GK_NB ? n - j : GK_NB;
            for (gk_i64 i = j; i < n; i += GK_BLOCK) {
                int bad = gk_cholesky_rows(l, m, n, i, j, cols, t);
                if (bad && failed == 0) failed = first + j + bad;
            }
        }
        if (gk_lid() == 0 && failed && info[w] == 0) info[w] = (int)failed;
    }
}
