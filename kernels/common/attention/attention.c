/* Attention without the matrix of scores in memory (Dao, 2023, arXiv 2307.08691): O = dropout(softmax(s)) V, LSE = ln sum e^s.
 *
 *   s = cap(scale * (q . k)) + bias, -inf where key j is invisible to query i       q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv]
 *
 * GK_OP is the number of columns of O per block: gk_head64 or gk_head128. Launch: axis 0 tiles of 64 queries x heads x batches, later tiles first
 * (they see more keys), axis 1 slices of O's columns, which repeat the scores. A block loops over the tiles of 64 keys that its queries can see; a
 * running maximum m and sum l per query rescale what was added when m grows. Arithmetic in gk_f. Deterministic.
 * Strides: sq = {q batch, head, row, k batch, head, row, q wide, k wide}; sv = {v.., o.., v wide}; sl = {lse batch, head, row}; size, sm in
 * attention/rule.h. Reference: F.scaled_dot_product_attention.
 */
#define gk_head64_width 64
#define gk_head128_width 128
#define GK_ATTN_WIDTH GK_CAT(GK_OP, _width)
#include "tile.h"

typedef struct {
    gk_dims size, sq, sm, sv, sl;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_fwd_args;

// Units: FLOATS64 x HEAD_WIDTHS
GK_KERNEL(attention_fwd)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                         GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_OUT(gk_t, o), GK_OUT(gk_f, lse),
                         GK_BY_VALUE(gk_attention_fwd_args, args))
{
    GK_LOCAL gk_slot tile[GK_ATTN_TILE];
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse);
    int heads = (int)args.size.v[1], h = gk_bid(0) / args.tiles % heads, kh = h / (heads / (int)args.size.v[2]);
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / heads, args.tiles - 1 - gk_bid(0) % args.tiles, 64, 0, lengths, cu_q, cu_k, args.size, err, code);
    gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    int i0 = s.tile * 64, rows = s.lq - i0, r = gk_lid() / 16, c = gk_lid() % 16, col0 = gk_bid(1) * GK_ATTN_WIDTH,
        width = (int)args.size.v[6] - col0;
    gk_f acc[4][4 * GK_ATTN_GROUPS], m[4], l[4], x[4][4], unused[4][4];
    gk_clear(acc);
    GK_UNROLL for (int i = 0; i < 4; i++) { m[i] = -GK_INF; l[i] = GK_R(0.0); }
    q += s.b * args.sq.v[0] + h * args.sq.v[1] + (s.q0 + i0) * args.sq.v[2];
    k += s.b * args.sq.v[3] + kh * args.sq.v[4] + s.k0 * args.sq.v[5];
    v += s.b * args.sv.v[0] + kh * args.sv.v[1] + s.k0 * args.sv.v[2] + col0;
    for (int j0 = gk_first_key(&rule, i0), end = gk_end_key(&rule, i0, 64); j0 < end; j0 += 64) {
        gk_dots(q, args.sq.v[2], rows, (int)args.sq.v[6], k + j0 * args.sq.v[5], args.sq.v[5], rule.keys - j0, (int)args.sq.v[7],
            (int)args.size.v[5], tile, x);
        gk_scores(&rule, i0, j0, 0, x, unused);
        GK_UNROLL for (int i = 0; i < 4; i++) {
            gk_f top = gk_max(gk_max(x[i][0], x[i][1]), gk_max(x[i][2], x[i][3]));
            top = gk_max(m[i], gk_group_max(top, tmp, 16));
            /* While nothing was visible, everything stays 0. */
            gk_f base = top == -GK_INF ? GK_R(0.0) : top, shrink = gk_exp(m[i] - base);
            m[i] = top;
            l[i] *= shrink;
            GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) acc[i][u] *= shrink;
            GK_UNROLL for (int j = 0; j < 4; j++) {
                x[i][j] = gk_exp(x[i][j] - base);
                l[i] += x[i][j];
            }
        }
        if (args.keep < 1.0f) {
            gk_u32 bits = gk_kept(&rule, i0, j0, 0);
            GK_UNROLL for (int i = 0; i < 4; i++)
                GK_UNROLL for (int j = 0; j < 4; j++) x[i][j] *= GK_HAS(bits, i, j) ? rule.kept : GK_R(0.0);
        }
        gk_weigh(x, v + j0 * args.sv.v[2], args.sv.v[2], rule.keys - j0, width, (int)args.sv.v[6], tile, acc);
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        l[i] = gk_group_sum(l[i], tmp, 16);
        gk_f f = l[i] == GK_R(0.0) ? GK_R(0.0) : GK_R(1.0) / l[i];
        GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) acc[i][u] *= f;
        if (lse && c == 0 && gk_bid(1) == 0 && 4 * r + i < rows) {
            gk_i64 at = s.b * args.sl.v[0] + h * args.sl.v[1] + (s.q0 + i0 + 4 * r + i) * args.sl.v[2];
            lse[at] = l[i] == GK_R(0.0) ? -GK_INF : m[i] + gk_log(l[i]);
        }
    }
    gk_put(o + s.b * args.sv.v[3] + h * args.sv.v[4] + (s.q0 + i0) * args.sv.v[5] + col0, args.sv.v[5], rows, width, GK_R(1.0), 0, acc);
}
