/* Sorting and selecting along rows, and search in sorted rows.
 *
 * Values become unsigned keys whose order is theirs: NaN is the largest (all NaN are equal), both zeros are equal, `descending` inverts all bits.
 * Equal keys stay in the order of their positions, so every result is unique: sort_rows and sort_select compare (key, position) pairs, the
 * radix sort of sort/radix.c is stable. Values are moved as bits. `wide` = the index output is i64, else i32.
 * Exact, deterministic. Reference: torch.sort(stable=True), torch.topk, torch.searchsorted.
 */
#include "common/prelude/coordinates.h"

#if GK_DTYPE == GK_F64 || GK_DTYPE == GK_I64
#define GK_SORT_WIDTH 64
typedef gk_u64 gk_key;
typedef struct { gk_u64 key; gk_u32 at; } gk_pair;
#define gk_pair_of(k, p) gk_make_pair(k, p)
GK_FN gk_pair gk_make_pair(gk_u64 k, gk_u32 p)
{
    gk_pair r;
    r.key = k; r.at = p;
    return r;
}
#define gk_before(a, b) ((a).key < (b).key || ((a).key == (b).key && (a).at < (b).at))
#define gk_place_of(a) ((a).at)
/* Elements per thread in sorts within a block. */
#define GK_SORT_EACH 4
#else
#if GK_DTYPE == GK_F16 || GK_DTYPE == GK_BF16
#define GK_SORT_WIDTH 16
#elif GK_DTYPE == GK_U8
#define GK_SORT_WIDTH 8
#else
#define GK_SORT_WIDTH 32
#endif
typedef gk_u32 gk_key;
typedef gk_u64 gk_pair;
#define gk_pair_of(k, p) ((gk_u64)(k) << 32 | (p))
#define gk_before(a, b) ((a) < (b))
#define gk_place_of(a) ((gk_u32)(a))
#define GK_SORT_EACH 8
#endif
#define GK_PAIRS (GK_SORT_EACH * GK_BLOCK)

#define GK_LAST ((gk_key)(~(gk_key)0) >> (8 * (int)sizeof(gk_key) - GK_SORT_WIDTH))
#define GK_SORT_SIGN ((gk_key)1 << (GK_SORT_WIDTH - 1))
#if GK_DTYPE == GK_F32
#define GK_INF_BITS 0x7f800000u
#elif GK_DTYPE == GK_F16
#define GK_INF_BITS 0x7c00u
#elif GK_DTYPE == GK_BF16
#define GK_INF_BITS 0x7f80u
#else
#define GK_INF_BITS 0x7ff0000000000000ul
#endif

GK_FN gk_key gk_key_of(gk_b bits, int descending)
{
    gk_key k = bits;
#if GK_IS_FLOAT
    gk_key size = k & ~GK_SORT_SIGN;
    if (size > GK_INF_BITS) k = GK_LAST;
    else if (size == 0) k = GK_SORT_SIGN;
    else k = k & GK_SORT_SIGN ? k ^ GK_LAST : k | GK_SORT_SIGN;
#elif GK_DTYPE != GK_U8
    k ^= GK_SORT_SIGN;
#endif
    return descending ? k ^ GK_LAST : k;
}

#define gk_bits_at(x, i) (((GK_GLOBAL const gk_b*)(x))[i])

/* One step of Batcher's bitonic sort within the thread's elements. */
#define GK_SWAP(v, k, j, up) \
    do { \
        gk_pair a_ = v[k], b_ = v[j]; \
        if (gk_before(b_, a_) == (up)) { v[k] = b_; v[j] = a_; } \
    } while (0)

/* Sorts runs of n = lanes * GK_SORT_EACH pairs, of which a thread holds GK_SORT_EACH consecutive ones in v. For the whole block, in uniform control
 * flow; `pairs` is a local array of GK_PAIRS. */
