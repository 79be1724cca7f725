/* Top-k and top-p of long rows of logits by histograms: what sampling.c's logits_keep finds, by blocks of their own for parts of a row.
 *
 *   logits_histogram    a part of at most 8,192 logits in registers: its largest logit; counts and sums of powers exp((l - max) / T) by bins
 *   logits_threshold    a row: adds the bins of its parts up and finds the one in which count (top-k) or sum (top-p) reach the target
 *   logits_candidates   a part: the sum of the powers above that bin, and a list of the bin's elements
 *   logits_cut          a row: the smallest element that is kept, among the lists; the sums of what is kept of 16 sections, for the draw
 *
 * The last three run for top-k, then for top-p. A bin has all l with the same floor(16 l / T), so that bins of all parts have the same bounds without
 * knowing the row's largest logit; 511 of them lie below a part's largest, the last has all below those. Powers are summed as integers, relative to their
 * bin's upper bound with 21 bits: 2,048 elements do not overflow, and the sum is the same in any order. Rows that bins cannot serve are left to
 * logits_keep (GK_ROW_OPEN): largest logit infinite or beyond 2^16 T, threshold below the bins, or more than GK_LIST candidates in a part.
 * Deterministic: integers, fixed trees, lists in a fixed order.
 */
#include "sampling.h"

/* Logits of a part: so many for each thread. */
#define GK_PART_EACH 32
#define GK_PART (GK_PART_EACH * GK_BLOCK)
#define GK_BINS 512
#define GK_BIN_EACH (GK_BINS / GK_BLOCK)
/* Bins per e of l / T, and the largest bin whose number is exact to less than a bin. */
#define GK_BIN_STEPS GK_R(16.0)
#define GK_BIN_BOUND GK_R(1048576.0)
#define GK_POWER_ONE GK_R(2097152.0)
/* Elements whose powers are summed before integers may overflow, for each thread. */
#define GK_POWER_EACH 8
/* Candidates of a part. */
#define GK_LIST 1024
/* Of ids: vocab is at most 2^24. */
#define GK_ID_BITS 24

/* A block's part of a row. */
typedef struct { gk_logits l; gk_i64 row, n; int first, end; } gk_part;

GK_FN gk_part gk_part_of(GK_GLOBAL const gk_t* logits, GK_GLOBAL const gk_f* wide, gk_i64 vocab, gk_i64 parts, gk_f scale, gk_f min_p)
{
    gk_part p;
    gk_i64 per = parts / GK_SAMPLE_DIGITS, width, section;
    p.row = gk_bid(0) / parts;
    p.n = gk_bid(0) % parts;
    p.l.logits = logits; p.l.wide = wide; p.l.first = p.row * vocab; p.l.n = vocab; p.l.scale = scale; p.l.min_p = min_p;
    width = gk_section_width(&p.l);
    section = p.n / per * width;
    p.first = (int)(section + p.n % per * GK_PART);
    p.end = (int)(section + width < vocab ? section + width : vocab);
    if (p.first + GK_PART < p.end) p.end = p.first + GK_PART;
    return p;
}

/* A part's logits, number u of each thread being first + u * GK_BLOCK + lid; -inf where there is none. */
GK_FN void gk_part_load(const gk_part* p, gk_f x[GK_PART_EACH])
{
    if (p->l.wide) {
        GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) {
            int i = p->first + u * GK_BLOCK + gk_lid();
            x[u] = -GK_INF;
            if (i < p->end) x[u] = p->l.wide[p->l.first + i];
        }
    } else {
        GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) {
            int i = p->first + u * GK_BLOCK + gk_lid();
            x[u] = -GK_INF;
            if (i < p->end) x[u] = gk_load(p->l.logits, p->l.first + i);
        }
    }
    GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) x[u] = gk_isnan(x[u]) ? -GK_INF : x[u];
}

/* The number of a logit's bin, rising with it. */
GK_FN gk_f gk_bin_of(gk_f scale, gk_f x) { return gk_floor(x * (scale * GK_BIN_STEPS)); }

GK_FN int gk_binned(gk_f scale, gk_f top) { return gk_fabs(top * (scale * GK_BIN_STEPS)) < GK_BIN_BOUND; }

