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
#include "common/prelude/tile.h"

#define gk_out_same_f32 0
#define gk_out_f32_f32 1
#define GK_HALVES (GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16)
#if GK_CAT(GK_OP, _f32)
typedef float gk_o;
#define gk_load_o(p, i) ((gk_f)(p)[i])
#define gk_store_o(p, i, v) ((p)[i] = (float)(v))
#else
typedef gk_t gk_o;
#define gk_load_o(p, i) gk_load(p, i)
#define gk_store_o(p, i, v) gk_store(p, i, v)
#endif
#define GK_FLOAT_OUT (GK_DTYPE == GK_F32 || GK_CAT(GK_OP, _f32))

/* An operand: strides of its rows (columns for B) and of k; `along`: vectors run along k. */
typedef struct { gk_i64 step, kstep; int along, wide; } gk_side;

GK_FN gk_side gk_side_of(gk_dims s)
{
    gk_side r;
    r.step = s.v[0]; r.kstep = s.v[1]; r.along = (int)s.v[3]; r.wide = (int)s.v[4];
    return r;
}

/* Place of vector number v within a step of `rows` x `ks` elements. */
GK_FN int gk_row_of(gk_side s, int v, int rows, int ks) { return s.along ? v / (ks / GK_W) : v % (rows / GK_W) * GK_W; }
GK_FN int gk_k_of(gk_side s, int v, int rows, int ks) { return s.along ? v % (ks / GK_W) * GK_W : v / (rows / GK_W); }

/* The thread's vector number i of an operand with `limit` rows, at (r0, k0): its place in memory, its k within the step, and how many of its
 * elements (of its row, when it runs along k) exist. */
typedef struct { GK_GLOBAL const gk_t* p; int k, have; } gk_lane;

GK_FN gk_lane gk_lane_of(GK_GLOBAL const gk_t* p, gk_side s, gk_i64 limit, gk_i64 r0, gk_i64 k0, int rows, int ks, int i)
{
    gk_lane l;
    int v = gk_lid() + i * GK_BLOCK;
    gk_i64 r = r0 + gk_row_of(s, v, rows, ks);
    l.k = gk_k_of(s, v, rows, ks);
    l.p = p + r * s.step + (k0 + l.k) * s.kstep;
    l.have = v * GK_W >= rows * ks || r >= limit ? 0 : limit - r < GK_W ? (int)(limit - r) : GK_W;
    return l;
}

/* Its elements, 0 for those that do not exist; `left` values of k are left, counted from the step's first. */
GK_FN gk_vec gk_fetch(gk_lane l, gk_side s, int left)
{
    gk_vec x;
    int have = s.along ? (l.have ? left - l.k : 0) : (l.k < left ? l.have : 0);
    gk_i64 step = s.along ? s.kstep : s.step;
    if (s.wide && have >= GK_W) return gk_loadv(l.p, 0);
    GK_UNROLL for (int u = 0; u < GK_W; u++) x.v[u] = u < have ? gk_load(l.p, u * step) : GK_R(0.0);
    return x;
}

GK_FN void gk_place(GK_LOCAL_PTR gk_slot* t, gk_side s, gk_vec x, int rows, int ks, int i)
{
    int v = gk_lid() + i * GK_BLOCK, at = gk_k_of(s, v, rows, ks) * rows + gk_row_of(s, v, rows, ks);
    if (v * GK_W >= rows * ks) return;
#if GK_W >= 4
    if (!s.along) {
        GK_UNROLL for (int u = 0; u < GK_W; u += 4) gk_slot_put4(t, at + u, x.v[u], x.v[u + 1], x.v[u + 2], x.v[u + 3]);
        return;
    }
#endif
    GK_UNROLL for (int u = 0; u < GK_W; u++) gk_slot_put(t, at + (s.along ? u * rows : u), x.v[u]);
}

/* ---- epilogue -------------------------------------------------------------------------------------------------------------- */

/* Four neighbours of a row, of which `have` exist. */
GK_FN void gk_store_four(GK_GLOBAL gk_o* y, gk_i64 at, gk_i64 step, int have, int wide, gk_four x)
{
#if GK_FLOAT_OUT
    if (wide && have >= 4) {
        gk_store16((GK_GLOBAL void*)(y + at), gk_make16(gk_as_u32((float)x.v[0]), gk_as_u32((float)x.v[1]), gk_as_u32((float)x.v[2]),
            gk_as_u32((float)x.v[3])));
        return;
    }
#elif GK_HALVES
    if (wide && have >= 4) {
        GK_GLOBAL gk_u32* w = (GK_GLOBAL gk_u32*)(y + at);
        w[0] = GK_PACK2(x.v[0], x.v[1]);
        w[1] = GK_PACK2(x.v[2], x.v[3]);
        return;
    }
#endif
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (u < have) gk_store_o(y, at + u * step, x.v[u]);
}

