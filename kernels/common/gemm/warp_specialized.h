/* What the warp-specialised products of matrix_specialized.c and matrix_wide.c share: tile scheduler, producer, pipeline of stages in shared memory.
 *
 * A tile has GK_GEMM_SIDE rows and GK_GEMM_COLUMNS columns. The two blocks of a cluster have neighbouring tiles: with GK_PAIR_DOWN = 0 of the same rows, with 1
 * of the same columns, as these are the larger operand. Each loads half of what they share and multicasts it to both. In grouped products (GK_PAIR_DOWN = 0)
 * the tiles of at most 64 rows, one per group at most, are scheduled last.
 *
 * Tensor maps have boxes of 64 x 64 elements. Axes, innermost first: k, rows, batch for operands that are contiguous along k ("n" of A, "t" of B, as BLAS
 * names them); rows, k, batch for the others.
 * Launch: axis 0 = persistent blocks, two per cluster, GK_BLOCK threads. Tiles go by bands of GK_BAND(kind) rows of pairs, so that what is read at a time fits
 * the L2 cache.
 *
 * Defined before: GK_PAIR_DOWN, GK_GEMM_COLUMNS, a multiple of 128, GK_GEMM_STAGES and GK_GATE_ARRIVALS, the consumer warps of both blocks that read a stage.
 */
#include "operands.h"
#include "groups.h"

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_PAIRS_OF_BLOCKS

#define GK_GEMM_SIDE 128
#define GK_GEMM_TERMS 64
/* Rows and columns of a pair of tiles. */
#define GK_PAIR_ROWS (GK_GEMM_SIDE * (1 + GK_PAIR_DOWN))
#define GK_PAIR_COLUMNS (GK_GEMM_COLUMNS * (2 - GK_PAIR_DOWN))
#define GK_BAND(kind) ((kind) == GK_BY_ROWS ? 2 : 8)
/* Consumer threads: two warpgroups. */
#define GK_CONSUMERS 256
/* Bytes of a box and of a stage: two boxes of A, then those of B. */
#define GK_BOX_BYTES 8192u
#define GK_BOXES_OF_COLUMNS (GK_GEMM_COLUMNS / 64)
#define GK_STAGE_BYTES ((2u + GK_BOXES_OF_COLUMNS) * GK_BOX_BYTES)
#define GK_GEMM_STAGE_CHUNKS ((int)GK_STAGE_BYTES / 16)
/* Tiles of a block that are looked up before its main loop. */
#define GK_GEMM_JOBS 64

/* Kinds of products: dense, grouped by rows, gradient of the matrices of a grouped product. */
#define GK_DENSE 0
#define GK_BY_ROWS 1
#define GK_OF_MATRICES 2

/* Sizes of a product. `groups` is the batch size of a dense product; `a_batch` and `b_batch` are 0 where A or B is broadcast over the batch, else 1. */
typedef struct {
    GK_GLOBAL const int* offsets;
    GK_GLOBAL int* err;
    int m, n, k, groups, a_batch, b_batch, code;
} gk_extents;

/* size = {M, N, K, groups, a_batch, b_batch}. */
GK_FN gk_extents gk_extents_of(const gk_dims* size, GK_GLOBAL const int* offsets, GK_GLOBAL int* err, int code)
{
    gk_extents e;
    e.m = (int)size->v[0]; e.n = (int)size->v[1]; e.k = (int)size->v[2]; e.groups = (int)size->v[3];
    e.a_batch = (int)size->v[4]; e.b_batch = (int)size->v[5];
    e.offsets = offsets; e.err = err; e.code = code;
    return e;
}

/* A tile of work: its first row and column, the end of its rows, the matrices of Y, A and B, its range of k, and whether its rows belong to no group (then
 * it is 0). end = 0: no more work. */
typedef struct { int m0, end, n0, y, a, b, first_term, terms, none; } gk_job;

/* Pairs of tiles of a product: rows of pairs, those of at most 64 rows in grouped products, and pairs across the columns. */
typedef struct { int whole, halves, across; } gk_pairs;

GK_FN gk_pairs gk_pairs_of(const gk_extents* e, const int kind)
{
    gk_pairs r;
    r.whole = (e->m + GK_PAIR_ROWS - 1) / GK_PAIR_ROWS; r.halves = 0;
    r.across = (e->n + GK_PAIR_COLUMNS - 1) / GK_PAIR_COLUMNS;
    if (kind == GK_BY_ROWS) {
        gk_row_tiles n = gk_row_tiles_of(GK_GEMM_SIDE, e->offsets, e->m, e->groups, e->err, e->code);
        r.whole = n.whole; r.halves = n.halves;
    }
    return r;
}

