/* Singular values and vectors by one-sided Jacobi rotations on blocks of 16 columns.
 *
 * Rotations V of its columns turn a tall matrix into A V with orthogonal columns: their lengths are the singular values, their directions the left
 * vectors. Matrices are padded by zeros to whole tiles, which are an even number of blocks. In each of the (blocks - 1) rounds of a sweep the blocks
 * form pairs that have none in common (a round-robin tournament); svd_pairs finds for each pair of blocks an orthogonal J [32, 32] that makes the
 * products of its 32 columns diagonal, and svd_columns multiplies A and V by J. A sweep in which no two columns have a cosine above sqrt(rows) eps is
 * the last that does anything: moved[sweep + 1] stays 0, and the launches of further sweeps return. Columns count as at least eps |A| long (Frobenius
 * norm): directions of shorter ones are rounding, for which svd_vectors writes zeros, and a QR factorisation of the directions finds others.
 * Launch: a block per pair; see the kernels. Arithmetic in gk_f. Deterministic: a sweep's entries in `moved` are only ever set. References:
 * torch.linalg.svd; M. Hestenes, "Inversion of matrices by biorthogonalization and related results", 1958; J. Demmel, K. Veselic, "Jacobi's method is
 * more accurate than QR", 1992.
 */
#include "common/linalg/block.h"

/* Columns of a block. */
#define GK_SVD 16
#if GK_DTYPE == GK_F64
#define GK_SVD_EPS 2.220446049250313e-16
#else
#define GK_SVD_EPS GK_R(1.1920929e-7)
#endif
/* Most sweeps within a pair. */
#define GK_SVD_INNER 3

// Units: REALS
/* a [batch, high, side] = x [batch, rows, n] (matrices by strides) over their powers of 2, NaN throughout where one is not finite; v [batch, side, side]
 * = 1 (may be null); moved[0] = 1, other entries of [sweeps + 1, batch] 0. Launch: grid-stride over elements of a. */
GK_KERNEL(svd_load)(GK_IN(gk_t, x), GK_IN(gk_t, scale), GK_OUT(gk_t, a), GK_OUT(gk_t, v), GK_OUT(int, moved), GK_DIMS(sx), gk_i64 batch,
                    gk_i64 rows, gk_i64 n, gk_i64 high, gk_i64 side, int sweeps)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(gk_t, a); GK_BIND_OUT(gk_t, v); GK_BIND_OUT(int, moved);
    for (gk_i64 e = gk_gid(); e < batch * high * side; e += gk_gsize()) {
        gk_i64 c = e % side, r = e / side % high, m = e / side / high;
        /* 0, or NaN. */
        gk_f nothing = gk_load(scale, 2 * m + 1) * GK_R(0.0), value = nothing;
        gk_matrix from = gk_matrix_of(sx, m);
        if (r < rows && c < n) value += gk_load(x, from.at + r * from.rs + c * from.cs) / gk_load(scale, 2 * m);
        gk_store(a, e, value);
        if (v && r < side) gk_store(v, (m * side + r) * side + c, (r == c ? GK_R(1.0) : GK_R(0.0)) + nothing);
        if (e < batch * (sweeps + 1)) moved[e] = e < batch;
    }
}

/* Number in the matrix of column i of a pair of blocks, in a round among an even number of blocks. */
GK_FN int gk_svd_paired(int i, int pair, int round, int blocks)
{
    int n = blocks - 1, a = pair == 0 ? n : (round + pair) % n, b = (round - pair + n) % n;
    int low = a < b ? a : b, high = a < b ? b : a;
    return (i < GK_SVD ? low : high) * GK_SVD + i % GK_SVD;
}

/* The same within a pair, whose columns form pairs: member `which` (0: the lower number). */
GK_FN int gk_svd_column(int pair, int round, const int which)
{
    int n = GK_NB - 1, a = pair == 0 ? n : (round + pair) % n, b = (round - pair + n) % n;
    return which == (a < b ? 0 : 1) ? a : b;
}

/* Length of the column whose square is g. */
GK_FN gk_f gk_svd_length(gk_f g, gk_f least) { return gk_sqrt(gk_max(g, least * least)); }

