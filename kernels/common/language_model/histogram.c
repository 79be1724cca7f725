/* Top-k and top-p of long rows of logits by histograms: what sampling.c's logits_keep finds, by blocks of their own for parts of a row.
 *
 *   logits_histogram    a part of at most 8,192 logits in registers: its largest logit; counts and sums of powers exp((l - max) / T) by bins
 *   logits_threshold    a row: adds the bins of its parts up and finds the one in which count (top-k) or sum (top-p) reach the target
 *   logits_candidates   a part: a list of that bin's elements
 *   logits_cut          a row: the smallest element that is kept, among the lists; the sums of what is kept of 16 sections, for the draw
 *
 * The last three run for top-k, then for top-p. A bin has all l with the same floor(32 l / T), so that bins of all parts have the same bounds without
 * knowing the row's largest logit; 1,023 of them lie below a part's largest, the last has all below those. Powers are summed as integers, relative to
 * their bin's upper bound with 21 bits: 2,048 elements do not overflow, and the sum is the same in any order. Rows that bins cannot serve are left to
 * logits_keep (GK_ROW_OPEN): largest logit infinite or beyond 2^15 T, threshold below the bins, or more candidates than GK_LIST in a part or
 * GK_CANDIDATES in a row.
 * Deterministic: integers, fixed trees, lists in a fixed order.
 */
#include "sampling.h"

/* Logits of a part: so many for each thread. */
#define GK_ROW_PART_EACH 32
#define GK_ROW_PART (GK_ROW_PART_EACH * GK_BLOCK)
#define GK_BINS 1024
#define GK_BIN_EACH (GK_BINS / GK_BLOCK)
/* Bins per e of l / T, and the largest bin whose number is exact to less than a bin. */
#define GK_BIN_STEPS GK_R(32.0)
#define GK_BIN_BOUND GK_R(1048576.0)
#define GK_POWER_ONE GK_R(2097152.0)
/* Elements whose powers are summed before integers may overflow, for each thread. */
#define GK_POWER_EACH 8
/* Candidates of a part, of a row. */
#define GK_LIST 1024
#define GK_CANDIDATES 3072
/* Of ids: vocab is at most 2^24. */
#define GK_ID_BITS 24

/* A block's part of a row. */
typedef struct { gk_logits l; gk_i64 row, n; int first, end; } gk_part;

GK_FN gk_part gk_part_of(GK_GLOBAL const gk_t* logits, GK_GLOBAL const gk_f* wide, gk_i64 vocab, gk_i64 parts, gk_f scale)
{
    gk_part p;
    gk_i64 per = parts / GK_SAMPLE_DIGITS, width, section;
    p.row = gk_bid(0) / parts;
    p.n = gk_bid(0) % parts;
    p.l.logits = logits; p.l.wide = wide; p.l.first = p.row * vocab; p.l.n = vocab; p.l.scale = scale; p.l.min_p = GK_R(0.0);
    width = gk_section_width(&p.l);
    section = p.n / per * width;
    p.first = (int)(section + p.n % per * GK_ROW_PART);
    p.end = (int)(section + width < vocab ? section + width : vocab);
    if (p.first + GK_ROW_PART < p.end) p.end = p.first + GK_ROW_PART;
    return p;
}

/* A part's logits, number u of each thread being first + u * GK_BLOCK + lid; -inf where there is none. */
GK_FN void gk_part_load(const gk_part* p, gk_f x[GK_ROW_PART_EACH])
{
    if (p->l.wide) {
        GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) {
            int i = p->first + u * GK_BLOCK + gk_lid();
            x[u] = -GK_INF;
            if (i < p->end) x[u] = p->l.wide[p->l.first + i];
        }
    } else {
        GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) {
            int i = p->first + u * GK_BLOCK + gk_lid();
            x[u] = -GK_INF;
            if (i < p->end) x[u] = gk_load(p->l.logits, p->l.first + i);
        }
    }
    GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) x[u] = gk_isnan(x[u]) ? -GK_INF : x[u];
}

