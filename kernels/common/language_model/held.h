/* Rows of logits that the blocks of a cluster hold: bins and places of logits, the threshold among them, the elements at the threshold, and a draw.
 * Included by cluster.c, which says how it goes and defines the sizes.
 */
/* Local memory of a block. `data` has half of its logits, then the list of a bin; `bins` the sums of threads, then the end of that list and `places`. */
typedef struct {
    GK_LOCAL_PTR gk_f *data, *bins, *places, *met, *tmp, *weights;
    GK_LOCAL_PTR gk_u32* sums;
} gk_held_local;

/* A block of a cluster, its part of a row, its largest logit; bins and factors of two for each unit of a logit. after: only what is above `kept` counts. */
typedef struct {
    gk_logits l;
    gk_kept kept;
    gk_i64 row;
    int block, first, end, whole, after;
    gk_f steps, octaves, top;
} gk_held;

/* The id of logit number u of a thread. */
GK_FN int gk_held_id(const gk_held* p, int u) { return p->first + (u / GK_W * GK_BLOCK + gk_lid()) * GK_W + u % GK_W; }

/* Half of a thread's logits, from number `from` on, as stored; -inf where there is none. */
GK_FN void gk_held_load(const gk_held* p, int from, gk_f x[GK_HELD_HALF])
{
    GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) x[u] = -GK_INF;
    if (p->whole) {
        GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u += GK_W) {
            int at = gk_held_id(p, from + u);
            if (at < p->end) {
                gk_vec v = gk_loadv(p->l.logits, p->l.first + at);
                GK_UNROLL for (int k = 0; k < GK_W; k++) x[u + k] = v.v[k];
            }
        }
    } else if (p->l.wide) {
        GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) {
            if (gk_held_id(p, from + u) < p->end) x[u] = p->l.wide[p->l.first + gk_held_id(p, from + u)];
        }
    } else {
        GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) {
            if (gk_held_id(p, from + u) < p->end) x[u] = gk_load(p->l.logits, p->l.first + gk_held_id(p, from + u));
        }
    }
}

/* GK_HELD_STEP of a thread's logits, from number `from` on. */
GK_FN void gk_held_some(const gk_held_local* m, const gk_f own[GK_HELD_HALF], const int from, gk_f x[GK_HELD_STEP])
{
    GK_UNROLL for (int u = 0; u < GK_HELD_STEP; u++) {
        x[u] = from < GK_HELD_HALF ? m->data[(from + u) % GK_HELD_HALF * GK_BLOCK + gk_lid()] : own[(from + u) % GK_HELD_HALF];
    }
}

/* Falling with the logit, and the same for all blocks. */
GK_FN gk_u32 gk_held_point(const gk_held* p, gk_f x) { return gk_as_u32(gk_fma(x, -p->steps, GK_HELD_GRID)); }
GK_FN gk_u32 gk_held_base(const gk_held* p, gk_f top) { return gk_held_point(p, top) / GK_HELD_POINTS * GK_HELD_POINTS; }

GK_FN gk_f gk_held_power(const gk_held* p, gk_f x, gk_f top) { return gk_held_exp2((x - top) * p->octaves); }

/* Bins from the row's largest logit down to that of a part, GK_HELD_BINS at most, and what the part's powers are to be multiplied by. */
GK_FN int gk_held_shift(const gk_held* p, gk_f row, gk_f part)
{
    gk_u32 n = (gk_held_base(p, part) - gk_held_base(p, row)) / GK_HELD_POINTS;
    return n < GK_HELD_BINS ? (int)n : GK_HELD_BINS;
}
GK_FN gk_f gk_held_factor(const gk_held* p, gk_f row, gk_f part, const int by)
{
    if (by == GK_BY_COUNT) return GK_R(1.0);
    return part > -GK_INF ? gk_held_power(p, part, row) : GK_R(0.0);
}

/* Half of a thread's logits: -inf in place of what does not count; the largest. */
GK_FN gk_f gk_held_clean(const gk_held* p, int from, gk_f x[GK_HELD_HALF])
{
    gk_f top = -GK_INF;
    if (p->after) {
        gk_f low = gk_held_low(&p->kept);
        int last = (int)p->kept.last;
        GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) x[u] = gk_held_keeps(low, last, x[u], gk_held_id(p, from + u)) ? x[u] : -GK_INF;
    }
    GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) {
        x[u] = gk_held_max(x[u], -GK_INF);
        top = gk_held_max(top, x[u]);
    }
    return top;
}

