/* The gradients of attention on matrix cores in one kernel, for f32, f16 and bf16 (FlashAttention-2: Dao, 2023, arXiv 2307.08691; -3: Shah et al., 2024,
 * arXiv 2407.08608): scores and their gradients are computed once, where matrix_backward.c computes them twice. Without rules of the scores but a positive
 * factor and a window (gk_head64, gk_head128; of f32 gk_head32, too). Where the dialect has no blocks that add in order (GK_ORDERED_BLOCKS,
 * prelude/ordered.h), the file is empty.
 *
 *   attention_bwd_fused   all three. Launch: axis 0 tiles of 128 keys x key heads x batches, GK_BLOCK threads: sd.v[4] heads in turns, first keys first.
 *
 * K and V of the block stay in local memory; tiles of queries pass, the last first, of all heads of the group each. A block has three groups of four warps: two
 * multiply, for 64 keys each; of the third two warps copy tiles of GK_PASS_ROWS queries and of their dO to local memory, as far ahead as there is room, and one
 * thread adds dQ of GK_DQ_ROWS queries to `sums` while the next are computed.
 *
 * `sums` has dQ without the factor in f32: [batches, heads, Lq, GK_HEAD_WIDTH], columns in the order of gk_dq_place. Of a tile of queries the blocks of the
 * first keys that it sees add first; that of the last ones writes dQ. `turns`, zeros before the launch, has how many blocks have begun, and behind that at
 * [batch, head, first query] how many have added. Under a causal mask blocks of the first keys have the most work: they begin first, so that few are left
 * alone at the end, and all begin with the last queries, which they share, so that none waits for long. P and dS are rounded to gk_t for the products with
 * them. Sums in a fixed order. dQ of sequences without keys is not written.
 */
#include "matrix_backward.h"
#include "common/prelude/ordered.h"

#ifdef GK_ORDERED_BLOCKS
#ifndef GK_WARP_GROUPS
#include "common/prelude/warp_groups.h"
#endif
#undef GK_BLOCK
#define GK_BLOCK 384
/* Threads that multiply, and that copy. */
#define GK_CONSUMERS 256
#define GK_PRODUCERS 64
/* Queries of dQ at a time: so many that each warp has 16 of them and as many columns as a product has at least. */
#define GK_DQ_ROWS (GK_PASS_ROWS * 128 / GK_HEAD_WIDTH)
/* Columns of dQ per warp. */
#define GK_DQ_COLUMNS (GK_DTYPE == GK_F32 ? 32 : 64)
/* Chunks of the gradients of the scores of so many queries, and of dQ. */
#define GK_SCORE_CHUNKS (GK_DQ_ROWS * 128 / GK_PER_CHUNK)
#define GK_DQ_CHUNKS (GK_DQ_ROWS * GK_HEAD_WIDTH / 4)
/* Passes that are used or on their way. */
#define GK_STAGES (GK_HEAD_CHUNKS == 32 ? 2 : 3)
#define GK_FUSED_CHUNKS (2 * GK_STAY + 2 * GK_STAGES * GK_PASS + GK_SCORE_CHUNKS + GK_DQ_CHUNKS + GK_STAGES * GK_STATS)

/* heads: key heads of all batches. sd = {batch, head, row steps of dQ, whether it is added, key heads whose blocks take turns}. */
typedef struct {
    gk_dims size, sq, sm, sv, sl, sg, sd;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom, heads;
} gk_attention_bwd_fused_args;

/* ---- dQ of a tile: dS K ------------------------------------------------------------------------------------------------------------ */

typedef struct { int row, chunk; float x[4]; } gk_dq_four;

#if GK_DTYPE == GK_F32
/* Row of the tile that a warp's 16 rows of dQ begin with, and its first column. */
#define GK_DQ_ROW (gk_lid() / 32 % (GK_DQ_ROWS / 16) * 16)
#define GK_DQ_COLUMN (gk_lid() / 32 / (GK_DQ_ROWS / 16) * 32)

