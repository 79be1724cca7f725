/* common/attention/matrix_softmax.h, and the same where all scores of a thread are of one row (prelude/matrix_wmma.h): both of its places among rows have
 * the row's numbers. */
#ifdef GK_WMMA
GK_FN void gk_matrix_softmax(float x[GK_ATTN_KEYS / 8][4], float factor, float top[2], float sum[2], float shrink[2], GK_LOCAL_PTR float* tmp)
{
    float most = top[0], part = 0.0f;
    GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 2; n++) most = gk_most(most, x[n / 4][n % 4]);
    most = gk_quad_max(most, tmp);
    float above = most == -GK_INF ? 0.0f : most, base = above * factor, less = gk_power((top[0] - above) * factor);
    GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 2; n++) {
        x[n / 4][n % 4] = gk_power(x[n / 4][n % 4] * factor - base);
        part += x[n / 4][n % 4];
    }
    shrink[0] = shrink[1] = less;
    top[0] = top[1] = most;
    sum[0] = sum[1] = sum[0] * less + part;
}
#else
#include "common/attention/matrix_softmax.h"
#endif
