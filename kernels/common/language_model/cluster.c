/* Top-k and top-p of rows of logits that the blocks of a cluster hold, and draws from them: what histogram.c finds by several kernels, by one that reads a
 * row once. Empty where blocks form no clusters.
 *
 *   logits_held_count     the elements among which top-k's last one is
 *   logits_held_power     those among which top-p's last one is, of what top-k keeps or of all
 *   logits_held_finish    a row: what is kept, by comparing those elements with each other; a draw from it
 *
 * Half of a block's logits wait in registers, half in local memory. Places of logits on a grid of 1/512 of a factor of two, which is the same in all
 * blocks, count down from the largest logit. Each thread sums weights (counts or powers) by 32 bins of 256 places in columns of its own; the blocks tell
 * each other the sums of their bins and find the bin in which the target is reached. Each thread lists that bin's elements; their weights are summed by
 * places, as integers. The elements of the place in which the target is reached go to memory, and another kernel compares each of them with all. A draw
 * goes from the sums of blocks, pieces of a block and threads to an element. Rows that this cannot serve are open (GK_ROW_OPEN), for logits_keep, and
 * searched by logits_held_finish itself if it draws: the largest logit infinite or beyond GK_HELD_BOUND, a threshold below the bins, more than
 * GK_HELD_HALF elements of a bin in a thread, more than GK_HELD_FEW elements of a place in a block.
 * Sums in gk_f, those of places of 18 bits for each power. Deterministic: fixed trees, integers, lists in the order of threads.
 */
#include "rows.h"

#if GK_CLUSTER > 1

/* Logits of a thread, half of them in registers. */
#define GK_HELD_HALF 32
#define GK_HELD_PIECES (2 * GK_HELD_HALF / GK_W)
#define GK_HELD_PART (2 * GK_HELD_HALF * GK_BLOCK)
/* Logits that a thread looks at together. */
#define GK_HELD_STEP 8
#define GK_HELD_AHEAD 4
/* Bins, two for each factor of two, the last for all that lies below; points of a bin, which are four times its places. */
#define GK_HELD_BINS 32
#define GK_HELD_POINTS 1024
#define GK_HELD_PLACES (GK_HELD_POINTS / 4)
#define GK_HELD_LANES (GK_BLOCK / GK_HELD_BINS)
/* Numbers from here on lie 1/1024 apart: bits of GK_HELD_GRID - n are points, for |n| below 2^12 bins. */
#define GK_HELD_GRID GK_R(12288.0)
#define GK_HELD_BOUND GK_R(4000.0)
/* Where no point is, all of them being less. */
#define GK_HELD_NOWHERE 0x7ffffc00u
#define GK_HELD_LOG2E GK_R(1.4426950408889634)
#define GK_HELD_ONE GK_R(262144.0)
/* Numbers that blocks tell each other first: sums of bins, the largest logit. */
#define GK_HELD_MET (GK_HELD_BINS + 1)
/* Elements of a place for each block. */
#define GK_HELD_FEW 64
#define GK_HELD_SLOTS (GK_CLUSTER * GK_HELD_FEW)
/* Numbers of a row for logits_held_finish: powers above the threshold's place in each block; how many elements it has there; those and their ids. */
#define GK_HELD_COUNTS GK_CLUSTER
#define GK_HELD_LISTS (2 * GK_CLUSTER)
#define GK_HELD_NUMBERS (GK_HELD_LISTS + 2 * GK_HELD_SLOTS)

#if defined(GK_QUICK_EXP2)
#define gk_held_exp2(x) gk_quick_exp2(x)
#else
#define gk_held_exp2(x) gk_exp2(x)
#endif
/* gk_is_above by values: `low` is gk_held_low of what is kept. */
GK_FN gk_f gk_held_low(const gk_kept* k) { return k->cut == 0 ? -GK_INF : gk_value_of(k->cut); }
GK_FN int gk_held_keeps(gk_f low, int last, gk_f x, int id) { return x > low || (x == low && id <= last); }
/* The larger one, of which NaN is none. */
#define gk_held_max(a, b) GK_M(fmax)(a, b)

#include "held.h"

#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3
// Units: FLOATS
/* state [rows, GK_ROW_NUMBERS], numbers [rows, GK_HELD_NUMBERS]: what logits_held_finish makes top-k of. whole: rows are whole items of 16 bytes.
 * Launch: a cluster per row, GK_HELD_PART numbers of local memory. */