/* Writes the warp's gradients of scores, 16 keys from wj on and queries from i on, to a tile with a row per query; keys are in the order that
 * gk_load_b_terms has for terms. */
GK_FN void gk_keep_dscores(float y[GK_PASS_PAIRS / 4][4], const gk_frag_a* ds, int wj, int i, GK_LOCAL_PTR gk_raw16* tile)
{
    int key = gk_lid() % 32 / 4;
    (void)ds;
    GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) {
        int at = gk_chunk_at(i + GK_PAIR_COL(n), wj / 4 + n % 4 / 2 * 2 + key % 2, GK_DQ_ROWS);
        ((GK_LOCAL_PTR float*)(tile + at))[key / 2] = y[n / 4][n % 4];
    }
}

GK_FN void gk_dq_begin(float (*c)[4], GK_LOCAL_PTR const gk_raw16* scores, GK_LOCAL_PTR const gk_raw16* keys)
{
    gk_frag_b f[4];
    gk_sums rest = gk_no_sums();
    gk_mm_clear(c, 32);
    GK_UNROLL for (int k = 0; k < 128 / GK_FRAG_TERMS; k++) {
        gk_load_b_terms(f, keys, 128, k, GK_DQ_COLUMN / 8);
        gk_mma4(c, rest.c, gk_left_of(gk_load_a(scores, GK_DQ_ROWS, GK_DQ_ROW, k)), f);
    }
    gk_add_sums(c, rest);
}

/* Where a row of dQ has chunk c of its columns: neighbouring rows in other banks. */
GK_FN int gk_dq_place(int row, int c) { return c ^ (row & 1); }
/* The column of number i of chunk c. */
GK_FN int gk_dq_column(int c, int i) { return 4 * c + i; }

/* The thread's four sums of dQ number n: a chunk of a row. */
GK_FN gk_dq_four gk_dq_four_of(float (*c)[4], const int n)
{
    gk_dq_four f;
    f.row = GK_DQ_ROW + GK_FRAG_ROW(n); f.chunk = GK_DQ_COLUMN / 4 + gk_lid() % 4 * 2 + n % 2;
    GK_UNROLL for (int i = 0; i < 4; i++) f.x[i] = c[i][n];
    return f;
}

GK_FN void gk_store2(GK_GLOBAL gk_t* p, int i, float x, float y) { p[i] = x; p[i + 1] = y; }
#else
/* The first four warps and the others have rows of their own, or, of 64 rows, columns. */
#define GK_DQ_ROW ((GK_DQ_ROWS == 128 ? gk_lid() / 128 * 64 : 0) + gk_lid() / 32 % 4 * 16)
#define GK_DQ_COLUMN (GK_DQ_ROWS == 128 ? 0 : gk_lid() / 128 * 64)

/* Writes the warp's gradients of scores, 16 keys from wj on and queries from i, a multiple of 64, on, to a tile with a row per key. */
GK_FN void gk_keep_dscores(float y[GK_PASS_PAIRS / 4][4], const gk_frag_a* ds, int wj, int i, GK_LOCAL_PTR gk_raw16* tile)
{
    gk_u32 at = gk_chunk_address(tile + i / 64 * 128 * 8, wj + gk_lid() % 16, gk_lid() % 32 / 16);
    (void)y;
    GK_UNROLL for (int k = 0; k < GK_PASS_ROWS / 16; k++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     : : "r"(gk_chunk_on(at, 2 * k, 128)), GK_FRAG4(ds[k]) : "memory");
}

GK_FN void gk_dq_begin(float (*c)[4], GK_LOCAL_PTR const gk_raw16* scores, GK_LOCAL_PTR const gk_raw16* keys)
{
    gk_mm_tiles(c, 64, scores, 128, GK_DQ_ROW, 1, 128, keys + GK_DQ_COLUMN / 64 * 128 * 8, 1, 1);
}

