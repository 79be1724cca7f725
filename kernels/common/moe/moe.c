/* Mixture of experts: the router and the movement of rows. Assignment t * k + j is choice j of token t; `perm` lists the assignments by expert,
 * `inverse` says where an assignment stands there. The order itself is made by moe/order.c.
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
        gk_f m = -GK_INF, sum = GK_R(0.0), last = GK_INF, kept = GK_R(0.0);
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
            if (j == lane) kept = s;
            if (have && lane == 0) ids[t * k + j] = at;
        }
        /* Lane j has kept the score of choice j, where there are as many lanes. */
        if (k <= lanes) {
            if (have && lane < k) gk_store(weights, t * k + lane, renorm || !sigmoid ? kept / sum : kept);
        } else if (have && lane == 0) {
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

/* Vectors of a row that a thread reads before it uses them. */
#define GK_MOE_VECTORS 4

/* Up to four vectors of a row from column c on, `step` apart, 0 beyond column d. */
GK_FN void gk_moe_load(gk_vec* v, GK_GLOBAL const gk_t* x, gk_i64 c, gk_i64 d, int step)
{
    GK_UNROLL for (int i = 0; i < GK_MOE_VECTORS; i++) v[i] = gk_loadv_if(x, c + i * step, c + i * step < d, GK_R(0.0));
}

/* y = v, or added to it. */
GK_FN void gk_moe_store(GK_GLOBAL gk_t* y, gk_vec* v, gk_i64 c, gk_i64 d, int step, int accumulate)
{
    GK_UNROLL for (int i = 0; i < GK_MOE_VECTORS; i++) {
        if (c + i * step >= d) continue;
        if (accumulate) {
            gk_vec old = gk_loadv(y, c + i * step);
            GK_UNROLL for (int u = 0; u < GK_W; u++) v[i].v[u] += old.v[u];
        }
        gk_storev(y, c + i * step, v[i]);
    }
}

/* y[i] = x[perm[i] div k]. An assignment out of range is reported and gives 0. */
GK_KERNEL(moe_gather)(GK_IN(gk_t, x), GK_IN(int, perm), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 rows, gk_i64 d, int k, int wide, int lanes, int code)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, perm); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 i = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; i < rows; i += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 a = perm[i];
        int good = a >= 0 && a < rows;
        if (!good && lane == 0) gk_report(err, code);
        GK_GLOBAL const gk_t* from = x + (good ? a / k : 0) * d;
        GK_GLOBAL gk_t* to = y + i * d;
        if (wide) {
            for (gk_i64 c = lane * GK_W; c < d; c += GK_MOE_VECTORS * lanes * GK_W) {
                gk_vec v[GK_MOE_VECTORS];
                gk_moe_load(v, from, c, good ? d : 0, lanes * GK_W);
                gk_moe_store(to, v, c, d, lanes * GK_W, 0);
            }
        } else {
            for (gk_i64 c = lane; c < d; c += lanes) gk_store(to, c, good ? gk_load(from, c) : GK_R(0.0));
        }
    }
}

/* Where assignment a of n stands in perm, -1 for nowhere: then `inverse` has any number. */
GK_FN int gk_moe_place(GK_GLOBAL const int* inverse, GK_GLOBAL const int* perm, gk_i64 a, gk_i64 n)
{
    int at = inverse[a];
    if (at < 0 || at >= n) return -1;
    return perm[at] == a ? at : -1;
}

