/* Attention of new tokens against a cache of keys and values, and the cache.
 *
 *   o = softmax(scale q K^T) V over the keys that a token sees: those up to its own position in its sequence (causal, bottom-right)
 *   LSE = ln sum e^score
 *
 * A block has one token, one head of the cache, up to `heads` (GK_DECODE_HEADS at most) of the query heads that share it, and one of `splits` runs of
 * keys. `lanes` threads side by side share a key, 8 elements each; every such group goes through keys of its own, 2 or 4 at a time, with a running
 * maximum, sum and result, and the block combines them at its end. With several splits decode_combine adds up what each leaves.
 * The cache is [B, Hkv, Lk, D], or with a table of blocks [blocks, block, Hkv, D]: key t of sequence b is slot t % block of block table[b, t / block].
 * size = {tokens, Hq, Hkv, Lq, D, Lk or block, blocks per sequence or 0, blocks of the cache}. Sums in gk_f. Deterministic: fixed trees. References: Dao (2023,
 * Flash-Decoding), Kwon et al. (2023, PagedAttention).
 */
#define GK_DECODE_EACH 8
#define GK_DECODE_HEADS 4
/* Keys of a lane at a time, for so many heads, and the scores of those. */
#define GK_DECODE_KEYS(heads) ((heads) == 1 || GK_W == 8 ? 4 : 2)
#define GK_DECODE_SCORES 16

/* Latencies are hidden by a second block on an SM. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

#include "decode.h"

/* The sum over all groups of a lane's elements, in threads below lanes * 8: element t / lanes of lane t % lanes. */
GK_FN gk_f gk_over_groups(const gk_f v[GK_DECODE_EACH], GK_LOCAL_PTR gk_f* tmp, int lanes)
{
    int t = gk_lid();
    gk_f s = GK_R(0.0);
    GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) tmp[e * GK_BLOCK + t] = v[e];
    GK_BARRIER();
    if (t < lanes * GK_DECODE_EACH) {
        for (int g = t % lanes; g < GK_BLOCK; g += lanes) s += tmp[t / lanes * GK_BLOCK + g];
    }
    GK_BARRIER();
    return s;
}

/* The sums over the lanes of each group, of `count` values apart from each other. */
GK_FN void gk_over_lanes(gk_f v[GK_DECODE_SCORES], GK_LOCAL_PTR gk_f* tmp, int lanes, const int count)
{
#ifdef gk_shuffle_xor
    for (int m = 1; m < lanes; m <<= 1) {
        GK_UNROLL for (int i = 0; i < count; i++) v[i] += gk_shuffle_xor(v[i], m);
    }
#else
    int first = gk_lid() / lanes * lanes;
    GK_UNROLL for (int i = 0; i < count; i++) tmp[i * GK_BLOCK + gk_lid()] = v[i];
    GK_BARRIER();
    for (int i = gk_lid() % lanes; i < count; i += lanes) {
        gk_f s = GK_R(0.0);
        for (int k = 0; k < lanes; k++) s += tmp[i * GK_BLOCK + first + k];
        tmp[i * GK_BLOCK + first] = s;
    }
    GK_BARRIER();
    GK_UNROLL for (int i = 0; i < count; i++) v[i] = tmp[i * GK_BLOCK + first];
    GK_BARRIER();
#endif
}

/* Of each head the largest score so far, in powers of 2, the sum of the weights and the values weighted. */
typedef struct { gk_f m[GK_DECODE_HEADS], l[GK_DECODE_HEADS], acc[GK_DECODE_HEADS][GK_DECODE_EACH]; } gk_running;

/* Makes weights of the scores of `keys` more keys of a head, and turns what was summed to their maximum; a score of -inf has no weight. */
GK_FN void gk_running_turn(gk_running* r, int h, gk_f* s, const int keys)
{
    gk_f m = r->m[h], base, old;
    GK_UNROLL for (int u = 0; u < keys; u++) m = s[u] > m ? s[u] : m;
    base = m == -GK_INF ? GK_R(0.0) : m;
    old = gk_power(r->m[h] - base);
    r->m[h] = m;
    r->l[h] *= old;
    GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) r->acc[h][e] *= old;
    GK_UNROLL for (int u = 0; u < keys; u++) {
        s[u] = gk_power(s[u] - base);
        r->l[h] += s[u];
    }
}