/* Where a row of dQ has chunk c of its columns: neighbouring rows in other banks. */
GK_FN int gk_dq_place(int row, int c) { return c ^ (row & 1) * 4; }
/* The column of number i of chunk c: four numbers of a thread among 16 columns. */
GK_FN int gk_dq_column(int c, int i) { return c / 4 * 16 + i / 2 * 8 + c % 4 * 2 + i % 2; }

/* The thread's four sums of dQ number n: a chunk of a row. */
GK_FN gk_dq_four gk_dq_four_of(float (*c)[4], const int n)
{
    int h = n % 2 * 2, j = n / 2 * 2;
    gk_dq_four f;
    f.row = GK_DQ_ROW + GK_FRAG_ROW(h); f.chunk = GK_DQ_COLUMN / 4 + 2 * j + gk_lid() % 4;
    GK_UNROLL for (int i = 0; i < 4; i++) f.x[i] = c[j + i / 2][h + i % 2];
    return f;
}
#endif

/* Where a chunk of a row of dQ begins in a tile of sums. */
GK_FN int gk_dq_at(gk_dq_four f) { return f.row * (GK_HEAD_WIDTH / 4) + gk_dq_place(f.row, f.chunk); }

/* Writes the warp's dQ to its rows in local memory. */
GK_FN void gk_keep_dq(float (*c)[4], GK_LOCAL_PTR gk_raw16* tile)
{
    GK_UNROLL for (int n = 0; n < GK_DQ_COLUMNS / 8; n++) {
        gk_dq_four f = gk_dq_four_of(c, n);
        tile[gk_dq_at(f)] = gk_make16(gk_as_u32(f.x[0]), gk_as_u32(f.x[1]), gk_as_u32(f.x[2]), gk_as_u32(f.x[3]));
    }
}

/* ---- a block's work ---------------------------------------------------------------------------------------------------------------- */

/* Tiles of queries that a block takes: `count` from query `from` on, the last first, each of all heads of the group. */
typedef struct { gk_span s; gk_rule rule; int j0, kv, group, from, count, tiles; } gk_work;

GK_FN gk_work gk_work_of(const gk_attention_bwd_fused_args* args, GK_GLOBAL const int* lengths, GK_GLOBAL const int* cu_q, GK_GLOBAL const int* cu_k,
                         GK_GLOBAL int* err, int code, int block)
{
    gk_work w;
    int kv = (int)args->size.v[2], together = (int)args->sd.v[4], head = block / (together * args->tiles) * together;
    if (args->heads - head < together) together = args->heads - head;
    block -= head * args->tiles;
    head += block % together;
    w.kv = head % kv;
    w.group = (int)args->size.v[1] / kv;
    w.s = gk_span_of(head / kv, block / together, 128, 1, lengths, cu_q, cu_k, args->size, err, code);
    w.rule = gk_rule_of(w.s, w.kv * w.group, 0, 0, args->size, args->sm, args->scale, args->cap, args->left, args->right, args->bottom, 0, 0, 0, 0, 1.0f, 1.0f);
    w.j0 = w.s.tile * 128;
    int first = w.j0 - w.rule.high > 0 ? w.j0 - w.rule.high : 0;
    w.from = first / GK_DQ_ROWS * GK_DQ_ROWS;
    w.count = (gk_end_query(&w.rule, w.j0, 128) - w.from + GK_DQ_ROWS - 1) / GK_DQ_ROWS;
    if (first >= w.s.lq || w.count < 0) w.count = 0;
    w.tiles = w.count * w.group;
    return w;
}
/* First query of tile n, its head, and the row of a query of a head among all queries. */
GK_FN int gk_first_of(const gk_work* w, int n) { return w->from + (w->count - 1 - n / w->group) * GK_DQ_ROWS; }
GK_FN int gk_head_of(const gk_work* w, int n) { return w->kv * w->group + n % w->group; }
GK_FN gk_i64 gk_row_of(const gk_work* w, gk_dims size, int h, int i) { return ((gk_i64)w->s.b * size.v[1] + h) * size.v[3] + w->s.q0 + i; }
/* The first key that a query from i on sees, if it sees any. */
GK_FN int gk_begin_key(const gk_rule* r, int i) { return i + r->low > 0 ? i + r->low : 0; }

