/* Rows of logits by one block each, as sampling.c has it: what top-k and top-p keep of one, and a draw from it. */
#include "sampling.h"

/* The largest key such that the weights of those not below it sum to at least `target`, with *above as the sum of what is above all keys at first and of
 * what is above that key in the end. Of the `count` elements of each thread in the list, or for -1 of the row. */
GK_FN gk_key gk_descend(const gk_logits* l, const gk_kept* k, gk_f target, const int by, GK_LOCAL_PTR const gk_f* list, int count,
                        GK_LOCAL_PTR gk_f* tmp, gk_f* above)
{
    gk_key prefix = 0;
    for (int shift = GK_KEY_BITS - 4; shift >= 0; shift -= 4) {
        gk_f sums[GK_SAMPLE_DIGITS];
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) sums[d] = GK_R(0.0);
        if (count >= 0) {
            for (int n = 0; n < count; n++) {
                gk_f x = list[n * GK_BLOCK + gk_lid()];
                gk_digit_add(sums, gk_key_of(x), prefix, shift, by == GK_BY_POWER ? gk_power(l, x, k->top) : GK_R(1.0));
            }
        } else {
            for (gk_i64 i = gk_lid(); i < l->n; i += GK_BLOCK) {
                gk_f x = gk_logit(l, i);
                gk_digit_add(sums, by == GK_BY_ID ? (gk_key)(l->n - 1 - i) : gk_key_of(x), prefix, shift, gk_weight(l, k, x, i, by));
            }
        }
        prefix |= (gk_key)gk_digit_pick(sums, target, above, tmp) << shift;
    }
    return prefix;
}

/* The distance of an element from the largest, 64 T and more being one. */
#define GK_DISTANCE_BITS 20
GK_FN gk_u32 gk_distance(const gk_logits* l, gk_f x, gk_f top)
{
    gk_f z = (top - x) * l->scale * GK_R(16384.0);
    if (x == top) return 0;
    return z < GK_R(1048575.0) ? (gk_u32)z : 1048575u;
}

/* Of the elements whose distance begins with `prefix`, those with each value of the next bits: adds the sums of the nearer ones to *above and returns the
 * bits with which the sum reaches the target. */
GK_FN gk_u32 gk_look(const gk_logits* l, const gk_kept* k, gk_u32 prefix, int shift, gk_f target, const int by, GK_LOCAL_PTR gk_f* bins,
                     GK_LOCAL_PTR gk_f* tmp, gk_f* above)
{
    gk_f run = *above, part = GK_R(0.0);
    int found = -1, each = GK_BLOCK / GK_LOOK_BINS, bin = gk_lid() / each;
    GK_UNROLL for (int d = 0; d < GK_LOOK_BINS; d++) bins[d * GK_BLOCK + gk_lid()] = GK_R(0.0);
    GK_EACH_LOGIT(l, 0, l->n, x, i, {
        gk_u32 q = gk_distance(l, x, k->top) >> shift;
        if (q >> GK_LOOK_BITS == prefix) bins[(q & (GK_LOOK_BINS - 1)) * GK_BLOCK + gk_lid()] += gk_weight(l, k, x, i, by);
    })
    GK_BARRIER();
    for (int n = gk_lid() % each; n < GK_BLOCK; n += each) part += bins[bin * GK_BLOCK + n];
    part = gk_group_sum(part, tmp, each);
    if (gk_lid() % each == 0) tmp[bin] = part;
    GK_BARRIER();
    for (int d = 0; d < GK_LOOK_BINS; d++) {
        gk_f s = tmp[d];
        if (found < 0 && (run + s >= target || d == GK_LOOK_BINS - 1)) {
            found = d;
            *above = run;
        }
        run += s;
    }
    GK_BARRIER();
    return prefix << GK_LOOK_BITS | (gk_u32)found;
}