/* The natural logarithm of a bin's upper bound, relative to the logit from which bins are counted: powers of its elements are 0.83 to 0.94 of it. */
GK_FN gk_f gk_bin_bound(gk_f bin) { return (bin - GK_R(2.0)) / GK_BIN_STEPS; }

/* Counts a logit and adds its power, relative to that of the part's largest. */
GK_FN void gk_bin_add(const gk_part* p, gk_f x, gk_f top, gk_f base, GK_LOCAL_PTR gk_u32* counts, GK_LOCAL_PTR gk_u32* powers, int counted)
{
    gk_f bin = base - gk_bin_of(p->l.scale, x);
    if (x > -GK_INF && bin >= GK_R(0.0)) {
        int n = bin < (gk_f)(GK_BINS - 1) ? (int)bin : GK_BINS - 1;
        if (counted) gk_local_add(&counts[n], 1u);
        if (n < GK_BINS - 1) {
            gk_f w = gk_exp((x - top) * p->l.scale + gk_bin_bound(bin));
            gk_local_add(&powers[n], (gk_u32)(gk_min(w, GK_R(0.99)) * GK_POWER_ONE + GK_R(0.5)));
        }
    }
}

// Units: FLOATS
/* tops [rows, parts]; bins [rows, parts, 2, 512]: counts (if counted), sums of powers relative to the part's largest logit. Launch: one block per row
 * and part. */
GK_KERNEL(logits_histogram)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_OUT(gk_f, tops), GK_OUT(gk_f, bins), gk_i64 vocab, gk_i64 parts, gk_f scale,
                            int counted)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_OUT(gk_f, tops); GK_BIND_OUT(gk_f, bins);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 counts[GK_BINS];
    GK_LOCAL gk_u32 powers[GK_BINS];
    gk_part p = gk_part_of(logits, wide, vocab, parts, scale, GK_R(0.0));
    gk_f x[GK_PART_EACH], sums[GK_BIN_EACH], top = -GK_INF, base;
    gk_part_load(&p, x);
    GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) top = x[u] > top ? x[u] : top;
    top = gk_block_max(top, tmp);
    base = gk_binned(scale, top) ? gk_bin_of(scale, top) : GK_R(0.0);
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
        counts[e * GK_BLOCK + gk_lid()] = 0u;
        powers[e * GK_BLOCK + gk_lid()] = 0u;
        sums[e] = GK_R(0.0);
    }
    GK_BARRIER();
    GK_UNROLL for (int at = 0; at < GK_PART_EACH; at += GK_POWER_EACH) {
        GK_UNROLL for (int u = 0; u < GK_POWER_EACH; u++) gk_bin_add(&p, x[at + u], top, base, counts, powers, counted);
        GK_BARRIER();
        GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
            sums[e] += (gk_f)powers[e * GK_BLOCK + gk_lid()];
            powers[e * GK_BLOCK + gk_lid()] = 0u;
        }
        GK_BARRIER();
    }
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
        int n = e * GK_BLOCK + gk_lid();
        gk_i64 at = gk_bid(0) * 2 * GK_BINS + n;
        if (counted) bins[at] = (gk_f)counts[n];
        bins[at + GK_BINS] = sums[e] / GK_POWER_ONE * gk_exp(-gk_bin_bound((gk_f)n));
    }
    if (gk_lid() == 0) tops[gk_bid(0)] = top;
}

/* Bin n of a row: the bins of its parts with the same bounds. Of the last one all that is below is left out, but `below` counts it. */
typedef struct { gk_f count, power, below; } gk_bin;

GK_FN gk_bin gk_bin_sum(GK_GLOBAL const gk_f* tops, GK_GLOBAL const gk_f* bins, gk_i64 parts, gk_f scale, gk_f top, int n, int counted)
{
    gk_bin r;
    gk_f base = gk_bin_of(scale, top);
    r.count = GK_R(0.0); r.power = GK_R(0.0); r.below = GK_R(0.0);
    for (gk_i64 p = 0; p < parts; p++) {
        GK_GLOBAL const gk_f* of = bins + p * 2 * GK_BINS;
        gk_f t = tops[p], shift = t > -GK_INF ? base - gk_bin_of(scale, t) : GK_R(0.0);
        int by = shift < (gk_f)GK_BINS ? (int)shift : GK_BINS, from = n - by;
        if (n < GK_BINS - 1 && from >= 0) {
            if (counted) r.count += of[from];
            r.power += of[GK_BINS + from] * (t == top ? GK_R(1.0) : gk_exp((t - top) * scale));
        }
        /* Bins that end up below the row's last. */
        if (counted && n + by >= GK_BINS - 1) r.below += of[n];
    }
    return r;
}

