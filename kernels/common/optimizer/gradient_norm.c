/* Norms over lists of tensors (the table of optimizer/rules.h): clipping and the trust ratios of layer-wise optimizers, without a host read.
 *
 * Sums of squares are kept in three ranges, so that large and small values neither overflow nor vanish. All sums run over a fixed tree that
 * depends on the lengths alone. Reference: torch.nn.utils.clip_grad_norm_; You et al. (2017, 2020).
 */
#include "rules.h"

#define GK_NORM_AHEAD 4 /* vectors that a thread reads before it adds the first */
#define GK_SCALE_AHEAD (GK_W >= 8 ? 4 : 1) /* before it writes the first */

/* The vectors at i and behind it that a thread has of a chunk that ends at `full`. */
GK_FN void gk_read_ahead(gk_vec* v, GK_GLOBAL const gk_t* g, gk_i64 i, gk_i64 full, const int n)
{
    GK_UNROLL for (int u = 0; u < n; u++) {
        gk_i64 at = i + u * GK_BLOCK * GK_W;
        v[u] = gk_loadv_if(g, at, at < full, GK_R(0.0));
    }
}

/* Contribution of one value to a norm of degree p: kind 0 = |x|^p, 1 = |x|, 2 = x^2 in three ranges, 3 = maximum. The ranges (Blue, 1978) keep
 * squares of large and small values from overflowing and vanishing: s[0] holds squares times 2^-128, s[1] plain, s[2] times 2^128. */
GK_FN void gk_norm_add(gk_f* s, gk_f x, int kind, gk_f p)
{
    gk_f a = gk_fabs(x);
    if (kind == 2) {
        if (a > GK_R(1e15)) { a *= GK_R(5.42101086242752217e-20); s[0] += a * a; }
        else if (a < GK_R(1e-15)) { a *= GK_R(1.8446744073709552e19); s[2] += a * a; }
        else s[1] += a * a;
    } else if (kind == 3) s[1] = gk_max(s[1], a);
    else s[1] += kind == 1 ? a : gk_pow(a, p);
}

/* Contributions of GK_W values, whatever they are. */
typedef struct { gk_f s[3]; } gk_ranges;
GK_FN_CALL gk_ranges gk_norm_add_each(gk_ranges r, gk_vec v, int kind, gk_f p)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) gk_norm_add(r.s, v.v[k], kind, p);
    return r;
}
/* The same; *bad is set where one is not finite. Squares that need no range of their own are added at once. */
GK_FN void gk_norm_addv(gk_f* s, int* bad, gk_vec v, int kind, gk_f p)
{
    gk_f most = gk_fabs(v.v[0]), least = most, sum = GK_R(0.0);
    GK_UNROLL for (int k = 1; k < GK_W; k++) {
        most = gk_max(most, gk_fabs(v.v[k]));
        least = gk_min(least, gk_fabs(v.v[k]));
    }
    *bad |= !(most < GK_INF);
    if (kind == 3) {
        s[1] = gk_max(s[1], most);
    } else if (kind == 2 && most <= GK_R(1e15) && least >= GK_R(1e-15)) {
        GK_UNROLL for (int k = 0; k < GK_W; k++) sum += v.v[k] * v.v[k];
        s[1] += sum;
    } else if (kind != 2 || most != GK_R(0.0)) {
        gk_ranges r;
        GK_UNROLL for (int k = 0; k < 3; k++) r.s[k] = s[k];
        r = gk_norm_add_each(r, v, kind, p);
        GK_UNROLL for (int k = 0; k < 3; k++) s[k] = r.s[k];
    }
}

/* Root of a sum of squares in three ranges. Large values decide alone (the others do not reach their last bit), else plain and small ones
 * together. */
GK_FN gk_f gk_norm_root(const gk_f* s)
{
    if (s[0] > GK_R(0.0) || gk_isnan(s[0])) return gk_sqrt(s[0] + s[1] * GK_R(2.93873587705571877e-39)) * GK_R(1.8446744073709552e19);
    if (s[1] > GK_R(0.0) || gk_isnan(s[1])) return gk_sqrt(s[1] + s[2] * GK_R(2.93873587705571877e-39));
    return gk_sqrt(s[2]) * GK_R(5.42101086242752217e-20);
}

