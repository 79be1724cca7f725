/* What products do with sums before they are stored; the formula and its parameters stand in gemm.c. */
#include "operands.h"

/* Applies the epilogue to columns n ... n + 3 of row m of batch b. */
GK_FN void gk_epilogue(gk_four x, gk_i64 b, gk_i64 m, gk_i64 n, GK_GLOBAL const gk_o* c, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_o* residual,
                       GK_GLOBAL const gk_t* scale, GK_GLOBAL gk_o* y, GK_GLOBAL gk_o* z, gk_dims size, gk_dims sc, gk_dims sr, gk_dims sv,
                       gk_dims sy, gk_dims sz, gk_f alpha, gk_f beta, int act, gk_f p)
{
    int have = size.v[1] - n >= 4 ? 4 : (int)(size.v[1] - n);
    if (m >= size.v[0] || have <= 0) return;
    GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] *= alpha;
    if (scale) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] *= gk_load(scale, m * sv.v[2] + (n + u) * sv.v[3]);
    }
    if (c) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += beta * gk_load_o(c, b * sc.v[2] + m * sc.v[0] + (n + u) * sc.v[1]);
    }
    if (bias) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += gk_load(bias, m * sv.v[0] + (n + u) * sv.v[1]);
    }
    if (residual) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += gk_load_o(residual, b * sr.v[2] + m * sr.v[0] + (n + u) * sr.v[1]);
    }
    if (z) gk_store_four(z, b * sz.v[2] + m * sz.v[0] + n * sz.v[1], sz.v[1], have, (int)size.v[6] & 2, x);
    x = gk_activate(act, x, p);
    gk_store_four(y, b * sy.v[2] + m * sy.v[0] + n * sy.v[1], sy.v[1], have, (int)size.v[6] & 1, x);
}

/* Partial sums in row-major order. */
GK_FN void gk_store_part(GK_GLOBAL gk_f* part, gk_i64 at, gk_i64 m, gk_i64 n, gk_dims size, gk_four x)
{
    if (m >= size.v[0]) return;
    part += (at * size.v[0] + m) * size.v[1];
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (n + u < size.v[1]) part[n + u] = x.v[u];
}
