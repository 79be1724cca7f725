/* QR factorisation by Householder reflections H = 1 - tau v v^T, v = (1, x / (alpha - beta)), beta = -sign(alpha) |(alpha, x)|, in panels of 32 columns.
 *
 *   matrix_scale  the power of 2 at or below the largest magnitude of each matrix, by which it is divided so that no square leaves the range
 *   qr_panel      factors a panel: R above, the reflections' vectors to v, and s = the upper triangle of V^T V with 1 / tau on its diagonal
 *
 * The product of a panel's reflections is 1 - V s^-1 V^T (H. Walker, "Implementation of the GMRES method using Householder transformations", 1988;
 * C. Puglisi, "Modification of the Householder method based on the compact WY representation", 1992), so that other columns take matrix products
 * and a triangular solve. Matrices lie in columns. A column that is 0 below the diagonal has tau = 0 and 1 / tau infinite, which solves to 0.
 * Launch: one block per matrix. Arithmetic in gk_f. Deterministic. References: torch.linalg.qr, LAPACK geqrf, larft.
 */
#include "common/linalg/block.h"

/* The largest power of 2 that is not above x > 0, at least the smallest normal number; 1 for 0, infinities and NaN. */
GK_FN gk_f gk_power_below(gk_f x)
{
    if (!(x > GK_R(0.0)) || gk_isinf(x)) return GK_R(1.0);
#if GK_DTYPE == GK_F64
    gk_u64 bits = gk_as_u64(x) & ((gk_u64)0x7ff << 52);
    return gk_as_f64(bits ? bits : (gk_u64)1 << 52);
#else
    gk_u32 bits = gk_as_u32(x) & 0x7f800000u;
    return gk_as_f32(bits ? bits : 0x00800000u);
#endif
}

// Units: REALS
/* scale[2 m] = power of 2, scale[2 m + 1] = Frobenius norm after division by it, for x [batch, rows, cols]. With `keep` 0 or 1 of the symmetric matrix
 * whose lower or upper triangle x has, with 2 of all of x. Launch: one block per matrix. */
GK_KERNEL(matrix_scale)(GK_IN(gk_t, x), GK_OUT(gk_t, scale), gk_i64 batch, gk_i64 rows, gk_i64 cols, int keep)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, scale);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        gk_f most = GK_R(0.0), power = GK_R(1.0), sum = GK_R(0.0);
        for (int pass = 0; pass < 2; pass++) {
            for (gk_i64 e = gk_lid(); e < rows * cols; e += GK_BLOCK) {
                gk_i64 r = e / cols, c = e % cols;
                gk_f v = gk_load(x, w * rows * cols + e);
                if (keep == 2 || (keep == 0 ? c <= r : c >= r)) {
                    v = gk_fabs(v) / power;
                    most = gk_max(most, v);
                    sum += (keep == 2 || r == c ? GK_R(1.0) : GK_R(2.0)) * v * v;
                }
            }
            if (pass == 0) {
                power = gk_power_below(gk_block_max(most, tmp));
                sum = GK_R(0.0);
            }
        }
        sum = gk_sqrt(gk_block_sum(sum, tmp));
        if (gk_lid() == 0) {
            gk_store(scale, 2 * w, power);
            gk_store(scale, 2 * w + 1, sum);
        }
        GK_BARRIER();
    }
}

/* a [batch, cols, rows] and v [batch, count, rows] by columns; columns [first, first + width), of v their rows from `first` on;
 * s [batch, ceil(count / 32), 32, 32]. Launch: one block per matrix. */
GK_KERNEL(qr_panel)(GK_OUT(gk_t, a), GK_OUT(gk_t, v), GK_OUT(gk_t, s), gk_i64 batch, int rows, gk_i64 cols, int count, int first, int width)
{
    GK_BIND_OUT(gk_t, a); GK_BIND_OUT(gk_t, v); GK_BIND_OUT(gk_t, s);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f tile[GK_NB_TILE];
    GK_LOCAL gk_f taus[GK_NB];
    int t = gk_lid(), lane = t % 32;
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        GK_GLOBAL gk_t* p = a + (w * cols + first) * rows;
        GK_GLOBAL gk_t* vp = v + (w * count + first) * rows;
        for (int j = 0; j < width; j++) {
            int c = first + j;
            GK_GLOBAL gk_t* x = p + (gk_i64)j * rows;
            GK_GLOBAL gk_t* reflection = vp + (gk_i64)j * rows;
            gk_f sum = GK_R(0.0), alpha = gk_load(x, c), beta = alpha, tau = GK_R(0.0), unit = GK_R(0.0);
            for (int r = c + 1 + t; r < rows; r += GK_BLOCK) sum += gk_load(x, r) * gk_load(x, r);
            sum = gk_block_sum(sum, tmp);
            if (sum != GK_R(0.0)) {
                gk_f norm = gk_sqrt(alpha * alpha + sum);
                beta = alpha >= GK_R(0.0) ? -norm : norm;
                tau = (beta - alpha) / beta;
                unit = GK_R(1.0) / (alpha - beta);
            }
            for (int r = first + t; r < rows; r += GK_BLOCK) {
                gk_store(reflection, r, r < c ? GK_R(0.0) : r == c ? GK_R(1.0) : gk_load(x, r) * unit);
            }
            if (t == 0) {
                gk_store(x, c, beta);
                taus[j] = tau;
            }
            GK_BARRIER();
            for (int k = j + 1; k < width; k += GK_BLOCK / 32) {
                int col = k + t / 32;
                GK_GLOBAL gk_t* y = p + (gk_i64)(col < width ? col : j) * rows;
                gk_f dot = GK_R(0.0);
                if (col < width) {
                    for (int r = c + lane; r < rows; r += 32) dot += gk_load(reflection, r) * gk_load(y, r);
                }
                dot = tau * gk_group_sum(dot, tmp, 32);
                if (col < width) {
                    for (int r = c + lane; r < rows; r += 32) gk_store(y, r, gk_load(y, r) - dot * gk_load(reflection, r));
                }
            }
            GK_BARRIER();
        }
        gk_f acc[4];
        GK_EACH_ROW(q) acc[q] = GK_R(0.0);
        gk_matrix m;
        m.at = (w * count + first) * rows;
        m.rs = 1;
        m.cs = rows;
        for (int r = first; r < rows; r += GK_NB) {
            gk_tile_load(tile, v, gk_submatrix(m, r, 0), rows - r, width);
            GK_BARRIER();
            gk_tile_gram(acc, tile, tile);
            GK_BARRIER();
        }
        gk_i64 at = (w * ((count + GK_NB - 1) / GK_NB) + first / GK_NB) * GK_NB * GK_NB;
        GK_EACH_ROW(q) {
            int r = gk_tile_row(q), c = gk_tile_col();
            gk_store(s, at + r * GK_NB + c, r == c && r < width ? GK_R(1.0) / taus[r] : r < c ? acc[q] : GK_R(0.0));
        }
        GK_BARRIER();
    }
}
