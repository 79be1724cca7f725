/* Reductions of the sources of a scatter that share a destination, and their gradients. The sources are sorted by destination (sort/radix.c), so that
 * those of one destination are neighbours in the order of their positions; keys not below `limit` are dropped ones, and may lie anywhere. `n`
 * sorted pairs are cut into runs; what crosses runs goes to `head` and `tail`, for scatter_reduce_combine to add up in order.
 * Operands are contiguous, y [outer, limit, inner]. Launch: grid-stride unless stated. Sums in gk_f. Deterministic.
 * Reference: x.index_add, x.scatter_reduce.
 */
#include "common/prelude/coordinates.h"

#define GK_SUM 0
#define GK_PROD 1
#define GK_INDEX_MEAN 2
#define GK_AMAX 3
#define GK_AMIN 4
/* What a source counts as: itself, one, whether it equals y there, whether it is 0, itself with 0 replaced by 1. */
#define GK_OWN 0
#define GK_ONE 1
#define GK_TIE 2
#define GK_INDEX_IS_ZERO 3
#define GK_INDEX_NONZERO 4

GK_FN gk_f gk_combine(gk_f a, gk_f b, int how)
{
    return how == GK_PROD ? a * b : how == GK_AMAX ? gk_max(a, b) : how == GK_AMIN ? gk_min(a, b) : a + b;
}

GK_FN gk_vec gk_combinev(gk_vec a, gk_vec b, int how)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = gk_combine(a.v[k], b.v[k], how);
    return a;
}

/* One element, or 16 bytes, at an element index; unused lanes are 0. */
GK_FN gk_vec gk_fetch(GK_GLOBAL const gk_t* p, gk_i64 i, int wide)
{
    gk_vec r;
    if (wide) return gk_loadv(p, i);
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = 0;
    r.v[0] = gk_load(p, i);
    return r;
}

GK_FN gk_vec gk_fetch_partial(GK_GLOBAL const gk_f* p, gk_i64 i, int wide)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = k == 0 || wide ? p[i + k] : (gk_f)0;
    return r;
}

GK_FN void gk_keep_partial(GK_GLOBAL gk_f* p, gk_i64 i, gk_vec v, int wide)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        if (k == 0 || wide) p[i + k] = v.v[k];
    }
}

/* What y has after its reduced sources: `old` is what it had, and counts with `include`. */
GK_FN gk_f gk_reduced(gk_f old, gk_f sources, int how, int include, gk_f alpha, gk_i64 count)
{
    gk_f a = how == GK_SUM ? alpha * sources : sources;
    if (include) a = gk_combine(old, a, how);
    if (how == GK_INDEX_MEAN) {
        gk_f c = (gk_f)(count + include);
#if GK_IS_FLOAT
        a = a / c;
#else
        gk_f q = a / c;
        a = q - (a < 0 && q * c != a);
#endif
    }
    return a;
}

/* Combines the reduced sources with y[at] (`include`) or overwrites it; with `stat` they are stored there as they are. */
GK_FN void gk_finish(GK_GLOBAL gk_t* y, GK_GLOBAL gk_f* stat, gk_i64 at, gk_vec acc, int how, int include, gk_f alpha, gk_i64 count, int wide)
{
    if (stat) {
        gk_keep_partial(stat, at, acc, wide);
        return;
    }
    gk_vec old = acc;
    if (include) old = gk_fetch(y, at, wide);
    GK_UNROLL for (int k = 0; k < GK_W; k++) acc.v[k] = gk_reduced(old.v[k], acc.v[k], how, include, alpha, count);
    if (wide) gk_storev(y, at, acc);
    else gk_store(y, at, acc.v[0]);
}

