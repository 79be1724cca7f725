/* Scans in chunks of steps: what a block reads of the next steps is on its way to registers while it computes the steps that lie in local memory.
 *
 * A block has `groups` groups of `lanes` threads, at least 4. A group has GK_CHUNK_ROWS rows of the states, neighbours in the block's tile; each of
 * its threads has GK_CHUNK_COLUMNS columns of them; the file defines both. state_space/state.h has the formulas of the rules. A chunk has
 * GK_CHUNK_STEPS steps, or fewer where k, q and g are wide, so that a thread reads one run of GK_CHUNK_RUN elements of each operand at most.
 */
#include "common/activation/activation_ops.h"
#include "common/prelude/slot.h"

#if GK_DTYPE == GK_F64
#define GK_CHUNK_RUN 2
#else
#define GK_CHUNK_RUN 4
#endif
#ifndef GK_CHUNK_STEPS
#define GK_CHUNK_STEPS (2 * GK_CHUNK_RUN)
#endif

/* What a thread leaves for a sum over its lanes lies at gk_chunk_sum_at(lid) of GK_CHUNK_SUMS numbers and is read four at a time: after 32 numbers comes a
 * gap of four, so that groups of threads meet no bank twice. */
#define GK_CHUNK_SUMS (GK_BLOCK + GK_BLOCK / 8)
GK_FN int gk_chunk_sum_at(int t) { return (int)((gk_u32)t + (gk_u32)t / 32u * 4u); }

/* What is computed: results; each run's state from zero; the gradient that it hands to the steps before it, for which steps are taken in falling order. */
#define gk_scan_results 0
#define gk_scan_part 1
#define gk_scan_part_back 2

/* What a thread reads of an operand: a run of step c of each chunk that begins with element n of the row, or nothing; of the first chunk it lies at `at`,
 * that of the next chunk is `next` further. has: elements of the run. */
typedef struct { int c, n, has, wide; gk_i64 at, next; } gk_chunk_item;

/* A thread's place: batch and head, first row of the block's tile, run of steps [t0, t1); its group, first column and how many it has; what it reads of k, q and g, and of
 * what belongs to the rows. */
typedef struct {
    gk_i64 b, h, row0, rows_all, t0, t1, s;
    int lanes, span, groups, rows, chunk, group, n, has, width;
    gk_chunk_item columns, inputs;
} gk_chunk_place;

/* A thread's run in rows of `span` elements of which `width` are there; the first step lies at `first`, the second one `step` further. */
GK_FN gk_chunk_item gk_chunk_item_of(int span, gk_i64 width, gk_i64 first, gk_i64 step, int chunk, int wide)
{
    gk_chunk_item r;
    r.c = gk_lid() / (span / GK_CHUNK_RUN);
    r.n = gk_lid() % (span / GK_CHUNK_RUN) * GK_CHUNK_RUN;
    r.has = r.c >= chunk || r.n >= width ? 0 : width - r.n < GK_CHUNK_RUN ? (int)(width - r.n) : GK_CHUNK_RUN;
    r.wide = wide;
    r.at = first + r.n + r.c * step;
    r.next = chunk * step;
    return r;
}

/* wide: 1 = rows of k, q and g are whole runs; 2 = those of what belongs to rows. */
GK_FN gk_chunk_place gk_chunk_place_of(const gk_dims* size, int lanes, int wide, const int mode)
{
    gk_chunk_place p;
    gk_i64 block = gk_bid(0), tiles, first, key_step, row_step;
    p.lanes = lanes;
    p.span = lanes * GK_CHUNK_COLUMNS;
    p.groups = GK_BLOCK / lanes;
    p.rows = p.groups * GK_CHUNK_ROWS;
    p.chunk = p.span > 128 ? GK_CHUNK_STEPS * 128 / p.span : GK_CHUNK_STEPS;
    p.group = gk_lid() / lanes;
    p.n = gk_lid() % lanes * GK_CHUNK_COLUMNS;
    p.rows_all = size->v[2];
    p.width = (int)size->v[6];
    p.has = p.width - p.n;
    tiles = (p.rows_all + p.rows - 1) / p.rows;
    p.s = block % size->v[5];
    block /= size->v[5];
    p.row0 = block % tiles * p.rows;
    block /= tiles;
    p.b = block / size->v[1];
    p.h = block % size->v[1];
    p.t0 = p.s * size->v[4];
    p.t1 = p.t0 + size->v[4] < size->v[0] ? p.t0 + size->v[4] : size->v[0];
    first = p.b * size->v[0] + (mode == gk_scan_part_back ? p.t1 - 1 : p.t0);
    key_step = size->v[3] * size->v[6];
    row_step = size->v[1] * size->v[2];
    if (mode == gk_scan_part_back) { key_step = -key_step; row_step = -row_step; }
    p.columns = gk_chunk_item_of(p.span, p.width, (first * size->v[3] + p.h / (size->v[1] / size->v[3])) * p.width, key_step, p.chunk, wide & 1);
    p.inputs = gk_chunk_item_of(p.rows, p.rows_all - p.row0, (first * size->v[1] + p.h) * p.rows_all + p.row0, row_step, p.chunk, wide & 2);
    return p;
}

