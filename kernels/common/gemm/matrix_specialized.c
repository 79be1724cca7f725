/* Products of f16 and bf16 by warps of different work, with copies by the tensor memory accelerator (CUTLASS calls the schedule ping-pong): dense ones
 * (formula and epilogue: gemm.c), those by groups of rows and the gradient of their matrices (ragged.c, ragged_bwd.c). Where the dialect has no tensor maps
 * (GK_TENSOR_MAPS, cuda/tensor_map.h), the file is empty.
 *
 * A block has three groups of four warps: one thread of the third copies stages of 64 terms of both operands to local memory, as far ahead as there is
 * room; the two others take tiles of 128 x 128 results in turn, so that the epilogue of one tile passes under the products of the next. The two blocks of a
 * cluster have neighbouring columns and the same rows, of which each copies half for both. Sums are float, in the order of terms. Deterministic.
 *
 * By groups of rows the tiles of at most 64 rows, of which a group has one at the most, come last and take half the time.
 *
 * Maps are in boxes of 64 x 64 numbers: of operands that have the terms of a row or column side by side ("n" of A, "t" of B, as BLAS names them), their
 * axes are terms, rows, batches; of the others rows, terms, batches.
 * Launch: axis 0 as many blocks as run at a time, two per cluster; GK_BLOCK threads. Bands of GK_BAND(kind) tiles of rows pass one after the other, all their
 * columns with them, so that what is read at a time fits the L2 cache.
 */
#include "common/prelude/matrix.h"
#include "cuda/tensor_map.h"
#include "operands.h"
#include "groups.h"

#ifdef GK_TENSOR_MAPS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#undef GK_BLOCK
#define GK_BLOCK 384
#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_PAIRS_OF_BLOCKS

#define GK_GEMM_SIDE 128
#define GK_GEMM_TERMS 64
#define GK_BAND(kind) ((kind) == GK_BY_ROWS ? 2 : 8)
/* Threads that multiply. */
#define GK_CONSUMERS 256
/* Bytes of a box, and of a stage: two boxes of each operand. */
#define GK_BOX_BYTES 8192u
#define GK_STAGE_BYTES (4u * GK_BOX_BYTES)
#define GK_GEMM_STAGES 6
/* Sums of a warp that wait in local memory for the epilogue: 16 rows of 64 columns. */
#define GK_SPILL_ROWS 16
#define GK_SPILL_COLUMNS 64
#define GK_SPILL_CHUNKS (GK_SPILL_ROWS * GK_SPILL_COLUMNS / 4)
#define GK_LOCAL_CHUNKS (GK_GEMM_STAGES * (int)GK_STAGE_BYTES / 16 + GK_CONSUMERS / 32 * GK_SPILL_CHUNKS)
/* Tiles of a block that are found before it begins. */
#define GK_GEMM_JOBS 64

/* What a kernel computes: a dense product, one by groups of rows, or the gradient of matrices of groups. */
#define GK_DENSE 0
#define GK_BY_ROWS 1
#define GK_OF_MATRICES 2

/* Where a tensor's matrices lie: steps from row to row and from matrix to matrix; columns lie side by side. */
typedef struct { gk_i64 row, batch; } gk_pitch;

/* What a product has beside its maps. Operands of the epilogue that are not needed are null. `groups` is the number of batches of a dense product;
 * `a_batch` and `b_batch` are 0 where all batches have the same A or B, else 1; `bias_group` is the step from group to group of the bias. */
typedef struct {
    GK_GLOBAL const gk_o *c, *residual;
    GK_GLOBAL const gk_t *bias, *scale;
    GK_GLOBAL gk_o *y, *z;
    GK_GLOBAL const int* offsets;
    GK_GLOBAL int* err;
    int m, n, k, groups, a_batch, b_batch, act, code;
    gk_i64 bias_group;
    gk_pitch sc, sr, sy, sz;
    gk_f alpha, beta, p;
} gk_product;

/* A tile: its first row and column, the end of its rows, the matrices that it has results in and operands from, its terms, and whether its rows belong to
 * no group: then it is 0. Without rows it is none. */
typedef struct { int m0, end, n0, y, a, b, first_term, terms, none; } gk_job;

/* The pairs of tiles of a product: tiles of rows, of them those of at most half the rows (by groups, where they end one), and pairs in a tile of rows. */
typedef struct { int whole, halves, across; } gk_pairs;

