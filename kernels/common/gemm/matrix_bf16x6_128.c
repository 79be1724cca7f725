/* Products of f32 by bf16x6.h with tiles of 128 x 128, of any number of terms.
 * As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is [K, N] for nn and tn, [N, K] for nt.
 * Launch: axis 0 = tiles of all batches. */
#define GK_SIX_SIDE 128
#include "bf16x6.h"

#ifdef GK_WARP_GROUPS
// Units: F32 x OUTPUTS
GK_KERNEL(gemm_bf16x6_128_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                              GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                              GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 1, 1);
}

GK_KERNEL(gemm_bf16x6_128_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                              GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                              GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 0, 1);
}

GK_KERNEL(gemm_bf16x6_128_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                              GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                              GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(1, 1, 1);
}
#endif
