/* Attention of new tokens against a cache of keys and values, and the cache.
 *
 *   o = softmax(scale q K^T) V over the keys that a token sees: those up to its own position in its sequence (causal, bottom-right)
 *   LSE = ln sum e^score
 *
 * A block has one token, one head of the cache, up to `heads` (GK_DECODE_HEADS at most) of the query heads that share it, and one of `splits` runs of
 * keys. `lanes` threads side by side share a key, 8 elements each; every such group goes through keys of its own with a running maximum, sum and
 * result, and the block combines them at its end. With several splits decode_combine adds up what each leaves.
 * The cache is [B, Hkv, Lk, D], or with a table of blocks [blocks, block, Hkv, D]: key t of sequence b is slot t % block of block table[b, t / block].
 * size = {tokens, Hq, Hkv, Lq, D, Lk or block, blocks per sequence or 0, blocks of the cache}. Sums in gk_f. Deterministic: fixed trees. References: Dao (2023,
 * Flash-Decoding), Kwon et al. (2023, PagedAttention).
 */
#define GK_DECODE_EACH 8
#define GK_DECODE_HEADS 4

/* A token's sequence, its row of q and o for head 0, elements between heads, and the keys that it sees. */
typedef struct { gk_i64 b, row, step, keys; } gk_token;

GK_FN gk_token gk_token_of(GK_GLOBAL const int* lens, GK_GLOBAL const int* cu, GK_GLOBAL int* err, const gk_dims* size, gk_i64 sequences, gk_i64 t,
                             int code)
{
    gk_token r;
    gk_i64 most = size->v[6] ? size->v[5] * size->v[6] : size->v[5], fresh = size->v[3], at = 0, len;
    if (cu) {
        GK_SEEK(gk_i64, lo, sequences, cu[v] <= t)
        r.b = lo;
        at = t - cu[lo];
        fresh = (gk_i64)cu[lo + 1] - cu[lo];
        if (at < 0 || at >= fresh) gk_report(err, code);
    } else {
        r.b = t / fresh;
        at = t % fresh;
    }
    len = lens ? lens[r.b] : most;
    if (len < 0 || len > most || len < fresh) gk_report(err, code);
    len = len > most ? most : len;
    r.keys = len < fresh || at < 0 || at >= fresh ? 0 : at + len - fresh + 1;
    r.row = size->v[6] ? t * size->v[1] : r.b * size->v[1] * fresh + at;
    r.step = size->v[6] ? 1 : fresh;
    return r;
}

/* Elements of a row of `d` at `at` that a lane has; 0 beyond it. */
GK_FN void gk_decode_load(GK_GLOBAL const gk_t* p, gk_i64 at, int first, int d, int wide, gk_f v[GK_DECODE_EACH])
{
    if (wide) {
        GK_UNROLL for (int q = 0; q < GK_DECODE_EACH; q += GK_W) {
            gk_vec w = gk_loadv(p, at + first + q);
            GK_UNROLL for (int u = 0; u < GK_W; u++) v[q + u] = w.v[u];
        }
    } else {
        GK_UNROLL for (int u = 0; u < GK_DECODE_EACH; u++) {
            v[u] = GK_R(0.0);
            if (first + u < d) v[u] = gk_load(p, at + first + u);
        }
    }
}

/* Where key j of a sequence begins, -1 for a block out of range. */
GK_FN gk_i64 gk_key_at(GK_GLOBAL const int* table, const gk_dims* size, gk_i64 b, gk_i64 head, gk_i64 j)
{
    gk_i64 d = size->v[4], each = size->v[5], block;
    if (!size->v[6]) return ((b * size->v[2] + head) * each + j) * d;
    block = table[b * size->v[6] + j / each];
    if (block < 0 || block >= size->v[7]) return -1;
    return ((block * each + j % each) * size->v[2] + head) * d;
}

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

typedef struct { gk_f m[GK_DECODE_HEADS], l[GK_DECODE_HEADS], acc[GK_DECODE_HEADS][GK_DECODE_EACH]; } gk_running;

/* One more key with its value, without branches; a score of -inf has no weight. */
GK_FN void gk_running_add(gk_running* r, int h, gk_f s, const gk_f v[GK_DECODE_EACH])
{
    gk_f m = gk_max(r->m[h], s), base = m == -GK_INF ? GK_R(0.0) : m, old = gk_exp(r->m[h] - base), p = gk_exp(s - base);
    r->m[h] = m;
    r->l[h] = r->l[h] * old + p;
    GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) r->acc[h][e] = r->acc[h][e] * old + p * v[e];
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

