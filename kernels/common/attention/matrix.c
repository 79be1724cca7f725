/* attention/attention.c on matrix cores, for f32, f16 and bf16 (FlashAttention-2: Dao, 2023, arXiv 2307.08691).
 *
 * GK_OP says how many columns of a head the tiles have room for, and whether all rules apply (gk_head64, gk_head128_rules, ...; of f32 gk_head32, too):
 * without, scores are products times a positive factor, within a window. D and Dv are multiples of 8 up to the columns. Launch: axis 0 tiles of
 * GK_ATTN_QUERIES queries x heads x batches, later tiles first. A warp has 16 queries; a block loops over tiles of GK_ATTN_KEYS keys, of which the next is
 * on its way while one is used. P is rounded to gk_t for the product with V; sums, maxima and the rest are float. Deterministic. Arguments as in
 * attention/attention.c; rows of Q, K, V and O begin at multiples of 16 bytes.
 */
/* Queries of a block: fewer of narrow heads, which are mostly short, so that these have more blocks. */
#define gk_head32_queries 64
#define gk_head64_queries 128
#define gk_head128_queries 128
#define gk_head64_rules_queries 128
#define gk_head128_rules_queries 128
#define GK_ATTN_QUERIES GK_CAT(GK_OP, _queries)
#undef GK_BLOCK
#define GK_BLOCK (2 * GK_ATTN_QUERIES)
#include "matrix_tile.h"

/* Registers of a thread: 64 columns of 16 bits leave room for two blocks on an SM, 32 of f32 for three of half the threads. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_ATTN_QUERIES == 64 ? 3 : GK_HEAD_CHUNKS == 8 ? 2 : 1)

/* Keys of a tile, and chunks of K or V of it: fewer where local memory is short. */
#ifdef GK_MATRIX_LOCAL_KB
#define GK_ATTN_KEYS (GK_HEAD_CHUNKS == 8 ? 64 : 32)
#else
#define GK_ATTN_KEYS (GK_HEAD_CHUNKS == 32 ? 32 : 64)
#endif
#define GK_SLOT (GK_ATTN_KEYS * GK_HEAD_CHUNKS)
/* Queries stay in local memory, or, where there is no room, in registers. */
#ifdef GK_MATRIX_LOCAL_KB
#define GK_QUERIES_STAY 0
#else
#define GK_QUERIES_STAY 1
#endif

typedef struct {
    gk_dims size, sq, sm, sv, sl;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_matrix_args;

/* The 16 x GK_ATTN_KEYS scores of a warp by rule, in units of which 2^(factor * x) is wanted: cap and bias make them logarithms to base 2.
 * `whole`: every query of the block sees all these keys, a branch that all warps take together. */
GK_FN void gk_matrix_scores(const gk_rule* r, int i0, int j0, int whole, float factor, float x[GK_ATTN_KEYS / 8][4])
{
    if (GK_ALL_RULES && factor == 1.0f) {
        GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 2; n++) {
            float s = x[n / 4][n % 4] * r->scale;
            if (r->cap > 0.0f) s = r->cap * gk_tanh(s / r->cap);
            int i = i0 + GK_FRAG_ROW(n % 4), j = j0 + n / 4 * 8 + GK_FRAG_COL(n % 4);
            if (r->bias && i < r->rows && j < r->keys) s += gk_load(r->bias, i * r->bi + j * r->bj);
            x[n / 4][n % 4] = s * GK_LOG2E;
        }
    }
    if (whole) return;
    GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 2; n++)
        if (!gk_sees(r, i0 + GK_FRAG_ROW(n % 4), j0 + n / 4 * 8 + GK_FRAG_COL(n % 4))) x[n / 4][n % 4] = -GK_INF;
}

#include "dialect/attention/matrix_softmax.h"

GK_FN void gk_matrix_dropout(const gk_rule* r, int i0, int j0, float x[GK_ATTN_KEYS / 8][4])
{
    GK_UNROLL for (int n = 0; n < GK_ATTN_KEYS / 2; n++)
        x[n / 4][n % 4] *= gk_keeps(r, i0 + GK_FRAG_ROW(n % 4), j0 + n / 4 * 8 + GK_FRAG_COL(n % 4)) ? r->kept : 0.0f;
}

