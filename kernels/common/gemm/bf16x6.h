/* Products of f32 on matrix cores as six products in bf16 (matrix_bf16x6.c, matrix_bf16x6_128.c); formula, parameters and epilogue: gemm.c. Empty without
 * wgmma (GK_WARP_GROUPS). size = {M, N, K, batches, 1, terms of a block, 16-byte stores}. Both operands consist of rows, or columns, of whole items of 16
 * bytes at multiples of 16 bytes.
 *
 * An f32 number has 24 leading bits and is the sum of three bf16 numbers of eight bits each, its parts: large, middle, small. A product is the sum of the
 * products of parts but for three of the smallest, which together are below 2^-21 of it, 2^-23 on average. Sums are float, those of the large parts apart
 * from the others, so that what is small is not lost beside them. Numbers below 2^-109 lose their bits below 2^-133. Parts of what is not finite are none:
 * a result that is not finite is computed anew, by float multiplications. Deterministic. Reference: Henry, Tang, Heinecke, "Leveraging the bfloat16
 * Artificial Intelligence Datatype For Higher-Precision Computations", 2019.
 *
 * A tile has GK_SIX_SIDE rows and columns, 64 or 128. All threads load a stage of 64 terms of both operands, and store the parts in local memory while the
 * stage before is multiplied. The two warpgroups have 64 rows each, or half of the terms of the same 64 rows.
 */
#define GK_MM_BF16 1
#include "common/prelude/matrix.h"
#include "common/prelude/cluster.h"
#include "common/prelude/ordered.h"
#include "cuda/tensor_map.h"
#include "epilogue.h"

#ifdef GK_WARP_GROUPS
#undef GK_BLOCK
#define GK_BLOCK 256
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_SIX_SIDE == 64 ? 2 : 1)

#define GK_SIX_TERMS 64
/* Warpgroups that share the terms of the same rows. */
#define GK_SIX_SHARERS (GK_SIX_SIDE == 64 ? 2 : 1)
/* Stages after which sums are added up in float, since matrix cores round to zero at each step. Tiles of 64 x 64 have half of eight stages at most. */
#define GK_SIX_SUMMED (GK_SIX_SIDE == 64 ? 8 : 4)
/* Chunks of a part of an operand's stage, and of a stage. */
#define GK_SIX_PART_CHUNKS (GK_SIX_SIDE * GK_SIX_TERMS / 8)
#define GK_SIX_STAGE_CHUNKS (6 * GK_SIX_PART_CHUNKS)
/* From row to row of a tile's sums, and items of the sums of all warpgroups. */
#define GK_SIX_PITCH (GK_SIX_SIDE + 8)
#define GK_SIX_TILE_ITEMS (GK_SIX_SIDE * GK_SIX_SIDE / 4)

/* ---- operands ------------------------------------------------------------------------------------------------------------------------------- */

/* A thread has two items of 16 bytes of a chunk of eight numbers. So that neighbouring threads read neighbouring items, number p of 64 in a line of the
 * tile is number GK_SIX_ORDER(p) in memory; terms in all operands, rows and columns where lines are terms. */
#define GK_SIX_ORDER(p) ((p) % 8 / 4 * 32 + (p) / 8 * 4 + (p) % 4)
#define GK_SIX_PLACE_OF(i) ((i) % 32 / 4 * 8 + (i) / 32 * 4 + (i) % 4)

/* Chunks of a line, and runs of eight numbers of a thread. Lines of a tile, neighbours in memory, have the terms of a row, or (t) the rows of a term. */
#define GK_SIX_LINE(t) ((t) ? GK_SIX_SIDE / 8 : 8)
#define GK_SIX_RUNS (GK_SIX_SIDE / 32)

/* Where the thread's numbers of a stage lie: the first, the steps to the next run and stage, and how many lines and neighbours there are from it on. */
typedef struct { GK_GLOBAL const float* p; gk_i64 jump, next; int lines, width; } gk_source;