GK_FN gk_pairs gk_pairs_of(const gk_product* q, const int kind)
{
    gk_pairs r;
    r.whole = (q->m + GK_GEMM_SIDE - 1) / GK_GEMM_SIDE; r.halves = 0;
    r.across = (q->n + 2 * GK_GEMM_SIDE - 1) / (2 * GK_GEMM_SIDE);
    if (kind == GK_BY_ROWS) {
        gk_row_tiles n = gk_row_tiles_of(GK_GEMM_SIDE, q->offsets, q->m, q->groups, q->err, q->code);
        r.whole = n.whole; r.halves = n.halves;
    }
    return r;
}

/* Pair number `turn` of those of this block's cluster, -1 behind the last. Halves come last, two of them to each cluster that has one pair less. */
GK_FN int gk_pair_of(gk_pairs n, int turn, int batches)
{
    int clusters = gk_nblocks(0) / 2, c = gk_bid(0) / 2, whole = n.whole * n.across * batches, t = c + turn * clusters;
    if (t < whole) return t;
    if (n.halves == 0) return -1;
    int more = whole % clusters, spare = more > 0 ? clusters - more : 0, late = c >= more && spare > 0, k = turn - whole / clusters - (c < more);
    int short_one = late && k < 2 ? k * spare + c - more : 2 * spare + c + (k - 2 * late) * clusters;
    return short_one < n.halves * n.across ? whole + short_one : -1;
}

/* The job of the block of this rank in its cluster. */
GK_FN gk_job gk_job_of(const gk_product* q, gk_pairs n, int turn, int rank, const int kind)
{
    gk_job j;
    int batches = kind == GK_BY_ROWS ? 1 : q->groups, t = gk_pair_of(n, turn, batches), each = n.whole * n.across, short_one = t >= each * batches;
    int batch = kind == GK_BY_ROWS || t < 0 ? 0 : t / each, row, column;
    j.m0 = 0; j.end = 0; j.n0 = 0; j.y = batch; j.a = batch * q->a_batch; j.b = batch * q->b_batch;
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
    j.m0 = row * GK_GEMM_SIDE; j.end = q->m; j.n0 = (column * 2 + rank) * GK_GEMM_SIDE;
    j.terms = q->k;
    if (kind == GK_BY_ROWS) {
        gk_row_tile m = gk_row_tile_at(row, n.whole, GK_GEMM_SIDE, q->offsets, q->m, q->groups);
        j.m0 = (int)m.first; j.end = j.m0 + m.rows;
        j.none = m.group < 0; j.b = j.none ? 0 : m.group;
        if (j.none) j.terms = 0;
    } else if (kind == GK_OF_MATRICES) {
        gk_run r = gk_rows_of_group(batch, q->offsets, q->k, q->groups, q->err, q->code);
        j.first_term = (int)r.begin; j.terms = (int)(r.end - r.begin);
    }
    return j;
}
#define GK_STAGES_OF(job) (((job).terms + GK_GEMM_TERMS - 1) / GK_GEMM_TERMS)

/* The same; by groups of rows, whose search takes long, from those that were found before. */
GK_FN gk_job gk_next_job(const gk_product* q, gk_pairs n, GK_LOCAL_PTR const gk_job* jobs, int turn, int rank, const int kind)
{
    return kind == GK_BY_ROWS && turn < GK_GEMM_JOBS ? jobs[turn] : gk_job_of(q, n, turn, rank, kind);
}

/* Stages in local memory, and gates that are open while one is full, or empty in both blocks. */
typedef struct { gk_u32 stages, full, empty; } gk_places;

/* ---- the thread that copies ----------------------------------------------------------------------------------------------------------- */

/* The stages of a tile; n stages came before. at: A has the columns of a term side by side; bt: so has B. */
GK_FN void gk_feed(const gk_places* l, gk_u32 n, const gk_tensor_map* a, const int at, const gk_tensor_map* b, const int bt, gk_job j, int rank)
{
    GK_ROLLED for (int k = 0; k < j.terms; k += GK_GEMM_TERMS, n++) {
        gk_u32 slot = n % GK_GEMM_STAGES, left = l->stages + slot * GK_STAGE_BYTES, right = left + 2u * GK_BOX_BYTES, gate = l->full + 8u * slot;
        int term = j.first_term + k, row = j.m0 + 64 * rank;
        gk_gate_pass(l->empty + 8u * slot, n / GK_GEMM_STAGES + 1u);
        gk_gate_expect(gate, GK_STAGE_BYTES);
        gk_box_share(left + (gk_u32)rank * GK_BOX_BYTES, a, at ? row : term, at ? term : row, j.a, gate, 3);
        GK_UNROLL for (int i = 0; i < 2; i++) {
            int column = j.n0 + 64 * i;
            gk_box_copy(right + (gk_u32)i * GK_BOX_BYTES, b, bt ? column : term, bt ? term : column, j.b, gate);
        }
    }
}