/* The first of a row's bins whose weights, with those above it, reach the target; the last one that has any, if rounding leaves none. */
GK_FN int gk_bin_find(GK_LOCAL_PTR const gk_f* weights, gk_f target, GK_LOCAL_PTR gk_f* tmp, gk_f* above)
{
    gk_f run = GK_R(0.0), s = GK_R(0.0), all[GK_SAMPLE_DIGITS];
    int group = 0, found = 0, reached = 0, each = GK_BINS / GK_SAMPLE_DIGITS;
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) s += weights[gk_lid() * GK_BIN_EACH + e];
    gk_share_sections(gk_group_sum(s, tmp, GK_SECTION_LANES), all, tmp);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
        if (!reached && all[d] > GK_R(0.0)) {
            group = d;
            *above = run;
            reached = run + all[d] >= target;
        }
        run += all[d];
    }
    run = *above;
    reached = 0;
    for (int n = group * each; n < (group + 1) * each; n++) {
        s = weights[n];
        if (!reached && s > GK_R(0.0)) {
            found = n;
            *above = run;
            reached = run + s >= target;
        }
        run += s;
    }
    return found;
}

/* state [rows, GK_ROW_NUMBERS]: the bin of the threshold. by: GK_BY_COUNT with target k, the first of all, or GK_BY_POWER with the target p of the kept
 * powers. more: logits_cut went before. Launch: one block per row. */
GK_KERNEL(logits_threshold)(GK_IN(gk_f, tops), GK_IN(gk_f, bins), GK_OUT(gk_f, state), gk_i64 vocab, gk_i64 parts, gk_f scale, gk_f target, int by, int more)
{
    GK_BIND_IN(gk_f, tops); GK_BIND_IN(gk_f, bins); GK_BIND_OUT(gk_f, state);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f weights[GK_BINS];
    GK_LOCAL gk_f powers[GK_BINS];
    gk_i64 row = gk_bid(0), at = row * GK_ROW_NUMBERS;
    gk_f top = -GK_INF, all = GK_R(0.0), below = GK_R(0.0), counted = GK_R(0.0), above = GK_R(0.0), powers_above = GK_R(0.0);
    int open, bin;
    for (gk_i64 p = gk_lid(); p < parts; p += GK_BLOCK) top = tops[row * parts + p] > top ? tops[row * parts + p] : top;
    top = gk_block_max(top, tmp);
    open = !(top > -GK_INF && gk_binned(scale, top));
    for (int n = gk_lid(); n < GK_BINS; n += GK_BLOCK) {
        gk_bin b;
        b.count = GK_R(0.0); b.power = GK_R(0.0); b.below = GK_R(0.0);
        if (!open) b = gk_bin_sum(tops + row * parts, bins + row * parts * 2 * GK_BINS, parts, scale, top, n, by == GK_BY_COUNT);
        weights[n] = by == GK_BY_COUNT ? b.count : b.power;
        powers[n] = b.power;
        all += b.power;
        counted += b.count;
        below += b.below;
    }
    all = gk_block_sum(all, tmp);
    counted = gk_block_sum(counted, tmp);
    below = gk_block_sum(below, tmp);
    if (by == GK_BY_POWER) target *= more ? state[at + GK_ROW_POWERS] : all;
    bin = gk_bin_find(weights, target, tmp, &above);
    /* All that is not -inf stays, or the threshold is below the bins. */
    if (by == GK_BY_COUNT && counted < target) bin = GK_BINS;
    open = open || (bin == GK_BINS && below > GK_R(0.0)) || (more && state[at + GK_ROW_OPEN] != GK_R(0.0));
    for (int n = gk_lid(); n < bin && n < GK_BINS; n += GK_BLOCK) powers_above += powers[n];
    powers_above = gk_block_sum(powers_above, tmp);
    if (gk_lid() == 0) {
        if (!more) {
            gk_kept k;
            k.cut = 0; k.last = vocab - 1; k.top = top;
            gk_row_put(state, row, k);
        }
        state[at + GK_ROW_BIN] = (gk_f)bin;
        state[at + GK_ROW_ABOVE] = above;
        state[at + GK_ROW_TARGET] = target;
        state[at + GK_ROW_POWERS] = powers_above;
        state[at + GK_ROW_OPEN] = open ? GK_R(1.0) : GK_R(0.0);
    }
}