GK_FN gk_source gk_source_of(GK_GLOBAL const float* p, gk_i64 step, const int t, int rows, int terms)
{
    gk_source s;
    int line = gk_lid() / GK_SIX_LINE(t), chunk = gk_lid() % GK_SIX_LINE(t), at = chunk / 8 * 64 + chunk % 8 * 4;
    s.p = p + line * step + at;
    s.jump = GK_BLOCK / GK_SIX_LINE(t) * step;
    s.next = t ? GK_SIX_TERMS * step : GK_SIX_TERMS;
    s.lines = (t ? terms : rows) - line;
    s.width = (t ? rows : terms) - at;
    return s;
}

typedef struct { gk_raw16 v[2 * GK_SIX_RUNS]; } gk_runs;

/* Loads the thread's numbers of a stage, zeros where there are none, and goes on to the next stage. */
GK_FN void gk_load_runs(gk_runs* x, gk_source* s, const int t)
{
    GK_UNROLL for (int u = 0; u < GK_SIX_RUNS; u++) {
        int exists = u * (GK_BLOCK / GK_SIX_LINE(t)) < s->lines;
        x->v[2 * u] = gk_load16_here(s->p + u * s->jump, exists && s->width > 0);
        x->v[2 * u + 1] = gk_load16_here(s->p + u * s->jump + 32, exists && s->width > 32);
    }
    s->p += s->next;
    if (t) s->lines -= GK_SIX_TERMS;
    else s->width -= GK_SIX_TERMS;
}

/* The upper halves of two floats, and what is left of one without that. */
GK_FN gk_u32 gk_uppers(gk_u32 a, gk_u32 b) { return __byte_perm(a, b, 0x7632); }
GK_FN gk_u32 gk_rest(gk_u32 x) { return gk_as_u32(gk_as_f32(x) - gk_as_f32(x & 0xffff0000u)); }

/* Stores the parts of the thread's numbers. */
GK_FN void gk_store_parts(GK_LOCAL_PTR gk_raw16* to, const gk_runs* x, const int t)
{
    GK_UNROLL for (int u = 0; u < GK_SIX_RUNS; u++) {
        int line = gk_lid() / GK_SIX_LINE(t) + u * (GK_BLOCK / GK_SIX_LINE(t)), chunk = gk_lid() % GK_SIX_LINE(t);
        int at = t ? gk_chunk_at(GK_SIX_PLACE_OF(line), chunk, GK_SIX_TERMS) : gk_chunk_at(line, chunk, GK_SIX_SIDE);
        gk_raw16 a = x->v[2 * u], b = x->v[2 * u + 1];
        GK_UNROLL for (int part = 0; part < 3; part++) {
            to[part * GK_SIX_PART_CHUNKS + at] = gk_make16(gk_uppers(a.x, a.y), gk_uppers(a.z, a.w), gk_uppers(b.x, b.y), gk_uppers(b.z, b.w));
            a = gk_make16(gk_rest(a.x), gk_rest(a.y), gk_rest(a.z), gk_rest(a.w));
            b = gk_make16(gk_rest(b.x), gk_rest(b.y), gk_rest(b.z), gk_rest(b.w));
        }
    }
}

/* ---- sums ----------------------------------------------------------------------------------------------------------------------------------- */

/* Sums of the products of large parts and of the other products, of the newest stages, and of both in the stages before. */
typedef struct {
    float large[GK_SIX_SIDE / 8][4], small[GK_SIX_SIDE / 8][4];
#if GK_SIX_SIDE == 128
    float before[GK_SIX_SIDE / 8][4];
#endif
} gk_sums;

