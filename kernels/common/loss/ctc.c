/* Sequence losses: connectionist temporal classification (Graves et al., 2006) and the transducer (Graves, 2012).
 *
 * A block serves a sample: threads run over label positions, the block over time; log space, gk_f. Occupancies of equal labels are added by
 * the first of them in order, so results repeat bit by bit. Reference: torch.nn.functional.ctc_loss, torchaudio.functional.rnnt_loss.
 */

GK_FN gk_f gk_lse2(gk_f a, gk_f b)
{
    gk_f m = a > b ? a : b;
    if (m == -GK_INF) return a + b; /* NaN stays */
    return m + gk_log(gk_exp(a - m) + gk_exp(b - m));
}

/* Where a sample's labels start: S per sample, or (S = 0) one after the other. */
GK_FN gk_i64 gk_labels_at(GK_GLOBAL const int* tl, int wide, gk_i64 b, gk_i64 S)
{
    gk_i64 at = b * S;
    if (S == 0) for (gk_i64 k = 0; k < b; k++) at += gk_index(tl, k, wide);
    return at;
}

/* Label of position s of the extended sequence: blanks between the labels. */
#define GK_EXTENDED(s) ((s) & 1 ? gk_index(targets, first + (s) / 2, wide_t) : blank)
#define GK_LOGP(t, c) ((c) >= 0 && (c) < C ? gk_load(x, (t) * st + b * sb + (c)) : -GK_INF)
#define GK_ALPHA(t, s) alpha[(b * T + (t)) * L + (s)]
/* Whether position s may be reached from s - 2. */
#define GK_SKIP(s) ((s) > 1 && ((s) & 1) && GK_EXTENDED(s) != GK_EXTENDED((s) - 2))

typedef struct {
    gk_i64 most;
    int wide_il, wide_tl;
} gk_ctc_alpha_args;

// Units: FLOATS64
/* alpha [B, T, L] and nll [B] = -ln p. Lengths outside [0, T] and [0, most] and ids outside [0, C) are reported; such a sample has nll 0. */
GK_KERNEL(ctc_alpha)(GK_IN(gk_t, x), GK_IN(int, targets), int wide_t, GK_IN(int, il), GK_IN(int, tl), GK_OUT(int, err), int code, gk_i64 T, gk_i64 B,
                     gk_i64 C, gk_i64 st, gk_i64 sb, gk_i64 S, gk_i64 L, gk_i64 blank, GK_OUT(gk_f, alpha), GK_OUT(gk_f, nll),
                     GK_BY_VALUE(gk_ctc_alpha_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, alpha);
    GK_BIND_OUT(gk_f, nll);
    for (gk_i64 b = gk_bid(0); b < B; b += gk_nblocks(0)) {
        gk_i64 time = gk_index(il, b, args.wide_il), labels = gk_index(tl, b, args.wide_tl), first = gk_labels_at(tl, args.wide_tl, b, S),
            n = 2 * labels + 1;
        int ok = time >= 0 && time <= T && labels >= 0 && labels <= args.most && first >= 0 && first + labels <= (S ? (b + 1) * S : args.most);
        if (!ok) { gk_report(err, code); n = 0; time = 0; }
        for (gk_i64 s = gk_lid(); s < n; s += GK_BLOCK) {
            gk_i64 c = GK_EXTENDED(s);
            if (c < 0 || c >= C) gk_report(err, code);
        }
        for (gk_i64 t = 0; t < time; t++) {
            for (gk_i64 s = gk_lid(); s < n; s += GK_BLOCK) {
                gk_f v = t == 0 && s < 2 ? GK_R(0.0) : -GK_INF;
                if (t > 0) {
                    v = GK_ALPHA(t - 1, s);
                    if (s > 0) v = gk_lse2(v, GK_ALPHA(t - 1, s - 1));
                    if (GK_SKIP(s)) v = gk_lse2(v, GK_ALPHA(t - 1, s - 2));
                }
                gk_i64 c = GK_EXTENDED(s);
                GK_ALPHA(t, s) = v + GK_LOGP(t, c);
            }
            GK_BARRIER();
        }
        if (gk_lid() == 0) {
            gk_f v = labels == 0 || !ok ? GK_R(0.0) : -GK_INF;
            if (time > 0) {
                v = GK_ALPHA(time - 1, n - 1);
                if (n > 1) v = gk_lse2(v, GK_ALPHA(time - 1, n - 2));
            }
            nll[b] = -v;
        }
    }
}

