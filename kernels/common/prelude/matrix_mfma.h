/* The products of prelude/matrix.h by MFMA, the matrix instructions of AMD's CDNA devices, whose wavefronts of 64 lanes are two neighbouring warps with 32
 * rows. The dialect has gk_mfma(x, y, d), which adds to the sums `d` the products of 16 rows of x and 16 columns of y over GK_FRAG_TERMS terms: lane l gives
 * row l % 16 of x and column l % 16 of y, and has rows 4 (l / 16) ... of column l % 16 of d.
 *
 * Operands are exchanged, c^T = b^T a^T, so that a lane has four columns of a row. Columns and terms are taken in an order in which sums are a left operand
 * as they are: both operands name their terms in one order, and what an instruction takes for row m of x is column gk_mfma_column(m). */
#include "common/prelude/matrix_copies.h"

#define GK_FRAG_IN_REGISTERS 1
#define GK_FRAG_SCRATCH 1
#define GK_FRAG_TMP 1
/* A lane's quarter of the wavefront, and its place there. */
#define GK_QUARTER (gk_lid() % 64 / 16)
#define GK_PLACE (gk_lid() % 16)

/* Terms of two rows, GK_PLACE and GK_PLACE + 16, in two words each: of the quarter, in GK_PER_CHUNK terms each. */
typedef struct { gk_u32 r[2][2]; } gk_frag_a;

/* Word p of fragment k from row `row` of a tile. */
GK_FN gk_u32 gk_row_word(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int row, int k, const int p)
{
    return ((GK_LOCAL_PTR const gk_u32*)(tile + gk_chunk_at(row, 2 * k + p, rows)))[GK_QUARTER];
}

#if GK_DTYPE == GK_F32
GK_FN int gk_mfma_column(int m) { return m / 4 + m % 4 * 4; }

/* Word p of fragment k from column `column` of a tile with a row per term. */
GK_FN gk_u32 gk_terms_word(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int column, int k, const int p)
{
    int term = 8 * k + 4 * p + GK_QUARTER;
    return ((GK_LOCAL_PTR const gk_u32*)(tile + gk_chunk_at(term, column / 4, rows)))[column % 4];
}

GK_FN gk_u32 gk_sums_word(const float (*c)[4], int h, const int p) { return gk_as_u32(c[0][2 * h + p]); }

/* Not neighbours: a thread has every fourth column. */
#define GK_TERMS_MIX_COLUMNS 1
GK_FN void gk_mm_store(GK_GLOBAL gk_t* p, float (*c)[4], const int n, const int h, int width, float factor, int accumulate)
{
    GK_UNROLL for (int j = 0; j < n / 4; j++) {
        int at = j / 2 * 8 + GK_FRAG_COL(j % 2);
        if (j / 2 * 8 < width) p[at] = c[j / 2][2 * h + j % 2] * factor + (accumulate ? p[at] : 0.0f);
    }
}
#else
GK_FN int gk_mfma_column(int m) { return m / 4 * 2 + m % 2 + m % 4 / 2 * 8; }

GK_FN gk_u32 gk_terms_word(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int column, int k, const int p)
{
    int term = 16 * k + 8 * p + 2 * GK_QUARTER;
    gk_u32 low = ((GK_LOCAL_PTR const gk_u16*)(tile + gk_chunk_at(term, column / 8, rows)))[column % 8];
    gk_u32 high = ((GK_LOCAL_PTR const gk_u16*)(tile + gk_chunk_at(term + 1, column / 8, rows)))[column % 8];
    return low | high << 16;
}

GK_FN gk_u32 gk_sums_word(const float (*c)[4], int h, const int p) { return GK_PACK2(c[p][2 * h], c[p][2 * h + 1]); }

GK_FN void gk_store2(GK_GLOBAL gk_t* p, int i, float x, float y) { *(GK_GLOBAL gk_u32*)(p + i) = GK_PACK2(x, y); }
#endif

