/* Elementwise losses and cross entropy, with reductions to device scalars.
 *
 * Forward of Mean and Sum: items are summed per block into partial pairs (loss, weight), then one block adds the pairs in order: a fixed
 * tree, so results repeat bit by bit. Items and sums in gk_f. GK_OP names the elementwise loss; units without it hold the rest.
 */

#include "loss_ops.h"

/* 1 where the mask lets item i count. */
#define GK_LOSS_COUNTS(i) ((mask && !mask[i]) ? GK_R(0.0) : GK_R(1.0))
/* Weight of item i: product of the optional weight and the optional mask. */
#define GK_ITEM_WEIGHT(i) ((mask && !mask[i]) ? GK_R(0.0) : weight ? gk_load(weight, i) : GK_R(1.0))

#ifdef GK_OP
#define GK_LOSS_GRAD GK_CAT(GK_OP, _grad)

// Units: FLOATS64 x LOSSES
/* y[i] = weight_i * l(p_i, t_i); wide: p, t and y are 16-byte aligned, without weight and mask. */
GK_KERNEL(loss_items)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_t, weight), GK_IN(gk_u8, mask), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f a, gk_f b,
                      int flags)
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_t, weight); GK_BIND_IN(gk_u8, mask); GK_BIND_OUT(gk_t, y);
    gk_lp h = gk_make_lp(a, b, flags);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec u = gk_loadv(p, i * GK_W), v = gk_loadv(t, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u.v[k] = GK_OP(u.v[k], v.v[k], h);
        gk_storev(y, i * GK_W, u);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_f w = GK_ITEM_WEIGHT(i);
        gk_store(y, i, (mask && !mask[i]) ? GK_R(0.0) : w * GK_OP(gk_load(p, i), gk_load(t, i), h));
    }
}

/* partial[2b], partial[2b+1] = sums of weighted items and of weights (counted: of items) that block b met; block-strided, 16 bytes at a time. */
GK_KERNEL(loss_partial)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_t, weight), GK_IN(gk_u8, mask), GK_OUT(gk_f, partial), gk_i64 n, int wide,
                        int counted, gk_f pa, gk_f pb, int flags)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_lp h = gk_make_lp(pa, pb, flags);
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_t, weight); GK_BIND_IN(gk_u8, mask); GK_BIND_OUT(gk_f, partial);
    gk_f sum = GK_R(0.0), count = GK_R(0.0);
    gk_i64 items = wide ? n / GK_W : 0, step = gk_gsize(), i = gk_gid();
    for (; i + step < items; i += 2 * step) {
        gk_vec a = gk_loadv(p, i * GK_W), b = gk_loadv(t, i * GK_W), c = gk_loadv(p, (i + step) * GK_W), d = gk_loadv(t, (i + step) * GK_W);
        gk_f u = GK_R(0.0), v = GK_R(0.0);
        GK_UNROLL for (int k = 0; k < GK_W; k++) { u += GK_OP(a.v[k], b.v[k], h); v += GK_OP(c.v[k], d.v[k], h); }
        sum += u + v;
    }
    for (; i < items; i += step) {
        gk_vec a = gk_loadv(p, i * GK_W), b = gk_loadv(t, i * GK_W);
        gk_f u = GK_R(0.0);
        GK_UNROLL for (int k = 0; k < GK_W; k++) u += GK_OP(a.v[k], b.v[k], h);
        sum += u;
    }
    for (i = items * GK_W + gk_gid(); i < n; i += step) {
        gk_f w = GK_ITEM_WEIGHT(i);
        if (!(mask && !mask[i])) sum += w * GK_OP(gk_load(p, i), gk_load(t, i), h);
        count += counted ? GK_LOSS_COUNTS(i) : w;
    }
    sum = gk_block_sum(sum, tmp);
    count = gk_block_sum(count, tmp);
    if (gk_lid() == 0) { partial[2 * gk_bid(0)] = sum; partial[2 * gk_bid(0) + 1] = count; }
}