// Units: REDUCIBLE
/* Reduces the sources of each key in order: y[o, key, c] = y[o, key, c] `how` sources. The sorted pairs are cut in runs of `run`; a thread
 * takes a run and a column (o, c), or GK_W columns where `wide` is set. A key that lies within its run is finished here; of one that crosses
 * runs the first part goes to `tail` and the others to `head` (both [runs, columns]), to be combined by scatter_reduce_combine. Sums in gk_f.
 * Reference: x.index_add, x.scatter_reduce. */
GK_KERNEL(scatter_reduce)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_t, src), GK_IN(gk_t, tie), GK_OUT(gk_t, y), GK_OUT(gk_f, stat),
                          GK_OUT(gk_f, head), GK_OUT(gk_f, tail), gk_i64 n, gk_i64 run, gk_i64 outer, gk_i64 inner, gk_i64 limit, int wide_keys,
                          int wide, int how, int value, int include, gk_f alpha)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_t, src); GK_BIND_IN(gk_t, tie); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, stat);
    GK_BIND_OUT(gk_f, head); GK_BIND_OUT(gk_f, tail);
    gk_i64 w = wide ? GK_W : 1, columns = outer * inner / w, runs = (n + run - 1) / run;
    for (gk_i64 item = gk_gid(); item < runs * columns; item += gk_gsize()) {
        gk_i64 c = item / columns, column = (item - c * columns) * w, o = column / inner, at = column - o * inner;
        gk_i64 first = c * run, end = first + run < n ? first + run : n, start = first, key = gk_index(keys, first, wide_keys), j = first;
        gk_vec acc, ahead;
        GK_UNROLL for (int k = 0; k < GK_W; k++) { acc.v[k] = 0; ahead.v[k] = 1; }
        if (value != GK_ONE) ahead = gk_fetch(src, (o * n + (gk_i64)(gk_u32)positions[j]) * inner + at, wide);
        while (j < end) {
            if (key >= limit) {
                start = ++j;
                if (j == end) break;
                key = gk_index(keys, j, wide_keys);
                if (value != GK_ONE) ahead = gk_fetch(src, (o * n + (gk_i64)(gk_u32)positions[j]) * inner + at, wide);
                continue;
            }
            gk_i64 cell = (o * limit + key) * inner + at;
            gk_vec v = ahead;
            /* The next source is on its way while this one is added. */
            if (value != GK_ONE && j + 1 < end) ahead = gk_fetch(src, (o * n + (gk_i64)(gk_u32)positions[j + 1]) * inner + at, wide);
            if (value == GK_TIE) {
                gk_vec e = gk_fetch(tie, cell, wide);
                GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = v.v[k] == e.v[k];
            } else if (value >= GK_INDEX_IS_ZERO) {
                GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = value == GK_INDEX_IS_ZERO ? (gk_f)(v.v[k] == 0) : v.v[k] == 0 ? (gk_f)1 : v.v[k];
            }
            acc = j == start ? v : gk_combinev(acc, v, how);
            j++;
            gk_i64 next = j < n ? gk_index(keys, j, wide_keys) : limit;
            if (next == key && j < end) continue;
            if (start == first && first > 0 && gk_index(keys, first - 1, wide_keys) == key) {
                gk_keep_partial(head, c * columns * w + column, acc, wide);
            } else if (next == key) {
                gk_keep_partial(tail, c * columns * w + column, acc, wide);
            } else {
                gk_i64 count = how == GK_INDEX_MEAN ? j - start : 0;
                gk_finish(y, stat, cell, acc, how, include, alpha, count, wide);
            }
            start = j;
            key = next;
        }
    }
}

/* Pairs of a thread and of a block of scatter_reduce_cells, and where pair i lies in local memory: gaps keep threads, each with its own run, in
 * different banks. */
#define GK_CELL_RUN 8
#define GK_CELL_PAIRS (GK_CELL_RUN * GK_BLOCK)
#define GK_CELL(i) ((i) + (i) / GK_CELL_RUN)

