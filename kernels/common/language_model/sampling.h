/* What kernels that choose tokens share: logits of a row, what is kept of them, sums by digits of a key, 16 sections. sampling.c has the formulas. */
#define GK_SAMPLE_DIGITS 16
#if GK_DTYPE == GK_F64
typedef gk_u64 gk_key;
#define GK_KEY_BITS 64
#define gk_key_bits(x) gk_as_u64(x)
#else
typedef gk_u32 gk_key;
#define GK_KEY_BITS 32
#define gk_key_bits(x) gk_as_u32(x)
#endif

/* Rising with the value. */
GK_FN gk_key gk_key_of(gk_f x)
{
    gk_key b = gk_key_bits(x + GK_R(0.0)), top = (gk_key)1 << (GK_KEY_BITS - 1);
    return (b & top) ? ~b : b | top;
}
GK_FN gk_f gk_value_of(gk_key k)
{
    gk_key top = (gk_key)1 << (GK_KEY_BITS - 1), b = (k & top) ? k ^ top : ~k;
#if GK_DTYPE == GK_F64
    return gk_as_f64(b);
#else
    return gk_as_f32(b);
#endif
}

/* Bits of a look, and what a thread keeps in local memory: a sum for each value of those bits, or elements. */
#if GK_DTYPE == GK_F64
#define GK_LOOK_BITS 4
#else
#define GK_LOOK_BITS 5
#endif
#define GK_LOOK_BINS (1 << GK_LOOK_BITS)

typedef struct {
    GK_GLOBAL const gk_t* logits;
    GK_GLOBAL const gk_f* wide;
    gk_i64 first, n;
    gk_f scale, min_p;
} gk_logits;

/* What is kept of a row: keys above `cut`, and those equal to it up to the id `last`. */
typedef struct { gk_key cut; gk_i64 last; gk_f top; } gk_kept;

GK_FN gk_f gk_logit(const gk_logits* l, gk_i64 i)
{
    gk_f x = l->wide ? l->wide[l->first + i] : gk_load(l->logits, l->first + i);
    return gk_isnan(x) ? -GK_INF : x;
}

/* Elements at, at + step, .. below end, as they are; some element beyond. */
GK_FN void gk_logits_ahead(const gk_logits* l, int at, int end, const int step, gk_f* v, const int n)
{
    if (l->wide) {
        GK_UNROLL for (int u = 0; u < n; u++) v[u] = l->wide[l->first + (at + u * step < end ? at + u * step : at)];
    } else {
        GK_UNROLL for (int u = 0; u < n; u++) v[u] = gk_load(l->logits, l->first + (at + u * step < end ? at + u * step : at));
    }
}

/* Goes through every lanes-th element of a row from `from` on: x is number i. A thread loads `ahead` of them before it uses the first. */
#define GK_EACH_LOGIT_OF(l, from, end, lanes, ahead, x, i, step)                                   \
    for (int at_ = (int)(from); at_ < (int)(end); at_ += (ahead) * (lanes)) {                      \
        gk_f ahead_[ahead];                                                                        \
        gk_logits_ahead(l, at_, (int)(end), lanes, ahead_, ahead);                                 \
        GK_UNROLL for (int u_ = 0; u_ < (ahead); u_++) {                                           \
            int i = at_ + u_ * (lanes);                                                            \
            gk_f x = gk_isnan(ahead_[u_]) ? -GK_INF : ahead_[u_];                                  \
            if (i < (int)(end)) { step }                                                           \
        }                                                                                          \
    }
/* The threads of a block together go through all of them. */
#define GK_EACH_LOGIT(l, from, end, x, i, step) GK_EACH_LOGIT_OF(l, (from) + gk_lid(), end, GK_BLOCK, 4, x, i, step)

/* Elements that a thread loads before it uses the first where it does little with each. */
#if GK_DTYPE == GK_F64
#define GK_LOGITS_AHEAD 8
#else
#define GK_LOGITS_AHEAD 16
#endif

/* exp((x - top) / T), without and with infinite top. */
GK_FN gk_f gk_power_below(const gk_logits* l, gk_f x, gk_f top)
{
#if defined(GK_QUICK_EXP2) && GK_DTYPE != GK_F64
    return gk_quick_exp2((x - top) * (l->scale * 1.44269504f));
#else
    return gk_exp((x - top) * l->scale);
#endif
}
GK_FN gk_f gk_power(const gk_logits* l, gk_f x, gk_f top) { return x == top ? GK_R(1.0) : gk_power_below(l, x, top); }

/* What is noted of a row between kernels, GK_ROW_NUMBERS in gk_f: the cut's bits and last id, the largest logit; by histogram.c the bin of a threshold
 * (counted from that of the largest logit down), the weights above it, their target, the powers above it (behind logits_cut those of all that is kept),
 * and whether it is left to logits_keep to find what is kept. */
#define GK_ROW_NUMBERS 8
#define GK_ROW_LAST 1
#define GK_ROW_TOP 2
#define GK_ROW_BIN 3
#define GK_ROW_ABOVE 4
#define GK_ROW_TARGET 5
#define GK_ROW_POWERS 6
#define GK_ROW_OPEN 7

