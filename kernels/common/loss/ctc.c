/* Connectionist temporal classification (Graves et al., 2006): -ln of the probability that the scores of T steps spell the labels.
 *
 * Positions of the extended sequence, labels with blanks around them, are reached from up to three of the step before; the same recursion from the
 * end gives beta, as a sequence and its mirror image have the same alignments. ctc_lattice has a block per sample and direction, ctc_grad a group of
 * threads per sample and step. Log space, gk_f. Deterministic: occupancies of equal labels are added in their order, those of blanks by a fixed
 * tree. Reference: torch.nn.functional.ctc_loss.
 */
#include "common/prelude/rows.h"
#include "lattice.h"

/* Where a sample's labels start: S per sample, or (S = 0) one after the other; -1 where a length before it is no length. */
GK_FN gk_i64 gk_labels_at(GK_GLOBAL const int* tl, int wide, gk_i64 b, gk_i64 S)
{
    gk_i64 at = b * S;
    if (S == 0)
        for (gk_i64 k = 0; k < b; k++) {
            gk_i64 n = gk_index(tl, k, wide);
            at = n < 0 || at < 0 ? -1 : at + n;
        }
    return at;
}

/* A sample from its beginning, or (mirror) from its end. n: positions, counted from there; 0 where a length is out of range.
 * from, step: where the scores of the first step lie, and how far from there the next ones. keep: the values of all steps stay in global memory. */
typedef struct {
    gk_i64 b, time, labels, first, n, C, blank, from, step;
    int wide_t, mirror, keep;
} gk_ctc_side;

/* Class of position r, which may be none. */
GK_FN gk_i64 gk_ctc_class(const gk_ctc_side* o, GK_GLOBAL const int* targets, gk_i64 r)
{
    gk_i64 j = o->mirror ? o->labels - 1 - r / 2 : r / 2;
    return r & 1 ? gk_index(targets, o->first + j, o->wide_t) : o->blank;
}
/* Whether position r may be reached from r - 2. */
GK_FN int gk_ctc_skips(const gk_ctc_side* o, GK_GLOBAL const int* targets, gk_i64 r)
{
    return r > 1 && (r & 1) && gk_ctc_class(o, targets, r) != gk_ctc_class(o, targets, r - 2);
}
/* Where the value of position r after step k lies: rows of steps, or two of them in turn. */
GK_FN gk_i64 gk_ctc_place(const gk_ctc_side* o, gk_i64 k, gk_i64 r)
{
    gk_i64 t = o->mirror ? o->time - 1 - k : k;
    return (o->keep ? t : k & 1) * o->n + (o->mirror ? o->n - 1 - r : r);
}

/* Scores of the steps from k on, as they lie in memory; the last step's again beyond it. */
GK_FN void gk_ctc_fetch(const gk_ctc_side* o, GK_GLOBAL const gk_t* x, const gk_i64 at[GK_LOSS_SLOTS], gk_i64 k, gk_b bits[GK_LOSS_AHEAD],
                        const int slots)
{
    const int ahead = GK_LOSS_AHEAD / slots;
    gk_i64 base = k * o->step, last = o->time - 1 - k;
    int most = last < ahead ? (int)last : ahead;
    GK_UNROLL for (int q = 0; q < ahead; q++) {
        gk_i64 row = base + (q < most ? q : most) * o->step;
        GK_UNROLL for (int i = 0; i < slots; i++)
            if (i == 0 || i * GK_BLOCK < o->n) bits[i * ahead + q] = ((GK_GLOBAL const gk_b*)x)[at[i] + row];
    }
}