/* What the source at `from` counts as; cell: its destination. */
GK_FN gk_f gk_cell_value(GK_GLOBAL const gk_t* src, GK_GLOBAL const gk_t* tie, gk_i64 from, gk_i64 cell, int value)
{
    if (value == GK_ONE) return (gk_f)1;
    gk_f v = gk_load(src, from);
    if (value == GK_TIE) return (gk_f)(v == gk_load(tie, cell));
    if (value == GK_INDEX_IS_ZERO) return (gk_f)(v == 0);
    return value == GK_INDEX_NONZERO && v == 0 ? (gk_f)1 : v;
}

/* The pair of the block at which the key of pair i begins, 0 if it began before; begins[i] is set where a key does, any[t] where one does in the run
 * of thread t. */
GK_FN int gk_cell_begin(int i, GK_LOCAL_PTR const gk_u8* begins, GK_LOCAL_PTR const gk_u8* any)
{
    int run = i / GK_CELL_RUN;
    GK_ROLLED while (i > run * GK_CELL_RUN && !begins[i]) i--;
    if (begins[i]) return i;
    GK_ROLLED while (run > 0 && !any[run - 1]) run--;
    if (run == 0) return 0;
    GK_ROLLED for (i = run * GK_CELL_RUN - 1; !begins[i];) i--;
    return i;
}

/* As scatter_reduce with runs of GK_CELL_PAIRS pairs and a single column: y[key] = y[key] `how` sources. A block takes a run, whose pairs, sources and
 * destinations threads read and write side by side; in between each thread adds up GK_CELL_RUN pairs in local memory. Launch: one block per run. */