/* Places in local memory. Gates: whether keys and values are there, tiles of queries are there or used, dQ is there or read, and all of it is added. */
typedef struct { GK_LOCAL_PTR gk_raw16 *keys, *queries, *scores, *dq; GK_LOCAL_PTR float* stats; gk_u32 stay, full, empty, dq_full, dq_empty, added; } gk_places;

GK_FN gk_places gk_places_of(GK_LOCAL_PTR gk_raw16* tiles, GK_LOCAL_PTR gk_u64* gates)
{
    gk_places l;
    l.keys = tiles;
    l.queries = l.keys + 2 * GK_STAY;
    l.scores = l.queries + 2 * GK_STAGES * GK_PASS;
    l.dq = l.scores + GK_SCORE_CHUNKS;
    l.stats = (GK_LOCAL_PTR float*)(l.dq + GK_DQ_CHUNKS);
    l.stay = gk_local_address(gates);
    l.full = l.stay + 8u;
    l.empty = l.full + 8u * GK_STAGES;
    l.dq_full = l.empty + 8u * GK_STAGES;
    l.dq_empty = l.dq_full + 8u;
    l.added = l.dq_empty + 8u;
    return l;
}

GK_FN void gk_gates_open(const gk_places* l)
{
    gk_gate_init(l->stay, GK_PRODUCERS);
    GK_UNROLL for (int i = 0; i < GK_STAGES; i++) {
        gk_gate_init(l->full + 8u * (gk_u32)i, GK_PRODUCERS);
        gk_gate_init(l->empty + 8u * (gk_u32)i, GK_CONSUMERS / 32);
    }
    gk_gate_init(l->dq_full, GK_CONSUMERS / 32);
    gk_gate_init(l->dq_empty, 1);
    gk_gate_init(l->added, 1);
    GK_GATES_READY();
}

/* ---- warps that copy --------------------------------------------------------------------------------------------------------------- */

/* Queues the copy of `count` rows, of which `rows` exist, and of their chunks those below `width` numbers; zeros stand for the others. */
GK_FN void gk_bring(GK_GLOBAL const gk_t* p, gk_i64 step, const int count, int rows, int width, GK_LOCAL_PTR gk_raw16* tile)
{
    const int apart = GK_PRODUCERS / GK_HEAD_CHUNKS; /* a power of two up to 8 */
    int c = gk_lid() % GK_HEAD_CHUNKS, r = gk_lid() % GK_PRODUCERS / GK_HEAD_CHUNKS;
    GK_GLOBAL const gk_t* from = p + r * step + c * GK_PER_CHUNK;
    step *= apart;
    gk_u32 to = gk_local_address(tile + gk_chunk_at(r, c, count));
    if (rows >= count && width == GK_HEAD_WIDTH) {
        /* gk_chunk_at of a row below: the same chunk but for the lower bits of the row. */
        GK_UNROLL for (int i = 0; i < count; i += apart, from += step) gk_copy16_whole((to ^ (gk_u32)(i % 8 * 16)) + (gk_u32)(i * 128), from);
    } else {
        if (c * GK_PER_CHUNK >= width) rows = 0;
        GK_ROLLED for (int i = 0; i < count; i += apart, from += step)
            gk_copy16_to((to ^ (gk_u32)(i % 8 * 16)) + (gk_u32)(i * 128), r + i < rows ? from : p, r + i < rows);
    }
}

/* What was queued last is known to be there when the next is on its way, or at once where there is room for two alone. Returns the gate that is left. */
GK_FN gk_u32 gk_brought(gk_u32 last, gk_u32 gate)
{
    if (GK_STAGES > 2) GK_COPY_WAIT(1);
    else GK_COPY_WAIT(0);
    if (last) gk_gate_arrive(last);
    if (GK_STAGES == 2) gk_gate_arrive(gate);
    return GK_STAGES > 2 ? gate : 0u;
}

