/* One tile of a gathered convolution, included once per tile size:
 *
 *   acc[i][j] = sum over k0 <= k < k1 of wt[k, row(i)] * x[base(col(j)) + offset(k)], 0 where the place lies outside the image
 *
 * GK_CONV_BM, GK_CONV_BN  rows and columns of the tile         GK_CONV_BK  products per step
 * GK_CONV_TM, GK_CONV_TN  rows and columns per work-item, multiples of 4; (GK_CONV_BM / GK_CONV_TM) * (GK_CONV_BN / GK_CONV_TN) = GK_BLOCK, GK_CONV_BN at most GK_BLOCK
 * GK_CONV_TILE(x)    name of x for this tile
 *
 * Both operands lie in local memory with k as the outer axis. Two buffers: while one is multiplied, the next step's elements are on their way into
 * registers. A work-item gathers elements of a single column, so that it works out its place in the image once; places of k come from the plan.
 * Work-items of a run of 32 cover 4 x 8 groups of 4 x 4 elements, so that their 16-byte reads of local memory are free of conflicts.
 */
#define GK_CONV_TX (GK_CONV_BN / GK_CONV_TN)
#define GK_CONV_TY (GK_CONV_BM / GK_CONV_TM)
/* Runs of four weights, and elements of x, per work-item and step. */
#define GK_CONV_NA ((GK_CONV_BM * GK_CONV_BK / 4 + GK_BLOCK - 1) / GK_BLOCK)
#define GK_CONV_NB (GK_CONV_BN * GK_CONV_BK / GK_BLOCK)

GK_FN int GK_CONV_TILE(row)(void) { int t = gk_lid(); return (t / 32 / (GK_CONV_TX / 8) * 4 + t % 32 / 8) * 4; }
GK_FN int GK_CONV_TILE(col)(void) { int t = gk_lid(); return (t / 32 % (GK_CONV_TX / 8) * 8 + t % 8) * 4; }

/* The work-item's runs of weights and elements of x for the step at k. `wt` is at the tile's first row. */
#define GK_FETCH(k) \
    GK_UNROLL for (int i = 0; i < GK_CONV_NA; i++) { \
        int v = gk_lid() + i * GK_BLOCK, kk = (k) + v / (GK_CONV_BM / 4); \
        ra[i] = v < GK_CONV_BM * GK_CONV_BK / 4 && kk < k1 ? gk_run(wt + (gk_i64)kk * mpad + v % (GK_CONV_BM / 4) * 4) : gk_run_zero(); \
    } \
    GK_UNROLL for (int i = 0; i < GK_CONV_NB; i++) { \
        int kk = (k) + gk_lid() / GK_CONV_BN + i * (GK_BLOCK / GK_CONV_BN); \
        rb[i] = GK_R(0.0); \
        if (kk < k1) rb[i] = gk_at(x, c, plan, kk); \
    }
#define GK_PLACE(at) \
    GK_UNROLL for (int i = 0; i < GK_CONV_NA; i++) { \
        int v = gk_lid() + i * GK_BLOCK; \
        if (v < GK_CONV_BM * GK_CONV_BK / 4) gk_slot_put4(ta, (at) * GK_CONV_BM * GK_CONV_BK + v * 4, ra[i].v[0], ra[i].v[1], ra[i].v[2], ra[i].v[3]); \
    } \
    GK_UNROLL for (int i = 0; i < GK_CONV_NB; i++) \
        gk_slot_put(tb, ((at) * GK_CONV_BK + gk_lid() / GK_CONV_BN + i * (GK_BLOCK / GK_CONV_BN)) * GK_CONV_BN + gk_lid() % GK_CONV_BN, rb[i]);

GK_FN void GK_CONV_TILE(product)(GK_GLOBAL const gk_t* x, gk_column c, GK_GLOBAL const gk_f* wt, int mpad, GK_GLOBAL const int* plan, int k0, int k1,
                            GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_CONV_TM][GK_CONV_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_CONV_BM * GK_CONV_BK);
    gk_four ra[GK_CONV_NA];
    gk_f rb[GK_CONV_NB];
    int row = GK_CONV_TILE(row)(), col = GK_CONV_TILE(col)(), at = 0;

    GK_UNROLL for (int i = 0; i < GK_CONV_TM; i++)
        GK_UNROLL for (int j = 0; j < GK_CONV_TN; j++) acc[i][j] = GK_R(0.0);
    GK_FETCH(k0)
    GK_PLACE(0)
    GK_BARRIER();
    for (int k = k0; k < k1; k += GK_CONV_BK) {
        int more = k + GK_CONV_BK < k1;
        if (more) { GK_FETCH(k + GK_CONV_BK) }
        GK_UNROLL for (int kk = 0; kk < GK_CONV_BK; kk++) {
            gk_four u[GK_CONV_TM / 4], v[GK_CONV_TN / 4];
            GK_UNROLL for (int i = 0; i < GK_CONV_TM / 4; i++) u[i] = gk_slot_get4(ta, (at * GK_CONV_BK + kk) * GK_CONV_BM + row + i * GK_CONV_TY * 4);
            GK_UNROLL for (int j = 0; j < GK_CONV_TN / 4; j++) v[j] = gk_slot_get4(tb, (at * GK_CONV_BK + kk) * GK_CONV_BN + col + j * GK_CONV_TX * 4);
            GK_UNROLL for (int i = 0; i < GK_CONV_TM; i++)
                GK_UNROLL for (int j = 0; j < GK_CONV_TN; j++) acc[i][j] += u[i / 4].v[i % 4] * v[j / 4].v[j % 4];
        }
        at ^= 1;
        if (more) { GK_PLACE(at) }
        GK_BARRIER();
    }
}

#undef GK_FETCH
#undef GK_PLACE
#undef GK_CONV_TX
#undef GK_CONV_TY
#undef GK_CONV_NA
#undef GK_CONV_NB