/* Loads a block's part and finds its largest logit. */
GK_FN void gk_held_begin(gk_held* p, gk_held_local* m, gk_f own[GK_HELD_HALF])
{
    gk_f x[GK_HELD_HALF], top;
    gk_held_load(p, 0, x);
    gk_held_load(p, GK_HELD_HALF, own);
    top = gk_held_clean(p, 0, x);
    GK_UNROLL for (int u = 0; u < GK_HELD_HALF; u++) m->data[u * GK_BLOCK + gk_lid()] = x[u];
    top = gk_held_max(top, gk_held_clean(p, GK_HELD_HALF, own));
    p->top = gk_block_max(top, m->tmp);
    m->sums[gk_lid()] = 0u;
}

/* Sums of weights by bins, which the blocks tell each other. Bins count from the block's largest logit, to which its powers are relative. */
GK_FN void gk_held_meet(const gk_held* p, gk_held_local* m, const gk_f own[GK_HELD_HALF], const int by)
{
    const gk_u32 far = (GK_HELD_BINS - 1) * GK_HELD_POINTS, column = (gk_u32)gk_lid() * 4u;
    gk_f top = p->top > -GK_INF ? p->top : GK_R(0.0), s = GK_R(0.0);
    gk_u32 base = gk_held_base(p, p->top);
    int bin = gk_lid() / GK_HELD_LANES, lane = gk_lid() % GK_HELD_LANES;
    GK_UNROLL for (int n = 0; n < GK_HELD_BINS; n++) m->bins[n * GK_BLOCK + gk_lid()] = GK_R(0.0);
    GK_UNROLL for (int from = 0; from < 2 * GK_HELD_HALF; from += GK_HELD_STEP) {
        gk_f x[GK_HELD_STEP], w[GK_HELD_STEP];
        gk_held_some(m, own, from, x);
        GK_UNROLL for (int u = 0; u < GK_HELD_STEP; u++) {
            w[u] = by == GK_BY_POWER ? gk_held_power(p, x[u], top) : x[u] > -GK_INF ? GK_R(1.0) : GK_R(0.0);
        }
        GK_UNROLL for (int u = 0; u < GK_HELD_STEP; u++) {
            gk_u32 q = gk_held_point(p, x[u]) - base;
            /* Four times the number bin * GK_BLOCK + lid. */
            q = ((q < far ? q : far) & (gk_u32)-GK_HELD_POINTS) | column;
            m->bins[q / 4u] += w[u];
        }
    }
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_HELD_BINS; k++) s += m->bins[bin * GK_BLOCK + lane + GK_HELD_LANES * ((k + bin) % GK_HELD_BINS)];
    s = gk_group_sum(s, m->tmp, GK_HELD_LANES);
    GK_CLUSTER_WAIT();
    if (lane < GK_CLUSTER) gk_cluster_put(m->met + p->block * GK_HELD_MET + bin, s, lane);
    if (gk_lid() < GK_CLUSTER) gk_cluster_put(m->met + p->block * GK_HELD_MET + GK_HELD_BINS, p->top, gk_lid());
    GK_CLUSTER_BARRIER();
}

/* The first of GK_BLOCK weights with which, and with those before it, a sum reaches the target, or exceeds it; the last one that there is, if rounding
 * leaves none. *above: the sum before all of them, then before that one. One thread looks, and tells all in the two numbers behind tmp, which nothing else
 * writes to. */
GK_FN int gk_held_find(GK_LOCAL_PTR const gk_f* weights, gk_f target, const int exceeds, GK_LOCAL_PTR gk_f* tmp, gk_f* above)
{
    gk_f s = gk_group_sum(weights[gk_lid()], tmp, GK_SECTION_LANES);
    if (gk_lid() % GK_SECTION_LANES == 0) tmp[gk_lid() / GK_SECTION_LANES] = s;
    GK_BARRIER();
    if (gk_lid() == 0) {
        gk_f run = *above, before = run;
        int section = 0, found = 0, reached = 0;
        GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
            if (!reached && tmp[d] > GK_R(0.0)) {
                section = d;
                before = run;
                reached = exceeds ? run + tmp[d] > target : run + tmp[d] >= target;
            }
            run += tmp[d];
        }
        run = before;
        reached = 0;
        GK_UNROLL for (int n = 0; n < GK_SECTION_LANES; n++) {
            s = weights[section * GK_SECTION_LANES + n];
            if (!reached && s > GK_R(0.0)) {
                found = section * GK_SECTION_LANES + n;
                before = run;
                reached = exceeds ? run + s > target : run + s >= target;
            }
            run += s;
        }
        tmp[GK_BLOCK] = (gk_f)found;
        tmp[GK_BLOCK + 1] = before;
    }
    GK_BARRIER();
    *above = tmp[GK_BLOCK + 1];
    return (int)tmp[GK_BLOCK];
}

