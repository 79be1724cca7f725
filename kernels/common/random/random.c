/* Random numbers and dropout from Philox4x32-10 (Salmon et al., 2011); the text of the maps is section "Random" of docs/NUMERICS.md.
 *
 * Element i of a call uses block offset + i/4 and word i%4 (f64: block offset + i/2 and the words 2(i%2), 2(i%2)+1).
 * Launch: grid-stride, a thread per block of the generator, or with `wide` (16-byte aligned tensors) per 16 bytes of results.
 * Arithmetic in f32 (f64 for f64 outputs). Integer streams are equal on all
 * backends; values that pass through log, sin and cos agree within a few ULP.
 */

#include "common/prelude/bytes.h"
#include "common/prelude/rows.h"
#include "common/prelude/turn.h"

GK_FN gk_u64 gk_start(gk_i64 offset, GK_GLOBAL const gk_i64* more) { return (gk_u64)offset + (more ? (gk_u64)more[0] : 0ul); }

#if GK_DTYPE == GK_F64
#define GK_PER_BLOCK 2
GK_FN gk_f gk_uniform01(gk_words r, int k) { return ((gk_f)(r.w[2 * k] >> 5) * 67108864.0 + (gk_f)(r.w[2 * k + 1] >> 6)) * 1.1102230246251565e-16; }
GK_FN gk_f gk_uniform01_open(gk_words r, int k) { return gk_uniform01(r, k) + 1.1102230246251565e-16; }
#else
#define GK_PER_BLOCK 4
GK_FN float gk_uniform01(gk_words r, int k) { return gk_unit(r.w[k]); }
GK_FN float gk_uniform01_open(gk_words r, int k) { return gk_unit_open(r.w[k]); }
#endif

#if GK_IS_FLOAT
/* sin or cos of 2 pi u: the quarter is split off first, so that the argument stays small and exact. */
GK_FN gk_f gk_trig2pi(gk_f u, int cosine)
{
    gk_f quarter = gk_rint(GK_R(4.0) * u);
    gk_sin_cos r = gk_sin_cos_of((int)quarter, (GK_R(4.0) * u - quarter) * GK_R(1.57079632679489662));
    return cosine ? r.cos : r.sin;
}

/* [lo, hi): rounding may reach hi, which is then replaced by the number below it. */
GK_FN gk_f gk_rand_uniform(gk_words r, int k, gk_f lo, gk_f hi)
{
    gk_f v = lo + (hi - lo) * gk_uniform01(r, k);
    return v < hi ? v : gk_max(lo, gk_nextafter(hi, lo));
}
/* Box and Muller (1958) on pairs. The root, without the branch of a correctly rounded one, is found once for both numbers. */
GK_FN gk_f gk_rand_normal(gk_words r, int k, gk_f mean, gk_f std)
{
    gk_f square = GK_R(-2.0) * gk_log(gk_uniform01_open(r, k & ~1)), radius = square > GK_R(0.0) ? square * GK_M(rsqrt)(square) : GK_R(0.0);
    return mean + std * radius * gk_trig2pi(gk_uniform01(r, k | 1), !(k & 1));
}
GK_FN gk_f gk_rand_exponential(gk_words r, int k, gk_f rate, gk_f unused) { return -gk_log(gk_uniform01_open(r, k)) / rate; }
/* u = 1 would give infinity: it is nudged to 1 - 2^-25. */
GK_FN gk_f gk_rand_gumbel(gk_words r, int k, gk_f unused, gk_f unused2)
{
    gk_f u = gk_uniform01_open(r, k);
    gk_f l = u >= GK_R(1.0) ? GK_R(2.98023228e-8) : -gk_log(u);
    return -gk_log(l);
}

#ifdef GK_OP
/* Blocks of the generator that give 16 bytes. */
#define GK_ITEM_BLOCKS (GK_W / GK_PER_BLOCK)