/* dp (+)= gy * weight * l' / den and dt (+)= -dp; either may be null. gy: one number (each = 0) or one per item; den is null for 1. */
GK_KERNEL(loss_bwd)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_t, weight), GK_IN(gk_u8, mask), GK_IN(gk_t, gy), int each, int gy_f32,
                    GK_IN(gk_f, den), GK_OUT(gk_t, dp), GK_OUT(gk_t, dt), gk_i64 n, int wide, int acc_p, int acc_t, gk_f factor,
                    gk_f pa, gk_f pb, int flags)
{
    gk_lp h = gk_make_lp(pa, pb, flags);
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_t, weight); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den);
    GK_BIND_OUT(gk_t, dp); GK_BIND_OUT(gk_t, dt);
    gk_f g = factor;
    if (!each) g *= gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0);
    if (den) g /= den[0];
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec a = gk_loadv(p, i * GK_W), b = gk_loadv(t, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = g * GK_LOSS_GRAD(a.v[k], b.v[k], h);
        if (dp) gk_storev(dp, i * GK_W, a);
        GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = -a.v[k];
        if (dt) gk_storev(dt, i * GK_W, a);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_f w = GK_ITEM_WEIGHT(i), d = GK_R(0.0);
        if (!(mask && !mask[i])) d = g * w * (each ? gk_load(gy, i) : GK_R(1.0)) * GK_LOSS_GRAD(gk_load(p, i), gk_load(t, i), h);
        if (dp) gk_store(dp, i, acc_p ? gk_load(dp, i) + d : d);
        if (dt) gk_store(dt, i, acc_t ? gk_load(dt, i) - d : -d);
    }
}
#else

// Units: FLOATS64
/* partial pairs of two arrays of n numbers; the second may be null and counts 1 each */
GK_KERNEL(pair_partial)(GK_IN(gk_f, value), GK_IN(gk_f, weight), GK_OUT(gk_f, partial), gk_i64 n)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, value); GK_BIND_IN(gk_f, weight); GK_BIND_OUT(gk_f, partial);
    gk_f sum = GK_R(0.0), count = GK_R(0.0);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) { sum += value[i]; count += weight[i]; }
    sum = gk_block_sum(sum, tmp);
    count = gk_block_sum(count, tmp);
    if (gk_lid() == 0) { partial[2 * gk_bid(0)] = sum; partial[2 * gk_bid(0) + 1] = count; }
}

/* partial pairs (0, weight) of the weights alone, for the denominator of a backward */
GK_KERNEL(weight_partial)(GK_IN(gk_t, weight), GK_IN(gk_u8, mask), GK_OUT(gk_f, partial), gk_i64 n)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, weight); GK_BIND_IN(gk_u8, mask); GK_BIND_OUT(gk_f, partial);
    gk_f count = GK_R(0.0);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) count += GK_ITEM_WEIGHT(i);
    count = gk_block_sum(count, tmp);
    if (gk_lid() == 0) { partial[2 * gk_bid(0)] = GK_R(0.0); partial[2 * gk_bid(0) + 1] = count; }
}

/* One block: loss (+)= scale * sum (or sum / den with mean), den = sum of weights, or `fixed` where that is not negative, and at least `least`.
 * Outputs may be null. */
GK_KERNEL(pair_finish)(GK_IN(gk_f, partial), gk_i64 n, int mean, gk_f fixed, gk_f least, gk_f scale, int accumulate, GK_OUT(gk_f, loss),
                       GK_OUT(gk_f, den))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_OUT(gk_f, loss); GK_BIND_OUT(gk_f, den);
    gk_f sum = GK_R(0.0), count = GK_R(0.0);
    for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) { sum += partial[2 * i]; count += partial[2 * i + 1]; }
    sum = gk_block_sum(sum, tmp);
    count = gk_block_sum(count, tmp);
    if (fixed >= GK_R(0.0)) count = fixed;
    if (gk_lid() == 0) {
        if (count < least) count = least;
        sum *= scale;
        if (mean) sum /= count;
        if (loss) loss[0] = accumulate ? loss[0] + sum : sum;
        if (den) den[0] = count;
    }
}