/* A row's threshold. want: the first point of the bin in which it lies; bin: its number, counted from the row's largest logit; above: weights above that
 * bin, then above the place. open: not found so; all: there is none, as all is kept. */
typedef struct { gk_f top, target, above; gk_u32 want; int bin, place, open, all; } gk_held_cut;

GK_FN gk_held_cut gk_held_threshold(const gk_held* p, gk_held_local* m, gk_f target, const int by)
{
    gk_held_cut c;
    int bin = gk_lid() / GK_HELD_LANES, b = gk_lid() % GK_HELD_LANES, shift;
    gk_f part, factor, w = GK_R(0.0), all, below;
    c.top = m->met[GK_HELD_BINS];
    GK_UNROLL for (int k = 1; k < GK_CLUSTER; k++) c.top = gk_held_max(c.top, m->met[k * GK_HELD_MET + GK_HELD_BINS]);
    b = b < GK_CLUSTER ? b : 0;
    part = m->met[b * GK_HELD_MET + GK_HELD_BINS];
    shift = gk_held_shift(p, c.top, part);
    factor = gk_lid() % GK_HELD_LANES < GK_CLUSTER ? gk_held_factor(p, c.top, part, by) : GK_R(0.0);
    all = m->met[b * GK_HELD_MET + bin] * factor;
    below = gk_block_sum(bin + shift >= GK_HELD_BINS - 1 ? all : GK_R(0.0), m->tmp);
    all = gk_block_sum(all, m->tmp);
    if (bin >= shift && bin < GK_HELD_BINS - 1) w = m->met[b * GK_HELD_MET + bin - shift] * factor;
    w = gk_group_sum(w, m->tmp, GK_HELD_LANES);
    m->weights[gk_lid()] = GK_R(0.0);
    GK_BARRIER();
    if (gk_lid() % GK_HELD_LANES == 0) m->weights[bin] = w;
    GK_BARRIER();
    c.target = by == GK_BY_POWER ? target * all : target;
    c.above = GK_R(0.0);
    c.bin = gk_held_find(m->weights, c.target, 0, m->tmp, &c.above);
    c.open = !(c.top > -GK_INF && gk_fabs(c.top * p->steps) < GK_HELD_BOUND) || (all - below < c.target && below > GK_R(0.0));
    c.all = by == GK_BY_COUNT && all < c.target;
    c.want = c.open || c.all ? GK_HELD_NOWHERE : gk_held_base(p, c.top) + (gk_u32)c.bin * GK_HELD_POINTS;
    return c;
}

/* What a thread lists of its logits: how many, more than GK_HELD_HALF where there are too many; a bit for each; the powers of those above, by count. */
typedef struct { gk_u64 which; gk_f above; int count; } gk_held_listed;

/* Lists the elements of the threshold's bin in each thread. */
GK_FN gk_held_listed gk_held_list(const gk_held* p, gk_held_local* m, const gk_f own[GK_HELD_HALF], const gk_held_cut* c, const int by)
{
    gk_held_listed r;
    int at = gk_lid(), most = 0;
    const int end = GK_HELD_HALF * GK_BLOCK + gk_lid();
    gk_u32 bits[2];
    bits[0] = 0u; bits[1] = 0u;
    r.above = GK_R(0.0);
    GK_UNROLL for (int from = 0; from < 2 * GK_HELD_HALF; from += GK_HELD_STEP) {
        gk_f x[GK_HELD_STEP];
        gk_held_some(m, own, from, x);
        gk_u32 in = 0u;
        int hit[GK_HELD_STEP];
        GK_UNROLL for (int u = 0; u < GK_HELD_STEP; u++) {
            gk_u32 q = gk_held_point(p, x[u]) - c->want;
            if (by == GK_BY_COUNT && (int)q < 0) r.above += gk_held_power(p, x[u], c->top);
            hit[u] = q < GK_HELD_POINTS;
            in |= hit[u] ? 1u << u : 0u;
        }
        GK_UNROLL for (int u = 0; u < GK_HELD_STEP; u++) {
            if (hit[u]) {
                m->data[at] = x[u];
                at += GK_BLOCK;
            }
        }
        bits[from / 32] |= in << from % 32;
        /* GK_HELD_STEP numbers of each thread lie behind the list. */
        most = at > most ? at : most;
        at = at < end ? at : end;
    }
    r.which = (gk_u64)bits[1] << 32 | bits[0];
    r.count = (most - gk_lid()) / GK_BLOCK;
    return r;
}