/* Begins the products of stage number n; at, bt: lines of A, B are terms. */
GK_FN void gk_multiply_stage(gk_sums* s, GK_LOCAL_PTR const gk_raw16* stage, int n, const int at, const int bt)
{
    gk_u32 group = (gk_u32)gk_lid() / 128u, a = gk_local_address(stage), b = a + 3u * GK_SIX_PART_CHUNKS * 16u;
    /* The group's rows or terms: 64 lines or a panel, or two of the four steps of 16 terms. */
    gk_u32 left = gk_uniform(gk_wgmma_tile(a, at ? GK_SIX_TERMS : GK_SIX_SIDE) + group * (GK_SIX_SHARERS == 1 ? 512u : at ? 256u : 4u));
    gk_u32 right = gk_uniform(gk_wgmma_tile(b, bt ? GK_SIX_TERMS : GK_SIX_SIDE) + group * (GK_SIX_SHARERS == 1 ? 0u : bt ? 256u : 4u));
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < GK_SIX_TERMS / 16 / GK_SIX_SHARERS; k++) {
        gk_u32 l = gk_wgmma_part(left, GK_SIX_SIDE, at, k), r = gk_wgmma_part(right, GK_SIX_SIDE, bt, k);
        gk_wgmma_s(s->large, GK_SIX_SIDE, l, at, r, bt, k == 0 && n % GK_SIX_SUMMED == 0);
        gk_wgmma_s(s->small, GK_SIX_SIDE, l, at, r + GK_SIX_PART_CHUNKS, bt, k == 0 && n % GK_SIX_SUMMED == 0);
        gk_wgmma_s(s->small, GK_SIX_SIDE, l + GK_SIX_PART_CHUNKS, at, r, bt, 0);
        gk_wgmma_s(s->small, GK_SIX_SIDE, l + GK_SIX_PART_CHUNKS, at, r + GK_SIX_PART_CHUNKS, bt, 0);
        gk_wgmma_s(s->small, GK_SIX_SIDE, l, at, r + 2 * GK_SIX_PART_CHUNKS, bt, 0);
        gk_wgmma_s(s->small, GK_SIX_SIDE, l + 2 * GK_SIX_PART_CHUNKS, at, r, bt, 0);
    }
    GK_WGMMA_END();
}

/* Adds up both sums, in s->large. */
GK_FN void gk_sum_up(gk_sums* s)
{
    gk_mm_ready(s->large, GK_SIX_SIDE);
    gk_mm_ready(s->small, GK_SIX_SIDE);
    GK_UNROLL for (int i = 0; i < GK_SIX_SIDE / 2; i++) {
        float sum = s->large[i / 4][i % 4] + s->small[i / 4][i % 4];
#if GK_SIX_SIDE == 128
        sum = s->before[i / 4][i % 4] += sum;
#endif
        s->large[i / 4][i % 4] = sum;
    }
}

/* The thread's sums over `terms` terms, in s->large; zeros where there are no terms. */
GK_FN void gk_tile_sums(gk_sums* s, gk_source a, gk_source b, const int at, const int bt, int terms, GK_LOCAL_PTR gk_raw16* stages)
{
    gk_runs x;
    gk_load_runs(&x, &a, at);
#if GK_SIX_SIDE == 64
    gk_runs y;
    gk_load_runs(&y, &b, bt);
#else
    gk_mm_clear(s->before, GK_SIX_SIDE);
#endif
    int n = 0;
    GK_ROLLED do {
        GK_LOCAL_PTR gk_raw16* stage = stages + n % 2 * GK_SIX_STAGE_CHUNKS;
        gk_store_parts(stage, &x, at);
#if GK_SIX_SIDE == 64
        gk_load_runs(&x, &a, at);
        gk_store_parts(stage + 3 * GK_SIX_PART_CHUNKS, &y, bt);
        gk_load_runs(&y, &b, bt);
        GK_MM_WAIT(0);
#else
        /* Registers have room for one operand. */
        gk_load_runs(&x, &b, bt);
        gk_store_parts(stage + 3 * GK_SIX_PART_CHUNKS, &x, bt);
        gk_load_runs(&x, &a, at);
        GK_MM_WAIT(0);
        if (n % GK_SIX_SUMMED == 0 && n > 0) gk_sum_up(s);
#endif
        GK_LOCAL_WRITTEN();
        GK_BARRIER();
        gk_multiply_stage(s, stage, n, at, bt);
    } while (++n * GK_SIX_TERMS < terms);
    GK_MM_WAIT(0);
    gk_sum_up(s);
}

/* ---- results -------------------------------------------------------------------------------------------------------------------------------- */

