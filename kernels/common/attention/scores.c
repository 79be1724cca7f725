/* What attention needs beside its main kernels; see attention/attention.c for the scores.
 *
 *   attention_delta   delta[b, h, i] = sum of dO * O over a row. Launch: one row per 16 threads.
 *   attention_probs   P [B, Hq, Lq, Lk] = e^(s - LSE), where somebody wants to see it. Launch: axis 0 tiles of 64 queries x heads x batches, axis 1
 * tiles of
 *                     64 keys.
 *   attention_dbias   dBias = dS summed over the axes that the bias repeats. Launch: axis 0 tiles of 64 x 64 of the bias x its heads x its batches; a
 * block
 *                     loops over everything that shares its tile, in order. sb = {batches, heads, rows, columns of the bias; each 1 or whole}.
 *
 * Arithmetic in gk_f. Deterministic. Strides: as in attention/backward.c.
 */
#include "tile.h"

// Units: FLOATS64
/* so = {dO batch, head, row, O batch, head, row, both wide}; n = B * Hq * Lq */
GK_KERNEL(attention_delta)(GK_IN(gk_t, dout), GK_IN(gk_t, o), GK_OUT(gk_f, delta), GK_DIMS(size), GK_DIMS(so), gk_i64 n)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_t, o); GK_BIND_OUT(gk_f, delta);
    for (gk_i64 first = (gk_i64)gk_bid(0) * 16; first < n; first += (gk_i64)gk_nblocks(0) * 16) {
        gk_i64 row = first + gk_lid() / 16;
        gk_f sum = GK_R(0.0);
        if (row < n) {
            gk_i64 i = row % size.v[3], h = row / size.v[3] % size.v[1], b = row / size.v[3] / size.v[1];
            gk_i64 at = b * so.v[0] + h * so.v[1] + i * so.v[2], ao = b * so.v[3] + h * so.v[4] + i * so.v[5];
            int u = gk_lid() % 16, whole = so.v[6] ? (int)size.v[6] / GK_W : 0;
            for (; u < whole; u += 16) {
                gk_vec x = gk_loadv(dout, at + u * GK_W), y = gk_loadv(o, ao + u * GK_W);
                GK_UNROLL for (int k = 0; k < GK_W; k++) sum += x.v[k] * y.v[k];
            }
            for (u = whole * GK_W + gk_lid() % 16; u < size.v[6]; u += 16) sum += gk_load(dout, at + u) * gk_load(o, ao + u);
        }
        sum = gk_group_sum(sum, tmp, 16);
        if (row < n && gk_lid() % 16 == 0) delta[row] = sum;
    }
}

typedef struct {
    gk_dims size, sq, sm, sl;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom;
} gk_attention_probs_args;

GK_KERNEL(attention_probs)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                           GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_f, lse), GK_OUT(gk_t, p),
                           GK_BY_VALUE(gk_attention_probs_args, args))
{
    GK_LOCAL gk_slot tile[GK_ATTN_TILE];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_f, lse); GK_BIND_OUT(gk_t, p);
    int heads = (int)args.size.v[1], h = gk_bid(0) / args.tiles % heads, kh = h / (heads / (int)args.size.v[2]);
    gk_span s = gk_span_of(gk_bid(0) / args.tiles / heads, gk_bid(0) % args.tiles, 64, 0, lengths, cu_q, cu_k, args.size, err, code);
    gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
        args.stream, args.offset, more, args.keep, args.kept);
    int i0 = s.tile * 64, r = gk_lid() / 16, c = gk_lid() % 16;
    gk_f x[4][4], unused[4][4];
    q += s.b * args.sq.v[0] + h * args.sq.v[1] + i0 * args.sq.v[2];
    k += s.b * args.sq.v[3] + kh * args.sq.v[4];
    for (int j0 = gk_bid(1) * 64; j0 < s.lk; j0 += gk_nblocks(1) * 64) {
        gk_dots(q, args.sq.v[2], s.lq - i0, (int)args.sq.v[6], k + j0 * args.sq.v[5], args.sq.v[5], rule.keys - j0, (int)args.sq.v[7],
            (int)args.size.v[5], tile, x);
        gk_scores(&rule, i0, j0, 0, x, unused);
        GK_UNROLL for (int i = 0; i < 4; i++) {
            int row = i0 + 4 * r + i;
            gk_f base = -GK_INF;
            if (row < s.lq) base = lse[s.b * args.sl.v[0] + h * args.sl.v[1] + row * args.sl.v[2]];
            GK_UNROLL for (int j = 0; j < 4; j++) {
                int key = j0 + 4 * c + j;
                if (row < s.lq && key < s.lk) gk_store(p, (((gk_i64)s.b * heads + h) * s.lq + row) * s.lk + key, gk_prob(x[i][j], base));
            }
        }
    }
}

typedef struct {
    gk_dims size, sq, sm, sv, sl, sb;
    gk_i64 seed, stream, offset;
    gk_f scale, cap, kept;
    float keep;
    int tiles, left, right, bottom, accumulate;
} gk_attention_dbias_args;