// Units: FLOATS64 x DISTRIBUTIONS
/* y[i] = GK_OP(words of i; p, q) */
GK_KERNEL(random_float)(GK_OUT(gk_t, y), gk_i64 n, int wide, gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more), gk_f p, gk_f q)
{
    GK_BIND_OUT(gk_t, y); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_vec v;
        GK_UNROLL for (int j = 0; j < GK_ITEM_BLOCKS; j++) {
            gk_words r = gk_philox(first + (gk_u64)(i * GK_ITEM_BLOCKS + j), (gk_u64)stream, (gk_u64)seed);
            GK_UNROLL for (int k = 0; k < GK_PER_BLOCK; k++) v.v[j * GK_PER_BLOCK + k] = GK_OP(r, k, p, q);
        }
        gk_storev(y, i * GK_W, v);
    }
    for (gk_i64 b = items * GK_ITEM_BLOCKS + gk_gid(); b * GK_PER_BLOCK < n; b += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        GK_UNROLL for (int k = 0; k < GK_PER_BLOCK; k++)
            if (b * GK_PER_BLOCK + k < n) gk_store(y, b * GK_PER_BLOCK + k, GK_OP(r, k, p, q));
    }
}
#else

// Units: FLOATS
/* y[i] = u_i < p[i], as u8; p may be null and is then the number prob */
GK_KERNEL(random_bernoulli)(GK_IN(gk_t, p), GK_OUT(gk_u8, y), gk_i64 n, gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more), float prob)
{
    GK_BIND_IN(gk_t, p); GK_BIND_OUT(gk_u8, y); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    for (gk_i64 b = gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        for (int k = 0; k < 4; k++) {
            gk_i64 i = b * 4 + k;
            if (i < n) y[i] = gk_unit(r.w[k]) < (p ? (float)gk_load(p, i) : prob);
        }
    }
}

/* Words w of the generator whose number (w >> 8) / 2^24 is below `keep`, itself in [0, 1]: those up to `last`, if there are any. Comparing integers
 * spares a shift and a conversion per element. */
typedef struct { gk_u32 last; int any; } gk_kept;
GK_FN gk_kept gk_kept_of(float keep)
{
    gk_u32 numbers = (gk_u32)GK_M32(ceil)(keep * 16777216.0f);
    gk_kept r;
    r.last = (numbers << 8) - 1u;
    r.any = numbers > 0u;
    return r;
}
#define gk_keeps(w, kept) ((w) <= (kept).last && (kept).any)

/* Eight neighbours take two blocks of the generator. A block takes GK_DROP_RUNS runs of eights; all loads of a thread are on their way before the
 * first is used. */
#define GK_DROP_RUNS (GK_W >= 8 ? 2 : 1)
#define GK_DROP_VECS (8 / GK_W)
typedef struct { gk_vec v[GK_DROP_VECS]; } gk_eight;
GK_FN gk_eight gk_eight_at(GK_GLOBAL const gk_t* p, gk_i64 i, int live)
{
    gk_eight r;
    GK_UNROLL for (int j = 0; j < GK_DROP_VECS; j++) r.v[j] = gk_loadv_if(p, i + j * GK_W, live, GK_R(0.0));
    return r;
}
/* keep ? x * scale : 0, plus `add` where `adds`. To y and, unless null, mask at i. */
GK_FN void gk_drop_eight(gk_eight x, gk_eight add, int adds, GK_GLOBAL gk_t* y, GK_GLOBAL gk_u8* mask, gk_i64 i, const gk_words r[2], gk_kept kept,
                         gk_f scale)
{
    GK_UNROLL for (int k = 0; k < 8; k++) {
        gk_f d = gk_keeps(r[k / 4].w[k % 4], kept) ? x.v[k / GK_W].v[k % GK_W] * scale : GK_R(0.0);
        x.v[k / GK_W].v[k % GK_W] = adds ? add.v[k / GK_W].v[k % GK_W] + d : d;
    }
    GK_UNROLL for (int j = 0; j < GK_DROP_VECS; j++) gk_storev(y, i + j * GK_W, x.v[j]);
    if (mask) {
        gk_u64 bytes = 0;
        GK_UNROLL for (int k = 0; k < 8; k++) bytes |= (gk_u64)gk_keeps(r[k / 4].w[k % 4], kept) << (8 * k);
        *(GK_GLOBAL gk_u64*)(mask + i) = bytes;
    }
}
/* The first of a thread's eights, and the next: the same one again behind the last. */
#define GK_DROP_LOOP(i, items) \
    for (gk_i64 i = (gk_i64)gk_bid(0) * (GK_DROP_RUNS * GK_BLOCK) + gk_lid(); i < (items); i += GK_DROP_RUNS * gk_gsize())