/* y[t] = sum over j of f * x[inverse[t * k + j]], f = weights[t, j] or 1; nothing for an assignment that perm does not have. */
GK_KERNEL(moe_combine)(GK_IN(gk_t, x), GK_IN(int, inverse), GK_IN(int, perm), GK_IN(gk_t, weights), GK_OUT(gk_t, y), gk_i64 tokens, gk_i64 d, int k, int wide,
                       int lanes, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, inverse); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, weights); GK_BIND_OUT(gk_t, y);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 t = (gk_i64)gk_bid(0) * per + gk_lid() / lanes; t < tokens; t += (gk_i64)gk_nblocks(0) * per) {
        GK_GLOBAL gk_t* to = y + t * d;
        if (wide) {
            for (gk_i64 c = lane * GK_W; c < d; c += GK_MOE_VECTORS * lanes * GK_W) {
                gk_vec sum[GK_MOE_VECTORS], v[GK_MOE_VECTORS];
                GK_UNROLL for (int i = 0; i < GK_MOE_VECTORS; i++) GK_UNROLL for (int u = 0; u < GK_W; u++) sum[i].v[u] = GK_R(0.0);
                for (int j = 0; j < k; j++) {
                    int at = gk_moe_place(inverse, perm, t * k + j, tokens * k);
                    gk_f f = GK_R(1.0);
                    if (at < 0) continue;
                    if (weights) f = gk_load(weights, t * k + j);
                    gk_moe_load(v, x + at * d, c, d, lanes * GK_W);
                    GK_UNROLL for (int i = 0; i < GK_MOE_VECTORS; i++) GK_UNROLL for (int u = 0; u < GK_W; u++) sum[i].v[u] += f * v[i].v[u];
                }
                gk_moe_store(to, sum, c, d, lanes * GK_W, accumulate);
            }
        } else {
            for (gk_i64 c = lane; c < d; c += lanes) {
                gk_f sum = GK_R(0.0);
                for (int j = 0; j < k; j++) {
                    int at = gk_moe_place(inverse, perm, t * k + j, tokens * k);
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

/* Row i of the gradient of moe_combine's x, which a = perm[i] says the token of: dx[i] = weights[a] * dy[t], t = a div k. Returns the thread's share of
 * dy[t] . x[i], 0 without x. Null operands are not needed. */
GK_FN gk_f gk_moe_row_bwd(GK_GLOBAL const gk_t* dy, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, gk_f f, int good, gk_i64 d, int wide, int lanes,
                          int accumulate)
{
    int lane = gk_lid() % lanes;
    gk_f sum = GK_R(0.0);
    if (wide) {
        for (gk_i64 c = lane * GK_W; c < d; c += GK_MOE_VECTORS * lanes * GK_W) {
            gk_vec g[GK_MOE_VECTORS], v[GK_MOE_VECTORS];
            gk_moe_load(g, dy, c, good ? d : 0, lanes * GK_W);
            gk_moe_load(v, x, c, x && good ? d : 0, lanes * GK_W);
            GK_UNROLL for (int i = 0; i < GK_MOE_VECTORS; i++) GK_UNROLL for (int u = 0; u < GK_W; u++) {
                sum += g[i].v[u] * v[i].v[u];
                g[i].v[u] = good ? f * g[i].v[u] : GK_R(0.0);
            }
            if (dx) gk_moe_store(dx, g, c, d, lanes * GK_W, accumulate);
        }
    } else {
        for (gk_i64 c = lane; c < d; c += lanes) {
            gk_f g = good ? gk_load(dy, c) : GK_R(0.0);
            if (x && good) sum += g * gk_load(x, c);
            if (dx) gk_store(dx, c, (good ? f * g : GK_R(0.0)) + (accumulate ? gk_load(dx, c) : GK_R(0.0)));
        }
    }
    return sum;
}

/* Both gradients of moe_combine with weights: of x (null: none) and, for each assignment in `perm`, of its weight (null: none), which is stored, or added
 * where bit 1 of `accumulate` is set; bit 0 is dx's. An assignment out of range is reported; its row of dx gets 0. */
GK_KERNEL(moe_combine_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(int, perm), GK_IN(gk_t, weights), GK_OUT(gk_t, dx), GK_OUT(gk_t, dw), GK_OUT(int, err),
                           gk_i64 rows, gk_i64 d, int k, int wide, int lanes, int accumulate, int code)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, weights); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_t, dw);
    GK_BIND_OUT(int, err);
    int per = GK_BLOCK / lanes, lane = gk_lid() % lanes;
    for (gk_i64 r0 = (gk_i64)gk_bid(0) * per; r0 < rows; r0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 r = r0 + gk_lid() / lanes, a = r < rows ? perm[r] : -1;
        int good = a >= 0 && a < rows;
        gk_f sum = GK_R(0.0);
        if (r < rows) {
            if (!good && lane == 0) gk_report(err, code);
            sum = gk_moe_row_bwd(dy + (good ? a / k : 0) * d, dw ? x + r * d : 0, dx ? dx + r * d : 0, good ? gk_load(weights, a) : GK_R(0.0), good, d,
                wide, lanes, accumulate & 1);
        }
        sum = gk_group_sum(sum, tmp, lanes);
        if (dw && good && lane == 0) gk_store(dw, a, accumulate & 2 ? gk_load(dw, a) + sum : sum);
    }
}
