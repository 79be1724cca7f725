/* What the gradients of attention on matrix cores share: tiles of queries or keys that pass, probabilities from their scores, and gradients of the scores.
 * A file may define GK_PASS_ROWS, the rows of a tile that passes, before it includes this.
 */
#include "matrix_tile.h"

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1

/* As many as local memory has room for. */
#ifndef GK_PASS_ROWS
#ifdef GK_MATRIX_LOCAL_KB
#define GK_PASS_ROWS 32
#else
#define GK_PASS_ROWS (GK_DTYPE == GK_F32 ? 32 : 64)
#endif
#endif
/* Chunks of a tile of 128 rows that stays, of one of GK_PASS_ROWS that passes, and of the statistics of as many queries. */
#define GK_STAY (128 * GK_HEAD_CHUNKS)
#define GK_PASS (GK_PASS_ROWS * GK_HEAD_CHUNKS)
#define GK_STATS (GK_PASS_ROWS / 2)
/* A thread's numbers of 16 x GK_PASS_ROWS sums. */
#define GK_PASS_PAIRS (GK_PASS_ROWS / 2)

/* Query and key of the thread's number n of 16 x GK_PASS_ROWS: rows are queries, or keys with `flip`. */
#define GK_PAIR_ROW(n) GK_FRAG_ROW((n) % 4)
#define GK_PAIR_COL(n) ((n) / 4 * 8 + GK_FRAG_COL((n) % 4))
#define GK_PAIR_I(i0, n) ((i0) + (flip ? GK_PAIR_COL(n) : GK_PAIR_ROW(n)))
#define GK_PAIR_J(j0, n) ((j0) + (flip ? GK_PAIR_ROW(n) : GK_PAIR_COL(n)))

/* Products x become probabilities e^(score - LSE); slope, where all rules apply, is the derivative of the soft cap. lse2 is LSE / ln 2 by number. Of all
 * rows of the block, `whole` says that nothing is hidden from any: a branch that all warps take together does not keep products from running on. */
GK_FN void gk_matrix_probs(const gk_rule* r, int i0, int j0, const int flip, int whole, const float lse2[GK_PASS_PAIRS], float x[GK_PASS_PAIRS / 4][4],
                           float slope[GK_PASS_PAIRS / 4][4])
{
    if (GK_ALL_RULES) {
        GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) {
            float s = x[n / 4][n % 4] * r->scale;
            slope[n / 4][n % 4] = 1.0f;
            if (r->cap > 0.0f) {
                float t = gk_tanh(s / r->cap);
                s = r->cap * t;
                slope[n / 4][n % 4] = 1.0f - t * t;
            }
            int i = GK_PAIR_I(i0, n), j = GK_PAIR_J(j0, n);
            if (r->bias && i < r->rows && j < r->keys) s += gk_load(r->bias, i * r->bi + j * r->bj);
            x[n / 4][n % 4] = s * GK_LOG2E;
        }
    }
    float factor = GK_ALL_RULES ? 1.0f : r->scale * GK_LOG2E;
    if (!whole) {
        GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++)
            if (!gk_sees(r, GK_PAIR_I(i0, n), GK_PAIR_J(j0, n))) x[n / 4][n % 4] = -GK_INF;
    }
    GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) x[n / 4][n % 4] = gk_power(x[n / 4][n % 4] * factor - lse2[n]);
}

/* Which of the thread's probabilities dropout keeps, a bit each. */
GK_FN gk_u32 gk_matrix_kept(const gk_rule* r, int i0, int j0, const int flip)
{
    gk_u32 bits = 0u;
    GK_ROLLED for (int n = 0; n < GK_PASS_PAIRS; n++) bits |= (gk_u32)gk_keeps(r, GK_PAIR_I(i0, n), GK_PAIR_J(j0, n)) << n;
    return bits;
}

