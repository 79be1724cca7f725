/* The products of prelude/matrix.h by WMMA, the matrix instructions of AMD's RDNA devices from generation 3 (gfx11) on, for wavefronts of 32 lanes: a warp. The
 * dialect has GK_WMMA, the generation of instructions (11 or 12), gk_wmma(x, y, d), which adds to the sums `d` the products of 16 rows of x and 16 columns of y
 * over 16 terms, and gk_other_half(v), v of the lane l ^ 16. Lane l gives row l % 16 of x and column l % 16 of y, and has eight rows of column l % 16 of d:
 *
 *   gfx11   all 16 terms of a row, so lanes l and l + 16 give the same; element i of d is row 2 i + l / 16
 *   gfx12   terms 8 (r / 4) + 4 (l / 16) + r % 4 for r < 8; element i of d is row 8 (l / 16) + i
 *
 * Operands are exchanged, c^T = b^T a^T, so that a lane has columns of one row of sums, of which two lanes share each. What an instruction takes for row m of x
 * is a column of c such that a lane has four neighbours of every 8, and gfx12 finds sums to be a left operand as they are. */
#include "common/prelude/matrix_copies.h"

#define GK_FRAG_IN_REGISTERS 1
#define GK_FRAG_SCRATCH 1
#define GK_FRAG_TMP 1
/* A lane's half of the warp, and its place there. */
#define GK_WMMA_HALF (gk_lid() % 32 / 16)
#define GK_WMMA_PLACE (gk_lid() % 16)

/* All sums of a thread are of one row. */
#undef GK_FRAG_ROW
#undef GK_FRAG_COL
#define GK_FRAG_ROW(e) GK_WMMA_PLACE
#define GK_FRAG_COL(e) (GK_WMMA_HALF * 4 + (e))

/* Of an operand: the words of a lane, two terms each, and the first term of word w. Of row m of x: the half of the lanes that have it among sums, and the
 * element that it is there. */
#if GK_WMMA == 11
#define GK_WMMA_WORDS 8
#define GK_WMMA_TERM(w) (2 * (w))
#define GK_WMMA_HALF_OF(m) ((m) % 2)
#define GK_WMMA_ELEMENT(m) ((m) / 2)
#else
#define GK_WMMA_WORDS 4
#define GK_WMMA_TERM(w) ((w) / 2 * 8 + GK_WMMA_HALF * 4 + (w) % 2 * 2)
#define GK_WMMA_HALF_OF(m) ((m) / 8)
#define GK_WMMA_ELEMENT(m) ((m) % 8)
#endif
typedef struct { gk_u32 r[GK_WMMA_WORDS]; } gk_frag_a;

/* ---- fragments ----------------------------------------------------------------------------------------------------------------------------------- */

/* Of fragment k from a tile with a row per row or column of the result: row `row`. */
GK_FN gk_frag_a gk_frag_row_of(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int row, int k)
{
    gk_frag_a a;
    GK_UNROLL for (int w = 0; w < GK_WMMA_WORDS; w++) {
        GK_LOCAL_PTR const gk_raw16* chunk = tile + gk_chunk_at(row, 2 * k + w / (GK_WMMA_WORDS / 2), rows);
        a.r[w] = ((GK_LOCAL_PTR const gk_u32*)chunk)[GK_WMMA_TERM(w) % 8 / 2];
    }
    return a;
}

/* Element of a tile with a row per term. */
GK_FN gk_u32 gk_term_number(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int term, int column)
{
    return ((GK_LOCAL_PTR const gk_u16*)(tile + gk_chunk_at(term, column / 8, rows)))[column % 8];
}

/* Two neighbours of it, the first of which is number 2 `pair`. */
GK_FN gk_u32 gk_term_pair(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int term, int pair)
{
    return ((GK_LOCAL_PTR const gk_u32*)(tile + gk_chunk_at(term, pair / 4, rows)))[pair % 4];
}

GK_FN gk_frag_a gk_load_a(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    return gk_frag_row_of(tile, rows, first + GK_WMMA_PLACE, k);
}

/* From a tile with a row per term. */
GK_FN gk_frag_a gk_load_a_terms(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a;
    int row = first + GK_WMMA_PLACE;
    GK_UNROLL for (int w = 0; w < GK_WMMA_WORDS; w++) {
        int term = 16 * k + GK_WMMA_TERM(w);
        a.r[w] = gk_term_number(tile, rows, term, row) | gk_term_number(tile, rows, term + 1, row) << 16;
    }
    return a;
}