/* Items: y in storage (reduction none), or item / max(labels, 1) where per_label is set, with weight 1. */
GK_KERNEL(ctc_items)(GK_IN(gk_f, nll), GK_IN(int, tl), int wide_tl, gk_i64 B, int zero_infinity, int per_label, GK_OUT(gk_t, y), GK_OUT(gk_f, item),
                     GK_OUT(gk_f, weight))
{
    GK_BIND_IN(gk_f, nll); GK_BIND_IN(int, tl); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    for (gk_i64 b = gk_gid(); b < B; b += gk_gsize()) {
        gk_f l = nll[b];
        gk_i64 n = per_label ? gk_index(tl, b, wide_tl) : 1;
        if (zero_infinity && l == GK_INF) l = GK_R(0.0);
        if (y) gk_store(y, b, l);
        if (item) { item[b] = l / (gk_f)(n > 1 ? n : 1); weight[b] = GK_R(1.0); }
    }
}

typedef struct {
    gk_i64 most;
    gk_f factor;
    int wide_il, wide_tl, each, gy_f32, per_label, zero_infinity, accumulate;
} gk_ctc_grad_args;

/* dx (+)= -gy * occupancy. alpha is overwritten; beta [B, 2, L]. */
GK_KERNEL(ctc_grad)(GK_IN(gk_t, x), GK_IN(int, targets), int wide_t, GK_IN(int, il), GK_IN(int, tl), gk_i64 T, gk_i64 B, gk_i64 C, gk_i64 st,
                    gk_i64 sb, gk_i64 S, gk_i64 L, gk_i64 blank, GK_OUT(gk_f, alpha), GK_IN(gk_f, nll), GK_OUT(gk_f, beta), GK_IN(gk_t, gy),
                    GK_OUT(gk_t, dx), GK_BY_VALUE(gk_ctc_grad_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_OUT(gk_f, alpha); GK_BIND_IN(gk_f, nll);
    GK_BIND_OUT(gk_f, beta); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 b = gk_bid(0); b < B; b += gk_nblocks(0)) {
        gk_i64 time = gk_index(il, b, args.wide_il), labels = gk_index(tl, b, args.wide_tl), first = gk_labels_at(tl, args.wide_tl, b, S),
            n = 2 * labels + 1;
        int ok = time >= 0 && time <= T && labels >= 0 && labels <= args.most && first >= 0 && first + labels <= (S ? (b + 1) * S : args.most);
        if (!ok) { n = 0; time = 0; }
        gk_f g = args.factor * (args.each ? gk_load(gy, b) : args.gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0));
        if (args.per_label && labels > 1) g /= (gk_f)labels;
        int impossible = nll[b] == GK_INF;
        for (gk_i64 t = T - 1; t >= 0; t--) {
            GK_GLOBAL gk_f* now = beta + (2 * b + (t & 1)) * L;
            GK_GLOBAL const gk_f* next = beta + (2 * b + (1 - (t & 1))) * L;
            gk_f rest = impossible && !args.zero_infinity && t < time ? GK_NAN : GK_R(0.0);
            for (gk_i64 c = gk_lid(); c < C; c += GK_BLOCK) {
                gk_i64 at = t * st + b * sb + c;
                gk_store(dx, at, args.accumulate ? gk_load(dx, at) + rest : rest);
            }
            if (t >= time || impossible) continue;
            for (gk_i64 s = gk_lid(); s < n; s += GK_BLOCK) {
                gk_f v = t == time - 1 && s >= n - 2 ? GK_R(0.0) : -GK_INF;
                if (t < time - 1) {
                    v = next[s];
                    if (s + 1 < n) v = gk_lse2(v, next[s + 1]);
                    if (s + 2 < n && GK_SKIP(s + 2)) v = gk_lse2(v, next[s + 2]);
                }
                gk_i64 c = GK_EXTENDED(s);
                GK_ALPHA(t, s) += v;
                now[s] = v + GK_LOGP(t, c);
            }
            GK_BARRIER();
            for (gk_i64 s = gk_lid(); s < n; s += GK_BLOCK) {
                gk_i64 c = GK_EXTENDED(s);
                int leads = c >= 0 && c < C;
                for (gk_i64 k = s & 1; k < s && leads; k += 2)
                    if (GK_EXTENDED(k) == c) leads = 0;
                /* A label equal to the blank is led by position 0. */
                if ((s & 1) && c == blank) leads = 0;
                if (leads) {
                    gk_f sum = GK_R(0.0);
                    for (gk_i64 k = 0; k < n; k++)
                        if (GK_EXTENDED(k) == c) sum += gk_exp(GK_ALPHA(t, k) + nll[b]);
                    gk_i64 at = t * st + b * sb + c;
                    gk_store(dx, at, args.accumulate ? gk_load(dx, at) - g * sum : -g * sum);
                }
            }
            GK_BARRIER();
        }
    }
}