/* The largest cosine between two columns of which g has the products; in every thread. */
GK_FN gk_f gk_svd_cosine(GK_LOCAL_PTR const gk_f* g, GK_LOCAL_PTR gk_f* tmp, gk_f least)
{
    gk_f most = GK_R(0.0);
    int c = gk_tile_col();
    gk_f length = gk_svd_length(g[c * GK_NB_PITCH + c], least);
    GK_EACH_ROW(q) {
        int r = gk_tile_row(q);
        if (r != c) most = gk_max(most, gk_fabs(g[r * GK_NB_PITCH + c]) / (length * gk_svd_length(g[r * GK_NB_PITCH + r], least)));
    }
    return gk_block_max(most, tmp);
}

/* One sweep of rotations over 32 columns with the products g, for cosines above `floor`, taken along in v. A rotation is x - s (y + h x),
 * y + s (x - h y) with h = s / (1 + c), which keeps lengths to within roundings of s^2 (Rutishauser, 1966). turn holds s and h of 16 rotations. */
GK_FN void gk_svd_sweep(GK_LOCAL_PTR gk_f* g, GK_LOCAL_PTR gk_f* v, GK_LOCAL_PTR gk_f* turn, gk_f floor, gk_f least)
{
    int t = gk_lid(), a = t / GK_SVD, b = t % GK_SVD;
    for (int round = 0; round < GK_NB - 1; round++) {
        if (t < GK_SVD) {
            int p = gk_svd_column(t, round, 0), q = gk_svd_column(t, round, 1);
            gk_f gp = g[p * GK_NB_PITCH + p], gq = g[q * GK_NB_PITCH + q], off = g[p * GK_NB_PITCH + q], tangent = GK_R(0.0);
            if (!(gk_fabs(off) <= floor * gk_svd_length(gp, least) * gk_svd_length(gq, least))) {
                gk_f theta = (gq - gp) / (GK_R(2.0) * off);
                tangent = GK_R(1.0) / (gk_fabs(theta) + gk_sqrt(theta * theta + GK_R(1.0)));
                if (theta < GK_R(0.0)) tangent = -tangent;
            }
            gk_f cosine = GK_R(1.0) / gk_sqrt(tangent * tangent + GK_R(1.0));
            turn[t] = tangent * cosine;
            turn[GK_SVD + t] = tangent * cosine / (GK_R(1.0) + cosine);
        }
        GK_BARRIER();
        int pa = gk_svd_column(a, round, 0) * GK_NB_PITCH, qa = gk_svd_column(a, round, 1) * GK_NB_PITCH;
        int pb = gk_svd_column(b, round, 0), qb = gk_svd_column(b, round, 1);
        gk_f sa = turn[a], ha = turn[GK_SVD + a], sb = turn[b], hb = turn[GK_SVD + b];
        gk_f xp = g[pa + pb], yp = g[qa + pb], xq = g[pa + qb], yq = g[qa + qb];
        gk_f pp = xp - sa * (yp + ha * xp), qp = yp + sa * (xp - ha * yp), pq = xq - sa * (yq + ha * xq), qq = yq + sa * (xq - ha * yq);
        /* Elements that a rotation is for become 0. */
        int rotated = a == b && sa != GK_R(0.0);
        g[pa + pb] = pp - sb * (pq + hb * pp);
        g[pa + qb] = rotated ? GK_R(0.0) : pq + sb * (pp - hb * pq);
        g[qa + pb] = rotated ? GK_R(0.0) : qp - sb * (qq + hb * qp);
        g[qa + qb] = qq + sb * (qp - hb * qq);
        for (int i = 2 * a; i < 2 * a + 2; i++) {
            gk_f x = v[i * GK_NB_PITCH + pb], y = v[i * GK_NB_PITCH + qb];
            v[i * GK_NB_PITCH + pb] = x - sb * (y + hb * x);
            v[i * GK_NB_PITCH + qb] = y + sb * (x - hb * y);
        }
        GK_BARRIER();
    }
}