/* Runs over the steps of a sample of up to slots * GK_BLOCK positions and returns ln p. alpha includes the score of its step, beta does not. */
GK_FN gk_f gk_ctc_held(const gk_ctc_side* o, GK_GLOBAL const gk_t* x, GK_GLOBAL const int* targets, GK_GLOBAL gk_f* out, GK_LOCAL_PTR gk_f* held,
                       const int slots)
{
    const int ahead = GK_LOSS_AHEAD / slots;
    gk_i64 at[GK_LOSS_SLOTS];
    int legal[GK_LOSS_SLOTS], skips[GK_LOSS_SLOTS];
    gk_f own[GK_LOSS_SLOTS], v[GK_LOSS_AHEAD];
    gk_b bits[GK_LOSS_AHEAD];
    gk_i64 row = o->mirror ? -o->n : o->n;
    GK_UNROLL for (int i = 0; i < slots; i++) {
        int r = gk_lid() + i * GK_BLOCK;
        gk_i64 c = r < o->n ? gk_ctc_class(o, targets, r) : o->blank;
        legal[i] = c >= 0 && c < o->C;
        skips[i] = r < o->n && gk_ctc_skips(o, targets, r);
        at[i] = o->from + (legal[i] ? c : 0);
        /* Before the first step, as if only position 0 had been reached. */
        own[i] = r == 0 ? GK_R(0.0) : -GK_INF;
        held[GK_LOSS_HELD + r] = own[i];
    }
    if (o->time > 0) gk_ctc_fetch(o, x, at, 0, bits, slots);
    GK_BARRIER();
    for (gk_i64 k = 0; k < o->time; k += ahead) {
        GK_UNROLL for (int e = 0; e < slots * ahead; e++) v[e] = gk_value(bits[e]);
        gk_ctc_fetch(o, x, at, k + ahead, bits, slots);
        int left = gk_loss_left(o->time - k, ahead);
        GK_UNROLL for (int q = 0; q < ahead; q++) {
            GK_LOCAL_PTR const gk_f* before = held + (1 - (q & 1)) * GK_LOSS_HELD;
            GK_UNROLL for (int i = 0; i < slots; i++) {
                int r = gk_lid() + i * GK_BLOCK;
                if (r < o->n) {
                    gk_f p = gk_lse3(own[i], r > 0 ? before[r - 1] : -GK_INF, skips[i] ? before[r - 2] : -GK_INF);
                    gk_f a = p + (legal[i] ? v[i * ahead + q] : -GK_INF);
                    /* Values stay as they are behind the last step. */
                    if (q < left) own[i] = a;
                    if (q < left && o->keep) out[gk_ctc_place(o, k, r) + q * row] = o->mirror ? p : a;
                    held[(q & 1) * GK_LOSS_HELD + r] = own[i];
                }
            }
            GK_BARRIER();
        }
    }
    if (o->n < 2) return held[GK_LOSS_HELD];
    return gk_lse2(held[GK_LOSS_HELD + o->n - 1], held[GK_LOSS_HELD + o->n - 2]);
}

GK_FN gk_f gk_ctc_logp(const gk_ctc_side* o, GK_GLOBAL const gk_t* x, GK_GLOBAL const int* targets, gk_i64 k, gk_i64 r)
{
    gk_i64 c = gk_ctc_class(o, targets, r);
    return c >= 0 && c < o->C ? gk_load(x, o->from + k * o->step + c) : -GK_INF;
}
/* The value of position r after step k with its score. */
GK_FN gk_f gk_ctc_value(const gk_ctc_side* o, GK_GLOBAL const gk_t* x, GK_GLOBAL const int* targets, GK_GLOBAL const gk_f* out, gk_i64 k, gk_i64 r)
{
    return out[gk_ctc_place(o, k, r)] + (o->mirror ? gk_ctc_logp(o, x, targets, k, r) : GK_R(0.0));
}
/* gk_ctc_held for any number of positions above 2: the values of the step before come from global memory. */
GK_FN gk_f gk_ctc_long(const gk_ctc_side* o, GK_GLOBAL const gk_t* x, GK_GLOBAL const int* targets, GK_GLOBAL gk_f* out)
{
    for (gk_i64 k = 0; k < o->time; k++) {
        for (gk_i64 base = 0; base < o->n; base += GK_BLOCK) {
            gk_i64 r = base + gk_lid();
            if (r < o->n) {
                gk_f p = k == 0 && r < 2 ? GK_R(0.0) : -GK_INF;
                if (k > 0) {
                    gk_f one = r > 0 ? gk_ctc_value(o, x, targets, out, k - 1, r - 1) : -GK_INF;
                    gk_f two = gk_ctc_skips(o, targets, r) ? gk_ctc_value(o, x, targets, out, k - 1, r - 2) : -GK_INF;
                    p = gk_lse3(gk_ctc_value(o, x, targets, out, k - 1, r), one, two);
                }
                out[gk_ctc_place(o, k, r)] = o->mirror ? p : p + gk_ctc_logp(o, x, targets, k, r);
            }
        }
        GK_BARRIER();
    }
    if (o->time == 0) return -GK_INF;
    return gk_lse2(out[gk_ctc_place(o, o->time - 1, o->n - 1)], out[gk_ctc_place(o, o->time - 1, o->n - 2)]);
}

