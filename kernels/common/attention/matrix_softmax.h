/* Softmax of attention/matrix.c: scores of a tile of keys as they come. A dialect whose threads have other places among sums may have a file of this name. */

/* Scores become probabilities, relative to the largest score so far; `shrink` is by what that makes smaller what was added before. */
GK_FN void gk_matrix_softmax(float x[GK_ATTN_KEYS / 8][4], float factor, float top[2], float sum[2], float shrink[2], GK_LOCAL_PTR float* tmp)
{
    GK_UNROLL for (int h = 0; h < 2; h++) {
        float most = top[h];
        GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 8; n++) most = gk_most(most, gk_most(x[n][2 * h], x[n][2 * h + 1]));
        most = gk_quad_max(most, tmp);
        /* While nothing was visible, everything stays 0. */
        float above = most == -GK_INF ? 0.0f : most, base = above * factor;
        shrink[h] = gk_power((top[h] - above) * factor);
        top[h] = most;
        float part = 0.0f;
        GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 8; n++) {
            GK_UNROLL for (int e = 2 * h; e < 2 * h + 2; e++) {
                x[n][e] = gk_power(x[n][e] * factor - base);
                part += x[n][e];
            }
        }
        sum[h] = sum[h] * shrink[h] + part;
    }
}