GK_KERNEL(logits_held_count)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_OUT(gk_f, state), GK_OUT(gk_f, numbers), gk_i64 vocab, gk_f scale, gk_f target,
                             int whole)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, numbers);
    GK_LOCAL_DYNAMIC(gk_f, room, GK_HELD_PART);
    GK_LOCAL gk_f tmp[GK_BLOCK + 2], weights[GK_BLOCK], met[GK_CLUSTER * GK_HELD_MET], few[GK_CLUSTER];
    GK_LOCAL gk_u32 places[GK_BLOCK];
    gk_held p = gk_held_of(logits, wide, vocab, scale, gk_bid(0) / GK_CLUSTER, gk_bid(0) % GK_CLUSTER, whole);
    gk_held_local m = gk_held_split(room);
    m.tmp = tmp; m.weights = weights; m.met = met; m.sums = places;
    gk_held_row(&p, &m, target, few, state, numbers, GK_BY_COUNT);
}

/* The same for top-p; `after`: of what top-k keeps. */
GK_KERNEL(logits_held_power)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_OUT(gk_f, state), GK_OUT(gk_f, numbers), gk_i64 vocab, gk_f scale, gk_f target,
                             int whole, int after)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, numbers);
    GK_LOCAL_DYNAMIC(gk_f, room, GK_HELD_PART);
    GK_LOCAL gk_f tmp[GK_BLOCK + 2], weights[GK_BLOCK], met[GK_CLUSTER * GK_HELD_MET], few[GK_CLUSTER];
    GK_LOCAL gk_u32 places[GK_BLOCK];
    gk_held p = gk_held_of(logits, wide, vocab, scale, gk_bid(0) / GK_CLUSTER, gk_bid(0) % GK_CLUSTER, whole);
    gk_held_local m = gk_held_split(room);
    m.tmp = tmp; m.weights = weights; m.met = met; m.sums = places;
    p.after = after;
    gk_held_row(&p, &m, target, few, state, numbers, GK_BY_POWER);
}
#undef GK_CLUSTERING
#define GK_CLUSTERING
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

/* The elements of the threshold's place without gaps: values, ids, weights, and the powers of those that are kept. */
typedef struct { GK_LOCAL_PTR gk_f *x, *ids, *w, *own; gk_f top, above, target; int n, end[GK_CLUSTER]; } gk_held_few;

/* f->n = -1 if a block has more than are listed. */
GK_FN void gk_held_pack(gk_held_few* f, const gk_held* p, GK_GLOBAL const gk_f* numbers, int by)
{
    GK_GLOBAL const gk_f* lists = numbers + GK_HELD_LISTS;
    int has[GK_CLUSTER], most = 0;
    f->n = 0;
    GK_UNROLL for (int b = 0; b < GK_CLUSTER; b++) {
        has[b] = (int)numbers[GK_HELD_COUNTS + b];
        most = has[b] > most ? has[b] : most;
        f->n += has[b];
        f->end[b] = f->n;
    }
    for (int s = gk_lid(); s < GK_HELD_SLOTS; s += GK_BLOCK) {
        int b = s / GK_HELD_FEW, n = s % GK_HELD_FEW, first = 0;
        GK_UNROLL for (int o = 0; o < GK_CLUSTER; o++) first += o < b ? has[o] : 0;
        if (most <= GK_HELD_FEW && first + n < f->n && n < (int)numbers[GK_HELD_COUNTS + b]) {
            gk_f x = lists[s];
            f->x[first + n] = x;
            f->ids[first + n] = lists[GK_HELD_SLOTS + s];
            f->w[first + n] = by == GK_BY_POWER ? gk_held_power(p, x, f->top) : GK_R(1.0);
        }
    }
    if (most > GK_HELD_FEW) f->n = -1;
    GK_BARRIER();
}

/* The weights of what stands before element s in f, by GK_HELD_LANES threads. */
GK_FN gk_f gk_held_ahead(const gk_held_few* f, int s, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f x = f->x[s], id = f->ids[s], before = GK_R(0.0);
    for (int o = gk_lid() % GK_HELD_LANES; o < f->n; o += GK_HELD_AHEAD * GK_HELD_LANES) {
        GK_UNROLL for (int u = 0; u < GK_HELD_AHEAD; u++) {
            /* Room for GK_HELD_SLOTS: what lies behind the last one is read and left out. */
            int at = (o + u * GK_HELD_LANES) % GK_HELD_SLOTS;
            gk_f y = f->x[at], w = f->w[at];
            int first = y > x || (y == x && f->ids[at] < id);
            before += o + u * GK_HELD_LANES < f->n && first ? w : GK_R(0.0);
        }
    }
    return gk_group_sum(before, tmp, GK_HELD_LANES);
}

