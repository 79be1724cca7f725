/* Mixture of experts: the router and the movement of rows. Assignment t * k + j is choice j of token t; `perm` lists the assignments by expert,
 * `inverse` says where an assignment stands there (-1: nowhere). The order itself is made by moe/order.c.
 * Launch: groups of `lanes` threads per token or row, looping over them. Arithmetic in gk_f. Sums in the order of the choices. Deterministic.
 */

/* Orders experts; NaN comes last. */
GK_FN gk_f gk_rank(gk_f x) { return gk_isnan(x) ? -GK_INF : x; }

// Units: FLOATS64
/* ids [T, k] by falling logit, of equal ones the lower first; weights = softmax (sigmoid) of the chosen logits, divided by their sum if renorm. */
GK_KERNEL(moe_router)(GK_IN(gk_t, logits), GK_OUT(gk_t, weights), GK_OUT(int, ids), gk_i64 tokens, int experts, int k, int lanes, int sigmoid,
                      int renorm)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, logits); GK_BIND_OUT(gk_t, weights); GK_BIND_OUT(int, ids);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 t0 = (gk_i64)gk_bid(0) * per; t0 < tokens; t0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 t = t0 + gk_lid() / lanes;
        int have = t < tokens;
        GK_GLOBAL const gk_t* x = logits + (have ? t : 0) * experts;
        gk_f m = -GK_INF, sum = GK_R(0.0), last = GK_INF;
        int at = -1;
        if (!sigmoid) {
            for (int e = lane; e < experts; e += lanes) m = gk_max(m, gk_load(x, e));
            m = gk_group_max(m, tmp, lanes);
        }
        /* The normaliser: of all experts, or of the chosen ones. */
        if (!sigmoid && !renorm) {
            for (int e = lane; e < experts; e += lanes) sum += gk_exp(gk_load(x, e) - m);
            sum = gk_group_sum(sum, tmp, lanes);
        }
        for (int j = 0; j < k; j++) {
            /* The best of those behind the last choice. */
            gk_f best = -GK_INF;
            int found = experts;
            for (int e = lane; e < experts; e += lanes) {
                gk_f v = gk_rank(gk_load(x, e));
                if ((v < last || (v == last && e > at)) && (v > best || found == experts)) { best = v; found = e; }
            }
            gk_f top = gk_group_max(best, tmp, lanes);
            gk_f first = found < experts && best == top ? (gk_f)found : (gk_f)experts;
            at = (int)gk_group_min(first, tmp, lanes);
            last = top;
            gk_f z = gk_load(x, at < experts ? at : 0);
            gk_f s = sigmoid ? GK_R(1.0) / (GK_R(1.0) + gk_exp(-z)) : gk_exp(z - m);
            if (renorm) sum += s;
            if (have && lane == 0) ids[t * k + j] = at;
        }
        if (have && lane == 0) {
            for (int j = 0; j < k; j++) {
                gk_f z = gk_load(x, ids[t * k + j]);
                gk_f s = sigmoid ? GK_R(1.0) / (GK_R(1.0) + gk_exp(-z)) : gk_exp(z - m);
                gk_store(weights, t * k + j, renorm || !sigmoid ? s / sum : s);
            }
        }
    }
}

/* With scores s, chosen c, w = c / sum c (renorm) or c: dc = (dw - sum dw w) / sum c or dw; dlogits = s (ds - sum ds s) for softmax, s (1 - s) ds for
 * sigmoid, where ds is dc at the chosen experts. */
GK_KERNEL(moe_router_bwd)(GK_IN(gk_t, dweights), GK_IN(gk_t, logits), GK_IN(int, ids), GK_OUT(gk_t, dlogits), GK_OUT(int, err), gk_i64 tokens,
                          int experts, int k, int lanes, int sigmoid, int renorm, int accumulate, int code)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, dweights); GK_BIND_IN(gk_t, logits); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, dlogits); GK_BIND_OUT(int, err);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 t0 = (gk_i64)gk_bid(0) * per; t0 < tokens; t0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 t = t0 + gk_lid() / lanes;
        int have = t < tokens;
        gk_i64 row = have ? t : 0;
        GK_GLOBAL const gk_t* x = logits + row * experts;
        gk_f m = GK_R(0.0), all = GK_R(1.0), sum = GK_R(0.0), dot = GK_R(0.0), back = GK_R(0.0);
        if (!sigmoid) {
            m = -GK_INF;
            for (int e = lane; e < experts; e += lanes) m = gk_max(m, gk_load(x, e));
            m = gk_group_max(m, tmp, lanes);
            all = GK_R(0.0);
            for (int e = lane; e < experts; e += lanes) all += gk_exp(gk_load(x, e) - m);
            all = gk_group_sum(all, tmp, lanes);
        }
        /* Every thread goes through the few choices: sum of their scores, of dw times score, of both with the normalisation. */
        for (int j = 0; j < k; j++) {
            int e = ids[row * k + j];
            if (e < 0 || e >= experts) {
                if (have && lane == 0) gk_report(err, code);
                continue;
            }
            gk_f z = gk_load(x, e), s = sigmoid ? GK_R(1.0) / (GK_R(1.0) + gk_exp(-z)) : gk_exp(z - m) / all;
            sum += s;
            dot += gk_load(dweights, row * k + j) * s;
        }
        gk_f mean = renorm ? dot / sum : GK_R(0.0), scale = renorm ? GK_R(1.0) / sum : GK_R(1.0);
        /* sum of ds * s */
        back = scale * (dot - mean * sum);
        for (int e = lane; have && e < experts; e += lanes) {
            gk_f z = gk_load(x, e), s = sigmoid ? GK_R(1.0) / (GK_R(1.0) + gk_exp(-z)) : gk_exp(z - m) / all, ds = GK_R(0.0);
            for (int j = 0; j < k; j++)
                if (ids[row * k + j] == e) ds += scale * (gk_load(dweights, row * k + j) - mean);
            gk_f d = sigmoid ? s * (GK_R(1.0) - s) * ds : s * (ds - back);
            gk_i64 at = row * experts + e;
            gk_store(dlogits, at, accumulate ? gk_load(dlogits, at) + d : d);
        }
    }
}

