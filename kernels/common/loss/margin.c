/* Row losses beside those of loss/rows.c.
 *
 * kind 0, circle loss (Sun et al., 2020): x [rows, len] similarities, each a positive (y = 1, or the column ids[row]) or a negative (y = 0, or any
 *   other column); other values of y do not count. p: scale, margin, 1 = the weights a are constants for the gradient.
 *   a_p = max(0, 1 + m - x), a_n = max(0, x + m); item = softplus(lse_n(scale a_n (x - m)) + lse_p(-scale a_p (x - 1 + m))); 0 where a row lacks
 *   positives or negatives.
 * kind 1, KTO (Ethayarajh et al., 2024): x, reference [rows], y = 1 (desirable) or not, kl [1] or null; r = x - reference, z = max(0, kl).
 *   p: beta, weights. item = desirable sigmoid(-beta (r - z)), else undesirable sigmoid(-beta (z - r)).
 *
 * Launch: `lanes` threads per row, a power of two; the grid loops over groups of rows. Statistics in gk_f by a fixed tree. Deterministic.
 */

typedef struct { gk_f p0, p1, p2; int kind; } gk_margin;

/* 1 for a positive, 0 for a negative, -1 for neither. */
GK_FN int gk_circle_side(GK_GLOBAL const gk_t* y, gk_i64 at, gk_i64 column, gk_i64 id)
{
    if (!y) return column == id;
    gk_f v = gk_load(y, at);
    return v == GK_R(1.0) ? 1 : v == GK_R(0.0) ? 0 : -1;
}

GK_FN gk_f gk_relu_nan(gk_f v) { return v < GK_R(0.0) ? GK_R(0.0) : v; }
GK_FN gk_f gk_circle_logit(gk_f x, int side, gk_margin q)
{
    if (side) return -q.p0 * gk_relu_nan(GK_R(1.0) + q.p1 - x) * (x - (GK_R(1.0) - q.p1));
    return q.p0 * gk_relu_nan(x + q.p1) * (x - q.p1);
}
GK_FN gk_f gk_circle_slope(gk_f x, int side, gk_margin q)
{
    gk_f a = side ? GK_R(1.0) + q.p1 - x : x + q.p1, d = side ? x - (GK_R(1.0) - q.p1) : x - q.p1;
    if (a < GK_R(0.0)) return GK_R(0.0);
    /* The weight's own slope is -1 for positives, 1 for negatives. */
    if (q.p2 == GK_R(0.0) && a > GK_R(0.0)) a += side ? -d : d;
    return side ? -q.p0 * a : q.p0 * a;
}

/* 1 / (1 + e^-x), without overflow */
GK_FN gk_f gk_logistic(gk_f x)
{
    gk_f e = gk_exp(-gk_fabs(x));
    return x < GK_R(0.0) ? e / (GK_R(1.0) + e) : GK_R(1.0) / (GK_R(1.0) + e);
}

/* m[0], m[1]: largest logits of positives and negatives; s: sums of e^(logit - m); returns lse_p + lse_n. Every thread of the block takes part. */
GK_FN gk_f gk_circle_collect(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* y, gk_i64 at, gk_i64 len, gk_i64 id, int active, int lane, int lanes,
                             gk_margin q, gk_f* m, gk_f* s, GK_LOCAL_PTR gk_f* tmp)
{
    m[0] = m[1] = -GK_INF;
    s[0] = s[1] = GK_R(0.0);
    if (active) {
        for (gk_i64 e = lane; e < len; e += lanes) {
            int side = gk_circle_side(y, at + e, e, id);
            if (side == 1) m[0] = gk_max(m[0], gk_circle_logit(gk_load(x, at + e), 1, q));
            if (side == 0) m[1] = gk_max(m[1], gk_circle_logit(gk_load(x, at + e), 0, q));
        }
    }
    m[0] = gk_group_max(m[0], tmp, lanes);
    m[1] = gk_group_max(m[1], tmp, lanes);
    if (active) {
        for (gk_i64 e = lane; e < len; e += lanes) {
            int side = gk_circle_side(y, at + e, e, id);
            if (side == 1) s[0] += gk_exp(gk_circle_logit(gk_load(x, at + e), 1, q) - m[0]);
            if (side == 0) s[1] += gk_exp(gk_circle_logit(gk_load(x, at + e), 0, q) - m[1]);
        }
    }
    s[0] = gk_group_sum(s[0], tmp, lanes);
    s[1] = gk_group_sum(s[1], tmp, lanes);
    return m[0] + gk_log(s[0]) + m[1] + gk_log(s[1]);
}

/* Argument of the sigmoid in KTO: the item is weight * sigmoid(-u). sign: du/dx / beta. */
GK_FN gk_f gk_kto_argument(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* y, GK_GLOBAL const gk_t* reference, GK_GLOBAL const gk_t* kl, gk_i64 row,
                           gk_margin q, gk_f* weight, gk_f* sign)
{
    gk_f z = GK_R(0.0), r = gk_load(x, row) - gk_load(reference, row);
    if (kl) z = gk_relu_nan(gk_load(kl, 0));
    int good = gk_load(y, row) == GK_R(1.0);
    *weight = good ? q.p1 : q.p2;
    *sign = good ? GK_R(1.0) : GK_R(-1.0);
    return q.p0 * (r - z) * *sign;
}