/* The number of a logit's bin, rising with it. */
GK_FN gk_f gk_bin_of(gk_f scale, gk_f x) { return gk_floor(x * (scale * GK_BIN_STEPS)); }

GK_FN int gk_binned(gk_f scale, gk_f top) { return gk_fabs(top * (scale * GK_BIN_STEPS)) < GK_BIN_BOUND; }

/* The natural logarithm of a bin's upper bound, relative to the logit from which bins are counted: powers of its elements are 0.91 to 0.97 of it. */
GK_FN gk_f gk_bin_bound(gk_f bin) { return (bin - GK_R(2.0)) / GK_BIN_STEPS; }

/* e^a for -0.1 <= a <= 0 within 1e-8: a series. */
GK_FN gk_f gk_near_exp(gk_f a)
{
    gk_f y = GK_R(1.0) / GK_R(24.0) + a * (GK_R(1.0) / GK_R(120.0));
    return GK_R(1.0) + a * (GK_R(1.0) + a * (GK_R(0.5) + a * (GK_R(1.0) / GK_R(6.0) + a * y)));
}

/* Counts a logit and adds its power, relative to that of the part's largest. */
GK_FN void gk_bin_add(const gk_part* p, gk_f x, gk_f top, gk_f base, GK_LOCAL_PTR gk_u32* counts, GK_LOCAL_PTR gk_u32* powers, int counted)
{
    gk_f bin = base - gk_bin_of(p->l.scale, x);
    if (x > -GK_INF && bin >= GK_R(0.0)) {
        int n = bin < (gk_f)(GK_BINS - 1) ? (int)bin : GK_BINS - 1;
        if (counted) gk_local_add(&counts[n], 1u);
        if (n < GK_BINS - 1) {
            /* Anything, NaN included, where the largest logit is infinite. */
            gk_f w = gk_near_exp((x - top) * p->l.scale + gk_bin_bound(bin));
            w = w > GK_R(0.0) ? w : GK_R(0.0);
            gk_local_add(&powers[n], (gk_u32)((w < GK_R(0.98) ? w : GK_R(0.98)) * GK_POWER_ONE + GK_R(0.5)));
        }
    }
}

// Units: FLOATS
/* tops [rows, parts]; bins [rows, parts, 2, GK_BINS]: counts (if counted), sums of powers relative to the part's largest logit. Launch: one block per row
 * and part. */