/* A block: the keys of split s for query heads h0 .. of cache head `head`, `most` of which are computed and `heads` at most are there. */
GK_FN void gk_decode_block(const gk_decode_io* io, const gk_dims* size, gk_token at, gk_i64 head, gk_i64 h0, gk_i64 s, GK_LOCAL_PTR gk_f* tmp,
                           const int most)
{
    gk_running r;
    gk_f qs[GK_DECODE_HEADS][GK_DECODE_EACH];
    gk_i64 d = size->v[4], per = size->v[1] / size->v[2];
    int lanes = io->lanes, lane = gk_lid() % lanes, group = gk_lid() / lanes, groups = GK_BLOCK / lanes, first = lane * GK_DECODE_EACH;
    int whole = io->wide && first < d;
    gk_i64 run = (at.keys + io->splits - 1) / io->splits, j0 = s * run, j1 = j0 + run < at.keys ? j0 + run : at.keys;
    GK_UNROLL for (int h = 0; h < most; h++) {
        r.m[h] = -GK_INF;
        r.l[h] = GK_R(0.0);
        GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) { r.acc[h][e] = GK_R(0.0); qs[h][e] = GK_R(0.0); }
        if (h < io->heads && h0 + h < per) gk_decode_load(io->q, (at.row + (head * per + h0 + h) * at.step) * d, first, (int)d, whole, qs[h]);
    }
    for (gk_i64 base = j0; base < j1; base += groups) {
        gk_i64 j = base + group, from = -1;
        gk_f ks[GK_DECODE_EACH], vs[GK_DECODE_EACH], hidden = j < j1 ? GK_R(0.0) : -GK_INF;
        GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) { ks[e] = GK_R(0.0); vs[e] = GK_R(0.0); }
        if (j < j1) {
            from = gk_key_at(io->table, size, at.b, head, j);
            if (from < 0) gk_report(io->err, io->code);
        }
        if (from >= 0) {
            gk_decode_load(io->k, from, first, (int)d, whole, ks);
            gk_decode_load(io->v, from, first, (int)d, whole, vs);
        }
        GK_UNROLL for (int h = 0; h < most; h++) {
            gk_f dot = GK_R(0.0);
            GK_UNROLL for (int e = 0; e < GK_DECODE_EACH; e++) dot += qs[h][e] * ks[e];
            gk_running_add(&r, h, gk_group_sum(dot, tmp, lanes) * io->scale + hidden, vs);
        }
    }
    GK_UNROLL for (int h = 0; h < most; h++) {
        gk_f m = gk_block_max(r.m[h], tmp), f = r.m[h] == m ? GK_R(1.0) : gk_exp(r.m[h] - m), l, out;
        int there = h < io->heads && h0 + h < per, e = gk_lid() % lanes * GK_DECODE_EACH + gk_lid() / lanes;
        int mine = there && gk_lid() < lanes * GK_DECODE_EACH && e < d;
        gk_i64 row = at.row + (head * per + h0 + h) * at.step, to = (row * io->splits + s) * (d + 2);
        l = gk_block_sum(lane == 0 ? r.l[h] * f : GK_R(0.0), tmp);
        GK_UNROLL for (int i = 0; i < GK_DECODE_EACH; i++) r.acc[h][i] *= f;
        out = gk_over_groups(r.acc[h], tmp, lanes);
        if (io->part) {
            if (mine) io->part[to + e] = out;
            if (there && gk_lid() == 0) { io->part[to + d] = m; io->part[to + d + 1] = l; }
        } else {
            if (mine) gk_store(io->o, row * d + e, l > GK_R(0.0) ? out / l : out);
            if (there && gk_lid() == 0 && io->lse) io->lse[row] = m + gk_log(l);
        }
    }
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
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_DECODE_EACH];
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
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_DECODE_EACH];
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
            gk_f f = part[at + d] == m ? GK_R(1.0) : gk_exp(part[at + d] - m);
            out += f * part[at + i % d];
            l += f * part[at + d + 1];
        }
        gk_store(o, i, l > GK_R(0.0) ? out / l : out);
        if (lse && i % d == 0) lse[row] = m + gk_log(l);
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
