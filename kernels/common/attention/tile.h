/* Tiles of attention. A block works on 64 x 64 scores; thread (r, c) = (lid / 16, lid % 16) holds the 4 x 4 of them at rows 4r and columns 4c.
 *
 *   gk_dots    scores of 64 rows of one matrix with 64 rows of another: products along their rows
 *   gk_weigh   adds to the accumulators the rows of a matrix, weighted by a tile: 64 x GK_ATTN_WIDTH numbers, of which (r, c) holds rows 4r ... 4r +
 * 3 and
 *              columns 64g + 4c ... 64g + 4c + 3 (needs GK_ATTN_WIDTH, a multiple of 64)
 *   gk_span    the sequence, or part of the batch, that a tile belongs to
 *   gk_rule    how products become scores: factor, softcap, bias, visibility, dropout
 *
 * Both products pass through `tile`, a GK_LOCAL array of GK_ATTN_TILE slots. Rows of operands have a step of 1 between neighbours; `wide` allows
 * loads of 16 bytes. What lies beyond the operands counts as 0.
 */

/* One block at a time would leave an SM idle at every barrier. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 2

typedef struct { gk_f v[4]; } gk_four;

/* Slots are 16 bytes, so that four numbers are moved at once. Numbers are addressed singly; runs of four begin at a multiple of four. */
#if GK_DTYPE == GK_F64
typedef double gk_slot;
#define GK_ATTN_SLOTS(n) (n)
#define gk_attn_slot_put(t, i, x) ((t)[i] = (x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w) { t[i] = x; t[i + 1] = y; t[i + 2] = z; t[i + 3] = w; }
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_four r;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = t[i + u];
    return r;
}
#define GK_ATTN_DEPTH 16 /* products per step of gk_dots */
#else
typedef gk_raw16 gk_slot;
#define GK_ATTN_SLOTS(n) ((n) / 4)
#define gk_attn_slot_put(t, i, x) (((GK_LOCAL_PTR gk_u32*)(t))[i] = gk_as_u32(x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w)
{
    t[i / 4] = gk_make16(gk_as_u32(x), gk_as_u32(y), gk_as_u32(z), gk_as_u32(w));
}
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_raw16 q = t[i / 4];
    gk_four r;
    r.v[0] = gk_as_f32(q.x); r.v[1] = gk_as_f32(q.y); r.v[2] = gk_as_f32(q.z); r.v[3] = gk_as_f32(q.w);
    return r;
}
#define GK_ATTN_DEPTH 32
#endif
#define GK_ATTN_TILE GK_ATTN_SLOTS(128 * GK_ATTN_DEPTH)

/* GK_W numbers of a row from column `at`, 0 from column `end` on. */
GK_FN gk_vec gk_run(GK_GLOBAL const gk_t* p, int at, int end, int wide)
{
    gk_vec x;
    if (wide && at + GK_W <= end) return gk_loadv(p, at);
    GK_UNROLL for (int u = 0; u < GK_W; u++) {
        x.v[u] = GK_R(0.0);
        if (at + u < end) x.v[u] = gk_load(p, at + u);
    }
    return x;
}

/* Place of row 4g + u at depth d in a transposed tile: the groups of four rows are exchanged so that both the stores of a few rows along their
 * depth and the loads of a depth along its rows spread over all banks. */
#define GK_ATTN_GROUP(d, g) ((d) * 64 + (((g) ^ (((d) >> 2) & 7)) << 2))

/* Columns d0 ... of 64 rows, transposed. */
GK_FN void gk_bring(GK_GLOBAL const gk_t* p, gk_i64 step, int rows, int wide, int d0, int depth, GK_LOCAL_PTR gk_slot* tile)
{
    GK_UNROLL for (int i = 0; i < 64 * GK_ATTN_DEPTH / GK_W / GK_BLOCK; i++) {
        int n = gk_lid() + i * GK_BLOCK, r = n / (GK_ATTN_DEPTH / GK_W), d = n % (GK_ATTN_DEPTH / GK_W) * GK_W;
        gk_vec x = gk_run(p + r * step, d0 + d, r < rows ? depth : 0, wide);
        GK_UNROLL for (int u = 0; u < GK_W; u++) gk_attn_slot_put(tile, GK_ATTN_GROUP(d + u, r >> 2) + (r & 3), x.v[u]);
    }
}