// Units: FLOATS64
/* Items: y in storage (reduction none), or item in gk_f with weight 1. */
GK_KERNEL(margin_items)(GK_IN(gk_t, x), GK_IN(gk_t, y), GK_IN(gk_t, reference), GK_IN(gk_t, kl), GK_IN(int, ids), int wide, GK_OUT(int, err),
                        int code, gk_i64 rows, gk_i64 len, int lanes, int kind, gk_f p0, gk_f p1, gk_f p2, GK_OUT(gk_t, loss), GK_OUT(gk_f, item),
                        GK_OUT(gk_f, weight))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, reference); GK_BIND_IN(gk_t, kl); GK_BIND_IN(int, ids); GK_BIND_OUT(int, err);
    GK_BIND_OUT(gk_t, loss); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    gk_margin q;
    q.p0 = p0; q.p1 = p1; q.p2 = p2; q.kind = kind;
    int lane = gk_lid() & (lanes - 1);
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows; first += groups) {
        gk_i64 row = first + gk_lid() / lanes, id = -1;
        int active = row < rows;
        if (active && ids) {
            id = gk_index(ids, row, wide);
            if (id < 0 || id >= len) { gk_report(err, code); active = 0; }
        }
        gk_f m[2], s[2], v = GK_R(0.0), z = gk_circle_collect(x, y, row * len, len, id, active && kind == 0, lane, lanes, q, m, s, tmp);
        if (active && kind == 0 && m[0] != -GK_INF && m[1] != -GK_INF) v = gk_relu_nan(z) + gk_log1p(gk_exp(-gk_fabs(z)));
        if (active && kind == 1) {
            gk_f factor, sign, u = gk_kto_argument(x, y, reference, kl, row, q, &factor, &sign);
            v = factor * gk_logistic(-u);
        }
        if (row < rows && lane == 0) {
            if (loss) gk_store(loss, row, v);
            else { item[row] = v; weight[row] = GK_R(1.0); }
        }
    }
}

typedef struct {
    gk_f p0, p1, p2, factor;
    int each, narrow;
} gk_margin_grad_args;

/* dx (+)= upstream * slope; gy: one number per row (each) or one, as float where narrow is set. */
GK_KERNEL(margin_grad)(GK_IN(gk_t, x), GK_IN(gk_t, y), GK_IN(gk_t, reference), GK_IN(gk_t, kl), GK_IN(int, ids), int wide, GK_OUT(int, err),
                       int code, gk_i64 rows, gk_i64 len, int lanes, int kind, GK_IN(gk_t, gy), GK_OUT(gk_t, dx), int accumulate,
                       GK_BY_VALUE(gk_margin_grad_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, y); GK_BIND_IN(gk_t, reference); GK_BIND_IN(gk_t, kl); GK_BIND_IN(int, ids); GK_BIND_OUT(int, err);
    GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dx);
    gk_margin q;
    q.p0 = args.p0; q.p1 = args.p1; q.p2 = args.p2; q.kind = kind;
    int lane = gk_lid() & (lanes - 1);
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows; first += groups) {
        gk_i64 row = first + gk_lid() / lanes, id = -1;
        int active = row < rows, counts = 1;
        if (active && ids) {
            id = gk_index(ids, row, wide);
            if (id < 0 || id >= len) { gk_report(err, code); counts = 0; }
        }
        gk_f m[2], s[2], z = gk_circle_collect(x, y, row * len, len, id, active && counts && kind == 0, lane, lanes, q, m, s, tmp), up = GK_R(0.0);
        if (active) {
            gk_i64 from = args.each ? row : 0;
            if (args.narrow) up = (gk_f)((GK_GLOBAL const float*)gy)[from]; else up = gk_load(gy, from);
            up *= args.factor;
        }
        if (active && kind == 0) {
            int whole = counts && m[0] != -GK_INF && m[1] != -GK_INF;
            gk_f share = whole ? gk_logistic(z) * up : GK_R(0.0);
            for (gk_i64 e = lane; e < len; e += lanes) {
                gk_f d = GK_R(0.0);
                int side = gk_circle_side(y, row * len + e, e, id);
                if (whole && side >= 0) {
                    gk_f v = gk_load(x, row * len + e), top = side ? m[0] : m[1], sum = side ? s[0] : s[1];
                    d = share * gk_exp(gk_circle_logit(v, side, q) - top) / sum * gk_circle_slope(v, side, q);
                }
                if (accumulate) d += gk_load(dx, row * len + e);
                gk_store(dx, row * len + e, d);
            }
        }
        if (active && kind == 1 && lane == 0) {
            gk_f weight, sign, u = gk_kto_argument(x, y, reference, kl, row, q, &weight, &sign), p = gk_logistic(-u);
            gk_f d = -up * weight * sign * args.p0 * p * (GK_R(1.0) - p);
            if (accumulate) d += gk_load(dx, row);
            gk_store(dx, row, d);
        }
    }
}
