/* Elementwise losses and cross entropy, with reductions to device scalars.
 *
 * Forward of Mean and Sum: items are summed per block into partial pairs (loss, weight), then one block adds the pairs in order: a fixed
 * tree, so results repeat bit by bit. Items and sums in gk_f. GK_OP names the elementwise loss; units without it hold the rest.
 */

#include "common/prelude/rows.h"
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

/* d (+)= sign * v, a vector. */
GK_FN void gk_loss_putv(GK_GLOBAL gk_t* d, gk_i64 at, gk_vec v, int accumulate, gk_f sign)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] *= sign;
    if (accumulate) {
        gk_vec o = gk_loadv(d, at);
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += o.v[k];
    }
    gk_storev(d, at, v);
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
        gk_i64 at = i * GK_W;
        gk_vec d = gk_loadv(p, at), b = gk_loadv(t, at);
        GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] = g * GK_LOSS_GRAD(d.v[k], b.v[k], h);
        if (weight) {
            b = gk_loadv(weight, at);
            GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] *= b.v[k];
        }
        if (each) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] *= gk_load(gy, at + k);
        }
        if (mask) {
            GK_UNROLL for (int k = 0; k < GK_W; k++) d.v[k] = mask[at + k] ? d.v[k] : GK_R(0.0);
        }
        if (dp) gk_loss_putv(dp, at, d, acc_p, GK_R(1.0));
        if (dt) gk_loss_putv(dt, at, d, acc_t, GK_R(-1.0));
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
    gk_i64 i = gk_gid(), step = gk_gsize();
    for (; i + 7 * step < n; i += 8 * step) GK_UNROLL for (int u = 0; u < 8; u++) count += GK_ITEM_WEIGHT(i + u * step);
    for (; i < n; i += step) count += GK_ITEM_WEIGHT(i);
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

/* The same for n values, or n vectors: one rescaling. */
GK_FN void gk_row_take(gk_row* r, const gk_f* x, const int n)
{
    gk_f m = r->max, s = GK_R(0.0);
    GK_UNROLL for (int u = 0; u < n; u++) m = x[u] > m ? x[u] : m;
    if (m > r->max) { r->sum *= gk_exp_t(r->max - m); r->max = m; }
    if (m == -GK_INF) m = GK_R(0.0);
    GK_UNROLL for (int u = 0; u < n; u++) s += gk_exp_t(x[u] - m);
    r->sum += s;
}
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
#define GK_CLASS_DEPTH (GK_W > 4 ? 2 : 4) /* the same for threads that lie along positions: they keep numbers for each element of a vector */
#define GK_LINE (8 * GK_W) /* elements in a line of 128 bytes, at which vectors begin */

/* Scalars of a row of C elements from `base` on up to the first boundary of a line. Not (GK_LINE - base % GK_LINE) % GK_LINE: for GK_W = 2 that
 * becomes arithmetic on single bits, at which the compiler of HIP 5.2 dies. */
GK_FN gk_i64 gk_line_head(gk_i64 base, gk_i64 C)
{
    gk_i64 head = base % GK_LINE == 0 ? 0 : GK_LINE - base % GK_LINE;
    return head > C ? C : head;
}

/* The target of all positions: probabilities (null for ids), class weights (null = 1), 1 - e and e/C. */
typedef struct { GK_GLOBAL const gk_t *prob, *w; gk_f keep, spread; gk_i64 C; } gk_target;
GK_FN gk_target gk_make_target(GK_GLOBAL const gk_t* prob, GK_GLOBAL const gk_t* w, gk_f smooth, gk_i64 C)
{
    gk_target t;
    t.prob = prob; t.w = w; t.keep = GK_R(1.0) - smooth; t.spread = smooth / (gk_f)C; t.C = C;
    return t;
}
GK_FN gk_f gk_class_weight(gk_target t, gk_i64 k) { return t.w ? gk_load(t.w, k) : GK_R(1.0); }
/* w_k q_k, q = 1 for ids; `at` is the place of class k among the probabilities. */
GK_FN gk_f gk_share(gk_target t, gk_i64 k, gk_i64 at)
{
    gk_f q = gk_class_weight(t, k);
    return t.prob ? q * (t.keep * gk_load(t.prob, at) + t.spread) : q;
}
/* The same of n vectors that lie `step` classes apart, the first at class k; whole: vectors of w are aligned. */
GK_FN void gk_share_vectors(gk_target t, gk_vec* q, gk_i64 base, gk_i64 k, gk_i64 step, int whole, const int n)
{
    gk_vec c[GK_LOSS_DEPTH];
    if (t.prob) {
        GK_UNROLL for (int u = 0; u < n; u++) q[u] = gk_loadv(t.prob, base + k + u * step);
    }
    if (t.w && whole) {
        GK_UNROLL for (int u = 0; u < n; u++) c[u] = gk_loadv(t.w, k + u * step);
    } else {
        GK_UNROLL for (int u = 0; u < n; u++)
            GK_UNROLL for (int j = 0; j < GK_W; j++) c[u].v[j] = gk_class_weight(t, k + u * step + j);
    }
    GK_UNROLL for (int u = 0; u < n; u++)
        GK_UNROLL for (int j = 0; j < GK_W; j++) q[u].v[j] = t.prob ? c[u].v[j] * (t.keep * q[u].v[j] + t.spread) : c[u].v[j];
}

