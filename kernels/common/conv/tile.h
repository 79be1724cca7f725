/* One tile of a gathered convolution, included once per tile size (prelude/register_tile.h; BN is at most GK_BLOCK):
 *
 *   acc[i][j] = sum over k0 <= k < k1 of wt[k, row(i)] * x[base(col(j)) + offset(k)], 0 where the place lies outside the image
 *
 * A thread gathers elements of a single column, so that it works out its place in the image once; places of k come from the plan.
 */
#include "common/prelude/register_tile.h"

/* Runs of four weights, and elements of x, per thread and step. */
#define GK_TILE_NA ((GK_TILE_BM * GK_TILE_BK / 4 + GK_BLOCK - 1) / GK_BLOCK)
#define GK_TILE_NB (GK_TILE_BN * GK_TILE_BK / GK_BLOCK)

/* The thread's runs of weights and elements of x for the step at k. `wt` is at the tile's first row. */
GK_FN void GK_TILE(fetch)(gk_four ra[GK_TILE_NA], gk_f rb[GK_TILE_NB], GK_GLOBAL const gk_t* x, gk_column c, GK_GLOBAL const gk_f* wt, int mpad,
                          GK_GLOBAL const int* plan, int k, int k1)
{
    GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) {
        int v = gk_lid() + i * GK_BLOCK, kk = k + v / (GK_TILE_BM / 4);
        ra[i] = v < GK_TILE_BM * GK_TILE_BK / 4 && kk < k1 ? gk_run(wt + (gk_i64)kk * mpad + v % (GK_TILE_BM / 4) * 4) : gk_run_zero();
    }
    GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++) {
        int kk = k + gk_lid() / GK_TILE_BN + i * (GK_BLOCK / GK_TILE_BN);
        rb[i] = GK_R(0.0);
        if (kk < k1) rb[i] = gk_at(x, c, plan, kk);
    }
}
GK_FN void GK_TILE(place)(GK_LOCAL_PTR gk_slot* ta, GK_LOCAL_PTR gk_slot* tb, int at, gk_four ra[GK_TILE_NA], gk_f rb[GK_TILE_NB])
{
    GK_UNROLL for (int i = 0; i < GK_TILE_NA; i++) {
        int v = gk_lid() + i * GK_BLOCK;
        if (v < GK_TILE_BM * GK_TILE_BK / 4) gk_slot_put4(ta, at * GK_TILE_BM * GK_TILE_BK + v * 4, ra[i].v[0], ra[i].v[1], ra[i].v[2], ra[i].v[3]);
    }
    GK_UNROLL for (int i = 0; i < GK_TILE_NB; i++)
        gk_slot_put(tb, (at * GK_TILE_BK + gk_lid() / GK_TILE_BN + i * (GK_BLOCK / GK_TILE_BN)) * GK_TILE_BN + gk_lid() % GK_TILE_BN, rb[i]);
}

GK_FN void GK_TILE(product)(GK_GLOBAL const gk_t* x, gk_column c, GK_GLOBAL const gk_f* wt, int mpad, GK_GLOBAL const int* plan, int k0, int k1,
                            GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_TILE_TM][GK_TILE_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_TILE_BM * GK_TILE_BK);
    gk_four ra[GK_TILE_NA];
    gk_f rb[GK_TILE_NB];
    int row = GK_TILE(row)(), col = GK_TILE(col)(), at = 0;

    GK_TILE(clear)(acc);
    GK_TILE(fetch)(ra, rb, x, c, wt, mpad, plan, k0, k1);
    GK_TILE(place)(ta, tb, 0, ra, rb);
    GK_BARRIER();
    for (int k = k0; k < k1; k += GK_TILE_BK) {
        int more = k + GK_TILE_BK < k1;
        if (more) GK_TILE(fetch)(ra, rb, x, c, wt, mpad, plan, k + GK_TILE_BK, k1);
        GK_TILE(multiply)(ta, tb, at, row, col, GK_TILE_BM, GK_TILE_BN, acc);
        at ^= 1;
        if (more) GK_TILE(place)(ta, tb, at, ra, rb);
        GK_BARRIER();
    }
}

/* A block's tile with its epilogue, `per` runs of columns at a time. With more than one part of k, the sums go to `part` [parts, phases, groups,
 * rows, columns of the largest phase]. The dims come by pointer: copies would keep registers through the whole product. */
GK_FN void GK_TILE(compute)(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_f* wt, GK_GLOBAL const int* plan, GK_GLOBAL const gk_t* scale,
                            GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_t* residual, GK_GLOBAL gk_t* y, GK_GLOBAL gk_t* z, GK_GLOBAL gk_f* part,
                            const gk_dims* img, const gk_dims* out, const gk_dims* step, const gk_dims* phase, int accumulate, int act, gk_f q_act,
                            GK_LOCAL_PTR gk_slot* tile, const int per)
{
    int mt = (int)phase->v[6], ct = (int)phase->v[7], parts = (int)out->v[6], groups = (int)out->v[4], mpad = (int)phase->v[5];
    int block = gk_bid(0), m0 = block % mt * GK_TILE_BM, rest = block / mt, n0 = rest % ct * GK_TILE_BN;
    rest /= ct;
    int g = rest % groups, slice = rest / groups % parts, ph = rest / groups / parts;
    gk_places p = gk_places_of(ph, *out, *phase);
    int k0 = plan[ph * 4], k1 = plan[ph * 4 + 1];
    plan += phase->v[3] * 4;
    if (parts > 1) {
        int per_part = ((k1 - k0 + parts - 1) / parts + 15) / 16 * 16;
        k0 += slice * per_part;
        k1 = k0 + per_part < k1 ? k0 + per_part : k1;
    }
    if (n0 >= p.count) k1 = k0;
    gk_column c = gk_column_of(p, n0 + gk_lid() % GK_TILE_BN, g, *img, *step);
    gk_f acc[GK_TILE_TM][GK_TILE_TN];
    GK_TILE(product)(x, c, wt + (gk_i64)g * phase->v[4] * mpad + m0, mpad, plan, k0, k1, tile, acc);
    int row = m0 + GK_TILE(row)(), col = n0 + GK_TILE(col)();
    GK_UNROLL for (int first = 0; first < GK_TILE_TM * GK_TILE_TN / 4; first += per) {
        GK_TILE(spill)(acc, first, per, tile);
        GK_ROLL for (int q = 0; q < per; q++) {
            gk_four v = gk_slot_get4(tile, (q * GK_BLOCK + gk_lid()) * 4);
            int m = row + GK_TILE(run_row)(first + q), to = col + GK_TILE(run_col)(first + q);
            if (parts > 1) gk_conv_part(v, p, part, (slice * (int)phase->v[3] + ph) * groups + g, m, to, *out, *phase);
            else gk_conv_finish(v, p, g, m, to, *out, *phase, scale, bias, residual, y, z, accumulate, act, q_act);
        }
    }
}

#undef GK_TILE_NA
#undef GK_TILE_NB
#undef GK_TILE
#undef GK_TILE_BM
#undef GK_TILE_BN
#undef GK_TILE_BK
#undef GK_TILE_TM
#undef GK_TILE_TN