/* ---- cross entropy ---------------------------------------------------------------------------------------------------------
 * Logits x [N, C, S], position = n*S + s; class weights w [C] (null = 1).
 * l = -(1-e) w_t logp_t - (e/C) sum_c w_c logp_c for ids, -sum_c w_c q_c logp_c with q = (1-e) prob + e/C for probabilities,
 * logp = x - lse. One pass over the logits: running maximum, sum of exponentials, and (smoothing, probabilities) the weighted sums.
 */
typedef struct { gk_f max, sum, wx, ws; } gk_row;

GK_FN void gk_row_add(gk_row* r, gk_f x)
{
    if (x > r->max) { r->sum = r->sum * gk_exp(r->max - x) + GK_R(1.0); r->max = x; }
    else if (x == r->max) r->sum += gk_isinf(x) && x < GK_R(0.0) ? GK_R(0.0) : gk_exp(x - r->max);
    else r->sum += gk_exp(x - r->max);
}

/* The same for n vectors: one rescaling. */
GK_FN void gk_row_addv(gk_row* r, const gk_vec* x, const int n)
{
    gk_f m = r->max, s = GK_R(0.0);
    GK_UNROLL for (int u = 0; u < n; u++)
        GK_UNROLL for (int k = 0; k < GK_W; k++) m = x[u].v[k] > m ? x[u].v[k] : m;
    if (m > r->max) { r->sum *= gk_exp_t(r->max - m); r->max = m; }
    if (m == -GK_INF) m = GK_R(0.0);
    GK_UNROLL for (int u = 0; u < n; u++)
        GK_UNROLL for (int k = 0; k < GK_W; k++) s += gk_exp_t(x[u].v[k] - m);
    r->sum += s;
}

#define GK_LOSS_DEPTH 4 /* 16-byte accesses in flight per thread */
#define GK_LINE (8 * GK_W) /* elements in a line of 128 bytes, at which vectors begin */

/* Number of groups of `lanes` threads that the grid has, and this thread's group. */
#define GK_LOSS_GROUP(lanes) ((gk_i64)gk_bid(0) * (GK_BLOCK / (lanes)) + gk_lid() / (lanes))
#define GK_LOSS_GROUPS(lanes) ((gk_i64)gk_nblocks(0) * (GK_BLOCK / (lanes)))

/* What both forwards do with a finished row. item and weight are gk_f arrays over positions; y (null unless reduction is none) is storage. */
GK_FN void gk_xent_finish(gk_i64 position, gk_row r, gk_f xt, gk_i64 id, int probs, gk_i64 ignore, gk_f smooth, gk_i64 C, GK_GLOBAL const gk_t* w,
                          GK_GLOBAL gk_f* lse, GK_GLOBAL gk_t* y, GK_GLOBAL gk_f* item, GK_GLOBAL gk_f* weight, GK_GLOBAL int* err, int code)
{
    gk_f total = gk_isinf(r.max) ? r.max : r.max + gk_log(r.sum), loss = GK_R(0.0), wt = GK_R(0.0);
    if (lse) lse[position] = total;
    if (total == GK_INF) total = GK_NAN;
    if (probs) {
        loss = total * r.ws - r.wx;
        wt = GK_R(1.0);
    } else if (id != ignore) {
        if (id < 0 || id >= C) gk_report(err, code);
        else {
            wt = w ? gk_load(w, id) : GK_R(1.0);
            loss = (GK_R(1.0) - smooth) * wt * (total - xt);
            if (smooth != GK_R(0.0)) loss += smooth / (gk_f)C * (total * r.ws - r.wx);
        }
    }
    if (y) gk_store(y, position, loss);
    if (item) { item[position] = loss; weight[position] = wt; }
}