GK_KERNEL(logits_histogram)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_OUT(gk_f, tops), GK_OUT(gk_f, bins), gk_i64 vocab, gk_i64 parts, gk_f scale,
                            int counted)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_OUT(gk_f, tops); GK_BIND_OUT(gk_f, bins);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 counts[GK_BINS];
    GK_LOCAL gk_u32 powers[GK_BINS];
    gk_part p = gk_part_of(logits, wide, vocab, parts, scale);
    gk_f x[GK_ROW_PART_EACH], sums[GK_BIN_EACH], top = -GK_INF, base;
    gk_part_load(&p, x);
    GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) top = x[u] > top ? x[u] : top;
    top = gk_block_max(top, tmp);
    base = gk_binned(scale, top) ? gk_bin_of(scale, top) : GK_R(0.0);
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
        counts[e * GK_BLOCK + gk_lid()] = 0u;
        powers[e * GK_BLOCK + gk_lid()] = 0u;
        sums[e] = GK_R(0.0);
    }
    GK_BARRIER();
    GK_UNROLL for (int at = 0; at < GK_ROW_PART_EACH; at += GK_POWER_EACH) {
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

/* The bins of a row's parts, beside those of the row: how much further down, and by what powers are to be multiplied. In local memory, as parts are at
 * most GK_BLOCK. */
typedef struct { GK_GLOBAL const gk_f* bins; GK_LOCAL_PTR int* shift; GK_LOCAL_PTR gk_f* factor; } gk_parts;

GK_FN void gk_parts_place(const gk_parts* c, GK_GLOBAL const gk_f* tops, gk_i64 parts, gk_f scale, gk_f top)
{
    int t = gk_lid();
    if (t < parts) {
        gk_f own = tops[t], shift = own > -GK_INF ? gk_bin_of(scale, top) - gk_bin_of(scale, own) : GK_R(0.0);
        c->shift[t] = shift < (gk_f)GK_BINS ? (int)shift : GK_BINS;
        c->factor[t] = own == top ? GK_R(1.0) : gk_exp((own - top) * scale);
    }
    GK_BARRIER();
}

/* A row's bins, as many for each thread: GK_BLOCK * e + lid. The last of them stays empty; `below` counts what would be in it. */
typedef struct { gk_f counts[GK_BIN_EACH], powers[GK_BIN_EACH], below; } gk_row_bins;

GK_FN gk_row_bins gk_bins_sum(const gk_parts* c, gk_i64 parts, int counted)
{
    gk_row_bins r;
    r.below = GK_R(0.0);
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) { r.counts[e] = GK_R(0.0); r.powers[e] = GK_R(0.0); }
    for (gk_i64 p = 0; p < parts; p++) {
        GK_GLOBAL const gk_f *counts = c->bins + p * 2 * GK_BINS, *powers = counts + GK_BINS;
        int shift = c->shift[p];
        gk_f factor = c->factor[p];
        GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
            int n = e * GK_BLOCK + gk_lid(), from = n - shift;
            if (n < GK_BINS - 1 && from >= 0) {
                if (counted) r.counts[e] += counts[from];
                r.powers[e] += powers[from] * factor;
            }
            if (counted && n + shift >= GK_BINS - 1) r.below += counts[n];
        }
    }
    return r;
}

/* The sum over GK_SECTION_LANES threads of the powers of parts [first, end) in bins before `bin` of the row. */
GK_FN gk_f gk_bins_above(const gk_parts* c, gk_i64 first, gk_i64 end, int bin, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f sum = GK_R(0.0);
    for (gk_i64 p = first; p < end; p++) {
        int last = (bin < GK_BINS ? bin : GK_BINS - 1) - c->shift[p];
        gk_f s = GK_R(0.0);
        for (int n = gk_lid() % GK_SECTION_LANES; n < last; n += GK_SECTION_LANES) s += c->bins[(2 * p + 1) * GK_BINS + n];
        sum += s * c->factor[p];
    }
    return gk_group_sum(sum, tmp, GK_SECTION_LANES);
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

/* state [rows, GK_ROW_NUMBERS]: the bin of the threshold; above [rows, 16]: the powers of sections above it. by: GK_BY_COUNT with the target k, the first
 * of all, or GK_BY_POWER with the target p of the kept powers. more: logits_cut went before. Launch: one block per row. */
GK_KERNEL(logits_threshold)(GK_IN(gk_f, tops), GK_IN(gk_f, bins), GK_OUT(gk_f, state), GK_OUT(gk_f, above), gk_i64 vocab, gk_i64 parts, gk_f scale,
                            gk_f target, int by, int more)
{
    GK_BIND_IN(gk_f, tops); GK_BIND_IN(gk_f, bins); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, above);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f weights[GK_BINS];
    GK_LOCAL gk_f factor[GK_BLOCK];
    GK_LOCAL int shift[GK_BLOCK];
    gk_i64 row = gk_bid(0), at = row * GK_ROW_NUMBERS, each = parts / GK_SAMPLE_DIGITS, section = gk_lid() / GK_SECTION_LANES;
    gk_f top = -GK_INF, all = GK_R(0.0), counted = GK_R(0.0), before = GK_R(0.0), sum, below;
    int open, bin;
    gk_parts c;
    gk_row_bins b;
    if (gk_lid() < parts) top = tops[row * parts + gk_lid()];
    top = gk_block_max(top, tmp);
    open = !(top > -GK_INF && gk_binned(scale, top));
    c.bins = bins + row * parts * 2 * GK_BINS; c.shift = shift; c.factor = factor;
    gk_parts_place(&c, tops + row * parts, parts, scale, top);
    b = gk_bins_sum(&c, open ? 0 : parts, by == GK_BY_COUNT);
    GK_UNROLL for (int e = 0; e < GK_BIN_EACH; e++) {
        weights[e * GK_BLOCK + gk_lid()] = by == GK_BY_COUNT ? b.counts[e] : b.powers[e];
        counted += b.counts[e];
        all += b.powers[e];
    }
    all = gk_block_sum(all, tmp);
    counted = gk_block_sum(counted, tmp);
    below = gk_block_sum(b.below, tmp);
    if (by == GK_BY_POWER) target *= more ? state[at + GK_ROW_POWERS] : all;
    bin = gk_bin_find(weights, target, tmp, &before);
    /* All that is not -inf stays, or the threshold is below the bins. */
    if (by == GK_BY_COUNT && counted < target) bin = GK_BINS;
    open = open || (bin == GK_BINS && below > GK_R(0.0)) || (more && state[at + GK_ROW_OPEN] != GK_R(0.0));
    sum = gk_bins_above(&c, section * each, open ? 0 : (section + 1) * each, bin, tmp);
    if (gk_lid() % GK_SECTION_LANES == 0) above[row * GK_SAMPLE_DIGITS + section] = sum;
    sum = gk_block_sum(gk_lid() % GK_SECTION_LANES == 0 ? sum : GK_R(0.0), tmp);
    if (gk_lid() == 0) {
        if (!more) {
            gk_kept k;
            k.cut = 0; k.last = vocab - 1; k.top = top;
            gk_row_put(state, row, k);
        }
        state[at + GK_ROW_BIN] = (gk_f)bin;
        state[at + GK_ROW_ABOVE] = before;
        state[at + GK_ROW_TARGET] = target;
        state[at + GK_ROW_POWERS] = sum;
        state[at + GK_ROW_OPEN] = open ? GK_R(1.0) : GK_R(0.0);
    }
}