#define GK_DROP_AT(u, i, items) (((i) + (u) * GK_BLOCK < (items) ? (i) + (u) * GK_BLOCK : (i)) * 8)

// Units: FLOATS64
/* y = keep ? x / (1 - prob) : 0 with keep = u < 1 - prob; mask[i] = keep where mask is not null. accumulate adds to y. */
GK_KERNEL(dropout)(GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(gk_u8, mask), gk_i64 n, int wide, gk_i64 seed, gk_i64 stream, gk_i64 offset,
                   GK_IN(gk_i64, more), float keep, gk_f scale, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_u8, mask); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    gk_kept kept = gk_kept_of(keep);
    gk_i64 items = wide ? n / 8 : 0;
    GK_DROP_LOOP(i, items) {
        gk_eight v[GK_DROP_RUNS], old[GK_DROP_RUNS];
        GK_UNROLL for (int u = 0; u < GK_DROP_RUNS; u++) {
            v[u] = gk_eight_at(x, GK_DROP_AT(u, i, items), 1);
            old[u] = gk_eight_at(y, GK_DROP_AT(u, i, items), accumulate);
        }
        GK_UNROLL for (int u = 0; u < GK_DROP_RUNS; u++) {
            gk_words r[2];
            gk_i64 at = GK_DROP_AT(u, i, items);
            GK_UNROLL for (int j = 0; j < 2; j++) r[j] = gk_philox(first + (gk_u64)(at / 4 + j), (gk_u64)stream, (gk_u64)seed);
            if (u == 0 || at != i * 8) gk_drop_eight(v[u], old[u], accumulate, y, mask, at, r, kept, scale);
        }
    }
    /* The rest in whole blocks of the generator. */
    for (gk_i64 b = items * 2 + gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        for (int k = 0; k < 4; k++) {
            gk_i64 i = b * 4 + k;
            if (i >= n) break;
            int keeps = gk_keeps(r.w[k], kept);
            gk_f d = keeps ? gk_load(x, i) * scale : GK_R(0.0);
            gk_store(y, i, accumulate ? gk_load(y, i) + d : d);
            if (mask) mask[i] = (gk_u8)keeps;
        }
    }
}

/* y = r + (keep ? (x + bias) * scale : 0), bias over the last axis of `cols`; r and mask may be null. `wide`: cols is a multiple of 8, all is
 * aligned. */
