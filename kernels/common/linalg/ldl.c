/* Factorisation P^T A P = L D L^T of symmetric matrices with the pivots of Bunch and Kaufman, and what its systems need. D has blocks of one or two
 * rows; L's diagonal is 1. Factors and pivots are LAPACK's: row k of a single block was exchanged with row pivots[k] (from 1); of a block of rows k
 * and k + 1, both of whose pivots are -p, row k + 1 was exchanged with row p. The columns of L before a block are as they were before its exchange.
 *
 *   ldl_factor    the factors in place, from the lower triangle; matrices lie in columns (element (r, c) at c * n + r)
 *   ldl_convert   L with all exchanges applied, the permutation that they make, and which rows of D belong together
 *   ldl_diagonal  X <- D^-1 X
 *
 * Launch: one block per matrix (ldl_factor, ldl_convert), else over elements. Arithmetic in gk_f. Deterministic. References:
 * torch.linalg.ldl_factor_ex, LAPACK sytf2, sytrs2; J. Bunch, L. Kaufman, "Some stable methods for calculating inertia and solving symmetric linear
 * systems", 1977.
 */

/* (1 + sqrt(17)) / 8: with it elements grow alike over one block of two rows and two of one. */
#define GK_LDL_ALPHA GK_R(0.640388203202207587)

/* The first row of largest magnitude among rows [from, n) of a column; the same for the whole block. NaN counts as largest. */
GK_FN int gk_ldl_largest(GK_GLOBAL const gk_t* column, int from, int n, GK_LOCAL_PTR gk_f* value, GK_LOCAL_PTR int* row)
{
    int t = gk_lid();
    gk_f best = GK_R(-1.0);
    row[t] = 0x7fffffff;
    for (int r = from + t; r < n; r += GK_BLOCK) {
        gk_f v = gk_fabs(gk_load(column, r));
        if (v > best || (gk_isnan(v) && !gk_isnan(best))) {
            best = v;
            row[t] = r;
        }
    }
    value[t] = best;
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
        if (t < m) {
            gk_f a = value[t], b = value[t + m];
            int same = a == b || (gk_isnan(a) && gk_isnan(b)), larger = b > a || (gk_isnan(b) && !gk_isnan(a));
            if (larger || (same && row[t + m] < row[t])) {
                value[t] = b;
                row[t] = row[t + m];
            }
        }
        GK_BARRIER();
    }
    t = row[0];
    GK_BARRIER();
    return t;
}

/* The largest magnitude in row `at` of what is left from row k on, its diagonal aside. */
GK_FN gk_f gk_ldl_row(GK_GLOBAL const gk_t* a, int n, int k, int at, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f best = GK_R(0.0);
    for (int j = k + gk_lid(); j < n; j += GK_BLOCK)
        if (j != at) best = gk_max(best, gk_fabs(gk_load(a, j < at ? (gk_i64)j * n + at : (gk_i64)at * n + j)));
    return gk_block_max(best, tmp);
}

GK_FN void gk_ldl_exchange(GK_GLOBAL gk_t* a, gk_i64 i, gk_i64 j)
{
    gk_f v = gk_load(a, i);
    gk_store(a, i, gk_load(a, j));
    gk_store(a, j, v);
}

/* Exchanges rows and columns `from` < `to` of what is left from row k on. */
GK_FN void gk_ldl_swap(GK_GLOBAL gk_t* a, int n, int k, int from, int to)
{
    gk_i64 f = (gk_i64)from * n, s = (gk_i64)to * n;
    for (int i = from + 1 + gk_lid(); i < n; i += GK_BLOCK) {
        if (i > to) gk_ldl_exchange(a, f + i, s + i);
        else if (i < to) gk_ldl_exchange(a, f + i, (gk_i64)i * n + to);
    }
    if (gk_lid() == 0) gk_ldl_exchange(a, f + from, s + to);
    if (gk_lid() == 1 && from > k) gk_ldl_exchange(a, (gk_i64)k * n + from, (gk_i64)k * n + to);
}

/* Takes the block of one row at k out of what is left. */
GK_FN void gk_ldl_single(GK_GLOBAL gk_t* a, int n, int k)
{
    GK_GLOBAL const gk_t* x = a + (gk_i64)k * n;
    gk_f r = GK_R(1.0) / gk_load(x, k);
    for (int j = k + 1 + gk_lid() / 32; j < n; j += GK_BLOCK / 32) {
        gk_f w = r * gk_load(x, j);
        for (int i = j + gk_lid() % 32; i < n; i += 32) gk_store(a, (gk_i64)j * n + i, gk_load(a, (gk_i64)j * n + i) - gk_load(x, i) * w);
    }
}

