/* attention/backward.c on matrix cores, for f32, f16 and bf16; the arguments are the same.
 *
 *   attention_dkv_matrix   dK and dV of 128 keys: K and V of the block stay in local memory, tiles of GK_PASS_ROWS queries of all heads of the group
 *                          pass. A warp has 16 keys: its scores and gradients have keys as rows and queries as columns.
 *   attention_dq_matrix    dQ of 128 queries: Q and dO stay, tiles of GK_PASS_ROWS keys pass; queries are rows.
 *
 * GK_OP as in attention/matrix.c. The next tile is on its way while one is used. P and dS are rounded to gk_t for the products with them. One writer
 * per element, sums in a fixed order. Local memory: GK_MATRIX_BWD_CHUNKS chunks of 16 bytes, which the host allows for.
 */
#include "matrix_backward.h"

#define GK_MATRIX_BWD_CHUNKS (2 * GK_STAY + 4 * GK_PASS + 2 * GK_STATS)

typedef struct {
    gk_dims size, sq, sm, sv, sl, sg;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_matrix_bwd_args;

// Units: FLOATS x MATRIX_HEADS
GK_KERNEL(attention_dkv_matrix)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                                GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout),
                                GK_IN(gk_f, lse), GK_IN(gk_f, delta), GK_OUT(gk_t, dk), GK_OUT(gk_t, dv), GK_BY_VALUE(gk_attention_matrix_bwd_args, args))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_MATRIX_BWD_CHUNKS);
    GK_LOCAL gk_raw16 scratch[GK_FRAG_SCRATCH];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dk); GK_BIND_OUT(gk_t, dv);
    int group = (int)(args.size.v[1] / args.size.v[2]), kv = (int)args.size.v[2], kh = gk_bid(0) / args.tiles % kv;
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / kv, gk_bid(0) % args.tiles, 128, 1, lengths, cu_q, cu_k, args.size, err, code);
    gk_rule rule = gk_rule_of(s, kh * group, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    if (!GK_ALL_RULES) rule.mask = 0;
    int j0 = s.tile * 128, wj = gk_lid() / 32 * 16, depth = (int)args.size.v[5], width = (int)args.size.v[6];
    float ak[GK_HEAD_SUMS][4], av[GK_HEAD_SUMS][4];
    gk_mm_clear(ak, GK_HEAD_WIDTH);
    gk_mm_clear(av, GK_HEAD_WIDTH);
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + (s.k0 + j0) * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + (s.k0 + j0) * args.sv.v[2];
    q += s.b * args.sq.v[0] + s.q0 * args.sq.v[2];
    dout += s.b * args.sv.v[3] + s.q0 * args.sv.v[5];
    gk_fetch(k, args.sq.v[5], 128, s.lk - j0, depth, tiles);
    gk_fetch(v, args.sv.v[2], 128, s.lk - j0, width, tiles + GK_STAY);

    /* Step n: tile n % count of the queries of head n / count of the group. */
    int from = gk_first_query(&rule, j0), count = (gk_end_query(&rule, j0, 128) - from + GK_PASS_ROWS - 1) / GK_PASS_ROWS;
    int steps = count > 0 ? count * group : 0;
    GK_LOCAL_PTR float* stats = (GK_LOCAL_PTR float*)(tiles + 2 * GK_STAY + 4 * GK_PASS);
    if (steps > 0) gk_bring_queries(&args.size, &args.sq, &args.sv, &args.sl, s, q, dout, lse, delta, kh * group, from, tiles + 2 * GK_STAY, stats);
    GK_COPY_COMMIT();
    for (int n = 0; n < steps; n++) {
        int h = kh * group + n / count, i0 = from + n % count * GK_PASS_ROWS, turn = n & 1, next = n + 1 < steps ? n + 1 : 0;
        GK_LOCAL_PTR gk_raw16* qs = tiles + 2 * GK_STAY + turn * 2 * GK_PASS;
        GK_COPY_WAIT(0);
        GK_BARRIER();
        gk_bring_queries(&args.size, &args.sq, &args.sv, &args.sl, s, q, dout, lse, delta, kh * group + next / count, from + next % count * GK_PASS_ROWS,
            tiles + 2 * GK_STAY + (turn ^ 1) * 2 * GK_PASS, stats + (turn ^ 1) * 2 * GK_PASS_ROWS);
        GK_COPY_COMMIT();
        float x[GK_PASS_PAIRS / 4][4], y[GK_PASS_PAIRS / 4][4], slope[GK_PASS_PAIRS / 4][4], dropped[GK_PASS_PAIRS / 4][4], lse2[GK_PASS_PAIRS], mean[GK_PASS_PAIRS];
        gk_frag_a ps[GK_PASS_ROWS / GK_FRAG_TERMS], ds[GK_PASS_ROWS / GK_FRAG_TERMS];
        gk_u32 bits = ~0u;
        if (GK_ALL_RULES)
            rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed, args.stream,
                args.offset, more, args.keep, args.kept);
        gk_mm_tiles_begin(x, GK_PASS_ROWS, tiles, 128, wj, GK_HEAD_WIDTH, qs);
        gk_mm_tiles_begin(y, GK_PASS_ROWS, tiles + GK_STAY, 128, wj, GK_HEAD_WIDTH, qs + GK_PASS);
        GK_UNROLL for (int m = 0; m < GK_PASS_PAIRS; m++) lse2[m] = gk_lse2(stats[turn * 2 * GK_PASS_ROWS + GK_PAIR_COL(m)]);
        GK_MM_WAIT(1);
        gk_mm_ready(x, GK_PASS_ROWS);
        gk_matrix_probs(&rule, i0, j0 + wj, 1, gk_sees_all(&rule, i0, GK_PASS_ROWS, j0, 128), lse2, x, slope);
        if (GK_ALL_RULES && args.keep < 1.0f) {
            bits = gk_matrix_kept(&rule, i0, j0 + wj, 1);
            gk_matrix_drop(x, bits, args.kept, dropped);
            gk_matrix_frags(dropped, ps, scratch);
        } else gk_matrix_frags(x, ps, scratch);
        gk_mm_terms_begin(av, GK_HEAD_WIDTH, ps, qs + GK_PASS, GK_PASS_ROWS);
        GK_UNROLL for (int m = 0; m < GK_PASS_PAIRS; m++) mean[m] = stats[turn * 2 * GK_PASS_ROWS + GK_PASS_ROWS + GK_PAIR_COL(m)];
        GK_MM_WAIT(1);
        gk_mm_ready(y, GK_PASS_ROWS);
        gk_matrix_dscores(x, y, slope, mean, bits, args.kept);
        gk_matrix_frags(y, ds, scratch);
        gk_mm_terms_begin(ak, GK_HEAD_WIDTH, ds, qs, GK_PASS_ROWS);
        GK_MM_WAIT(0);
        gk_mm_ready(av, GK_HEAD_WIDTH);
        gk_mm_ready(ak, GK_HEAD_WIDTH);
    }
    if (dk) gk_matrix_put(dk + s.b * args.sg.v[0] + kh * args.sg.v[1] + (s.k0 + j0) * args.sg.v[2], args.sg.v[2], wj, s.lk - j0, depth, args.scale,
        (int)args.sg.v[6], ak);
    if (dv) gk_matrix_put(dv + s.b * args.sg.v[3] + kh * args.sg.v[4] + (s.k0 + j0) * args.sg.v[5], args.sg.v[5], wj, s.lk - j0, width, 1.0f,
        (int)args.sg.v[7], av);
}