/* list, ids [rows, parts, GK_LIST]: the kept elements of the threshold's bin, found [rows, parts] their number (GK_LIST are stored at most);
 * above [rows, parts]: the sum of the powers above the bin that are at least min_p. Launch: one block per row and part. */
GK_KERNEL(logits_candidates)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, state), GK_OUT(gk_f, list), GK_OUT(int, ids), GK_OUT(int, found),
                             GK_OUT(gk_f, above), gk_i64 vocab, gk_i64 parts, gk_f scale, gk_f min_p)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, state); GK_BIND_OUT(gk_f, list); GK_BIND_OUT(int, ids);
    GK_BIND_OUT(int, found); GK_BIND_OUT(gk_f, above);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 scan[GK_BLOCK];
    gk_part p = gk_part_of(logits, wide, vocab, parts, scale, GK_R(0.0));
    gk_kept k = gk_row_get(state, p.row);
    gk_f x[GK_PART_EACH], sum = GK_R(0.0), bin = state[p.row * GK_ROW_NUMBERS + GK_ROW_BIN], base = gk_bin_of(scale, k.top);
    gk_u32 has = 0u, chosen = 0u, at, total;
    gk_part_load(&p, x);
    GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) {
        gk_f n = base - gk_bin_of(scale, x[u]), w;
        if (x[u] > -GK_INF && n < bin) {
            w = gk_power(&p.l, x[u], k.top);
            sum += w >= min_p ? w : GK_R(0.0);
        }
        if (x[u] > -GK_INF && n == bin && gk_is_kept(&p.l, &k, x[u], p.first + u * GK_BLOCK + gk_lid())) {
            has++;
            chosen |= 1u << u;
        }
    }
    at = gk_block_scan(has, scan, &total) - has;
    GK_UNROLL for (int u = 0; u < GK_PART_EACH; u++) {
        if ((chosen >> u & 1u) && at < GK_LIST) {
            list[gk_bid(0) * GK_LIST + at] = x[u];
            ids[gk_bid(0) * GK_LIST + at] = p.first + u * GK_BLOCK + gk_lid();
            at++;
        }
    }
    sum = gk_block_sum(sum, tmp);
    if (gk_lid() == 0) {
        found[gk_bid(0)] = (int)total;
        above[gk_bid(0)] = sum;
    }
}

/* The lists of a row's parts. */
typedef struct { GK_GLOBAL const gk_f* x; GK_GLOBAL const int *ids, *found; gk_i64 parts; } gk_lists;

GK_FN int gk_listed(const gk_lists* c, gk_i64 part) { return c->found[part] < GK_LIST ? c->found[part] : GK_LIST; }

/* gk_descend for the keys of a row's candidates, by counts or powers, or for the ids, from behind, of those that equal the cut. */
GK_FN gk_key gk_list_descend(const gk_logits* l, const gk_lists* c, const gk_kept* k, gk_f target, const int by, int from, GK_LOCAL_PTR gk_f* tmp,
                             gk_f* above)
{
    gk_key prefix = 0;
    for (int shift = from; shift >= 0; shift -= 4) {
        gk_f sums[GK_SAMPLE_DIGITS];
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) sums[d] = GK_R(0.0);
        for (gk_i64 p = 0; p < c->parts; p++) {
            for (int n = gk_lid(); n < gk_listed(c, p); n += GK_BLOCK) {
                gk_f x = c->x[p * GK_LIST + n];
                gk_key key = by == GK_BY_ID ? (gk_key)(l->n - 1 - c->ids[p * GK_LIST + n]) : gk_key_of(x);
                gk_f w = by == GK_BY_POWER ? gk_power(l, x, k->top) : by == GK_BY_ID && gk_key_of(x) != k->cut ? GK_R(0.0) : GK_R(1.0);
                gk_digit_add(sums, key, prefix, shift, w);
            }
        }
        prefix |= (gk_key)gk_digit_pick(sums, target, above, tmp) << shift;
    }
    return prefix;
}