GK_KERNEL(scatter_reduce_cells)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_t, src), GK_IN(gk_t, tie), GK_OUT(gk_t, y), GK_OUT(gk_f, stat),
                                GK_OUT(gk_f, head), GK_OUT(gk_f, tail), gk_i64 n, gk_i64 limit, int wide_keys, int how, int value, int include,
                                gk_f alpha)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_t, src); GK_BIND_IN(gk_t, tie); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, stat);
    GK_BIND_OUT(gk_f, head); GK_BIND_OUT(gk_f, tail);
    GK_LOCAL gk_f values[GK_CELL(GK_CELL_PAIRS)];
    GK_LOCAL gk_u8 begins[GK_CELL_PAIRS];
    GK_LOCAL gk_u8 any[GK_BLOCK];
    GK_LOCAL gk_u16 begin_of[GK_CELL_PAIRS];
    /* Where a key ends that began before the block; -1 for none. */
    GK_LOCAL int open_end;
    int t = gk_lid(), mine = t * GK_CELL_RUN, last = mine, open = 0;
    gk_i64 first = (gk_i64)gk_bid(0) * GK_CELL_PAIRS, key[GK_CELL_RUN], from[GK_CELL_RUN];
    int have = n - first < GK_CELL_PAIRS ? (int)(n - first) : GK_CELL_PAIRS;
    gk_f v[GK_CELL_RUN], acc = 0;
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) {
        int i = k * GK_BLOCK + t;
        key[k] = i < have ? gk_index(keys, first + i, wide_keys) : limit;
        from[k] = i < have ? (gk_i64)(gk_u32)positions[first + i] : 0;
        /* Behind the last pair another key begins. */
        begins[i] = i >= have || first + i == 0 || gk_index(keys, first + i - 1, wide_keys) != key[k];
    }
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) v[k] = key[k] < limit ? gk_cell_value(src, tie, from[k], key[k], value) : (gk_f)0;
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) values[GK_CELL(k * GK_BLOCK + t)] = v[k];
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) {
        gk_f next = values[GK_CELL(mine + k)];
        int new_key = begins[mine + k];
        acc = new_key || k == 0 ? next : gk_combine(acc, next, how);
        values[GK_CELL(mine + k)] = acc;
        open |= new_key;
    }
    any[t] = (gk_u8)open;
    if (t == 0) open_end = -1;
    GK_BARRIER();
    /* The key that goes on from the run before, if it ends in this one, gets what it had there. */
    GK_ROLLED while (last + 1 < mine + GK_CELL_RUN && !begins[last + 1]) last++;
    if (!begins[mine] && (last + 1 == GK_CELL_PAIRS || begins[last + 1])) {
        int begin = gk_cell_begin(mine, begins, any), run = begin / GK_CELL_RUN;
        if (run < t) {
            acc = values[GK_CELL(run * GK_CELL_RUN + GK_CELL_RUN - 1)];
            GK_ROLLED for (run++; run < t; run++) acc = gk_combine(acc, values[GK_CELL(run * GK_CELL_RUN + GK_CELL_RUN - 1)], how);
            values[GK_CELL(last)] = gk_combine(acc, values[GK_CELL(last)], how);
        }
        if (!begins[begin]) open_end = last;
    }
    if (how == GK_INDEX_MEAN) {
        GK_ROLLED for (int i = t; i < have; i += GK_BLOCK) begin_of[i] = (gk_u16)gk_cell_begin(i, begins, any);
    }
    GK_BARRIER();
    /* The last pair of a key that begins in this block and goes on in the next. */
    int open_begin = -1;
    gk_i64 behind = first + have;
    if (behind < n && open_end != have - 1 && gk_index(keys, behind - 1, wide_keys) == gk_index(keys, behind, wide_keys)) open_begin = have - 1;
    /* Where a key ends its sum is stored; what was there is on its way for all of them first. */
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) {
        int i = k * GK_BLOCK + t;
        if (i >= have || !(i + 1 == have || begins[i + 1])) key[k] = limit;
        v[k] = key[k] < limit && include && y ? gk_load(y, key[k]) : (gk_f)0;
    }
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) {
        int i = k * GK_BLOCK + t;
        acc = values[GK_CELL(i)];
        v[k] = stat ? acc : gk_reduced(v[k], acc, how, include, alpha, how == GK_INDEX_MEAN ? i + 1 - begin_of[i] : 1);
    }
    GK_UNROLL for (int k = 0; k < GK_CELL_RUN; k++) {
        int i = k * GK_BLOCK + t;
        if (key[k] >= limit || i == open_end || i == open_begin) continue;
        if (stat) stat[key[k]] = v[k];
        else gk_store(y, key[k], v[k]);
    }
    if (t == 0 && open_end >= 0) head[gk_bid(0)] = values[GK_CELL(open_end)];
    if (t == 0 && open_begin >= 0) tail[gk_bid(0)] = values[GK_CELL(open_begin)];
}

/* Combines the parts of the keys that cross runs: a thread takes the key that starts in its run and goes on behind it. */
GK_KERNEL(scatter_reduce_combine)(GK_IN(int, keys), GK_OUT(gk_t, y), GK_OUT(gk_f, stat), GK_IN(gk_f, head), GK_IN(gk_f, tail), gk_i64 n, gk_i64 run,
                                  gk_i64 outer, gk_i64 inner, gk_i64 limit, int wide_keys, int wide, int how, int include, gk_f alpha)
{
    GK_BIND_IN(int, keys); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, stat); GK_BIND_IN(gk_f, head); GK_BIND_IN(gk_f, tail);
    gk_i64 w = wide ? GK_W : 1, columns = outer * inner / w, runs = (n + run - 1) / run;
    for (gk_i64 item = gk_gid(); item < (runs - 1) * columns; item += gk_gsize()) {
        gk_i64 c = item / columns, column = (item - c * columns) * w, first = c * run, end = first + run;
        gk_i64 key = gk_index(keys, end - 1, wide_keys);
        if (key >= limit || gk_index(keys, end, wide_keys) != key) continue;
        if (first > 0 && gk_index(keys, first - 1, wide_keys) == key) continue;
        gk_vec acc = gk_fetch_partial(tail, c * columns * w + column, wide);
        gk_i64 b = c + 1, o = column / inner, count = 0;
        for (; b * run < n && gk_index(keys, b * run, wide_keys) == key; b++)
            acc = gk_combinev(acc, gk_fetch_partial(head, b * columns * w + column, wide), how);
        if (how == GK_INDEX_MEAN) {
            /* The key begins in run c and ends in run b - 1. */
            gk_i64 from = end - 1, to = (b - 1) * run;
            while (from > first && gk_index(keys, from - 1, wide_keys) == key) from--;
            while (to < n && gk_index(keys, to, wide_keys) == key) to++;
            count = to - from;
        }
        gk_finish(y, stat, (o * limit + key) * inner + column - o * inner, acc, how, include, alpha, count, wide);
    }
}

