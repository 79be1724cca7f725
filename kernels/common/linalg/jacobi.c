/* Eigenvalues and eigenvectors of symmetric matrices by the cyclic Jacobi method on blocks of 16 rows and columns.
 *
 * Matrices are padded by zeros to an even number of blocks. In each of the (blocks - 1) rounds of a sweep the blocks form pairs that have none in common
 * (a round-robin tournament); jacobi_pairs finds for each pair an orthogonal J [32, 32] that makes its submatrix diagonal, by rotations of which 16 run
 * at a time, and jacobi_both and jacobi_columns apply the J of all pairs: A <- J^T A J, V <- V J. A sweep that finds no element off the diagonal above
 * eps |A| (Frobenius norm) is the last that does anything: moved[sweep + 1] stays 0, and the launches of further sweeps return.
 * Launch: a block per pair, per tile of A on or above the diagonal, per tile of V. Arithmetic in gk_f. Deterministic: a sweep's entries in `moved` are
 * only ever set. References: torch.linalg.eigh; G. Golub, C. Van Loan, "Matrix Computations", section 8.5.
 */
#include "common/linalg/block.h"

#define GK_JACOBI 16
#if GK_DTYPE == GK_F64
#define GK_JACOBI_EPS 2.220446049250313e-16
#else
#define GK_JACOBI_EPS GK_R(1.1920929e-7)
#endif
/* Most sweeps within a pair. */
#define GK_JACOBI_INNER 3

/* Member `which` (0: the lower number) of pair k in a round among an even number of players. */
GK_FN int gk_paired(int k, int round, int players, const int which)
{
    int n = players - 1, a = k == 0 ? n : (round + k) % n, b = (round - k + n) % n;
    return which == (a < b ? 0 : 1) ? a : b;
}

/* Row or column of the matrix that is number i of a pair of blocks. */
GK_FN gk_i64 gk_paired_row(int low, int high, int i) { return (gk_i64)(i < GK_JACOBI ? low : high) * GK_JACOBI + i % GK_JACOBI; }

// Units: REALS
/* a [batch, side, side] = the symmetric matrices whose lower (upper) triangle x [batch, n, n] has, over their powers of 2; v = 1 (may be null);
 * moved[0] = 1, other entries of [sweeps + 1, batch] 0. Launch: grid-stride over elements of a. */
GK_KERNEL(jacobi_load)(GK_IN(gk_t, x), GK_IN(gk_t, scale), GK_OUT(gk_t, a), GK_OUT(gk_t, v), GK_OUT(int, moved), gk_i64 batch, gk_i64 n, gk_i64 side,
                       int upper, int sweeps)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(gk_t, a); GK_BIND_OUT(gk_t, v); GK_BIND_OUT(int, moved);
    for (gk_i64 e = gk_gid(); e < batch * side * side; e += gk_gsize()) {
        gk_i64 c = e % side, r = e / side % side, m = e / side / side, low = r < c ? r : c, high = r < c ? c : r;
        gk_f value = GK_R(0.0);
        if (high < n) value = gk_load(x, (m * n + (upper ? low : high)) * n + (upper ? high : low)) / gk_load(scale, 2 * m);
        gk_store(a, e, value);
        if (v) gk_store(v, e, r == c ? GK_R(1.0) : GK_R(0.0));
        if (e < batch * (sweeps + 1)) moved[e] = e < batch;
    }
}

/* The largest magnitude off the diagonal of a tile; in every thread. */
GK_FN gk_f gk_off_diagonal(GK_LOCAL_PTR const gk_f* g, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f most = GK_R(0.0);
    GK_EACH_ROW(q) {
        if (gk_tile_row(q) != gk_tile_col()) most = gk_max(most, gk_fabs(g[gk_tile_row(q) * GK_NB_PITCH + gk_tile_col()]));
    }
    return gk_block_max(most, tmp);
}

/* One sweep of rotations over the 32 rows and columns of g, for elements above `floor`, taken along in v. A rotation is x - s (y + h x), y + s (x - h y)
 * with h = s / (1 + c), which keeps lengths to within roundings of s^2 (Rutishauser, 1966). turn holds s and h of 16 rotations. */
