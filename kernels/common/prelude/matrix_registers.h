/* Products of 16-bit types whose operands threads read from memory into registers themselves, without tiles in local memory: for products of few rows that
 * read each number of the other operand once. A warp computes c += a b for 16 rows, 8 columns and 16 terms.
 *
 *   gk_mm_registers(c, a, b)    sums as in prelude/matrix.h. A thread has, as pairs of neighbouring terms: a[0], a[2] of row GK_FRAG_ROW(0), a[1], a[3] of
 *                               row GK_FRAG_ROW(2); b[0], b[1] of column lid % 32 / 4. Terms may be in any order, as long as the four threads of a row, and
 *                               those of a column, have the same terms in a[0], a[1] and b[0], and in a[2], a[3] and b[1]
 *   gk_mm_sums_as_left(a, c)    sums of 16 rows and 2 x 8 columns as a left operand of 16 terms, rounded; what that leaves replaces them
 *
 * GK_MM_REGISTERS is defined where the dialect has them.
 */
#include "common/prelude/matrix.h"

#if defined(GK_PTX) && (GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16)
#define GK_MM_REGISTERS 1
GK_FN void gk_mm_registers(float c[4], const gk_u32 a[4], const gk_u32 b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." GK_MMA_TYPE "." GK_MMA_TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

GK_FN void gk_mm_sums_as_left(gk_u32 a[4], float c[2][4])
{
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_vec v;
        a[i] = gk_pack2(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
        v = gk_decode16(gk_make16(a[i], 0u, 0u, 0u));
        c[i / 2][i % 2 * 2] -= v.v[0];
        c[i / 2][i % 2 * 2 + 1] -= v.v[1];
    }
}
#endif