/* list, ids [rows, parts, GK_LIST]: the kept elements of the threshold's bin, found [rows, parts] their number (GK_LIST are stored at most).
 * Launch: one block per row and part. */
GK_KERNEL(logits_candidates)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, state), GK_OUT(gk_f, list), GK_OUT(int, ids), GK_OUT(int, found),
                             gk_i64 vocab, gk_i64 parts, gk_f scale)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, state); GK_BIND_OUT(gk_f, list); GK_BIND_OUT(int, ids);
    GK_BIND_OUT(int, found);
    GK_LOCAL gk_u32 scan[GK_BLOCK];
    gk_part p = gk_part_of(logits, wide, vocab, parts, scale);
    gk_kept k = gk_row_get(state, p.row);
    gk_f x[GK_ROW_PART_EACH], bin = gk_bin_of(scale, k.top) - state[p.row * GK_ROW_NUMBERS + GK_ROW_BIN];
    gk_u32 has = 0u, chosen = 0u, at, total;
    gk_part_load(&p, x);
    GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) {
        if (x[u] > -GK_INF && gk_bin_of(scale, x[u]) == bin && gk_is_above(&k, x[u], p.first + u * GK_BLOCK + gk_lid())) {
            has++;
            chosen |= 1u << u;
        }
    }
    at = gk_block_scan(has, scan, &total) - has;
    GK_UNROLL for (int u = 0; u < GK_ROW_PART_EACH; u++) {
        if ((chosen >> u & 1u) && at < GK_LIST) {
            list[gk_bid(0) * GK_LIST + at] = x[u];
            ids[gk_bid(0) * GK_LIST + at] = p.first + u * GK_BLOCK + gk_lid();
            at++;
        }
    }
    if (gk_lid() == 0) found[gk_bid(0)] = (int)total;
}