/* turns [batch, pairs, 32, 32] = J of each pair of blocks of a round. Launch: a block per pair. */
GK_KERNEL(svd_pairs)(GK_IN(gk_t, a), GK_IN(gk_t, scale), GK_OUT(int, moved), GK_OUT(gk_t, turns), gk_i64 batch, gk_i64 high, int side,
                     int round, int sweep)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(int, moved); GK_BIND_OUT(gk_t, turns);
    GK_LOCAL gk_f g[GK_NB_TILE];
    GK_LOCAL gk_f v[GK_NB_TILE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f turn[2 * GK_SVD];
    int blocks = side / GK_SVD, pairs = blocks / 2, c = gk_tile_col();
    for (gk_i64 w = gk_bid(0); w < batch * pairs; w += gk_nblocks(0)) {
        gk_i64 m = w / pairs, col = gk_svd_paired(c, (int)(w % pairs), round, blocks);
        if (moved[sweep * batch + m]) {
            gk_f norm = gk_load(scale, 2 * m + 1), least = GK_SVD_EPS * (norm == GK_R(0.0) ? GK_R(1.0) : norm);
            gk_f products[4], bound = GK_SVD_EPS * gk_sqrt((gk_f)high);
            GK_EACH_ROW(q) products[q] = GK_R(0.0);
            for (gk_i64 first = 0; first < high; first += GK_NB) {
                GK_EACH_ROW(q) v[gk_tile_row(q) * GK_NB_PITCH + c] = gk_load(a, (m * high + first + gk_tile_row(q)) * side + col);
                GK_BARRIER();
                gk_tile_gram(products, v, v);
                GK_BARRIER();
            }
            gk_tile_put(g, products);
            GK_EACH_ROW(q) v[gk_tile_row(q) * GK_NB_PITCH + c] = gk_tile_row(q) == c ? GK_R(1.0) : GK_R(0.0);
            GK_BARRIER();
            gk_f cosine = gk_svd_cosine(g, tmp, least);
            if (gk_lid() == 0 && !(cosine <= bound)) moved[(sweep + 1) * batch + m] = 1;
            for (int inner = 0; inner < GK_SVD_INNER && cosine > GK_R(0.25) * bound; inner++) {
                gk_svd_sweep(g, v, turn, GK_R(0.0625) * bound, least);
                cosine = gk_svd_cosine(g, tmp, least);
            }
            GK_EACH_ROW(q) gk_store(turns, (w * GK_NB + gk_tile_row(q)) * GK_NB + c, v[gk_tile_row(q) * GK_NB_PITCH + c]);
            GK_BARRIER();
        }
    }
}

/* y [batch, high, side] <- y J. Launch: a block per 32 rows and pair. */
GK_KERNEL(svd_columns)(GK_IN(gk_t, turns), GK_IN(int, moved), GK_OUT(gk_t, y), gk_i64 batch, gk_i64 high, int side, int round, int sweep)
{
    GK_BIND_IN(gk_t, turns); GK_BIND_IN(int, moved); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f x[GK_NB_TILE];
    GK_LOCAL gk_f j[GK_NB_TILE];
    int blocks = side / GK_SVD, pairs = blocks / 2, c = gk_tile_col();
    gk_i64 tiles = high / GK_NB;
    for (gk_i64 w = gk_bid(0); w < batch * tiles * pairs; w += gk_nblocks(0)) {
        gk_i64 m = w / pairs / tiles, pair = m * pairs + w % pairs, first = (m * high + w / pairs % tiles * GK_NB) * side;
        if (moved[sweep * batch + m]) {
            gk_f acc[4];
            gk_i64 col = first + gk_svd_paired(c, (int)(w % pairs), round, blocks);
            GK_EACH_ROW(q) {
                int at = gk_tile_row(q) * GK_NB_PITCH + c;
                x[at] = gk_load(y, col + (gk_i64)gk_tile_row(q) * side);
                j[at] = gk_load(turns, (pair * GK_NB + gk_tile_row(q)) * GK_NB + c);
                acc[q] = GK_R(0.0);
            }
            GK_BARRIER();
            gk_tile_product(acc, x, j, 0, GK_R(1.0));
            GK_EACH_ROW(q) gk_store(y, col + (gk_i64)gk_tile_row(q) * side, acc[q]);
            GK_BARRIER();
        }
    }
}

/* length [batch, n] = those of the columns of a; s = these in descending order, times the matrix's power of 2; rank[i] = place of column i; info =
 * whether the last of the sweeps still found columns that are not orthogonal. Launch: one block per matrix. */