/* ---- transducer ---------------------------------------------------------------------------------------------------------------- */

#define GK_NODE(t, u) ((b * T + (t)) * U + (u))

/* lse [B T U] of the logits: a group of threads per node. */
GK_KERNEL(rnnt_lse)(GK_IN(gk_t, x), GK_OUT(gk_f, lse), gk_i64 rows, gk_i64 C, int lanes)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, lse);
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 base = gk_bid(0) * per; base < rows; base += gk_nblocks(0) * per) {
        gk_i64 row = base + gk_lid() / lanes;
        gk_f m = -GK_INF, s = GK_R(0.0);
        if (row < rows) for (gk_i64 c = lane; c < C; c += lanes) m = gk_max(m, gk_load(x, row * C + c));
        m = gk_group_max(m, tmp, lanes);
        if (row < rows) for (gk_i64 c = lane; c < C; c += lanes) s += gk_exp(gk_load(x, row * C + c) - m);
        s = gk_group_sum(s, tmp, lanes);
        if (row < rows && lane == 0) lse[row] = m + gk_log(s);
    }
}

/* alpha, beta [B, T, U] along the diagonals, nll [B]. U = labels + 1. A block per sample. */
GK_KERNEL(rnnt_lattice)(GK_IN(gk_t, x), GK_IN(gk_f, lse), GK_IN(int, targets), int wide_t, GK_IN(int, il), int wide_il, GK_IN(int, tl), int wide_tl,
                        GK_OUT(int, err), int code, gk_i64 B, gk_i64 T, gk_i64 U, gk_i64 C, gk_i64 blank, GK_OUT(gk_f, alpha), GK_OUT(gk_f, beta),
                        GK_OUT(gk_f, nll))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, lse); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_OUT(int, err);
    GK_BIND_OUT(gk_f, alpha); GK_BIND_OUT(gk_f, beta); GK_BIND_OUT(gk_f, nll);
    for (gk_i64 b = gk_bid(0); b < B; b += gk_nblocks(0)) {
        gk_i64 time = gk_index(il, b, wide_il), labels = gk_index(tl, b, wide_tl);
        int ok = time >= 1 && time <= T && labels >= 0 && labels < U;
        if (!ok) { gk_report(err, code); time = 0; labels = -1; }
        for (gk_i64 u = gk_lid(); u < labels; u += GK_BLOCK) {
            gk_i64 c = gk_index(targets, b * (U - 1) + u, wide_t);
            if (c < 0 || c >= C) gk_report(err, code);
        }
#define GK_BLANK(t, u) (gk_load(x, GK_NODE(t, u) * C + blank) - lse[GK_NODE(t, u)])
#define GK_LOSS_EMIT(t, u, c) ((c) >= 0 && (c) < C ? gk_load(x, GK_NODE(t, u) * C + (c)) - lse[GK_NODE(t, u)] : -GK_INF)
        for (gk_i64 d = 0; d < time + labels; d++) {
            for (gk_i64 u = gk_lid(); u <= labels; u += GK_BLOCK) {
                gk_i64 t = d - u;
                if (t >= 0 && t < time) {
                    gk_f v = d == 0 ? GK_R(0.0) : -GK_INF;
                    if (t > 0) v = alpha[GK_NODE(t - 1, u)] + GK_BLANK(t - 1, u);
                    if (u > 0) { gk_i64 c = gk_index(targets, b * (U - 1) + u - 1, wide_t); v = gk_lse2(v, alpha[GK_NODE(t,
                        u - 1)] + GK_LOSS_EMIT(t, u - 1, c)); }
                    alpha[GK_NODE(t, u)] = v;
                }
                /* The mirrored node on the diagonal from the end. */
                gk_i64 r = time - 1 - (d - (labels - u));
                if (r >= 0 && r < time) {
                    gk_f v = r == time - 1 && u == labels ? GK_BLANK(r, u) : -GK_INF;
                    if (r < time - 1) v = beta[GK_NODE(r + 1, u)] + GK_BLANK(r, u);
                    if (u < labels) { gk_i64 c = gk_index(targets, b * (U - 1) + u, wide_t); v = gk_lse2(v, beta[GK_NODE(r,
                        u + 1)] + GK_LOSS_EMIT(r, u, c)); }
                    beta[GK_NODE(r, u)] = v;
                }
            }
            GK_BARRIER();
        }
        if (gk_lid() == 0) nll[b] = ok ? -(alpha[GK_NODE(time - 1, labels)] + GK_BLANK(time - 1, labels)) : GK_R(0.0);
        GK_BARRIER();
    }
}