GK_KERNEL(attention_dbias)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, bias), GK_IN(gk_u8, mask), GK_IN(int, lengths), GK_IN(int, cu_q),
                           GK_IN(int, cu_k), GK_IN(gk_i64, more), GK_OUT(int, err), int code, GK_IN(gk_t, v), GK_IN(gk_t, dout), GK_IN(gk_f, lse),
                           GK_IN(gk_f, delta), GK_OUT(gk_t, dbias), GK_BY_VALUE(gk_attention_dbias_args, args))
{
    GK_LOCAL gk_slot tile[GK_ATTN_TILE];
    GK_LOCAL gk_f tmp[16 * 64];
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, lengths); GK_BIND_IN(int, cu_q);
    GK_BIND_IN(int, cu_k); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, v); GK_BIND_IN(gk_t, dout); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dbias);
    int heads = (int)args.size.v[1], group = heads / (int)args.size.v[2], lq = (int)args.size.v[3], lk = (int)args.size.v[4];
    int bb = (int)args.sb.v[0], bh = (int)args.sb.v[1], bi = (int)args.sb.v[2], bj = (int)args.sb.v[3];
    int across = (bj + 63) / 64, down = (bi + 63) / 64, at = gk_bid(0), r = gk_lid() / 16, c = gk_lid() % 16;
    int jt = at % across * 64, it = at / across % down * 64, ht = at / across / down % bh, bt = at / across / down / bh;
    /* An axis that the bias repeats is looped over; of the others only this tile. */
    int b1 = bb == 1 ? (int)args.size.v[0] : bt + 1, h1 = bh == 1 ? heads : ht + 1, i1 = bi == 1 ? lq : it + 1, j1 = bj == 1 ? lk : jt + 1;
    gk_f acc[4][4], x[4][4], y[4][4], unused[4][4];
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = GK_R(0.0);
    for (int b = bt; b < b1; b++) {
        gk_span s = gk_span_of(b, 0, 64, 0, lengths, cu_q, cu_k, args.size, err, code);
        for (int h = ht; h < h1; h++) {
            gk_rule rule = gk_rule_of(s, h, bias, mask, args.size, args.sm, args.scale, args.cap, args.left, args.right, args.bottom, args.seed,
                args.stream, args.offset, more, args.keep, args.kept);
            GK_GLOBAL const gk_t* ks = k + b * args.sq.v[3] + h / group * args.sq.v[4];
            GK_GLOBAL const gk_t* vs = v + b * args.sv.v[0] + h / group * args.sv.v[1];
            for (int i0 = it; i0 < i1; i0 += 64) {
                GK_GLOBAL const gk_t* qs = q + b * args.sq.v[0] + h * args.sq.v[1] + i0 * args.sq.v[2];
                GK_GLOBAL const gk_t* ds = dout + b * args.sv.v[3] + h * args.sv.v[4] + i0 * args.sv.v[5];
                int begin = gk_first_key(&rule, i0), end = gk_end_key(&rule, i0, 64);
                for (int j0 = jt; j0 < j1; j0 += 64) {
                    if (j0 < begin || j0 >= end) continue;
                    gk_dots(qs, args.sq.v[2], lq - i0, (int)args.sq.v[6], ks + j0 * args.sq.v[5], args.sq.v[5], rule.keys - j0, (int)args.sq.v[7],
                        (int)args.size.v[5], tile, x);
                    gk_dots(ds, args.sv.v[5], lq - i0, (int)args.sv.v[7], vs + j0 * args.sv.v[2], args.sv.v[2], rule.keys - j0, (int)args.sv.v[6],
                        (int)args.size.v[6], tile, y);
                    gk_scores(&rule, i0, j0, 0, x, unused);
                    gk_u32 bits = 0xffffu;
                    if (args.keep < 1.0f) bits = gk_kept(&rule, i0, j0, 0);
                    GK_UNROLL for (int i = 0; i < 4; i++) {
                        int row = i0 + 4 * r + i;
                        gk_f base = -GK_INF, mean = GK_R(0.0);
                        if (row < lq) {
                            base = lse[b * args.sl.v[0] + h * args.sl.v[1] + row * args.sl.v[2]];
                            mean = delta[((gk_i64)b * heads + h) * lq + row];
                        }
                        GK_UNROLL for (int j = 0; j < 4; j++)
                            acc[i][j] += gk_dscore(gk_prob(x[i][j], base), (GK_HAS(bits, i, j) ? args.kept : GK_R(0.0)) * y[i][j], mean);
                    }
                }
            }
        }
    }
    GK_GLOBAL gk_t* out = dbias + ((gk_i64)bt * bh + ht) * bi * bj;
    if (bi == 1) {
        /* Sums of the columns: four rows here, then those of the 16 threads. */
        GK_UNROLL for (int j = 0; j < 4; j++) tmp[r * 64 + 4 * c + j] = acc[0][j] + acc[1][j] + acc[2][j] + acc[3][j];
        GK_BARRIER();
        GK_UNROLL for (int j = 0; j < 4; j++) {
            acc[0][j] = GK_R(0.0);
            for (int n = 0; n < 16; n++) acc[0][j] += tmp[n * 64 + 4 * c + j];
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int row = it + 4 * r + i;
        gk_f sum = GK_R(0.0);
        if (bj == 1) sum = gk_group_sum(acc[i][0] + acc[i][1] + acc[i][2] + acc[i][3], tmp, 16);
        GK_UNROLL for (int j = 0; j < 4; j++) {
            int key = jt + 4 * c + j;
            gk_f g = bj == 1 ? sum : acc[i][j];
            if (row < bi && key < bj) {
                gk_i64 e = (gk_i64)row * bj + key;
                gk_store(out, e, args.accumulate ? gk_load(out, e) + g : g);
            }
        }
    }
}