/* The column of L that belongs to it, of which gk_ldl_single was the last reader. */
GK_FN void gk_ldl_single_column(GK_GLOBAL gk_t* a, int n, int k)
{
    GK_GLOBAL gk_t* x = a + (gk_i64)k * n;
    gk_f r = GK_R(1.0) / gk_load(x, k);
    for (int i = k + 1 + gk_lid(); i < n; i += GK_BLOCK) gk_store(x, i, gk_load(x, i) * r);
}

/* The inverse of the block of rows k and k + 1 of D, as the columns of L need it. */
typedef struct { gk_f d, d11, d22; } gk_ldl_inverse;

GK_FN gk_ldl_inverse gk_ldl_invert(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* y, int k)
{
    gk_ldl_inverse b;
    gk_f d21 = gk_load(x, k + 1);
    b.d11 = gk_load(y, k + 1) / d21;
    b.d22 = gk_load(x, k) / d21;
    b.d = GK_R(1.0) / (b.d11 * b.d22 - GK_R(1.0)) / d21;
    return b;
}

/* Takes the block of rows k and k + 1 out of what is left. */
GK_FN void gk_ldl_pair(GK_GLOBAL gk_t* a, int n, int k)
{
    GK_GLOBAL const gk_t* x = a + (gk_i64)k * n;
    GK_GLOBAL const gk_t* y = x + n;
    gk_ldl_inverse b = gk_ldl_invert(x, y, k);
    for (int j = k + 2 + gk_lid() / 32; j < n; j += GK_BLOCK / 32) {
        gk_f u = b.d * (b.d11 * gk_load(x, j) - gk_load(y, j)), v = b.d * (b.d22 * gk_load(y, j) - gk_load(x, j));
        for (int i = j + gk_lid() % 32; i < n; i += 32)
            gk_store(a, (gk_i64)j * n + i, gk_load(a, (gk_i64)j * n + i) - gk_load(x, i) * u - gk_load(y, i) * v);
    }
}

/* The columns of L that belong to it, of which gk_ldl_pair was the last reader. */
GK_FN void gk_ldl_pair_columns(GK_GLOBAL gk_t* a, int n, int k)
{
    GK_GLOBAL gk_t* x = a + (gk_i64)k * n;
    GK_GLOBAL gk_t* y = x + n;
    gk_ldl_inverse b = gk_ldl_invert(x, y, k);
    for (int j = k + 2 + gk_lid(); j < n; j += GK_BLOCK) {
        gk_f u = b.d * (b.d11 * gk_load(x, j) - gk_load(y, j)), v = b.d * (b.d22 * gk_load(y, j) - gk_load(x, j));
        gk_store(x, j, u);
        gk_store(y, j, v);
    }
}

// Units: REALS
/* a [batch, n, n] by columns. info is 0, or becomes the number, from 1, of the first column in which nothing is left. Launch: one block per
 * matrix. */
GK_KERNEL(ldl_factor)(GK_OUT(gk_t, a), GK_OUT(int, pivots), GK_OUT(int, info), gk_i64 batch, int n)
{
    GK_BIND_OUT(gk_t, a); GK_BIND_OUT(int, pivots); GK_BIND_OUT(int, info);
    GK_LOCAL gk_f value[GK_BLOCK];
    GK_LOCAL int row[GK_BLOCK];
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        GK_GLOBAL gk_t* m = a + w * n * n;
        int empty = 0;
        for (int k = 0, step; k < n; k += step) {
            GK_GLOBAL const gk_t* column = m + (gk_i64)k * n;
            int at = k + 1 < n ? gk_ldl_largest(column, k + 1, n, value, row) : k, to = k;
            gk_f first = gk_fabs(gk_load(column, k)), most = k + 1 < n ? gk_fabs(gk_load(column, at)) : GK_R(0.0);
            int none = (first == GK_R(0.0) && most == GK_R(0.0)) || gk_isnan(first);
            step = 1;
            if (none) {
                if (!empty) empty = k + 1;
            } else if (!(first >= GK_LDL_ALPHA * most)) {
                gk_f beside = gk_ldl_row(m, n, k, at, value);
                if (!(first >= GK_LDL_ALPHA * most * (most / beside))) {
                    to = at;
                    step = gk_fabs(gk_load(m, (gk_i64)at * n + at)) >= GK_LDL_ALPHA * beside ? 1 : 2;
                }
            }
            GK_BARRIER();
            if (to > k + step - 1) gk_ldl_swap(m, n, k, k + step - 1, to);
            if (gk_lid() < step) pivots[w * n + k + gk_lid()] = step == 1 ? to + 1 : -to - 1;
            GK_BARRIER();
            /* Barriers stay outside of the branches (KERNEL_DIALECT.md, rules and traps). */
            if (step == 2) gk_ldl_pair(m, n, k);
            else if (!none) gk_ldl_single(m, n, k);
            GK_BARRIER();
            if (step == 2) gk_ldl_pair_columns(m, n, k);
            else if (!none) gk_ldl_single_column(m, n, k);
            GK_BARRIER();
        }
        if (gk_lid() == 0 && empty) info[w] = empty;
    }
}