/* S = 1: a group of `lanes` threads per row. */
GK_KERNEL(cross_entropy_rows)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), int probs, GK_IN(gk_t, w), GK_OUT(gk_f, lse),
                              GK_OUT(gk_t, y), GK_OUT(gk_f, item), GK_OUT(gk_f, weight), GK_OUT(int, err), int code, gk_i64 N, gk_i64 C, int lanes,
                              int wide, gk_i64 ignore, gk_f smooth)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight); GK_BIND_OUT(int, err);
    int lane = gk_lid() & (lanes - 1), sums = probs || smooth != GK_R(0.0);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < N; first += GK_LOSS_GROUPS(lanes)) {
        gk_i64 n = first + gk_lid() / lanes, base = n * C, k = lane;
        gk_row r;
        r.max = -GK_INF; r.sum = GK_R(0.0); r.wx = GK_R(0.0); r.ws = GK_R(0.0);
        if (n < N) {
            if (wide && !sums) {
                /* Scalars up to the first boundary of a line and after the last vector. Not (GK_LINE - base % GK_LINE) % GK_LINE: for GK_W = 2 that
                 * becomes arithmetic on single bits, at which the compiler of HIP 5.2 dies. */
                gk_i64 head = base % GK_LINE == 0 ? 0 : GK_LINE - base % GK_LINE;
                if (head > C) head = C;
                gk_i64 vectors = (C - head) / GK_W;
                for (; k < head; k += lanes) gk_row_add(&r, gk_load(x, base + k));
                gk_i64 v = lane;
                for (; v + (GK_LOSS_DEPTH - 1) * lanes < vectors; v += GK_LOSS_DEPTH * lanes) {
                    gk_vec a[GK_LOSS_DEPTH];
                    GK_UNROLL for (int u = 0; u < GK_LOSS_DEPTH; u++) a[u] = gk_loadv(x, base + head + (v + u * lanes) * GK_W);
                    gk_row_addv(&r, a, GK_LOSS_DEPTH);
                }
                for (; v < vectors; v += lanes) {
                    gk_vec a = gk_loadv(x, base + head + v * GK_W);
                    gk_row_addv(&r, &a, 1);
                }
                k = head + vectors * GK_W + lane;
            }
            for (; k < C; k += lanes) {
                gk_f v = gk_load(x, base + k);
                gk_row_add(&r, v);
                if (sums) {
                    gk_f q = w ? gk_load(w, k) : GK_R(1.0);
                    if (probs) q *= (GK_R(1.0) - smooth) * gk_load(prob, base + k) + smooth / (gk_f)C;
                    r.wx += q * v;
                    r.ws += q;
                }
            }
        }
        gk_f top = gk_group_max(r.max, tmp, lanes);
        r.sum = gk_group_sum(r.max == -GK_INF ? r.sum : r.sum * gk_exp(r.max - top), tmp, lanes);
        r.max = top;
        if (sums) {
            r.wx = gk_group_sum(r.wx, tmp, lanes);
            r.ws = gk_group_sum(r.ws, tmp, lanes);
        }
        if (n < N && lane == 0) {
            gk_i64 id = probs ? 0 : gk_index(ids, n, wide_ids);
            gk_f xt = !probs && id >= 0 && id < C ? gk_load(x, base + id) : GK_R(0.0);
            gk_xent_finish(n, r, xt, id, probs, ignore, smooth, C, w, lse, y, item, weight, err, code);
        }
    }
}

/* S > 1: a thread per position, neighbours along S. */
GK_KERNEL(cross_entropy_inner)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), int probs, GK_IN(gk_t, w), GK_OUT(gk_f, lse),
                               GK_OUT(gk_t, y), GK_OUT(gk_f, item), GK_OUT(gk_f, weight), GK_OUT(int, err), int code, gk_i64 N, gk_i64 C, gk_i64 S,
                               gk_i64 ignore, gk_f smooth)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight); GK_BIND_OUT(int, err);
    int sums = probs || smooth != GK_R(0.0);
    for (gk_i64 i = gk_gid(); i < N * S; i += gk_gsize()) {
        gk_i64 n = i / S, base = n * C * S + (i - n * S);
        gk_row r;
        r.max = -GK_INF; r.sum = GK_R(0.0); r.wx = GK_R(0.0); r.ws = GK_R(0.0);
        for (gk_i64 k = 0; k < C; k++) {
            gk_f v = gk_load(x, base + k * S);
            gk_row_add(&r, v);
            if (sums) {
                gk_f q = w ? gk_load(w, k) : GK_R(1.0);
                if (probs) q *= (GK_R(1.0) - smooth) * gk_load(prob, base + k * S) + smooth / (gk_f)C;
                r.wx += q * v;
                r.ws += q;
            }
        }
        gk_i64 id = probs ? 0 : gk_index(ids, i, wide_ids);
        gk_f xt = !probs && id >= 0 && id < C ? gk_load(x, base + id * S) : GK_R(0.0);
        gk_xent_finish(i, r, xt, id, probs, ignore, smooth, C, w, lse, y, item, weight, err, code);
    }
}