/* Keys, values, and all passes. */
GK_FN void gk_bring_all(const gk_work* w, const gk_places* l, const gk_attention_bwd_fused_args* args, GK_GLOBAL const gk_t* q, GK_GLOBAL const gk_t* k,
                        GK_GLOBAL const gk_t* v, GK_GLOBAL const gk_t* dout, GK_GLOBAL const gk_f* lse, GK_GLOBAL const gk_f* delta)
{
    q += w->s.b * args->sq.v[0] + w->s.q0 * args->sq.v[2];
    k += w->s.b * args->sq.v[3] + w->kv * args->sq.v[4] + (w->s.k0 + w->j0) * args->sq.v[5];
    v += w->s.b * args->sv.v[0] + w->kv * args->sv.v[1] + (w->s.k0 + w->j0) * args->sv.v[2];
    dout += w->s.b * args->sv.v[3] + w->s.q0 * args->sv.v[5];
    int depth = (int)args->size.v[5], width = (int)args->size.v[6];
    gk_u32 last = l->stay;
    gk_bring(k, args->sq.v[5], 128, w->s.lk - w->j0, depth, l->keys);
    gk_bring(v, args->sv.v[2], 128, w->s.lk - w->j0, width, l->keys + GK_STAY);
    GK_COPY_COMMIT();
    for (int n = 0; n < w->tiles; n++) {
        int h = gk_head_of(w, n);
        GK_ROLLED for (int pass = 0; pass < GK_DQ_ROWS / GK_PASS_ROWS; pass++) {
            gk_u32 turn = (gk_u32)(n * (GK_DQ_ROWS / GK_PASS_ROWS) + pass), slot = turn % GK_STAGES;
            int i0 = gk_first_of(w, n) + pass * GK_PASS_ROWS, rows = w->s.lq - i0, i = gk_lid() % GK_PRODUCERS;
            GK_LOCAL_PTR gk_raw16* qs = l->queries + slot * 2 * GK_PASS;
            gk_gate_pass(l->empty + 8u * slot, turn / GK_STAGES + 1u);
            gk_bring(q + h * args->sq.v[1] + i0 * args->sq.v[2], args->sq.v[2], GK_PASS_ROWS, rows, depth, qs);
            gk_bring(dout + h * args->sv.v[4] + i0 * args->sv.v[5], args->sv.v[5], GK_PASS_ROWS, rows, width, qs + GK_PASS);
            if (i < GK_PASS_ROWS) {
                GK_LOCAL_PTR float* to = l->stats + slot * 2 * GK_PASS_ROWS + i;
                int exists = i < rows, at = w->s.q0 + (exists ? i0 + i : 0);
                gk_copy4(to, lse + w->s.b * args->sl.v[0] + h * args->sl.v[1] + at * args->sl.v[2], exists);
                gk_copy4(to + GK_PASS_ROWS, delta + ((gk_i64)w->s.b * args->size.v[1] + h) * args->size.v[3] + at, exists);
            }
            GK_COPY_COMMIT();
            last = gk_brought(last, l->full + 8u * slot);
        }
    }
    GK_COPY_WAIT(0);
    if (last) gk_gate_arrive(last);
}

/* Adds dQ of all tiles, when it is the block's turn. One thread. */
GK_FN void gk_add_all(const gk_work* w, const gk_places* l, gk_dims size, GK_GLOBAL float* sums, GK_GLOBAL gk_u32* turns)
{
    for (int n = 0; n < w->tiles; n++) {
        int i0 = gk_first_of(w, n), before = w->s.tile - gk_begin_key(&w->rule, i0) / 128;
        int rows = w->s.lq - i0 < GK_DQ_ROWS ? w->s.lq - i0 : GK_DQ_ROWS;
        gk_i64 row = gk_row_of(w, size, gk_head_of(w, n), i0);
        gk_gate_pass(l->dq_full, (gk_u32)n);
        gk_turn_wait(turns + row, (gk_u32)before);
        gk_bulk_add(sums + row * GK_HEAD_WIDTH, gk_local_address(l->dq), rows * GK_HEAD_WIDTH, before == 0);
        GK_BULK_READ();
        gk_gate_arrive(l->dq_empty);
        GK_BULK_DONE();
        gk_turn_end(turns + row);
    }
    gk_gate_arrive(l->added);
}