/* Puts the sums in rows and columns as in memory; warpgroups that share terms have an array each. */
GK_FN void gk_keep_sums(GK_LOCAL_PTR gk_raw16* sums, float (*c)[4], const int at, const int bt)
{
    int warp = gk_lid() / 32, array = warp / 4 / (GK_SIX_SIDE / 64), first = warp % (GK_SIX_SIDE / 16) * 16 + gk_lid() % 32 / 4;
    GK_LOCAL_PTR float* to = (GK_LOCAL_PTR float*)sums + array * GK_SIX_SIDE * GK_SIX_PITCH;
    GK_UNROLL for (int i = 0; i < GK_SIX_SIDE / 4; i++) {
        int row = first + i % 2 * 8, column = i / 2 * 8 + gk_lid() % 4 * 2;
        if (at) row = row / 64 * 64 + GK_SIX_ORDER(row % 64);
        if (bt) column = column / 64 * 64 + GK_SIX_ORDER(column % 64);
        *(GK_LOCAL_PTR float2*)(to + row * GK_SIX_PITCH + column) = make_float2(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
    }
}

GK_FN gk_four gk_add_four(gk_four x, gk_four y)
{
    GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] += y.v[u];
    return x;
}

/* Four sums, number i of the tile. */
GK_FN gk_four gk_kept_sums(GK_LOCAL_PTR const gk_raw16* sums, int i)
{
    int from = i / (GK_SIX_SIDE / 4) * GK_SIX_PITCH + i % (GK_SIX_SIDE / 4) * 4;
    gk_four x = gk_slot_get4(sums, from);
    return GK_SIX_SHARERS == 2 ? gk_add_four(x, gk_slot_get4(sums, from + GK_SIX_SIDE * GK_SIX_PITCH)) : x;
}

/* Gives each of the cluster's `share` blocks its part of the sums of this block. */
GK_FN void gk_give_sums(GK_LOCAL_PTR gk_raw16* given, GK_LOCAL_PTR const gk_raw16* sums, int block, const int share)
{
    const int part = GK_SIX_TILE_ITEMS / share;
    GK_UNROLL for (int i = gk_lid(); i < GK_SIX_TILE_ITEMS; i += GK_BLOCK) {
        gk_four x = gk_kept_sums(sums, i);
        gk_cluster_put16(given + block * part + i % part, gk_make16(gk_as_u32(x.v[0]), gk_as_u32(x.v[1]), gk_as_u32(x.v[2]), gk_as_u32(x.v[3])), i / part);
    }
}

/* Item number i of those that the blocks of the cluster gave this one. */
GK_FN gk_four gk_given_sums(GK_LOCAL_PTR const gk_raw16* given, int i, const int share)
{
    gk_four x = gk_slot_get4(given, 4 * i);
    GK_UNROLL for (int block = 1; block < share; block++) x = gk_add_four(x, gk_slot_get4(given, 4 * (block * (GK_SIX_TILE_ITEMS / share) + i)));
    return x;
}

/* A row and `have` columns of A B. */
GK_FN_CALL gk_four gk_recompute(GK_GLOBAL const float* a, gk_i64 a_step, GK_GLOBAL const float* b, gk_i64 b_step, gk_i64 column, int have, int k)
{
    gk_four x;
    GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = 0.0f;
    GK_ROLLED for (int i = 0; i < k; i++) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            if (u < have) x.v[u] += a[i * a_step] * b[i * b_step + u * column];
    }
    return x;
}
GK_FN int gk_are_finite(gk_four x) { return (x.v[0] - x.v[0]) + (x.v[1] - x.v[1]) + (x.v[2] - x.v[2]) + (x.v[3] - x.v[3]) == 0.0f; }

/* Row and column of the tile of this number: by bands of eight rows of tiles, which a cache holds. */
GK_FN void gk_tile_at(int tile, int down, int across, int* row, int* column)
{
    int band = tile / (8 * across) * 8, rows = down - band < 8 ? down - band : 8;
    tile -= band * across;
    *row = band + tile % rows;
    *column = tile / rows;
}