/* Sum of the class weights. One block. */
GK_KERNEL(cross_entropy_weight_sum)(GK_IN(gk_t, w), GK_OUT(gk_f, sum), gk_i64 C)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, sum);
    gk_f s = GK_R(0.0);
    for (gk_i64 k = gk_lid(); k < C; k += GK_BLOCK) s += gk_load(w, k);
    s = gk_block_sum(s, tmp);
    if (gk_lid() == 0) sum[0] = s;
}

/* Per position of a probability target: sum_c w_c q_c, which multiplies P in the gradient. Block per position. */
GK_KERNEL(cross_entropy_prob_sum)(GK_IN(gk_t, prob), GK_IN(gk_t, w), GK_OUT(gk_f, sum), gk_i64 N, gk_i64 C, gk_i64 S, gk_f smooth)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, sum);
    for (gk_i64 i = gk_bid(0); i < N * S; i += gk_nblocks(0)) {
        gk_i64 n = i / S, base = n * C * S + (i - n * S);
        gk_f s = GK_R(0.0);
        for (gk_i64 k = gk_lid(); k < C; k += GK_BLOCK)
            s += (w ? gk_load(w, k) : GK_R(1.0)) * ((GK_R(1.0) - smooth) * gk_load(prob, base + k * S) + smooth / (gk_f)C);
        s = gk_block_sum(s, tmp);
        if (gk_lid() == 0) sum[i] = s;
    }
}

/* Gradient of one logit: scale * ((1-e) w_t (P - [k = t]) + e/C (P wsum - w_k)) for ids, scale * (P wsum - w_k q_k) for probabilities. */
#define GK_XENT_GRAD(v, k) \
    (probs ? scale * (gk_exp((v) - total) * wsum - (w ? gk_load(w, k) : GK_R(1.0)) * ((GK_R(1.0) - smooth) * gk_load(prob, base + (k) * S) + smooth / (gk_f)C)) \
           : scale * ((GK_R(1.0) - smooth) * wt * (gk_exp((v) - total) - ((k) == id ? GK_R(1.0) : GK_R(0.0))) \
                      + (smooth != GK_R(0.0) ? smooth / (gk_f)C * (gk_exp((v) - total) * wsum - (w ? gk_load(w, k) : GK_R(1.0))) : GK_R(0.0))))

/* What every position of the backward needs. */
#define GK_XENT_POSITION(i) \
    gk_i64 id = probs ? 0 : gk_index(ids, i, wide_ids); \
    int counts = probs || (id != ignore && id >= 0 && id < C); \
    gk_f total = lse[i], wt = !probs && counts && w ? gk_load(w, id) : GK_R(1.0); \
    gk_f scale = each ? gk_load(gy, i) : gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0); \
    gk_f wsum = wsums ? wsums[probs ? (i) : 0] : (gk_f)C; \
    if (den) scale /= den[0]; \
    if (!probs && id != ignore && !counts) gk_report(err, code);

/* f (P - [k = id]) of n vectors that lie `lanes` vectors apart, the first being vector v of the row; 0 for a row that does not count. Elements and id
 * are counted from `base`. */
