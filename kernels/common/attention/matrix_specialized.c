/* attention/matrix.c, warp-specialised, for f16 and bf16 (FlashAttention-3: Shah et al., 2024, arXiv 2407.08608). Where the dialect has no
 * groups of warps (GK_WARP_GROUPS, prelude/matrix_wgmma.h), the file is empty.
 *
 * A block has three groups of four warps: two multiply, for 64 queries each, and take turns at it, so that the softmax of one passes under the products
 * of the other; the third copies tiles of queries, keys and values to local memory, as far ahead as there is room. Without rules of the scores but a
 * positive factor and a window (gk_head64, gk_head128). A block takes tiles of queries; under a causal mask pairs of them, one from the end and one from
 * the beginning of a head, which together have the same work everywhere. Launch: axis 0 as many blocks as run at a time, or fewer; GK_BLOCK threads.
 * Sums, rounding and arguments as in attention/matrix.c, but tiles of 128 keys. Deterministic.
 */
#include "matrix_tile.h"

#ifdef GK_WARP_GROUPS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#undef GK_BLOCK
#define GK_BLOCK 384

#define GK_TILE_QUERIES 128
#define GK_TILE_KEYS 128
/* Threads that multiply, and that copy. */
#define GK_CONSUMERS 256
#define GK_PRODUCERS 128
/* Bytes of a tile, of queries, keys or values; of keys and of values there are two each. */
#define GK_TILE_BYTES (128 * GK_HEAD_WIDTH * 2)
#define GK_TILE_CHUNKS (GK_TILE_BYTES / 16)