GK_FN void gk_sort_runs(gk_pair v[GK_SORT_EACH], int n, GK_LOCAL_PTR gk_pair* pairs)
{
    int t = gk_lid(), e = t * GK_SORT_EACH & (n - 1);
    GK_UNROLL for (int size = 2; size <= GK_SORT_EACH; size <<= 1) {
        GK_UNROLL for (int s = size >> 1; s > 0; s >>= 1) {
            GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++)
                if (!(k & s)) GK_SWAP(v, k, (k | s), ((e + k) & size) == 0);
        }
    }
    for (int size = 2 * GK_SORT_EACH; size <= n; size <<= 1) {
        int up = (e & size) == 0;
        for (int s = size / (2 * GK_SORT_EACH); s > 0; s >>= 1) {
            int low = (t & s) == 0;
            GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) pairs[k * GK_BLOCK + t] = v[k];
            GK_BARRIER();
            GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) {
                gk_pair o = pairs[k * GK_BLOCK + (t ^ s)];
                if (gk_before(o, v[k]) == (low == up)) v[k] = o;
            }
            GK_BARRIER();
        }
        GK_UNROLL for (int s = GK_SORT_EACH >> 1; s > 0; s >>= 1) {
            GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++)
                if (!(k & s)) GK_SWAP(v, k, (k | s), up);
        }
    }
}

/* Element e of a result row: the value at `i` and its position. */
#define GK_SORT_EMIT(to, i, position) \
    do { \
        if (y) ((GK_GLOBAL gk_b*)y)[to] = gk_bits_at(x, i); \
        if (index) gk_store_index(index, to, wide, position); \
    } while (0)

// Units: ALL
/* The first `keep` of each sorted row of up to GK_PAIRS elements; n is the power of two from GK_SORT_EACH on that holds a row. With `from`, position
 * p is named from[p]. y or index may be null. Launch: one block per GK_PAIRS / n rows. */
GK_KERNEL(sort_rows)(GK_IN(gk_t, x), GK_IN(int, from), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 rows, int cols, int n, int keep, int descending,
                      int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, from); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    GK_LOCAL gk_pair pairs[GK_PAIRS];
    int t = gk_lid(), mine = t * GK_SORT_EACH;
    gk_i64 first = (gk_i64)gk_bid(0) * (GK_PAIRS / n), row = first + mine / n;
    gk_pair v[GK_SORT_EACH];
    GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) {
        int e = (mine & (n - 1)) + k;
        gk_key key = GK_LAST;
        if (row < rows && e < cols) key = gk_key_of(gk_bits_at(x, row * cols + e), descending);
        v[k] = gk_pair_of(key, (gk_u32)e);
    }
    gk_sort_runs(v, n, pairs);
    GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) pairs[mine + k] = v[k];
    GK_BARRIER();
    for (int i = t; i < GK_PAIRS; i += GK_BLOCK) {
        gk_i64 r = first + i / n;
        int e = i & (n - 1);
        if (r < rows && e < keep) {
            gk_i64 at = r * cols + gk_place_of(pairs[i]), p = gk_place_of(pairs[i]);
            if (from) p = (gk_u32)from[at];
            GK_SORT_EMIT(r * keep + e, at, p);
        }
    }
}

/* Inclusive sums over the block: entry `result + t` of tmp, which holds 2 * GK_BLOCK. */
GK_FN int gk_sums_to(gk_u32 v, GK_LOCAL_PTR gk_u32* tmp)
{
    int t = gk_lid(), bank = 0;
    tmp[t] = v;
    GK_BARRIER();
    for (int m = 1; m < GK_BLOCK; m <<= 1) {
        gk_u32 s = tmp[bank + t];
        if (t >= m) s += tmp[bank + t - m];
        bank = GK_BLOCK - bank;
        tmp[bank + t] = s;
        GK_BARRIER();
    }
    return bank;
}

/* What sort_select seeks in: elements [first, end) of the row that begins at `base`. */
typedef struct { gk_i64 base, first, end; int descending; } gk_select_part;

/* Elements that a thread loads before it looks at the first. */
#define GK_SELECT_AHEAD 8
/* The keys of elements i, i + GK_BLOCK, ...; past the end, of the last one again. */
GK_FN void gk_select_keys(gk_key k[GK_SELECT_AHEAD], GK_GLOBAL const gk_t* x, gk_select_part p, gk_i64 i)
{
    gk_b b[GK_SELECT_AHEAD];
    GK_UNROLL for (int u = 0; u < GK_SELECT_AHEAD; u++) {
        gk_i64 e = i + u * GK_BLOCK;
        b[u] = gk_bits_at(x, p.base + (e < p.end ? e : p.end - 1));
    }
    GK_UNROLL for (int u = 0; u < GK_SELECT_AHEAD; u++) k[u] = gk_key_of(b[u], p.descending);
}