typedef struct {
    GK_GLOBAL const gk_t* q;
    GK_GLOBAL const gk_t* k;
    GK_GLOBAL const gk_t* v;
    GK_GLOBAL const int* table;
    GK_GLOBAL gk_t* o;
    GK_GLOBAL gk_f* lse;
    GK_GLOBAL gk_f* part;
    GK_GLOBAL int* err;
    gk_f scale;
    int lanes, heads, splits, wide, code;
} gk_decode_io;

/* Queries of the block's heads, times the scale. */
GK_FN void gk_decode_queries(const gk_decode_io* io, const gk_dims* size, gk_token at, gk_i64 head, gk_i64 h0, int first, int whole,
                             gk_f q[GK_DECODE_HEADS][GK_DECODE_EACH], const int most)
{
    gk_i64 d = size->v[4], per = size->v[1] / size->v[2];
    GK_UNROLL for (int h = 0; h < most; h++) {
        GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) q[h][e] = GK_R(0.0);
        if (h < io->heads && h0 + h < per) {
            gk_decode_stored(gk_decode_fetch(io->q, (at.row + (head * per + h0 + h) * at.step) * d, first, (int)d, whole), q[h]);
        }
        GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) q[h][e] *= io->scale * GK_LOG2E;
    }
}

/* What the groups of a block have together. */
GK_FN void gk_decode_store(const gk_decode_io* io, const gk_dims* size, gk_token at, gk_i64 head, gk_i64 h0, gk_i64 s, gk_running* r,
                           GK_LOCAL_PTR gk_f* tmp, const int most)
{
    gk_i64 d = size->v[4], per = size->v[1] / size->v[2];
    int lanes = io->lanes, e = gk_lid() % lanes * GK_DECODE_EACH + gk_lid() / lanes;
    GK_UNROLL for (int h = 0; h < most; h++) {
        gk_f m = gk_block_max(r->m[h], tmp), f = r->m[h] == m ? GK_R(1.0) : gk_power(r->m[h] - m), l, out;
        int there = h < io->heads && h0 + h < per, mine = there && gk_lid() < lanes * GK_DECODE_EACH && e < d;
        gk_i64 row = at.row + (head * per + h0 + h) * at.step, to = (row * io->splits + s) * (d + 2);
        l = gk_block_sum(gk_lid() % lanes == 0 ? r->l[h] * f : GK_R(0.0), tmp);
        GK_UNROLL for (int i = 0; i < GK_DECODE_EACH; i++) r->acc[h][i] *= f;
        out = gk_over_groups(r->acc[h], tmp, lanes);
        if (io->part) {
            if (mine) io->part[to + e] = out;
            if (there && gk_lid() == 0) { io->part[to + d] = m; io->part[to + d + 1] = l; }
        } else {
            if (mine) gk_store(io->o, row * d + e, l > GK_R(0.0) ? out / l : out);
            if (there && gk_lid() == 0 && io->lse) io->lse[row] = m * GK_LN2 + gk_log(l);
        }
    }
}