/* Row r of a thread's group, and where it begins in [batch, heads, rows, width], or in part `side` of a split's [2, rows, width]. */
GK_FN gk_i64 gk_chunk_row(const gk_chunk_place* p, int r) { return p->row0 + p->group * GK_CHUNK_ROWS + r; }
GK_FN gk_i64 gk_chunk_state(const gk_dims* size, const gk_chunk_place* p, int r)
{
    return ((p->b * size->v[1] + p->h) * p->rows_all + gk_chunk_row(p, r)) * p->width;
}
GK_FN gk_i64 gk_chunk_part(const gk_dims* size, const gk_chunk_place* p, int side, int r)
{
    return ((((p->b * size->v[1] + p->h) * size->v[5] + p->s) * 2 + side) * p->rows_all + gk_chunk_row(p, r)) * p->width;
}

/* A thread's columns of one row of a matrix of gk_f, 0 outside it. */
GK_FN void gk_chunk_get(GK_GLOBAL const gk_f* from, gk_i64 at, const gk_chunk_place* p, int r, gk_f v[GK_CHUNK_COLUMNS])
{
    int on = gk_chunk_row(p, r) < p->rows_all;
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
        v[j] = GK_R(0.0);
        if (on && p->n + j < p->width) v[j] = from[at + p->n + j];
    }
}
GK_FN void gk_chunk_put(GK_GLOBAL gk_f* to, gk_i64 at, const gk_chunk_place* p, int r, const gk_f v[GK_CHUNK_COLUMNS])
{
    int on = gk_chunk_row(p, r) < p->rows_all;
    GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
        if (on && p->n + j < p->width) to[at + p->n + j] = v[j];
    }
}

/* The sum of products over a thread's columns. Those behind the last are left out: an infinite input makes NaN of them. */
GK_FN gk_f gk_chunk_dot(const gk_f a[GK_CHUNK_COLUMNS], const gk_f b[GK_CHUNK_COLUMNS], int has)
{
    gk_f s = GK_R(0.0);
    if (has >= GK_CHUNK_COLUMNS) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) s += a[j] * b[j];
    } else {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
            if (j < has) s += a[j] * b[j];
        }
    }
    return s;
}

/* Rates of a thread's states times log2 e, for gk_rule_selective. */
GK_FN void gk_chunk_rates(GK_GLOBAL const gk_t* rates, const gk_chunk_place* p, gk_f a[GK_CHUNK_ROWS][GK_CHUNK_COLUMNS])
{
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        GK_UNROLL for (int j = 0; j < GK_CHUNK_COLUMNS; j++) {
            a[r][j] = GK_R(0.0);
            if (gk_chunk_row(p, r) < p->rows_all && p->n + j < p->width) {
                a[r][j] = gk_load(rates, gk_chunk_row(p, r) * p->width + p->n + j) * GK_STATE_LOG2E;
            }
        }
    }
}

/* Steps of the chunk that begins with number i of the run. */
GK_FN int gk_chunk_left(const gk_chunk_place* p, gk_i64 i) { return p->t1 - p->t0 - i < p->chunk ? (int)(p->t1 - p->t0 - i) : p->chunk; }

/* A chunk: its first step, how many are left, and where a thread's runs lie. */
typedef struct { gk_i64 i, columns, rows; int left; } gk_chunk;

GK_FN gk_chunk gk_chunk_at(const gk_chunk_place* p, gk_i64 i)
{
    gk_chunk c;
    c.i = i;
    c.columns = p->columns.at + i / p->chunk * p->columns.next;
    c.rows = p->inputs.at + i / p->chunk * p->inputs.next;
    c.left = gk_chunk_left(p, i);
    return c;
}
GK_FN gk_chunk gk_chunk_next(const gk_chunk_place* p, gk_chunk c)
{
    c.i += p->chunk;
    c.columns += p->columns.next;
    c.rows += p->inputs.next;
    c.left = gk_chunk_left(p, c.i);
    return c;
}

