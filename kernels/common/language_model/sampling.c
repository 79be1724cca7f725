/* Choosing tokens from logits [rows, vocab]: repetition penalty, temperature, top-k, top-p, min-p, and a draw by the inverse of the distribution.
 *
 *   l = logit / penalty where positive, else logit * penalty, for the ids in prev;  kept: the k largest (equal ones by rising id), of these the
 *   shortest run by falling probability whose sum is at least top_p, of these exp((l - max) / T) >= min_p;  y = l / T where kept, else -inf
 *   id = the first with  sum over kept up to it of exp((l - max) / T)  >  u * sum over all kept,  or the first maximum for T = 0
 *
 * A block has a row. A threshold is found in three steps: two or more looks at the row sum the weights (counts or powers) by the distance from the
 * maximum in fixed point, some bits at a time; the few elements with the right distance are collected in local memory; among these the bits of an
 * order-preserving integer are found 4 at a time. Too many equal distances skip to the last step, on the whole row. A draw descends through 16 sections
 * of the row. Where rows are few, blocks of their own find the largest logit and the sum of each of these first (logits_sections), or what is kept
 * (histogram.c). NaN counts as -inf.
 * Sums in gk_f, counts exactly (vocab at most 2^24). Deterministic: fixed trees.
 * u: word row % 4 of Philox block offset + row / 4. References: Fan et al. (2018), Holtzman et al. (2020), Keskar et al. (2019, penalty).
 */
#include "rows.h"
#include "common/prelude/rows.h"

// Units: FLOATS64
/* The penalty for the ids of prev [rows, each] (-1: none); an id that occurs twice is penalised once. Launch: grid-stride over prev. */
GK_KERNEL(logits_penalize)(GK_IN(gk_t, logits), GK_IN(int, prev), GK_OUT(gk_f, wide), GK_OUT(int, err), gk_i64 n, gk_i64 each, gk_i64 vocab,
                           gk_f penalty, int code)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(int, prev); GK_BIND_OUT(gk_f, wide); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 id = prev[i], at = gk_quot(i, each) * vocab + id;
        if (id >= 0 && id < vocab) {
            gk_f x = gk_load(logits, at);
            wide[at] = x > GK_R(0.0) ? x / penalty : x * penalty;
        } else if (id != -1) {
            gk_report(err, code);
        }
    }
}

/* y = l / T where kept, else -inf. wide: penalised logits, or null; state: what is kept, [rows, GK_ROW_NUMBERS], or null for all. items: rows are whole
 * items of 16 bytes of y, and all is aligned. Launch: one block per row and each of its `parts`, of whole items. */
GK_KERNEL(logits_process)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, state), GK_OUT(gk_t, y), gk_i64 vocab, gk_i64 parts, gk_f scale,
                          gk_f min_p, int items)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, state); GK_BIND_OUT(gk_t, y);
    int w = items ? GK_W : 1;
    gk_i64 row = gk_bid(0) / parts, width = (vocab / w + parts - 1) / parts * w, from = gk_bid(0) % parts * width;
    gk_i64 end = from + width < vocab ? from + width : vocab;
    gk_logits l;
    gk_kept k;
    l.logits = logits; l.wide = wide; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = min_p;
    k.cut = 0; k.last = vocab - 1; k.top = GK_R(0.0);
    if (state) k = gk_row_get(state, row);
    for (gk_i64 i = from + gk_lid() * w; i < end; i += GK_BLOCK * w) {
        gk_vec v;
        if (!wide) v = gk_item(logits, l.first + i, items);
        GK_UNROLL for (int c = 0; c < GK_W; c++)
            if (c < w) {
                gk_f x = wide ? wide[l.first + i + c] : v.v[c];
                if (gk_isnan(x)) x = -GK_INF;
                v.v[c] = !state || gk_is_kept(&l, &k, x, i + c) ? x * scale : -GK_INF;
            }
        gk_put_item(y, l.first + i, v, items);
    }
}

/* The first of the largest logits. */
GK_FN gk_i64 gk_first_top(const gk_logits* l, const gk_sections* r, GK_LOCAL_PTR gk_f* tmp)
{
    gk_i64 width = gk_section_width(l), from = 0, end;
    gk_f at = GK_INF;
    GK_UNROLL for (int d = GK_SAMPLE_DIGITS - 1; d >= 0; d--) from = r->tops[d] == r->top ? d * width : from;
    end = from + width < l->n ? from + width : l->n;
    from += gk_lid();
    GK_EACH_LOGIT_OF(l, from, end, GK_BLOCK, GK_LOGITS_AHEAD, x, i, at = x == r->top && (gk_f)i < at ? (gk_f)i : at;)
    return (gk_i64)gk_block_min(at, tmp);
}

/* Largest logits and sums of powers of the sections of rows: part [rows, 16, 2]. aligned: wide is null, and logits lies at a multiple of 16 bytes.
 * Launch: one block per row and section. */