GK_FN gk_row gk_row_begin(void)
{
    gk_row r;
    r.max = -GK_INF; r.sum = GK_R(0.0); r.wx = GK_R(0.0); r.ws = GK_R(0.0);
    return r;
}
/* The sum of exponentials relative to `top` instead of r.max <= top. */
GK_FN gk_f gk_row_at(gk_row r, gk_f top) { return r.max == -GK_INF ? r.sum : r.sum * gk_exp(r.max - top); }
/* Takes in n vectors of a row; sums: the weighted sums too. */
GK_FN void gk_row_vectors(gk_row* r, GK_GLOBAL const gk_t* x, gk_target t, gk_i64 base, gk_i64 k, gk_i64 step, int sums, int whole, const int n)
{
    gk_vec a[GK_LOSS_DEPTH], q[GK_LOSS_DEPTH];
    GK_UNROLL for (int u = 0; u < n; u++) a[u] = gk_loadv(x, base + k + u * step);
    if (sums) {
        gk_share_vectors(t, q, base, k, step, whole, n);
        GK_UNROLL for (int u = 0; u < n; u++)
            GK_UNROLL for (int j = 0; j < GK_W; j++) { r->wx += q[u].v[j] * a[u].v[j]; r->ws += q[u].v[j]; }
    }
    gk_row_addv(r, a, n);
}
GK_FN void gk_row_element(gk_row* r, GK_GLOBAL const gk_t* x, gk_target t, gk_i64 base, gk_i64 k, int sums)
{
    gk_f v = gk_load(x, base + k);
    gk_row_add(r, v);
    if (sums) {
        gk_f q = gk_share(t, k, base + k);
        r->wx += q * v;
        r->ws += q;
    }
}

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

