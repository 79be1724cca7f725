/* Rows of a cross entropy whose logits come in chunks; the products around them are those of gemm/gemm.c.
 *
 *   c = cap * tanh(z / cap) (c = z without a cap), LSE = ln sum e^c, q = (1 - e) * target + e / V
 *   item = sum q * (LSE - c) + zloss * LSE^2       dz = g * ((sum q + 2 zloss LSE) * e^(c - LSE) - q) * (1 - (c / cap)^2)
 *
 * z [rows, V] are logits of rows first ... first + rows - 1. Targets are ids (one-hot) or probabilities. A row with the ignored id, or with one out
 * of range, which is reported, counts 0. Launch: rows by groups of `lanes` threads; m and s of the softmax in one pass. Arithmetic in gk_f.
 * Deterministic. Reference: F.cross_entropy.
 */
typedef struct { gk_f m, s, sum, dot, mass; } gk_stats;

GK_FN gk_f gk_capped(gk_f z, gk_f cap) { return cap > GK_R(0.0) ? cap * gk_tanh(z / cap) : z; }

/* Whether an id counts; reports one that is out of range. */
GK_FN int gk_counts(gk_i64 id, gk_i64 ignore, gk_i64 classes, GK_GLOBAL int* err, int code)
{
    if (id == ignore) return 0;
    if (id < 0 || id >= classes) {
        gk_report(err, code);
        return 0;
    }
    return 1;
}

/* Statistics of a row by its group: maximum and sum of exponentials, sum of c, sum of target * c, sum of target. */
GK_FN gk_stats gk_stats_of(GK_GLOBAL const gk_f* z, GK_GLOBAL const gk_t* probs, int have, gk_i64 classes, gk_f cap, int smooth,
                           GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    gk_stats a;
    a.m = -GK_INF; a.s = GK_R(0.0); a.sum = GK_R(0.0); a.dot = GK_R(0.0); a.mass = GK_R(0.0);
    for (gk_i64 k = gk_lid() % lanes; have && k < classes; k += lanes) {
        gk_f c = gk_capped(z[k], cap), m = gk_max(a.m, c);
        if (m != -GK_INF) a.s = a.s * gk_exp(a.m - m) + gk_exp(c - m);
        a.m = m;
        if (smooth) a.sum += c;
        if (probs) {
            gk_f q = gk_load(probs, k);
            if (q != GK_R(0.0)) { a.dot += q * c; a.mass += q; }
        }
    }
    gk_f m = gk_group_max(a.m, tmp, lanes), own = a.m == -GK_INF ? GK_R(0.0) : a.s * gk_exp(a.m - m);
    a.s = gk_group_sum(own, tmp, lanes);
    a.m = m;
    if (smooth) a.sum = gk_group_sum(a.sum, tmp, lanes);
    if (probs) {
        a.dot = gk_group_sum(a.dot, tmp, lanes);
        a.mass = gk_group_sum(a.mass, tmp, lanes);
    }
    return a;
}

GK_FN gk_f gk_lse(gk_stats a) { return gk_isinf(a.m) ? a.m : a.m + gk_log(a.s); }

// Units: FLOATS64
/* size = {rows, V, first, N}; ids or probs is null. items [2, N] = losses and whether they count; or loss [N]. */
GK_KERNEL(lm_items)(GK_IN(gk_f, z), GK_IN(int, ids), GK_IN(gk_t, probs), GK_OUT(int, err), GK_DIMS(size), int wide, int lanes, gk_i64 ignore,
                    gk_f smooth, gk_f zloss, gk_f cap, int code, GK_OUT(gk_f, items), GK_OUT(gk_t, loss), GK_OUT(gk_f, lse))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, z); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, probs); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, items); GK_BIND_OUT(gk_t, loss);
    GK_BIND_OUT(gk_f, lse);
    int per = GK_BLOCK / lanes;
    gk_i64 classes = size.v[1];
    for (gk_i64 r0 = (gk_i64)gk_bid(0) * per; r0 < size.v[0]; r0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 r = r0 + gk_lid() / lanes, row = size.v[2] + r;
        int have = r < size.v[0];
        gk_stats a = gk_stats_of(z + (have ? r : 0) * classes, probs ? probs + (have ? row : 0) * classes : probs, have, classes, cap,
                                 smooth > GK_R(0.0), tmp, lanes);
        if (have && gk_lid() % lanes == 0) {
            gk_f l = gk_lse(a), item = GK_R(0.0);
            int counts = 1;
            if (ids) {
                gk_i64 id = gk_index(ids, row, wide);
                counts = gk_counts(id, ignore, classes, err, code);
                a.mass = GK_R(1.0);
                if (counts) a.dot = gk_capped(z[r * classes + id], cap);
            }
            if (counts) {
                item = (GK_R(1.0) - smooth) * (a.mass * l - a.dot);
                if (smooth > GK_R(0.0)) item += smooth * (l - a.sum / (gk_f)classes);
                if (zloss != GK_R(0.0)) item += zloss * l * l;
            }
            if (lse) lse[row] = l;
            if (loss) gk_store(loss, row, item);
            if (items) {
                items[row] = item;
                items[size.v[3] + row] = counts ? GK_R(1.0) : GK_R(0.0);
            }
        }
    }
}