typedef struct {
    gk_dims size, sq, sm, sv, sl;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_specialized_args;

/* A tile of queries: its head and the head of its keys, first query and key, and tiles of keys that it sees. */
typedef struct {
    gk_span s;
    gk_rule rule;
    int head, kv, i0, from, steps;
} gk_query_tile;

/* Whether tiles go in pairs: under a causal mask without a window. */
#define GK_IN_PAIRS(args) ((args).right < 1 << 30 && (args).left >= 1 << 30)

/* Number n of the call's tiles or pairs, and its second tile. */
GK_FN gk_query_tile gk_tile_of_pair(const gk_attention_specialized_args* args, GK_GLOBAL const int* lengths, GK_GLOBAL const int* cu_q,
                                    GK_GLOBAL const int* cu_k, GK_GLOBAL int* err, int code, int n, int second)
{
    gk_query_tile t;
    int heads = (int)args->size.v[1], paired = GK_IN_PAIRS(*args), each = paired ? (args->tiles + 1) / 2 : args->tiles, p = n % each;
    t.head = n / each % heads;
    t.kv = t.head / (heads / (int)args->size.v[2]);
    t.s = gk_span_of(n / each / heads, second || !paired ? p : args->tiles - 1 - p, GK_TILE_QUERIES, 0, lengths, cu_q, cu_k, args->size, err, code);
    t.rule = gk_rule_of(t.s, t.head, 0, 0, args->size, args->sm, args->scale, args->cap, args->left, args->right, args->bottom, 0, 0, 0, 0, 1.0f, 1.0f);
    t.i0 = (int)gk_uniform((gk_u32)(t.s.tile * GK_TILE_QUERIES));
    t.from = (int)gk_uniform((gk_u32)gk_first_key(&t.rule, t.i0));
    int keys = t.i0 < t.s.lq ? gk_end_key(&t.rule, t.i0, GK_TILE_QUERIES) - t.from : 0;
    t.steps = (int)gk_uniform((gk_u32)(keys > 0 ? (keys + GK_TILE_KEYS - 1) / GK_TILE_KEYS : 0));
    return t;
}
/* This block's share of `count` tiles or pairs; a tile in the middle is alone. */
#define GK_EACH_TILE(n, second, count) \
    for (int n = gk_bid(0), second = 0; n < count; \
         second = GK_IN_PAIRS(args) && !second && n % ((args.tiles + 1) / 2) * 2 + 1 != args.tiles, n += second ? 0 : gk_nblocks(0))

/* Places in local memory: two tiles of keys and of values, which are full or empty, and one of queries. */
typedef struct { gk_u32 queries, keys, values, keys_full, keys_empty, values_full, values_empty, queries_full, queries_empty; } gk_places;

GK_FN gk_places gk_places_of(GK_LOCAL_PTR gk_raw16* tiles, GK_LOCAL_PTR gk_u64* gates)
{
    gk_places l;
    l.queries = gk_local_address(tiles);
    l.keys = l.queries + GK_TILE_BYTES;
    l.values = l.keys + 2 * GK_TILE_BYTES;
    l.keys_full = gk_local_address(gates);
    l.keys_empty = l.keys_full + 16;
    l.values_full = l.keys_full + 32;
    l.values_empty = l.keys_full + 48;
    l.queries_full = l.keys_full + 64;
    l.queries_empty = l.keys_full + 72;
    return l;
}

/* ---- the group that copies -------------------------------------------------------------------------------------------------------- */

/* Queues the copy of 128 rows of which `rows` exist, and of their chunks those below `width` numbers; zeros stand for the others. */
GK_FN void gk_bring(GK_GLOBAL const gk_t* p, gk_i64 step, int rows, int width, gk_u32 tile)
{
    const int apart = GK_PRODUCERS / GK_HEAD_CHUNKS; /* a multiple of 8: all rows of a thread have their chunk in the same place */
    int t = gk_lid() % GK_PRODUCERS, c = t % GK_HEAD_CHUNKS, r = t / GK_HEAD_CHUNKS;
    GK_GLOBAL const gk_t* from = p + r * step + c * GK_PER_CHUNK;
    tile += (gk_u32)gk_chunk_at(r, c, 128) * 16u;
    if (rows >= 128 && width == GK_HEAD_WIDTH) {
        GK_UNROLL for (int i = 0; i < 128 / apart; i++, from += step * apart) gk_copy16_whole(tile + (gk_u32)(i * apart * 128), from);
    } else {
        if (c * GK_PER_CHUNK >= width) rows = 0;
        GK_ROLLED for (int i = 0; i < 128 / apart; i++, from += step * apart, tile += apart * 128) {
            int exists = r + i * apart < rows;
            gk_copy16_to(tile, exists ? from : p, exists);
        }
    }
    GK_COPY_COMMIT();
}

/* A tile is known to be there when the next one is on its way: `*last` is its gate. */
GK_FN void gk_brought(gk_u32* last, gk_u32 gate)
{
    if (*last) {
        GK_COPY_WAIT(1);
        gk_gate_arrive(*last);
    }
    *last = gate;
}

/* Keys and values of a tile of queries, of which `n` came before: values follow the next keys. */
GK_FN void gk_bring_steps(const gk_places* l, int steps, gk_u32 n, gk_u32* last, GK_GLOBAL const gk_t* k, gk_i64 kstep, int depth,
                          GK_GLOBAL const gk_t* v, gk_i64 vstep, int width, int keys)
{
    GK_ROLLED for (int m = 0; m <= steps; m++) {
        int at = m * GK_TILE_KEYS;
        if (m < steps) {
            gk_u32 slot = (n + (gk_u32)m) % 2u;
            gk_gate_pass(l->keys_empty + 8u * slot, (n + (gk_u32)m) / 2u + 1u);
            gk_bring(k + at * kstep, kstep, keys - at, depth, l->keys + slot * GK_TILE_BYTES);
            gk_brought(last, l->keys_full + 8u * slot);
        }
        if (m > 0) {
            gk_u32 before = n + (gk_u32)m - 1u, slot = before % 2u;
            gk_gate_pass(l->values_empty + 8u * slot, before / 2u + 1u);
            gk_bring(v + (at - GK_TILE_KEYS) * vstep, vstep, keys - at + GK_TILE_KEYS, width, l->values + slot * GK_TILE_BYTES);
            gk_brought(last, l->values_full + 8u * slot);
        }
    }
}

/* ---- the groups that multiply ----------------------------------------------------------------------------------------------------- */

/* Hides keys that the window hides, of the warp's queries i0 ... and keys j0 ... */
GK_FN void gk_hide(const gk_rule* r, int i0, int j0, float x[GK_TILE_KEYS / 8][4])
{
    GK_UNROLL for (int h = 0; h < 2; h++) {
        int i = i0 + GK_FRAG_ROW(2 * h), low = i + r->low > 0 ? i + r->low : 0, end = i + r->high < r->keys ? i + r->high + 1 : r->keys;
        gk_u32 seen = i < r->rows && end > low ? (gk_u32)(end - low) : 0u;
        GK_UNROLL for (int n = 0; n < GK_TILE_KEYS / 4; n++) {
            int j = j0 - low + n / 2 * 8 + GK_FRAG_COL(n % 2);
            x[n / 2][2 * h + n % 2] = (gk_u32)j < seen ? x[n / 2][2 * h + n % 2] : -GK_INF;
        }
    }
}

/* gk_matrix_softmax of attention/matrix.c, with the two rows of a thread side by side. */
GK_FN void gk_softmax_rows(float x[GK_TILE_KEYS / 8][4], float factor, float top[2], float sum[2], float shrink[2])
{
    float most[2][2], base[2], part[2][2];
    GK_UNROLL for (int e = 0; e < 4; e++) most[e / 2][e % 2] = gk_most(x[0][e], x[1][e]);
    GK_UNROLL for (int n = 2; n < GK_TILE_KEYS / 8; n++)
        GK_UNROLL for (int e = 0; e < 4; e++) most[e / 2][e % 2] = gk_most(most[e / 2][e % 2], x[n][e]);
    GK_UNROLL for (int h = 0; h < 2; h++) most[h][0] = gk_most(top[h], gk_most(most[h][0], most[h][1]));
    GK_UNROLL for (int m = 1; m < 4; m *= 2) {
        float y = gk_lane_xor(most[0][0], m), z = gk_lane_xor(most[1][0], m);
        most[0][0] = gk_most(most[0][0], y);
        most[1][0] = gk_most(most[1][0], z);
    }
    GK_UNROLL for (int h = 0; h < 2; h++) {
        /* While nothing was visible, everything stays 0. */
        float above = most[h][0] == -GK_INF ? 0.0f : most[h][0];
        base[h] = above * factor;
        shrink[h] = gk_power((top[h] - above) * factor);
        top[h] = most[h][0];
        part[h][0] = part[h][1] = 0.0f;
    }
    GK_UNROLL for (int n = 0; n < GK_TILE_KEYS / 8; n++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            x[n][e] = gk_power(x[n][e] * factor - base[e / 2]);
            part[e / 2][e % 2] += x[n][e];
        }
    }
    GK_UNROLL for (int h = 0; h < 2; h++) sum[h] = sum[h] * shrink[h] + (part[h][0] + part[h][1]);
}