GK_FN void gk_bf16x6_tile(GK_GLOBAL const gk_t* a, GK_GLOBAL const gk_t* b, GK_GLOBAL const gk_o* c, GK_GLOBAL const gk_t* bias,
                          GK_GLOBAL const gk_o* residual, GK_GLOBAL const gk_t* scale, GK_GLOBAL gk_o* y, GK_GLOBAL gk_o* z, gk_dims size, gk_dims sa,
                          gk_dims sb, gk_dims sc, gk_dims sr, gk_dims sv, gk_dims sy, gk_dims sz, gk_f alpha, gk_f beta, int act, gk_f p, const int at,
                          const int bt, const int share, GK_LOCAL_PTR gk_raw16* local)
{
    const int part = GK_SIX_TILE_ITEMS / share;
    int m = (int)size.v[0], n = (int)size.v[1], k = (int)size.v[2], per = (int)size.v[5], block = gk_bid(0) % share, tile = gk_bid(0) / share;
    int across = (n + GK_SIX_SIDE - 1) / GK_SIX_SIDE, down = (m + GK_SIX_SIDE - 1) / GK_SIX_SIDE, batch = tile / across / down, row, column;
    gk_tile_at(tile - batch * across * down, down, across, &row, &column);
    int m0 = row * GK_SIX_SIDE, n0 = column * GK_SIX_SIDE, k0 = block * per, k1 = k0 + per < k ? k0 + per : k;
    gk_i64 as = at ? sa.v[1] : sa.v[0], bs = bt ? sb.v[1] : sb.v[0];
    gk_sums s;
    a += batch * sa.v[2]; b += batch * sb.v[2];
    if (share > 1) GK_CLUSTER_ARRIVE();
    gk_source left = gk_source_of(a + (at ? k0 * as + m0 : m0 * as + k0), as, at, m - m0, k1 - k0);
    gk_source right = gk_source_of(b + (bt ? k0 * bs + n0 : n0 * bs + k0), bs, bt, n - n0, k1 - k0);
    gk_tile_sums(&s, left, right, at, bt, k1 - k0, local);
    GK_BARRIER();
    gk_keep_sums(local, s.large, at, bt);
    GK_BARRIER();
    GK_LOCAL_PTR gk_raw16* given = local + 2 * GK_SIX_STAGE_CHUNKS;
    if (share > 1) {
        GK_CLUSTER_WAIT(); /* all blocks have begun: their memory can be written */
        gk_give_sums(given, local, block, share);
        GK_CLUSTER_BARRIER();
    }
    GK_ROLLED for (int i = gk_lid(); i < part; i += GK_BLOCK) {
        int e = block * part + i, r = m0 + e / (GK_SIX_SIDE / 4), q = n0 + e % (GK_SIX_SIDE / 4) * 4;
        gk_four x = share > 1 ? gk_given_sums(given, i, share) : gk_kept_sums(local, e);
        if (r < m && q < n && !gk_are_finite(x)) x = gk_recompute(a + r * sa.v[0], sa.v[1], b + q * sb.v[0], sb.v[1], sb.v[0], n - q < 4 ? n - q : 4, k);
        gk_epilogue(x, batch, r, q, c, bias, residual, scale, y, z, size, sc, sr, sv, sy, sz, alpha, beta, act, p);
    }
}

/* Local memory: two stages, which the sums take later, and what the blocks of a cluster give. */
#define GK_BF16X6(at, bt, share) \
    GK_LOCAL_DYNAMIC(gk_raw16, local, 2 * GK_SIX_STAGE_CHUNKS + ((share) > 1 ? GK_SIX_TILE_ITEMS : 0)); \
    GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(gk_o, c); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_o, residual); GK_BIND_IN(gk_t, scale); \
    GK_BIND_OUT(gk_o, y); GK_BIND_OUT(gk_o, z); \
    gk_bf16x6_tile(a, b, c, bias, residual, scale, y, z, size, sa, sb, sc, sr, sv, sy, sz, alpha, beta, act, p, at, bt, share, local)
#endif