/* A gradient of 64 columns of 16 bits leaves room for two blocks on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_HEAD_CHUNKS == 8 && !GK_ALL_RULES ? 2 : 1)
GK_KERNEL(attention_dq_matrix)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                               GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout), GK_IN(gk_f, lse),
                               GK_IN(gk_f, delta), GK_OUT(gk_t, dq), GK_BY_VALUE(gk_attention_matrix_bwd_args, args))
{
    GK_LOCAL_DYNAMIC(gk_raw16, tiles, GK_MATRIX_BWD_CHUNKS);
    GK_LOCAL gk_raw16 scratch[GK_FRAG_SCRATCH];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dq);
    int heads = (int)args.size.v[1], h = gk_bid(0) / args.tiles % heads, kh = h / (heads / (int)args.size.v[2]);
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / heads, args.tiles - 1 - gk_bid(0) % args.tiles, 128, 0, lengths, cu_q, cu_k, args.size, err,
        code);
    gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    if (!GK_ALL_RULES) rule.mask = 0;
    int i0 = s.tile * 128, wi = gk_lid() / 32 * 16, depth = (int)args.size.v[5], width = (int)args.size.v[6];
    float acc[GK_HEAD_SUMS][4], lse2[2], mean[2];
    gk_mm_clear(acc, GK_HEAD_WIDTH);
    GK_UNROLL for (int e = 0; e < 2; e++) {
        int i = i0 + wi + GK_FRAG_ROW(2 * e);
        lse2[e] = GK_INF;
        mean[e] = 0.0f;
        if (i < s.lq) {
            lse2[e] = gk_lse2(lse[s.b * args.sl.v[0] + h * args.sl.v[1] + (s.q0 + i) * args.sl.v[2]]);
            mean[e] = delta[((gk_i64)s.b * args.size.v[1] + h) * args.size.v[3] + s.q0 + i];
        }
    }
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + s.k0 * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + s.k0 * args.sv.v[2];
    gk_fetch(q + s.b * args.sq.v[0] + h * args.sq.v[1] + (s.q0 + i0) * args.sq.v[2], args.sq.v[2], 128, s.lq - i0, depth, tiles);
    gk_fetch(dout + s.b * args.sv.v[3] + h * args.sv.v[4] + (s.q0 + i0) * args.sv.v[5], args.sv.v[5], 128, s.lq - i0, width, tiles + GK_STAY);

    int from = gk_first_key(&rule, i0), end = gk_end_key(&rule, i0, 128), turn = 0;
    gk_fetch(k + from * args.sq.v[5], args.sq.v[5], GK_PASS_ROWS, rule.keys - from, depth, tiles + 2 * GK_STAY);
    gk_fetch(v + from * args.sv.v[2], args.sv.v[2], GK_PASS_ROWS, rule.keys - from, width, tiles + 2 * GK_STAY + GK_PASS);
    GK_COPY_COMMIT();
    for (int j0 = from; j0 < end; j0 += GK_PASS_ROWS, turn ^= 1) {
        int jn = j0 + GK_PASS_ROWS, exist = jn < end ? rule.keys - jn : 0;
        GK_LOCAL_PTR gk_raw16 *ks = tiles + 2 * GK_STAY + turn * 2 * GK_PASS, *kn = tiles + 2 * GK_STAY + (turn ^ 1) * 2 * GK_PASS;
        GK_COPY_WAIT(0);
        GK_BARRIER();
        gk_fetch(k + jn * args.sq.v[5], args.sq.v[5], GK_PASS_ROWS, exist, depth, kn);
        gk_fetch(v + jn * args.sv.v[2], args.sv.v[2], GK_PASS_ROWS, exist, width, kn + GK_PASS);
        GK_COPY_COMMIT();
        float x[GK_PASS_PAIRS / 4][4], y[GK_PASS_PAIRS / 4][4], slope[GK_PASS_PAIRS / 4][4], own[GK_PASS_PAIRS], means[GK_PASS_PAIRS];
        gk_frag_a ds[GK_PASS_ROWS / GK_FRAG_TERMS];
        gk_u32 bits = ~0u;
        gk_mm_tiles_begin(x, GK_PASS_ROWS, tiles, 128, wi, GK_HEAD_WIDTH, ks);
        gk_mm_tiles_begin(y, GK_PASS_ROWS, tiles + GK_STAY, 128, wi, GK_HEAD_WIDTH, ks + GK_PASS);
        GK_UNROLL for (int n = 0; n < GK_PASS_PAIRS; n++) { own[n] = lse2[n % 4 / 2]; means[n] = mean[n % 4 / 2]; }
        GK_MM_WAIT(1);
        gk_mm_ready(x, GK_PASS_ROWS);
        gk_matrix_probs(&rule, i0 + wi, j0, 0, gk_sees_all(&rule, i0, 128, j0, GK_PASS_ROWS), own, x, slope);
        if (GK_ALL_RULES && args.keep < 1.0f) bits = gk_matrix_kept(&rule, i0 + wi, j0, 0);
        GK_MM_WAIT(0);
        gk_mm_ready(y, GK_PASS_ROWS);
        gk_matrix_dscores(x, y, slope, means, bits, args.kept);
        gk_matrix_frags(y, ds, scratch);
        gk_mm_terms_begin(acc, GK_HEAD_WIDTH, ds, ks, GK_PASS_ROWS);
        GK_MM_WAIT(0);
        gk_mm_ready(acc, GK_HEAD_WIDTH);
    }
    gk_matrix_put(dq + s.b * args.sg.v[0] + h * args.sg.v[1] + (s.q0 + i0) * args.sg.v[2], args.sg.v[2], wi, s.lq - i0, depth, args.scale,
        (int)args.sg.v[6], acc);
}