// Units: FLOATS x MATRIX_HEADS, F32 x NARROW_HEADS
GK_KERNEL(attention_fwd_matrix)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                                GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_OUT(gk_t, o), GK_OUT(gk_f, lse),
                                GK_BY_VALUE(gk_attention_matrix_args, args))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, 4 * GK_SLOT + GK_QUERIES_STAY * GK_ATTN_QUERIES * GK_HEAD_CHUNKS);
    GK_LOCAL gk_raw16 scratch[GK_FRAG_SCRATCH];
    GK_LOCAL gk_f tmp[GK_FRAG_TMP];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse);
    int heads = (int)args.size.v[1], h = gk_bid(0) / args.tiles % heads, kh = h / (heads / (int)args.size.v[2]);
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / heads, args.tiles - 1 - gk_bid(0) % args.tiles, GK_ATTN_QUERIES, 0, lengths, cu_q, cu_k, args.size, err,
        code);
    gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    if (!GK_ALL_RULES) rule.mask = 0;
    int i0 = s.tile * GK_ATTN_QUERIES, wi = i0 + gk_lid() / 32 * 16, depth = (int)args.size.v[5], width = (int)args.size.v[6];
    float factor = GK_ALL_RULES && (rule.cap > 0.0f || bias || !(args.scale > 0.0f)) ? 1.0f : args.scale * GK_LOG2E;
    gk_frag_a qs[GK_HEAD_WIDTH / GK_FRAG_TERMS], ps[GK_ATTN_KEYS / GK_FRAG_TERMS];
    float x[GK_ATTN_KEYS / 8][4], acc[GK_HEAD_SUMS][4], top[2], sum[2], shrink[2];
    gk_mm_clear(acc, GK_HEAD_WIDTH);
    top[0] = top[1] = -GK_INF;
    sum[0] = sum[1] = 0.0f;
    q += s.b * args.sq.v[0] + h * args.sq.v[1] + (s.q0 + i0) * args.sq.v[2];
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + s.k0 * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + s.k0 * args.sv.v[2];

    /* Queries pass through the first tiles where they go to registers, else they come with the first keys. */
    GK_LOCAL_PTR gk_raw16* queries = tiles + GK_QUERIES_STAY * 4 * GK_SLOT;
    gk_fetch(q, args.sq.v[2], GK_ATTN_QUERIES, s.lq - i0, depth, queries);
    if (!GK_QUERIES_STAY) {
        GK_COPY_COMMIT();
        GK_COPY_WAIT(0);
        GK_BARRIER();
        GK_UNROLL for (int d = 0; d < GK_HEAD_WIDTH / GK_FRAG_TERMS; d++) qs[d] = gk_load_a(queries, GK_ATTN_QUERIES, gk_lid() / 32 * 16, d);
        GK_BARRIER();
    }

    /* Step n: the scores of tile n, and the values of the tile before it. Keys are fetched a tile further ahead than values. */
    int from = gk_first_key(&rule, i0), steps = (gk_end_key(&rule, i0, GK_ATTN_QUERIES) - from + GK_ATTN_KEYS - 1) / GK_ATTN_KEYS;
    k += from * args.sq.v[5];
    v += from * args.sv.v[2];
    gk_fetch(k, args.sq.v[5], GK_ATTN_KEYS, rule.keys - from, depth, tiles);
    GK_COPY_COMMIT();
    for (int n = 0; n < steps; n++) {
        int j0 = from + n * GK_ATTN_KEYS, turn = n & 1;
        GK_LOCAL_PTR gk_raw16 *keys = tiles + turn * GK_SLOT, *values = tiles + (2 + turn) * GK_SLOT;
        GK_COPY_WAIT(0);
        GK_BARRIER();
        gk_fetch(k + (n + 1) * (gk_i64)GK_ATTN_KEYS * args.sq.v[5], args.sq.v[5], GK_ATTN_KEYS, n + 1 < steps ? rule.keys - j0 - GK_ATTN_KEYS : 0, depth,
            tiles + (turn ^ 1) * GK_SLOT);
        gk_fetch(v + n * (gk_i64)GK_ATTN_KEYS * args.sv.v[2], args.sv.v[2], GK_ATTN_KEYS, rule.keys - j0, width, values);
        GK_COPY_COMMIT();
        if (GK_QUERIES_STAY) gk_mm_tiles_begin(x, GK_ATTN_KEYS, queries, GK_ATTN_QUERIES, gk_lid() / 32 * 16, GK_HEAD_WIDTH, keys);
        else gk_mm_rows_begin(x, GK_ATTN_KEYS, qs, GK_HEAD_WIDTH, keys);
        if (n == 0) {
            GK_MM_WAIT(0);
        } else {
            gk_mm_terms_begin(acc, GK_HEAD_WIDTH, ps, tiles + (2 + (turn ^ 1)) * GK_SLOT, GK_ATTN_KEYS);
            GK_MM_WAIT(1);
        }
        gk_mm_ready(x, GK_ATTN_KEYS);
        gk_matrix_scores(&rule, wi, j0, gk_sees_all(&rule, i0, GK_ATTN_QUERIES, j0, GK_ATTN_KEYS), factor, x);
        gk_matrix_softmax(x, factor, top, sum, shrink, tmp);
        if (GK_ALL_RULES && args.keep < 1.0f) gk_matrix_dropout(&rule, wi, j0, x);
        GK_MM_WAIT(0);
        gk_mm_ready(acc, GK_HEAD_WIDTH);
        GK_UNROLL for (int m = 0; m < GK_HEAD_SUMS; m++)
            GK_UNROLL for (int e = 0; e < 4; e++) acc[m][e] *= shrink[e / 2];
        GK_UNROLL for (int d = 0; d < GK_ATTN_KEYS / GK_FRAG_TERMS; d++) ps[d] = gk_frag_of(x + d * GK_FRAG_TERMS / 8, scratch, d);
    }
    if (steps > 0) {
        GK_COPY_WAIT(0);
        GK_BARRIER();
        gk_mm_terms_begin(acc, GK_HEAD_WIDTH, ps, tiles + (2 + (steps - 1) % 2) * GK_SLOT, GK_ATTN_KEYS);
        GK_MM_WAIT(0);
        gk_mm_ready(acc, GK_HEAD_WIDTH);
    }

    o += s.b * args.sv.v[3] + h * args.sv.v[4] + s.q0 * args.sv.v[5];
    GK_UNROLL for (int r = 0; r < 2; r++) {
        int i = wi + GK_FRAG_ROW(2 * r);
        float total = gk_quad_sum(sum[r], tmp), f = total == 0.0f ? 0.0f : 1.0f / total;
        if (i < s.lq) {
            gk_mm_store(o + i * args.sv.v[5], acc, GK_HEAD_WIDTH, r, width, f, 0);
            if (lse && GK_FRAG_COL(0) == 0)
                lse[s.b * args.sl.v[0] + h * args.sl.v[1] + (s.q0 + i) * args.sl.v[2]] =
                    total == 0.0f ? -GK_INF : top[r] * factor * GK_LN2 + gk_log(total);
        }
    }
}