/* items [2, N] = 0 and whether a row counts: for the denominator. Launch: grid-stride. */
GK_KERNEL(lm_counted)(GK_IN(int, ids), GK_OUT(int, err), gk_i64 n, gk_i64 classes, int wide, gk_i64 ignore, int code, GK_OUT(gk_f, items))
{
    GK_BIND_IN(int, ids); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, items);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 id = gk_index(ids, i, wide);
        items[i] = GK_R(0.0);
        items[n + i] = gk_counts(id, ignore, classes, err, code) ? GK_R(1.0) : GK_R(0.0);
    }
}

/* dz [rows, V]; gy per row or one number, in f32 or storage; den may be null. */
GK_KERNEL(lm_grad)(GK_IN(gk_f, z), GK_IN(int, ids), GK_IN(gk_t, probs), GK_OUT(int, err), GK_DIMS(size), int wide, int lanes, gk_i64 ignore,
                   gk_f smooth, gk_f zloss, gk_f cap, int code, GK_IN(gk_t, gy), int per_row, int is_f32, GK_IN(gk_f, den), gk_f factor,
                   GK_OUT(gk_t, dz))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, z); GK_BIND_IN(int, ids); GK_BIND_IN(gk_t, probs); GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den);
    GK_BIND_OUT(gk_t, dz);
    int per = GK_BLOCK / lanes;
    gk_i64 classes = size.v[1];
    for (gk_i64 r0 = (gk_i64)gk_bid(0) * per; r0 < size.v[0]; r0 += (gk_i64)gk_nblocks(0) * per) {
        gk_i64 r = r0 + gk_lid() / lanes, row = size.v[2] + r, id = -1;
        int have = r < size.v[0], counts = have;
        gk_stats a = gk_stats_of(z + (have ? r : 0) * classes, probs ? probs + (have ? row : 0) * classes : probs, have, classes, cap, 0, tmp, lanes);
        if (have && ids) {
            id = gk_index(ids, row, wide);
            counts = gk_counts(id, ignore, classes, err, code);
            a.mass = GK_R(1.0);
        }
        if (have) {
            gk_f l = gk_lse(a), g = factor, share = smooth / (gk_f)classes;
            gk_i64 at = per_row ? row : 0;
            if (is_f32) g *= (gk_f)((GK_GLOBAL const float*)gy)[at];
            else g *= gk_load(gy, at);
            if (den) g /= den[0];
            gk_f total = (GK_R(1.0) - smooth) * a.mass + smooth + GK_R(2.0) * zloss * l;
            for (gk_i64 k = gk_lid() % lanes; k < classes; k += lanes) {
                gk_f d = GK_R(0.0);
                if (counts) {
                    gk_f c = gk_capped(z[r * classes + k], cap), q = share;
                    if (probs) q += (GK_R(1.0) - smooth) * gk_load(probs, row * classes + k);
                    if (k == id) q += GK_R(1.0) - smooth;
                    d = g * (total * gk_exp(c - l) - q);
                    if (cap > GK_R(0.0)) d *= GK_R(1.0) - c / cap * (c / cap);
                }
                gk_store(dz, r * classes + k, d);
            }
        }
    }
}