/* ---- the groups that multiply ------------------------------------------------------------------------------------------------------------- */

/* sums = or += a stage's products: instruction by instruction, for `parts` halves of the rows. */
GK_FN void gk_stage_begin(float (*sums)[16][4], gk_u32 stage, const int at, const int bt, int fresh, const int parts)
{
    gk_u32 left = gk_uniform(gk_wgmma_tile(stage, 64)), right = gk_uniform(gk_wgmma_tile(stage + 2u * GK_BOX_BYTES, 64));
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < GK_GEMM_TERMS / 16; k++) {
        GK_UNROLL for (int h = 0; h < parts; h++)
            gk_wgmma_s(sums[h], 128, gk_wgmma_part(left + (gk_u32)h * (GK_BOX_BYTES / 16u), 64, at, k), at, gk_wgmma_part(right, 64, bt, k), bt,
                k == 0 ? fresh : 0);
    }
    GK_WGMMA_END();
}

/* The stage is empty, for both blocks. */
GK_FN void gk_release(const gk_places* l, gk_u32 n)
{
    if (gk_lid() % 32 < 2) gk_gate_arrive_at(l->empty + 8u * (n % GK_GEMM_STAGES), (gk_u32)gk_lid() % 32u);
}

/* Terms from number `have` on of a stage of both operands by terms are those of another group: they become 0. */
GK_FN void gk_clear_terms(GK_LOCAL_PTR gk_raw16* stage, int have, int group)
{
    for (int i = gk_lid() % 128; i < (GK_GEMM_TERMS - have) * 32; i += 128)
        stage[i / 8 % 4 * (GK_BOX_BYTES / 16u) + (have + i / 32) * 8 + i % 8] = gk_make16(0, 0, 0, 0);
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
    GK_GROUP_BARRIER(3 + group);
}

/* Sums of a tile's first `parts` halves, the others 0, when the group's turn has come; n stages came before. */
GK_FN void gk_multiply(float (*sums)[16][4], const gk_places* l, GK_LOCAL_PTR gk_raw16* stages, gk_u32 n, gk_job j, const int at, const int bt, int group,
                       const int kind, const int parts)
{
    int count = GK_STAGES_OF(j);
    GK_UNROLL for (int h = parts; h < 2; h++) gk_mm_clear(sums[h], GK_GEMM_SIDE);
    if (count == 0) GK_UNROLL for (int h = 0; h < parts; h++) gk_mm_clear(sums[h], GK_GEMM_SIDE);
    GK_PAIR_WAIT(1 + group);
    GK_ROLLED for (int s = 0; s < count; s++) {
        gk_u32 now = n + (gk_u32)s, slot = now % GK_GEMM_STAGES;
        int left = j.terms - s * GK_GEMM_TERMS;
        gk_gate_pass(l->full + 8u * slot, now / GK_GEMM_STAGES);
        if (kind == GK_OF_MATRICES && left < GK_GEMM_TERMS) gk_clear_terms(stages + slot * (GK_STAGE_BYTES / 16u), left, group);
        gk_stage_begin(sums, l->stages + slot * GK_STAGE_BYTES, at, bt, s == 0, parts);
        if (s > 0) {
            GK_MM_WAIT(1);
            gk_release(l, now - 1u);
        }
    }
    GK_PAIR_GO(2 - group);
    GK_MM_WAIT(0);
    if (count > 0) gk_release(l, n + (gk_u32)count - 1u);
    GK_UNROLL for (int h = 0; h < parts; h++) gk_mm_ready(sums[h], GK_GEMM_SIDE);
}

/* ---- epilogue ------------------------------------------------------------------------------------------------------------------------------- */

/* Where four columns of a row lie: chunks in an order in which neither stores of columns nor loads of rows meet in a bank. */
#define GK_SPILL_AT(row, chunk) ((row) * (GK_SPILL_COLUMNS / 4) + ((chunk) ^ 2 * ((row) & 3)))