GK_KERNEL(logits_sections)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_OUT(gk_f, part), gk_i64 vocab, gk_f scale, int aligned)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_logits l;
    gk_f top, sum, m;
    gk_i64 block = gk_bid(0), width, from, end;
    l.logits = logits; l.wide = wide; l.first = block / GK_SAMPLE_DIGITS * vocab; l.n = vocab; l.scale = scale; l.min_p = GK_R(0.0);
    width = gk_section_width(&l);
    from = block % GK_SAMPLE_DIGITS * width;
    end = from + width < vocab ? from + width : vocab;
    sum = gk_powers(&l, (int)from, (int)end, gk_lid(), GK_BLOCK, aligned, &m);
    top = gk_block_max(m, tmp);
    sum = gk_block_sum(sum * gk_power(&l, m, top), tmp);
    if (gk_lid() == 0) {
        part[block * 2] = top;
        part[block * 2 + 1] = sum;
    }
}

/* What follows: ids [rows], a block per row. part: from logits_sections, or null. */

/* The first of the largest logits. */
GK_KERNEL(logits_greedy)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, part), GK_OUT(gk_i64, ids), gk_i64 rows, gk_i64 vocab)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_i64, ids);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        gk_logits l;
        gk_sections r;
        gk_i64 id;
        l.logits = logits; l.wide = wide; l.first = row * vocab; l.n = vocab; l.scale = GK_R(0.0); l.min_p = GK_R(0.0);
        gk_row_sections(&l, part, row, &r, tmp);
        id = gk_first_top(&l, &r, tmp);
        if (gk_lid() == 0) ids[row] = id;
    }
}

/* A draw of all of a row. scale = 1 / T. */
GK_KERNEL(logits_draw)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, part), GK_IN(gk_i64, more), GK_OUT(gk_i64, ids), gk_i64 rows, gk_i64 vocab,
                       gk_i64 seed, gk_i64 stream, gk_i64 offset, gk_f scale)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_i64, more); GK_BIND_OUT(gk_i64, ids);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        gk_logits l;
        gk_kept k;
        gk_sections r;
        gk_i64 id;
        l.logits = logits; l.wide = wide; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = GK_R(0.0);
        gk_row_sections(&l, part, row, &r, tmp);
        k.cut = 0; k.last = vocab - 1; k.top = r.top;
        id = gk_draw(&l, &k, gk_row_word(row, more, seed, stream, offset), r.sums, tmp);
        if (gk_lid() == 0) ids[row] = id;
    }
}

/* What is kept of rows, for logits_draw_kept: state [rows, GK_ROW_NUMBERS]. open: of rows that histogram.c or cluster.c left open. */
GK_KERNEL(logits_keep)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, part), GK_OUT(gk_f, state), gk_i64 rows, gk_i64 vocab, gk_i64 top_k,
                       gk_f scale, gk_f top_p, int open)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_f, state);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_f room[GK_BLOCK * GK_LOOK_BINS];
    for (gk_i64 row = gk_open_row(state, gk_bid(0), rows, open); row < rows; row = gk_open_row(state, row + gk_nblocks(0), rows, open)) {
        gk_logits l;
        gk_kept k;
        gk_sections r;
        gk_f total = GK_R(0.0);
        l.logits = logits; l.wide = wide; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = GK_R(0.0);
        gk_row_sections(&l, part, row, &r, tmp);
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) total += r.sums[d];
        k = gk_row_kept(&l, top_k, top_p, r.top, total, room, tmp);
        if (gk_lid() == 0) gk_row_put(state, row, k);
    }
}

/* A draw of what is kept of a row. known: sums of its sections from logits_cut, or null. */
GK_KERNEL(logits_draw_kept)(GK_IN(gk_t, logits), GK_IN(gk_f, wide), GK_IN(gk_f, state), GK_IN(gk_f, known), GK_IN(gk_i64, more), GK_OUT(gk_i64, ids),
                            gk_i64 rows, gk_i64 vocab, gk_i64 seed, gk_i64 stream, gk_i64 offset, gk_f scale, gk_f min_p)
{
    GK_BIND_IN(gk_t, logits); GK_BIND_IN(gk_f, wide); GK_BIND_IN(gk_f, state); GK_BIND_IN(gk_f, known); GK_BIND_IN(gk_i64, more);
    GK_BIND_OUT(gk_i64, ids);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        gk_logits l;
        gk_kept k;
        gk_f sums[GK_SAMPLE_DIGITS];
        gk_i64 id;
        int have;
        l.logits = logits; l.wide = wide; l.first = row * vocab; l.n = vocab; l.scale = scale; l.min_p = min_p;
        k = gk_row_get(state, row);
        have = known && known[row * GK_SAMPLE_DIGITS] >= GK_R(0.0);
        gk_sums_below(&l, &k, 0, have ? 0 : vocab, gk_section_width(&l), sums, tmp);
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) sums[d] = have ? known[row * GK_SAMPLE_DIGITS + d] : sums[d];
        id = gk_draw(&l, &k, gk_row_word(row, more, seed, stream, offset), sums, tmp);
        if (gk_lid() == 0) ids[row] = id;
    }
}