/* Pair number `turn` of this block's cluster, -1 after the last. Halves are last, two of them for each cluster that has one pair less. */
GK_FN int gk_pair_of(gk_pairs n, int turn, int batches)
{
    int clusters = gk_nblocks(0) / 2, c = gk_bid(0) / 2, whole = n.whole * n.across * batches, t = c + turn * clusters;
    if (t < whole) return t;
    if (n.halves == 0) return -1;
    int more = whole % clusters, spare = more > 0 ? clusters - more : 0, late = c >= more && spare > 0, k = turn - whole / clusters - (c < more);
    int short_one = late && k < 2 ? k * spare + c - more : 2 * spare + c + (k - 2 * late) * clusters;
    return short_one < n.halves * n.across ? whole + short_one : -1;
}

/* The tile of the block of this rank in its cluster. */
GK_FN gk_job gk_job_of(const gk_extents* e, gk_pairs n, int turn, int rank, const int kind)
{
    gk_job j;
    int batches = kind == GK_BY_ROWS ? 1 : e->groups, t = gk_pair_of(n, turn, batches), each = n.whole * n.across, short_one = t >= each * batches;
    int batch = kind == GK_BY_ROWS || t < 0 ? 0 : t / each, row, column;
    j.m0 = 0; j.end = 0; j.n0 = 0; j.y = batch; j.a = batch * e->a_batch; j.b = batch * e->b_batch;
    j.first_term = 0; j.terms = 0; j.none = 0;
    if (t < 0) return j;
    t -= short_one ? each : batch * each;
    if (short_one) {
        row = n.whole + t / n.across; column = t % n.across;
    } else {
        int band = t / (GK_BAND(kind) * n.across) * GK_BAND(kind), rows = n.whole - band < GK_BAND(kind) ? n.whole - band : GK_BAND(kind);
        t -= band * n.across;
        row = band + t % rows; column = t / rows;
    }
    j.m0 = row * GK_PAIR_ROWS + rank * (GK_PAIR_ROWS - GK_GEMM_SIDE); j.end = e->m;
    j.n0 = column * GK_PAIR_COLUMNS + rank * (GK_PAIR_COLUMNS - GK_GEMM_COLUMNS);
    j.terms = e->k;
    if (kind == GK_BY_ROWS) {
        gk_row_tile m = gk_row_tile_at(row, n.whole, GK_GEMM_SIDE, e->offsets, e->m, e->groups);
        j.m0 = (int)m.first; j.end = j.m0 + m.rows;
        j.none = m.group < 0; j.b = j.none ? 0 : m.group;
        if (j.none) j.terms = 0;
    } else if (kind == GK_OF_MATRICES) {
        gk_run r = gk_rows_of_group(batch, e->offsets, e->k, e->groups, e->err, e->code);
        j.first_term = (int)r.begin; j.terms = (int)(r.end - r.begin);
    }
    return j;
}
#define GK_STAGES_OF(job) (((job).terms + GK_GEMM_TERMS - 1) / GK_GEMM_TERMS)

/* The same; grouped products, whose search takes long, read those that were looked up before. */
GK_FN gk_job gk_next_job(const gk_extents* e, gk_pairs n, GK_LOCAL_PTR const gk_job* jobs, int turn, int rank, const int kind)
{
    return kind == GK_BY_ROWS && turn < GK_GEMM_JOBS ? jobs[turn] : gk_job_of(e, n, turn, rank, kind);
}

/* Shared-memory addresses of the stages and of their mbarriers: `full`, and `empty` in both blocks. */
typedef struct { gk_u32 stages, full, empty; } gk_places;

