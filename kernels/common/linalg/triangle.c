/* Triangular systems, parts of matrices and copies, for batches of matrices given by strides (block.h).
 *
 *   triangular_solve   X <- T^-1 X with T lower
 *   triangle           y = scale * (a triangle of x, its diagonal times a factor, or (x + x^T) / 2)
 *   matrix_copy        y = x between matrices of any strides, through a tile
 *
 * Launch: triangular_solve takes a block per 32 columns of X, or loops; triangle strides over elements. Arithmetic in gk_f. Deterministic: sums run
 * along ascending columns of T. References: torch.linalg.solve_triangular; G. Golub, C. Van Loan, "Matrix Computations", section 3.1.
 */
#include "common/linalg/block.h"

/* In place of the tile `b` of rows x 32 right sides, T^-1 b for the triangle in the tile `a`. The sums of a thread's elements are in acc. */
GK_FN void gk_tile_solve(gk_f acc[4], GK_LOCAL_PTR const gk_f* a, GK_LOCAL_PTR gk_f* b, int rows, int unit)
{
    int c = gk_tile_col();
    for (int j = 0; j < rows; j++) {
        GK_EACH_ROW(q) {
            if (gk_tile_row(q) == j) b[j * GK_NB_PITCH + c] = unit ? acc[q] : acc[q] / a[j * GK_NB_PITCH + j];
        }
        GK_BARRIER();
        gk_f x = b[j * GK_NB_PITCH + c];
        GK_EACH_ROW(q) {
            if (gk_tile_row(q) > j) acc[q] -= a[gk_tile_row(q) * GK_NB_PITCH + j] * x;
        }
    }
    GK_BARRIER();
}

// Units: REALS
/* X <- T^-1 X for lower T [n, n] and X [n, k]; `unit`: the diagonal counts as 1 and is not read. Launch: a block per matrix and 32 columns. */
GK_KERNEL(triangular_solve)(GK_IN(gk_t, t), GK_OUT(gk_t, x), GK_DIMS(st), GK_DIMS(sx), gk_i64 n, gk_i64 k, gk_i64 work, int unit)
{
    GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, x);
    GK_LOCAL gk_f a[GK_NB_TILE];
    GK_LOCAL gk_f b[GK_NB_TILE];
    gk_i64 tiles = (k + GK_NB - 1) / GK_NB;
    for (gk_i64 w = gk_bid(0); w < work; w += gk_nblocks(0)) {
        gk_i64 c = w % tiles * GK_NB, cols = k - c;
        gk_matrix mt = gk_matrix_of(st, w / tiles), mx = gk_submatrix(gk_matrix_of(sx, w / tiles), 0, c);
        for (gk_i64 i = 0; i < n; i += GK_NB) {
            gk_f acc[4];
            gk_i64 rows = n - i < GK_NB ? n - i : GK_NB;
            gk_tile_load(b, x, gk_submatrix(mx, i, 0), rows, cols);
            GK_BARRIER();
            gk_tile_get(acc, b);
            GK_BARRIER();
            for (gk_i64 j = 0; j < i; j += GK_NB) {
                gk_tile_load(a, t, gk_submatrix(mt, i, j), rows, GK_NB);
                gk_tile_load(b, x, gk_submatrix(mx, j, 0), GK_NB, cols);
                GK_BARRIER();
                gk_tile_product(acc, a, b, 0, GK_R(-1.0));
                GK_BARRIER();
            }
            gk_tile_load(a, t, gk_submatrix(mt, i, i), rows, rows);
            GK_BARRIER();
            gk_tile_solve(acc, a, b, (int)rows, unit);
            gk_tile_store(b, x, gk_submatrix(mx, i, 0), rows, cols, 0);
            GK_BARRIER();
        }
    }
}

/* y = scale * part(x) for contiguous y [batch, rows, cols]; `keep` 0: the lower triangle, 1: the upper one, 2: all; the diagonal is multiplied by
 * `diagonal` (0: not read); `symmetric`: of (x + x^T) / 2. x is given by strides; null: the identity. power[2 m] stands for
 * `scale` where there is one. Matrices whose entry in `info` is not 0
 * become NaN (info null: none). Launch: grid-stride over elements. */
GK_KERNEL(triangle)(GK_IN(gk_t, x), GK_IN(int, info), GK_IN(gk_t, power), GK_OUT(gk_t, y), GK_DIMS(sx), gk_i64 total, gk_i64 rows, gk_i64 cols, int keep,
                    gk_f diagonal, gk_f scale, int symmetric, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, info); GK_BIND_IN(gk_t, power); GK_BIND_OUT(gk_t, y);
    for (gk_i64 e = gk_gid(); e < total; e += gk_gsize()) {
        gk_i64 c, r, m;
        if (total <= 0x7fffffff) {
            gk_u32 line = (gk_u32)e / (gk_u32)cols;
            c = (gk_u32)e - line * (gk_u32)cols;
            m = line / (gk_u32)rows;
            r = line - m * rows;
        } else {
            c = e % cols;
            r = e / cols % rows;
            m = e / cols / rows;
        }
        gk_matrix mx = gk_matrix_of(sx, m);
        gk_f v = GK_R(0.0);
        int inside = keep == 2 || (keep == 0 ? c <= r : c >= r);
        if (inside && !(r == c && diagonal == GK_R(0.0))) {
            v = r == c ? GK_R(1.0) : GK_R(0.0);
            if (x) v = gk_load(x, mx.at + r * mx.rs + c * mx.cs);
            if (x && symmetric) v = (v + gk_load(x, mx.at + c * mx.rs + r * mx.cs)) * GK_R(0.5);
            if (r == c) v *= diagonal;
            v *= power ? gk_load(power, 2 * m) : scale;
        }
        if (info && info[m] != 0) v = GK_NAN;
        gk_store(y, e, accumulate ? gk_load(y, e) + v : v);
    }
}

/* y = x [rows, cols] through tiles, for matrices of any strides; divided by scale[2 m] where there is one. Launch: a block per tile. */
GK_KERNEL(matrix_copy)(GK_IN(gk_t, x), GK_IN(gk_t, scale), GK_OUT(gk_t, y), GK_DIMS(sx), GK_DIMS(sy), gk_i64 rows, gk_i64 cols, gk_i64 work)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tile[GK_NB_TILE];
    gk_i64 across = (cols + GK_NB - 1) / GK_NB, tiles = (rows + GK_NB - 1) / GK_NB * across;
    for (gk_i64 w = gk_bid(0); w < work; w += gk_nblocks(0)) {
        gk_i64 r = w % tiles / across * GK_NB, c = w % tiles % across * GK_NB;
        gk_tile_load(tile, x, gk_submatrix(gk_matrix_of(sx, w / tiles), r, c), rows - r, cols - c);
        if (scale) {
            gk_f power = gk_load(scale, 2 * (w / tiles));
            gk_f v[4];
            GK_BARRIER();
            gk_tile_get(v, tile);
            GK_EACH_ROW(q) v[q] /= power;
            gk_tile_put(tile, v);
        }
        GK_BARRIER();
        gk_tile_store(tile, y, gk_submatrix(gk_matrix_of(sy, w / tiles), r, c), rows - r, cols - c, 0);
        GK_BARRIER();
    }
}
