/* Warp-specialised products alpha A B + bias of f16 and bf16 for sm_90a with tiles of 128 x 256 (CUTLASS calls the schedule cooperative): dense products, and
 * the gradient of the matrices of a grouped product (ragged_bwd.c). Beside matrix_specialized.c, whose tiles of 128 x 128 are bound by the bandwidth of
 * shared memory: a stage of a wide tile takes longer to multiply than to read. Empty without tensor maps (GK_TENSOR_MAPS, cuda/tensor_map.h).
 *
 * Three warpgroups. Two are consumers: wgmma of 64 x 256 each, then the rounded results to shared memory. In the third one thread is the producer (TMA), and
 * three warps are the epilogue: they store a tile to global memory while the next one is multiplied. Accumulates in f32, in order of k. Deterministic.
 */
#include "common/prelude/matrix.h"
#include "cuda/tensor_map.h"

#ifdef GK_TENSOR_MAPS
#undef GK_BLOCK
#define GK_BLOCK 384
#define GK_GEMM_COLUMNS 256
#define GK_PAIR_DOWN 1
#define GK_GEMM_STAGES 3
/* Both consumer warpgroups of both blocks. */
#define GK_GATE_ARRIVALS 16
#include "warp_specialized.h"

/* Row pitch of the result tile in shared memory, in words of two elements: neither the stores by fragments nor the loads by rows have bank conflicts. */
#define GK_WIDE_PITCH (GK_GEMM_COLUMNS / 2 + 4)
#define GK_WIDE_TILE (GK_GEMM_SIDE * GK_WIDE_PITCH / 4)
#define GK_LOCAL_CHUNKS (GK_GEMM_STAGES * GK_GEMM_STAGE_CHUNKS + GK_WIDE_TILE + GK_GEMM_COLUMNS / 4)
/* Epilogue warps, the last of a block; rows that each has in flight. */
#define GK_WIDE_WARPS 3
#define GK_WIDE_THREADS (32 * GK_WIDE_WARPS)
#define GK_WIDE_ROWS 4
/* Named barriers: consumers with epilogue warps, when the result tile is free and when it is full; consumers alone. */
#define GK_WIDE_FREE 1
#define GK_WIDE_FULL 2
#define GK_WIDE_CLEARED 3
#define GK_WIDE_WAIT(n) asm volatile("bar.sync %0, 352;" : : "r"(n) : "memory")
#define GK_WIDE_GO(n) asm volatile("bar.arrive %0, 352;" : : "r"(n) : "memory")

/* A product beside its tensor maps: row and batch strides of Y; `bias` [N] may be null. */
typedef struct {
    GK_GLOBAL const gk_t* bias;
    GK_GLOBAL gk_t* y;
    gk_extents e;
    gk_i64 row, batch;
    gk_f alpha;
} gk_wide;

/* The result tile in shared memory, and the bias of its columns. */
typedef struct {
    GK_LOCAL_PTR gk_u32* results;
    GK_LOCAL_PTR float* bias;
} gk_wide_tile;

/* ---- consumers ------------------------------------------------------------------------------------------------------------------------------ */

#define GK_SUMS64(c) GK_SUMS32(c), GK_SUMS32((c) + 8)
#define GK_NAMES128 \
    GK_NAMES64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* gk_wgmma_s with n = 256. */
#define GK_WGMMA_WIDE(lt, rt) \
    asm volatile(GK_WGMMA_TILES(256, GK_NAMES128, "%128", "%129", "%130", lt, rt) : GK_SUMS64(c), GK_SUMS64(c + 16) : "r"(a), "r"(b), "r"(first))
GK_FN void gk_wgmma_wide(float (*c)[4], gk_u32 a, const int at, gk_u32 b, const int bt, int first)
{
    if (!at && !bt) { GK_WGMMA_WIDE("0", "0"); }
    else if (!at) { GK_WGMMA_WIDE("0", "1"); }
    else { GK_WGMMA_WIDE("1", "1"); }
}

/* Issues the wgmma of one stage for the warpgroup's 64 rows; fresh: sums = instead of +=. */
GK_FN void gk_wide_stage(float (*sums)[4], gk_u32 stage, int group, const int at, const int bt, int fresh)
{
    gk_u32 left = gk_uniform(gk_wgmma_tile(stage + (gk_u32)group * GK_BOX_BYTES, 64)), right = gk_uniform(gk_wgmma_tile(stage + 2u * GK_BOX_BYTES, 64));
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < GK_GEMM_TERMS / 16; k++)
        gk_wgmma_wide(sums, gk_wgmma_part(left, 64, at, k), at, gk_wgmma_part(right, 64, bt, k), bt, k == 0 ? fresh : 0);
    GK_WGMMA_END();
}

