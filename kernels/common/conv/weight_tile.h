/* One tile of a weight gradient, included once per tile size (prelude/register_tile.h):
 *
 *   acc[i][j] = sum over k0 <= k < k1 of dy[row(i), k] * x[start(k) + entry(col(j))]        k: places of all images
 *
 * Both operands are contiguous (or strided) along k in memory and have k as the outer axis in local memory, in rows of BM + 4 and BN + 4: threads of
 * neighbouring k write different banks. A thread loads elements of a single k per step, whose place moves on by BK without a division. Elements
 * beyond the matrices count as 0.
 */
#include "common/prelude/register_tile.h"

#define GK_TILE_PASS (GK_BLOCK / GK_TILE_BK)
#define GK_TILE_NA (GK_TILE_BM / GK_TILE_PASS)
#define GK_TILE_NB (GK_TILE_BN / GK_TILE_PASS)
#define GK_TILE_PA (GK_TILE_BM + 4)
#define GK_TILE_PB (GK_TILE_BN + 4)

/* The thread's elements of dy and x for the step at k, where s is. */
GK_FN void GK_TILE(fetch)(gk_f ra[GK_TILE_NA], gk_f rb[GK_TILE_NB], GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy,
                          GK_LOCAL_PTR const gk_raw16* cols, gk_position s, gk_dims img, gk_dims step, gk_i64 g, int rows, int k, int k1)
{
    if (k + gk_lid() % GK_TILE_BK < k1) {
        GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) {
            int row = gk_lid() / GK_TILE_BK + i * GK_TILE_PASS;
            ra[i] = GK_R(0.0);
            if (row < rows) ra[i] = gk_load(dy, s.row + (gk_i64)row * s.plane);
        }
        gk_column c = gk_position_column(s, img, step, g);
        GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) {
            gk_raw16 e = cols[gk_lid() / GK_TILE_BK + i * GK_TILE_PASS];
            rb[i] = GK_R(0.0);
            if (gk_inside(c, (int)e.y, (int)e.z, (int)e.w)) rb[i] = gk_load(x, c.base + (int)e.x);
        }
    } else {
        GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) ra[i] = GK_R(0.0);
        GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) rb[i] = GK_R(0.0);
    }
}
GK_FN void GK_TILE(place)(GK_LOCAL_PTR gk_slot* ta, GK_LOCAL_PTR gk_slot* tb, int at, gk_f ra[GK_TILE_NA], gk_f rb[GK_TILE_NB])
{
    int k = at * GK_TILE_BK + gk_lid() % GK_TILE_BK, row = gk_lid() / GK_TILE_BK;
    GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) gk_slot_put(ta, k * GK_TILE_PA + row + i * GK_TILE_PASS, ra[i]);
    GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) gk_slot_put(tb, k * GK_TILE_PB + row + i * GK_TILE_PASS, rb[i]);
}

/* `rows` rows of dy exist from the tile's first on, at which s.row is. */
GK_FN void GK_TILE(product)(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, GK_LOCAL_PTR const gk_raw16* cols, gk_position s, gk_dims img,
                            gk_dims step, gk_i64 g, int rows, int k0, int k1, GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_TILE_TM][GK_TILE_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_TILE_PA * GK_TILE_BK);
    gk_f ra[GK_TILE_NA], rb[GK_TILE_NB];
    int row = GK_TILE(row)(), col = GK_TILE(col)(), at = 0;

    GK_TILE(clear)(acc);
    GK_TILE(fetch)(ra, rb, x, dy, cols, s, img, step, g, rows, k0, k1);
    GK_TILE(place)(ta, tb, 0, ra, rb);
    GK_BARRIER();
    for (int k = k0; k < k1; k += GK_TILE_BK) {
        int more = k + GK_TILE_BK < k1;
        if (more) {
            gk_position_next(&s);
            GK_TILE(fetch)(ra, rb, x, dy, cols, s, img, step, g, rows, k + GK_TILE_BK, k1);
        }
        GK_TILE(multiply)(ta, tb, at, row, col, GK_TILE_PA, GK_TILE_PB, acc);
        at ^= 1;
        if (more) GK_TILE(place)(ta, tb, at, ra, rb);
        GK_BARRIER();
    }
}

/* A block's tile of the sums over a run of k, `per` runs of columns at a time. */
GK_FN void GK_TILE(compute)(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, GK_GLOBAL const int* plan, GK_GLOBAL gk_f* part, gk_dims img,
                            gk_dims out, gk_dims step, gk_dims size, GK_LOCAL_PTR gk_slot* tile, GK_LOCAL_PTR gk_raw16* cols, const int per)
{
    int block = gk_bid(0), n_cols = (int)size.v[0], m = (int)out.v[3];
    int n0 = block % (int)size.v[4] * GK_TILE_BN, rest = block / (int)size.v[4], m0 = rest % (int)size.v[3] * GK_TILE_BM;
    rest /= (int)size.v[3];
    int g = rest % (int)out.v[4], split = rest / (int)out.v[4];
    int k0 = split * (int)size.v[2], k1 = k0 + (int)size.v[2] < (int)size.v[5] ? k0 + (int)size.v[2] : (int)size.v[5];
    for (int i = gk_lid(); i < GK_TILE_BN; i += GK_BLOCK) {
        gk_raw16 e = gk_make16(0u, 0u, 0u, (gk_u32)-GK_FAR);
        if (n0 + i < n_cols) e = gk_load16((GK_GLOBAL const void*)(plan + (n0 + i + 1) * (gk_i64)4));
        cols[i] = e;
    }
    GK_BARRIER();
    gk_position s = gk_position_at(k0 + gk_lid() % GK_TILE_BK, GK_TILE_BK, out, (gk_i64)g * m + m0);
    gk_f acc[GK_TILE_TM][GK_TILE_TN];
    GK_TILE(product)(x, dy, cols, s, img, step, g, m - m0, k0, k1, tile, acc);
    int row = m0 + GK_TILE(row)(), col = n0 + GK_TILE(col)();
    part += ((gk_i64)split * (int)out.v[4] + g) * m * n_cols;
    GK_UNROLL for (int first = 0; first < GK_TILE_TM * GK_TILE_TN / 4; first += per) {
        GK_TILE(spill)(acc, first, per, tile);
        GK_ROLL for (int q = 0; q < per; q++) {
            gk_four v = gk_slot_get4(tile, (q * GK_BLOCK + gk_lid()) * 4);
            int r = row + GK_TILE(run_row)(first + q), to = col + GK_TILE(run_col)(first + q);
            if (r >= m) continue;
            GK_UNROLL for (int j = 0; j < 4; j++)
                if (to + j < n_cols) part[(gk_i64)r * n_cols + to + j] = v.v[j];
        }
    }
}

#undef GK_TILE_PASS
#undef GK_TILE_NA
#undef GK_TILE_NB
#undef GK_TILE_PA
#undef GK_TILE_PB
#undef GK_TILE
#undef GK_TILE_BM
#undef GK_TILE_BN
#undef GK_TILE_BK
#undef GK_TILE_TM
#undef GK_TILE_TN