/* S = 1: a group of `lanes` threads per row. wide: 1 = rows are read in vectors, 2 = vectors of w are aligned as well. */
GK_KERNEL(cross_entropy_rows)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), GK_IN(gk_t, w), GK_OUT(gk_f, lse),
                              GK_OUT(gk_t, y), GK_OUT(gk_f, item), GK_OUT(gk_f, weight), GK_OUT(int, err), int code, gk_i64 N, gk_i64 C, int lanes,
                              int wide, gk_i64 ignore, gk_f smooth)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight); GK_BIND_OUT(int, err);
    int lane = gk_lid() & (lanes - 1), probs = prob != 0, sums = probs || smooth != GK_R(0.0), whole = wide & 2;
    gk_target t = gk_make_target(prob, w, smooth, C);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < N; first += GK_LOSS_GROUPS(lanes)) {
        gk_i64 n = first + gk_lid() / lanes, base = n * C, k = lane;
        gk_row r = gk_row_begin();
        if (n < N) {
            if (wide) {
                gk_i64 head = gk_line_head(base, C), end = head + (C - head) / GK_W * GK_W, step = lanes * GK_W;
                for (; k < head; k += lanes) gk_row_element(&r, x, t, base, k, sums);
                k = head + lane * GK_W;
                if (!sums) for (; k + (GK_LOSS_DEPTH - 1) * step < end; k += GK_LOSS_DEPTH * step)
                    gk_row_vectors(&r, x, t, base, k, step, 0, whole, GK_LOSS_DEPTH);
                for (; k + step < end; k += 2 * step) gk_row_vectors(&r, x, t, base, k, step, sums, whole, 2);
                for (; k < end; k += step) gk_row_vectors(&r, x, t, base, k, step, sums, whole, 1);
                k = end + lane;
            }
            for (; k < C; k += lanes) gk_row_element(&r, x, t, base, k, sums);
        }
        gk_f top = gk_group_max(r.max, tmp, lanes);
        r.sum = gk_group_sum(gk_row_at(r, top), tmp, lanes);
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

/* Takes in n classes, `step` apart from class k on, of the positions at `base`: one, or GK_W neighbours if wide. */
GK_FN void gk_row_classes(gk_row* r, GK_GLOBAL const gk_t* x, gk_target t, gk_i64 base, gk_i64 S, gk_i64 k, int step, int sums, int wide,
                          const int n)
{
    gk_vec a[GK_LOSS_DEPTH], q[GK_LOSS_DEPTH];
    gk_f v[GK_LOSS_DEPTH];
    GK_UNROLL for (int u = 0; u < n; u++) a[u] = gk_item(x, base + (k + u * step) * S, wide);
    if (sums && t.prob) {
        GK_UNROLL for (int u = 0; u < n; u++) q[u] = gk_item(t.prob, base + (k + u * step) * S, wide);
    }
    if (sums) {
        GK_UNROLL for (int u = 0; u < n; u++) {
            gk_f c = gk_class_weight(t, k + u * step);
            GK_UNROLL for (int j = 0; j < GK_W; j++) {
                gk_f share = t.prob ? c * (t.keep * q[u].v[j] + t.spread) : c;
                r[j].wx += share * a[u].v[j];
                r[j].ws += share;
            }
        }
    }
    GK_UNROLL for (int j = 0; j < GK_W; j++) {
        GK_UNROLL for (int u = 0; u < n; u++) v[u] = a[u].v[j];
        if (j == 0 || wide) gk_row_take(&r[j], v, n);
    }
}

/* S > 1: `tx` threads lie side by side along S, each with a position (GK_W neighbours if wide); the others of a block share the classes. */
GK_KERNEL(cross_entropy_inner)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), GK_IN(gk_t, w), GK_OUT(gk_f, lse),
                               GK_OUT(gk_t, y), GK_OUT(gk_f, item), GK_OUT(gk_f, weight), GK_OUT(int, err), int code, gk_i64 N, gk_i64 C, gk_i64 S,
                               int tx, int wide, gk_i64 ignore, gk_f smooth)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight); GK_BIND_OUT(int, err);
    int probs = prob != 0, sums = probs || smooth != GK_R(0.0), ty = gk_lid() / tx, step = GK_BLOCK / tx, per = wide ? GK_W : 1;
    gk_target t = gk_make_target(prob, w, smooth, C);
    gk_i64 across = S / per, items = N * across, tiles = (items + tx - 1) / tx;
    for (gk_i64 tile = gk_bid(0); tile < tiles; tile += gk_nblocks(0)) {
        gk_i64 at = tile * tx + (gk_lid() & (tx - 1)), n = gk_quot(at, across), base = n * C * S + (at - n * across) * per;
        gk_i64 end = at < items ? C : 0, k = ty;
        gk_row r[GK_W];
        GK_UNROLL for (int j = 0; j < GK_W; j++) r[j] = gk_row_begin();
        for (; k + (GK_CLASS_DEPTH - 1) * step < end; k += GK_CLASS_DEPTH * step)
            gk_row_classes(r, x, t, base, S, k, step, sums, wide, GK_CLASS_DEPTH);
        for (; k < end; k += step) gk_row_classes(r, x, t, base, S, k, step, sums, wide, 1);
        GK_UNROLL for (int j = 0; j < GK_W; j++) {
            if (j > 0 && !wide) continue;
            gk_f top = gk_across_max(r[j].max, tmp, tx);
            r[j].sum = gk_across_sum(gk_row_at(r[j], top), tmp, tx);
            r[j].max = top;
            if (sums) {
                r[j].wx = gk_across_sum(r[j].wx, tmp, tx);
                r[j].ws = gk_across_sum(r[j].ws, tmp, tx);
            }
            if (ty == 0 && at < items) {
                gk_i64 id = probs ? 0 : gk_index(ids, at * per + j, wide_ids);
                gk_f xt = !probs && id >= 0 && id < C ? gk_load(x, base + j + id * S) : GK_R(0.0);
                gk_xent_finish(at * per + j, r[j], xt, id, probs, ignore, smooth, C, w, lse, y, item, weight, err, code);
            }
        }
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

/* The gradient of a position: p P_k - (k = id ? hot : 0) - each w_k q_k for class k, q = 1 for ids; 0 where the position does not count. Which is
 * scale ((1-e) w_t (P - [k = t]) + e/C (P wsum - w_k)) for ids, scale (P wsum - w_k q_k) for probabilities. */
typedef struct { gk_f total, p, hot, each; gk_i64 id; int counts; } gk_slope;

/* What the gradients of all positions have in common. gy: one number (each = 0) or one per position; den is null for 1. */
typedef struct {
    GK_GLOBAL const int* ids;
    GK_GLOBAL const gk_f *lse, *den;
    GK_GLOBAL const gk_t* gy;
    GK_GLOBAL int* err;
    gk_i64 ignore;
    int wide, each, gy_f32, code;
} gk_positions;
GK_FN gk_positions gk_make_positions(GK_GLOBAL const int* ids, int wide, gk_i64 ignore, GK_GLOBAL const gk_f* lse, GK_GLOBAL const gk_t* gy, int each,
                                     int gy_f32, GK_GLOBAL const gk_f* den, GK_GLOBAL int* err, int code)
{
    gk_positions p;
    p.ids = ids; p.wide = wide; p.ignore = ignore; p.lse = lse; p.gy = gy; p.each = each; p.gy_f32 = gy_f32; p.den = den; p.err = err; p.code = code;
    return p;
}

/* gk_slope of position i; wsum: the factor of P in the second terms. */
GK_FN gk_slope gk_slope_of(const gk_positions* p, gk_target t, gk_i64 i, gk_f wsum)
{
    gk_slope g;
    gk_f scale = p->each ? gk_load(p->gy, i) : p->gy_f32 ? (gk_f)((GK_GLOBAL const float*)p->gy)[0] : gk_load(p->gy, 0);
    if (p->den) scale /= p->den[0];
    g.total = p->lse[i]; g.id = -1; g.counts = 1; g.hot = GK_R(0.0); g.each = scale; g.p = scale * wsum;
    if (t.prob) return g;
    g.id = gk_index(p->ids, i, p->wide);
    g.counts = g.id != p->ignore && g.id >= 0 && g.id < t.C;
    if (g.id != p->ignore && !g.counts) gk_report(p->err, p->code);
    g.hot = scale * t.keep * (g.counts ? gk_class_weight(t, g.id) : GK_R(1.0));
    g.each = scale * t.spread;
    g.p = t.spread != GK_R(0.0) ? g.hot + g.each * wsum : g.hot;
    return g;
}

GK_FN gk_f gk_xent_grad(const gk_slope* g, gk_f x, gk_i64 k, gk_f share)
{
    gk_f d = g->p * gk_exp_t(x - g->total) - g->each * share;
    if (k == g->id) d -= g->hot;
    return g->counts ? d : GK_R(0.0);
}

/* The gradient of n vectors of a row that lie `step` classes apart, the first at class k; sums: with weighted terms. */
GK_FN void gk_xent_grad_vectors(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_target t, const gk_slope* g, gk_i64 base, gk_i64 k, gk_i64 step,
                                int sums, int whole, int accumulate, const int n)
{
    gk_vec a[GK_LOSS_DEPTH], q[GK_LOSS_DEPTH], o[GK_LOSS_DEPTH];
    GK_UNROLL for (int u = 0; u < n; u++) a[u] = gk_loadv(x, base + k + u * step);
    if (accumulate) {
        GK_UNROLL for (int u = 0; u < n; u++) o[u] = gk_loadv(dx, base + k + u * step);
    }
    if (sums) gk_share_vectors(t, q, base, k, step, whole, n);
    GK_UNROLL for (int u = 0; u < n; u++) {
        gk_i64 far = g->id - (k + u * step);
        int hot = far >= 0 && far < GK_W ? (int)far : -1;
        GK_UNROLL for (int j = 0; j < GK_W; j++) {
            gk_f d = g->p * gk_exp_t(a[u].v[j] - g->total);
            if (sums) d -= g->each * q[u].v[j];
            d = j == hot ? d - g->hot : d;
            if (!g->counts) d = GK_R(0.0);
            a[u].v[j] = accumulate ? o[u].v[j] + d : d;
        }
    }
    GK_UNROLL for (int u = 0; u < n; u++) gk_storev(dx, base + k + u * step, a[u]);
}
GK_FN void gk_xent_grad_element(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_target t, const gk_slope* g, gk_i64 at, gk_i64 k, int sums,
                                int accumulate)
{
    gk_f d = gk_xent_grad(g, gk_load(x, at), k, sums ? gk_share(t, k, at) : GK_R(0.0));
    gk_store(dx, at, accumulate ? gk_load(dx, at) + d : d);
}

/* A thread's part of sum_k w_k q_k of a row. */
GK_FN gk_f gk_share_sum(gk_target t, gk_i64 base, gk_i64 head, gk_i64 end, int lane, int lanes, int wide)
{
    gk_f s = GK_R(0.0);
    gk_i64 k = lane, step = lanes * GK_W;
    gk_vec q[GK_LOSS_DEPTH];
    if (wide) {
        for (; k < head; k += lanes) s += gk_share(t, k, base + k);
        for (k = head + lane * GK_W; k + (GK_LOSS_DEPTH - 1) * step < end; k += GK_LOSS_DEPTH * step) {
            gk_share_vectors(t, q, base, k, step, wide & 2, GK_LOSS_DEPTH);
            GK_UNROLL for (int u = 0; u < GK_LOSS_DEPTH; u++) GK_UNROLL for (int j = 0; j < GK_W; j++) s += q[u].v[j];
        }
        for (; k < end; k += step) {
            gk_share_vectors(t, q, base, k, step, wide & 2, 1);
            GK_UNROLL for (int j = 0; j < GK_W; j++) s += q[0].v[j];
        }
        k = end + lane;
    }
    for (; k < t.C; k += lanes) s += gk_share(t, k, base + k);
    return s;
}

/* S = 1: a group of `lanes` threads per row. wide as in the forward. wsum: the sum of the class weights (null = C). */
GK_KERNEL(cross_entropy_bwd_rows)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), GK_IN(gk_t, w), GK_IN(gk_f, wsum),
                                  GK_IN(gk_f, lse), GK_IN(gk_t, gy), int each, int gy_f32, GK_IN(gk_f, den), GK_OUT(gk_t, dx), GK_OUT(int, err),
                                  int code, gk_i64 N, gk_i64 C, int lanes, int wide, gk_i64 ignore, gk_f smooth, int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, wsum); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    int lane = gk_lid() & (lanes - 1), probs = prob != 0, sums = probs || smooth != GK_R(0.0), whole = wide & 2;
    gk_target t = gk_make_target(prob, w, smooth, C);
    gk_positions rows = gk_make_positions(ids, wide_ids, ignore, lse, gy, each, gy_f32, den, err, code);
    gk_f all = wsum ? wsum[0] : (gk_f)C;
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < N; first += GK_LOSS_GROUPS(lanes)) {
        gk_i64 n = first + gk_lid() / lanes, base = n * C, k = lane, step = lanes * GK_W;
        gk_i64 head = gk_line_head(base, C), end = head + (C - head) / GK_W * GK_W;
        if (probs) all = gk_group_sum(n < N ? gk_share_sum(t, base, head, end, lane, lanes, wide) : GK_R(0.0), tmp, lanes);
        if (n >= N) continue;
        gk_slope g = gk_slope_of(&rows, t, n, all);
        if (wide) {
            for (; k < head; k += lanes) gk_xent_grad_element(x, dx, t, &g, base + k, k, sums, accumulate);
            k = head + lane * GK_W;
            if (!sums && !accumulate) for (; k + (GK_LOSS_DEPTH - 1) * step < end; k += GK_LOSS_DEPTH * step)
                gk_xent_grad_vectors(x, dx, t, &g, base, k, step, 0, whole, 0, GK_LOSS_DEPTH);
            for (; k + step < end; k += 2 * step) gk_xent_grad_vectors(x, dx, t, &g, base, k, step, sums, whole, accumulate, 2);
            for (; k < end; k += step) gk_xent_grad_vectors(x, dx, t, &g, base, k, step, sums, whole, accumulate, 1);
            k = end + lane;
        }
        for (; k < C; k += lanes) gk_xent_grad_element(x, dx, t, &g, base + k, k, sums, accumulate);
    }
}

