/* prelude/matrix.h on NVIDIA's matrix cores: cp.async, ldmatrix and mma.sync from sm_80 on (GK_PTX 80), wgmma on sm_90a (GK_PTX 90). The dialect has
 * gk_local_address, the 32-bit address of local memory. What touches local memory is volatile, so that it stays on its side of barriers. */
#define GK_FRAG_IN_REGISTERS 1
#define GK_FRAG_SCRATCH 1
#define GK_FRAG_TMP 1

#if GK_DTYPE == GK_BF16
#define GK_MMA_TYPE "bf16"
#else
#define GK_MMA_TYPE "f16"
#endif

typedef struct { gk_u32 r[4]; } gk_frag_a;

GK_FN void gk_copy16(GK_LOCAL_PTR gk_raw16* to, GK_GLOBAL const void* from, int exists)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(gk_local_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
GK_FN void gk_copy4(GK_LOCAL_PTR float* to, GK_GLOBAL const float* from, int exists)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(gk_local_address(to)), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
#define GK_COPY_COMMIT() asm volatile("cp.async.commit_group;" : : : "memory")

#define GK_LDMATRIX(form, r0, r1, r2, r3, at) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(gk_local_address(at)) : "memory")

/* Lane l names row l % 8 of the quarter l / 8: upper rows, lower rows, and the same of the second chunk. */
GK_FN gk_frag_a gk_load_a(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a;
    int l = gk_lid() % 32;
    GK_LDMATRIX("", a.r[0], a.r[1], a.r[2], a.r[3], tile + gk_chunk_at(first + l % 16, 2 * k + l / 16, rows));
    return a;
}

/* Two floats rounded to gk_t, the first in the lower half. */
GK_FN gk_u32 gk_pack2(float x, float y)
{
    gk_u32 r;
    asm("cvt.rn." GK_MMA_TYPE "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

/* The layouts of sums and left operands agree: nothing moves. */
GK_FN gk_frag_a gk_frag_of(const float c0[4], const float c1[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    gk_frag_a a;
    (void)scratch;
    (void)k;
    a.r[0] = gk_pack2(c0[0], c0[1]); a.r[1] = gk_pack2(c0[2], c0[3]); a.r[2] = gk_pack2(c1[0], c1[1]); a.r[3] = gk_pack2(c1[2], c1[3]);
    return a;
}

GK_FN float gk_lane_xor(float v, int mask)
{
    float r;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(r) : "f"(v), "r"(mask));
    return r;
}
GK_FN float gk_quad_max(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    v = gk_most(v, gk_lane_xor(v, 1));
    return gk_most(v, gk_lane_xor(v, 2));
}
GK_FN float gk_quad_sum(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    v += gk_lane_xor(v, 1);
    return v + gk_lane_xor(v, 2);
}

GK_FN void gk_store2(GK_GLOBAL gk_t* p, gk_i64 i, float x, float y) { *(GK_GLOBAL gk_u32*)(p + i) = gk_pack2(x, y); }

#if GK_PTX >= 90
#include "common/prelude/matrix_wgmma.h"
#else
#define GK_COPY_WAIT(n) asm volatile("cp.async.wait_group " #n ";" : : : "memory")
#define GK_MM_WAIT(n) ((void)0)
#define gk_mm_ready(c, n) ((void)0)

typedef struct { gk_u32 r[2]; } gk_frag_b;

GK_FN void gk_mma(float c[4], gk_frag_a a, gk_frag_b b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." GK_MMA_TYPE "." GK_MMA_TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/* Terms 16 k ... of all columns, two groups of 8 columns per load. */
GK_FN void gk_mm_rows_step(float (*c)[4], const int n, gk_frag_a a, int k, GK_LOCAL_PTR const gk_raw16* b)
{
    int l = gk_lid() % 32;
    gk_frag_b x, y;
    GK_UNROLL for (int j = 0; j < n / 8; j += 2) {
        GK_LDMATRIX("", x.r[0], x.r[1], y.r[0], y.r[1], b + gk_chunk_at(8 * j + l % 8 + l / 16 * 8, 2 * k + l / 8 % 2, n));
        gk_mma(c[j], a, x);
        gk_mma(c[j + 1], a, y);
    }
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    GK_UNROLL for (int k = 0; k < terms / 16; k++) gk_mm_rows_step(c, n, a[k], k, b);
}

GK_FN void gk_mm_tiles_begin(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                       GK_LOCAL_PTR const gk_raw16* b)
{
    GK_UNROLL for (int k = 0; k < terms / 16; k++) gk_mm_rows_step(c, n, gk_load_a(a, arows, first, k), k, b);
}

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    int l = gk_lid() % 32;
    gk_frag_b x, y;
    GK_UNROLL for (int k = 0; k < rows / 16; k++) {
        GK_UNROLL for (int j = 0; j < n / 8; j += 2) {
            GK_LDMATRIX(".trans", x.r[0], x.r[1], y.r[0], y.r[1], b + gk_chunk_at(16 * k + l % 16, j + l / 16, rows));
            gk_mma(c[j], a[k], x);
            gk_mma(c[j + 1], a[k], y);
        }
    }
}
#endif