/* For the gradient: time, labels and first of the sample, and of each label the next equal one, 0 for none; of a label that is not the first of its
 * class, is the blank or is out of range, the complement. */
GK_FN void gk_ctc_chain(const gk_ctc_side* o, GK_GLOBAL const int* targets, GK_GLOBAL int* chain, GK_GLOBAL gk_i64* sample)
{
    for (gk_i64 j = gk_lid(); j < o->labels; j += GK_BLOCK) {
        gk_i64 c = gk_index(targets, o->first + j, o->wide_t), next = j + 1, k = 0;
        while (next < o->labels && gk_index(targets, o->first + next, o->wide_t) != c) next++;
        while (gk_index(targets, o->first + k, o->wide_t) != c) k++;
        int rest = next < o->labels ? (int)next : 0, leads = k == j && c != o->blank && c >= 0 && c < o->C;
        chain[o->first + j] = leads ? rest : ~rest;
    }
    if (gk_lid() == 0) {
        sample[0] = o->time;
        sample[1] = o->labels;
        sample[2] = o->first;
    }
}

typedef struct {
    gk_i64 most, side;
    int wide_il, wide_tl;
} gk_ctc_lattice_args;

// Units: FLOATS64
/* nll [B] = -ln p. both: also alpha and, `side` behind it, beta: rows of 2 labels + 1 for T steps, samples one after the other as their labels are;
 * chain [labels], samples [B, 3]. Otherwise alpha has two rows per sample. Lengths outside [0, T] and [0, most] and ids outside [0, C) are reported;
 * a sample with such a length has nll 0. */
GK_KERNEL(ctc_lattice)(GK_IN(gk_t, x), GK_IN(int, targets), int wide_t, GK_IN(int, il), GK_IN(int, tl), GK_OUT(int, err), int code, gk_i64 T,
                       gk_i64 B, gk_i64 C, gk_i64 st, gk_i64 sb, gk_i64 S, gk_i64 blank, int both, GK_OUT(gk_f, alpha), GK_OUT(gk_f, nll),
                       GK_OUT(int, chain), GK_OUT(gk_i64, samples), GK_BY_VALUE(gk_ctc_lattice_args, args))
{
    GK_LOCAL gk_f held[2 * GK_LOSS_HELD];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, alpha);
    GK_BIND_OUT(gk_f, nll); GK_BIND_OUT(int, chain); GK_BIND_OUT(gk_i64, samples);
    for (gk_i64 e = gk_bid(0); e < (both ? 2 * B : B); e += gk_nblocks(0)) {
        gk_ctc_side o;
        gk_f p;
        o.mirror = e >= B; o.keep = both; o.wide_t = wide_t; o.C = C; o.blank = blank;
        o.b = o.mirror ? e - B : e;
        o.time = gk_index(il, o.b, args.wide_il);
        o.labels = gk_index(tl, o.b, args.wide_tl);
        o.first = gk_labels_at(tl, args.wide_tl, o.b, S);
        int ok = o.time >= 0 && o.time <= T && o.labels >= 0 && o.labels <= args.most && o.first >= 0
            && o.first + o.labels <= (S ? (o.b + 1) * S : args.most);
        if (!ok) { gk_report(err, code); o.time = 0; o.labels = 0; o.first = 0; }
        o.n = ok ? 2 * o.labels + 1 : 0;
        o.step = o.mirror ? -st : st;
        o.from = o.b * sb + (o.mirror ? (o.time - 1) * st : 0);
        for (gk_i64 j = gk_lid(); j < o.labels; j += GK_BLOCK) {
            gk_i64 c = gk_index(targets, o.first + j, wide_t);
            if (c < 0 || c >= C) gk_report(err, code);
        }
        if (o.mirror) gk_ctc_chain(&o, targets, chain, samples + 3 * o.b);
        GK_GLOBAL gk_f* out = alpha + (o.mirror ? args.side : 0) + (both ? T : 2) * (2 * o.first + o.b);
        if (o.n <= GK_BLOCK) p = gk_ctc_held(&o, x, targets, out, held, 1);
        else if (o.n <= GK_LOSS_HELD) p = gk_ctc_held(&o, x, targets, out, held, GK_LOSS_SLOTS);
        else p = gk_ctc_long(&o, x, targets, out);
        if (gk_lid() == 0 && !o.mirror) nll[o.b] = ok ? -p : GK_R(0.0);
        GK_BARRIER();
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

/* A lane's share of a row of C equal values, written or added. */
GK_FN void gk_ctc_fill(GK_GLOBAL gk_t* dx, gk_i64 to, gk_i64 C, gk_f value, int lane, int lanes, int wide, int accumulate)
{
    int w = wide ? GK_W : 1;
    for (gk_i64 c = lane * w; c < C; c += lanes * w) {
        gk_vec v;
        GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = value;
        if (accumulate) {
            gk_vec o = gk_item(dx, to + c, wide);
            GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] += o.v[k];
        }
        gk_put_item(dx, to + c, v, wide);
    }
}