/* The gradient of n classes, `step` apart from class k on, of the positions at `base`. */
GK_FN void gk_xent_grad_classes(GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_target t, const gk_slope* g, gk_i64 base, gk_i64 S, gk_i64 k,
                                int step, int sums, int wide, int accumulate, const int n)
{
    gk_vec a[GK_LOSS_DEPTH], q[GK_LOSS_DEPTH];
    GK_UNROLL for (int u = 0; u < n; u++) a[u] = gk_item(x, base + (k + u * step) * S, wide);
    if (t.prob) {
        GK_UNROLL for (int u = 0; u < n; u++) q[u] = gk_item(t.prob, base + (k + u * step) * S, wide);
    }
    GK_UNROLL for (int u = 0; u < n; u++) {
        gk_i64 at = base + (k + u * step) * S;
        gk_f c = sums ? gk_class_weight(t, k + u * step) : GK_R(0.0);
        gk_vec o = a[u];
        if (accumulate) o = gk_item(dx, at, wide);
        GK_UNROLL for (int j = 0; j < GK_W; j++) {
            gk_f d = gk_xent_grad(&g[j], a[u].v[j], k + u * step, t.prob ? c * (t.keep * q[u].v[j] + t.spread) : c);
            o.v[j] = accumulate ? o.v[j] + d : d;
        }
        gk_put_item(dx, at, o, wide);
    }
}

