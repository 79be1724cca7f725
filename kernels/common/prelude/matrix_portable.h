/* prelude/matrix.h without matrix cores: a fragment is a place in a tile, and a thread's sums are dot products of what lies there. */
#include "common/prelude/matrix_copies.h"

#define GK_FRAG_ROWS (GK_BLOCK / 32 * 16)
#define GK_FRAG_SCRATCH (GK_FRAG_ROWS * 64 / GK_PER_CHUNK) /* a tile of 64 columns for gk_frag_of */
#define GK_FRAG_TMP GK_BLOCK

typedef struct {
    GK_LOCAL_PTR const gk_raw16* tile;
    int rows, first, k, by_terms;
} gk_frag_a;

GK_FN float gk_tile_number(GK_LOCAL_PTR const gk_raw16* tile, int rows, int row, int column)
{
    return gk_load((GK_LOCAL_PTR const gk_t*)(tile + gk_chunk_at(row, column / GK_PER_CHUNK, rows)), column % GK_PER_CHUNK);
}

GK_FN gk_frag_a gk_load_a(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a;
    a.tile = tile; a.rows = rows; a.first = first; a.k = k; a.by_terms = 0;
    return a;
}
GK_FN gk_frag_a gk_load_a_terms(GK_LOCAL_PTR const gk_raw16* tile, const int rows, int first, int k)
{
    gk_frag_a a = gk_load_a(tile, rows, first, k);
    a.by_terms = 1;
    return a;
}

/* c += a b for terms GK_FRAG_TERMS k ...; b has a row per column or per term. */
GK_FN void gk_mm_step(float (*c)[4], const int n, gk_frag_a a, int k, GK_LOCAL_PTR const gk_raw16* b, const int rows, const int by_terms)
{
    for (int j = 0; j < n / 8; j++) {
        for (int e = 0; e < 4; e++) {
            int i = a.first + GK_FRAG_ROW(e), column = 8 * j + GK_FRAG_COL(e);
            float sum = 0.0f;
            for (int t = 0; t < GK_FRAG_TERMS; t++) {
                int u = GK_FRAG_TERMS * a.k + t;
                float x = a.by_terms ? gk_tile_number(a.tile, a.rows, u, i) : gk_tile_number(a.tile, a.rows, i, u);
                float y = by_terms ? gk_tile_number(b, rows, GK_FRAG_TERMS * k + t, column) : gk_tile_number(b, rows, column, GK_FRAG_TERMS * k + t);
                sum += x * y;
            }
            c[j][e] += sum;
        }
    }
}

GK_FN void gk_mm_rows_begin(float (*c)[4], const int n, const gk_frag_a* a, const int terms, GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    for (int k = 0; k < terms / GK_FRAG_TERMS; k++) gk_mm_step(c, n, a[k], k, b, n, 0);
}

GK_FN void gk_mm_tiles_add(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                           GK_LOCAL_PTR const gk_raw16* b)
{
    for (int k = 0; k < terms / GK_FRAG_TERMS; k++) gk_mm_step(c, n, gk_load_a(a, arows, first, k), k, b, n, 0);
}

GK_FN void gk_mm_tiles_by(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int at, const int terms,
                          GK_LOCAL_PTR const gk_raw16* b, const int bt)
{
    for (int k = 0; k < terms / GK_FRAG_TERMS; k++) {
        gk_frag_a left = at ? gk_load_a_terms(a, arows, first, k) : gk_load_a(a, arows, first, k);
        gk_mm_step(c, n, left, k, b, bt ? terms : n, bt);
    }
}

GK_FN void gk_mm_tiles_begin(float (*c)[4], const int n, GK_LOCAL_PTR const gk_raw16* a, const int arows, int first, const int terms,
                             GK_LOCAL_PTR const gk_raw16* b)
{
    gk_mm_clear(c, n);
    gk_mm_tiles_add(c, n, a, arows, first, terms, b);
}

/* Waits for what gk_frag_of has stored, and until it may store again. */
GK_FN void gk_mm_terms_begin(float (*c)[4], const int n, const gk_frag_a* a, GK_LOCAL_PTR const gk_raw16* b, const int rows)
{
    GK_BARRIER();
    for (int k = 0; k < rows / GK_FRAG_TERMS; k++) gk_mm_step(c, n, a[k], k, b, rows, 1);
    GK_BARRIER();
}

GK_FN gk_frag_a gk_frag_of(const float (*c)[4], GK_LOCAL_PTR gk_raw16* scratch, int k)
{
    int first = gk_lid() / 32 * 16;
    for (int i = 0; i < GK_FRAG_TERMS / 8; i++) {
        for (int e = 0; e < 4; e++) {
            int row = first + GK_FRAG_ROW(e), column = 8 * i + GK_FRAG_COL(e);
            GK_LOCAL_PTR gk_raw16* chunk = scratch + gk_chunk_at(row, 2 * k + column / GK_PER_CHUNK, GK_FRAG_ROWS);
            gk_store((GK_LOCAL_PTR gk_t*)chunk, column % GK_PER_CHUNK, c[i][e]);
        }
    }
    return gk_load_a(scratch, GK_FRAG_ROWS, first, k);
}

#define gk_quad_max(v, tmp) gk_group_max(v, tmp, 4)
#define gk_quad_sum(v, tmp) gk_group_sum(v, tmp, 4)

GK_FN void gk_store2(GK_GLOBAL gk_t* p, int i, float x, float y)
{
    gk_store(p, i, x);
    gk_store(p, i + 1, y);
}