/* The elements that count and whose distance is `prefix`; their number in a thread, or -1 where some thread has too many. */
GK_FN int gk_collect(const gk_logits* l, const gk_kept* k, gk_u32 prefix, int shift, const int by, GK_LOCAL_PTR gk_f* list, GK_LOCAL_PTR gk_f* tmp)
{
    int count = 0;
    GK_EACH_LOGIT(l, 0, l->n, x, i, {
        if (gk_distance(l, x, k->top) >> shift == prefix && (by == GK_BY_COUNT || gk_is_kept(l, k, x, i))) {
            if (count < GK_LOOK_BINS) list[count * GK_BLOCK + gk_lid()] = x;
            count++;
        }
    })
    return gk_block_max((gk_f)count, tmp) > (gk_f)GK_LOOK_BINS ? -1 : count;
}

/* Where a threshold lies: its key, the weights above it, and how many elements of the row have it, or more. */
typedef struct { gk_key key; gk_f above, ties; } gk_threshold;

GK_FN gk_threshold gk_find(const gk_logits* l, const gk_kept* k, gk_f target, const int by, GK_LOCAL_PTR gk_f* room, GK_LOCAL_PTR gk_f* tmp)
{
    gk_threshold r;
    gk_u32 prefix = 0;
    int shift = GK_DISTANCE_BITS, count = -1;
    r.above = GK_R(0.0);
    r.ties = GK_INF;
    while (count < 0 && shift > 0) {
        shift -= GK_LOOK_BITS;
        prefix = gk_look(l, k, prefix, shift, target, by, room, tmp, &r.above);
        if (shift <= GK_DISTANCE_BITS - 2 * GK_LOOK_BITS) count = gk_collect(l, k, prefix, shift, by, room, tmp);
    }
    if (count < 0) {
        r.above = GK_R(0.0);
        r.key = gk_descend(l, k, target, by, room, -1, tmp, &r.above);
        return r;
    }
    r.key = gk_descend(l, k, target, by, room, count, tmp, &r.above);
    r.ties = GK_R(0.0);
    for (int n = 0; n < count; n++) r.ties += gk_key_of(room[n * GK_BLOCK + gk_lid()]) == r.key ? GK_R(1.0) : GK_R(0.0);
    r.ties = gk_block_sum(r.ties, tmp);
    return r;
}

/* Lets only `count` of the elements that equal the cut stay, those of the smallest ids. */
GK_FN void gk_cut_ties(const gk_logits* l, gk_kept* k, gk_f count, GK_LOCAL_PTR gk_f* room, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f above = GK_R(0.0), ties = GK_R(0.0);
    for (gk_i64 i = gk_lid(); i < l->n; i += GK_BLOCK) {
        if (i <= k->last && gk_key_of(gk_logit(l, i)) == k->cut) ties += GK_R(1.0);
    }
    ties = gk_block_sum(ties, tmp);
    if (count < ties) k->last = l->n - 1 - (gk_i64)gk_descend(l, k, count, GK_BY_ID, room, -1, tmp, &above);
}

/* The sum of the powers of what is kept: `known`, unless that is negative. In no branch: compilers for CPUs copy what follows a barrier in one. */
GK_FN gk_f gk_row_sum(const gk_logits* l, const gk_kept* k, gk_f known, GK_LOCAL_PTR gk_f* tmp)
{
    gk_i64 end = known < GK_R(0.0) ? l->n : 0;
    gk_f sum = GK_R(0.0);
    GK_EACH_LOGIT(l, 0, end, x, i, sum += gk_weight(l, k, x, i, GK_BY_POWER);)
    sum = gk_block_sum(sum, tmp);
    return end > 0 ? sum : known;
}

