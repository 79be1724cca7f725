/* One tile of a product, included once per tile size (prelude/register_tile.h):
 *
 *   acc[i][j] = sum over k0 <= k < k1 of A[m0 + row(i), k] * B[k, n0 + col(j)]
 *
 * Each step moves BM x BK elements of A and BK x BN of B through local memory. Elements beyond the matrices count as 0.
 */
#include "common/prelude/register_tile.h"

/* Loads of GK_W elements per thread and step. */
#define GK_TILE_NA ((GK_TILE_BM * GK_TILE_BK / GK_W + GK_BLOCK - 1) / GK_BLOCK)
#define GK_TILE_NB ((GK_TILE_BN * GK_TILE_BK / GK_W + GK_BLOCK - 1) / GK_BLOCK)

GK_FN void GK_TILE(product)(GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, gk_i64 m, gk_i64 n, gk_i64 m0, gk_i64 n0, gk_i64 k0, gk_i64 k1,
                            gk_side sa, gk_side sb, GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_TILE_TM][GK_TILE_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_TILE_BM * GK_TILE_BK);
    gk_lane la[GK_TILE_NA], lb[GK_TILE_NB];
    gk_vec ra[GK_TILE_NA], rb[GK_TILE_NB];
    int row = GK_TILE(row)(), col = GK_TILE(col)(), at = 0, left = k1 - k0 < GK_TILE_BK ? (int)(k1 - k0) : GK_TILE_BK;

    GK_TILE(clear)(acc);
    GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) {
        la[i] = gk_lane_of(a, sa, m, m0, k0, GK_TILE_BM, GK_TILE_BK, i);
        gk_place(ta, sa, gk_fetch(la[i], sa, left), GK_TILE_BM, GK_TILE_BK, i);
    }
    GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) {
        lb[i] = gk_lane_of(b, sb, n, n0, k0, GK_TILE_BN, GK_TILE_BK, i);
        gk_place(tb, sb, gk_fetch(lb[i], sb, left), GK_TILE_BN, GK_TILE_BK, i);
    }
    GK_BARRIER();
    for (gk_i64 k = k0; k < k1; k += GK_TILE_BK) {
        gk_i64 rest = k1 - k - GK_TILE_BK;
        if (rest > 0) {
            left = rest < GK_TILE_BK ? (int)rest : GK_TILE_BK;
            GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) {
                la[i].p += GK_TILE_BK * sa.kstep;
                ra[i] = gk_fetch(la[i], sa, left);
            }
            GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) {
                lb[i].p += GK_TILE_BK * sb.kstep;
                rb[i] = gk_fetch(lb[i], sb, left);
            }
        }
        GK_TILE(multiply)(ta, tb, at, row, col, GK_TILE_BM, GK_TILE_BN, acc);
        at ^= 1;
        if (rest > 0) {
            GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) gk_place(ta + GK_SLOTS(at * GK_TILE_BM * GK_TILE_BK), sa, ra[i], GK_TILE_BM, GK_TILE_BK,
                i);
            GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) gk_place(tb + GK_SLOTS(at * GK_TILE_BN * GK_TILE_BK), sb, rb[i], GK_TILE_BN, GK_TILE_BK,
                i);
        }
        GK_BARRIER();
    }
}

#ifdef GK_GEMM_EPILOGUE
/* A block's tile with its epilogue, `per` runs of columns at a time. */
GK_FN void GK_TILE(compute)(GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, GK_GLOBAL const gk_o* c, GK_GLOBAL const gk_t* bias,
                            GK_GLOBAL const gk_o* residual, GK_GLOBAL const gk_t* scale, GK_GLOBAL gk_o* y, GK_GLOBAL gk_o* z, GK_GLOBAL gk_f* part,
                            gk_dims size, gk_dims sa, gk_dims sb, gk_dims sc, gk_dims sr, gk_dims sv, gk_dims sy, gk_dims sz, gk_f alpha, gk_f beta,
                            int act, gk_f p, GK_LOCAL_PTR gk_slot* tile, const int per)
{
    gk_i64 down = (size.v[0] + GK_TILE_BM - 1) / GK_TILE_BM, across = (size.v[1] + GK_TILE_BN - 1) / GK_TILE_BN, at = gk_bid(0);
    gk_i64 n0 = at % across * GK_TILE_BN, m0 = at / across % down * GK_TILE_BM, slice = at / across / down;
    gk_i64 batch = slice / size.v[4], k0 = slice % size.v[4] * size.v[5], k1 = k0 + size.v[5] < size.v[2] ? k0 + size.v[5] : size.v[2];
    gk_f acc[GK_TILE_TM][GK_TILE_TN];
    GK_TILE(product)(a + batch * sa.v[2], b + batch * sb.v[2], size.v[0], size.v[1], m0, n0, k0, k1, gk_side_of(sa), gk_side_of(sb), tile, acc);
    gk_i64 row = m0 + GK_TILE(row)(), col = n0 + GK_TILE(col)();
    GK_UNROLL for (int first = 0; first < GK_TILE_TM * GK_TILE_TN / 4; first += per) {
        GK_TILE(spill)(acc, first, per, tile);
        GK_ROLL for (int q = 0; q < per; q++) {
            gk_four x = gk_slot_get4(tile, (q * GK_BLOCK + gk_lid()) * 4);
            gk_i64 m = row + GK_TILE(run_row)(first + q), n = col + GK_TILE(run_col)(first + q);
            if (part) gk_store_part(part, slice % size.v[4] * size.v[3] + batch, m, n, size, x);
            else gk_epilogue(x, batch, m, n, c, bias, residual, scale, y, z, size, sc, sr, sv, sy, sz, alpha, beta, act, p);
        }
    }
}
#endif

#undef GK_TILE_NA
#undef GK_TILE_NB
#undef GK_TILE
#undef GK_TILE_BM
#undef GK_TILE_BN
#undef GK_TILE_BK
#undef GK_TILE_TM
#undef GK_TILE_TN
