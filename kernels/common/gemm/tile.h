/* One tile of a product, included once per tile size:
 *
 *   acc[i][j] = sum over k0 <= k < k1 of A[m0 + row(i), k] * B[k, n0 + col(j)]
 *
 * GK_GEMM_BM, GK_GEMM_BN  rows and columns of the tile         GK_GEMM_BK  products per step
 * GK_GEMM_TM, GK_GEMM_TN  rows and columns per work-item, multiples of 4; (GK_GEMM_BM / GK_GEMM_TM) * (GK_GEMM_BN / GK_GEMM_TN) = GK_BLOCK
 * GK_GEMM_TILE(x)    name of x for this tile
 *
 * Each step moves GK_GEMM_BM x GK_GEMM_BK of A and GK_GEMM_BK x GK_GEMM_BN of B through local memory, where both lie with k as the outer axis. Two buffers: while one
 * is multiplied, the next step's elements are on their way into registers. Elements beyond the matrices count as 0.
 * Work-items of a run of 32 cover 4 x 8 groups of 4 x 4 elements, so that their 16-byte reads of local memory are free of conflicts.
 */
#define GK_GEMM_TX (GK_GEMM_BN / GK_GEMM_TN)
#define GK_GEMM_TY (GK_GEMM_BM / GK_GEMM_TM)
/* Loads of GK_W elements per work-item and step. */
#define GK_GEMM_NA ((GK_GEMM_BM * GK_GEMM_BK / GK_W + GK_BLOCK - 1) / GK_BLOCK)
#define GK_GEMM_NB ((GK_GEMM_BN * GK_GEMM_BK / GK_W + GK_BLOCK - 1) / GK_BLOCK)

/* First row and column of the work-item's group number 0 within the tile; group i is GK_GEMM_TY * 4 rows (GK_GEMM_TX * 4 columns) further. */
GK_FN int GK_GEMM_TILE(row)(void) { int t = gk_lid(); return (t / 32 / (GK_GEMM_TX / 8) * 4 + t % 32 / 8) * 4; }
GK_FN int GK_GEMM_TILE(col)(void) { int t = gk_lid(); return (t / 32 % (GK_GEMM_TX / 8) * 8 + t % 8) * 4; }

GK_FN void GK_GEMM_TILE(product)(GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, gk_i64 m, gk_i64 n, gk_i64 m0, gk_i64 n0, gk_i64 k0, gk_i64 k1,
                            gk_side sa, gk_side sb, GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_GEMM_TM][GK_GEMM_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_GEMM_BM * GK_GEMM_BK);
    gk_lane la[GK_GEMM_NA], lb[GK_GEMM_NB];
    gk_vec ra[GK_GEMM_NA], rb[GK_GEMM_NB];
    int row = GK_GEMM_TILE(row)(), col = GK_GEMM_TILE(col)(), at = 0, left = k1 - k0 < GK_GEMM_BK ? (int)(k1 - k0) : GK_GEMM_BK;

    GK_UNROLL for (int i = 0; i < GK_GEMM_TM; i++)
        GK_UNROLL for (int j = 0; j < GK_GEMM_TN; j++) acc[i][j] = GK_R(0.0);
    GK_UNROLL for (int i = 0; i < GK_GEMM_NA; i++) {
        la[i] = gk_lane_of(a, sa, m, m0, k0, GK_GEMM_BM, GK_GEMM_BK, i);
        gk_place(ta, sa, gk_fetch(la[i], sa, left), GK_GEMM_BM, GK_GEMM_BK, i);
    }
    GK_UNROLL for (int i = 0; i < GK_GEMM_NB; i++) {
        lb[i] = gk_lane_of(b, sb, n, n0, k0, GK_GEMM_BN, GK_GEMM_BK, i);
        gk_place(tb, sb, gk_fetch(lb[i], sb, left), GK_GEMM_BN, GK_GEMM_BK, i);
    }
    GK_BARRIER();
    for (gk_i64 k = k0; k < k1; k += GK_GEMM_BK) {
        gk_i64 rest = k1 - k - GK_GEMM_BK;
        if (rest > 0) {
            left = rest < GK_GEMM_BK ? (int)rest : GK_GEMM_BK;
            GK_UNROLL for (int i = 0; i < GK_GEMM_NA; i++) {
                la[i].p += GK_GEMM_BK * sa.kstep;
                ra[i] = gk_fetch(la[i], sa, left);
            }
            GK_UNROLL for (int i = 0; i < GK_GEMM_NB; i++) {
                lb[i].p += GK_GEMM_BK * sb.kstep;
                rb[i] = gk_fetch(lb[i], sb, left);
            }
        }
        GK_UNROLL for (int kk = 0; kk < GK_GEMM_BK; kk++) {
            gk_four u[GK_GEMM_TM / 4], v[GK_GEMM_TN / 4];
            GK_UNROLL for (int i = 0; i < GK_GEMM_TM / 4; i++) u[i] = gk_slot_get4(ta, (at * GK_GEMM_BK + kk) * GK_GEMM_BM + row + i * GK_GEMM_TY * 4);
            GK_UNROLL for (int j = 0; j < GK_GEMM_TN / 4; j++) v[j] = gk_slot_get4(tb, (at * GK_GEMM_BK + kk) * GK_GEMM_BN + col + j * GK_GEMM_TX * 4);
            GK_UNROLL for (int i = 0; i < GK_GEMM_TM; i++)
                GK_UNROLL for (int j = 0; j < GK_GEMM_TN; j++) acc[i][j] += u[i / 4].v[i % 4] * v[j / 4].v[j % 4];
        }
        at ^= 1;
        if (rest > 0) {
            GK_UNROLL for (int i = 0; i < GK_GEMM_NA; i++) gk_place(ta + GK_SLOTS(at * GK_GEMM_BM * GK_GEMM_BK), sa, ra[i], GK_GEMM_BM, GK_GEMM_BK, i);
            GK_UNROLL for (int i = 0; i < GK_GEMM_NB; i++) gk_place(tb + GK_SLOTS(at * GK_GEMM_BN * GK_GEMM_BK), sb, rb[i], GK_GEMM_BN, GK_GEMM_BK, i);
        }
        GK_BARRIER();
    }
}

#undef GK_GEMM_TX
#undef GK_GEMM_TY
#undef GK_GEMM_NA
#undef GK_GEMM_NB
