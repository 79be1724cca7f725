/* Sums of the columns of few rows, in one launch: y[c] (+)= sum of x[r, c] over the rows. The same as reduce_columns of reduce.c without its general
 * coordinates, whose text is twenty times as long: a few rows take less time to add than that seems to take to read.
 *
 * A cluster of blocks has GK_COLUMN_ITEMS items side by side, each of its blocks `chunk` rows. Their sums meet in the local memory of the first, which adds
 * them in order. Sums in gk_f, trees of a fixed shape: deterministic. Reference: x.sum(0).
 */
#include "common/prelude/cluster.h"
#include "common/prelude/rows.h"

/* Items side by side, and rows of a block at a time: GK_COLUMN_ROWS of each thread are in flight. */
#define GK_COLUMN_ITEMS 8
#define GK_COLUMN_STEP (GK_BLOCK / GK_COLUMN_ITEMS)
#define GK_COLUMN_ROWS 8
#define GK_COLUMN_VALUES (GK_COLUMN_ITEMS * GK_W)

#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS

/* The thread's sums of an item over every GK_COLUMN_STEP-th of the rows r ... end - 1. */
GK_FN gk_vec gk_sum_rows(GK_GLOBAL const gk_t* p, gk_i64 step, gk_i64 r, gk_i64 end, int wide)
{
    gk_vec s;
    GK_UNROLL for (int k = 0; k < GK_W; k++) s.v[k] = GK_R(0.0);
    GK_ROLLED for (; r < end; r += GK_COLUMN_ROWS * GK_COLUMN_STEP) {
        gk_raw16 q[GK_COLUMN_ROWS];
        GK_UNROLL for (int u = 0; u < GK_COLUMN_ROWS; u++) {
            q[u] = gk_make16(0u, 0u, 0u, 0u);
            if (r + u * GK_COLUMN_STEP < end) q[u] = gk_item_bits(p, (r + u * GK_COLUMN_STEP) * step, wide);
        }
        GK_UNROLL for (int u = 0; u < GK_COLUMN_ROWS; u++) {
            gk_vec v = gk_decode16(q[u]);
            GK_UNROLL for (int k = 0; k < GK_W; k++) s.v[k] += v.v[k];
        }
    }
    return s;
}

/* x has n rows of `items` items, `step` elements apart: 16 aligned bytes with `wide`, else elements. Launch: axis 0 = blocks of a cluster fastest, then
 * GK_COLUMN_ITEMS items. */
// Units: FLOATS64
GK_KERNEL(column_sums)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, gk_i64 step, gk_i64 chunk, int items, int wide, gk_i64 step_y, int accumulate)
{
    GK_LOCAL gk_f sums[GK_BLOCK * GK_W];
    GK_LOCAL gk_f given[GK_CLUSTER * GK_COLUMN_VALUES];
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    int block = gk_bid(0) % GK_CLUSTER, t = gk_lid(), first = gk_bid(0) / GK_CLUSTER * GK_COLUMN_ITEMS, item = first + t % GK_COLUMN_ITEMS;
    int per = wide ? GK_W : 1, value = t % GK_W, column = (first + t / GK_W) * per + value;
    gk_i64 from = block * chunk, end = from + chunk < n ? from + chunk : n;
    gk_f sum = GK_R(0.0);
    GK_CLUSTER_ARRIVE();
    gk_vec s = gk_sum_rows(x + (gk_i64)item * per, step, from + t / GK_COLUMN_ITEMS, item < items ? end : from, wide);
    GK_UNROLL for (int k = 0; k < GK_W; k++) sums[t * GK_W + k] = s.v[k];
    GK_BARRIER();
    if (t < GK_COLUMN_VALUES) GK_UNROLL for (int j = 0; j < GK_COLUMN_STEP; j++) sum += sums[j * GK_COLUMN_VALUES + t];
    GK_CLUSTER_WAIT(); /* all blocks have begun: their memory can be written */
    if (t < GK_COLUMN_VALUES) gk_cluster_put(given + block * GK_COLUMN_VALUES + t, sum, 0);
    GK_CLUSTER_BARRIER();
    if (block > 0 || t >= GK_COLUMN_VALUES || value >= per || first + t / GK_W >= items) return;
    sum = given[t];
    GK_UNROLL for (int b = 1; b < GK_CLUSTER; b++) sum += given[b * GK_COLUMN_VALUES + t];
    gk_store(y, column * step_y, accumulate ? gk_load(y, column * step_y) + sum : sum);
}