/* GK_HELD_AHEAD elements of a thread's list from number n on; -inf, which lies in no bin, behind the last one. */
GK_FN void gk_held_listed_at(const gk_held_local* m, int n, int end, gk_f x[GK_HELD_AHEAD])
{
    GK_UNROLL for (int u = 0; u < GK_HELD_AHEAD; u++) x[u] = n + u < end ? m->data[(n + u) * GK_BLOCK + gk_lid()] : -GK_INF;
}

/* The number of the lowest bit, which is there. */
GK_FN int gk_held_lowest(gk_u64 bits)
{
    gk_u32 low = (gk_u32)bits, high = (gk_u32)(bits >> 32), one = low ? low & (0u - low) : high & (0u - high);
    return (int)(gk_as_u32((float)one) >> 23) - 127 + (low ? 0 : 32);
}

/* The place of the threshold. few: how many elements the blocks' threads have listed at most. */
GK_FN void gk_held_refine(const gk_held* p, gk_held_local* m, gk_held_cut* c, int count, GK_LOCAL_PTR gk_f* few, const int by)
{
    gk_f half = (gk_f)c->bin * GK_R(0.5), w;
    int end = count < GK_HELD_HALF ? count : GK_HELD_HALF;
    w = gk_block_max((gk_f)count, m->tmp);
    if (gk_lid() < GK_CLUSTER) gk_cluster_put(few + p->block, w, gk_lid());
    for (int n = 0; n < end; n += GK_HELD_AHEAD) {
        gk_f x[GK_HELD_AHEAD];
        gk_held_listed_at(m, n, end, x);
        GK_UNROLL for (int u = 0; u < GK_HELD_AHEAD; u++) {
            gk_u32 one = by == GK_BY_COUNT ? 1u : (gk_u32)(gk_held_exp2((x[u] - c->top) * p->octaves + half) * GK_HELD_ONE + GK_R(0.5));
            if (n + u < end) gk_local_add(m->sums + (gk_held_point(p, x[u]) - c->want) / 4u, one);
        }
    }
    GK_BARRIER();
    w = (gk_f)m->sums[gk_lid()];
    if (by == GK_BY_POWER) w *= gk_held_exp2(-half) / GK_HELD_ONE;
    GK_UNROLL for (int b = 0; b < GK_CLUSTER; b++) gk_cluster_put(m->places + p->block * GK_HELD_PLACES + gk_lid(), w, b);
    GK_CLUSTER_BARRIER();
    w = GK_R(0.0);
    GK_UNROLL for (int b = 0; b < GK_CLUSTER; b++) {
        w += m->places[b * GK_HELD_PLACES + gk_lid()];
        c->open = c->open || few[b] > (gk_f)GK_HELD_HALF;
    }
    m->weights[gk_lid()] = w;
    GK_BARRIER();
    c->place = gk_held_find(m->weights, c->target, 0, m->tmp, &c->above);
}

/* How many the threads before this one have. */
GK_FN int gk_held_before(int has, int* all, GK_LOCAL_PTR gk_f* weights, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f sums[GK_SAMPLE_DIGITS], before = GK_R(0.0), total = GK_R(0.0);
    int lane = gk_lid() % GK_SECTION_LANES, section = gk_lid() / GK_SECTION_LANES;
    GK_BARRIER();
    weights[gk_lid()] = (gk_f)has;
    gk_share_sections(gk_group_sum((gk_f)has, tmp, GK_SECTION_LANES), sums, tmp);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
        before += d < section ? sums[d] : GK_R(0.0);
        total += sums[d];
    }
    GK_UNROLL for (int n = 0; n < GK_SECTION_LANES; n++) before += n < lane ? weights[section * GK_SECTION_LANES + n] : GK_R(0.0);
    *all = (int)total;
    return (int)before;
}

