/* Matrix products with fused epilogues. GK_OP is the type of the outputs and of C: gk_out_same (that of A) or gk_out_f32.
 *
 *   Y[b] = act(scale * alpha * A[b] B[b] + beta * C[b] + bias + residual[b]),  Z[b] = the same before act      A [M, K], B [K, N], Y [M, N]
 *
 * All transposes are strides. Dims parameters: size = {M, N, K, batches, splits, products per split, 16-byte stores}; sa = {row, k, batch stride,
 * 1 if vectors run along k else along the rows, 16-byte loads}; sb likewise with columns for rows; sc, sr, sy, sz = {row, column, batch stride};
 * sv = {row, column stride of bias, row, column stride of scale}, one of each pair being 0. Pointers that are not needed are null.
 * gemm_tile128, gemm_tile64, gemm_skinny: one block per tile of 128 x 128, 64 x 64, 16 x 256, all along grid axis 0: columns fastest, then rows,
 * splits, batches. With more than one split, the partial sums go to `part` [splits, batches, M, N], and gemm_finish adds them in order and applies
 * the epilogue; with none, it applies it to 0.
 * Products are accumulated in gk_f in the order of k. Deterministic. Reference: torch.addmm, torch.baddbmm, F.linear followed by F.<activation>.
 */
#include "epilogue.h"

/* The tiles below come with the epilogue. */
#define GK_GEMM_EPILOGUE

#if GK_DTYPE != GK_F64
#define GK_TILE(x) gk_128_##x
#define GK_TILE_BM 128
#define GK_TILE_BN 128
#define GK_TILE_BK (2 * GK_W)
#define GK_TILE_TM 8
#define GK_TILE_TN 8
#include "tile.h"
#endif

#define GK_TILE(x) gk_64_##x
#define GK_TILE_BM 64
#define GK_TILE_BN 64
#define GK_TILE_BK (GK_W > 4 ? 32 : 16)
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "tile.h"

#define GK_TILE(x) gk_16_##x
#define GK_TILE_BM 16
#define GK_TILE_BN 256
/* In f32 64 bytes of a row at a time, where rows run along k. */
#define GK_TILE_BK (GK_DTYPE == GK_F64 ? 8 : 16)
#define GK_TILE_TM 4
#define GK_TILE_TN 4
#include "tile.h"

#if GK_DTYPE != GK_F64
// Units: FLOATS x OUTPUTS
GK_KERNEL(gemm_tile128)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                        GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr),
                        GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(32 * GK_BLOCK)];
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale);
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); GK_BIND_OUT(gk_f, part);
    gk_128_compute(a, b, c, bias, residual, scale, y, z, part, size, sa, sb, sc, sr, sv, sy, sz, alpha, beta, act, p, tile, 8);
}
#endif

/* 16-bit units: a third block at a time is worth more than the registers that the compiler would take (measured). */
#if GK_W == 8
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 3
#endif
// Units: FLOATS64 x OUTPUTS
GK_KERNEL(gemm_tile64)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                       GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr),
                       GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 64) * (GK_W > 4 ? 32 : 16))];
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale);
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); GK_BIND_OUT(gk_f, part);
    gk_64_compute(a, b, c, bias, residual, scale, y, z, part, size, sa, sb, sc, sr, sv, sy, sz, alpha, beta, act, p, tile, 4);
}

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 0
GK_KERNEL(gemm_skinny)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale),
                       GK_OUT(gk_o, y), GK_OUT(gk_o, z), GK_OUT(gk_f, part), GK_DIMS(size), GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sc), GK_DIMS(sr),
                       GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta, int act, gk_f p)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (16 + 256) * (GK_DTYPE == GK_F64 ? 8 : 16))];
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale);
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); GK_BIND_OUT(gk_f, part);
    gk_16_compute(a, b, c, bias, residual, scale, y, z, part, size, sa, sb, sc, sr, sv, sy, sz, alpha, beta, act, p, tile, 4);
}

/* Y and Z from the sum over `splits` of part [splits, batches, M, N], which may be the memory of Y or Z. v[5] neighbouring threads, a power of two,
 * take the splits of a group of four columns in turn. Launch: blocks loop over GK_BLOCK / v[5] groups. */
GK_KERNEL(gemm_finish)(GK_IN(gk_f, part), GK_IN(gk_o, c), GK_IN(gk_t, bias), GK_IN(gk_o, residual), GK_IN(gk_t, scale), GK_OUT(gk_o, y),
                       GK_OUT(gk_o, z), GK_DIMS(size), GK_DIMS(sc), GK_DIMS(sr), GK_DIMS(sv), GK_DIMS(sy), GK_DIMS(sz), gk_f alpha, gk_f beta,
                       int act, gk_f p)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale);
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lanes = (int)size.v[5], per = GK_BLOCK / lanes, lane = gk_lid() & (lanes - 1);
    gk_i64 groups = (size.v[1] + 3) / 4, rows = size.v[3] * size.v[0];
    for (gk_i64 first = (gk_i64)gk_bid(0) * per; first < rows * groups; first += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 i = first + gk_lid() / lanes, r = i / groups, n = (i - r * groups) * 4, batch = r / size.v[0], m = r - batch * size.v[0];
        int live = i < rows * groups;
        gk_four x;
        GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = GK_R(0.0);
        for (gk_i64 s = lane; live && s < size.v[4]; s += lanes) {
            GK_GLOBAL const gk_f* q = part + (s * rows + r) * size.v[1] + n;
#if GK_DTYPE != GK_F64
            if (size.v[6] & 4) {
                gk_raw16 w = gk_load16((GK_GLOBAL const void*)q);
                x.v[0] += gk_as_f32(w.x); x.v[1] += gk_as_f32(w.y); x.v[2] += gk_as_f32(w.z); x.v[3] += gk_as_f32(w.w);
                continue;
            }
#endif
            GK_UNROLL for (int u = 0; u < 4; u++)
                if (n + u < size.v[1]) x.v[u] += q[u];
        }
        if (lanes > 1)
            GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = gk_group_sum(x.v[u], tmp, lanes);
        if (lane == 0 && live) gk_epilogue(x, batch, m, n, c, bias, residual, scale, y, z, size, sc, sr, sv, sy, sz, alpha, beta, act, p);
    }
}
