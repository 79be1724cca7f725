/* Gradient of rows to which a bias and an activation were applied, y[r] = act(z[r] + bias[g]) for the rows r of group g: dx = dy * act'(x), x being the
 * saved tensor, and D[g] = the sum of the group's rows of dx, or added to it.
 *
 * size = {rows, N, groups, parts of a group}. Without `offsets` all rows are one group; with them (as in gemm/groups.h) rows of no group add to no bias. N is
 * a multiple of GK_W and bases are 16-byte aligned. A block takes GK_BIAS_LANES items of each GK_BIAS_ROWS-th row of a part, whose rows lie between those of
 * the other parts. With several parts their sums go to `part` [parts, groups, N], which activation_combine of gated.c adds. Sums of what is not yet rounded
 * to gk_t, in gk_f, of a fixed order: deterministic. Reference: autograd of torch.nn.functional.<name>(z + bias).
 */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4
#include "common/elementwise/unary_ops.h"
#include "activation_ops.h"
#include "common/gemm/groups.h"

#define GK_BIAS_LANES 8
#define GK_BIAS_ROWS (GK_BLOCK / GK_BIAS_LANES)
#define GK_BIAS_FLIGHT 2

/* dx of the rows begin, begin + step, .. below end, an item of each, and its sums. */
GK_FN gk_vec gk_bias_column(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_i64 n, gk_i64 begin, gk_i64 end, gk_i64 step,
                            gk_f p, gk_f q, gk_f s)
{
    gk_vec sum;
    GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] = GK_R(0.0);
    for (gk_i64 r = begin; r < end; r += GK_BIAS_FLIGHT * step) {
        gk_raw16 g[GK_BIAS_FLIGHT], a[GK_BIAS_FLIGHT];
        GK_UNROLL for (int i = 0; i < GK_BIAS_FLIGHT; i++) {
            if (r + i * step >= end) break;
            g[i] = gk_load16((GK_GLOBAL const void*)(dy + (r + i * step) * n));
            a[i] = gk_load16((GK_GLOBAL const void*)(x + (r + i * step) * n));
        }
        GK_UNROLL for (int i = 0; i < GK_BIAS_FLIGHT; i++) {
            if (r + i * step >= end) break;
            gk_vec d = gk_decode16(g[i]), v = gk_decode16(a[i]);
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                d.v[u] = GK_BWD(d.v[u], v.v[u], p, q, s);
                sum.v[u] += d.v[u];
            }
            gk_storev(dx, (r + i * step) * n, d);
        }
    }
    return sum;
}

// Units: FLOATS64 x ACTIVATIONS
/* Launch: axis 0 = runs of columns fastest, then parts, then groups, with `offsets` those before the first and behind the last, too. */
GK_KERNEL(activation_bias_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(int, offsets), GK_OUT(gk_t, dx), GK_OUT(gk_t, dbias), GK_OUT(gk_f, part),
                               GK_OUT(int, err), GK_DIMS(size), int accumulate, gk_f p, gk_f q, gk_f s, int code)
{
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_W];
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, dbias);
    GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    const int run = GK_BIAS_LANES * GK_W;
    int parts = (int)size.v[3], across = (int)((size.v[1] + run - 1) / run), rest = gk_bid(0) / across, lane = gk_lid() % GK_BIAS_LANES;
    int row = gk_lid() / GK_BIAS_LANES, of = rest % parts, no_group = 0;
    gk_i64 n = size.v[1], groups = size.v[2], group = rest / parts, first = (gk_i64)(gk_bid(0) % across) * run, column = first + lane * GK_W;
    gk_run rows;
    rows.begin = 0; rows.end = size.v[0];
    if (offsets) {
        group--;
        no_group = group < 0 || group == groups;
        rows = gk_rows_of_group(group, offsets, size.v[0], groups, err, code);
    }
    gk_vec sum = gk_bias_column(dy + column, x + column, dx + column, n, rows.begin + of * GK_BIAS_ROWS + row, column < n ? rows.end : 0,
                                (gk_i64)parts * GK_BIAS_ROWS, p, q, s);
    GK_UNROLL for (int u = 0; u < GK_W; u++) tmp[row * run + lane * GK_W + u] = sum.v[u];
    GK_BARRIER();
    if (gk_lid() < run && first + gk_lid() < n && !no_group) {
        gk_f total = GK_R(0.0);
        for (int i = 0; i < GK_BIAS_ROWS; i++) total += tmp[i * run + gk_lid()];
        gk_i64 to = group * n + first + gk_lid();
        if (parts > 1) part[of * groups * n + to] = total;
        else gk_store(dbias, to, accumulate ? gk_load(dbias, to) + total : total);
    }
}
