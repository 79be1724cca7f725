/* Gradient of the biases of ragged.c: D[g] = the sum of the rows offsets[g] <= r < offsets[g + 1] of P [rows, N], or added to it; 0 for a group without rows.
 *
 * size = {rows, N, groups, parts of a group, from row to row of P, from column to column}. A block adds one part of a group's rows in 32 runs of GK_W
 * columns (32 columns without `wide`): 32 threads a row, eight loads of each in flight. With several parts their sums go to `part` [groups, parts, N],
 * which gemm_ragged_bias_parts adds in order. An offset that is wrong is reported and taken as in groups.h. Sums in gk_f, trees of a fixed shape:
 * deterministic. Reference: sum of dZ's rows.
 */
#include "groups.h"

#define GK_BIAS_LANES 32
#define GK_BIAS_ROWS (GK_BLOCK / GK_BIAS_LANES)
#define GK_BIAS_LOADS 8

GK_FN gk_vec gk_bias_load(GK_GLOBAL const gk_t* p, int have, int wide)
{
    gk_vec v;
    if (have && wide) return gk_loadv(p, 0);
    GK_UNROLL for (int u = 0; u < GK_W; u++) v.v[u] = GK_R(0.0);
    if (have) v.v[0] = gk_load(p, 0);
    return v;
}

/* acc = the sum of every GK_BIAS_ROWS-th of `rows` rows of p. */
GK_FN void gk_bias_rows(gk_f* acc, GK_GLOBAL const gk_t* p, gk_i64 rows, gk_i64 step, int wide)
{
    GK_UNROLL for (int u = 0; u < GK_W; u++) acc[u] = GK_R(0.0);
    for (gk_i64 r = 0; r < rows; r += GK_BIAS_LOADS * GK_BIAS_ROWS) {
        gk_vec v[GK_BIAS_LOADS];
        GK_UNROLL for (int i = 0; i < GK_BIAS_LOADS; i++) v[i] = gk_bias_load(p + (r + i * GK_BIAS_ROWS) * step, r + i * GK_BIAS_ROWS < rows, wide);
        GK_UNROLL for (int apart = GK_BIAS_LOADS / 2; apart > 0; apart /= 2)
            GK_UNROLL for (int i = 0; i < apart; i++) GK_UNROLL for (int u = 0; u < GK_W; u++) v[i].v[u] += v[i + apart].v[u];
        GK_UNROLL for (int u = 0; u < GK_W; u++) acc[u] += v[0].v[u];
    }
}

// Units: FLOATS64
/* Launch: axis 0 = columns fastest, then parts, groups. */
GK_KERNEL(gemm_ragged_bias)(GK_IN(gk_t, p), GK_IN(int, offsets), GK_OUT(gk_t, d), GK_OUT(gk_f, part), GK_OUT(int, err), GK_DIMS(size), int wide,
                            int accumulate, int code)
{
    GK_LOCAL gk_f tmp[GK_BIAS_ROWS * GK_BIAS_LANES * GK_W];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, d); GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    int w = wide ? GK_W : 1, parts = (int)size.v[3], lane = gk_lid() % GK_BIAS_LANES, row = gk_lid() / GK_BIAS_LANES;
    gk_i64 n = size.v[1], across = (n + GK_BIAS_LANES * w - 1) / (GK_BIAS_LANES * w), at = gk_bid(0), rest = at / across, group = rest / parts;
    gk_i64 first = at % across * GK_BIAS_LANES * w, column = first + lane * w;
    gk_run rows = gk_rows_of_group(group, offsets, size.v[0], size.v[2], err, code);
    gk_i64 per = (rows.end - rows.begin + parts - 1) / parts, begin = rows.begin + rest % parts * per, end = begin + per < rows.end ? begin + per : rows.end;
    gk_f acc[GK_W];
    gk_bias_rows(acc, p + (begin + row) * size.v[4] + column * size.v[5], column < n ? end - begin - row : 0, size.v[4], wide);
    GK_UNROLL for (int u = 0; u < GK_W; u++)
        if (u < w) tmp[row * GK_BIAS_LANES * w + lane * w + u] = acc[u];
    GK_BARRIER();
    if (gk_lid() < GK_BIAS_LANES * w && first + gk_lid() < n) {
        gk_f sum = GK_R(0.0);
        for (int i = 0; i < GK_BIAS_ROWS; i++) sum += tmp[i * GK_BIAS_LANES * w + gk_lid()];
        gk_i64 to = group * n + first + gk_lid();
        if (parts > 1) part[rest * n + first + gk_lid()] = sum;
        else gk_store(d, to, accumulate ? gk_load(d, to) + sum : sum);
    }
}

/* Adds the parts of each group. Launch: grid-stride over [groups, N]. */
GK_KERNEL(gemm_ragged_bias_parts)(GK_IN(gk_f, part), GK_OUT(gk_t, d), gk_i64 n, gk_i64 groups, int parts, int accumulate)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, d);
    for (gk_i64 i = gk_gid(); i < groups * n; i += gk_gsize()) {
        gk_f sum = accumulate ? gk_load(d, i) : GK_R(0.0);
        GK_GLOBAL const gk_f* from = part + i / n * parts * n + i % n;
        for (int k = 0; k < parts; k++) sum += from[k * n];
        gk_store(d, i, sum);
    }
}