/* Accumulators of a tile; n: stages before it. */
GK_FN void gk_wide_multiply(float (*sums)[4], const gk_places* l, GK_LOCAL_PTR gk_raw16* stages, gk_u32 n, gk_job j, const int at, const int bt, int group,
                            const int kind)
{
    int count = GK_STAGES_OF(j);
    if (count == 0) gk_mm_clear(sums, GK_GEMM_COLUMNS);
    GK_ROLLED for (int s = 0; s < count; s++) {
        gk_u32 now = n + (gk_u32)s, slot = now % GK_GEMM_STAGES;
        int left = j.terms - s * GK_GEMM_TERMS;
        gk_gate_pass(l->full + 8u * slot, now / GK_GEMM_STAGES);
        if (kind == GK_OF_MATRICES && left < GK_GEMM_TERMS) {
            gk_clear_terms(stages + slot * GK_GEMM_STAGE_CHUNKS, left, GK_CONSUMERS);
            GK_PAIR_WAIT(GK_WIDE_CLEARED);
        }
        gk_wide_stage(sums, l->stages + slot * GK_STAGE_BYTES, group, at, bt, s == 0);
        if (s > 0) {
            GK_MM_WAIT(1);
            gk_release(l, now - 1u);
        }
    }
    GK_MM_WAIT(0);
    if (count > 0) gk_release(l, n + (gk_u32)count - 1u);
    gk_mm_ready(sums, GK_GEMM_COLUMNS);
}

/* The warpgroup's half of the result tile: alpha times the accumulators plus bias, rounded. */
GK_FN void gk_wide_results(float (*sums)[4], gk_wide_tile t, gk_f alpha, int group)
{
    GK_LOCAL_PTR gk_u32* to = t.results + (64 * group + gk_lid() % 128 / 32 * 16 + GK_FRAG_ROW(0)) * GK_WIDE_PITCH + GK_FRAG_COL(0) / 2;
    GK_LOCAL_PTR const float2* bias = (GK_LOCAL_PTR const float2*)(t.bias + GK_FRAG_COL(0));
    GK_UNROLL for (int i = 0; i < GK_GEMM_COLUMNS / 8; i++) {
        float2 b = bias[4 * i];
        to[4 * i] = gk_pack2(alpha * sums[i][0] + b.x, alpha * sums[i][1] + b.y);
        to[4 * i + 8 * GK_WIDE_PITCH] = gk_pack2(alpha * sums[i][2] + b.x, alpha * sums[i][3] + b.y);
    }
}

/* ---- epilogue warps ------------------------------------------------------------------------------------------------------------- */

/* The bias of a tile's columns, 0 where there is none. */
GK_FN void gk_wide_bias(const gk_wide* q, gk_job j, GK_LOCAL_PTR float* bias)
{
    for (int i = gk_lid() - (GK_BLOCK - GK_WIDE_THREADS); i < GK_GEMM_COLUMNS; i += GK_WIDE_THREADS)
        bias[i] = q->bias && j.n0 + i < q->e.n ? gk_load(q->bias, j.n0 + i) : 0.0f;
}