/* x = Q K^T of 64 queries and a tile of keys; acc += P V. Descriptors of tiles. */
GK_FN void gk_scores_begin(float (*x)[4], gk_u32 queries, gk_u32 keys)
{
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < GK_HEAD_WIDTH / 16; k++)
        gk_wgmma_s(x, 128, gk_wgmma_terms(queries, 128, k), 0, gk_wgmma_terms(keys, 128, k), 0, k == 0 ? 1 : 0);
    GK_WGMMA_END();
}
GK_FN void gk_values_begin(float (*acc)[4], const gk_frag_a* ps, gk_u32 values)
{
    GK_WGMMA_BEGIN();
    GK_UNROLL for (int k = 0; k < GK_TILE_KEYS / 16; k++) gk_wgmma_t(acc, GK_HEAD_WIDTH, ps[k], values + (gk_u32)(128 * k));
    GK_WGMMA_END();
}

/* The two rows of O and LSE of a thread. */
GK_FN void gk_put_rows(GK_GLOBAL gk_t* o, gk_i64 step, GK_GLOBAL gk_f* lse, gk_i64 lse_step, int i0, int rows, int width, float factor,
                       float (*acc)[4], const float top[2], const float sum[2])
{
    GK_UNROLL for (int r = 0; r < 2; r++) {
        int i = i0 + GK_FRAG_ROW(2 * r);
        float total = gk_quad_sum(sum[r], 0), f = total == 0.0f ? 0.0f : 1.0f / total;
        if (i < rows) {
            gk_mm_store(o + i * step, acc, GK_HEAD_WIDTH, r, width, f, 0);
            if (lse && GK_FRAG_COL(0) == 0) lse[i * lse_step] = total == 0.0f ? -GK_INF : top[r] * factor * GK_LN2 + gk_log(total);
        }
    }
}

