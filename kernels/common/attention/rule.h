/* Which keys a query of attention sees, and how products become scores.
 *
 *   gk_span   the sequence, or part of the batch, that a tile of `side` queries or keys belongs to
 *   gk_rule   factor, soft cap, bias, mask, window and dropout of one head of it
 *   gk_sees, gk_keeps   whether query i sees key j, whether dropout keeps what it sees
 */

/* ---- sequences --------------------------------------------------------------------------------------------------------------- */

/* Dims parameter of all kernels: size = {batches or packed sequences, query heads, key heads, Lq, Lk, D, Dv}. */

/* Tile number `tile` of batch b of the tensors, or of packed sequences: the first query and key and their numbers. */
typedef struct { int b, tile, q0, lq, k0, lk, keys; } gk_span;

GK_FN gk_span gk_span_of(int b, int tile, const int side, int by_keys, GK_GLOBAL const int* lengths, GK_GLOBAL const int* cu_q, GK_GLOBAL const int* cu_k,
                         gk_dims size, GK_GLOBAL int* err, int code)
{
    gk_span s;
    s.b = b; s.tile = tile; s.q0 = 0; s.k0 = 0; s.lq = (int)size.v[3]; s.lk = (int)size.v[4]; s.keys = s.lk;
    if (lengths) {
        int n = lengths[b];
        s.keys = n < 0 ? 0 : n < s.lk ? n : s.lk;
    }
    if (cu_q) {
        int n = (int)size.v[0], queries = s.lq, keys = s.lk, q1 = 0, k1 = 0, found = 0, bad = cu_q[0] != 0 || cu_k[0] != 0;
        /* Number n is what lies behind all sequences: queries without keys, keys without queries. */
        for (int i = 0; i <= n && !found; i++) {
            int q = queries, k = keys;
            if (i < n) { q = cu_q[i + 1]; k = cu_k[i + 1]; }
            s.q0 = q1; s.k0 = k1;
            if (q < q1 || q > queries) { bad = 1; q = q1; }
            if (k < k1 || k > keys) { bad = 1; k = k1; }
            s.lq = i == n && by_keys ? 0 : q - q1;
            s.lk = i == n && !by_keys ? 0 : k - k1;
            q1 = q; k1 = k;
            int tiles = ((by_keys ? s.lk : s.lq) + side - 1) / side;
            found = s.tile < tiles;
            if (!found) s.tile -= tiles;
        }
        if (!found) { s.tile = 0; s.lq = 0; s.lk = 0; }
        s.keys = s.lk;
        if (bad && gk_lid() == 0) gk_report(err, code);
    }
    return s;
}

/* ---- scores ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    GK_GLOBAL const gk_t* bias;
    GK_GLOBAL const gk_u8* mask;
    gk_i64 bi, bj, mi, mj; /* their steps by query and key */
    gk_f scale, cap, kept;
    int rows, keys, low, high; /* visible: j < keys and low <= j - i <= high */
    gk_u64 first, stream, seed;
    gk_i64 at, line; /* dropout: element of (0, 0), and per query */
    float keep;
} gk_rule;