GK_KERNEL(bias_dropout)(GK_IN(gk_t, x), GK_IN(gk_t, bias), GK_IN(gk_t, r), GK_OUT(gk_t, y), GK_OUT(gk_u8, mask), gk_i64 n, gk_i64 cols, int wide,
                        gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more), float keep, gk_f scale)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, bias); GK_BIND_IN(gk_t, r); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_u8, mask); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    gk_kept kept = gk_kept_of(keep);
    gk_i64 items = wide ? n / 8 : 0;
    GK_DROP_LOOP(i, items) {
        gk_eight v[GK_DROP_RUNS], add[GK_DROP_RUNS], b[GK_DROP_RUNS];
        GK_UNROLL for (int u = 0; u < GK_DROP_RUNS; u++) {
            gk_i64 at = GK_DROP_AT(u, i, items);
            v[u] = gk_eight_at(x, at, 1);
            add[u] = gk_eight_at(r, at, r != 0);
            b[u] = gk_eight_at(bias, at - gk_quot(at, cols) * cols, 1);
        }
        GK_UNROLL for (int u = 0; u < GK_DROP_RUNS; u++) {
            gk_words q[2];
            gk_i64 at = GK_DROP_AT(u, i, items);
            GK_UNROLL for (int j = 0; j < 2; j++) q[j] = gk_philox(first + (gk_u64)(at / 4 + j), (gk_u64)stream, (gk_u64)seed);
            GK_UNROLL for (int k = 0; k < 8; k++) v[u].v[k / GK_W].v[k % GK_W] += b[u].v[k / GK_W].v[k % GK_W];
            if (u == 0 || at != i * 8) gk_drop_eight(v[u], add[u], r != 0, y, mask, at, q, kept, scale);
        }
    }
    for (gk_i64 b = items * 2 + gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words q = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        for (int k = 0; k < 4; k++) {
            gk_i64 i = b * 4 + k;
            if (i >= n) break;
            int keeps = gk_keeps(q.w[k], kept);
            gk_f d = GK_R(0.0);
            if (r) d = gk_load(r, i);
            if (keeps) d += (gk_load(x, i) + gk_load(bias, i - gk_quot(i, cols) * cols)) * scale;
            gk_store(y, i, d);
            if (mask) mask[i] = (gk_u8)keeps;
        }
    }
}

/* y = mask ? x * scale : 0; `wide`: all tensors are 16-byte aligned. A block takes two runs of neighbouring items, both loaded before the first is
 * used. */
GK_KERNEL(dropout_masked)(GK_IN(gk_t, x), GK_IN(gk_u8, mask), GK_OUT(gk_t, y), gk_i64 n, int wide, gk_f scale, int accumulate)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_u8, mask); GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = (gk_i64)gk_bid(0) * (2 * GK_BLOCK) + gk_lid(); i < items; i += 2 * gk_gsize()) {
        gk_vec v[2], o[2];
        gk_bytes m[2];
        gk_i64 at[2];
        at[0] = i * GK_W;
        at[1] = i + GK_BLOCK < items ? (i + GK_BLOCK) * GK_W : at[0];
        GK_UNROLL for (int u = 0; u < 2; u++) {
            m[u] = gk_bytes_at(mask, at[u]);
            v[u] = gk_loadv(x, at[u]);
            o[u] = v[u];
            if (accumulate) o[u] = gk_loadv(y, at[u]);
        }
        GK_UNROLL for (int u = 0; u < 2; u++) {
            if (u > 0 && at[u] == at[0]) break;
            GK_UNROLL for (int k = 0; k < GK_W; k++) {
                gk_f d = gk_byte_set(m[u], k) ? v[u].v[k] * scale : GK_R(0.0);
                v[u].v[k] = accumulate ? o[u].v[k] + d : d;
            }
            gk_storev(y, at[u], v[u]);
        }
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_f d = mask[i] ? gk_load(x, i) * scale : GK_R(0.0);
        gk_store(y, i, accumulate ? gk_load(y, i) + d : d);
    }
}

#define GK_SUM_ROWS 32 /* rows of a tile */
#define GK_SUM_RUN 32 /* elements between the sums that are kept */
#define GK_SUM_PITCH (GK_BLOCK + 1) /* numbers between its rows: neighbouring threads that walk rows meet no bank twice */

/* Running f32 sums of p [rows, len], in order: cum [rows, ceil(len / GK_SUM_RUN)] holds those after every run and after the last element; a row
 * without weight is reported. The additions of a row depend on each other: a thread per row adds what the block loads in tiles of GK_SUM_ROWS rows
 * and GK_BLOCK elements, the next tile while it adds. */