/* A lane has half of the terms of its row; where an instruction wants all, the other half is the other lane's. */
GK_FN gk_frag_a gk_frag_of(const float (*c)[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    gk_frag_a a;
    gk_u32 own[4];
    (void)scratch;
    (void)k;
    GK_UNROLL for (int i = 0; i < 4; i++) own[i] = GK_PACK2(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
#if GK_WMMA == 11
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_u32 other = gk_other_half(own[i]);
        a.r[i / 2 * 4 + i % 2] = GK_WMMA_HALF ? other : own[i];
        a.r[i / 2 * 4 + i % 2 + 2] = GK_WMMA_HALF ? own[i] : other;
    }
#else
    GK_UNROLL for (int i = 0; i < 4; i++) a.r[i] = own[i];
#endif
    return a;
}

/* Over the lanes that share a row: two. */
GK_FN float gk_quad_max(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    return gk_most(v, gk_as_f32(gk_other_half(gk_as_u32(v))));
}
GK_FN float gk_quad_sum(float v, GK_LOCAL_PTR float* tmp)
{
    (void)tmp;
    return v + gk_as_f32(gk_other_half(gk_as_u32(v)));
}

/* ---- products -------------------------------------------------------------------------------------------------------------------------------------- */

/* c += a b for the terms of fragment k of b, which has a row per column: 16 columns beside each other at a time. */
GK_FN void gk_mm_rows_step(float (*c)[4], const int n, gk_frag_a a, int k, GK_LOCAL_PTR const gk_raw16* b)
{
    int i = GK_WMMA_ELEMENT(GK_WMMA_PLACE), column = i / 4 * 8 + GK_WMMA_HALF_OF(GK_WMMA_PLACE) * 4 + i % 4;
    GK_UNROLL for (int j = 0; j < n / 8; j += 2) {
        gk_frag_a right = gk_frag_row_of(b, n, 8 * j + column, k);
        gk_wmma_sums d;
        GK_UNROLL for (int e = 0; e < 8; e++) d[e] = c[j + e / 4][e % 4];
        d = gk_wmma(right.r, a.r, d);
        GK_UNROLL for (int e = 0; e < 8; e++) c[j + e / 4][e % 4] = d[e];
    }
}

/* The same of b with `rows` rows, one per term. A lane reads two columns, which lie in a word, of 32: the even ones are one instruction's, the odd ones another's. */
GK_FN void gk_mm_terms_step(float (*c)[4], const int n, gk_frag_a a, int k, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    int i = GK_WMMA_ELEMENT(GK_WMMA_PLACE), pair = i / 2 * 4 + GK_WMMA_HALF_OF(GK_WMMA_PLACE) * 2 + i % 2;
    GK_UNROLL for (int j = 0; j < n / 8; j += 4) {
        gk_frag_a right[2];
        GK_UNROLL for (int w = 0; w < GK_WMMA_WORDS; w++) {
            int term = 16 * k + GK_WMMA_TERM(w);
            gk_u32 low = gk_term_pair(b, rows, term, 4 * j + pair), high = gk_term_pair(b, rows, term + 1, 4 * j + pair);
            right[0].r[w] = (low & 0xffffu) | high << 16;
            right[1].r[w] = low >> 16 | (high & 0xffff0000u);
        }
        GK_UNROLL for (int odd = 0; odd < 2; odd++) {
            gk_wmma_sums d;
            GK_UNROLL for (int e = 0; e < 8; e++) d[e] = c[j + e / 2][e % 2 * 2 + odd];
            d = gk_wmma(right[odd].r, a.r, d);
            GK_UNROLL for (int e = 0; e < 8; e++) c[j + e / 2][e % 2 * 2 + odd] = d[e];
        }
    }
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) gk_mm_rows_step(c, n, a[k], k, b);
}

GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    GK_UNROLL for (int k = 0; k < rows / GK_FRAG_TERMS; k++) gk_mm_terms_step(c, n, a[k], k, b, rows);
}

GK_FN void gk_mm_tiles_by(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int at, const int terms,
                          GK_LOCAL_PTR const gk_raw16* b, const int bt)
{
    GK_UNROLL for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
        gk_frag_a left = at ? gk_load_a_terms(a, arows, first, k) : gk_load_a(a, arows, first, k);
        if (bt) gk_mm_terms_step(c, n, left, k, b, terms);
        else gk_mm_rows_step(c, n, left, k, b);
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

GK_FN void gk_store2(GK_GLOBAL gk_t* p, int i, float x, float y) { *(GK_GLOBAL gk_u32*)(p + i) = GK_PACK2(x, y); }

/* Numbers 2 h and 2 h + 1 of every four: of the same row for both h. */
#define GK_TERMS_MIX_COLUMNS 1
GK_FN void gk_mm_store(GK_GLOBAL gk_t* p, float (*c)[4], const int n, const int h, int width, float factor, int accumulate)
{
    GK_UNROLL for (int j = 0; j < n / 8; j++) {
        if (8 * j < width) {
            float x = c[j][2 * h] * factor, y = c[j][2 * h + 1] * factor;
            int at = 8 * j + GK_FRAG_COL(2 * h);
            if (accumulate) { x += gk_load(p, at); y += gk_load(p, at + 1); }
            gk_store2(p, at, x, y);
        }
    }
}
