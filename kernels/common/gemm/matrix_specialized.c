/* Warp-specialised products of f16 and bf16 for sm_90a with tiles of 128 x 128 (CUTLASS calls the schedule ping-pong): dense ones (formula and epilogue:
 * gemm.c), grouped ones (ragged.c) and the gradient of their matrices (ragged_bwd.c). Tile scheduler and producer: warp_specialized.h. Empty without tensor
 * maps (GK_TENSOR_MAPS, cuda/tensor_map.h).
 *
 * Three warpgroups: one thread of the third is the producer (TMA), the two others are consumers and take tiles in turn, so that the epilogue of one tile
 * overlaps the main loop of the next. Accumulates in f32, in order of k. Deterministic.
 */
#include "common/prelude/matrix.h"
#include "cuda/tensor_map.h"

#ifdef GK_TENSOR_MAPS
#undef GK_BLOCK
#define GK_BLOCK 384
#define GK_GEMM_COLUMNS 128
#define GK_PAIR_DOWN 0
#define GK_GEMM_STAGES 6
/* One consumer warpgroup of each block. */
#define GK_GATE_ARRIVALS 8
#include "warp_specialized.h"

/* Strides of a tensor by row and by matrix; columns are contiguous. */
typedef struct { gk_i64 row, batch; } gk_pitch;

/* A product beside its tensor maps. Epilogue operands that are not needed are null. `bias_group`: stride of the bias by group. */
typedef struct {
    GK_GLOBAL const gk_o *c, *residual;
    GK_GLOBAL const gk_t *bias, *scale;
    GK_GLOBAL gk_o *y, *z;
    gk_extents e;
    int act;
    gk_i64 bias_group;
    gk_pitch sc, sr, sy, sz;
    gk_f alpha, beta, p;
} gk_product;

/* Accumulators of a warp on their way through shared memory in the epilogue: 16 rows of 64 columns. */
#define GK_SPILL_ROWS 16
#define GK_SPILL_COLUMNS 64
#define GK_SPILL_CHUNKS (GK_SPILL_ROWS * GK_SPILL_COLUMNS / 4)
#define GK_LOCAL_CHUNKS (GK_GEMM_STAGES * GK_GEMM_STAGE_CHUNKS + GK_CONSUMERS / 32 * GK_SPILL_CHUNKS)

/* ---- consumers ------------------------------------------------------------------------------------------------------------- */

/* Issues the wgmma of one stage for `parts` halves of the rows; fresh: sums = instead of +=. */
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

/* Accumulators of a tile's first `parts` halves, the others 0, when it is the warpgroup's turn; n: stages before it. */
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
        if (kind == GK_OF_MATRICES && left < GK_GEMM_TERMS) {
            gk_clear_terms(stages + slot * GK_GEMM_STAGE_CHUNKS, left, 128);
            GK_GROUP_BARRIER(3 + group);
        }
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
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = q->bias && !j.none && n < q->e.n ? gk_load(q->bias, j.b * q->bias_group + n + u) : 0.0f;
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
        if (n < q->e.n) gk_finish_rows(q, j, m, n, part % 2 ? bias[1] : bias[0], spill, first);
    }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------------------- */

GK_FN void gk_specialized(const gk_product* q, const gk_tensor_map* a, const int at, const gk_tensor_map* b, const int bt, const int kind,
                          GK_LOCAL_PTR gk_raw16* local, GK_LOCAL_PTR gk_u64* gates, GK_LOCAL_PTR gk_job* jobs)
{
    gk_u32 n = 0;
    int rank = (int)gk_block_of_cluster();
    gk_pairs pairs = gk_pairs_of(&q->e, kind);
    gk_places l = gk_places_of(&q->e, pairs, rank, kind, local, gates, jobs);
    if (gk_lid() >= GK_CONSUMERS) {
        GK_REGISTERS_LESS(40);
        if (gk_lid() == GK_CONSUMERS) gk_feed_all(&q->e, &l, pairs, jobs, a, at, b, bt, rank, kind);
        GK_WARP_BARRIER();
    } else {
        GK_REGISTERS_MORE(232);
        int group = (int)gk_uniform((gk_u32)gk_lid() / 128u);
        GK_LOCAL_PTR gk_raw16* spill = local + GK_GEMM_STAGES * GK_GEMM_STAGE_CHUNKS + gk_lid() / 32 * GK_SPILL_CHUNKS;
        if (group == 1) GK_PAIR_GO(1); /* the first group begins */
        GK_ROLLED for (int turn = 0;; turn++) {
            gk_job j = gk_next_job(&q->e, pairs, jobs, turn, rank, kind);
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
#define GK_SPECIALIZED_BIND(offsets, err, code) \
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_LOCAL_CHUNKS); \
    GK_LOCAL gk_u64 gates[2 * GK_GEMM_STAGES]; \
    GK_LOCAL gk_job jobs[GK_GEMM_JOBS]; \
    GK_BIND_OUT(gk_o, y); gk_product q; \
    q.e = gk_extents_of(&args.size, offsets, err, code); q.bias_group = args.size.v[6]; \
    q.sc = gk_pitch_of(args.steps, 0); q.sr = gk_pitch_of(args.steps, 1); q.sy = gk_pitch_of(args.steps, 2); q.sz = gk_pitch_of(args.steps, 3); \
    q.alpha = args.alpha; q.beta = args.beta; q.p = args.p; q.act = args.act; \
    q.c = c; q.bias = bias; q.y = y; q.z = z

#define GK_DENSE_PRODUCT(at, bt) \
    GK_SPECIALIZED_BIND(0, 0, 0); \
    q.residual = residual; q.scale = scale; \
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
    GK_SPECIALIZED_BIND(offsets, err, code); \
    q.residual = 0; q.scale = 0; \
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