/* A block: the keys of split s for query heads h0 .. of cache head `head`, `most` of which are computed and `heads` at most are there. */
GK_FN void gk_decode_block(const gk_decode_io* io, const gk_dims* size, gk_token at, gk_i64 head, gk_i64 h0, gk_i64 s, GK_LOCAL_PTR gk_f* tmp,
                           const int most)
{
    const int keys = GK_DECODE_KEYS(most);
    gk_running r;
    gk_f qs[GK_DECODE_HEADS][GK_DECODE_EACH];
    int lanes = io->lanes, d = (int)size->v[4], groups = GK_BLOCK / lanes, first = gk_lid() % lanes * GK_DECODE_EACH, whole = io->wide && first < d;
    gk_i64 run = (at.keys + io->splits - 1) / io->splits, j0 = s * run, j1 = j0 + run < at.keys ? j0 + run : at.keys;
    gk_decode_queries(io, size, at, head, h0, first, whole, qs, most);
    GK_UNROLL for (int h = 0; h < most; h++) {
        r.m[h] = -GK_INF;
        r.l[h] = GK_R(0.0);
        GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) r.acc[h][e] = GK_R(0.0);
    }
    for (gk_i64 base = j0 + gk_lid() / lanes; base - gk_lid() / lanes < j1; base += groups * keys) {
        gk_stored ks[4], vs[4];
        gk_f x[GK_DECODE_EACH], scores[GK_DECODE_SCORES];
        gk_i64 from[4];
        GK_UNROLL for (int u = 0; u < keys; u++) {
            gk_i64 j = base + u * groups;
            from[u] = -1;
            if (j < j1) {
                from[u] = gk_key_at(io->table, size, at.b, head, j);
                if (from[u] < 0) gk_report(io->err, io->code);
            }
        }
        GK_UNROLL for (int u = 0; u < keys; u++) ks[u] = gk_decode_fetch(io->k, from[u], first, d, whole);
        GK_UNROLL for (int u = 0; u < keys; u++) vs[u] = gk_decode_fetch(io->v, from[u], first, d, whole);
        GK_UNROLL for (int u = 0; u < keys; u++) {
            gk_decode_stored(ks[u], x);
            GK_UNROLL for (int h = 0; h < most; h++) {
                gk_f dot = GK_R(0.0);
                GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) dot += qs[h][e] * x[e];
                scores[h * keys + u] = dot;
            }
        }
        gk_over_lanes(scores, tmp, lanes, most * keys);
        GK_UNROLL for (int h = 0; h < most; h++) {
            GK_UNROLL for (int u = 0; u < keys; u++) {
                if (base + u * groups >= j1) scores[h * keys + u] = -GK_INF;
            }
            gk_running_turn(&r, h, scores + h * keys, keys);
        }
        GK_UNROLL for (int u = 0; u < keys; u++) {
            gk_decode_stored(vs[u], x);
            GK_UNROLL for (int h = 0; h < most; h++) {
                GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) r.acc[h][e] += scores[h * keys + u] * x[e];
            }
        }
    }
    gk_decode_store(io, size, at, head, h0, s, &r, tmp, most);
}

/* The block of a grid over splits, tiles of heads, heads of the cache, tokens. */
GK_FN void gk_decode_grid(const gk_decode_io* io, GK_GLOBAL const int* lens, GK_GLOBAL const int* cu, const gk_dims* size, gk_i64 sequences,
                          int tiles, GK_LOCAL_PTR gk_f* tmp, const int most)
{
    gk_i64 block = gk_bid(0) / io->splits, rest = block / tiles;
    gk_token at = gk_token_of(lens, cu, io->err, size, sequences, rest / size->v[2], io->code);
    gk_decode_block(io, size, at, rest % size->v[2], block % tiles * io->heads, gk_bid(0) % io->splits, tmp, most);
}

// Units: FLOATS64
/* o and lse, or with part [rows, splits, D + 2]: result, maximum, sum of each split. Launch: a block per token, cache head, `heads` query heads (with
 * `tiles` of them per cache head) and split. wide: rows are read by 16 bytes. */
GK_KERNEL(decode)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(int, table), GK_IN(int, lens), GK_IN(int, cu), GK_OUT(gk_t, o), GK_OUT(gk_f, lse),
                  GK_OUT(gk_f, part), GK_OUT(int, err), GK_DIMS(size), gk_i64 sequences, int lanes, int heads, int tiles, int splits, int wide,
                  gk_f scale, int code)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(int, table); GK_BIND_IN(int, lens); GK_BIND_IN(int, cu);
    GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_DECODE_SCORES];
    gk_decode_io io;
    io.q = q; io.k = k; io.v = v; io.table = table; io.o = o; io.lse = lse; io.part = part; io.err = err; io.scale = scale;
    io.lanes = lanes; io.heads = heads; io.splits = splits; io.wide = wide; io.code = code;
    gk_decode_grid(&io, lens, cu, &size, sequences, tiles, tmp, GK_DECODE_HEADS);
}