/* What the sums of n blocks come to, in every thread: the norm of degree p. */
GK_FN gk_f gk_norm_total(GK_GLOBAL const gk_f* partial, gk_i64 n, int kind, gk_f p, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f s[3];
    for (int k = 0; k < 3; k++) {
        s[k] = GK_R(0.0);
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) s[k] = kind == 3 ? gk_max(s[k], partial[4 * i + k]) : s[k] + partial[4 * i + k];
        s[k] = kind == 3 ? gk_block_max(s[k], tmp) : gk_block_sum(s[k], tmp);
    }
    if (kind == 0) return gk_pow(s[1], GK_R(1.0) / p);
    return kind == 2 ? gk_norm_root(s) : s[1];
}

// Units: FLOATS64
/* partial[4b..4b+2]: sums of the chunks that block b takes; [4b+3]: 1 if one of their values is not finite, else 0. */
GK_KERNEL(gradient_norm_partial)(GK_IN(gk_i64, table), int tensors, GK_IN(gk_t, g), GK_OUT(gk_f, partial), int kind, gk_f p)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, partial);
    gk_f s[3];
    s[0] = s[1] = s[2] = GK_R(0.0);
    int bad = 0;
    gk_i64 chunks = table[tensors * GK_OPTIM_FIELDS];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, tensors, c) * GK_OPTIM_FIELDS;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], og = row[3], i = begin;
        if (og % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_NORM_AHEAD * GK_BLOCK * GK_W) {
                gk_vec v[GK_NORM_AHEAD];
                gk_read_ahead(v, g + og, i, full, GK_NORM_AHEAD);
                GK_UNROLL for (int u = 0; u < GK_NORM_AHEAD; u++)
                    if (i + u * GK_BLOCK * GK_W < full) gk_norm_addv(s, &bad, v[u], kind, p);
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) {
            gk_f v = gk_load(g, og + i);
            bad |= !(gk_fabs(v) < GK_INF);
            gk_norm_add(s, v, kind, p);
        }
    }
    for (int k = 0; k < 3; k++) {
        s[k] = kind == 3 ? gk_block_max(s[k], tmp) : gk_block_sum(s[k], tmp);
        if (gk_lid() == 0) partial[4 * gk_bid(0) + k] = s[k];
    }
    gk_f any = gk_block_max(bad ? GK_R(1.0) : GK_R(0.0), tmp);
    if (gk_lid() == 0) partial[4 * gk_bid(0) + 3] = any;
}

/* One block: total = the norm, coef = min(1, max_norm / (total + 1e-6)). */
GK_KERNEL(gradient_norm_final)(GK_IN(gk_f, partial), gk_i64 n, int kind, gk_f p, gk_f max_norm, GK_OUT(float, total), GK_OUT(gk_f, coef))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_OUT(float, total); GK_BIND_OUT(gk_f, coef);
    gk_f r = gk_norm_total(partial, n, kind, p, tmp);
    if (gk_lid() == 0) {
        if (total) total[0] = (float)r;
        gk_f c = max_norm / (r + GK_R(1e-6));
        coef[0] = c > GK_R(1.0) ? GK_R(1.0) : c;
    }
}