/* A row's candidates in local memory. ends: where those of its parts end. */
typedef struct { GK_LOCAL_PTR gk_f* x; GK_LOCAL_PTR int* ids; GK_LOCAL_PTR const gk_u32* ends; int n; } gk_list;

GK_FN int gk_list_first(const gk_list* c, gk_i64 part)
{
    int at = part > 0 ? (int)c->ends[part - 1] : 0;
    return at < c->n ? at : c->n;
}

/* gk_descend for the keys of candidates, by counts or powers, or for the ids, from behind, of those that equal the cut: digits from bit `from` down, those
 * before it are `prefix`. */
GK_FN gk_key gk_list_descend(const gk_logits* l, const gk_list* c, const gk_kept* k, gk_f target, const int by, int from, gk_key prefix,
                             GK_LOCAL_PTR gk_f* tmp, gk_f* above)
{
    for (int shift = from; shift >= 0; shift -= 4) {
        gk_f sums[GK_SAMPLE_DIGITS];
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) sums[d] = GK_R(0.0);
        for (int n = gk_lid(); n < c->n; n += GK_BLOCK) {
            gk_key own = gk_key_of(c->x[n]), key = by == GK_BY_ID ? (gk_key)(l->n - 1 - c->ids[n]) : own;
            gk_f w = by == GK_BY_POWER ? gk_power(l, c->x[n], k->top) : by == GK_BY_ID && own != k->cut ? GK_R(0.0) : GK_R(1.0);
            gk_digit_add(sums, key, prefix, shift, w);
        }
        prefix |= (gk_key)gk_digit_pick(sums, target, above, tmp) << shift;
    }
    return prefix;
}

/* The sum over `lanes` threads of the powers of what is kept of candidates [first, end). */
GK_FN gk_f gk_list_sum(const gk_logits* l, const gk_list* c, const gk_kept* k, int first, int end, const int lanes, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f s = GK_R(0.0);
    for (int n = first + gk_lid() % lanes; n < end; n += lanes) {
        s += gk_is_kept(l, k, c->x[n], c->ids[n]) ? gk_power(l, c->x[n], k->top) : GK_R(0.0);
    }
    return gk_group_sum(s, tmp, lanes);
}

/* Gathers the lists of a row's parts. Parts are at most GK_BLOCK. Returns whether all fit. */
GK_FN int gk_list_gather(gk_list* c, GK_GLOBAL const gk_f* list, GK_GLOBAL const int* ids, GK_GLOBAL const int* found, gk_i64 parts,
                         GK_LOCAL_PTR gk_u32* ends, GK_LOCAL_PTR gk_f* tmp)
{
    int t = gk_lid(), number = t < parts ? found[t] : 0;
    gk_f most = gk_block_max((gk_f)number, tmp);
    gk_u32 total;
    gk_block_scan((gk_u32)(number < GK_LIST ? number : GK_LIST), ends, &total);
    c->ends = ends;
    c->n = total < GK_CANDIDATES ? (int)total : GK_CANDIDATES;
    for (gk_i64 p = t / GK_SECTION_LANES; p < parts; p += GK_SAMPLE_DIGITS) {
        int first = gk_list_first(c, p), end = gk_list_first(c, p + 1);
        for (int n = t % GK_SECTION_LANES; n < end - first; n += GK_SECTION_LANES) {
            c->x[first + n] = list[p * GK_LIST + n];
            c->ids[first + n] = ids[p * GK_LIST + n];
        }
    }
    GK_BARRIER();
    return most <= (gk_f)GK_LIST && total <= GK_CANDIDATES;
}

/* The lowest bit of the first digit in which the keys of candidates differ. */
GK_FN int gk_list_digit(const gk_list* c, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f high = -GK_INF, low = GK_INF;
    gk_key differ;
    int from = 0;
    for (int n = gk_lid(); n < c->n; n += GK_BLOCK) {
        high = gk_max(high, c->x[n]);
        low = gk_min(low, c->x[n]);
    }
    differ = gk_key_of(gk_block_max(high, tmp)) ^ gk_key_of(gk_block_min(low, tmp));
    for (int shift = 4; shift < GK_KEY_BITS; shift += 4) from = differ >> shift ? shift : from;
    return from;
}

