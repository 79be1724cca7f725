/* Products (formula, parameters and epilogue: gemm.c) on matrix cores, for f16 and bf16, by the tiles of matrix_tile.h. GK_OP is the type of the outputs
 * and of C.
 *
 * As they lie in memory A is [M, K] for nn and nt, [K, M] for tn, B is [K, N] for nn and tn, [N, K] for nt; their rows have no gaps between elements. With
 * more than one split the sums go to `part`, as those of gemm_tile128 do.
 * Launch: axis 0 = tiles: columns fastest, then rows, splits, batches. Deterministic.
 */
#include "matrix_tile.h"
#include "epilogue.h"

/* The parameters of the kernels, but for the layouts of A and B. */
typedef struct {
    GK_GLOBAL const gk_t *a, *b, *bias, *scale;
    GK_GLOBAL const gk_o *c, *residual;
    GK_GLOBAL gk_o *y, *z;
    GK_GLOBAL gk_f* part;
    gk_dims size, sa, sb, sc, sr, sv, sy, sz;
    gk_f alpha, beta, p;
    int act;
} gk_product;

/* A tile: its first row and column, its batch, and its number among splits and batches. */
typedef struct { gk_i64 m0, n0, batch, split; } gk_tile_place;

/* Results from sums, by runs of four columns that lie in local memory meanwhile. */
GK_FN void gk_product_store(const gk_product* q, float (*sums)[4], gk_tile_place t, GK_LOCAL_PTR float* spill)
{
    GK_UNROLL for (int first = 0; first < GK_TILE_COLUMNS; first += GK_TILE_SPILL) {
        gk_tile_spill(sums, first, spill);
        for (int i = 0; i < GK_TILE_RUNS; i++) {
            int row = GK_RUN_ROW(i), c = GK_RUN_COLUMN(i);
            gk_i64 m = t.m0 + row, n = t.n0 + first + c;
            gk_four x;
            GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = spill[row * GK_TILE_PITCH + c + u];
            if (q->size.v[4] > 1)
                gk_store_part(q->part, t.split * q->size.v[3] + t.batch, m, n, q->size, x);
            else
                gk_epilogue(x, t.batch, m, n, q->c, q->bias, q->residual, q->scale, q->y, q->z, q->size, q->sc, q->sr, q->sv, q->sy, q->sz, q->alpha,
                    q->beta, q->act, q->p);
        }
    }
}

/* `at`, `bt`: rows of the operand as it lies in memory are terms. */
GK_FN void gk_product_tile(const gk_product* q, const int at, const int bt, GK_LOCAL_PTR gk_raw16* tiles)
{
    gk_i64 across = (q->size.v[1] + GK_TILE_COLUMNS - 1) / GK_TILE_COLUMNS, down = (q->size.v[0] + GK_TILE_ROWS - 1) / GK_TILE_ROWS, number = gk_bid(0);
    gk_i64 arow = q->sa.v[at ? 1 : 0], brow = q->sb.v[bt ? 1 : 0], k0, terms;
    gk_tile_place t;
    t.n0 = number % across * GK_TILE_COLUMNS; number /= across;
    t.m0 = number % down * GK_TILE_ROWS; number /= down;
    t.split = number % q->size.v[4]; t.batch = number / q->size.v[4];
    k0 = t.split * q->size.v[5];
    terms = q->size.v[2] - k0 < q->size.v[5] ? q->size.v[2] - k0 : q->size.v[5];
    gk_tile_copy left = gk_tile_copy_of(q->a + t.batch * q->sa.v[2] + (at ? k0 * arow + t.m0 : t.m0 * arow + k0), arow, q->size.v[0] - t.m0,
        GK_TILE_ROWS, at);
    gk_tile_copy right = gk_tile_copy_of(q->b + t.batch * q->sb.v[2] + (bt ? k0 * brow + t.n0 : t.n0 * brow + k0), brow, q->size.v[1] - t.n0,
        GK_TILE_COLUMNS, bt);
    float sums[GK_TILE_COLUMNS / 8][4];
    gk_tile_multiply(sums, left, at, right, bt, terms, tiles);
    gk_product_store(q, sums, t, (GK_LOCAL_PTR float*)tiles);
}

#define GK_PRODUCT(at, bt) \
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_GEMM_CHUNKS); \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale); \
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); GK_BIND_OUT(gk_f, part); \
    gk_product q; \
    q.a = a; q.b = b; q.c = c; q.bias = bias; q.residual = residual; q.scale = scale; q.y = y; q.z = z; q.part = part; \
    q.size = size; q.sa = sa; q.sb = sb; q.sc = sc; q.sr = sr; q.sv = sv; q.sy = sy; q.sz = sz; \
    q.alpha = alpha; q.beta = beta; q.act = act; q.p = p; \
    gk_product_tile(&q, at, bt, tiles)

// Units: HALVES x OUTPUTS
GK_KERNEL(gemm_matrix_nn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale), GK_OUT(gk_o, y),
                          GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv), GK_DIMS(sy),
                          GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_PRODUCT(0, 1);
}

GK_KERNEL(gemm_matrix_nt)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale), GK_OUT(gk_o, y),
                          GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv), GK_DIMS(sy),
                          GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_PRODUCT(0, 0);
}

GK_KERNEL(gemm_matrix_tn)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale), GK_OUT(gk_o, y),
                          GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv), GK_DIMS(sy),
                          GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_PRODUCT(1, 1);
}
