/* LU factorisation P A = L U with partial pivoting, and what is computed from it. Matrices lie in columns (element (r, c) at c * rows + r), in which
 * the rows of a panel are read by neighbouring threads.
 *
 *   lu_panel        factors columns [first, first + width): pivots (1-based rows, as LAPACK's), info (1-based number of the first pivot that is 0)
 *   lu_swap         the exchanges of a panel for the columns outside of it
 *   lu_permutation  the permutation of rows that the exchanges make
 *   lu_permute      X = P B, or P^T B
 *   lu_det          det, or sign and log |det|, from factors and pivots
 *
 * The pivot of a column is its first element of largest magnitude; NaN counts as largest. Launch: one block per matrix (lu_panel, lu_permutation,
 * lu_det), else over elements. Arithmetic in gk_f. Deterministic. References: torch.linalg.lu_factor_ex, LAPACK getrf, getrs.
 */
#define GK_LU_WIDTH 32

/* Whether (a, i) comes before (b, j) as a pivot. */
GK_FN int gk_pivot_before(gk_f a, int i, gk_f b, int j)
{
    if (gk_isnan(a) != gk_isnan(b)) return gk_isnan(a);
    return a > b || ((a == b || gk_isnan(a)) && i < j);
}

/* The row of the pivot among rows [from, rows) of a column; the same for the whole block. */
GK_FN int gk_find_pivot(GK_GLOBAL const gk_t* column, int from, int rows, GK_LOCAL_PTR gk_f* value, GK_LOCAL_PTR int* row)
{
    int t = gk_lid(), at = 0x7fffffff;
    gk_f best = GK_R(-1.0);
    for (int r = from + t; r < rows; r += GK_BLOCK) {
        gk_f v = gk_fabs(gk_load(column, r));
        if (gk_pivot_before(v, r, best, at)) {
            best = v;
            at = r;
        }
    }
    value[t] = best;
    row[t] = at;
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
        if (t < m && gk_pivot_before(value[t + m], row[t + m], value[t], row[t])) {
            value[t] = value[t + m];
            row[t] = row[t + m];
        }
        GK_BARRIER();
    }
    at = row[0];
    GK_BARRIER();
    return at;
}

// Units: REALS
/* a [batch, cols, rows] by columns; pivots [batch, count]. Launch: one block per matrix. */
GK_KERNEL(lu_panel)(GK_OUT(gk_t, a), GK_OUT(int, pivots), GK_OUT(int, info), gk_i64 batch, int rows, gk_i64 cols, int count, int first, int width)
{
    GK_BIND_OUT(gk_t, a); GK_BIND_OUT(int, pivots); GK_BIND_OUT(int, info);
    GK_LOCAL gk_f value[GK_BLOCK];
    GK_LOCAL int row[GK_BLOCK];
    GK_LOCAL gk_f u[GK_LU_WIDTH];
    int t = gk_lid();
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        GK_GLOBAL gk_t* p = a + (w * cols + first) * rows;
        int singular = 0;
        for (int j = 0; j < width; j++) {
            int c = first + j, pivot = gk_find_pivot(p + (gk_i64)j * rows, c, rows, value, row);
            if (t < width) {
                GK_GLOBAL gk_t* column = p + (gk_i64)t * rows;
                gk_f v = gk_load(column, pivot);
                gk_store(column, pivot, gk_load(column, c));
                gk_store(column, c, v);
                u[t] = v;
            }
            if (t == 0) pivots[w * count + c] = pivot + 1;
            GK_BARRIER();
            gk_f d = u[j];
            if (d == GK_R(0.0)) {
                if (!singular) singular = c + 1;
            } else {
                for (int r = c + 1 + t; r < rows; r += GK_BLOCK) {
                    gk_f l = gk_load(p + (gk_i64)j * rows, r) / d;
                    gk_store(p + (gk_i64)j * rows, r, l);
                    for (int k = j + 1; k < width; k++) {
                        GK_GLOBAL gk_t* column = p + (gk_i64)k * rows;
                        gk_store(column, r, gk_load(column, r) - l * u[k]);
                    }
                }
            }
            GK_BARRIER();
        }
        if (t == 0 && singular && info[w] == 0) info[w] = singular;
    }
}