/* Elements of a part of which each thread finds its first, for a bound. */
#define GK_SAMPLE (32 * GK_BLOCK)
/* A key before which, or equal to which, are `count` elements at least: the count-th of the first keys that the threads find among GK_SAMPLE. */
GK_FN gk_key gk_select_bound(GK_GLOBAL const gk_t* x, gk_select_part p, int count, GK_LOCAL_PTR gk_key* keys)
{
    int t = gk_lid(), rank = 0;
    gk_key k[GK_SELECT_AHEAD], mine = GK_LAST;
    gk_i64 end = p.end - p.first < GK_SAMPLE ? p.end : p.first + GK_SAMPLE;
    for (gk_i64 i = p.first + t; i < end; i += GK_SELECT_AHEAD * GK_BLOCK) {
        gk_select_keys(k, x, p, i);
        GK_UNROLL for (int u = 0; u < GK_SELECT_AHEAD; u++)
            if (i + u * GK_BLOCK < end && k[u] < mine) mine = k[u];
    }
    keys[t] = mine;
    GK_BARRIER();
    for (int j = 0; j < GK_BLOCK; j++) rank += keys[j] < mine || (keys[j] == mine && j < t);
    if (rank == count - 1) keys[GK_BLOCK] = mine;
    GK_BARRIER();
    return keys[GK_BLOCK];
}

/* Collects all elements up to a bound in one pass, in any order, and returns their number; the rest of `pairs` comes last. 0 where a thread meets
 * more than GK_SORT_EACH of them. `keys` holds GK_BLOCK + 1. */
GK_FN int gk_select_few(GK_GLOBAL const gk_t* x, gk_select_part p, int count, GK_LOCAL_PTR gk_pair* pairs, GK_LOCAL_PTR gk_key* keys,
                        GK_LOCAL_PTR gk_u32* tmp)
{
    int t = gk_lid(), c = 0;
    gk_key bound = gk_select_bound(x, p, count, keys), k[GK_SELECT_AHEAD];
    gk_pair v[GK_SORT_EACH];
    for (gk_i64 i = p.first + t; i < p.end; i += GK_SELECT_AHEAD * GK_BLOCK) {
        gk_select_keys(k, x, p, i);
        GK_UNROLL for (int u = 0; u < GK_SELECT_AHEAD; u++) {
            if (i + u * GK_BLOCK < p.end && k[u] <= bound) {
                if (c < GK_SORT_EACH) pairs[c * GK_BLOCK + t] = gk_pair_of(k[u], (gk_u32)(i + u * GK_BLOCK));
                c++;
            }
        }
    }
    int bank = gk_sums_to(c > GK_SORT_EACH ? 0x10000u : (gk_u32)c, tmp);
    gk_u32 total = tmp[bank + GK_BLOCK - 1], to = tmp[bank + t] - (gk_u32)c;
    GK_UNROLL for (int j = 0; j < GK_SORT_EACH; j++) v[j] = pairs[j * GK_BLOCK + t];
    GK_BARRIER();
    GK_UNROLL for (int j = 0; j < GK_SORT_EACH; j++) pairs[j * GK_BLOCK + t] = gk_pair_of(GK_LAST, 0xffffffffu);
    GK_BARRIER();
    if (total < 0x10000u) {
        GK_UNROLL for (int j = 0; j < GK_SORT_EACH; j++)
            if (j < c) pairs[to + (gk_u32)j] = v[j];
    }
    GK_BARRIER();
    return total < 0x10000u ? (int)total : 0;
}

/* The count-th key, digit by digit; in `want`, how many of those equal to it are among the first. `found` holds two. */
GK_FN gk_key gk_select_digits(GK_GLOBAL const gk_t* x, gk_select_part p, gk_u32* want, GK_LOCAL_PTR gk_u32* bins, GK_LOCAL_PTR gk_u32* tmp,
                              GK_LOCAL_PTR gk_u32* found)
{
    int t = gk_lid();
    gk_key known = 0, digits = 0;
    for (int shift = GK_SORT_WIDTH - 8; shift >= 0; shift -= 8) {
        bins[t] = 0u;
        GK_BARRIER();
        for (gk_i64 i = p.first + t; i < p.end; i += GK_BLOCK) {
            gk_key k = gk_key_of(gk_bits_at(x, p.base + i), p.descending);
            if (((k ^ known) & digits) == 0) gk_local_add(bins + ((gk_u32)(k >> shift) & 0xffu), 1u);
        }
        GK_BARRIER();
        gk_u32 own = bins[t];
        int bank = gk_sums_to(own, tmp);
        gk_u32 upto = tmp[bank + t];
        if (upto >= *want && upto - own < *want) {
            found[0] = (gk_u32)t;
            found[1] = *want - (upto - own);
        }
        GK_BARRIER();
        known |= (gk_key)found[0] << shift;
        digits |= (gk_key)0xff << shift;
        *want = found[1];
        GK_BARRIER();
    }
    return known;
}