GK_KERNEL(categorical_sums)(GK_IN(gk_t, p), GK_OUT(float, cum), gk_i64 rows, gk_i64 len, GK_OUT(int, err), int code)
{
    GK_LOCAL float tile[GK_SUM_ROWS * GK_SUM_PITCH];
    GK_BIND_IN(gk_t, p); GK_BIND_OUT(float, cum); GK_BIND_OUT(int, err);
    int t = gk_lid();
    gk_i64 runs = (len + GK_SUM_RUN - 1) / GK_SUM_RUN;
    for (gk_i64 first = (gk_i64)gk_bid(0) * GK_SUM_ROWS; first < rows; first += (gk_i64)gk_nblocks(0) * GK_SUM_ROWS) {
        float sum = 0.0f, v[GK_SUM_ROWS];
        gk_i64 row = first + t, at = row * runs;
        int adds = t < GK_SUM_ROWS && row < rows;
        for (gk_i64 k = -GK_BLOCK; k < len; k += GK_BLOCK) {
            gk_i64 next = k + GK_BLOCK + t;
            GK_UNROLL for (int j = 0; j < GK_SUM_ROWS; j++)
                v[j] = next < len && first + j < rows ? (float)gk_load(p, (first + j) * len + next) : 0.0f;
            if (adds && k >= 0) {
                int n = len - k < GK_BLOCK ? (int)(len - k) : GK_BLOCK, i = 0;
                GK_LOCAL_PTR const float* line = tile + t * GK_SUM_PITCH;
                for (; i + GK_SUM_RUN <= n; i += GK_SUM_RUN) {
                    float u[GK_SUM_RUN];
                    GK_UNROLL for (int j = 0; j < GK_SUM_RUN; j++) u[j] = line[i + j];
                    GK_UNROLL for (int j = 0; j < GK_SUM_RUN; j++) sum += u[j];
                    cum[at++] = sum;
                }
                if (i < n) {
                    for (; i < n; i++) sum += line[i];
                    cum[at++] = sum;
                }
            }
            GK_BARRIER();
            GK_UNROLL for (int j = 0; j < GK_SUM_ROWS; j++) tile[j * GK_SUM_PITCH + t] = v[j];
            GK_BARRIER();
        }
        if (adds && !(sum > 0.0f)) gk_report(err, code);
    }
}

/* y[row, j] = number of k with cum_k <= u * total, at most len - 1; u belongs to element row*count + j. Thread per sample: it looks for the run,
 * then adds up its elements as categorical_sums did. */
GK_KERNEL(categorical_search)(GK_IN(gk_t, p), GK_IN(float, cum), GK_OUT(int, y), int wide, gk_i64 rows, gk_i64 len, gk_i64 count,
                              gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more))
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(float, cum); GK_BIND_OUT(int, y); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    gk_i64 runs = (len + GK_SUM_RUN - 1) / GK_SUM_RUN;
    for (gk_i64 i = gk_gid(); i < rows * count; i += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)(i / 4), (gk_u64)stream, (gk_u64)seed);
        gk_i64 row = i / count, lo = 0, hi = runs - 1;
        GK_GLOBAL const float* c = cum + row * runs;
        float target = gk_unit(r.w[i % 4]) * c[runs - 1];
        while (lo < hi) {
            gk_i64 mid = (lo + hi) / 2;
            if (c[mid] <= target) lo = mid + 1; else hi = mid;
        }
        float sum = lo > 0 ? c[lo - 1] : 0.0f;
        gk_i64 k = lo * GK_SUM_RUN, end = k + GK_SUM_RUN < len ? k + GK_SUM_RUN : len;
        for (; k < end; k++) {
            sum += (float)gk_load(p, row * len + k);
            if (!(sum <= target)) break;
        }
        gk_store_index(y, i, wide, k < len ? k : len - 1);
    }
}

/* y[row] = first maximum of logits[row, k] + gumbel of element row*len + k. One block per row, whose threads
 * take blocks of the generator. */