/* Probabilities after dropout. */
GK_FN void gk_matrix_drop(float x[GK_PASS_PAIRS / 4][4], gk_u32 kept, float factor, float y[GK_PASS_PAIRS / 4][4])
{
    GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) y[n / 4][n % 4] = kept >> n & 1u ? x[n / 4][n % 4] * factor : 0.0f;
}

/* Gradients y of the probabilities x become gradients of the products; what x does not reach stays 0. */
GK_FN void gk_matrix_dscores(float x[GK_PASS_PAIRS / 4][4], float y[GK_PASS_PAIRS / 4][4], float slope[GK_PASS_PAIRS / 4][4], const float delta[GK_PASS_PAIRS],
                             gk_u32 kept, float factor)
{
    GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) {
        float p = x[n / 4][n % 4], g = y[n / 4][n % 4];
        if (GK_ALL_RULES) g *= kept >> n & 1u ? factor : 0.0f;
        g = p == 0.0f ? 0.0f : p * (g - delta[n]);
        y[n / 4][n % 4] = GK_ALL_RULES ? g * slope[n / 4][n % 4] : g;
    }
}

/* Sums of 16 x GK_PASS_ROWS as left operand of a product over their columns. */
GK_FN void gk_matrix_frags(float x[GK_PASS_PAIRS / 4][4], gk_frag_a a[GK_PASS_ROWS / GK_FRAG_TERMS], GK_LOCAL_PTR gk_raw16* scratch)
{
    GK_UNROLL for (int k = 0; k < GK_PASS_ROWS / GK_FRAG_TERMS; k++) a[k] = gk_frag_of(x + k * GK_FRAG_TERMS / 8, scratch, k);
}

/* Stores f times the warp's sums into those of its 16 rows, from `first` on, that exist. */
GK_FN void gk_matrix_put(GK_GLOBAL gk_t* y, gk_i64 step, int first, int rows, int width, float f, int accumulate, float (*acc)[4])
{
    GK_UNROLL for (int h = 0; h < 2; h++) {
        int row = first + GK_FRAG_ROW(2 * h);
        if (row < rows) gk_mm_store(y + row * step, acc, GK_HEAD_WIDTH, h, width, f, accumulate);
    }
}

/* LSE / ln 2, infinite where no key is visible: then all probabilities are 0. */
GK_FN float gk_lse2(float lse) { return lse == -GK_INF ? GK_INF : lse * GK_LOG2E; }

/* Queues the copies of GK_PASS_ROWS queries of a head, from i0 on: their rows of Q and dO, LSE and delta. */
GK_FN void gk_bring_queries(const gk_dims* size, const gk_dims* sq, const gk_dims* sv, const gk_dims* sl, gk_span s, GK_GLOBAL const gk_t* q, GK_GLOBAL const gk_t* dout,
                            GK_GLOBAL const gk_f* lse, GK_GLOBAL const gk_f* delta, int h, int i0, GK_LOCAL_PTR gk_raw16* tile,
                            GK_LOCAL_PTR float* stats)
{
    int i = i0 + gk_lid() % GK_PASS_ROWS, exists = i < s.lq;
    gk_fetch(q + h * sq->v[1] + i0 * sq->v[2], sq->v[2], GK_PASS_ROWS, s.lq - i0, (int)size->v[5], tile);
    gk_fetch(dout + h * sv->v[4] + i0 * sv->v[5], sv->v[5], GK_PASS_ROWS, s.lq - i0, (int)size->v[6], tile + GK_PASS);
    i = s.q0 + (exists ? i : i0);
    if (gk_lid() < GK_PASS_ROWS) gk_copy4(stats + gk_lid(), lse + s.b * sl->v[0] + h * sl->v[1] + i * sl->v[2], exists);
    else if (gk_lid() < 2 * GK_PASS_ROWS) gk_copy4(stats + gk_lid(), delta + ((gk_i64)s.b * size->v[1] + h) * size->v[3] + i, exists);
}