/* dx (+)= gy (P (e_blank + e_label) - onehots), e = occupancies of the transitions. A thread per logit. */
GK_KERNEL(rnnt_grad)(GK_IN(gk_t, x), GK_IN(gk_f, lse), GK_IN(int, targets), int wide_t, GK_IN(int, il), int wide_il, GK_IN(int, tl), int wide_tl,
                     gk_i64 B, gk_i64 T, gk_i64 U, gk_i64 C, gk_i64 blank, GK_IN(gk_f, alpha), GK_IN(gk_f, beta), GK_IN(gk_f, nll), GK_IN(gk_t, gy),
                     int each, int gy_f32, gk_f factor, GK_OUT(gk_t, dx), int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, lse); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_IN(gk_f, alpha);
    GK_BIND_IN(gk_f, beta); GK_BIND_IN(gk_f, nll); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < B * T * U * C; i += gk_gsize()) {
        gk_i64 node = i / C, c = i - node * C, b = node / (T * U), t = node / U - b * T, u = node % U;
        gk_i64 time = gk_index(il, b, wide_il), labels = gk_index(tl, b, wide_tl);
        gk_f d = GK_R(0.0);
        if (time >= 1 && time <= T && labels >= 0 && labels < U && t < time && u <= labels) {
            gk_f start = alpha[node] + nll[b], eb = GK_R(0.0), el = GK_R(0.0);
            gk_i64 id = -1;
            if (t < time - 1) eb = gk_exp(start + GK_BLANK(t, u) + beta[GK_NODE(t + 1, u)]);
            else if (u == labels) eb = gk_exp(start + GK_BLANK(t, u));
            if (u < labels) { id = gk_index(targets, b * (U - 1) + u, wide_t); el = gk_exp(start + GK_LOSS_EMIT(t, u, id) + beta[GK_NODE(t,
                u + 1)]); }
            d = gk_exp(gk_load(x, i) - lse[node]) * (eb + el);
            if (c == blank) d -= eb;
            if (c == id) d -= el;
            d *= factor * (each ? gk_load(gy, b) : gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0));
        }
        gk_store(dx, i, accumulate ? gk_load(dx, i) + d : d);
    }
}