/* The exchanges of a panel for columns [from, from + others) and, behind the panel, up to the last. Launch: grid-stride over batch * columns. */
GK_KERNEL(lu_swap)(GK_IN(int, pivots), GK_OUT(gk_t, a), gk_i64 batch, int rows, gk_i64 cols, int count, int first, int width)
{
    GK_BIND_IN(int, pivots); GK_BIND_OUT(gk_t, a);
    gk_i64 others = cols - width;
    for (gk_i64 e = gk_gid(); e < batch * others; e += gk_gsize()) {
        gk_i64 w = e / others, c = e % others;
        if (c >= first) c += width;
        GK_GLOBAL gk_t* column = a + (w * cols + c) * rows;
        for (int i = first; i < first + width; i++) {
            int p = pivots[w * count + i] - 1;
            gk_f v = gk_load(column, p);
            gk_store(column, p, gk_load(column, i));
            gk_store(column, i, v);
        }
    }
}

/* perm[i] = row of B that row i of P B is. A pivot out of range is reported and exchanges nothing. Launch: one block per matrix. */
GK_KERNEL(lu_permutation)(GK_IN(int, pivots), GK_OUT(int, perm), GK_OUT(int, err), gk_i64 batch, int n, int code)
{
    GK_BIND_IN(int, pivots); GK_BIND_OUT(int, perm); GK_BIND_OUT(int, err);
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        for (int i = gk_lid(); i < n; i += GK_BLOCK) perm[w * n + i] = i;
        GK_BARRIER();
        if (gk_lid() == 0) {
            for (int i = 0; i < n; i++) {
                int p = pivots[w * n + i] - 1;
                if (p < 0 || p >= n) {
                    gk_report(err, code);
                } else {
                    int held = perm[w * n + i];
                    perm[w * n + i] = perm[w * n + p];
                    perm[w * n + p] = held;
                }
            }
        }
        GK_BARRIER();
    }
}

/* x[i] = b[perm[i]], or with `inverse` x[perm[i]] = b[i], for rows of k elements. Launch: grid-stride over elements. */
GK_KERNEL(lu_permute)(GK_IN(gk_t, b), GK_IN(int, perm), GK_OUT(gk_t, x), gk_i64 total, int n, gk_i64 k, int inverse)
{
    GK_BIND_IN(gk_t, b); GK_BIND_IN(int, perm); GK_BIND_OUT(gk_t, x);
    for (gk_i64 e = gk_gid(); e < total; e += gk_gsize()) {
        gk_i64 c = e % k, r = e / k, w = r / n, other = (w * n + perm[r]) * k + c;
        if (inverse) gk_store(x, other, gk_load(b, e));
        else gk_store(x, e, gk_load(b, other));
    }
}

/* From factors [n, n] and pivots: det; sign and log |det|; each may be null. The product is taken as a mantissa and a power of 2 where only its
 * logarithm is asked for: the logarithms are added. Launch: one block per matrix. */
GK_KERNEL(lu_det)(GK_IN(gk_t, lu), GK_IN(int, pivots), GK_OUT(gk_t, det), GK_OUT(gk_t, sign), GK_OUT(gk_t, logabs), gk_i64 batch, int n)
{
    GK_BIND_IN(gk_t, lu); GK_BIND_IN(int, pivots); GK_BIND_OUT(gk_t, det); GK_BIND_OUT(gk_t, sign); GK_BIND_OUT(gk_t, logabs);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f signs[GK_BLOCK];
    int t = gk_lid();
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        gk_f product = GK_R(1.0), flips = GK_R(1.0), logs = GK_R(0.0);
        for (int i = t; i < n; i += GK_BLOCK) {
            gk_f d = gk_load(lu, (w * n + i) * n + i);
            if (pivots[w * n + i] != i + 1) product = -product;
            product *= d;
            if (pivots[w * n + i] != i + 1) flips = -flips;
            flips *= d > GK_R(0.0) ? GK_R(1.0) : d < GK_R(0.0) ? GK_R(-1.0) : d;
            logs += gk_log(gk_fabs(d));
        }
        tmp[t] = product;
        signs[t] = flips;
        GK_BARRIER();
        for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
            if (t < m) {
                tmp[t] *= tmp[t + m];
                signs[t] *= signs[t + m];
            }
            GK_BARRIER();
        }
        if (t == 0 && det) gk_store(det, w, tmp[0]);
        if (t == 0 && sign) gk_store(sign, w, signs[0]);
        GK_BARRIER();
        logs = gk_block_sum(logs, tmp);
        if (t == 0 && logabs) gk_store(logabs, w, logs);
        GK_BARRIER();
    }
}