/* state: what is kept; sums [rows, 16]: the powers of the sections, -1 where the row is open. by as in logits_threshold. Launch: one block per row. */
GK_KERNEL(logits_cut)(GK_IN(gk_f, list), GK_IN(int, ids), GK_IN(int, found), GK_IN(gk_f, above), GK_OUT(gk_f, state), GK_OUT(gk_f, sums), gk_i64 vocab,
                      gk_i64 parts, gk_f scale, int by)
{
    GK_BIND_IN(gk_f, list); GK_BIND_IN(int, ids); GK_BIND_IN(int, found); GK_BIND_IN(gk_f, above); GK_BIND_OUT(gk_f, state); GK_BIND_OUT(gk_f, sums);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f room[GK_CANDIDATES];
    GK_LOCAL int names[GK_CANDIDATES];
    GK_LOCAL gk_u32 ends[GK_BLOCK];
    gk_i64 row = gk_bid(0), at = row * GK_ROW_NUMBERS, each = parts / GK_SAMPLE_DIGITS, section = gk_lid() / GK_SECTION_LANES, first = row * parts;
    gk_f target = state[at + GK_ROW_TARGET], before = state[at + GK_ROW_ABOVE], ties = GK_R(0.0), nothing = GK_R(0.0), one, count, sum, kept;
    int bin = (int)state[at + GK_ROW_BIN], open, from;
    gk_logits l;
    gk_list c;
    gk_kept k = gk_row_get(state, row);
    gk_key cut;
    gk_i64 last;
    l.logits = 0; l.wide = 0; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = GK_R(0.0);
    c.x = room; c.ids = names;
    open = !gk_list_gather(&c, list + first * GK_LIST, ids + first * GK_LIST, found + first, parts, ends, tmp) || state[at + GK_ROW_OPEN] != GK_R(0.0);
    from = gk_list_digit(&c, tmp);
    cut = c.n > 0 ? gk_key_of(c.x[0]) >> from >> 4 << 4 << from : 0;
    cut = gk_list_descend(&l, &c, &k, target, by, from, cut, tmp, &before);
    /* Nothing is listed where all that is counted stays. */
    if (bin < GK_BINS) {
        if (cut != k.cut) k.last = vocab - 1;
        k.cut = cut;
    }
    for (int n = gk_lid(); n < c.n; n += GK_BLOCK) ties += gk_key_of(c.x[n]) == cut ? GK_R(1.0) : GK_R(0.0);
    ties = gk_block_sum(ties, tmp);
    one = by == GK_BY_COUNT ? GK_R(1.0) : gk_power(&l, gk_value_of(cut), k.top);
    count = one > GK_R(0.0) ? gk_max(gk_ceil((target - before) / one), GK_R(1.0)) : GK_R(1.0);
    last = vocab - 1 - (gk_i64)gk_list_descend(&l, &c, &k, count, GK_BY_ID, count < ties ? GK_ID_BITS - 4 : -4, 0, tmp, &nothing);
    if (count < ties) k.last = last;
    sum = gk_list_sum(&l, &c, &k, gk_list_first(&c, section * each), gk_list_first(&c, (section + 1) * each), GK_SECTION_LANES, tmp);
    sum += above[row * GK_SAMPLE_DIGITS + section];
    kept = gk_block_sum(gk_lid() % GK_SECTION_LANES == 0 ? sum : GK_R(0.0), tmp);
    if (gk_lid() % GK_SECTION_LANES == 0) sums[row * GK_SAMPLE_DIGITS + section] = open ? GK_R(-1.0) : sum;
    if (gk_lid() == 0) {
        gk_row_put(state, row, k);
        state[at + GK_ROW_POWERS] = kept;
        state[at + GK_ROW_OPEN] = open ? GK_R(1.0) : GK_R(0.0);
    }
}
