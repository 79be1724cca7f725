/* Gradients of attention by queries, keys and values; see attention/attention.c for the scores and attention/scores.c for delta and the bias.
 *
 *   P = e^(s - LSE), M = dropout factors, dS = P (M (dO V^T) - delta):   dV = (P M)^T dO,  dQ = scale dS' K,  dK = scale dS'^T Q,  dS' = dS * slope
 * of the cap
 *
 * GK_OP is the number of columns of a gradient per block. Launch: axis 0 tiles of 64 keys x key heads x batches (attention_dkv) or tiles of 64
 * queries x heads x batches (attention_dq), axis 1 slices of columns. attention_dkv loops over the query heads of its group and over the tiles of
 * queries that see its keys, attention_dq over the tiles of keys. One writer per element, sums in a fixed order. Arithmetic in gk_f.
 * Strides: sq as in attention/attention.c; sv = {v batch, head, row, dO batch, head, row, v wide, dO wide}; sl = {lse batch, head, row}; sg = {dq or
 * dk batch, head, row, dv batch, head, row, accumulate dq or dk, accumulate dv}. delta [B, Hq, Lq].
 */
#define gk_head64_width 64
#define gk_head128_width 128
#define GK_ATTN_WIDTH GK_CAT(GK_OP, _width)
#include "tile.h"

typedef struct {
    gk_dims size, sq, sm, sv, sl, sg;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_bwd_args;

// Units: FLOATS64 x HEAD_WIDTHS
GK_KERNEL(attention_dkv)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                         GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout), GK_IN(gk_f, lse),
                         GK_IN(gk_f, delta), GK_OUT(gk_t, dk), GK_OUT(gk_t, dv), GK_BY_VALUE(gk_attention_bwd_args, args))
{
    GK_LOCAL gk_slot tile[GK_ATTN_TILE];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dk); GK_BIND_OUT(gk_t, dv);
    int group = (int)(args.size.v[1] / args.size.v[2]), kv = (int)args.size.v[2], kh = gk_bid(0) / args.tiles % kv;
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / kv, gk_bid(0) % args.tiles, 64, 1, lengths, cu_q, cu_k, args.size, err, code);
    int j0 = s.tile * 64, rows = s.lk - j0, r = gk_lid() / 16, c = gk_lid() % 16, col0 = gk_bid(1) * GK_ATTN_WIDTH;
    int d = (int)args.size.v[5], dvs = (int)args.size.v[6];
    gk_f ak[4][4 * GK_ATTN_GROUPS], av[4][4 * GK_ATTN_GROUPS], x[4][4], y[4][4], slope[4][4];
    gk_clear(ak);
    gk_clear(av);
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + (s.k0 + j0) * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + (s.k0 + j0) * args.sv.v[2];
    for (int h = kh * group; h < (kh + 1) * group; h++) {
        gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
            args.stream, args.offset, more, args.keep, args.kept);
        for (int i0 = gk_first_query(&rule, j0), end = gk_end_query(&rule, j0, 64); i0 < end; i0 += 64) {
            GK_GLOBAL const gk_t* qs = q + s.b * args.sq.v[0] + h * args.sq.v[1] + (s.q0 + i0) * args.sq.v[2];
            GK_GLOBAL const gk_t* ds = dout + s.b * args.sv.v[3] + h * args.sv.v[4] + (s.q0 + i0) * args.sv.v[5];
            int queries = s.lq - i0;
            /* Rows are keys, columns are queries. */
            gk_dots(k, args.sq.v[5], rows, (int)args.sq.v[7], qs, args.sq.v[2], queries, (int)args.sq.v[6], d, tile, x);
            gk_dots(v, args.sv.v[2], rows, (int)args.sv.v[6], ds, args.sv.v[5], queries, (int)args.sv.v[7], dvs, tile, y);
            gk_scores(&rule, i0, j0, 1, x, slope);
            gk_u32 bits = 0xffffu;
            if (args.keep < 1.0f) bits = gk_kept(&rule, i0, j0, 1);
            GK_UNROLL for (int j = 0; j < 4; j++) {
                int i = i0 + 4 * c + j;
                gk_f base = -GK_INF, mean = GK_R(0.0);
                if (i < s.lq) {
                    base = lse[s.b * args.sl.v[0] + h * args.sl.v[1] + (s.q0 + i) * args.sl.v[2]];
                    mean = delta[((gk_i64)s.b * args.size.v[1] + h) * args.size.v[3] + s.q0 + i];
                }
                GK_UNROLL for (int u = 0; u < 4; u++) {
                    gk_f p = gk_prob(x[u][j], base), f = GK_HAS(bits, u, j) ? args.kept : GK_R(0.0);
                    x[u][j] = p * f;
                    y[u][j] = gk_dscore(p, f * y[u][j], mean) * slope[u][j];
                }
            }
            if (dv) gk_weigh(x, ds + col0, args.sv.v[5], queries, dvs - col0, (int)args.sv.v[7], tile, av);
            if (dk) gk_weigh(y, qs + col0, args.sq.v[2], queries, d - col0, (int)args.sq.v[6], tile, ak);
        }
    }
    if (dk) gk_put(dk + s.b * args.sg.v[0] + kh * args.sg.v[1] + (s.k0 + j0) * args.sg.v[2] + col0, args.sg.v[2], rows, d - col0, args.scale,
        (int)args.sg.v[6], ak);
    if (dv) gk_put(dv + s.b * args.sg.v[3] + kh * args.sg.v[4] + (s.k0 + j0) * args.sg.v[5] + col0, args.sg.v[5], rows, dvs - col0, GK_R(1.0),
        (int)args.sg.v[7], av);
}

