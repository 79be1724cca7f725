/* Products of matrices of gk_t (f16, bf16, f32) by groups of warps: on matrix cores where the dialect has them, else by FMAs. Sums are float. On matrix cores
 * a product of f32 is three products in TF32, of the larger and smaller parts of both operands, with relative errors of some 2^-21. Files of f32 that define
 * GK_MM_BF16 have the products of bf16 instead, of tiles in local memory.
 *
 * Operands lie in local memory as tiles: arrays of gk_raw16 (GK_PER_CHUNK numbers each) that begin at multiples of 1 KiB (GK_LOCAL_DYNAMIC does). A tile of R
 * rows has panels of 128 bytes by R rows behind each other; a row of a panel is 8 chunks, in an order (gk_chunk_at) in which neighbouring rows begin in
 * other banks.
 *
 *   gk_copy16(to, from, exists)     queues the copy of a chunk from global memory; zeros where it does not exist
 *   gk_copy4(to, from, exists)      the same of a float
 *   GK_COPY_COMMIT()                ends a group of copies
 *   GK_COPY_WAIT(n)                 waits for all of this thread's groups but the n newest; a barrier makes them visible to others
 *   gk_frag_a, gk_load_a            a left operand, 16 rows x GK_FRAG_TERMS terms; from 16 rows of a tile and terms GK_FRAG_TERMS k ...
 *   gk_frag_of(c, scratch, k)       sums of 16 x GK_FRAG_TERMS as terms GK_FRAG_TERMS k ... of a left operand, rounded to gk_t
 *   gk_mm_clear(c, n)               n columns of sums are 0
 *   gk_mm_rows_begin(c, n, a, terms, b)    c = a b^T: c has n columns (64 or 128, without wgmma also 32), b is a tile of n rows, a a list of terms / GK_FRAG_TERMS
 *                                          fragments by gk_load_a
 *   gk_mm_terms_begin(c, n, a, b, rows)    c += a b: b is a tile of `rows` rows, one per term, and n columns; fragments by gk_frag_of
 *   gk_mm_tiles_begin(c, n, a, arows, first, terms, b)   gk_mm_rows_begin with rows `first` ... of the tile a of `arows` rows in place of fragments
 *   gk_mm_tiles_add(...)            the same, c +=
 *   gk_mm_tiles_by(c, n, a, arows, first, at, terms, b, bt)                gk_mm_tiles_add of 16-bit types, of tiles with a row per term where at (the left
 *                                          one, then bt is too) and bt (the right one) say so
 *   GK_MM_WAIT(n), gk_mm_ready(c, n)       products run in order while the thread goes on: waits for all but the n newest. Then the sums of each that is
 *                                          done are named before they are read. Until then neither sums, fragments nor tiles of it may change
 *   gk_most(x, y)                   the larger; NaN loses
 *   gk_quad_max(v, tmp), _sum       over the four threads that share rows of sums
 *   gk_mm_store(p, c, n, h, width, factor, accumulate)     sums of gk_mm_terms times `factor`, of row GK_FRAG_ROW(2 h), to the row of which p is the first
 *                                   element: of n columns those below `width`, a multiple of 8
 *
 * Sums are float c[n / 8][4]: of the 16 rows of a warp and 8 columns a thread has row GK_FRAG_ROW(e) for e < 4, with WMMA one row for all, and those of
 * gk_mm_rows and gk_mm_tiles column GK_FRAG_COL(e). All warps of a block reach every product, and neighbouring warps have neighbouring rows. On matrix cores
 * fragments are registers; elsewhere they are places in local memory, so the tile must stay until they are used: GK_FRAG_IN_REGISTERS says which. Local
 * arrays that only this needs have GK_FRAG_SCRATCH chunks and GK_FRAG_TMP gk_f.
 */

#include "dialect/matrix.h"

/* Numbers of a chunk, and terms of a fragment: two chunks. */
#if GK_DTYPE == GK_F32
#define GK_PER_CHUNK 4
#else
#define GK_PER_CHUNK 8
#endif
#define GK_FRAG_TERMS (2 * GK_PER_CHUNK)

/* The thread's place among the sums of its warp. */
#ifdef GK_MFMA
/* In two warps, a wavefront: rows l % 16 and l % 16 + 16 of their 32; of f32 every fourth column, of 16-bit types two neighbours. */
#define GK_FRAG_ROW(e) (gk_lid() % 16 + 16 * ((e) / 2) - gk_lid() / 32 % 2 * 16)
#if GK_DTYPE == GK_F32
#define GK_FRAG_COL(e) (gk_lid() % 64 / 16 + (e) % 2 * 4)
#else
#define GK_FRAG_COL(e) (gk_lid() % 64 / 16 * 2 + (e) % 2)
#endif
#else
#define GK_FRAG_ROW(e) (gk_lid() % 32 / 4 + 8 * ((e) / 2))
#define GK_FRAG_COL(e) (gk_lid() % 4 * 2 + (e) % 2)
#endif

#define gk_most(x, y) GK_M(fmax)(x, y)

GK_FN void gk_mm_clear(float (*c)[4], const int n)
{
    GK_UNROLL for (int i = 0; i < n / 2; i++) c[i / 4][i % 4] = 0.0f;
}

GK_FN int gk_chunk_at(int row, int chunk, const int rows) { return (chunk / 8 * rows + row) * 8 + (chunk % 8 ^ (row & 7)); }

#include "dialect/prelude/matrix_cores.h"

#if !defined(GK_TERMS_MIX_COLUMNS) && !defined(GK_MM_BF16)
GK_FN void gk_mm_store(GK_GLOBAL gk_t* p, float (*c)[4], const int n, const int h, int width, float factor, int accumulate)
{
    GK_UNROLL for (int j = 0; j < n / 8; j++) {
        if (8 * j < width) {
            float x = c[j][2 * h] * factor, y = c[j][2 * h + 1] * factor;
            int at = 8 * j + GK_FRAG_COL(0);
            if (accumulate) { x += gk_load(p, at); y += gk_load(p, at + 1); }
            gk_store2(p, at, x, y);
        }
    }
}
#endif