/* ---- warps that multiply ----------------------------------------------------------------------------------------------------------- */

/* Statistics of a tile of queries by column of the thread's sums: those of LSE are divided by ln 2. */
GK_FN void gk_load_stats(GK_LOCAL_PTR const float* stats, const int is_lse, float x[GK_PASS_PAIRS])
{
    GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) x[n] = is_lse ? gk_lse2(stats[GK_PAIR_COL(n)]) : stats[GK_PAIR_COL(n)];
}

/* Hides from the warp's keys j0 ... the queries i0 ... that do not see them. */
GK_FN void gk_hide(const gk_rule* r, int i0, int j0, float x[GK_PASS_PAIRS / 4][4])
{
    GK_UNROLL for (int h = 0; h < 2; h++) {
        int j = j0 + GK_FRAG_ROW(2 * h), first = j - r->high > 0 ? j - r->high : 0, end = j - r->low < r->rows ? j - r->low + 1 : r->rows;
        gk_u32 seen = j < r->keys && end > first ? (gk_u32)(end - first) : 0u;
        GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS / 2; n++) {
            int i = i0 - first + n / 2 * 8 + GK_FRAG_COL(n % 2);
            x[n / 2][2 * h + n % 2] = (gk_u32)i < seen ? x[n / 2][2 * h + n % 2] : -GK_INF;
        }
    }
}

/* Whether one of GK_PASS_ROWS queries from i0 on sees one of 16 keys from j0 on. */
GK_FN int gk_sees_some(const gk_rule* r, int i0, int j0)
{
    return i0 < r->rows && j0 < r->keys && j0 + 15 - i0 >= r->low && j0 - i0 - GK_PASS_ROWS + 1 <= r->high;
}

