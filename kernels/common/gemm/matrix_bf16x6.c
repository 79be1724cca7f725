/* Products of f32 by bf16x6.h with tiles of 64 x 64, of up to 512 terms a block: whole ones, and such whose terms two or eight blocks, a cluster, share.
 * As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is [K, N] for nn and tn, [N, K] for nt.
 * Launch: axis 0 = blocks of a cluster fastest, then tiles of all batches. */
#define GK_SIX_SIDE 64
#include "bf16x6.h"

#ifdef GK_WARP_GROUPS
// Units: F32 x OUTPUTS
GK_KERNEL(gemm_bf16x6_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                          GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                          GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 1, 1);
}

GK_KERNEL(gemm_bf16x6_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                          GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                          GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 0, 1);
}

GK_KERNEL(gemm_bf16x6_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                          GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                          GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(1, 1, 1);
}

#ifdef GK_TENSOR_MAPS
#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_PAIRS_OF_BLOCKS
GK_KERNEL(gemm_bf16x6_pair_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                               GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 1, 2);
}

GK_KERNEL(gemm_bf16x6_pair_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                               GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 0, 2);
}

GK_KERNEL(gemm_bf16x6_pair_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                               GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                               GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(1, 1, 2);
}

#undef GK_CLUSTERING
#define GK_CLUSTERING GK_IN_CLUSTERS
GK_KERNEL(gemm_bf16x6_cluster_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                                  GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                                  GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 1, 8);
}

GK_KERNEL(gemm_bf16x6_cluster_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                                  GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                                  GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(0, 0, 8);
}

GK_KERNEL(gemm_bf16x6_cluster_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                                  GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv),
                                  GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_BF16X6(1, 1, 8);
}
#endif
#endif