/* From factors ld [batch, n, n] by rows: l, the unit lower triangle with the exchanges of later blocks applied to all columns; perm, row of B that row
 * i of P^T B is; pair: 0 for a row of D alone, 1 and 2 for the rows of a block. A pivot out of range is reported and exchanges nothing. Launch: one
 * block per matrix; a thread has its columns to itself. */
GK_KERNEL(ldl_convert)(GK_IN(gk_t, ld), GK_IN(int, pivots), GK_OUT(gk_t, l), GK_OUT(int, perm), GK_OUT(int, pair), GK_OUT(int, err), gk_i64 batch,
                       int n, int code)
{
    GK_BIND_IN(gk_t, ld); GK_BIND_IN(int, pivots); GK_BIND_OUT(gk_t, l); GK_BIND_OUT(int, perm); GK_BIND_OUT(int, pair); GK_BIND_OUT(int, err);
    int t = gk_lid();
    for (gk_i64 w = gk_bid(0); w < batch; w += gk_nblocks(0)) {
        GK_GLOBAL const int* p = pivots + w * n;
        GK_GLOBAL gk_t* m = l + w * n * n;
        for (int r = 0; r < n; r++)
            for (int c = t; c < n; c += GK_BLOCK) gk_store(m, (gk_i64)r * n + c, gk_load(ld, (w * n + r) * n + c));
        if (t == 0)
            for (int i = 0; i < n; i++) perm[w * n + i] = i;
        for (int k = 0, step; k < n; k += step) {
            int two = p[k] < 0 && k + 1 < n && p[k + 1] == p[k];
            step = two ? 2 : 1;
            int from = k + step - 1, to = (p[k] < 0 ? -(p[k] + 1) : p[k] - 1), wrong = (p[k] < 0 && !two) || to < from || to >= n;
            if (t == 0 && wrong) gk_report(err, code);
            if (t == 0) pair[w * n + k] = two;
            if (t == 0 && two) pair[w * n + k + 1] = 2;
            if (two && k % GK_BLOCK == t) gk_store(m, (gk_i64)(k + 1) * n + k, GK_R(0.0));
            if (wrong || to == from) continue;
            for (int c = t; c < k; c += GK_BLOCK) gk_ldl_exchange(m, (gk_i64)from * n + c, (gk_i64)to * n + c);
            if (t == 0) {
                int held = perm[w * n + from];
                perm[w * n + from] = perm[w * n + to];
                perm[w * n + to] = held;
            }
        }
    }
}

/* In place of x [batch, n, k], D^-1 x. Launch: grid-stride over elements. */
GK_KERNEL(ldl_diagonal)(GK_IN(gk_t, ld), GK_IN(int, pair), GK_OUT(gk_t, x), gk_i64 total, int n, gk_i64 k)
{
    GK_BIND_IN(gk_t, ld); GK_BIND_IN(int, pair); GK_BIND_OUT(gk_t, x);
    for (gk_i64 e = gk_gid(); e < total; e += gk_gsize()) {
        gk_i64 row = e / k, r = row % n, d = row * n + r;
        if (pair[row] == 0) gk_store(x, e, gk_load(x, e) / gk_load(ld, d));
        if (pair[row] == 1) {
            gk_f beside = gk_load(ld, d + n), first = gk_load(ld, d) / beside, second = gk_load(ld, d + n + 1) / beside;
            gk_f scale = first * second - GK_R(1.0), u = gk_load(x, e) / beside, v = gk_load(x, e + k) / beside;
            gk_store(x, e, (second * u - v) / scale);
            gk_store(x, e + k, (first * v - u) / scale);
        }
    }
}