GK_KERNEL(categorical_gumbel)(GK_IN(gk_t, logits), GK_OUT(int, y), int wide, gk_i64 rows, gk_i64 len, gk_i64 seed, gk_i64 stream, gk_i64 offset,
                              GK_IN(gk_i64, more))
{
    GK_LOCAL gk_f best[GK_BLOCK];
    GK_LOCAL gk_i64 at[GK_BLOCK];
    GK_BIND_IN(gk_t, logits); GK_BIND_OUT(int, y); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    int t = gk_lid();
    for (gk_i64 row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        gk_f v = -GK_INF;
        gk_i64 pos = len;
        gk_i64 from = row * len, to = from + len, last = (to + GK_PER_BLOCK - 1) / GK_PER_BLOCK;
        for (gk_i64 b = from / GK_PER_BLOCK + t; b < last; b += GK_BLOCK) {
            gk_f x[GK_PER_BLOCK];
            GK_UNROLL for (int k = 0; k < GK_PER_BLOCK; k++) {
                gk_i64 i = b * GK_PER_BLOCK + k;
                x[k] = i >= from && i < to ? gk_load(logits, i) : GK_R(0.0);
            }
            gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
            GK_UNROLL for (int k = 0; k < GK_PER_BLOCK; k++) {
                gk_i64 i = b * GK_PER_BLOCK + k;
                x[k] += gk_rand_gumbel(r, k, GK_R(0.0), GK_R(0.0));
                if (i >= from && i < to && (x[k] > v || pos == len)) { v = x[k]; pos = i - from; }
            }
        }
        best[t] = v;
        at[t] = pos;
        GK_BARRIER();
        for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
            if (t < m && (best[t + m] > best[t] || (best[t + m] == best[t] && at[t + m] < at[t]))) {
                best[t] = best[t + m];
                at[t] = at[t + m];
            }
            GK_BARRIER();
        }
        if (t == 0) gk_store_index(y, row, wide, at[0] < len ? at[0] : 0);
        GK_BARRIER();
    }
}
#endif
#else
// Units: INDICES
/* Integer outputs: raw words (i32), or lo + floor(w * range / 2^32) with range in 1..2^32 (0 stands for 2^32). */
GK_KERNEL(random_int)(GK_OUT(gk_t, y), gk_i64 n, int wide, gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more), gk_i64 lo, gk_u32 range)
{
    GK_BIND_OUT(gk_t, y); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    for (gk_i64 b = gk_gid(); b * 4 < n; b += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        gk_t v[4];
        GK_UNROLL for (int k = 0; k < 4; k++) v[k] = (gk_t)(lo + (gk_i64)(range ? gk_mulhi(r.w[k], range) : r.w[k]));
        if (wide && b * 4 + 4 <= n) {
            GK_UNROLL for (int j = 0; j < 4; j += GK_W) {
                gk_vec q;
                GK_UNROLL for (int k = 0; k < GK_W; k++) q.v[k] = v[j + k];
                gk_storev(y, b * 4 + j, q);
            }
        } else {
            GK_UNROLL for (int k = 0; k < 4; k++)
                if (b * 4 + k < n) y[b * 4 + k] = v[k];
        }
    }
}

// Units: I64
/* keys[i] = words 2i and 2i+1 as one number, the first word on top; y[i] = i. For sorting. Thread per two elements. */
GK_KERNEL(random_keys)(GK_OUT(gk_i64, keys), gk_i64 n, gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_IN(gk_i64, more))
{
    GK_BIND_OUT(gk_i64, keys); GK_BIND_IN(gk_i64, more);
    gk_u64 first = gk_start(offset, more);
    for (gk_i64 b = gk_gid(); b * 2 < n; b += gk_gsize()) {
        gk_words r = gk_philox(first + (gk_u64)b, (gk_u64)stream, (gk_u64)seed);
        for (int k = 0; k < 2; k++)
            if (b * 2 + k < n) keys[b * 2 + k] = (gk_i64)((gk_u64)r.w[2 * k] << 32 | r.w[2 * k + 1]);
    }
}
#endif