GK_FN void gk_jacobi_sweep(GK_LOCAL_PTR gk_f* g, GK_LOCAL_PTR gk_f* v, GK_LOCAL_PTR gk_f* turn, gk_f floor)
{
    int t = gk_lid(), a = t / GK_JACOBI, b = t % GK_JACOBI;
    for (int round = 0; round < GK_NB - 1; round++) {
        if (t < GK_JACOBI) {
            int p = gk_paired(t, round, GK_NB, 0), q = gk_paired(t, round, GK_NB, 1);
            gk_f off = g[p * GK_NB_PITCH + q], tangent = GK_R(0.0);
            if (!(gk_fabs(off) <= floor)) {
                gk_f theta = (g[q * GK_NB_PITCH + q] - g[p * GK_NB_PITCH + p]) / (GK_R(2.0) * off);
                tangent = GK_R(1.0) / (gk_fabs(theta) + gk_sqrt(theta * theta + GK_R(1.0)));
                if (theta < GK_R(0.0)) tangent = -tangent;
            }
            gk_f cosine = GK_R(1.0) / gk_sqrt(tangent * tangent + GK_R(1.0));
            turn[t] = tangent * cosine;
            turn[GK_JACOBI + t] = tangent * cosine / (GK_R(1.0) + cosine);
        }
        GK_BARRIER();
        int pa = gk_paired(a, round, GK_NB, 0) * GK_NB_PITCH, qa = gk_paired(a, round, GK_NB, 1) * GK_NB_PITCH;
        int pb = gk_paired(b, round, GK_NB, 0), qb = gk_paired(b, round, GK_NB, 1);
        gk_f sa = turn[a], ha = turn[GK_JACOBI + a], sb = turn[b], hb = turn[GK_JACOBI + b];
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
GK_KERNEL(jacobi_pairs)(GK_IN(gk_t, a), GK_IN(gk_t, scale), GK_OUT(int, moved), GK_OUT(gk_t, turns), gk_i64 batch, int side, int round, int sweep)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, scale); GK_BIND_OUT(int, moved); GK_BIND_OUT(gk_t, turns);
    GK_LOCAL gk_f g[GK_NB_TILE];
    GK_LOCAL gk_f v[GK_NB_TILE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f turn[2 * GK_JACOBI];
    int blocks = side / GK_JACOBI, pairs = blocks / 2, c = gk_tile_col();
    for (gk_i64 w = gk_bid(0); w < batch * pairs; w += gk_nblocks(0)) {
        gk_i64 m = w / pairs;
        if (moved[sweep * batch + m]) {
            int low = gk_paired((int)(w % pairs), round, blocks, 0), high = gk_paired((int)(w % pairs), round, blocks, 1);
            GK_EACH_ROW(q) {
                int r = gk_tile_row(q);
                gk_i64 row = gk_paired_row(low, high, r > c ? r : c), col = gk_paired_row(low, high, r > c ? c : r);
                g[r * GK_NB_PITCH + c] = gk_load(a, (m * side + row) * side + col);
                v[r * GK_NB_PITCH + c] = r == c ? GK_R(1.0) : GK_R(0.0);
            }
            GK_BARRIER();
            gk_f bound = GK_JACOBI_EPS * gk_load(scale, 2 * m + 1), off = gk_off_diagonal(g, tmp);
            if (gk_lid() == 0 && !(off <= bound)) moved[(sweep + 1) * batch + m] = 1;
            for (int inner = 0; inner < GK_JACOBI_INNER && off > GK_R(0.25) * bound; inner++) {
                gk_jacobi_sweep(g, v, turn, GK_R(0.0625) * bound);
                off = gk_off_diagonal(g, tmp);
            }
            GK_EACH_ROW(q) gk_store(turns, (w * GK_NB + gk_tile_row(q)) * GK_NB + c, v[gk_tile_row(q) * GK_NB_PITCH + c]);
            GK_BARRIER();
        }
    }
}

/* The J of a pair into a tile. */
GK_FN void gk_load_turn(GK_LOCAL_PTR gk_f* tile, GK_GLOBAL const gk_t* turns, gk_i64 pair)
{
    GK_EACH_ROW(q) tile[gk_tile_row(q) * GK_NB_PITCH + gk_tile_col()] = gk_load(turns, (pair * GK_NB + gk_tile_row(q)) * GK_NB + gk_tile_col());
}

/* a <- J^T a J. Launch: a block per pair of pairs, of which those below the diagonal do nothing. */
GK_KERNEL(jacobi_both)(GK_IN(gk_t, turns), GK_IN(int, moved), GK_OUT(gk_t, a), gk_i64 batch, int side, int round, int sweep)
{
    GK_BIND_IN(gk_t, turns); GK_BIND_IN(int, moved); GK_BIND_OUT(gk_t, a);
    GK_LOCAL gk_f x[GK_NB_TILE];
    GK_LOCAL gk_f j[GK_NB_TILE];
    int blocks = side / GK_JACOBI, pairs = blocks / 2, c = gk_tile_col();
    for (gk_i64 w = gk_bid(0); w < batch * pairs * pairs; w += gk_nblocks(0)) {
        int across = (int)(w % pairs), down = (int)(w / pairs % pairs);
        gk_i64 m = w / pairs / pairs;
        if (down <= across && moved[sweep * batch + m]) {
            gk_f acc[4], both[4];
            int rl = gk_paired(down, round, blocks, 0), rh = gk_paired(down, round, blocks, 1);
            gk_i64 col = gk_paired_row(gk_paired(across, round, blocks, 0), gk_paired(across, round, blocks, 1), c);
            GK_EACH_ROW(q) {
                gk_i64 row = gk_paired_row(rl, rh, gk_tile_row(q));
                x[gk_tile_row(q) * GK_NB_PITCH + c] = gk_load(a, (m * side + row) * side + col);
                acc[q] = GK_R(0.0);
                both[q] = GK_R(0.0);
            }
            gk_load_turn(j, turns, m * pairs + across);
            GK_BARRIER();
            gk_tile_product(acc, x, j, 0, GK_R(1.0));
            GK_BARRIER();
            gk_tile_put(x, acc);
            gk_load_turn(j, turns, m * pairs + down);
            GK_BARRIER();
            gk_tile_gram(both, j, x);
            GK_EACH_ROW(q) {
                gk_i64 row = gk_paired_row(rl, rh, gk_tile_row(q));
                gk_store(a, (m * side + row) * side + col, both[q]);
                if (down != across) gk_store(a, (m * side + col) * side + row, both[q]);
            }
            GK_BARRIER();
        }
    }
}

/* v <- v J. Launch: a block per 32 rows and pair. */
GK_KERNEL(jacobi_columns)(GK_IN(gk_t, turns), GK_IN(int, moved), GK_OUT(gk_t, v), gk_i64 batch, int side, int round, int sweep)
{
    GK_BIND_IN(gk_t, turns); GK_BIND_IN(int, moved); GK_BIND_OUT(gk_t, v);
    GK_LOCAL gk_f x[GK_NB_TILE];
    GK_LOCAL gk_f j[GK_NB_TILE];
    int blocks = side / GK_JACOBI, pairs = blocks / 2, c = gk_tile_col();
    for (gk_i64 w = gk_bid(0); w < batch * pairs * pairs; w += gk_nblocks(0)) {
        int across = (int)(w % pairs);
        gk_i64 m = w / pairs / pairs, first = w / pairs % pairs * GK_NB;
        if (moved[sweep * batch + m]) {
            gk_f acc[4];
            gk_i64 col = gk_paired_row(gk_paired(across, round, blocks, 0), gk_paired(across, round, blocks, 1), c);
            GK_EACH_ROW(q) {
                x[gk_tile_row(q) * GK_NB_PITCH + c] = gk_load(v, (m * side + first + gk_tile_row(q)) * side + col);
                acc[q] = GK_R(0.0);
            }
            gk_load_turn(j, turns, m * pairs + across);
            GK_BARRIER();
            gk_tile_product(acc, x, j, 0, GK_R(1.0));
            GK_EACH_ROW(q) gk_store(v, (m * side + first + gk_tile_row(q)) * side + col, acc[q]);
            GK_BARRIER();
        }
    }
}

/* Whether an eigenvalue comes before another; NaN comes last. */
GK_FN int gk_value_before(gk_f a, gk_f b) { return gk_isnan(b) ? !gk_isnan(a) : a < b; }

/* w [batch, n] = the diagonal of a in ascending order, times its power of 2; rank[i] = place of eigenvalue i; info = whether the last of the sweeps
 * still found elements off the diagonal. Launch: one block per matrix. */
GK_KERNEL(jacobi_values)(GK_IN(gk_t, a), GK_IN(gk_t, scale), GK_IN(int, moved), GK_OUT(gk_t, w), GK_OUT(int, rank), GK_OUT(int, info), gk_i64 batch,
                         gk_i64 n, gk_i64 side, int sweeps)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, scale); GK_BIND_IN(int, moved); GK_BIND_OUT(gk_t, w); GK_BIND_OUT(int, rank); GK_BIND_OUT(int, info);
    for (gk_i64 m = gk_bid(0); m < batch; m += gk_nblocks(0)) {
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) {
            gk_f d = gk_load(a, (m * side + i) * side + i);
            int place = 0;
            for (gk_i64 k = 0; k < n; k++) {
                gk_f e = gk_load(a, (m * side + k) * side + k);
                place += gk_value_before(e, d) || (!gk_value_before(d, e) && k < i);
            }
            rank[m * n + i] = place;
            gk_store(w, m * n + place, d * gk_load(scale, 2 * m));
        }
        if (gk_lid() == 0) info[m] = moved[sweeps * batch + m];
    }
}

/* y [batch, n, n] = the columns of v at their places. Launch: grid-stride over elements. */
GK_KERNEL(jacobi_vectors)(GK_IN(gk_t, v), GK_IN(int, rank), GK_OUT(gk_t, y), gk_i64 batch, gk_i64 n, gk_i64 side)
{
    GK_BIND_IN(gk_t, v); GK_BIND_IN(int, rank); GK_BIND_OUT(gk_t, y);
    for (gk_i64 e = gk_gid(); e < batch * n * n; e += gk_gsize()) {
        gk_i64 c = e % n, r = e / n % n, m = e / n / n;
        gk_store(y, (m * n + r) * n + rank[m * n + c], gk_load(v, (m * side + r) * side + c));
    }
}
