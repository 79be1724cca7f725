/* Cholesky factorisation A = L L^T of symmetric positive definite matrices, in place of their lower triangles (block.h).
 *
 * A block has a matrix and walks over its tiles of 32 x 32, one block column after the other: each tile takes off the products of the block columns
 * before it, then the diagonal tile is factored and the tiles below it are solved with it. The upper triangle counts for nothing and stays as it is.
 * A pivot that is not above 0 (or NaN) puts its number, plus `first`, into info, unless something is there already.
 * Launch: one block per matrix. Arithmetic in gk_f. Deterministic. References: torch.linalg.cholesky_ex, LAPACK potrf; N. Higham, "Accuracy and
 * Stability of Numerical Algorithms", chapter 10.
 */
#include "common/linalg/block.h"

/* Factors the tile of which acc has the thread's elements; the first pivot that is not positive, or 0. d is memory of a tile. */
GK_FN int gk_tile_cholesky(gk_f acc[4], GK_LOCAL_PTR gk_f* d, int n)
{
    int c = gk_tile_col(), failed = 0;
    for (int j = 0; j < n; j++) {
        if (c == j) gk_tile_put(d, acc);
        GK_BARRIER();
        gk_f pivot = d[j * GK_NB_PITCH + j], root = gk_sqrt(pivot), mine = d[c * GK_NB_PITCH + j] / root;
        if (!(pivot > GK_R(0.0)) && failed == 0) failed = j + 1;
        GK_EACH_ROW(q) {
            int r = gk_tile_row(q);
            gk_f l = d[r * GK_NB_PITCH + j] / root;
            if (c == j) acc[q] = r == j ? root : l;
            else if (c > j && r >= c) acc[q] -= l * mine;
        }
    }
    GK_BARRIER();
    gk_tile_put(d, acc);
    GK_BARRIER();
    return failed;
}

/* acc <- acc d^-T for the lower triangle in the tile d; b is memory of a tile, and has the result. */
GK_FN void gk_tile_solve_right(gk_f acc[4], GK_LOCAL_PTR const gk_f* d, GK_LOCAL_PTR gk_f* b, int n)
{
    int c = gk_tile_col();
    for (int j = 0; j < n; j++) {
        if (c == j) {
            GK_EACH_ROW(q) b[gk_tile_row(q) * GK_NB_PITCH + j] = acc[q] / d[j * GK_NB_PITCH + j];
        }
        GK_BARRIER();
        if (c > j) {
            GK_EACH_ROW(q) acc[q] -= b[gk_tile_row(q) * GK_NB_PITCH + j] * d[c * GK_NB_PITCH + j];
        }
    }
    GK_BARRIER();
}

// Units: REALS
GK_KERNEL(cholesky_block)(GK_OUT(gk_t, l), GK_OUT(int, info), GK_DIMS(sl), gk_i64 n, gk_i64 first, gk_i64 batch)
{
    GK_BIND_OUT(gk_t, l); GK_BIND_OUT(int, info);
    GK_LOCAL gk_f a[GK_NB_TILE];
    GK_LOCAL gk_f b[GK_NB_TILE];
    GK_LOCAL gk_f d[GK_NB_TILE];
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        gk_matrix m = gk_matrix_of(sl, w);
        gk_i64 failed = 0;
        for (gk_i64 j = 0; j < n; j += GK_NB) {
            gk_i64 cols = n - j < GK_NB ? n - j : GK_NB;
            for (gk_i64 i = j; i < n; i += GK_NB) {
                gk_f acc[4];
                gk_i64 rows = n - i;
                gk_tile_load(b, l, gk_submatrix(m, i, j), rows, cols);
                GK_BARRIER();
                gk_tile_get(acc, b);
                GK_BARRIER();
                for (gk_i64 k = 0; k < j; k += GK_NB) {
                    gk_tile_load(a, l, gk_submatrix(m, i, k), rows, GK_NB);
                    gk_tile_load(b, l, gk_submatrix(m, j, k), cols, GK_NB);
                    GK_BARRIER();
                    gk_tile_product(acc, a, b, 1, GK_R(-1.0));
                    GK_BARRIER();
                }
                if (i == j) {
                    int bad = gk_tile_cholesky(acc, d, (int)cols);
                    if (bad && failed == 0) failed = first + j + bad;
                    gk_tile_store(d, l, gk_submatrix(m, i, j), rows, cols, 1);
                } else {
                    gk_tile_solve_right(acc, d, b, (int)cols);
                    gk_tile_store(b, l, gk_submatrix(m, i, j), rows, cols, 0);
                }
                GK_BARRIER();
            }
        }
        if (gk_lid() == 0 && failed && info[w] == 0) info[w] = (int)failed;
    }
}