/* g *= coef; nothing is written where coef is exactly 1. mode 1: g = clamp(g, -bound, bound), NaN stays. */
GK_KERNEL(grad_scale)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, g), GK_IN(gk_f, coef), int mode, gk_f bound)
{
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, g); GK_BIND_IN(gk_f, coef);
    gk_f c = mode ? GK_R(0.0) : coef[0];
    if (!mode && c == GK_R(1.0)) return;
    gk_i64 chunks = table[tensors * GK_OPTIM_FIELDS];
    for (gk_i64 k = gk_bid(0); k < chunks; k += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, tensors, k) * GK_OPTIM_FIELDS;
        gk_i64 begin = (k - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], og = row[3], i = begin;
        if (og % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_SCALE_AHEAD * GK_BLOCK * GK_W) {
                gk_vec v[GK_SCALE_AHEAD];
                gk_read_ahead(v, g + og, i, full, GK_SCALE_AHEAD);
                GK_UNROLL for (int u = 0; u < GK_SCALE_AHEAD; u++) {
                    gk_i64 at = i + u * GK_BLOCK * GK_W;
                    GK_UNROLL for (int j = 0; j < GK_W; j++) v[u].v[j] = mode ? gk_min(gk_max(v[u].v[j], -bound), bound) : v[u].v[j] * c;
                    if (at < full) gk_storev(g, og + at, v[u]);
                }
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) {
            gk_f v = gk_load(g, og + i);
            gk_store(g, og + i, mode ? gk_min(gk_max(v, -bound), bound) : v * c);
        }
    }
}

/* g [units, len] *= min(1, k max(|w|, least) / |g|) per unit; w is gk_f where master is set. A block per unit. */
GK_KERNEL(unit_clip)(GK_IN(gk_t, w), GK_OUT(gk_t, g), int master, gk_i64 units, gk_i64 len, gk_f k, gk_f least)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, w); GK_BIND_OUT(gk_t, g);
    GK_GLOBAL const gk_f* wm = (GK_GLOBAL const gk_f*)w;
    for (gk_i64 u = gk_bid(0); u < units; u += gk_nblocks(0)) {
        gk_i64 at = u * len;
        gk_f s[6];
        for (int j = 0; j < 6; j++) s[j] = GK_R(0.0);
        for (gk_i64 i = at + gk_lid(); i < at + len; i += GK_BLOCK) {
            gk_norm_add(s, master ? wm[i] : gk_load(w, i), 2, GK_R(2.0));
            gk_norm_add(s + 3, gk_load(g, i), 2, GK_R(2.0));
        }
        for (int j = 0; j < 6; j++) s[j] = gk_block_sum(s[j], tmp);
        gk_f most = k * gk_max(gk_norm_root(s), least), norm = gk_norm_root(s + 3);
        /* NaN in either norm goes through to the gradient. */
        gk_f c = norm <= most ? GK_R(1.0) : most / norm;
        for (gk_i64 i = at + gk_lid(); i < at + len; i += GK_BLOCK) gk_store(g, i, gk_load(g, i) * c);
    }
}

/* v / s. By a power of two, which loss scales are, it is the product with the inverse, which is exact. */
typedef struct { gk_f s, inverse; int exact; } gk_divisor;
GK_FN gk_divisor gk_divisor_of(gk_f s)
{
    gk_divisor d;
    d.s = s;
    d.inverse = GK_R(1.0) / s;
#if GK_DTYPE == GK_F64
    d.exact = (gk_as_u64(s) & 0xffffffffffffful) == 0ul;
#else
    d.exact = (gk_as_u32(s) & 0x7fffffu) == 0u;
#endif
    d.exact &= s > GK_R(1e-30) && s < GK_R(1e30);
    return d;
}
GK_FN gk_f gk_divided(gk_f v, gk_divisor d) { return d.exact ? v * d.inverse : v / d.s; }

/* found = 1 if a gradient is not finite. Where scale is given, g /= scale. */
GK_KERNEL(grad_unscale)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, g), GK_IN(float, scale), GK_OUT(float, found))
{
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, g); GK_BIND_IN(float, scale); GK_BIND_OUT(float, found);
    gk_divisor s = gk_divisor_of(scale ? (gk_f)scale[0] : GK_R(1.0));
    int bad = 0;
    gk_i64 chunks = table[tensors * GK_OPTIM_FIELDS];
    for (gk_i64 k = gk_bid(0); k < chunks; k += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, tensors, k) * GK_OPTIM_FIELDS;
        gk_i64 begin = (k - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], og = row[3], i = begin;
        if (og % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_SCALE_AHEAD * GK_BLOCK * GK_W) {
                gk_vec v[GK_SCALE_AHEAD];
                gk_read_ahead(v, g + og, i, full, GK_SCALE_AHEAD);
                GK_UNROLL for (int u = 0; u < GK_SCALE_AHEAD; u++) {
                    gk_i64 at = i + u * GK_BLOCK * GK_W;
                    GK_UNROLL for (int j = 0; j < GK_W; j++) { bad |= !(gk_fabs(v[u].v[j]) < GK_INF); v[u].v[j] = gk_divided(v[u].v[j], s); }
                    if (scale && at < full) gk_storev(g, og + at, v[u]);
                }
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) {
            gk_f v = gk_load(g, og + i);
            bad |= !(gk_fabs(v) < GK_INF);
            if (scale) gk_store(g, og + i, gk_divided(v, s));
        }
    }
    /* Everybody who writes writes the same. */
    if (bad) found[0] = 1.0f;
}