/* y[i] = f * x[perm[i] div k], f = weights[perm[i]] or 1. An assignment out of range is reported and gives 0. */
GK_KERNEL(moe_gather)(GK_IN(gk_t, x), GK_IN(int, perm), GK_IN(gk_t, weights), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 rows, gk_i64 d, int k,
                      int wide, int lanes, int accumulate, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, weights); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 i = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; i < rows; i += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 a = perm[i];
        int good = a >= 0 && a < rows;
        gk_f f = GK_R(1.0);
        if (!good && lane == 0) gk_report(err, code);
        if (weights && good) f = gk_load(weights, a);
        GK_GLOBAL const gk_t* from = x + (good ? a / k : 0) * d;
        GK_GLOBAL gk_t* to = y + i * d;
        if (wide) {
            for (gk_i64 c = lane * GK_W; c < d; c += lanes * GK_W) {
                gk_vec v = gk_loadv(from, c);
                GK_UNROLL for (int u = 0; u < GK_W; u++) v.v[u] = good ? (weights ? f * v.v[u] : v.v[u]) : GK_R(0.0);
                if (accumulate) {
                    gk_vec old = gk_loadv(to, c);
                    GK_UNROLL for (int u = 0; u < GK_W; u++) v.v[u] += old.v[u];
                }
                gk_storev(to, c, v);
            }
        } else {
            for (gk_i64 c = lane; c < d; c += lanes) {
                gk_f v = GK_R(0.0);
                if (good) v = weights ? f * gk_load(from, c) : gk_load(from, c);
                gk_store(to, c, accumulate ? gk_load(to, c) + v : v);
            }
        }
    }
}

/* y[t] = sum over j of f * x[inverse[t * k + j]], f = weights[t, j] or 1. */
GK_KERNEL(moe_combine)(GK_IN(gk_t, x), GK_IN(int, inverse), GK_IN(gk_t, weights), GK_OUT(gk_t, y), gk_i64 tokens, gk_i64 d, int k, int wide,
                       int lanes, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, inverse); GK_BIND_IN(gk_t, weights); GK_BIND_OUT(gk_t, y);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 t = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; t < tokens; t += (gk_i64)gk_nblocks(0) * per) {
        GK_GLOBAL gk_t* to = y + t * d;
        if (wide) {
            for (gk_i64 c = lane * GK_W; c < d; c += lanes * GK_W) {
                gk_vec sum;
                GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] = GK_R(0.0);
                for (int j = 0; j < k; j++) {
                    int at = inverse[t * k + j];
                    if (at < 0) continue;
                    gk_vec v = gk_loadv(x, at * d + c);
                    gk_f f = GK_R(1.0);
                    if (weights) f = gk_load(weights, t * k + j);
                    GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] += f * v.v[u];
                }
                if (accumulate) {
                    gk_vec old = gk_loadv(to, c);
                    GK_UNROLL for (int u = 0; u < GK_W; u++) sum.v[u] += old.v[u];
                }
                gk_storev(to, c, sum);
            }
        } else {
            for (gk_i64 c = lane; c < d; c += lanes) {
                gk_f sum = GK_R(0.0);
                for (int j = 0; j < k; j++) {
                    int at = inverse[t * k + j];
                    if (at < 0) continue;
                    gk_f f = GK_R(1.0);
                    if (weights) f = gk_load(weights, t * k + j);
                    sum += f * gk_load(x, at * d + c);
                }
                gk_store(to, c, accumulate ? gk_load(to, c) + sum : sum);
            }
        }
    }
}

/* dw[t, j] = dy[t] . x[inverse[t * k + j]] */
GK_KERNEL(moe_dot)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(int, inverse), GK_OUT(gk_t, dw), gk_i64 rows, gk_i64 d, int k, int wide, int lanes,
                   int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(int, inverse); GK_BIND_OUT(gk_t, dw);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 r0 = (gk_i64)gk_bid(0) * per; r0 < rows; r0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 r = r0 + gk_lid() / lanes;
        gk_f sum = GK_R(0.0);
        if (r < rows) {
            gk_i64 at = inverse[r], from = r / k * d;
            if (at >= 0 && wide) {
                for (gk_i64 c = lane * GK_W; c < d; c += lanes * GK_W) {
                    gk_vec a = gk_loadv(dy, from + c), b = gk_loadv(x, at * d + c);
                    GK_UNROLL for (int u = 0; u < GK_W; u++) sum += a.v[u] * b.v[u];
                }
            }
            if (at >= 0 && !wide) {
                for (gk_i64 c = lane; c < d; c += lanes) sum += gk_load(dy, from + c) * gk_load(x, at * d + c);
            }
        }
        sum = gk_group_sum(sum, tmp, lanes);
        if (r < rows && lane == 0) gk_store(dw, r, accumulate ? gk_load(dw, r) + sum : sum);
    }
}