typedef struct {
    gk_i64 side;
    gk_f factor;
    int each, gy_f32, per_label, zero_infinity;
} gk_ctc_grad_args;

/* dx (+)= -gy * occupancy, from what ctc_lattice left. `lanes` threads share a row: they fill it, then put the classes of the sample into it.
 * Impossible samples have NaN, or 0 with zero_infinity; steps beyond a sample's have 0. */
GK_KERNEL(ctc_grad)(GK_IN(int, targets), int wide_t, GK_IN(gk_f, alpha), GK_IN(gk_f, nll), GK_IN(int, chain), GK_IN(gk_i64, samples), gk_i64 T,
                    gk_i64 B, gk_i64 C, gk_i64 st, gk_i64 sb, gk_i64 blank, int lanes, int wide, int accumulate, GK_IN(gk_t, gy), GK_OUT(gk_t, dx),
                    GK_BY_VALUE(gk_ctc_grad_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(int, targets); GK_BIND_IN(gk_f, alpha); GK_BIND_IN(gk_f, nll); GK_BIND_IN(int, chain); GK_BIND_IN(gk_i64, samples);
    GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dx);
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 base = gk_bid(0) * per; base < B * T; base += gk_nblocks(0) * per) {
        gk_i64 row = base + gk_lid() / lanes, b = row < B * T ? gk_quot(row, T) : 0, t = row - b * T, to = t * st + b * sb;
        gk_i64 time = samples[3 * b], labels = samples[3 * b + 1], first = samples[3 * b + 2];
        gk_f l = nll[b], g = gk_loss_gy(gy, b, args.factor, args.each, args.gy_f32), blanks = GK_R(0.0);
        gk_f rest = l == GK_INF && !args.zero_infinity && t < time ? GK_NAN : GK_R(0.0);
        int live = row < B * T && t < time && l != GK_INF;
        GK_GLOBAL const gk_f* a = alpha + T * (2 * first + b) + t * (2 * labels + 1);
        GK_GLOBAL const gk_f* z = a + args.side;
        if (args.per_label && labels > 1) g /= (gk_f)labels;
        if (row < B * T && !(accumulate && rest == GK_R(0.0))) gk_ctc_fill(dx, to, C, rest, lane, lanes, wide, accumulate);
        GK_BARRIER();
        for (gk_i64 j = lane; live && j <= labels; j += lanes) blanks += gk_exp(a[2 * j] + z[2 * j] + l);
        for (gk_i64 j = lane; live && j < labels; j += lanes) {
            gk_i64 c = gk_index(targets, first + j, wide_t);
            int next = chain[first + j];
            gk_f sum = gk_exp(a[2 * j + 1] + z[2 * j + 1] + l);
            if (c == blank) blanks += sum;
            if (next < 0) continue;
            while (next > 0) {
                sum += gk_exp(a[2 * next + 1] + z[2 * next + 1] + l);
                next = ~chain[first + next];
            }
            gk_store(dx, to + c, accumulate ? gk_load(dx, to + c) - g * sum : -g * sum);
        }
        blanks = gk_group_sum(blanks, tmp, lanes);
        if (live && lane == 0) gk_store(dx, to + blank, accumulate ? gk_load(dx, to + blank) - g * blanks : -g * blanks);
    }
}
