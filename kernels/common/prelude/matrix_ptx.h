/* prelude/matrix.h on NVIDIA's matrix cores: cp.async, ldmatrix and mma.sync from sm_80 on (GK_PTX 80), for 16-bit types wgmma on sm_90a (GK_PTX 90). The
 * dialect has gk_local_address, the 32-bit address of local memory. What touches local memory is volatile, so that it stays on its side of barriers. */
#define GK_FRAG_IN_REGISTERS 1
#define GK_FRAG_SCRATCH 1
#define GK_FRAG_TMP 1

#if GK_DTYPE == GK_BF16 || defined(GK_MM_BF16)
#define GK_MMA_TYPE "bf16"
#else
#define GK_MMA_TYPE "f16"
#endif

typedef struct { gk_u32 r[4]; } gk_frag_a;

GK_FN void gk_copy16_to(gk_u32 to, GK_GLOBAL const void* from, int exists)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
GK_FN void gk_copy16(GK_LOCAL_PTR gk_raw16* to, GK_GLOBAL const void* from, int exists) { gk_copy16_to(gk_local_address(to), from, exists); }
GK_FN void gk_copy4(GK_LOCAL_PTR float* to, GK_GLOBAL const float* from, int exists)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(gk_local_address(to)), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
#define GK_COPY_COMMIT() asm volatile("cp.async.commit_group;" : : : "memory")

#define GK_LDMATRIX(form, r0, r1, r2, r3, address) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory")

/* Address of chunk `chunk` of a row in the first panel. Chunk `chunk` + c of it, for the multiples c of a power of two above `chunk`, is at this address
 * with c * 16 in its place (gk_chunk_on): one operation, where gk_chunk_at of many chunks would be many numbers to keep. */
GK_FN gk_u32 gk_chunk_address(GK_LOCAL_PTR const gk_raw16* tile, int row, int chunk)
{
    return gk_local_address(tile) + (gk_u32)(row * 128 + (chunk ^ (row & 7)) * 16);
}
GK_FN gk_u32 gk_chunk_on(gk_u32 address, const int c, const int rows) { return (address ^ (gk_u32)(c % 8 * 16)) + (gk_u32)(c / 8 * rows * 128); }

/* Lane l names row l % 8 of the quarter l / 8: upper rows, lower rows, and the same of the second chunk. */
GK_FN gk_frag_a gk_load_a(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, const int k)
{
    gk_frag_a a;
    int l = gk_lid() % 32;
    GK_LDMATRIX("", a.r[0], a.r[1], a.r[2], a.r[3], gk_chunk_on(gk_chunk_address(tile, first + l % 16, l / 16), 2 * k, rows));
    return a;
}

#if GK_DTYPE == GK_F32
/* The thread has columns 2 t and 2 t + 1 of sums, and terms t and t + 4 of a left operand: nothing moves, terms are taken in another order. */
GK_FN gk_frag_a gk_frag_of(const float (*c)[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    gk_frag_a a;
    (void)scratch;
    (void)k;
    a.r[0] = gk_as_u32(c[0][0]); a.r[1] = gk_as_u32(c[0][2]); a.r[2] = gk_as_u32(c[0][1]); a.r[3] = gk_as_u32(c[0][3]);
    return a;
}

#else
/* Two floats rounded to gk_t, the first in the lower half. */
GK_FN gk_u32 gk_pack2(float x, float y)
{
    gk_u32 r;
    asm("cvt.rn." GK_MMA_TYPE "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

/* The layouts of sums and left operands agree: nothing moves. */
GK_FN gk_frag_a gk_frag_of(const float (*c)[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    gk_frag_a a;
    (void)scratch;
    (void)k;
    a.r[0] = gk_pack2(c[0][0], c[0][1]); a.r[1] = gk_pack2(c[0][2], c[0][3]);
    a.r[2] = gk_pack2(c[1][0], c[1][1]); a.r[3] = gk_pack2(c[1][2], c[1][3]);
    return a;
}

GK_FN void gk_store2(GK_GLOBAL gk_t* p, int i, float x, float y) { *(GK_GLOBAL gk_u32*)(p + i) = gk_pack2(x, y); }
#endif

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

#if GK_PTX >= 90 && (GK_DTYPE != GK_F32 || defined(GK_MM_BF16))
#include "common/prelude/matrix_wgmma.h"
#else
#include "common/prelude/matrix_mma.h"
#endif