/* All tiles: sums of dK and dV, and dQ of each tile in local memory. */
GK_FN void gk_multiply_all(const gk_work* w, const gk_places* l, float ak[GK_HEAD_SUMS][4], float av[GK_HEAD_SUMS][4])
{
    int wj = gk_lid() / 32 * 16, first_lane = gk_lid() % 32 == 0;
    int i0 = gk_first_of(w, 0), rest = w->group;
    gk_u32 turn = 0;
    gk_gate_pass(l->stay, 0);
    GK_ROLLED for (int n = 0; n < w->tiles; n++) {
        float dq[GK_DQ_COLUMNS / 8][4];
        GK_ROLLED for (int pass = 0; pass < GK_DQ_ROWS; pass += GK_PASS_ROWS, turn++) {
            gk_u32 slot = gk_uniform(turn % GK_STAGES);
            GK_LOCAL_PTR gk_raw16* qs = l->queries + slot * 2 * GK_PASS;
            GK_LOCAL_PTR const float* stats = l->stats + slot * 2 * GK_PASS_ROWS;
            float x[GK_PASS_PAIRS / 4][4], y[GK_PASS_PAIRS / 4][4], by[GK_PASS_PAIRS];
            gk_frag_a ps[GK_PASS_ROWS / GK_FRAG_TERMS], ds[GK_PASS_ROWS / GK_FRAG_TERMS];
            /* A warp of f32 multiplies alone, and leaves out what none of its keys is seen by. */
            int hidden = GK_DTYPE == GK_F32 && !gk_sees_some(&w->rule, i0 + pass, w->j0 + wj);
            gk_gate_pass(l->full + 8u * slot, turn / GK_STAGES);
            if (hidden) {
                gk_mm_clear(y, GK_PASS_ROWS);
            } else {
                gk_mm_tiles_begin(x, GK_PASS_ROWS, l->keys, 128, wj, GK_HEAD_WIDTH, qs);
                gk_mm_tiles_begin(y, GK_PASS_ROWS, l->keys + GK_STAY, 128, wj, GK_HEAD_WIDTH, qs + GK_PASS);
                GK_MM_WAIT(1);
                gk_mm_ready(x, GK_PASS_ROWS);
                gk_load_stats(stats, 1, by);
                if (!gk_sees_all(&w->rule, i0 + pass, GK_PASS_ROWS, w->j0, 128)) gk_hide(&w->rule, i0 + pass, w->j0 + wj, x);
                gk_matrix_probs(&w->rule, 0, 0, 1, 1, by, x, x);
                gk_matrix_frags(x, ps, 0);
                gk_mm_terms_begin(av, GK_HEAD_WIDTH, ps, qs + GK_PASS, GK_PASS_ROWS);
                GK_MM_WAIT(1);
                gk_mm_ready(y, GK_PASS_ROWS);
                gk_load_stats(stats + GK_PASS_ROWS, 0, by);
                gk_matrix_dscores(x, y, x, by, 0u, 1.0f);
                gk_matrix_frags(y, ds, 0);
            }
            if (pass == 0) GK_PAIR_WAIT(1); /* Both groups have used the gradients of scores before. */
            gk_keep_dscores(y, ds, wj, pass, l->scores);
            if (!hidden) gk_mm_terms_begin(ak, GK_HEAD_WIDTH, ds, qs, GK_PASS_ROWS);
            if (pass + GK_PASS_ROWS == GK_DQ_ROWS) {
                GK_LOCAL_WRITTEN();
                GK_PAIR_WAIT(2);
                gk_dq_begin(dq, l->scores, l->keys);
            }
            GK_MM_WAIT(0);
            gk_mm_ready(av, GK_HEAD_WIDTH);
            gk_mm_ready(ak, GK_HEAD_WIDTH);
            if (first_lane) gk_gate_arrive(l->empty + 8u * slot);
        }
        gk_mm_ready(dq, GK_DQ_COLUMNS);
        gk_gate_pass(l->dq_empty, (gk_u32)n + 1u);
        gk_keep_dq(dq, l->dq);
        GK_LOCAL_WRITTEN();
        if (first_lane) gk_gate_arrive(l->dq_full);
        if (--rest == 0) {
            rest = w->group;
            i0 -= GK_DQ_ROWS;
        }
    }
}

/* dQ of the tile of queries i0 ... of head h from its sums, or zeros where no key is seen. */
GK_FN void gk_round(const gk_work* w, const gk_attention_bwd_fused_args* args, int h, int i0, int seen, GK_GLOBAL const float* sums, GK_GLOBAL gk_t* dq)
{
    const int each = GK_DQ_CHUNKS / GK_CONSUMERS;
    int rows = w->s.lq - i0;
    gk_raw16 four[each];
    sums += gk_row_of(w, args->size, h, i0) * GK_HEAD_WIDTH;
    dq += w->s.b * args->sd.v[0] + h * args->sd.v[1] + (w->s.q0 + i0) * args->sd.v[2];
    /* All loads are on their way before the first store. */
    GK_UNROLL for (int i = 0; i < each; i++) {
        int n = gk_lid() + i * GK_CONSUMERS, r = n / (GK_HEAD_WIDTH / 4), c = n % (GK_HEAD_WIDTH / 4);
        four[i] = gk_make16(0u, 0u, 0u, 0u);
        if (seen && r < rows) four[i] = gk_load16(sums + r * GK_HEAD_WIDTH + gk_dq_place(r, c) * 4);
    }
    GK_UNROLL for (int i = 0; i < each; i++) {
        int n = gk_lid() + i * GK_CONSUMERS, r = n / (GK_HEAD_WIDTH / 4), c = n % (GK_HEAD_WIDTH / 4);
        float x[4] = {gk_as_f32(four[i].x), gk_as_f32(four[i].y), gk_as_f32(four[i].z), gk_as_f32(four[i].w)};
        GK_GLOBAL gk_t* to = dq + r * args->sd.v[2];
        GK_UNROLL for (int j = 0; j < 4; j += 2) {
            int column = gk_dq_column(c, j);
            float a = x[j] * args->scale, b = x[j + 1] * args->scale;
            if (r >= rows || column >= args->size.v[5]) continue;
            if (args->sd.v[3]) { a += gk_load(to, column); b += gk_load(to, column + 1); }
            gk_store2(to, column, a, b);
        }
    }
}

