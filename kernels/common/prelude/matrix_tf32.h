/* Products of float matrices by warps, in TF32 with both parts of numbers: operands are registers, and terms may be in any order.
 *
 * A number is the sum of a large part, its 11 leading bits, and a small one. What two small parts would add is left out: relative errors of some
 * 2^-21. A number of a 16-bit type is its own large part.
 *
 *   gk_tf32_mm(c, rest, a, b0, b1, small)   c + rest += a b for 16 rows, 8 columns and 8 terms; what small parts add goes to `rest`. small: 1 = a has
 *                                           small parts, 2 = b has. A thread has a[0], a[1] of rows lid % 32 / 4 and that + 8, and a[2], a[3] of the
 *                                           same rows in another term; b0 and b1 of column lid % 32 / 4 in the same two terms as the four threads of
 *                                           a row; sums of those two rows, c[0], c[1] and c[2], c[3], in columns lid % 4 * 2 and the next
 *   GK_WARP_SYNC()                          all threads of a warp, and what they wrote to local memory
 *   GK_WARPS_MEET()                         all warps of a block, each at a place of its own
 *   gk_warp_any(x)                          whether x is not 0 in any thread of the warp
 *
 * GK_TF32_REGISTERS is defined where the dialect has them: inline PTX of sm_80.
 */
#include "dialect/matrix.h"

#if defined(GK_PTX) && GK_DTYPE != GK_F64
#define GK_TF32_REGISTERS 1
#define GK_WARPS_MEET() asm volatile("bar.sync 1, %0;" : : "n"(GK_BLOCK) : "memory")
#define GK_WARP_SYNC() asm volatile("bar.warp.sync 0xffffffff;" : : : "memory")

GK_FN int gk_warp_any(int x)
{
    gk_u32 r;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }"
                 : "=r"(r) : "r"(x) : "memory");
    return (int)r;
}

/* x in 11 leading bits, ties away from zero. */
GK_FN float gk_tf32_large(float x) { return gk_as_f32((gk_as_u32(x) + 0x1000u) & 0xffffe000u); }

GK_FN void gk_tf32_mma(float c[4], const float a[4], float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(gk_as_u32(a[0])), "r"(gk_as_u32(a[1])), "r"(gk_as_u32(a[2])), "r"(gk_as_u32(a[3])), "r"(gk_as_u32(b0)), "r"(gk_as_u32(b1)));
}

GK_FN void gk_tf32_mm(float c[4], float rest[4], const float a[4], float b0, float b1, const int small)
{
    float large[4], left[4], l0 = small & 2 ? gk_tf32_large(b0) : b0, l1 = small & 2 ? gk_tf32_large(b1) : b1;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        large[i] = small & 1 ? gk_tf32_large(a[i]) : a[i];
        left[i] = a[i] - large[i];
    }
    if (small & 1) gk_tf32_mma(rest, left, l0, l1);
    if (small & 2) gk_tf32_mma(rest, large, b0 - l0, b1 - l1);
    gk_tf32_mma(c, large, l0, l1);
}
#endif