GK_FN void gk_spill(float (*sums)[4], GK_LOCAL_PTR gk_raw16* spill)
{
    int row = gk_lid() % 32 / 4, chunk = gk_lid() % 4 / 2;
    GK_UNROLL for (int i = 0; i < GK_SPILL_COLUMNS / 4; i++) {
        int j = i / 2, h = i % 2;
        GK_LOCAL_PTR float2* to = (GK_LOCAL_PTR float2*)(spill + GK_SPILL_AT(row + 8 * h, 2 * j + chunk)) + gk_lid() % 2;
        *to = make_float2(sums[j][2 * h], sums[j][2 * h + 1]);
    }
}

/* Rows of a tensor, two apart: the place of the first one's columns, and the step between them. */
typedef struct { gk_i64 at, step; } gk_rows;
GK_FN gk_rows gk_rows_at(gk_pitch p, int batch, int m, int n)
{
    gk_rows r;
    r.at = batch * p.batch + m * p.row + n;
    r.step = 2 * p.row;
    return r;
}

/* Of eight rows those that exist: x += factor * p, and p = x. */
GK_FN void gk_add_rows(gk_four* x, GK_GLOBAL const gk_o* p, gk_rows r, int rows, float factor)
{
    GK_UNROLL for (int i = 0; i < 8; i++) {
        if (2 * i >= rows) continue;
        GK_UNROLL for (int u = 0; u < 4; u++) x[i].v[u] += factor * gk_load_o(p, r.at + i * r.step + u);
    }
}
GK_FN void gk_put_rows(GK_GLOBAL gk_o* p, gk_rows r, int rows, const gk_four* x)
{
    p += r.at;
    GK_UNROLL for (int i = 0; i < 8; i++, p += r.step) {
#if GK_FLOAT_OUT
        if (2 * i < rows) *(GK_GLOBAL float4*)p = make_float4(x[i].v[0], x[i].v[1], x[i].v[2], x[i].v[3]);
#else
        if (2 * i < rows) *(GK_GLOBAL uint2*)p = make_uint2(gk_pack2(x[i].v[0], x[i].v[1]), gk_pack2(x[i].v[2], x[i].v[3]));
#endif
    }
}

#define GK_ROWS_BY(f) GK_UNROLL for (int i = 0; i < 8; i++) GK_UNROLL for (int u = 0; u < 4; u++) x[i].v[u] = f(x[i].v[u], q->p, 0.0f, 0.0f)

/* The thread's four columns n ... of eight rows m, m + 2, ..., which lie in `spill` from row `first` on. Without loops: few warps are there to hide the
 * time that an instruction takes. */
GK_FN void gk_finish_rows(const gk_product* q, gk_job j, int m, int n, gk_four bias, GK_LOCAL_PTR const gk_raw16* spill, int first)
{
    gk_four x[8];
    float scale[4];
    int rows = j.end - m, chunk = gk_lid() % 16;
    GK_UNROLL for (int u = 0; u < 4; u++) scale[u] = q->scale ? q->alpha * gk_load(q->scale, n + u) : q->alpha;
    GK_UNROLL for (int i = 0; i < 8; i++) {
        x[i] = gk_slot_get4(spill, 4 * GK_SPILL_AT(first + 2 * i, chunk));
        GK_UNROLL for (int u = 0; u < 4; u++) x[i].v[u] *= scale[u];
    }
    if (q->c) gk_add_rows(x, q->c, gk_rows_at(q->sc, j.y, m, n), rows, q->beta);
    GK_UNROLL for (int i = 0; i < 8; i++) GK_UNROLL for (int u = 0; u < 4; u++) x[i].v[u] += bias.v[u];
    if (q->residual) gk_add_rows(x, q->residual, gk_rows_at(q->sr, j.y, m, n), rows, 1.0f);
    if (q->z) gk_put_rows(q->z, gk_rows_at(q->sz, j.y, m, n), rows, x);
    switch (j.none ? 0 : q->act) {
    case 1: GK_ROWS_BY(gk_act_relu_fwd); break;
    case 2: GK_ROWS_BY(gk_act_leaky_relu_fwd); break;
    case 3: GK_ROWS_BY(gk_act_gelu_fwd); break;
    case 4: GK_ROWS_BY(gk_act_gelu_tanh_fwd); break;
    case 5: GK_ROWS_BY(gk_act_sigmoid_fwd); break;
    case 6: GK_ROWS_BY(gk_act_tanh_fwd); break;
    case 7: GK_ROWS_BY(gk_act_swish_fwd); break;
    case 8: GK_ROWS_BY(gk_act_hardswish_fwd); break;
    default: break;
    }
    gk_put_rows(q->y, gk_rows_at(q->sy, j.y, m, n), rows, x);
}