/* A thread's run of an operand as stored (a conversion would wait for the load), zeros where there is nothing. */
GK_FN gk_raw16 gk_chunk_fetch(GK_GLOBAL const gk_t* x, gk_chunk_item item, gk_i64 at, int left)
{
    gk_raw16 r = gk_make16(0u, 0u, 0u, 0u);
    int has = item.c < left ? item.has : 0;
    if (item.wide) {
#if GK_CHUNK_RUN == GK_W
        if (has) r = gk_load16((GK_GLOBAL const void*)(x + at));
#else
        GK_GLOBAL const gk_u32* words = (GK_GLOBAL const gk_u32*)(x + at);
        if (has) r = gk_make16(words[0], words[1], 0u, 0u);
#endif
    } else if (has) {
        gk_vec v;
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            v.v[u] = GK_R(0.0);
            if (u < has) v.v[u] = gk_load(x, at + u);
        }
        r = gk_encode16(v);
    }
    return r;
}
/* Writes a thread's run. accumulate: adds to what is there. */
GK_FN void gk_chunk_store(GK_GLOBAL gk_t* x, gk_chunk_item item, gk_i64 at, int left, gk_vec v, int accumulate)
{
    int has = item.c < left ? item.has : 0;
    if (item.wide && !accumulate) {
#if GK_CHUNK_RUN == GK_W
        if (has) gk_storev(x, at, v);
#else
        gk_raw16 r = gk_encode16(v);
        GK_GLOBAL gk_u32* words = (GK_GLOBAL gk_u32*)(x + at);
        if (has) { words[0] = r.x; words[1] = r.y; }
#endif
    } else {
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) {
            if (u < has) gk_store(x, at + u, accumulate ? gk_load(x, at + u) + v.v[u] : v.v[u]);
        }
    }
}

/* A run of k, q or g into local memory [chunk, span], `other` behind the steps that are left. */
GK_FN void gk_chunk_lay(GK_LOCAL_PTR gk_slot* to, const gk_chunk_place* p, int left, gk_raw16 x, gk_f other)
{
    gk_vec v = gk_decode16(x);
    if (p->columns.c >= left) {
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) v.v[u] = other;
    }
    if (p->columns.c < p->chunk) {
#if GK_CHUNK_RUN == 4
        gk_slot_put4(to, gk_lid() * GK_CHUNK_RUN, v.v[0], v.v[1], v.v[2], v.v[3]);
#else
        GK_UNROLL for (int u = 0; u < GK_CHUNK_RUN; u++) gk_slot_put(to, gk_lid() * GK_CHUNK_RUN + u, v.v[u]);
#endif
    }
}

/* Four numbers of local memory, the run-th four of them; the sum of four. */
GK_FN gk_four gk_chunk_run(GK_LOCAL_PTR const gk_slot* t, int run) { return gk_slot_get4(t + GK_SLOTS(4) * run, 0); }
GK_FN gk_f gk_chunk_sum4(GK_LOCAL_PTR const gk_slot* t, int run)
{
    gk_four x = gk_chunk_run(t, run);
    return (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
}

/* Sums over the lanes of a group, one for each of its rows. */
GK_FN void gk_chunk_sum_lanes(gk_f v[GK_CHUNK_ROWS], GK_LOCAL_PTR gk_f* tmp, int lanes)
{
#ifdef gk_shuffle_xor
    for (int m = 1; m < lanes; m <<= 1) {
        GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) v[r] += gk_shuffle_xor(v[r], m);
    }
#else
    /* One after the other between two barriers: compilers for CPUs take loops apart at barriers, and need minutes for trees of them. */
    int first = gk_lid() / lanes * lanes;
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) tmp[r * GK_BLOCK + gk_lid()] = v[r];
    GK_BARRIER();
    GK_UNROLL for (int r = 0; r < GK_CHUNK_ROWS; r++) {
        v[r] = GK_R(0.0);
        for (int i = 0; i < lanes; i++) v[r] += tmp[r * GK_BLOCK + first + i];
    }
    GK_BARRIER();
#endif
}

/* 2^x of what a step leaves of a state: denormal powers may come out as 0. */
#if defined(GK_QUICK_EXP2) && GK_DTYPE != GK_F64
#define gk_decay(x) gk_quick_exp2(x)
#else
#define gk_decay(x) gk_exp2(x)
#endif
/* ln(1 + e^x), x itself above 20. For x < 0 the power's argument is rounded once more: within |x| ULP. */
GK_FN gk_f gk_state_softplus(gk_f x)
{
    gk_f r = (x > GK_R(0.0) ? x : GK_R(0.0)) + gk_log1p_unit(gk_decay(-gk_fabs(x) * GK_STATE_LOG2E));
    return x > GK_R(20.0) ? x : r;
}