/* What top-k and top-p keep; k = 0 and p = 1 keep all. top: the row's largest logit; total: the sum of its powers, or a negative number. */
GK_FN gk_kept gk_row_kept(const gk_logits* l, gk_i64 top_k, gk_f top_p, gk_f top, gk_f total, GK_LOCAL_PTR gk_f* room, GK_LOCAL_PTR gk_f* tmp)
{
    gk_kept k;
    gk_logits all = *l;
    gk_threshold found;
    k.top = top;
    k.cut = 0;
    k.last = l->n - 1;
    all.min_p = GK_R(0.0);
    if (top_k > 0 && top_k < l->n) {
        found = gk_find(&all, &k, (gk_f)top_k, GK_BY_COUNT, room, tmp);
        k.cut = found.key;
        total = GK_R(-1.0);
        if ((gk_f)top_k - found.above < found.ties) gk_cut_ties(&all, &k, (gk_f)top_k - found.above, room, tmp);
    }
    if (top_p < GK_R(1.0)) {
        gk_f sum = gk_row_sum(&all, &k, total, tmp) * top_p, one, count;
        gk_kept p = k;
        found = gk_find(&all, &k, sum, GK_BY_POWER, room, tmp);
        p.cut = found.key;
        if (p.cut != k.cut) p.last = l->n - 1;
        /* Equal elements have equal powers: as many as reach the sum. */
        one = gk_power(l, gk_value_of(p.cut), k.top);
        count = one > GK_R(0.0) ? gk_max(gk_ceil((sum - found.above) / one), GK_R(1.0)) : GK_R(1.0);
        if (count < found.ties) gk_cut_ties(&all, &p, count, room, tmp);
        k = p;
    }
    return k;
}

/* Takes logits in, the first `n` of v: *m is the largest so far, *s the sum of the powers relative to it. */
GK_FN void gk_powers_take(const gk_logits* l, gk_f v[GK_LOGITS_AHEAD], int n, gk_f* m, gk_f* s)
{
    gk_f top = *m, sum = GK_R(0.0);
    /* What is no number counts as -inf: the maximum with that. */
    GK_UNROLL for (int u = 0; u < GK_LOGITS_AHEAD; u++) {
        v[u] = GK_M(fmax)(u < n ? v[u] : -GK_INF, -GK_INF);
        top = GK_M(fmax)(top, v[u]);
    }
    if (n >= GK_LOGITS_AHEAD && !gk_isinf(top) && l->scale < GK_R(1e30)) {
        GK_UNROLL for (int u = 0; u < GK_LOGITS_AHEAD; u++) sum += gk_power_below(l, v[u], top);
    } else {
        GK_UNROLL for (int u = 0; u < GK_LOGITS_AHEAD; u++) sum += u < n ? gk_power(l, v[u], top) : GK_R(0.0);
    }
    *s = *s * gk_power(l, *m, top) + sum;
    *m = top;
}

/* The largest of the logits from `from` to `end` that are thread `lane` of `lanes` threads', and the sum of their powers: one pass. aligned: l->wide is
 * null, and l->logits lies at a multiple of 16 bytes. */
GK_FN gk_f gk_powers(const gk_logits* l, int from, int end, int lane, const int lanes, int aligned, gk_f* top)
{
    gk_f m = -GK_INF, s = GK_R(0.0), v[GK_LOGITS_AHEAD];
    if (aligned) {
        /* Items of 16 bytes, and single elements before and behind them. */
        int head = (int)(-(l->first + from) & (GK_W - 1)), items = head < end - from ? from + head : end, tail = items + (end - items) / GK_W * GK_W;
        for (int at = items + lane * GK_W; at < tail; at += GK_LOGITS_AHEAD * lanes) {
            int n = 0;
            GK_UNROLL for (int u = 0; u < GK_LOGITS_AHEAD; u += GK_W) {
                int there = at + u * lanes < tail;
                gk_vec x = gk_loadv(l->logits, l->first + (there ? at + u * lanes : at));
                n += there ? GK_W : 0;
                GK_UNROLL for (int k = 0; k < GK_W; k++) v[u + k] = x.v[k];
            }
            gk_powers_take(l, v, n, &m, &s);
        }
        GK_ROLLED for (int side = 0; side < 2; side++) {
            int at = (side ? tail : from) + lane;
            if (at < (side ? end : items)) {
                GK_UNROLL for (int u = 0; u < GK_LOGITS_AHEAD; u++) v[u] = gk_load(l->logits, l->first + at);
                gk_powers_take(l, v, 1, &m, &s);
            }
        }
    } else {
        for (int at = from + lane; at < end; at += GK_LOGITS_AHEAD * lanes) {
            gk_logits_ahead(l, at, end, lanes, v, GK_LOGITS_AHEAD);
            gk_powers_take(l, v, (end - at + lanes - 1) / lanes, &m, &s);
        }
    }
    *top = m;
    return s;
}

