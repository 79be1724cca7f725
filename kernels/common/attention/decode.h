/* What the kernels of attention against a cache share: a token's sequence and keys, runs of GK_DECODE_EACH elements of a row, places of keys. */
#define GK_LOG2E GK_R(1.4426950408889634)
#define GK_LN2 GK_R(0.69314718055994531)
/* 2^x of what is at most 0: denormal powers may come out as 0. */
#if defined(GK_QUICK_EXP2) && GK_DTYPE != GK_F64
#define gk_power(x) gk_quick_exp2(x)
#else
#define gk_power(x) gk_exp2(x)
#endif

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

/* What a lane has of a row, as stored: loads of several rows shall be on their way before the first is decoded. */
typedef struct { gk_raw16 q[GK_DECODE_EACH / GK_W]; } gk_stored;

/* Elements of the row of `d` at `at`, 0 beyond it, and 0 where there is none (at < 0). */
GK_FN gk_stored gk_decode_fetch(GK_GLOBAL const gk_t* p, gk_i64 at, int first, int d, int wide)
{
    gk_stored r;
    GK_UNROLL for (int i = 0; i < GK_DECODE_EACH / GK_W; i++) {
        r.q[i] = gk_make16(0, 0, 0, 0);
        if (wide && at >= 0) r.q[i] = gk_load16((GK_GLOBAL const void*)(p + at + first + i * GK_W));
    }
    if (!wide && at >= 0) {
        GK_UNROLL for (int i = 0; i < GK_DECODE_EACH / GK_W; i++) {
            gk_vec v;
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                int e = first + i * GK_W + u;
                v.v[u] = GK_R(0.0);
                if (e < d) v.v[u] = gk_load(p, at + e);
            }
            r.q[i] = gk_encode16(v);
        }
    }
    return r;
}

GK_FN void gk_decode_stored(gk_stored s, gk_f v[GK_DECODE_EACH])
{
    GK_UNROLL for (int i = 0; i < GK_DECODE_EACH / GK_W; i++) {
        gk_vec w = gk_decode16(s.q[i]);
        GK_UNROLL for (int u = 0; u < GK_W; u++) v[i * GK_W + u] = w.v[u];
    }
}

/* Where key j of a sequence begins, -1 for a block out of range. */
GK_FN gk_i64 gk_key_at(GK_GLOBAL const int* table, const gk_dims* size, gk_i64 b, gk_i64 head, gk_i64 j)
{
    gk_i64 d = size->v[4], each = size->v[5], page, block;
    if (!size->v[6]) return ((b * size->v[2] + head) * each + j) * d;
    /* A sequence has less than 2^31 keys. */
    page = (gk_u32)j / (gk_u32)each;
    block = table[b * size->v[6] + page];
    if (block < 0 || block >= size->v[7]) return -1;
    return ((block * each + (j - page * each)) * size->v[2] + head) * d;
}
