/* Products of 16-bit matrices by groups of warps: on matrix cores where the dialect has them, else by FMAs.
 *
 * Operands lie in local memory as tiles: arrays of gk_raw16 (8 numbers each) that begin at multiples of 1 KiB (GK_LOCAL_DYNAMIC does). A tile of R rows has
 * panels of 64 columns behind each other; a row of a panel is 8 chunks, in an order (gk_chunk_at) in which neighbouring rows begin in other banks.
 *
 *   gk_copy16(to, from, exists)     queues the copy of a chunk from global memory; zeros where it does not exist
 *   gk_copy4(to, from, exists)      the same of a float
 *   GK_COPY_COMMIT()                ends a group of copies
 *   GK_COPY_WAIT(n)                 waits for all of this thread's groups but the n newest; a barrier makes them visible to others
 *   gk_frag_a, gk_load_a            a left operand, 16 rows x 16 terms; from 16 rows of a tile and terms 16 k ...
 *   gk_frag_of(c0, c1, scratch, k)  sums of 16 x 8 and 16 x 8 beside each other as terms 16 k ... of a left operand, rounded to gk_t
 *   gk_mm_rows_begin(c, n, a, terms, b)    c += a b^T: c has n columns (64 or 128), b is a tile of n rows, a a list of terms / 16 fragments
 *   gk_mm_terms_begin(c, n, a, b, rows)    c += a b: b is a tile of `rows` rows, one per term, and n columns
 *   gk_mm_tiles_begin(c, n, a, arows, first, terms, b)   gk_mm_rows_begin with rows `first` ... of the tile a of `arows` rows in place of fragments
 *   GK_MM_WAIT(n), gk_mm_ready(c, n)       products run in order while the thread goes on: waits for all but the n newest. Then the sums of each that is
 *                                          done are named before they are read. Until then neither sums, fragments nor tiles of it may change
 *   gk_most(x, y)                   the larger; NaN loses
 *   gk_quad_max(v, tmp), _sum       over the four threads that share rows of sums
 *   gk_store2(p, i, x, y)           two neighbours of which the first is aligned to both
 *
 * Sums are float c[n / 8][4]: of the 16 rows of a warp and 8 columns a thread has row GK_FRAG_ROW(e), column GK_FRAG_COL(e) for e < 4. All
 * warps of a block reach every product, and neighbouring warps have neighbouring rows. On matrix cores fragments are registers; elsewhere they
 * are places in local memory, so the tile must stay until they are used: GK_FRAG_IN_REGISTERS says which. Local arrays that only this needs have
 * GK_FRAG_SCRATCH chunks and GK_FRAG_TMP gk_f.
 */

#include "dialect/matrix.h"

/* The thread's place among the sums of its warp. */
#define GK_FRAG_ROW(e) (gk_lid() % 32 / 4 + 8 * ((e) / 2))
#define GK_FRAG_COL(e) (gk_lid() % 4 * 2 + (e) % 2)

#define gk_most(x, y) GK_M(fmax)(x, y)

GK_FN int gk_chunk_at(int row, int chunk, const int rows) { return (chunk / 8 * rows + row) * 8 + (chunk % 8 ^ (row & 7)); }

#ifdef GK_PTX
#include "common/prelude/matrix_ptx.h"
#else
#include "common/prelude/matrix_portable.h"
#endif