/* Initialises the mbarriers and looks up the block's first tiles. */
GK_FN gk_places gk_places_of(const gk_extents* e, gk_pairs pairs, int rank, const int kind, GK_LOCAL_PTR gk_raw16* stages, GK_LOCAL_PTR gk_u64* gates,
                             GK_LOCAL_PTR gk_job* jobs)
{
    gk_places l;
    l.stages = gk_local_address(stages); l.full = gk_local_address(gates); l.empty = l.full + 8u * GK_GEMM_STAGES;
    if (kind == GK_BY_ROWS && gk_lid() < GK_GEMM_JOBS) jobs[gk_lid()] = gk_job_of(e, pairs, gk_lid(), rank, kind);
    if (gk_lid() == GK_BLOCK - 1) {
        /* One producer thread fills a stage; each consumer warp of both blocks releases it. */
        GK_UNROLL for (int i = 0; i < GK_GEMM_STAGES; i++) {
            gk_gate_init(l.full + 8u * (gk_u32)i, 1);
            gk_gate_init(l.empty + 8u * (gk_u32)i, GK_GATE_ARRIVALS);
        }
        GK_GATES_READY();
    }
    GK_CLUSTER_BARRIER();
    return l;
}

/* ---- producer ----------------------------------------------------------------------------------------------------------- */

/* Loads `count` boxes of an operand from row or column `first` on. by_rows: it is contiguous along these, not along k. shared: half of them, to both blocks. */
GK_FN void gk_load_boxes(gk_u32 to, const gk_tensor_map* map, const int by_rows, int first, int term, int matrix, gk_u32 gate, const int count,
                         const int shared, int rank)
{
    const int own = shared ? count / 2 : count;
    GK_UNROLL for (int i = 0; i < own; i++) {
        int box = shared ? rank * own + i : i, at = first + 64 * box, x = by_rows ? at : term, y = by_rows ? term : at;
        if (shared) gk_box_share(to + (gk_u32)box * GK_BOX_BYTES, map, x, y, matrix, gate, 3);
        else gk_box_copy(to + (gk_u32)box * GK_BOX_BYTES, map, x, y, matrix, gate);
    }
}

/* Loads the stages of a tile; n: stages before it. at, bt: A, B is contiguous along its rows, columns, not along k. */
GK_FN void gk_feed(const gk_places* l, gk_u32 n, const gk_tensor_map* a, const int at, const gk_tensor_map* b, const int bt, gk_job j, int rank)
{
    GK_ROLLED for (int k = 0; k < j.terms; k += GK_GEMM_TERMS, n++) {
        gk_u32 slot = n % GK_GEMM_STAGES, left = l->stages + slot * GK_STAGE_BYTES, gate = l->full + 8u * slot;
        gk_gate_pass(l->empty + 8u * slot, n / GK_GEMM_STAGES + 1u);
        gk_gate_expect(gate, GK_STAGE_BYTES);
        gk_load_boxes(left, a, at, j.m0, j.first_term + k, j.a, gate, 2, !GK_PAIR_DOWN, rank);
        gk_load_boxes(left + 2u * GK_BOX_BYTES, b, bt, j.n0, j.first_term + k, j.b, gate, GK_BOXES_OF_COLUMNS, GK_PAIR_DOWN, rank);
    }
}

/* Loads all tiles of the block. */
GK_FN void gk_feed_all(const gk_extents* e, const gk_places* l, gk_pairs pairs, GK_LOCAL_PTR const gk_job* jobs, const gk_tensor_map* a, const int at,
                       const gk_tensor_map* b, const int bt, int rank, const int kind)
{
    gk_u32 n = 0;
    GK_ROLLED for (int turn = 0;; turn++) {
        gk_job j = gk_next_job(e, pairs, jobs, turn, rank, kind);
        if (j.end == 0) break;
        gk_feed(l, n, a, at, b, bt, j, rank);
        n += (gk_u32)GK_STAGES_OF(j);
    }
}

/* ---- consumers -------------------------------------------------------------------------------------------------------- */

/* Releases stage number n in both blocks. */
GK_FN void gk_release(const gk_places* l, gk_u32 n)
{
    if (gk_lid() % 32 < 2) gk_gate_arrive_at(l->empty + 8u * (n % GK_GEMM_STAGES), (gk_u32)gk_lid() % 32u);
}

/* Zeroes k >= `have` of a stage whose tail belongs to the next group, by `threads` threads; a barrier of these must follow. */
GK_FN void gk_clear_terms(GK_LOCAL_PTR gk_raw16* stage, int have, const int threads)
{
    const int boxes = 2 + GK_BOXES_OF_COLUMNS;
    for (int i = gk_lid() % threads; i < (GK_GEMM_TERMS - have) * 8 * boxes; i += threads)
        stage[i / 8 % boxes * (GK_BOX_BYTES / 16u) + (have + i / 8 / boxes) * 8 + i % 8] = gk_make16(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