/* Whether a listed element lies in the threshold's place. */
GK_FN int gk_held_there(const gk_held* p, const gk_held_cut* c, gk_f x) { return (gk_held_point(p, x) - c->want) / 4u == (gk_u32)c->place; }

/* Writes the elements of the threshold's place, and their number. numbers: GK_HELD_NUMBERS of the row. */
GK_FN void gk_held_gather(const gk_held* p, gk_held_local* m, const gk_held_cut* c, const gk_held_listed* r, GK_GLOBAL gk_f* numbers)
{
    int has = 0, at, all, end = r->count < GK_HELD_HALF ? r->count : GK_HELD_HALF;
    gk_u32 there = 0u;
    gk_u64 which = r->which;
    GK_GLOBAL gk_f* list = numbers + GK_HELD_LISTS + p->block * GK_HELD_FEW;
    for (int n = 0; n < end; n += GK_HELD_AHEAD) {
        gk_f x[GK_HELD_AHEAD];
        gk_held_listed_at(m, n, end, x);
        GK_UNROLL for (int u = 0; u < GK_HELD_AHEAD; u++) {
            int is = gk_held_there(p, c, x[u]);
            has += is;
            there |= (gk_u32)is << (n + u);
        }
    }
    at = gk_held_before(has, &all, m->weights, m->tmp);
    if (gk_lid() == 0) numbers[GK_HELD_COUNTS + p->block] = (gk_f)all;
    for (int n = 0; there != 0u && at < GK_HELD_FEW; n++, there >>= 1) {
        if (there & 1u) {
            list[at] = m->data[n * GK_BLOCK + gk_lid()];
            list[GK_HELD_SLOTS + at] = (gk_f)gk_held_id(p, gk_held_lowest(which));
            at++;
        }
        which &= which - 1u;
    }
}

/* The powers of a thread's listed elements above the threshold's place. */
GK_FN gk_f gk_held_nearer(const gk_held* p, const gk_held_local* m, const gk_held_cut* c, int count)
{
    gk_f s = GK_R(0.0);
    for (int n = 0; n < count && n < GK_HELD_HALF; n++) {
        gk_f x = m->data[n * GK_BLOCK + gk_lid()];
        if ((gk_held_point(p, x) - c->want) / 4u < (gk_u32)c->place) s += gk_held_power(p, x, c->top);
    }
    return s;
}

/* Finds the elements of a row among which the last one is that is kept: state, but for the cut, and numbers. few: local memory. */
GK_FN void gk_held_row(gk_held* p, gk_held_local* m, gk_f target, GK_LOCAL_PTR gk_f* few, GK_GLOBAL gk_f* state, GK_GLOBAL gk_f* numbers, const int by)
{
    gk_f own[GK_HELD_HALF], s;
    gk_held_cut c;
    gk_held_listed r;
    gk_i64 at = p->row * GK_ROW_NUMBERS;
    gk_f open = p->after ? state[at + GK_ROW_OPEN] : GK_R(0.0);
    if (p->after) p->kept = gk_row_get(state, p->row);
    numbers += p->row * GK_HELD_NUMBERS;
    GK_CLUSTER_ARRIVE();
    gk_held_begin(p, m, own);
    gk_held_meet(p, m, own, by);
    c = gk_held_threshold(p, m, target, by);
    r = gk_held_list(p, m, own, &c, by);
    gk_held_refine(p, m, &c, r.count, few, by);
    gk_held_gather(p, m, &c, &r, numbers);
    s = r.above;
    if (by == GK_BY_POWER && gk_lid() < GK_HELD_BINS && gk_lid() < c.bin - gk_held_shift(p, c.top, p->top)) {
        s = m->met[p->block * GK_HELD_MET + gk_lid()] * gk_held_factor(p, c.top, p->top, by);
    }
    if (by == GK_BY_POWER && gk_lid() < c.place) s += m->places[p->block * GK_HELD_PLACES + gk_lid()];
    if (by == GK_BY_COUNT) s += gk_held_nearer(p, m, &c, r.count);
    s = gk_block_sum(s, m->tmp);
    if (gk_lid() == 0) numbers[p->block] = s;
    if (p->block == 0 && gk_lid() == 0) {
        p->kept.top = c.top;
        gk_row_put(state, p->row, p->kept);
        state[at + GK_ROW_ABOVE] = c.above;
        state[at + GK_ROW_TARGET] = c.target;
        state[at + GK_ROW_OPEN] = c.open || open != GK_R(0.0) ? GK_R(1.0) : GK_R(0.0);
    }
}