/* dQ of the tiles whose last keys are the block's; the block of the first keys has the tiles that see none, too. */
GK_FN void gk_round_all(const gk_work* w, const gk_attention_bwd_fused_args* args, GK_GLOBAL const float* sums, GK_GLOBAL gk_t* dq)
{
    for (int i0 = 0; i0 < w->s.lq; i0 += GK_DQ_ROWS) {
        int end = gk_end_key(&w->rule, i0, GK_DQ_ROWS), seen = end > gk_begin_key(&w->rule, i0);
        if ((seen ? (end - 1) / 128 : 0) != w->s.tile) continue;
        for (int h = w->kv * w->group; h < (w->kv + 1) * w->group; h++) gk_round(w, args, h, i0, seen, sums, dq);
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------------------------- */

// Units: FLOATS x HEAD_WIDTHS, F32 x NARROW_HEADS
GK_KERNEL(attention_bwd_fused)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                               GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout), GK_IN(gk_f, lse),
                               GK_IN(gk_f, delta), GK_OUT(gk_t, dq), GK_OUT(gk_t, dk), GK_OUT(gk_t, dv), GK_OUT(float, sums), GK_OUT(gk_u32, turns),
                               GK_BY_VALUE(gk_attention_bwd_fused_args, args))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_FUSED_CHUNKS);
    GK_LOCAL gk_u64 gates[4 + 2 * GK_STAGES];
    GK_LOCAL int number;
    GK_BIND_OUT(gk_t, dk);
    gk_places l = gk_places_of(tiles, gates);
    if (gk_lid() == 0) {
        gk_gates_open(&l);
        number = (int)gk_take_number(turns);
    }
    GK_BARRIER();
    gk_work w = gk_work_of(&args, lengths, cu_q, cu_k, err, code, number);
    if (gk_lid() >= GK_CONSUMERS) {
        GK_REGISTERS_LESS(24);
        if (gk_lid() < GK_CONSUMERS + GK_PRODUCERS) gk_bring_all(&w, &l, &args, q, k, v, dout, lse, delta);
        else if (gk_lid() == GK_CONSUMERS + GK_PRODUCERS) gk_add_all(&w, &l, args.size, sums, turns + 1);
        return;
    }
    GK_REGISTERS_MORE(240);
    float ak[GK_HEAD_SUMS][4], av[GK_HEAD_SUMS][4];
    gk_mm_clear(ak, GK_HEAD_WIDTH);
    gk_mm_clear(av, GK_HEAD_WIDTH);
    gk_multiply_all(&w, &l, ak, av);
    int wj = gk_lid() / 32 * 16, rows = w.s.lk - w.j0;
    gk_matrix_put(dk + w.s.b * args.sg.v[0] + w.kv * args.sg.v[1] + (w.s.k0 + w.j0) * args.sg.v[2], args.sg.v[2], wj, rows, (int)args.size.v[5], args.scale,
        (int)args.sg.v[6], ak);
    gk_matrix_put(dv + w.s.b * args.sg.v[3] + w.kv * args.sg.v[4] + (w.s.k0 + w.j0) * args.sg.v[5], args.sg.v[5], wj, rows, (int)args.size.v[6], 1.0f,
        (int)args.sg.v[7], av);
    gk_gate_pass(l.added, 0);
    gk_round_all(&w, &args, sums, dq);
}
#endif