/* ---- kernel ----------------------------------------------------------------------------------------------------------------------- */

// Units: HALVES x HEAD_WIDTHS
GK_KERNEL(attention_fwd_specialized)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                                     GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_OUT(gk_t, o),
                                     GK_OUT(gk_f, lse), GK_BY_VALUE(gk_attention_specialized_args, args))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, 5 * GK_TILE_CHUNKS);
    GK_LOCAL gk_u64 gates[10];
    GK_BIND_OUT(gk_t, o);
    gk_places l = gk_places_of(tiles, gates);
    int depth = (int)args.size.v[5], width = (int)args.size.v[6];
    int count = (GK_IN_PAIRS(args) ? (args.tiles + 1) / 2 : args.tiles) * (int)args.size.v[1] * (cu_q ? 1 : (int)args.size.v[0]);
    gk_u32 n = 0, done = 0;
    if (gk_lid() == 0) {
        /* A gate of what is full opens for all threads that copy, of what is empty for a lane of each warp that multiplies. */
        GK_UNROLL for (int i = 0; i < 5; i++) {
            gk_gate_init(l.keys_full + 8u * (gk_u32)(i < 2 ? i : i < 4 ? i + 2 : 8), GK_PRODUCERS);
            gk_gate_init(l.keys_full + 8u * (gk_u32)(i < 2 ? i + 2 : i < 4 ? i + 4 : 9), GK_CONSUMERS / 32);
        }
        GK_GATES_READY();
    }
    GK_BARRIER();

    if (gk_lid() >= GK_CONSUMERS) {
        GK_REGISTERS_LESS(40);
        gk_u32 last = 0;
        GK_EACH_TILE(tile, second, count) {
            gk_query_tile t = gk_tile_of_pair(&args, lengths, cu_q, cu_k, err, code, tile, second);
            if (t.steps == 0) continue;
            gk_gate_pass(l.queries_empty, done + 1u);
            gk_bring(q + t.s.b * args.sq.v[0] + t.head * args.sq.v[1] + (t.s.q0 + t.i0) * args.sq.v[2], args.sq.v[2], t.s.lq - t.i0, depth, l.queries);
            gk_brought(&last, l.queries_full);
            gk_bring_steps(&l, t.steps, n, &last, k + t.s.b * args.sq.v[3] + t.kv * args.sq.v[4] + (t.s.k0 + t.from) * args.sq.v[5], args.sq.v[5], depth,
                v + t.s.b * args.sv.v[0] + t.kv * args.sv.v[1] + (t.s.k0 + t.from) * args.sv.v[2], args.sv.v[2], width, t.rule.keys - t.from);
            n += (gk_u32)t.steps;
            done++;
        }
        GK_COPY_WAIT(0);
        if (last) gk_gate_arrive(last);
        return;
    }

    GK_REGISTERS_MORE(232);
    int group = (int)gk_uniform((gk_u32)gk_lid() / 128u), first_lane = gk_lid() % 32 == 0;
    float factor = args.scale * GK_LOG2E;
    gk_u32 dq = gk_uniform(gk_wgmma_tile(l.queries, 128)) + (gk_u32)group * 512u, dk = gk_uniform(gk_wgmma_tile(l.keys, 128)),
        dv = gk_uniform(gk_wgmma_tile(l.values, 128));
    if (group == 1) GK_PAIR_GO(1); /* the first group begins */
    GK_EACH_TILE(tile, second, count) {
        gk_query_tile t = gk_tile_of_pair(&args, lengths, cu_q, cu_k, err, code, tile, second);
        int wi = t.i0 + gk_lid() / 32 * 16;
        gk_frag_a ps[GK_TILE_KEYS / 16];
        float x[GK_TILE_KEYS / 8][4], acc[GK_HEAD_SUMS][4], top[2], sum[2], shrink[2];
        gk_mm_clear(acc, GK_HEAD_WIDTH);
        top[0] = top[1] = -GK_INF;
        sum[0] = sum[1] = 0.0f;
        if (t.steps > 0) {
            n = gk_uniform(n);
            gk_gate_pass(l.queries_full, done++);
            gk_gate_pass(l.keys_full + 8u * (n % 2u), n / 2u);
            gk_scores_begin(x, dq, dk + n % 2u * GK_TILE_CHUNKS);
            GK_MM_WAIT(0);
            gk_mm_ready(x, GK_TILE_KEYS);
            if (first_lane) gk_gate_arrive(l.keys_empty + 8u * (n % 2u));
            if (!gk_sees_all(&t.rule, t.i0, GK_TILE_QUERIES, t.from, GK_TILE_KEYS)) gk_hide(&t.rule, wi, t.from, x);
            gk_softmax_rows(x, factor, top, sum, shrink);
            GK_UNROLL for (int d = 0; d < GK_TILE_KEYS / 16; d++) ps[d] = gk_frag_of(x + 2 * d, 0, d);
            /* Step m: the scores of tile m and the values of the tile before it. */
            GK_ROLLED for (int m = 1; m < t.steps; m++) {
                gk_u32 now = n + (gk_u32)m, slot = now % 2u, before = slot ^ 1u;
                int j0 = t.from + m * GK_TILE_KEYS;
                gk_gate_pass(l.keys_full + 8u * slot, now / 2u);
                GK_PAIR_WAIT(1 + group);
                gk_scores_begin(x, dq, dk + slot * GK_TILE_CHUNKS);
                gk_gate_pass(l.values_full + 8u * before, (now - 1u) / 2u);
                gk_values_begin(acc, ps, dv + before * GK_TILE_CHUNKS);
                GK_PAIR_GO(2 - group);
                GK_MM_WAIT(1);
                gk_mm_ready(x, GK_TILE_KEYS);
                if (first_lane) gk_gate_arrive(l.keys_empty + 8u * slot);
                if (!gk_sees_all(&t.rule, t.i0, GK_TILE_QUERIES, j0, GK_TILE_KEYS)) gk_hide(&t.rule, wi, j0, x);
                gk_softmax_rows(x, factor, top, sum, shrink);
                GK_MM_WAIT(0);
                gk_mm_ready(acc, GK_HEAD_WIDTH);
                if (first_lane) gk_gate_arrive(l.values_empty + 8u * before);
                GK_UNROLL for (int i = 0; i < GK_HEAD_SUMS * 4; i++) acc[i / 4][i % 4] *= shrink[i % 4 / 2];
                GK_UNROLL for (int d = 0; d < GK_TILE_KEYS / 16; d++) ps[d] = gk_frag_of(x + 2 * d, 0, d);
            }
            if (first_lane) gk_gate_arrive(l.queries_empty);
            n += (gk_u32)t.steps;
            gk_gate_pass(l.values_full + 8u * ((n - 1u) % 2u), (n - 1u) / 2u);
            gk_values_begin(acc, ps, dv + (n - 1u) % 2u * GK_TILE_CHUNKS);
            GK_MM_WAIT(0);
            gk_mm_ready(acc, GK_HEAD_WIDTH);
            if (first_lane) gk_gate_arrive(l.values_empty + 8u * ((n - 1u) % 2u));
        }
        gk_put_rows(o + t.s.b * args.sv.v[3] + t.head * args.sv.v[4] + t.s.q0 * args.sv.v[5], args.sv.v[5],
            lse ? lse + t.s.b * args.sl.v[0] + t.head * args.sl.v[1] + t.s.q0 * args.sl.v[2] : 0, args.sl.v[2], wi, t.s.lq, width, factor, acc, top, sum);
    }
}
#endif