/* Collects what lies before the key `known`, and behind that the first `want` of its equals; `ahead` are before it. */
GK_FN void gk_select_known(GK_GLOBAL const gk_t* x, gk_select_part p, gk_key known, gk_u32 want, gk_u32 ahead, GK_LOCAL_PTR gk_pair* pairs,
                           GK_LOCAL_PTR gk_u32* tmp)
{
    int t = gk_lid();
    gk_u32 less = 0u, equal = 0u;
    for (gk_i64 at = p.first; at < p.end; at += 4 * GK_BLOCK) {
        gk_i64 i0 = at + t * 4;
        gk_u32 c = 0u;
        for (int u = 0; u < 4; u++) {
            if (i0 + u < p.end) {
                gk_key k = gk_key_of(gk_bits_at(x, p.base + i0 + u), p.descending);
                if (k < known) c += 1u;
                if (k == known) c += 0x10000u;
            }
        }
        int bank = gk_sums_to(c, tmp);
        gk_u32 total = tmp[bank + GK_BLOCK - 1], before = tmp[bank + t] - c, to_less = less + (before & 0xffffu), to_equal = equal + (before >> 16);
        for (int u = 0; u < 4; u++) {
            if (i0 + u < p.end) {
                gk_key k = gk_key_of(gk_bits_at(x, p.base + i0 + u), p.descending);
                if (k < known) pairs[to_less++] = gk_pair_of(k, (gk_u32)(i0 + u));
                if (k == known && to_equal++ < want) pairs[ahead + to_equal - 1u] = gk_pair_of(k, (gk_u32)(i0 + u));
            }
        }
        less += total & 0xffffu;
        equal += total >> 16;
        GK_BARRIER();
    }
}

/* The `count` first of part s of each row in order, to y, index [rows, splits, count]. What is not behind a bound, found from a sample, is collected
 * and sorted; where that is too much, or count exceeds the threads, the count-th key is found digit by digit first, and what lies before it and the
 * first of its equals are collected. n is the power of two from GK_SORT_EACH on that holds `count`. The parts of a row have cols / splits elements,
 * give or take one, and at least `count`. Launch: one block per part. */
GK_KERNEL(sort_select)(GK_IN(gk_t, x), GK_IN(int, from), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 cols, int splits, int count, int n,
                        int descending, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, from); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    GK_LOCAL gk_pair pairs[GK_PAIRS];
    GK_LOCAL gk_key keys[GK_BLOCK + 1];
    GK_LOCAL gk_u32 bins[GK_BLOCK];
    GK_LOCAL gk_u32 tmp[2 * GK_BLOCK];
    GK_LOCAL gk_u32 found[2];
    int t = gk_lid(), s = gk_bid(0) % splits, mine = t * GK_SORT_EACH, few = 0;
    gk_select_part p;
    p.base = (gk_i64)(gk_bid(0) / splits) * cols;
    p.first = cols * s / splits;
    p.end = cols * (s + 1) / splits;
    p.descending = descending;
    GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) pairs[mine + k] = gk_pair_of(GK_LAST, 0xffffffffu);
    GK_BARRIER();
    if (count <= GK_BLOCK) few = gk_select_few(x, p, count, pairs, keys, tmp);
    if (few > 0) {
        for (n = GK_SORT_EACH; n < few;) n *= 2;
    } else {
        gk_u32 want = (gk_u32)count;
        gk_key known = gk_select_digits(x, p, &want, bins, tmp, found);
        gk_select_known(x, p, known, want, (gk_u32)count - want, pairs, tmp);
    }
    GK_BARRIER();
    gk_pair v[GK_SORT_EACH];
    GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) v[k] = pairs[mine + k];
    GK_BARRIER();
    gk_sort_runs(v, n, pairs);
    GK_UNROLL for (int k = 0; k < GK_SORT_EACH; k++) pairs[mine + k] = v[k];
    GK_BARRIER();
    for (int e = t; e < count; e += GK_BLOCK) {
        gk_i64 i = p.base + gk_place_of(pairs[e]), at = gk_place_of(pairs[e]);
        if (from) at = (gk_u32)from[i];
        GK_SORT_EMIT((gk_i64)gk_bid(0) * count + e, i, at);
    }
}