GK_KERNEL(attention_dq)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                        GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout), GK_IN(gk_f, lse),
                        GK_IN(gk_f, delta), GK_OUT(gk_t, dq), GK_BY_VALUE(gk_attention_bwd_args, args))
{
    GK_LOCAL gk_slot tile[GK_ATTN_TILE];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dq);
    int heads = (int)args.size.v[1], h = gk_bid(0) / args.tiles % heads, kh = h / (heads / (int)args.size.v[2]);
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / heads, args.tiles - 1 - gk_bid(0) % args.tiles, 64, 0, lengths, cu_q, cu_k, args.size, err, code);
    gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    int i0 = s.tile * 64, rows = s.lq - i0, r = gk_lid() / 16, c = gk_lid() % 16, col0 = gk_bid(1) * GK_ATTN_WIDTH, d = (int)args.size.v[5];
    gk_f acc[4][4 * GK_ATTN_GROUPS], base[4], mean[4], x[4][4], y[4][4], slope[4][4];
    gk_clear(acc);
    GK_UNROLL for (int i = 0; i < 4; i++) {
        gk_i64 at = s.q0 + i0 + 4 * r + i;
        base[i] = -GK_INF;
        mean[i] = GK_R(0.0);
        if (4 * r + i < rows) {
            base[i] = lse[s.b * args.sl.v[0] + h * args.sl.v[1] + at * args.sl.v[2]];
            mean[i] = delta[((gk_i64)s.b * args.size.v[1] + h) * args.size.v[3] + at];
        }
    }
    q += s.b * args.sq.v[0] + h * args.sq.v[1] + (s.q0 + i0) * args.sq.v[2];
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + s.k0 * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + s.k0 * args.sv.v[2];
    dout += s.b * args.sv.v[3] + h * args.sv.v[4] + (s.q0 + i0) * args.sv.v[5];
    for (int j0 = gk_first_key(&rule, i0), end = gk_end_key(&rule, i0, 64); j0 < end; j0 += 64) {
        int keys = rule.keys - j0;
        gk_dots(q, args.sq.v[2], rows, (int)args.sq.v[6], k + j0 * args.sq.v[5], args.sq.v[5], keys, (int)args.sq.v[7], d, tile, x);
        gk_dots(dout, args.sv.v[5], rows, (int)args.sv.v[7], v + j0 * args.sv.v[2], args.sv.v[2], keys, (int)args.sv.v[6], (int)args.size.v[6],
            tile, y);
        gk_scores(&rule, i0, j0, 0, x, slope);
        gk_u32 bits = 0xffffu;
        if (args.keep < 1.0f) bits = gk_kept(&rule, i0, j0, 0);
        GK_UNROLL for (int i = 0; i < 4; i++) {
            GK_UNROLL for (int j = 0; j < 4; j++) {
                gk_f p = gk_prob(x[i][j], base[i]), f = GK_HAS(bits, i, j) ? args.kept : GK_R(0.0);
                y[i][j] = gk_dscore(p, f * y[i][j], mean[i]) * slope[i][j];
            }
        }
        gk_weigh(y, k + j0 * args.sq.v[5] + col0, args.sq.v[5], keys, d - col0, (int)args.sq.v[7], tile, acc);
    }
    gk_put(dq + s.b * args.sg.v[0] + h * args.sg.v[1] + (s.q0 + i0) * args.sg.v[2] + col0, args.sg.v[2], rows, d - col0, args.scale,
        (int)args.sg.v[6], acc);
}