#if GK_IS_FLOAT
// Units: FLOATS64
/* Gradients of scatter_reduce. Per destination: `counts` sources, `ties` (amax, amin: sources equal to y) or zeros (prod: sources that are 0)
 * in `marks`, and for prod the product of the other sources in `products`; each may be null where `how` does not need it. As PyTorch, the
 * base counts among the ties even where it does not take part.
 *
 * dx[i] (+)= dy[i] times the derivative by the base. */
GK_KERNEL(reduce_bwd_base)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, y), GK_IN(gk_f, counts), GK_IN(gk_f, marks), GK_IN(gk_f, products),
                           GK_OUT(gk_t, dx), gk_i64 n, int how, int include, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, counts); GK_BIND_IN(gk_f, marks); GK_BIND_IN(gk_f, products);
    GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f g = gk_load(dy, i);
        if (how == GK_INDEX_MEAN) {
            gk_f c = counts[i] + (gk_f)include;
            g = c > 1 ? g / c : g;
        } else if (how == GK_PROD) {
            g = g * (marks[i] > 0 ? (gk_f)0 : products[i]);
        } else if (how == GK_AMAX || how == GK_AMIN) {
            gk_f tie = (gk_f)(gk_load(x, i) == gk_load(y, i));
            g = tie * (g / (tie + marks[i]));
        }
        if (!include && counts[i] > 0) g = 0;
        gk_store(dx, i, accumulate ? gk_load(dx, i) + g : g);
    }
}

/* dsrc[e] (+)= dy[key] times the derivative by source e; `keys` in the order of the sources. */
GK_KERNEL(reduce_bwd_source)(GK_IN(int, keys), GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, src), GK_IN(gk_t, y), GK_IN(gk_f, counts),
                             GK_IN(gk_f, marks), GK_IN(gk_f, products), GK_OUT(gk_t, dsrc), gk_i64 n, int wide_keys, gk_i64 limit, int how,
                             int include, int accumulate)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, src); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_f, counts);
    GK_BIND_IN(gk_f, marks); GK_BIND_IN(gk_f, products); GK_BIND_OUT(gk_t, dsrc);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 key = gk_index(keys, e, wide_keys);
        gk_f g = 0;
        if (key < limit) {
            g = gk_load(dy, key);
            if (how == GK_INDEX_MEAN) {
                g = g / (counts[key] + (gk_f)include);
            } else if (how == GK_PROD) {
                /* The product of all factors but this one: none of the others may be 0. */
                gk_f v = gk_load(src, e), base = include ? gk_load(x, key) : (gk_f)1, zeros = marks[key] + (gk_f)(base == 0);
                gk_f all = products[key] * (base == 0 ? (gk_f)1 : base);
                g = v == 0 ? (zeros == 1 ? g * all : (gk_f)0) : zeros > 0 ? (gk_f)0 : g * (all / v);
            } else if (how == GK_AMAX || how == GK_AMIN) {
                gk_f top = gk_load(y, key), share = g / ((gk_f)(gk_load(x, key) == top) + marks[key]);
                g = (gk_f)(gk_load(src, e) == top) * share;
            }
        }
        gk_store(dsrc, e, accumulate ? gk_load(dsrc, e) + g : g);
    }
}
#endif
