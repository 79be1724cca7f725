/* Gradient of the biases of ragged.c: D[g] = the sum of the rows offsets[g] <= r < offsets[g + 1] of P [rows, N], or added to it; 0 for a group without rows.
 *
 * size = {rows, N, groups, parts of a group, from row to row of P, from column to column}. A block adds one part of a group's rows in 8 runs of GK_W
 * columns (8 columns without `wide`): 8 threads a row, eight loads of each in flight; its rows lie between those of the other parts. With several parts their sums go to `part` [groups, parts, N],
 * which gemm_ragged_bias_parts adds in order. An offset that is wrong is reported and taken as in groups.h. Sums in gk_f, trees of a fixed shape:
 * deterministic. Reference: sum of dZ's rows.
 */
#include "groups.h"

#define GK_BIAS_LANES 8
#define GK_BIAS_ROWS (GK_BLOCK / GK_BIAS_LANES)
#define GK_BIAS_LOADS 8

/* acc = the sum of every apart-th of `rows` rows of p, of items of 16 bytes or of a single column. Only loads are in branches: a conversion there would wait. */
GK_FN void gk_bias_rows(gk_f* acc, GK_GLOBAL const gk_t* p, gk_i64 rows, gk_i64 apart, gk_i64 step, const int wide)
{
    GK_UNROLL for (int u = 0; u < GK_W; u++) acc[u] = GK_R(0.0);
    for (gk_i64 r = 0; r < rows; r += GK_BIAS_LOADS * apart) {
        gk_raw16 bits[GK_BIAS_LOADS];
        gk_vec v[GK_BIAS_LOADS];
        GK_UNROLL for (int i = 0; i < GK_BIAS_LOADS; i++) {
            gk_i64 at = r + i * apart;
            bits[i] = gk_make16(0u, 0u, 0u, 0u);
            if (wide && at < rows) bits[i] = gk_load16((GK_GLOBAL const void*)(p + at * step));
        }
        GK_UNROLL for (int i = 0; i < GK_BIAS_LOADS; i++) {
            gk_i64 at = r + i * apart;
            v[i] = gk_decode16(bits[i]);
            if (!wide && at < rows) v[i].v[0] = gk_load(p, at * step);
        }
        GK_UNROLL for (int from = GK_BIAS_LOADS / 2; from > 0; from /= 2)
            GK_UNROLL for (int i = 0; i < from; i++) GK_UNROLL for (int u = 0; u < GK_W; u++) v[i].v[u] += v[i + from].v[u];
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
    gk_i64 begin = rows.begin + rest % parts * GK_BIAS_ROWS + row;
    gk_f acc[GK_W];
    p += begin * size.v[4] + column * size.v[5];
    if (wide) gk_bias_rows(acc, p, column < n ? rows.end - begin : 0, parts * GK_BIAS_ROWS, size.v[4], 1);
    else gk_bias_rows(acc, p, column < n ? rows.end - begin : 0, parts * GK_BIAS_ROWS, size.v[4], 0);
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