/* Elements of a thread that are on their way at a time. */
#define GK_SORT_DEPTH 4

/* keys[i] = the key of x[i]. Launch: grid-stride over GK_SORT_DEPTH elements each. */
GK_KERNEL(sort_keys)(GK_IN(gk_t, x), GK_OUT(gk_key, keys), gk_i64 n, int descending)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_key, keys);
    gk_i64 step = gk_gsize();
    for (gk_i64 first = gk_gid(); first < n; first += GK_SORT_DEPTH * step) {
        gk_b bits[GK_SORT_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_SORT_DEPTH; u++) bits[u] = first + u * step < n ? gk_bits_at(x, first + u * step) : 0;
        GK_UNROLL for (int u = 0; u < GK_SORT_DEPTH; u++)
            if (first + u * step < n) keys[first + u * step] = gk_key_of(bits[u], descending);
    }
}

/* The bits whose key is k; of keys that several have, those of x[p]. */
GK_FN gk_b gk_bits_of(gk_key k, int descending, GK_GLOBAL const gk_t* x, gk_i64 p)
{
    if (descending) k ^= GK_LAST;
#if GK_IS_FLOAT
    if (k == GK_LAST || k == GK_SORT_SIGN) return gk_bits_at(x, p);
    return (gk_b)(k & GK_SORT_SIGN ? k ^ GK_SORT_SIGN : k ^ GK_LAST);
#elif GK_DTYPE != GK_U8
    return (gk_b)(k ^ GK_SORT_SIGN);
#else
    return (gk_b)k;
#endif
}

/* The first `keep` of each row of sorted keys back as values and positions within the row. What a key does not tell, which zero and which NaN, is
 * read from x. y or index may be null. Launch: grid-stride over GK_SORT_DEPTH places of [rows, keep] each. */
GK_KERNEL(sort_finish)(GK_IN(gk_key, keys), GK_IN(int, positions), GK_IN(gk_t, x), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 n, gk_i64 cols,
                       gk_i64 keep, int descending, int wide)
{
    GK_BIND_IN(gk_key, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    gk_i64 step = gk_gsize();
    for (gk_i64 first = gk_gid(); first < n; first += GK_SORT_DEPTH * step) {
        gk_i64 p[GK_SORT_DEPTH], start[GK_SORT_DEPTH];
        gk_key k[GK_SORT_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_SORT_DEPTH; u++) {
            gk_i64 i = first + u * step, row = n <= 0x7fffffff ? (gk_i64)((gk_u32)i / (gk_u32)keep) : i / keep;
            start[u] = row * cols;
            p[u] = i < n ? (gk_i64)(gk_u32)positions[start[u] + i - row * keep] : 0;
            k[u] = y && i < n ? keys[start[u] + i - row * keep] : 0;
        }
        GK_UNROLL for (int u = 0; u < GK_SORT_DEPTH; u++) {
            gk_i64 i = first + u * step;
            if (i >= n) continue;
            if (index) gk_store_index(index, i, wide, p[u] - start[u]);
            if (y) ((GK_GLOBAL gk_b*)y)[i] = gk_bits_of(k[u], descending, x, p[u]);
        }
    }
}

/* dx[.., index[e], ..] (+)= dy[e] for [outer, keep, inner] positions e of [outer, size, inner]. Distinct along the axis, so each place has one
 * writer. Launch: grid-stride over dy. */
#if GK_IS_FLOAT
// Units: FLOATS64
GK_KERNEL(sort_scatter)(GK_IN(gk_t, dy), GK_IN(int, index), GK_OUT(gk_t, dx), GK_OUT(int, err), gk_i64 n, gk_i64 keep, gk_i64 size, gk_i64 inner,
                         int wide, int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, index); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(int, err);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 o, in, i = gk_index(index, e, wide);
        if (n <= 0x7fffffff) {
            gk_u32 row = (gk_u32)e / (gk_u32)inner;
            in = (gk_u32)e - row * (gk_u32)inner;
            o = row / (gk_u32)keep;
        } else {
            gk_i64 row = e / inner;
            in = e - row * inner;
            o = row / keep;
        }
        if (i < 0 || i >= size) gk_report(err, code);
        else gk_put(dx, (o * size + i) * inner + in, gk_bits_at(dy, e), accumulate);
    }
}
#endif