/* The next loss scale, after a step that was skipped or not. step, inverse: may be null. */
GK_FN void gk_next_scale(GK_GLOBAL float* scale, GK_GLOBAL gk_i64* good, GK_GLOBAL float* inverse, GK_GLOBAL gk_i64* step, int skipped, float growth,
                         float backoff, gk_i64 interval, float least)
{
    float s = scale[0];
    gk_i64 n = good[0] + 1;
    if (skipped) {
        s *= backoff;
        if (s < least) s = least;
        n = 0;
    } else {
        if (step) step[0] += 1;
        if (n >= interval) {
            float grown = s * growth;
            if (grown <= 3.4028234663852886e38f) s = grown;
            n = 0;
        }
    }
    scale[0] = s;
    good[0] = n;
    if (inverse) inverse[0] = 1.0f / s;
}

/* One block: total = the norm divided by the loss scale, factor = min(1, max_norm / (total + 1e-6)) / scale. Where scale is given: skip = 1 if a
 * gradient is not finite or found is set, count = step, and then the next scale; found becomes 0. inverse: 1 / scale. */
GK_KERNEL(gradient_factor)(GK_IN(gk_f, partial), gk_i64 n, int kind, gk_f p, gk_f max_norm, GK_OUT(float, total), GK_OUT(float, factor),
                           GK_OUT(float, scale), GK_OUT(gk_i64, good), GK_OUT(float, found), GK_OUT(float, inverse), GK_OUT(gk_i64, step),
                           GK_OUT(float, skip), GK_OUT(gk_i64, count), float growth, float backoff, gk_i64 interval, float least)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_OUT(float, total); GK_BIND_OUT(float, factor); GK_BIND_OUT(float, scale); GK_BIND_OUT(gk_i64, good);
    GK_BIND_OUT(float, found); GK_BIND_OUT(float, inverse); GK_BIND_OUT(gk_i64, step); GK_BIND_OUT(float, skip); GK_BIND_OUT(gk_i64, count);
    gk_f r = gk_norm_total(partial, n, kind, p, tmp), bad = GK_R(0.0);
    for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) bad = gk_max(bad, partial[4 * i + 3]);
    bad = gk_block_max(bad, tmp);
    if (gk_lid() == 0) {
        gk_f by = scale ? (gk_f)inverse[0] : GK_R(1.0);
        r *= by;
        if (total) total[0] = (float)r;
        gk_f c = max_norm / (r + GK_R(1e-6));
        factor[0] = (float)((c > GK_R(1.0) ? GK_R(1.0) : c) * by);
        if (scale) {
            int skipped = bad > GK_R(0.0) || found[0] != 0.0f;
            skip[0] = skipped ? 1.0f : 0.0f;
            count[0] = step[0];
            found[0] = 0.0f;
            gk_next_scale(scale, good, inverse, step, skipped, growth, backoff, interval, least);
        }
    }
}