GK_FN void gk_xent_grad_vectors(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_i64 base, gk_i64 v, int lanes, int counts, gk_f f, gk_f total,
                                gk_i64 id, const int n)
{
    gk_vec a[GK_LOSS_DEPTH];
    if (counts) {
        GK_UNROLL for (int u = 0; u < n; u++) a[u] = gk_loadv(x, base + (v + u * lanes) * GK_W);
        GK_UNROLL for (int u = 0; u < n; u++) {
            gk_i64 at = id - (v + u * lanes) * GK_W;
            int hot = at >= 0 && at < GK_W ? (int)at : -1;
            GK_UNROLL for (int j = 0; j < GK_W; j++) {
                gk_f e = f * gk_exp_t(a[u].v[j] - total);
                a[u].v[j] = j == hot ? e - f : e;
            }
        }
    } else {
        GK_UNROLL for (int u = 0; u < n; u++)
            GK_UNROLL for (int j = 0; j < GK_W; j++) a[u].v[j] = GK_R(0.0);
    }
    GK_UNROLL for (int u = 0; u < n; u++) gk_storev_quick(dx, base + (v + u * lanes) * GK_W, a[u]);
}

/* S = 1: a group of `lanes` threads per row. */
GK_KERNEL(cross_entropy_bwd_rows)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), int probs, GK_IN(gk_t, w), GK_IN(gk_f, wsums),
                                  GK_IN(gk_f, lse), GK_IN(gk_t, gy), int each, int gy_f32, GK_IN(gk_f, den), GK_OUT(gk_t, dx), GK_OUT(int, err),
                                  int code, gk_i64 N, gk_i64 C, int lanes, int wide, gk_i64 ignore, gk_f smooth, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, wsums); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    const gk_i64 S = 1;
    int lane = gk_lid() & (lanes - 1);
    for (gk_i64 n = GK_LOSS_GROUP(lanes); n < N; n += GK_LOSS_GROUPS(lanes)) {
        gk_i64 base = n * C, k = lane;
        GK_XENT_POSITION(n)
        if (wide && !accumulate && !probs && smooth == GK_R(0.0)) {
            gk_i64 head = base % GK_LINE == 0 ? 0 : GK_LINE - base % GK_LINE;
            if (head > C) head = C;
            gk_i64 vectors = (C - head) / GK_W;
            gk_f f = scale * wt;
            for (; k < head; k += lanes) gk_store(dx, base + k, counts ? GK_XENT_GRAD(gk_load(x, base + k), k) : GK_R(0.0));
            gk_i64 v = lane;
            for (; v + (GK_LOSS_DEPTH - 1) * lanes < vectors; v += GK_LOSS_DEPTH * lanes)
                gk_xent_grad_vectors(x, dx, base + head, v, lanes, counts, f, total, id - head, GK_LOSS_DEPTH);
            for (; v < vectors; v += lanes) gk_xent_grad_vectors(x, dx, base + head, v, lanes, counts, f, total, id - head, 1);
            k = head + vectors * GK_W + lane;
        }
        for (; k < C; k += lanes) {
            gk_f d = counts ? GK_XENT_GRAD(gk_load(x, base + k), k) : GK_R(0.0);
            gk_store(dx, base + k, accumulate ? gk_load(dx, base + k) + d : d);
        }
    }
}

/* S > 1: thread per position. */
GK_KERNEL(cross_entropy_bwd_inner)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), int probs, GK_IN(gk_t, w), GK_IN(gk_f, wsums),
                          GK_IN(gk_f, lse), GK_IN(gk_t, gy), int each, int gy_f32, GK_IN(gk_f, den), GK_OUT(gk_t, dx), GK_OUT(int, err), int code,
                          gk_i64 N, gk_i64 C, gk_i64 S, gk_i64 ignore, gk_f smooth, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, wsums); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < N * S; i += gk_gsize()) {
        gk_i64 n = i / S, base = n * C * S + (i - n * S);
        GK_XENT_POSITION(i)
        for (gk_i64 k = 0; k < C; k++) {
            gk_i64 at = base + k * S;
            gk_f d = counts ? GK_XENT_GRAD(gk_load(x, at), k) : GK_R(0.0);
            gk_store(dx, at, accumulate ? gk_load(dx, at) + d : d);
        }
    }
}
#endif