/* Largest logits and sums of powers of a row's sections. */
typedef struct { gk_f top, tops[GK_SAMPLE_DIGITS], sums[GK_SAMPLE_DIGITS]; } gk_sections;

/* part: those of the row as logits_sections left them, or null. */
GK_FN void gk_row_sections(const gk_logits* l, GK_GLOBAL const gk_f* part, gk_i64 row, gk_sections* r, GK_LOCAL_PTR gk_f* tmp)
{
    gk_i64 width = gk_section_width(l), d = gk_lid() / GK_SECTION_LANES, end = (d + 1) * width < l->n ? (d + 1) * width : l->n;
    gk_f m = -GK_INF, s = GK_R(0.0), top;
    if (part) {
        if (gk_lid() % GK_SECTION_LANES == 0) {
            m = part[(row * GK_SAMPLE_DIGITS + d) * 2];
            s = part[(row * GK_SAMPLE_DIGITS + d) * 2 + 1];
        }
    } else {
        s = gk_powers(l, (int)(d * width), (int)end, gk_lid() % GK_SECTION_LANES, GK_SECTION_LANES, 0, &m);
    }
    top = gk_group_max(m, tmp, GK_SECTION_LANES);
    s = gk_group_sum(s * gk_power(l, m, top), tmp, GK_SECTION_LANES);
    gk_share_sections(top, r->tops, tmp);
    gk_share_sections(s, r->sums, tmp);
    r->top = -GK_INF;
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) r->top = gk_max(r->top, r->tops[d]);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) r->sums[d] *= gk_power(l, r->tops[d], r->top);
}

/* The sums of the weights of 16 sections of `width` elements from `lo`, each by as many threads as a block has for it. */
GK_FN void gk_sums_below(const gk_logits* l, const gk_kept* k, gk_i64 lo, gk_i64 hi, gk_i64 width, gk_f sums[GK_SAMPLE_DIGITS], GK_LOCAL_PTR gk_f* tmp)
{
    gk_i64 from = lo + gk_lid() / GK_SECTION_LANES * width, end = from + width < hi ? from + width : hi;
    gk_f s = GK_R(0.0);
    from += gk_lid() % GK_SECTION_LANES;
    GK_EACH_LOGIT_OF(l, from, end, GK_SECTION_LANES, GK_LOGITS_AHEAD, x, i, s += gk_weight(l, k, x, i, GK_BY_POWER);)
    gk_share_sections(gk_group_sum(s, tmp, GK_SECTION_LANES), sums, tmp);
}

/* The id of a draw; sums of the sections. */
GK_FN gk_i64 gk_draw(const gk_logits* l, const gk_kept* k, gk_f u, gk_f sums[GK_SAMPLE_DIGITS], GK_LOCAL_PTR gk_f* tmp)
{
    gk_i64 lo = 0, hi = l->n, width = gk_section_width(l);
    gk_f before = GK_R(0.0), target = GK_R(0.0);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) target += sums[d];
    target *= u;
    for (;;) {
        gk_i64 at = lo;
        gk_f run = before, found = GK_R(0.0), from = before;
        /* The first section whose end is beyond the target; the last that has anything, if rounding leaves none. */
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
            if (found == GK_R(0.0) && sums[d] > GK_R(0.0)) {
                at = lo + d * width;
                from = run;
                if (run + sums[d] > target) found = GK_R(1.0);
            }
            run += sums[d];
        }
        lo = at;
        hi = lo + width < hi ? lo + width : hi;
        before = from;
        if (hi - lo <= 1) break;
        width = (hi - lo + GK_SAMPLE_DIGITS - 1) / GK_SAMPLE_DIGITS;
        gk_sums_below(l, k, lo, hi, width, sums, tmp);
    }
    return lo;
}