// Units: F32
/* The next loss scale, from what the last step found. One thread. */
GK_KERNEL(loss_scale)(GK_OUT(float, scale), GK_OUT(gk_i64, good), GK_OUT(float, found), GK_OUT(float, inverse), GK_OUT(gk_i64, step), float growth,
                      float backoff, gk_i64 interval, float least)
{
    GK_BIND_OUT(float, scale); GK_BIND_OUT(gk_i64, good); GK_BIND_OUT(float, found); GK_BIND_OUT(float, inverse); GK_BIND_OUT(gk_i64, step);
    if (gk_lid() == 0 && gk_bid(0) == 0) {
        int skipped = found[0] != 0.0f;
        found[0] = 0.0f;
        gk_next_scale(scale, good, inverse, step, skipped, growth, backoff, interval, least);
    }
}

/* ---- layer-wise rates (LARS, LAMB) -------------------------------------------------------------------------------------------- */

typedef struct {
    gk_f c1, c2, log1, log2, p0, p1, p2, p3, p4, p5;
    int tensors, master, maximize, lamb;
} gk_trust_partial_args;

// Units: FLOATS64
/* partial[6c..6c+5] = sums of squares, in three ranges each, of w and of the gradient (lamb: of the direction) in chunk c. Reads only. */
GK_KERNEL(trust_partial)(GK_IN(gk_i64, table), GK_IN(gk_t, w), GK_IN(gk_t, g), GK_IN(gk_f, s0), GK_IN(gk_f, s1), GK_IN(gk_i64, step),
                         GK_IN(float, inv_scale), GK_OUT(gk_f, partial), GK_IN(gk_f, numbers), GK_BY_VALUE(gk_trust_partial_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_IN(gk_f, s0); GK_BIND_IN(gk_f, s1); GK_BIND_IN(gk_i64, step);
    GK_BIND_IN(float, inv_scale); GK_BIND_OUT(gk_f, partial); GK_BIND_IN(gk_f, numbers);
    GK_GLOBAL const gk_f* wm = (GK_GLOBAL const gk_f*)w;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    gk_step h;
    h.lr = h.t = h.q0 = h.q1 = GK_R(0.0);
    h.first = h.flag = 0;
    h.c1 = args.c1; h.c2 = args.c2; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5;
    if (numbers) h = gk_step_numbers(h, numbers);
    if (step) h = gk_step_at(h, step[0], args.log1, args.log2);
    gk_i64 chunks = table[args.tensors * GK_OPTIM_FIELDS];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, args.tensors, c) * GK_OPTIM_FIELDS;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], i = begin + gk_lid() * GK_W;
        gk_i64 ow = row[2], og = row[3], o0 = row[4], o1 = row[5];
        int wide = (ow | og | o0 | o1) % GK_W == 0;
        gk_f s[6];
        for (int k = 0; k < 6; k++) s[k] = GK_R(0.0);
        /* GK_W elements per thread and turn, so that the order of the sums does not depend on the alignment. */
        for (; i < end; i += GK_BLOCK * GK_W) {
            int count = i + GK_W <= end ? GK_W : (int)(end - i);
            gk_vec a, b, m, v;
            if (wide && count == GK_W) {
                a = args.master ? gk_loads(wm, ow + i) : gk_loadv(w, ow + i);
                b = gk_loadv(g, og + i);
                if (args.lamb) { m = gk_loads(s0, o0 + i); v = gk_loads(s1, o1 + i); }
            } else
                for (int k = 0; k < count; k++) {
                    a.v[k] = args.master ? wm[ow + i + k] : gk_load(w, ow + i + k);
                    b.v[k] = gk_load(g, og + i + k);
                    if (args.lamb) { m.v[k] = s0[o0 + i + k]; v.v[k] = s1[o1 + i + k]; }
                }
            for (int k = 0; k < count; k++) {
                gk_f d = b.v[k] * unscale;
                if (args.lamb) d = gk_lamb_direction(a.v[k], d, &m.v[k], &v.v[k], h);
                gk_norm_add(s, a.v[k], 2, GK_R(2.0));
                gk_norm_add(s + 3, d, 2, GK_R(2.0));
            }
        }
        for (int k = 0; k < 6; k++) {
            s[k] = gk_block_sum(s[k], tmp);
            if (gk_lid() == 0) partial[6 * c + k] = s[k];
        }
    }
}

/* One block per tensor: ratio[t] of the norms a of w and b of the gradient or direction. LARS: eta a / (b + wd a + eps); LAMB:
 * min(a, bound) / b; 1 where a norm is 0. */