/* s[i][j] = a[4r + i] . b[4c + j] over `depth` columns. */
GK_FN void gk_dots(GK_GLOBAL const gk_t* a, gk_i64 as, int arows, int awide, GK_GLOBAL const gk_t* b, gk_i64 bs, int brows, int bwide, int depth,
                   GK_LOCAL_PTR gk_slot* tile, gk_f s[4][4])
{
    GK_LOCAL_PTR gk_slot* other = tile + GK_ATTN_SLOTS(64 * GK_ATTN_DEPTH);
    int r = gk_lid() / 16, c = gk_lid() % 16;
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) s[i][j] = GK_R(0.0);
    for (int d0 = 0; d0 < depth; d0 += GK_ATTN_DEPTH) {
        gk_bring(a, as, arows, awide, d0, depth, tile);
        gk_bring(b, bs, brows, bwide, d0, depth, other);
        GK_BARRIER();
        /* A few steps at a time: a longer run makes compilers load ahead until registers run out. */
        GK_ROLLED for (int e = 0; e < GK_ATTN_DEPTH; e += 8) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                int d = e + u;
                gk_four x = gk_slot_get4(tile, GK_ATTN_GROUP(d, r)), y = gk_slot_get4(other, GK_ATTN_GROUP(d, c));
                GK_UNROLL for (int i = 0; i < 4; i++)
                    GK_UNROLL for (int j = 0; j < 4; j++) s[i][j] += x.v[i] * y.v[j];
            }
        }
        GK_BARRIER();
    }
}

#ifdef GK_ATTN_WIDTH
#define GK_ATTN_GROUPS (GK_ATTN_WIDTH / 64)
/* Rows of the matrix per step, so that they and their weights fit. */
#define GK_ATTN_PART (GK_ATTN_DEPTH / GK_ATTN_GROUPS)

/* acc[i] += sum over n of w[4r + i][n] * m[n]: the first `rows` rows of m, of which `width` columns exist. */
GK_FN void gk_weigh(gk_f w[4][4], GK_GLOBAL const gk_t* m, gk_i64 step, int rows, int width, int wide, GK_LOCAL_PTR gk_slot* tile,
                    gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    GK_LOCAL_PTR gk_slot* mat = tile + GK_ATTN_SLOTS(64 * GK_ATTN_PART);
    int r = gk_lid() / 16, c = gk_lid() % 16;
    for (int n0 = 0; n0 < 64 && n0 < rows; n0 += GK_ATTN_PART) {
        int at = 4 * c - n0;
        if (at >= 0 && at < GK_ATTN_PART) {
            GK_UNROLL for (int j = 0; j < 4; j++) gk_slot_put4(tile, GK_ATTN_GROUP(at + j, r), w[0][j], w[1][j], w[2][j], w[3][j]);
        }
        GK_UNROLL for (int i = 0; i < GK_ATTN_PART * GK_ATTN_WIDTH / GK_W / GK_BLOCK; i++) {
            int n = gk_lid() + i * GK_BLOCK, row = n / (GK_ATTN_WIDTH / GK_W), col = n % (GK_ATTN_WIDTH / GK_W) * GK_W;
            gk_vec x = gk_run(m + (n0 + row) * step, col, n0 + row < rows ? width : 0, wide);
#if GK_W >= 4
            GK_UNROLL for (int u = 0; u < GK_W; u += 4) gk_slot_put4(mat, row * GK_ATTN_WIDTH + col + u, x.v[u], x.v[u + 1], x.v[u + 2], x.v[u + 3]);
#else
            GK_UNROLL for (int u = 0; u < GK_W; u++) gk_attn_slot_put(mat, row * GK_ATTN_WIDTH + col + u, x.v[u]);
#endif
        }
        GK_BARRIER();
        GK_ROLLED for (int e = 0; e < GK_ATTN_PART; e += 8) {
            GK_UNROLL for (int u = 0; u < 8; u++) {
                gk_four x = gk_slot_get4(tile, GK_ATTN_GROUP(e + u, r));
                GK_UNROLL for (int g = 0; g < GK_ATTN_GROUPS; g++) {
                    gk_four y = gk_slot_get4(mat, (e + u) * GK_ATTN_WIDTH + g * 64 + 4 * c);
                    GK_UNROLL for (int i = 0; i < 4; i++)
                        GK_UNROLL for (int k = 0; k < 4; k++) acc[i][g * 4 + k] += x.v[i] * y.v[k];
                }
            }
        }
        GK_BARRIER();
    }
}