/* The biases of the thread's four columns of the first (part 0) or last 64 of a tile, 0 where there are none. Loaded before the products that they are
 * added to, which take longer. */
GK_FN gk_four gk_load_bias(const gk_product* q, gk_job j, int part)
{
    gk_four r;
    int n = j.n0 + part * GK_SPILL_COLUMNS + gk_lid() % 16 * 4;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = q->bias && !j.none && n < q->n ? gk_load(q->bias, j.b * q->bias_group + n + u) : 0.0f;
    return r;
}

/* A tile's results: by parts of 64 rows and columns, which the warp's sums of pass through local memory, so that rows are stored in one piece. */
GK_FN void gk_finish(const gk_product* q, float (*sums)[16][4], gk_job j, const gk_four* bias, GK_LOCAL_PTR gk_raw16* spill)
{
    int first = gk_lid() % 32 / 16, warp = gk_lid() / 32 % 4;
    GK_ROLLED for (int part = 0; part < 4; part++) {
        int m = j.m0 + part / 2 * 64 + warp * 16 + first, n = j.n0 + part % 2 * GK_SPILL_COLUMNS + gk_lid() % 16 * 4;
        GK_WARP_BARRIER();
        switch (part) {
        case 0: gk_spill(sums[0], spill); break;
        case 1: gk_spill(sums[0] + 8, spill); break;
        case 2: gk_spill(sums[1], spill); break;
        default: gk_spill(sums[1] + 8, spill); break;
        }
        GK_WARP_BARRIER();
        if (n < q->n) gk_finish_rows(q, j, m, n, part % 2 ? bias[1] : bias[0], spill, first);
    }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------------------- */

GK_FN void gk_specialized(const gk_product* q, const gk_tensor_map* a, const int at, const gk_tensor_map* b, const int bt, const int kind,
                          GK_LOCAL_PTR gk_raw16* local, GK_LOCAL_PTR gk_u64* gates, GK_LOCAL_PTR gk_job* jobs)
{
    gk_places l;
    gk_u32 n = 0;
    int rank = (int)gk_block_of_cluster();
    gk_pairs pairs = gk_pairs_of(q, kind);
    l.stages = gk_local_address(local); l.full = gk_local_address(gates); l.empty = l.full + 8u * GK_GEMM_STAGES;
    if (kind == GK_BY_ROWS && gk_lid() < GK_GEMM_JOBS) jobs[gk_lid()] = gk_job_of(q, pairs, gk_lid(), rank, kind);
    if (gk_lid() == GK_BLOCK - 1) {
        /* One thread fills a stage; a lane of each warp that multiplies, in both blocks, empties it. */
        GK_UNROLL for (int i = 0; i < GK_GEMM_STAGES; i++) {
            gk_gate_init(l.full + 8u * (gk_u32)i, 1);
            gk_gate_init(l.empty + 8u * (gk_u32)i, 2 * GK_CONSUMERS / 32 / 2);
        }
        GK_GATES_READY();
    }
    GK_CLUSTER_BARRIER();
    if (gk_lid() >= GK_CONSUMERS) {
        GK_REGISTERS_LESS(40);
        if (gk_lid() == GK_CONSUMERS) {
            GK_ROLLED for (int turn = 0;; turn++) {
                gk_job j = gk_next_job(q, pairs, jobs, turn, rank, kind);
                if (j.end == 0) break;
                gk_feed(&l, n, a, at, b, bt, j, rank);
                n += (gk_u32)GK_STAGES_OF(j);
            }
        }
        GK_WARP_BARRIER();
    } else {
        GK_REGISTERS_MORE(232);
        int group = (int)gk_uniform((gk_u32)gk_lid() / 128u);
        GK_LOCAL_PTR gk_raw16* spill = local + GK_GEMM_STAGES * (int)GK_STAGE_BYTES / 16 + gk_lid() / 32 * GK_SPILL_CHUNKS;
        if (group == 1) GK_PAIR_GO(1); /* the first group begins */
        GK_ROLLED for (int turn = 0;; turn++) {
            gk_job j = gk_next_job(q, pairs, jobs, turn, rank, kind);
            if (j.end == 0) break;
            if (turn % 2 == group) {
                float sums[2][16][4];
                gk_four bias[2];
                bias[0] = gk_load_bias(q, j, 0); bias[1] = gk_load_bias(q, j, 1);
                if (kind == GK_BY_ROWS && j.end - j.m0 <= GK_GEMM_SIDE / 2) gk_multiply(sums, &l, local, n, j, at, bt, group, kind, 1);
                else gk_multiply(sums, &l, local, n, j, at, bt, group, kind, 2);
                gk_finish(q, sums, j, bias, spill);
            }
            n += (gk_u32)GK_STAGES_OF(j);
        }
    }
    /* No block leaves while its neighbour copies to it, or opens its gates. */
    GK_CLUSTER_BARRIER();
}

typedef struct {
    gk_dims size, steps;
    gk_f alpha, beta, p;
    int act;
} gk_gemm_specialized_args;

GK_FN gk_pitch gk_pitch_of(gk_dims steps, const int i)
{
    gk_pitch p;
    p.row = steps.v[2 * i]; p.batch = steps.v[2 * i + 1];
    return p;
}

/* Local memory, and what is in the arguments of all kernels. */
#define GK_SPECIALIZED_BIND() \
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_LOCAL_CHUNKS); \
    GK_LOCAL gk_u64 gates[2 * GK_GEMM_STAGES]; \
    GK_LOCAL gk_job jobs[GK_GEMM_JOBS]; \
    GK_BIND_OUT(gk_o, y); gk_product q; \
    q.m = (int)args.size.v[0]; q.n = (int)args.size.v[1]; q.k = (int)args.size.v[2]; q.groups = (int)args.size.v[3]; \
    q.a_batch = (int)args.size.v[4]; q.b_batch = (int)args.size.v[5]; q.bias_group = args.size.v[6]; \
    q.sc = gk_pitch_of(args.steps, 0); q.sr = gk_pitch_of(args.steps, 1); q.sy = gk_pitch_of(args.steps, 2); q.sz = gk_pitch_of(args.steps, 3); \
    q.alpha = args.alpha; q.beta = args.beta; q.p = args.p; q.act = args.act; \
    q.c = c; q.y = y