/* The same with one query head per head of the cache. */
GK_KERNEL(decode_one)(GK_IN(gk_t, q), GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(int, table), GK_IN(int, lens), GK_IN(int, cu), GK_OUT(gk_t, o), GK_OUT(gk_f, lse),
                  GK_OUT(gk_f, part), GK_OUT(int, err), GK_DIMS(size), gk_i64 sequences, int lanes, int heads, int tiles, int splits, int wide,
                  gk_f scale, int code)
{
    GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(int, table); GK_BIND_IN(int, lens); GK_BIND_IN(int, cu);
    GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, part); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_DECODE_SCORES];
    gk_decode_io io;
    io.q = q; io.k = k; io.v = v; io.table = table; io.o = o; io.lse = lse; io.part = part; io.err = err; io.scale = scale;
    io.lanes = lanes; io.heads = heads; io.splits = splits; io.wide = wide; io.code = code;
    gk_decode_grid(&io, lens, cu, &size, sequences, tiles, tmp, 1);
}

/* The results of all splits together. Launch: grid-stride over rows * D. */
GK_KERNEL(decode_combine)(GK_IN(gk_f, part), GK_OUT(gk_t, o), GK_OUT(gk_f, lse), gk_i64 rows, gk_i64 d, int splits)
{
    GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, o); GK_BIND_OUT(gk_f, lse);
    for (gk_i64 i = gk_gid(); i < rows * d; i += gk_gsize()) {
        gk_i64 row = i / d, from = row * splits * (d + 2);
        gk_f m = -GK_INF, l = GK_R(0.0), out = GK_R(0.0);
        for (int s = 0; s < splits; s++) m = gk_max(m, part[from + s * (d + 2) + d]);
        for (int s = 0; s < splits; s++) {
            gk_i64 at = from + s * (d + 2);
            gk_f f = part[at + d] == m ? GK_R(1.0) : gk_power(part[at + d] - m);
            out += f * part[at + i % d];
            l += f * part[at + d + 1];
        }
        gk_store(o, i, l > GK_R(0.0) ? out / l : out);
        if (lse && i % d == 0) lse[row] = m * GK_LN2 + gk_log(l);
    }
}

/* Rows of k and v [n, row] to the slots of the caches [slots, row]; -1 skips a token, and of several tokens for one slot the last is kept.
 * Launch: one block per token. */
GK_KERNEL(cache_append)(GK_IN(gk_t, k), GK_IN(gk_t, v), GK_IN(int, slots), GK_OUT(gk_t, k_cache), GK_OUT(gk_t, v_cache), GK_OUT(int, err), gk_i64 n,
                        gk_i64 row, gk_i64 count, int wide, int code)
{
    GK_BIND_IN(gk_t, k); GK_BIND_IN(gk_t, v); GK_BIND_IN(int, slots); GK_BIND_OUT(gk_t, k_cache); GK_BIND_OUT(gk_t, v_cache); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 i = gk_bid(0), slot = gk_index(slots, i, wide);
    gk_f later = GK_R(0.0);
    for (gk_i64 j = i + 1 + gk_lid(); j < n; j += GK_BLOCK) {
        if (gk_index(slots, j, wide) == slot) later = GK_R(1.0);
    }
    later = gk_block_max(later, tmp);
    if (slot < -1 || slot >= count) gk_report(err, code);
    if (slot >= 0 && slot < count && later == GK_R(0.0)) {
        for (gk_i64 c = gk_lid(); c < row; c += GK_BLOCK) {
            k_cache[slot * row + c] = k[i * row + c];
            v_cache[slot * row + c] = v[i * row + c];
        }
    }
}