GK_FN void gk_clear(gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    GK_UNROLL for (int i = 0; i < 4; i++)
        GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) acc[i][u] = GK_R(0.0);
}

/* Stores the accumulators times f into `rows` rows of `width` columns. */
GK_FN void gk_put(GK_GLOBAL gk_t* y, gk_i64 step, int rows, int width, gk_f f, int accumulate, gk_f acc[4][4 * GK_ATTN_GROUPS])
{
    int r = gk_lid() / 16, c = gk_lid() % 16;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        GK_UNROLL for (int u = 0; u < 4 * GK_ATTN_GROUPS; u++) {
            int row = 4 * r + i, col = u / 4 * 64 + 4 * c + u % 4;
            if (row < rows && col < width) {
                gk_i64 at = row * step + col;
                gk_store(y, at, accumulate ? gk_load(y, at) + f * acc[i][u] : f * acc[i][u]);
            }
        }
    }
}
#endif

/* ---- sequences --------------------------------------------------------------------------------------------------------------- */

/* Dims parameter of all kernels: size = {batches or packed sequences, query heads, key heads, Lq, Lk, D, Dv}. */

/* Tile number `tile` of batch b of the tensors, or of packed sequences: the first query and key and their numbers. */
typedef struct { int b, tile, q0, lq, k0, lk, keys; } gk_span;