/* ---- fragments ----------------------------------------------------------------------------------------------------------------------------------- */

/* The first row of the wavefront where the warp's is `first`. */
GK_FN int gk_wave_row(int first) { return first - gk_lid() / 32 % 2 * 16; }

GK_FN gk_frag_a gk_load_a(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a;
    int row = gk_wave_row(first) + GK_PLACE;
    GK_UNROLL for (int i = 0; i < 4; i++) a.r[i / 2][i % 2] = gk_row_word(tile, rows, row + i / 2 * 16, k, i % 2);
    return a;
}

/* From a tile with a row per term. */
GK_FN gk_frag_a gk_load_a_terms(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a;
    int row = gk_wave_row(first) + GK_PLACE;
    GK_UNROLL for (int i = 0; i < 4; i++) a.r[i / 2][i % 2] = gk_terms_word(tile, rows, row + i / 2 * 16, k, i % 2);
    return a;
}

/* The layouts of sums and left operands agree: nothing moves. */
GK_FN gk_frag_a gk_frag_of(const float (*c)[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    gk_frag_a a;
    (void)scratch;
    (void)k;
    GK_UNROLL for (int i = 0; i < 4; i++) a.r[i / 2][i % 2] = gk_sums_word(c, i / 2, i % 2);
    return a;
}

/* Over the four lanes that share a row: one of each quarter. */
GK_FN float gk_quad_max(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    v = gk_most(v, gk_shuffle_xor_f32(v, 16));
    return gk_most(v, gk_shuffle_xor_f32(v, 32));
}
GK_FN float gk_quad_sum(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    v += gk_shuffle_xor_f32(v, 16);
    return v + gk_shuffle_xor_f32(v, 32);
}

/* ---- products -------------------------------------------------------------------------------------------------------------------------------------- */

/* c += a b for 32 rows and 16 columns, of which `b` has the lane's. */
GK_FN void gk_mm_16_columns(float (*c)[4], gk_frag_a a, const gk_u32 b[2])
{
    GK_UNROLL for (int h = 0; h < 2; h++) {
        gk_mfma_sums d = {c[0][2 * h], c[0][2 * h + 1], c[1][2 * h], c[1][2 * h + 1]};
        d = gk_mfma(b, a.r[h], d);
        GK_UNROLL for (int i = 0; i < 4; i++) c[i / 2][2 * h + i % 2] = d[i];
    }
}

/* c += a b for the terms of fragment k of b, which has a row per column or (by_terms) per term. */
GK_FN void gk_mm_step(float (*c)[4], const int n, gk_frag_a a, int k, GK_LOCAL_PTR const gk_raw16* b, const int rows, const int by_terms)
{
    GK_UNROLL for (int j = 0; j < n / 8; j += 2) {
        gk_u32 right[2];
        int column = 8 * j + gk_mfma_column(GK_PLACE);
        GK_UNROLL for (int p = 0; p < 2; p++) right[p] = by_terms ? gk_terms_word(b, rows, column, k, p) : gk_row_word(b, rows, column, k, p);
        gk_mm_16_columns(c + j, a, right);
    }
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) gk_mm_step(c, n, a[k], k, b, n, 0);
}

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    GK_UNROLL for (int k = 0; k < rows / GK_FRAG_TERMS; k++) gk_mm_step(c, n, a[k], k, b, rows, 1);
}

GK_FN void gk_mm_tiles_by(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int at, const int terms,
                          GK_LOCAL_PTR const gk_raw16* b, const int bt)
{
    GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
        gk_frag_a left = at ? gk_load_a_terms(a, arows, first, k) : gk_load_a(a, arows, first, k);
        gk_mm_step(c, n, left, k, b, bt ? terms : n, bt);
    }
}

GK_FN void gk_mm_tiles_add(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                           GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_tiles_by(c, n, a, arows, first, 0, terms, b, 0);
}

GK_FN void gk_mm_tiles_begin(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                             GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    gk_mm_tiles_add(c, n, a, arows, first, terms, b);
}