/* Applies the epilogue to columns n ... n + 3 of row m of batch b. */
GK_FN void gk_epilogue(gk_four x, gk_i64 b, gk_i64 m, gk_i64 n, GK_GLOBAL const gk_o* c, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_o* residual,
                       GK_GLOBAL const gk_t* scale, GK_GLOBAL gk_o* y, GK_GLOBAL gk_o* z, gk_dims size, gk_dims sc, gk_dims sr, gk_dims sv,
                       gk_dims sy, gk_dims sz, gk_f alpha, gk_f beta, int act, gk_f p)
{
    int have = size.v[1] - n >= 4 ? 4 : (int)(size.v[1] - n);
    if (m >= size.v[0] || have <= 0) return;
    GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] *= alpha;
    if (scale) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] *= gk_load(scale, m * sv.v[2] + (n + u) * sv.v[3]);
    }
    if (c) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += beta * gk_load_o(c, b * sc.v[2] + m * sc.v[0] + (n + u) * sc.v[1]);
    }
    if (bias) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += gk_load(bias, m * sv.v[0] + (n + u) * sv.v[1]);
    }
    if (residual) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += gk_load_o(residual, b * sr.v[2] + m * sr.v[0] + (n + u) * sr.v[1]);
    }
    if (z) gk_store_four(z, b * sz.v[2] + m * sz.v[0] + n * sz.v[1], sz.v[1], have, (int)size.v[6] & 2, x);
    x = gk_activate(act, x, p);
    gk_store_four(y, b * sy.v[2] + m * sy.v[0] + n * sy.v[1], sy.v[1], have, (int)size.v[6] & 1, x);
}

/* Partial sums in row-major order. */
GK_FN void gk_store_part(GK_GLOBAL gk_f* part, gk_i64 at, gk_i64 m, gk_i64 n, gk_dims size, gk_four x)
{
    if (m >= size.v[0]) return;
    part += (at * size.v[0] + m) * size.v[1];
    GK_UNROLL for (int u = 0; u < 4; u++)
        if (n + u < size.v[1]) part[n + u] = x.v[u];
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

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
#define GK_TILE_BK 8
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
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (16 + 256) * 8)];
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

/* Y[r] = alpha A[r] B[g] for the rows r of group g, offsets[g] <= r < offsets[g + 1]; 0 for rows of no group.
 * size = {rows, N, K, groups, -, -, 16-byte stores}; sb's batch stride leads from group to group. An offset that is negative, beyond the rows or
 * below its predecessor is reported and taken as the nearest that is valid.
 * Launch: axis 0 = tiles of 64 x 64, columns fastest; as many row tiles as any partition into groups can need. The rows before the first and
 * after the last group are groups without products. */
GK_KERNEL(gemm_ragged)(GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, offsets), GK_OUT(gk_o, y), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(sa),
                       GK_DIMS(sb), GK_DIMS(sy), gk_f alpha, int code)
{
    GK_LOCAL gk_slot tile[GK_SLOTS(2 * (64 + 64) * (GK_W > 4 ? 32 : 16))];
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, offsets); GK_BIND_OUT(gk_o, y); GK_BIND_OUT(int, err);
    int tiles = (int)((size.v[1] + 63) / 64), lid = gk_lid();
    gk_i64 total = size.v[0], groups = size.v[3], n0 = (gk_i64)(gk_bid(0) % tiles) * 64;
    gk_i64 wanted = gk_bid(0) / tiles, before = 0, lo = 0, m0 = 0, end = 0, group = -1;
    for (gk_i64 g = -1; g <= groups; g++) {
        gk_i64 hi = g < groups ? offsets[g + 1] : total;
        if (hi < lo || hi > total) {
            if (gk_bid(0) == 0 && lid == 0) gk_report(err, code);
            hi = hi < lo ? lo : total;
        }
        gk_i64 count = (hi - lo + 63) / 64;
        if (wanted >= before && wanted < before + count) {
            m0 = lo + (wanted - before) * 64;
            end = hi;
            group = g < groups ? g : -1;
        }
        before += count;
        lo = hi;
    }
    gk_f acc[4][4];
    gk_i64 row = m0 + gk_64_row(), col = n0 + gk_64_col();
    gk_side side = gk_side_of(sa);
    /* Tiles of a group start at any row, so vectors along the rows need not be aligned. */
    if (!side.along && m0 % GK_W != 0) side.wide = 0;
    gk_64_product(a, b + (group < 0 ? 0 : group) * sb.v[2], end, size.v[1], m0, n0, 0, group < 0 ? 0 : size.v[2], side, gk_side_of(sb), tile, acc);
    gk_i64 have = size.v[1] - col;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_four x;
        GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = alpha * acc[i][u];
        if (row + i < end && have > 0)
            gk_store_four(y, (row + i) * sy.v[0] + col * sy.v[1], sy.v[1], have < 4 ? (int)have : 4, (int)size.v[6] & 1, x);
    }
}