#define GK_DENSE_PRODUCT(at, bt) \
    GK_SPECIALIZED_BIND(); \
    q.bias = bias; q.residual = residual; q.scale = scale; q.z = z; q.offsets = 0; q.err = 0; q.code = 0; \
    gk_specialized(&q, &a, at, &b, bt, GK_DENSE, local, gates, jobs)

/* Dense products. As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is [K, N] for nn and tn, [N, K] for nt.
 * size = {M, N, K, batches, 1 if A has batches, 1 if B has them, 0}, steps = {from row to row, from batch to batch} of C, residual, Y, Z. */
// Units: HALVES x OUTPUTS
GK_KERNEL(gemm_specialized_nn)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_DENSE_PRODUCT(0, 1);
}

GK_KERNEL(gemm_specialized_nt)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_DENSE_PRODUCT(0, 0);
}

GK_KERNEL(gemm_specialized_tn)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_DENSE_PRODUCT(1, 1);
}

#define GK_GROUPED_PRODUCT(at, bt, kind) \
    GK_SPECIALIZED_BIND(); \
    q.bias = bias; q.residual = 0; q.scale = 0; q.z = z; q.offsets = offsets; q.err = err; q.code = code; \
    gk_specialized(&q, &a, at, &b, bt, kind, local, gates, jobs)

/* By groups of rows: B is [groups, K, N] for nn, [groups, N, K] for nt. C is null. size = {rows, N, K, groups, 0, 0, from group to group of bias}. A wrong
 * offset is reported and taken as the nearest that is valid; rows of no group are 0. */
GK_KERNEL(gemm_ragged_specialized_nn)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(int, offsets), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_OUT(gk_o, y),
                                      GK_OUT(gk_o, z), GK_OUT(int, err), int code, GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_GROUPED_PRODUCT(0, 1, GK_BY_ROWS);
}

GK_KERNEL(gemm_ragged_specialized_nt)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(int, offsets), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_OUT(gk_o, y),
                                      GK_OUT(gk_o, z), GK_OUT(int, err), int code, GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_GROUPED_PRODUCT(0, 0, GK_BY_ROWS);
}

/* Y[g] = alpha A_g^T B_g + beta C[g], of the rows of A [rows, M] and B [rows, N] of group g. Bias and Z are null. size = {M, N, rows, groups, 0, 0, 0}. */
GK_KERNEL(gemm_ragged_bwd_specialized)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(int, offsets), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_OUT(gk_o, y),
                                       GK_OUT(gk_o, z), GK_OUT(int, err), int code, GK_BY_VALUE(gk_gemm_specialized_args, args))
{
    GK_GROUPED_PRODUCT(1, 1, GK_OF_MATRICES);
}
#endif