/* S > 1, laid out as the forward. */
GK_KERNEL(cross_entropy_bwd_inner)(GK_IN(gk_t, x), GK_IN(int, ids), int wide_ids, GK_IN(gk_t, prob), GK_IN(gk_t, w), GK_IN(gk_f, wsum),
                          GK_IN(gk_f, lse), GK_IN(gk_t, gy), int each, int gy_f32, GK_IN(gk_f, den), GK_OUT(gk_t, dx), GK_OUT(int, err), int code,
                          gk_i64 N, gk_i64 C, gk_i64 S, int tx, int wide, gk_i64 ignore, gk_f smooth, int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, prob); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, wsum); GK_BIND_IN(gk_f, lse);
    GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    int probs = prob != 0, sums = probs || smooth != GK_R(0.0), ty = gk_lid() / tx, step = GK_BLOCK / tx, per = wide ? GK_W : 1;
    gk_target t = gk_make_target(prob, w, smooth, C);
    gk_positions positions = gk_make_positions(ids, wide_ids, ignore, lse, gy, each, gy_f32, den, err, code);
    gk_i64 across = S / per, items = N * across, tiles = (items + tx - 1) / tx;
    for (gk_i64 tile = gk_bid(0); tile < tiles; tile += gk_nblocks(0)) {
        gk_i64 at = tile * tx + (gk_lid() & (tx - 1)), n = gk_quot(at, across), base = n * C * S + (at - n * across) * per;
        gk_i64 end = at < items ? C : 0, k = ty;
        gk_f all[GK_W];
        gk_slope g[GK_W];
        GK_UNROLL for (int j = 0; j < GK_W; j++) all[j] = probs ? GK_R(0.0) : wsum ? wsum[0] : (gk_f)C;
        if (probs) {
            for (; k < end; k += step) {
                gk_vec q = gk_item(prob, base + k * S, wide);
                GK_UNROLL for (int j = 0; j < GK_W; j++) all[j] += gk_class_weight(t, k) * (t.keep * q.v[j] + t.spread);
            }
            GK_UNROLL for (int j = 0; j < GK_W; j++)
                if (j == 0 || wide) all[j] = gk_across_sum(all[j], tmp, tx);
        }
        if (at >= items) continue;
        GK_UNROLL for (int j = 0; j < GK_W; j++) g[j] = gk_slope_of(&positions, t, at * per + (wide ? j : 0), all[j]);
        for (k = ty; k + (GK_CLASS_DEPTH - 1) * step < end; k += GK_CLASS_DEPTH * step)
            gk_xent_grad_classes(x, dx, t, g, base, S, k, step, sums, wide, accumulate, GK_CLASS_DEPTH);
        for (; k < end; k += step) gk_xent_grad_classes(x, dx, t, g, base, S, k, step, sums, wide, accumulate, 1);
    }
}
#endif