/* The id at which the powers of what a block keeps, from *before on, exceed the target. */
GK_FN gk_i64 gk_held_draw(const gk_held* p, GK_LOCAL_PTR gk_f* part, GK_LOCAL_PTR gk_f* tmp, const gk_kept* k, gk_f target, gk_f before)
{
    gk_f x[GK_HELD_HALF], all[GK_SAMPLE_DIGITS], run = before, s = GK_R(0.0), low = gk_held_low(k);
    int last = (int)k->last, piece = 0, reached = 0, lane = gk_lid() % GK_SECTION_LANES, section = gk_lid() / GK_SECTION_LANES, first, found;
    GK_ROLLED for (int h = 0; h < 2; h++) {
        gk_held_load(p, h * GK_HELD_HALF, x);
        GK_UNROLL for (int v = 0; v < GK_HELD_PIECES / 2; v++) {
            s = GK_R(0.0);
            GK_UNROLL for (int e = 0; e < GK_W; e++) {
                gk_f own = gk_held_max(x[v * GK_W + e], -GK_INF);
                if (gk_held_keeps(low, last, own, gk_held_id(p, h * GK_HELD_HALF + v * GK_W + e))) s += gk_held_power(p, own, k->top);
            }
            part[(h * GK_HELD_PIECES / 2 + v) * GK_BLOCK + gk_lid()] = s;
        }
    }
    GK_BARRIER();
    s = GK_R(0.0);
    GK_UNROLL for (int n = 0; n < GK_BLOCK / GK_SECTION_LANES; n++) {
        if (section < GK_HELD_PIECES) s += part[section * GK_BLOCK + lane + GK_SECTION_LANES * ((n + section) % (GK_BLOCK / GK_SECTION_LANES))];
    }
    gk_share_sections(gk_group_sum(s, tmp, GK_SECTION_LANES), all, tmp);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
        if (!reached && all[d] > GK_R(0.0)) {
            piece = d;
            before = run;
            reached = run + all[d] > target;
        }
        run += all[d];
    }
    first = p->first + (piece * GK_BLOCK + gk_held_find(part + piece * GK_BLOCK, target, 1, tmp, &before)) * GK_W;
    /* Some element of the row even where the sums were of no numbers. */
    found = first < p->end ? first : 0;
    reached = 0;
    GK_UNROLL for (int e = 0; e < GK_W; e++) {
        int i = first + e < p->end ? first + e : 0;
        gk_f own = gk_logit(&p->l, i);
        s = first + e < p->end && gk_held_keeps(low, last, own, i) ? gk_held_power(p, own, k->top) : GK_R(0.0);
        if (!reached && s > GK_R(0.0)) {
            found = i;
            reached = before + s > target;
        }
        before += s;
    }
    return found;
}

GK_FN gk_held gk_held_of(GK_GLOBAL const gk_t* logits, GK_GLOBAL const gk_f* wide, gk_i64 vocab, gk_f scale, gk_i64 row, int block, int whole)
{
    gk_held p;
    int width = (int)((vocab + GK_CLUSTER * GK_W - 1) / (GK_CLUSTER * GK_W)) * GK_W;
    p.row = row;
    p.block = block;
    p.first = p.block * width;
    p.end = p.first + width < (int)vocab ? p.first + width : (int)vocab;
    p.whole = whole; p.after = 0;
    p.octaves = scale * GK_HELD_LOG2E;
    p.steps = GK_R(2.0) * p.octaves;
    p.l.logits = logits; p.l.wide = wide; p.l.first = p.row * vocab; p.l.n = vocab; p.l.scale = scale; p.l.min_p = GK_R(0.0);
    p.kept.cut = 0; p.kept.last = vocab - 1; p.kept.top = GK_R(0.0);
    return p;
}

GK_FN gk_held_local gk_held_split(GK_LOCAL_PTR gk_f* room)
{
    gk_held_local m;
    m.data = room;
    m.bins = room + GK_HELD_HALF * GK_BLOCK;
    m.places = m.bins + GK_HELD_STEP * GK_BLOCK;
    return m;
}