/* sm = steps of bias and mask by batch, head, query, key. A bound of 2^30 is none. */
GK_FN gk_rule gk_rule_of(gk_span s, int h, GK_GLOBAL const gk_t* bias, GK_GLOBAL const gk_u8* mask, gk_dims size, gk_dims sm, gk_f scale, gk_f cap,
                         int left, int right, int bottom, gk_i64 seed, gk_i64 stream, gk_i64 offset, GK_GLOBAL const gk_i64* more, float keep,
                         gk_f kept)
{
    gk_rule r;
    gk_i64 none = 1 << 30, shift = bottom ? s.lk - s.lq : 0, low = shift - left, high = shift + right;
    r.bias = bias; r.mask = mask;
    if (bias) r.bias = bias + s.b * sm.v[0] + h * sm.v[1];
    if (mask) r.mask = mask + s.b * sm.v[4] + h * sm.v[5];
    r.bi = sm.v[2]; r.bj = sm.v[3]; r.mi = sm.v[6]; r.mj = sm.v[7];
    r.scale = scale; r.cap = cap; r.kept = kept; r.keep = keep;
    r.rows = s.lq; r.keys = s.keys;
    r.low = left >= none || low < -none ? (int)-none : (int)low;
    r.high = right >= none || high > none ? (int)none : (int)high;
    r.first = (gk_u64)offset;
    if (more) r.first += (gk_u64)more[0];
    r.stream = (gk_u64)stream; r.seed = (gk_u64)seed;
    r.line = size.v[4];
    r.at = (((gk_i64)s.b * size.v[1] + h) * size.v[3] + s.q0) * r.line + s.k0;
    return r;
}

/* Whether query i sees key j. */
GK_FN int gk_sees(const gk_rule* r, int i, int j)
{
    int ok = i < r->rows && j < r->keys && j - i >= r->low && j - i <= r->high;
    if (ok && r->mask) ok = r->mask[i * r->mi + j * r->mj] != 0;
    return ok;
}

/* Whether each of `queries` from i0 on sees each of `keys` from j0 on. */
GK_FN int gk_sees_all(const gk_rule* r, int i0, int queries, int j0, int keys)
{
    return !r->mask && i0 + queries <= r->rows && j0 + keys <= r->keys && j0 - i0 - queries + 1 >= r->low && j0 + keys - 1 - i0 <= r->high;
}

/* Word of element e of a sequence that begins at block `first`. */
GK_FN_CALL gk_u32 gk_word_of(gk_u64 e, gk_u64 first, gk_u64 stream, gk_u64 seed)
{
    gk_words w = gk_philox(first + (e >> 2), stream, seed);
    int k = (int)(e & 3ul);
    return k == 0 ? w.w[0] : k == 1 ? w.w[1] : k == 2 ? w.w[2] : w.w[3];
}

/* Whether dropout keeps the probability of query i and key j. */
GK_FN int gk_keeps(const gk_rule* r, int i, int j)
{
    return gk_unit(gk_word_of((gk_u64)(r->at + i * r->line + j), r->first, r->stream, r->seed)) < r->keep;
}

/* P from a score and LSE. A row without visible keys has none; NaN in a row makes all of it NaN. */
GK_FN gk_f gk_prob(gk_f s, gk_f lse) { return lse == -GK_INF ? GK_R(0.0) : gk_exp(s - lse); }
/* dS from P, the gradient of P and delta; what P does not reach stays 0. */
GK_FN gk_f gk_dscore(gk_f p, gk_f dp, gk_f delta) { return p == GK_R(0.0) ? GK_R(0.0) : p * (dp - delta); }

/* Keys that `queries` from i0 on can see: first tile of 64, and end. */
GK_FN int gk_first_key(const gk_rule* r, int i0) { int j = i0 + r->low; return j > 0 ? j / 64 * 64 : 0; }
GK_FN int gk_end_key(const gk_rule* r, int i0, const int queries)
{
    int last = i0 + queries < r->rows ? i0 + queries - 1 : r->rows - 1;
    gk_i64 end = (gk_i64)last + r->high + 1;
    return end < r->keys ? (int)end : r->keys;
}
/* Queries that can see `keys` from j0 on: low <= j - i <= high. */
GK_FN int gk_first_query(const gk_rule* r, int j0) { int i = j0 - r->high; return i > 0 ? i / 64 * 64 : 0; }
GK_FN int gk_end_query(const gk_rule* r, int j0, const int keys)
{
    int last = j0 + keys < r->keys ? j0 + keys - 1 : r->keys - 1;
    gk_i64 end = (gk_i64)last - r->low + 1;
    return j0 >= r->keys ? 0 : end < r->rows ? (int)end : r->rows;
}