/* Edges that a block holds as keys in local memory where all values share them, and where each lies: halves of a row are a power of two apart, which
 * without gaps would be one bank. Values that a thread searches for at a time. */
#define GK_SORT_EDGES 2048
#define GK_EDGE_AT(i) ((i) + (i) / 32)
#define GK_SEARCHES 4

/* sort_search of edges in local memory. Each step looks at the last edge of the next block of a power of two. */
GK_FN void gk_search_shared(GK_GLOBAL const gk_t* values, GK_GLOBAL int* index, gk_i64 n, int edges, int right, int wide,
                            GK_LOCAL_PTR const gk_key* keys)
{
    int top = 1;
    while (2 * top <= edges) top *= 2;
    for (gk_i64 at = (gk_i64)gk_bid(0) * (GK_BLOCK * GK_SEARCHES) + gk_lid(); at < n; at += gk_gsize() * GK_SEARCHES) {
        gk_key v[GK_SEARCHES];
        int lo[GK_SEARCHES];
        GK_UNROLL for (int u = 0; u < GK_SEARCHES; u++) {
            gk_i64 i = at + u * GK_BLOCK;
            v[u] = gk_key_of(gk_bits_at(values, i < n ? i : n - 1), 0);
            lo[u] = 0;
        }
        for (int step = top; step > 0; step >>= 1) {
            GK_UNROLL for (int u = 0; u < GK_SEARCHES; u++) {
                int next = lo[u] + step;
                gk_key e = next <= edges ? keys[GK_EDGE_AT(next - 1)] : GK_LAST;
                if (next <= edges && (e < v[u] || (right && e == v[u]))) lo[u] = next;
            }
        }
        GK_UNROLL for (int u = 0; u < GK_SEARCHES; u++) {
#if GK_IS_FLOAT
            if (v[u] == GK_LAST) lo[u] = edges;
#endif
            if (at + u * GK_BLOCK < n) gk_store_index(index, at + u * GK_BLOCK, wide, (gk_i64)lo[u]);
        }
    }
}

// Units: ALL
/* index[i] = how many of its row's sorted edges are before values[i]: those below it, with `right` those not above it. NaN is behind everything.
 * A row of values has `per` elements and edges of its own; per = 0: all share them, and up to GK_SORT_EDGES of them are held in local memory. Launch:
 * grid-stride over values. */
GK_KERNEL(sort_search)(GK_IN(gk_t, sorted), GK_IN(gk_t, values), GK_OUT(int, index), gk_i64 n, gk_i64 edges, gk_i64 per, int right, int wide)
{
    GK_BIND_IN(gk_t, sorted); GK_BIND_IN(gk_t, values); GK_BIND_OUT(int, index);
    GK_LOCAL gk_key keys[GK_EDGE_AT(GK_SORT_EDGES)];
    if (per == 0 && edges <= GK_SORT_EDGES) {
        for (int i = gk_lid(); i < (int)edges; i += GK_BLOCK) keys[GK_EDGE_AT(i)] = gk_key_of(gk_bits_at(sorted, i), 0);
        GK_BARRIER();
        gk_search_shared(values, index, n, (int)edges, right, wide, keys);
        n = 0;
    }
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 lo = 0, hi = edges, base = 0;
        gk_key v = gk_key_of(gk_bits_at(values, i), 0);
        if (per > 0) base = (n <= 0x7fffffff ? (gk_i64)((gk_u32)i / (gk_u32)per) : i / per) * edges;
#if GK_IS_FLOAT
        if (v == GK_LAST) lo = edges;
#endif
        while (lo < hi) {
            gk_i64 mid = lo + (hi - lo) / 2;
            gk_key e = gk_key_of(gk_bits_at(sorted, base + mid), 0);
            if (e < v || (right && e == v)) lo = mid + 1;
            else hi = mid;
        }
        gk_store_index(index, i, wide, lo);
    }
}
