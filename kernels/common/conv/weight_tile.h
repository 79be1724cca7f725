/* One tile of a weight gradient, included once per tile size:
 *
 *   acc[i][j] = sum over k0 <= k < k1 of dy[row(i), k] * x[start(k) + entry(col(j))]        k: places of all images
 *
 * GK_CONV_BM, GK_CONV_BN, GK_CONV_BK, GK_CONV_TM, GK_CONV_TN, GK_CONV_TILE as in conv/tile.h. Both operands are contiguous (or strided) along k in memory and have k as the outer
 * axis in local memory, in rows of GK_CONV_BM + 4 and GK_CONV_BN + 4: work-items of neighbouring k write different banks. A work-item loads elements of a single
 * k per step, whose place moves on by GK_CONV_BK without a division. Elements beyond the matrices count as 0.
 */
#define GK_CONV_TX (GK_CONV_BN / GK_CONV_TN)
#define GK_CONV_TY (GK_CONV_BM / GK_CONV_TM)
#define GK_PASS (GK_BLOCK / GK_CONV_BK)
#define GK_CONV_NA (GK_CONV_BM / GK_PASS)
#define GK_CONV_NB (GK_CONV_BN / GK_PASS)
#define GK_PA (GK_CONV_BM + 4)
#define GK_PB (GK_CONV_BN + 4)

GK_FN int GK_CONV_TILE(row)(void) { int t = gk_lid(); return (t / 32 / (GK_CONV_TX / 8) * 4 + t % 32 / 8) * 4; }
GK_FN int GK_CONV_TILE(col)(void) { int t = gk_lid(); return (t / 32 % (GK_CONV_TX / 8) * 8 + t % 8) * 4; }

#define GK_FETCH(k) \
    if ((k) + gk_lid() % GK_CONV_BK < k1) { \
        GK_UNROLL for (int i = 0; i < GK_CONV_NA; i++) { \
            ra[i] = GK_R(0.0); \
            if (gk_lid() / GK_CONV_BK + i * GK_PASS < rows) ra[i] = gk_load(dy, s.row + (gk_i64)(gk_lid() / GK_CONV_BK + i * GK_PASS) * s.plane); \
        } \
        gk_column c = gk_walk_column(s, img, step, g); \
        GK_UNROLL for (int i = 0; i < GK_CONV_NB; i++) { \
            gk_raw16 e = cols[gk_lid() / GK_CONV_BK + i * GK_PASS]; \
            rb[i] = GK_R(0.0); \
            if (gk_inside(c, (int)e.y, (int)e.z, (int)e.w)) rb[i] = gk_load(x, c.base + (int)e.x); \
        } \
    } else { \
        GK_UNROLL for (int i = 0; i < GK_CONV_NA; i++) ra[i] = GK_R(0.0); \
        GK_UNROLL for (int i = 0; i < GK_CONV_NB; i++) rb[i] = GK_R(0.0); \
    }
#define GK_PLACE(at) \
    GK_UNROLL for (int i = 0; i < GK_CONV_NA; i++) gk_slot_put(ta, ((at) * GK_CONV_BK + gk_lid() % GK_CONV_BK) * GK_PA + gk_lid() / GK_CONV_BK + i * GK_PASS, ra[i]); \
    GK_UNROLL for (int i = 0; i < GK_CONV_NB; i++) gk_slot_put(tb, ((at) * GK_CONV_BK + gk_lid() % GK_CONV_BK) * GK_PB + gk_lid() / GK_CONV_BK + i * GK_PASS, rb[i]);

/* `rows` rows of dy exist from the tile's first on, at which s.row is. */
GK_FN void GK_CONV_TILE(product)(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, GK_LOCAL_PTR const gk_raw16* cols, gk_walk s, gk_dims img, gk_dims step,
                            gk_i64 g, int rows, int k0, int k1, GK_LOCAL_PTR gk_slot* tile, gk_f acc[GK_CONV_TM][GK_CONV_TN])
{
    GK_LOCAL_PTR gk_slot* ta = tile;
    GK_LOCAL_PTR gk_slot* tb = tile + GK_SLOTS(2 * GK_PA * GK_CONV_BK);
    gk_f ra[GK_CONV_NA], rb[GK_CONV_NB];
    int row = GK_CONV_TILE(row)(), col = GK_CONV_TILE(col)(), at = 0;

    GK_UNROLL for (int i = 0; i < GK_CONV_TM; i++)
        GK_UNROLL for (int j = 0; j < GK_CONV_TN; j++) acc[i][j] = GK_R(0.0);
    GK_FETCH(k0)
    GK_PLACE(0)
    GK_BARRIER();
    for (int k = k0; k < k1; k += GK_CONV_BK) {
        int more = k + GK_CONV_BK < k1;
        if (more) {
            gk_walk_on(&s);
            GK_FETCH(k + GK_CONV_BK)
        }
        GK_UNROLL for (int kk = 0; kk < GK_CONV_BK; kk++) {
            gk_four u[GK_CONV_TM / 4], v[GK_CONV_TN / 4];
            GK_UNROLL for (int i = 0; i < GK_CONV_TM / 4; i++) u[i] = gk_slot_get4(ta, (at * GK_CONV_BK + kk) * GK_PA + row + i * GK_CONV_TY * 4);
            GK_UNROLL for (int j = 0; j < GK_CONV_TN / 4; j++) v[j] = gk_slot_get4(tb, (at * GK_CONV_BK + kk) * GK_PB + col + j * GK_CONV_TX * 4);
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
#undef GK_PASS
#undef GK_CONV_NA
#undef GK_CONV_NB
#undef GK_PA
#undef GK_PB
