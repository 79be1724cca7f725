/* What the tiles of products share, included once per tile size by a family's header:
 *
 *   acc[i][j] = sum over k of A[k, row(i)] * B[k, col(j)]
 *
 * GK_TILE(x)                  name of x for this tile
 * GK_TILE_BM, GK_TILE_BN      rows and columns of the tile
 * GK_TILE_BK                  products per step
 * GK_TILE_TM, GK_TILE_TN      rows and columns per thread, multiples of 4; (BM / TM) * (BN / TN) = GK_BLOCK
 *
 * Both operands lie in local memory with k as the outer axis, twice: while one buffer is multiplied, the elements of the next step are on their way
 * into registers. The threads of a warp cover 4 x 8 groups of 4 x 4 elements, so that their 16-byte reads of local memory are free of conflicts.
 * The family's header takes the parameters back at its end, for the next size.
 */
#define GK_TILE_TX (GK_TILE_BN / GK_TILE_TN)
#define GK_TILE_TY (GK_TILE_BM / GK_TILE_TM)

/* First row and column of the thread's group number 0 within the tile; group i is GK_TILE_TY * 4 rows (GK_TILE_TX * 4 columns) further. */
GK_FN int GK_TILE(row)(void) { int t = gk_lid(); return (t / 32 / (GK_TILE_TX / 8) * 4 + t % 32 / 8) * 4; }
GK_FN int GK_TILE(col)(void) { int t = gk_lid(); return (t / 32 % (GK_TILE_TX / 8) * 8 + t % 8) * 4; }

GK_FN void GK_TILE(clear)(gk_f acc[GK_TILE_TM][GK_TILE_TN])
{
    GK_UNROLL for (int i = 0; i < GK_TILE_TM; i++)
        GK_UNROLL for (int j = 0; j < GK_TILE_TN; j++) acc[i][j] = GK_R(0.0);
}

/* Adds the products of the step in buffer `at` of ta and tb, whose rows have pa and pb elements. */
GK_FN void GK_TILE(multiply)(GK_LOCAL_PTR gk_slot* ta, GK_LOCAL_PTR gk_slot* tb, int at, int row, int col, const int pa, const int pb,
                             gk_f acc[GK_TILE_TM][GK_TILE_TN])
{
    GK_UNROLL for (int kk = 0; kk < GK_TILE_BK; kk++) {
        gk_four u[GK_TILE_TM / 4], v[GK_TILE_TN / 4];
        GK_UNROLL for (int i = 0; i < GK_TILE_TM / 4; i++) u[i] = gk_slot_get4(ta, (at * GK_TILE_BK + kk) * pa + row + i * GK_TILE_TY * 4);
        GK_UNROLL for (int j = 0; j < GK_TILE_TN / 4; j++) v[j] = gk_slot_get4(tb, (at * GK_TILE_BK + kk) * pb + col + j * GK_TILE_TX * 4);
        GK_UNROLL for (int i = 0; i < GK_TILE_TM; i++)
            GK_UNROLL for (int j = 0; j < GK_TILE_TN; j++) acc[i][j] += u[i / 4].v[i % 4] * v[j / 4].v[j % 4];
    }
}

/* The accumulators leave the registers through local memory, `per` runs of four columns at a time from run `first` on, so that one loop with computed
 * indices serves them all: run q of them lies at (q * GK_BLOCK + lid) * 4. */
GK_FN void GK_TILE(spill)(gk_f acc[GK_TILE_TM][GK_TILE_TN], const int first, const int per, GK_LOCAL_PTR gk_slot* tile)
{
    GK_UNROLL for (int q = 0; q < per; q++) {
        int i = (first + q) / (GK_TILE_TN / 4), j = (first + q) % (GK_TILE_TN / 4) * 4;
        gk_slot_put4(tile, (q * GK_BLOCK + gk_lid()) * 4, acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
    }
}
/* Row and first column of run number `run`, from those of the thread's group 0. */
GK_FN int GK_TILE(run_row)(int run) { int i = run / (GK_TILE_TN / 4); return i / 4 * (GK_TILE_BM / GK_TILE_TM * 4) + i % 4; }
GK_FN int GK_TILE(run_col)(int run) { return run % (GK_TILE_TN / 4) * (GK_TILE_BN / GK_TILE_TN * 4); }

#undef GK_TILE_TX
#undef GK_TILE_TY