GK_FN gk_span gk_span_of(int b, int tile, int by_keys, GK_GLOBAL const int* lengths, GK_GLOBAL const int* cu_q, GK_GLOBAL const int* cu_k,
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
            int tiles = ((by_keys ? s.lk : s.lq) + 63) / 64;
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

/* The thread's 16 numbers of a tile whose first query and key are i0 and j0: number 4u + v lies at row 4r + u, column 4c + v. Rows are queries, or
 * keys with `flip`. A set of them is 16 bits. */
#define GK_QUERY(i0, u, v) ((i0) + 4 * (flip ? gk_lid() % 16 : gk_lid() / 16) + (flip ? (v) : (u)))
#define GK_KEY(j0, u, v) ((j0) + 4 * (flip ? gk_lid() / 16 : gk_lid() % 16) + (flip ? (u) : (v)))
#define GK_HAS(bits, u, v) ((bits) >> (4 * (u) + (v)) & 1u)

/* Those that are visible. */
GK_FN gk_u32 gk_visible(gk_rule r, int i0, int j0, const int flip)
{
    gk_u32 bits = 0u;
    if (!r.mask && i0 + 64 <= r.rows && j0 + 64 <= r.keys && j0 - i0 - 63 >= r.low && j0 - i0 + 63 <= r.high) return 0xffffu;
    GK_ROLLED for (int u = 0; u < 4; u++) {
        GK_UNROLL for (int v = 0; v < 4; v++) {
            int i = GK_QUERY(i0, u, v), j = GK_KEY(j0, u, v), ok = i < r.rows && j < r.keys && j - i >= r.low && j - i <= r.high;
            if (ok && r.mask) ok = r.mask[i * r.mi + j * r.mj] != 0;
            bits |= (gk_u32)ok << (4 * u + v);
        }
    }
    return bits;
}

/* Word of element e of a sequence that begins at block `first`. */
GK_FN_CALL gk_u32 gk_word_of(gk_u64 e, gk_u64 first, gk_u64 stream, gk_u64 seed)
{
    gk_words w = gk_philox(first + (e >> 2), stream, seed);
    int k = (int)(e & 3ul);
    return k == 0 ? w.w[0] : k == 1 ? w.w[1] : k == 2 ? w.w[2] : w.w[3];
}

/* Those that dropout keeps. */
GK_FN gk_u32 gk_kept(gk_rule r, int i0, int j0, const int flip)
{
    gk_u32 bits = 0u;
    GK_ROLLED for (int n = 0; n < 16; n++) {
        gk_u64 e = (gk_u64)(r.at + GK_QUERY(i0, n / 4, n % 4) * r.line + GK_KEY(j0, n / 4, n % 4));
        bits |= (gk_u32)(gk_unit(gk_word_of(e, r.first, r.stream, r.seed)) < r.keep) << n;
    }
    return bits;
}

/* Products become scores, -inf where invisible; `slope` is their derivative by scale * product. Loops one after another, so that few values live at
 * a time. */
GK_FN void gk_scores(gk_rule r, int i0, int j0, const int flip, gk_f x[4][4], gk_f slope[4][4])
{
    gk_u32 seen = gk_visible(r, i0, j0, flip);
    GK_UNROLL for (int u = 0; u < 4; u++)
        GK_UNROLL for (int v = 0; v < 4; v++) { x[u][v] *= r.scale; slope[u][v] = GK_R(1.0); }
    if (r.cap > GK_R(0.0)) {
        GK_UNROLL for (int u = 0; u < 4; u++) {
            GK_UNROLL for (int v = 0; v < 4; v++) {
                gk_f t = gk_tanh(x[u][v] / r.cap);
                x[u][v] = r.cap * t;
                slope[u][v] = GK_R(1.0) - t * t;
            }
        }
    }
    if (r.bias) {
        GK_UNROLL for (int u = 0; u < 4; u++)
            GK_UNROLL for (int v = 0; v < 4; v++)
                if (GK_HAS(seen, u, v)) x[u][v] += gk_load(r.bias, GK_QUERY(i0, u, v) * r.bi + GK_KEY(j0, u, v) * r.bj);
    }
    GK_UNROLL for (int u = 0; u < 4; u++)
        GK_UNROLL for (int v = 0; v < 4; v++)
            if (!GK_HAS(seen, u, v)) x[u][v] = -GK_INF;
}

/* P from a score and LSE. A row without visible keys has none; NaN in a row makes all of it NaN. */
GK_FN gk_f gk_prob(gk_f s, gk_f lse) { return lse == -GK_INF ? GK_R(0.0) : gk_exp(s - lse); }
/* dS from P, the gradient of P and delta; what P does not reach stays 0. */
GK_FN gk_f gk_dscore(gk_f p, gk_f dp, gk_f delta) { return p == GK_R(0.0) ? GK_R(0.0) : p * (dp - delta); }

/* Keys that queries i0 ... i0 + 63 can see: first tile of 64, and end. */
GK_FN int gk_first_key(gk_rule r, int i0) { int j = i0 + r.low; return j > 0 ? j / 64 * 64 : 0; }
GK_FN int gk_end_key(gk_rule r, int i0)
{
    int last = i0 + 63 < r.rows - 1 ? i0 + 63 : r.rows - 1;
    gk_i64 end = (gk_i64)last + r.high + 1;
    return end < r.keys ? (int)end : r.keys;
}
/* Queries that can see keys j0 ... j0 + 63: low <= j - i <= high. */
GK_FN int gk_first_query(gk_rule r, int j0) { int i = j0 - r.high; return i > 0 ? i / 64 * 64 : 0; }
GK_FN int gk_end_query(gk_rule r, int j0)
{
    int last = j0 + 63 < r.keys - 1 ? j0 + 63 : r.keys - 1;
    gk_i64 end = (gk_i64)last - r.low + 1;
    return j0 >= r.keys ? 0 : end < r.rows ? (int)end : r.rows;
}