GK_KERNEL(trust_finish)(GK_IN(gk_i64, table), int tensors, GK_IN(gk_f, partial), int lamb, gk_f eta, gk_f wd, gk_f eps, gk_f bound,
                        GK_OUT(gk_f, ratio))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_IN(gk_f, partial); GK_BIND_OUT(gk_f, ratio);
    for (int t = gk_bid(0); t < tensors; t += gk_nblocks(0)) {
        gk_i64 from = table[t * GK_OPTIM_FIELDS], to = table[(t + 1) * GK_OPTIM_FIELDS];
        gk_f s[6];
        for (int k = 0; k < 6; k++) {
            s[k] = GK_R(0.0);
            for (gk_i64 c = from + gk_lid(); c < to; c += GK_BLOCK) s[k] += partial[6 * c + k];
            s[k] = gk_block_sum(s[k], tmp);
        }
        if (gk_lid() == 0) {
            gk_f a = gk_norm_root(s), b = gk_norm_root(s + 3), r = GK_R(1.0);
            if (a != GK_R(0.0) && b != GK_R(0.0)) r = lamb ? gk_min(a, bound) / b : eta * a / (b + wd * a + eps);
            ratio[t] = r;
        }
    }
}

#define GK_NADAM_MU(i) (psi < GK_R(0.0) ? b1 : b1 * (GK_R(1.0) - GK_R(0.5) * gk_exp(GK_R(-0.040821994520255166) * (gk_f)(i) * psi)))

/* Factors of g and m of NAdam for the step count in device memory: (1 - mu_t) / (1 - P_t), mu_{t+1} / (1 - P_t mu_{t+1}) with
 * mu_i = b1 (1 - 0.96^(i psi) / 2) (b1 where psi < 0) and their product P. One thread; the loop ends where P no longer shows beside 1. */
GK_KERNEL(nadam_scalars)(GK_IN(gk_i64, step), gk_f b1, gk_f psi, GK_OUT(gk_f, factors))
{
    GK_BIND_IN(gk_i64, step); GK_BIND_OUT(gk_f, factors);
    if (gk_lid() == 0 && gk_bid(0) == 0) {
        gk_i64 t = step[0];
        gk_f product = GK_R(1.0), now, next;
        for (gk_i64 i = 1; i <= t && product > GK_R(1e-20); i++) product *= GK_NADAM_MU(i);
        now = GK_NADAM_MU(t);
        next = GK_NADAM_MU(t + 1);
        factors[0] = (GK_R(1.0) - now) / (GK_R(1.0) - product);
        factors[1] = next / (GK_R(1.0) - product * next);
    }
}

/* factor[0] of RAdam for the step count in device memory, 0 where its r is not above 5. lambda = -ln b2, most = 2/(1-b2) - 1, rest = most - 2/lambda;
 * for small lambda t the series of 2t/(e^(lambda t) - 1), whose leading term would swallow the digits of r. One thread. */
GK_KERNEL(radam_scalars)(GK_IN(gk_i64, step), gk_f lambda, gk_f most, gk_f rest, GK_OUT(gk_f, factor))
{
    GK_BIND_IN(gk_i64, step); GK_BIND_OUT(gk_f, factor);
    if (gk_lid() == 0 && gk_bid(0) == 0) {
        gk_f t = (gk_f)step[0], y = lambda * t, r = most + GK_R(2.0) * t * gk_exp(-y) / gk_expm1(-y);
        if (y < GK_R(0.5)) r = rest + t - t * y * (GK_R(1.0) / GK_R(6.0) - y * y * (GK_R(1.0) / GK_R(360.0) - y * y / GK_R(15120.0)));
        gk_f f = (r - GK_R(4.0)) * (r - GK_R(2.0)) * most / ((most - GK_R(4.0)) * (most - GK_R(2.0)) * r);
        factor[0] = r > GK_R(5.0) ? gk_sqrt(f) : GK_R(0.0);
        factor[1] = GK_R(0.0);
    }
}