GK_KERNEL(svd_values)(GK_IN(gk_t, a), GK_IN(gk_t, scale), GK_IN(int, moved), GK_OUT(gk_t, length), GK_OUT(gk_t, s), GK_OUT(int, rank),
                      GK_OUT(int, info), gk_i64 batch, gk_i64 n, gk_i64 high, gk_i64 side, int sweeps)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, scale); GK_BIND_IN(int, moved); GK_BIND_OUT(gk_t, length); GK_BIND_OUT(gk_t, s); GK_BIND_OUT(int, rank);
    GK_BIND_OUT(int, info);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 m = gk_bid(0); m < batch; m += gk_nblocks(0)) {
        /* Groups of 16 threads add the squares of 16 columns at a time. */
        for (gk_i64 first = 0; first < n; first += GK_SVD) {
            gk_i64 c = first + gk_lid() % GK_SVD;
            gk_f sum = GK_R(0.0);
            for (gk_i64 r = gk_lid() / GK_SVD; r < high; r += GK_BLOCK / GK_SVD) {
                gk_f x = gk_load(a, (m * high + r) * side + c);
                sum += x * x;
            }
            tmp[gk_lid()] = sum;
            GK_BARRIER();
            if (gk_lid() < GK_SVD && c < n) {
                for (int i = 1; i < GK_BLOCK / GK_SVD; i++) sum += tmp[i * GK_SVD + gk_lid()];
                gk_store(length, m * n + c, gk_sqrt(sum));
            }
            GK_BARRIER();
        }
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) {
            gk_f d = gk_load(length, m * n + i);
            int place = 0;
            for (gk_i64 k = 0; k < n; k++) {
                gk_f e = gk_load(length, m * n + k);
                place += e > d || (!(e < d) && k < i);
            }
            rank[m * n + i] = place;
            gk_store(s, m * n + place, d * gk_load(scale, 2 * m));
        }
        if (gk_lid() == 0) info[m] = moved[sweeps * batch + m];
    }
}

/* y [batch, rows, n] (matrices by strides) = the first rows and columns of x [batch, high, side], columns at their places; where lengths are given,
 * over these, and 0 for columns not longer than eps |A|. Launch: grid-stride over elements of y. */
GK_KERNEL(svd_vectors)(GK_IN(gk_t, x), GK_IN(gk_t, length), GK_IN(gk_t, scale), GK_IN(int, rank), GK_OUT(gk_t, y), GK_DIMS(sy), gk_i64 batch,
                       gk_i64 rows, gk_i64 n, gk_i64 high, gk_i64 side)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, length); GK_BIND_IN(gk_t, scale); GK_BIND_IN(int, rank); GK_BIND_OUT(gk_t, y);
    for (gk_i64 e = gk_gid(); e < batch * rows * n; e += gk_gsize()) {
        gk_i64 c = e % n, r = e / n % rows, m = e / n / rows;
        gk_f value = gk_load(x, (m * high + r) * side + c);
        if (length) {
            gk_f over = gk_load(length, m * n + c);
            value = over <= GK_SVD_EPS * gk_load(scale, 2 * m + 1) ? GK_R(0.0) : value / over;
        }
        gk_matrix to = gk_matrix_of(sy, m);
        gk_store(y, to.at + r * to.rs + rank[m * n + c] * to.cs, value);
    }
}

/* Columns of y [batch, rows, n] (matrices by strides) change sign where the diagonal of r [batch, n, rows] is negative, and become NaN where it is NaN:
 * the Q of nearly orthonormal columns becomes these columns. Launch: grid-stride over elements of y. */
GK_KERNEL(svd_signs)(GK_IN(gk_t, r), GK_OUT(gk_t, y), GK_DIMS(sy), gk_i64 batch, gk_i64 rows, gk_i64 n)
{
    GK_BIND_IN(gk_t, r); GK_BIND_OUT(gk_t, y);
    for (gk_i64 e = gk_gid(); e < batch * rows * n; e += gk_gsize()) {
        gk_i64 c = e % n, row = e / n % rows, m = e / n / rows;
        gk_matrix to = gk_matrix_of(sy, m);
        gk_i64 at = to.at + row * to.rs + c * to.cs;
        gk_f diagonal = gk_load(r, (m * n + c) * rows + c);
        if (!(diagonal >= GK_R(0.0))) gk_store(y, at, diagonal < GK_R(0.0) ? -gk_load(y, at) : diagonal);
    }
}