/* What is kept, by comparing each element of f with all. k: as it is where none is listed. */
GK_FN void gk_held_compare(const gk_held_few* f, const gk_held* p, gk_kept* k, GK_LOCAL_PTR gk_f* tmp)
{
    const int groups = GK_BLOCK / GK_HELD_LANES;
    gk_f low = GK_INF, last = GK_R(-1.0);
    int group = gk_lid() / GK_HELD_LANES;
    for (int r = 0; r < f->n; r += groups) {
        int s = r + group < f->n ? r + group : 0;
        gk_f x = f->x[s];
        int kept = f->above + gk_held_ahead(f, s, tmp) < f->target;
        low = kept && x < low ? x : low;
        f->own[s] = kept ? gk_held_power(p, x, f->top) : GK_R(0.0);
    }
    low = gk_block_min(low, tmp);
    for (int s = gk_lid(); s < f->n; s += GK_BLOCK) {
        if (f->x[s] == low && f->own[s] > GK_R(0.0)) last = gk_max(last, f->ids[s]);
    }
    last = gk_block_max(last, tmp);
    if (f->n > 0) {
        k->cut = gk_key_of(low);
        k->last = (gk_i64)last;
    }
}

/* The block of a row in which the target lies, a share `u` of all powers. *before: those before it. */
GK_FN int gk_held_block(const gk_held_few* f, GK_GLOBAL const gk_f* numbers, gk_f u, gk_f* target, gk_f* before)
{
    gk_f own[GK_CLUSTER], run = GK_R(0.0);
    int block = 0, reached = 0, at = 0;
    *target = GK_R(0.0);
    *before = GK_R(0.0);
    GK_UNROLL for (int b = 0; b < GK_CLUSTER; b++) {
        own[b] = numbers[b];
        for (; at < f->end[b] && f->n > 0; at++) own[b] += f->own[at];
        *target += own[b];
    }
    *target *= u;
    GK_UNROLL for (int b = 0; b < GK_CLUSTER; b++) {
        if (!reached && own[b] > GK_R(0.0)) {
            block = b;
            *before = run;
            reached = run + own[b] > *target;
        }
        run += own[b];
    }
    return block;
}

/* What is kept of a row, by: GK_BY_COUNT or GK_BY_POWER, and ids [rows], or null: a draw of it. Of an open row what top-k and top-p keep is found first, if
 * anything is drawn. Launch: one block per row. */
GK_KERNEL(logits_held_finish)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, numbers), GK_IN(gk_i64, more), GK_OUT(gk_f, state),
                              GK_OUT(gk_i64, ids), gk_i64 vocab, gk_i64 top_k, gk_i64 seed, gk_i64 stream, gk_i64 offset, gk_f scale, gk_f top_p,
                              int by, int whole)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, numbers); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(gk_f, state);
    GK_BIND_OUT(gk_i64, ids);
    GK_LOCAL gk_f tmp[GK_BLOCK + 2];
    GK_LOCAL gk_f room[GK_BLOCK * GK_LOOK_BINS];
    gk_i64 row = gk_bid(0), at = row * GK_ROW_NUMBERS, id = 0;
    gk_f target = GK_R(0.0), before = GK_R(0.0), u = gk_row_word(row, more, seed, stream, offset);
    gk_held p = gk_held_of(logits, wide, vocab, scale, row, 0, whole);
    gk_kept k = gk_row_get(state, row);
    gk_held_few f;
    int open = state[at + GK_ROW_OPEN] != GK_R(0.0), block;
    numbers += row * GK_HELD_NUMBERS;
    f.x = room; f.ids = f.x + GK_HELD_SLOTS; f.w = f.ids + GK_HELD_SLOTS; f.own = f.w + GK_HELD_SLOTS;
    f.top = k.top; f.above = state[at + GK_ROW_ABOVE]; f.target = state[at + GK_ROW_TARGET];
    gk_held_pack(&f, &p, numbers, by);
    open = open || f.n < 0;
    if (open) f.n = 0;
    gk_held_compare(&f, &p, &k, tmp);
    block = gk_held_block(&f, numbers, u, &target, &before);
    GK_BARRIER();
    if (gk_lid() == 0) {
        gk_row_put(state, row, k);
        state[at + GK_ROW_OPEN] = open ? GK_R(1.0) : GK_R(0.0);
    }
    /* The same for all threads of a block. */
    if (ids && open) {
        gk_sections r;
        gk_f total = GK_R(0.0), each[GK_SAMPLE_DIGITS];
        gk_row_sections(&p.l, 0, row, &r, tmp);
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) total += r.sums[d];
        k = gk_row_kept(&p.l, top_k, top_p, r.top, total, room, tmp);
        gk_sums_below(&p.l, &k, 0, vocab, gk_section_width(&p.l), each, tmp);
        id = gk_draw(&p.l, &k, u, each, tmp);
    } else if (ids) {
        p = gk_held_of(logits, wide, vocab, scale, row, block, whole);
        id = gk_held_draw(&p, room, tmp, &k, target, before);
    }
    if (ids && gk_lid() == 0) ids[row] = id;
}
#endif