/* Sums over `lanes` threads: of what is kept of the candidates of parts [from, end), elements that equal the cut, or powers of at least l->min_p. */
GK_FN gk_f gk_list_sum(const gk_logits* l, const gk_lists* c, const gk_kept* k, gk_i64 from, gk_i64 end, const int ties, const int lanes, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f s = GK_R(0.0);
    for (gk_i64 p = from; p < end; p++) {
        for (int n = gk_lid() % lanes; n < gk_listed(c, p); n += lanes) {
            gk_f x = c->x[p * GK_LIST + n];
            if (ties) s += gk_key_of(x) == k->cut ? GK_R(1.0) : GK_R(0.0);
            else s += gk_is_kept(l, k, x, c->ids[p * GK_LIST + n]) ? gk_power(l, x, k->top) : GK_R(0.0);
        }
    }
    return gk_group_sum(s, tmp, lanes);
}

/* state: what is kept; sums [rows, 16]: powers of at least min_p of the sections, -1 where the row is open. by as in logits_threshold. Launch: one block
 * per row. */
GK_KERNEL(logits_cut)(GK_IN(gk_f, list), GK_IN(int, ids), GK_IN(int, found), GK_IN(gk_f, above), GK_OUT(gk_f, state), GK_OUT(gk_f, sums), gk_i64 vocab,
                      gk_i64 parts, gk_f scale, gk_f min_p, int by)
{
    GK_BIND_IN(gk_f, list); GK_BIND_IN(int, ids); GK_BIND_IN(int, found); GK_BIND_IN(gk_f, above); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, sums);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 row = gk_bid(0), at = row * GK_ROW_NUMBERS, per = parts / GK_SAMPLE_DIGITS, section = gk_lid() / GK_SECTION_LANES;
    gk_f target = state[at + GK_ROW_TARGET], before = state[at + GK_ROW_ABOVE], most = GK_R(0.0), nothing = GK_R(0.0), one, ties, count, sum, kept;
    int bin = (int)state[at + GK_ROW_BIN], open;
    gk_logits l;
    gk_lists c;
    gk_kept k = gk_row_get(state, row);
    gk_key cut;
    gk_i64 last;
    l.logits = 0; l.wide = 0; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = GK_R(0.0);
    c.x = list + row * parts * GK_LIST; c.ids = ids + row * parts * GK_LIST; c.found = found + row * parts; c.parts = parts;
    for (gk_i64 p = gk_lid(); p < parts; p += GK_BLOCK) most = gk_max(most, (gk_f)c.found[p]);
    open = gk_block_max(most, tmp) > (gk_f)GK_LIST || state[at + GK_ROW_OPEN] != GK_R(0.0);
    cut = gk_list_descend(&l, &c, &k, target, by, GK_KEY_BITS - 4, tmp, &before);
    /* Nothing is listed where all that is counted stays. */
    if (bin < GK_BINS) {
        if (cut != k.cut) k.last = vocab - 1;
        k.cut = cut;
    }
    ties = gk_list_sum(&l, &c, &k, 0, parts, 1, GK_BLOCK, tmp);
    one = by == GK_BY_COUNT ? GK_R(1.0) : gk_power(&l, gk_value_of(cut), k.top);
    count = one > GK_R(0.0) ? gk_max(gk_ceil((target - before) / one), GK_R(1.0)) : GK_R(1.0);
    last = vocab - 1 - (gk_i64)gk_list_descend(&l, &c, &k, count, GK_BY_ID, GK_ID_BITS - 4, tmp, &nothing);
    if (count < ties) k.last = last;
    kept = state[at + GK_ROW_POWERS] + gk_list_sum(&l, &c, &k, 0, parts, 0, GK_BLOCK, tmp);
    l.min_p = min_p;
    sum = gk_list_sum(&l, &c, &k, section * per, (section + 1) * per, 0, GK_SECTION_LANES, tmp);
    for (gk_i64 p = section * per; p < (section + 1) * per; p++) sum += above[row * parts + p];
    if (gk_lid() % GK_SECTION_LANES == 0) sums[row * GK_SAMPLE_DIGITS + section] = open ? GK_R(-1.0) : sum;
    if (gk_lid() == 0) {
        gk_row_put(state, row, k);
        state[at + GK_ROW_POWERS] = kept;
        state[at + GK_ROW_OPEN] = open ? GK_R(1.0) : GK_R(0.0);
    }
}