/* The result tile to Y: a warp has every third row, a thread eight columns of it. */
GK_FN void gk_wide_store(const gk_wide* q, gk_job j, gk_wide_tile t)
{
    int n = j.n0 + gk_lid() % 32 * GK_W, rows = j.end - j.m0 < GK_GEMM_SIDE ? j.end - j.m0 : GK_GEMM_SIDE;
    GK_LOCAL_PTR const gk_raw16* tile = (GK_LOCAL_PTR const gk_raw16*)t.results + gk_lid() % 32;
    GK_GLOBAL gk_t* y = q->y + j.y * q->batch + j.m0 * q->row + n;
    if (n >= q->e.n) return;
    GK_ROLLED for (int row = gk_lid() / 32 - (GK_BLOCK / 32 - GK_WIDE_WARPS); row < rows; row += GK_WIDE_WARPS * GK_WIDE_ROWS) {
        GK_UNROLL for (int i = 0; i < GK_WIDE_ROWS; i++) {
            int r = row + GK_WIDE_WARPS * i;
            if (r < rows) gk_store16((GK_GLOBAL void*)(y + r * q->row), tile[r * (GK_WIDE_PITCH / 4)]);
        }
    }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------------------------------------- */

GK_FN void gk_wide_all(const gk_wide* q, const gk_tensor_map* a, const int at, const gk_tensor_map* b, const int bt, const int kind,
                       GK_LOCAL_PTR gk_raw16* local, GK_LOCAL_PTR gk_u64* gates)
{
    int rank = (int)gk_block_of_cluster(), group = (int)gk_uniform((gk_u32)gk_lid() / 128u);
    gk_pairs pairs = gk_pairs_of(&q->e, kind);
    gk_places l = gk_places_of(&q->e, pairs, rank, kind, local, gates, 0);
    gk_wide_tile t;
    t.results = (GK_LOCAL_PTR gk_u32*)(local + GK_GEMM_STAGES * GK_GEMM_STAGE_CHUNKS);
    t.bias = (GK_LOCAL_PTR float*)(local + GK_GEMM_STAGES * GK_GEMM_STAGE_CHUNKS + GK_WIDE_TILE);
    if (group == 2) {
        if (gk_lid() == GK_CONSUMERS) gk_feed_all(&q->e, &l, pairs, 0, a, at, b, bt, rank, kind);
        GK_ROLLED for (int turn = 0; gk_lid() >= GK_BLOCK - GK_WIDE_THREADS; turn++) {
            gk_job j = gk_job_of(&q->e, pairs, turn, rank, kind);
            if (j.end == 0) break;
            gk_wide_bias(q, j, t.bias);
            GK_WIDE_GO(GK_WIDE_FREE);
            GK_WIDE_WAIT(GK_WIDE_FULL);
            gk_wide_store(q, j, t);
        }
        GK_WARP_BARRIER();
    } else {
        gk_u32 n = 0;
        GK_ROLLED for (int turn = 0;; turn++) {
            gk_job j = gk_job_of(&q->e, pairs, turn, rank, kind);
            float sums[GK_GEMM_COLUMNS / 8][4];
            if (j.end == 0) break;
            gk_wide_multiply(sums, &l, local, n, j, at, bt, group, kind);
            GK_WIDE_WAIT(GK_WIDE_FREE);
            gk_wide_results(sums, t, q->alpha, group);
            GK_WIDE_GO(GK_WIDE_FULL);
            n += (gk_u32)GK_STAGES_OF(j);
        }
    }
    /* No block leaves while its neighbour copies to it, or opens its gates. */
    GK_CLUSTER_BARRIER();
}

#define GK_WIDE_PRODUCT(biases, offsets, err, code, at, bt, kind) \
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_LOCAL_CHUNKS); \
    GK_LOCAL gk_u64 gates[2 * GK_GEMM_STAGES]; \
    GK_BIND_OUT(gk_t, y); gk_wide q; \
    q.e = gk_extents_of(&size, offsets, err, code); q.bias = biases; q.y = y; q.row = row; q.batch = batch; q.alpha = alpha; \
    gk_wide_all(&q, &a, at, &b, bt, kind, local, gates)

/* Dense products. As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is [K, N] for nn and tn, [N, K] for nt.
 * size = {M, N, K, batches, 1 if A has batches, 1 if B has them}. */
// Units: HALVES
GK_KERNEL(gemm_wide_nn)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_DIMS(size), gk_i64 row, gk_i64 batch, gk_f alpha)
{
    GK_WIDE_PRODUCT(bias, 0, 0, 0, 0, 1, GK_DENSE);
}

GK_KERNEL(gemm_wide_nt)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_DIMS(size), gk_i64 row, gk_i64 batch, gk_f alpha)
{
    GK_WIDE_PRODUCT(bias, 0, 0, 0, 0, 0, GK_DENSE);
}

GK_KERNEL(gemm_wide_tn)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(gk_t, bias), GK_OUT(gk_t, y), GK_DIMS(size), gk_i64 row, gk_i64 batch, gk_f alpha)
{
    GK_WIDE_PRODUCT(bias, 0, 0, 0, 1, 1, GK_DENSE);
}

/* Y[g] = alpha A_g^T B_g of the rows of A [rows, M] and B [rows, N] of group g. size = {M, N, rows, groups, 0, 0}. A wrong offset is reported and taken as the
 * nearest that is valid. */
GK_KERNEL(gemm_ragged_bwd_wide)(GK_TENSOR_MAP(a), GK_TENSOR_MAP(b), GK_IN(int, offsets), GK_OUT(gk_t, y), GK_OUT(int, err), GK_DIMS(size), gk_i64 row,
                                gk_i64 batch, gk_f alpha, int code)
{
    GK_WIDE_PRODUCT(0, offsets, err, code, 1, 1, GK_OF_MATRICES);
}
#endif