GK_FN gk_kept gk_row_get(GK_GLOBAL const gk_f* state, gk_i64 row)
{
    gk_kept k;
    k.cut = ((GK_GLOBAL const gk_key*)state)[row * GK_ROW_NUMBERS];
    k.last = (gk_i64)state[row * GK_ROW_NUMBERS + GK_ROW_LAST];
    k.top = state[row * GK_ROW_NUMBERS + GK_ROW_TOP];
    return k;
}
GK_FN void gk_row_put(GK_GLOBAL gk_f* state, gk_i64 row, gk_kept k)
{
    ((GK_GLOBAL gk_key*)state)[row * GK_ROW_NUMBERS] = k.cut;
    state[row * GK_ROW_NUMBERS + GK_ROW_LAST] = (gk_f)k.last;
    state[row * GK_ROW_NUMBERS + GK_ROW_TOP] = k.top;
}

/* Whether logit x of id i is kept: by top-k and top-p; by min-p, too. */
GK_FN int gk_is_above(const gk_kept* k, gk_f x, gk_i64 i)
{
    gk_key key = gk_key_of(x);
    return key > k->cut || (key == k->cut && i <= k->last);
}
GK_FN int gk_is_kept(const gk_logits* l, const gk_kept* k, gk_f x, gk_i64 i)
{
    return gk_is_above(k, x, i) && gk_power(l, x, k->top) >= l->min_p;
}

/* What is summed: the number of elements, the powers of what is kept, the ids from behind of what equals the cut. */
#define GK_BY_COUNT 0
#define GK_BY_POWER 1
#define GK_BY_ID 2

GK_FN gk_f gk_weight(const gk_logits* l, const gk_kept* k, gk_f x, gk_i64 i, const int by)
{
    if (by == GK_BY_POWER) return gk_is_kept(l, k, x, i) ? gk_power(l, x, k->top) : GK_R(0.0);
    if (by == GK_BY_ID) return gk_key_of(x) == k->cut && i <= k->last ? GK_R(1.0) : GK_R(0.0);
    return GK_R(1.0);
}

/* Adds a weight to the sum of its next digit if its key has the prefix. */
GK_FN void gk_digit_add(gk_f sums[GK_SAMPLE_DIGITS], gk_key key, gk_key prefix, int shift, gk_f w)
{
    int own = (int)((key >> shift) & 15);
    if (shift + 4 < GK_KEY_BITS && (key >> (shift + 4)) != (prefix >> (shift + 4))) w = GK_R(0.0);
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) sums[d] += own == d ? w : GK_R(0.0);
}

/* Elements of each of the 16 sections of a row but the last. */
GK_FN gk_i64 gk_section_width(const gk_logits* l) { return (l->n + GK_SAMPLE_DIGITS - 1) / GK_SAMPLE_DIGITS; }

/* Threads of a block for each section. */
#define GK_SECTION_LANES (GK_BLOCK / GK_SAMPLE_DIGITS)

/* One number for each section, from the first of its threads to all threads. */
GK_FN void gk_share_sections(gk_f v, gk_f all[GK_SAMPLE_DIGITS], GK_LOCAL_PTR gk_f* tmp)
{
    if (gk_lid() % GK_SECTION_LANES == 0) tmp[gk_lid() / GK_SECTION_LANES] = v;
    GK_BARRIER();
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) all[d] = tmp[d];
    GK_BARRIER();
}

/* The digit with which the sums of a block, from the largest digit down, reach the target; the last that has anything, if rounding leaves them short of it.
 * *above: what is above all of them at first, above that digit in the end. */
GK_FN int gk_digit_pick(const gk_f sums[GK_SAMPLE_DIGITS], gk_f target, gk_f* above, GK_LOCAL_PTR gk_f* tmp)
{
    gk_f all[GK_SAMPLE_DIGITS], run = *above, own = GK_R(0.0);
    int digit = 0, reached = 0, lane = gk_lid() % GK_SECTION_LANES, group = gk_lid() / GK_SECTION_LANES;
    /* Sums over groups of 16 threads, then over the groups, each digit by a group. */
    GK_UNROLL for (int d = 0; d < GK_SAMPLE_DIGITS; d++) {
        gk_f s = gk_group_sum(sums[d], tmp, GK_SECTION_LANES);
        own = d == lane ? s : own;
    }
    GK_BARRIER();
    tmp[lane * GK_SECTION_LANES + group] = own;
    GK_BARRIER();
    own = tmp[gk_lid()];
    GK_BARRIER();
    gk_share_sections(gk_group_sum(own, tmp, GK_SECTION_LANES), all, tmp);
    GK_UNROLL for (int d = GK_SAMPLE_DIGITS - 1; d >= 0; d--) {
        if (!reached && all[d] > GK_R(0.0)) {
            digit = d;
            *above = run;
            reached = run + all[d] >= target;
        }
        run += all[d];
    }
    return digit;
}

/* The first row from `row` on, one for each block, that histogram.c or cluster.c left open; any row where neither ran. */
GK_FN gk_i64 gk_open_row(GK_GLOBAL const gk_f* state, gk_i64 row, gk_i64 rows, int open)
{
    while (open && row < rows && state[row * GK_ROW_NUMBERS + GK_ROW_OPEN] == GK_R(0.0)) row += gk_nblocks(0);
    return row;
}

/* The word of a row between 0 and 1. more: what is added to offset, or null. */
GK_FN gk_f gk_row_word(gk_i64 row, GK_GLOBAL const gk_i64* more, gk_i64 seed, gk_i64 stream, gk_i64 offset)
{
    gk_u64 block = (gk_u64)offset + (more ? (gk_u64)more[0] : (gk_u64)0) + (gk_u64)(row / 4);
    gk_words w = gk_philox(block, (gk_u64)stream, (gk_u64)seed);
    return (gk_f)gk_unit(w.w[row % 4]);
}
