/* Embedding: the lookup of rows of whole 16 bytes (others are index_select's, index/index.c); its gradient from few ids, and for a sorted reduction
 * (sort/radix.c, index/index.c) the keys by which rows are sorted and the rows that it leaves; and the rescaling of rows beyond a norm. Deterministic.
 */
#include "common/prelude/coordinates.h"

#if GK_DTYPE == GK_I32 || GK_DTYPE == GK_I64
// Units: INDICES
/* keys[i] = ids[i]; `none` for the row `padding` (-1: there is none) and for an id outside [0, rows), which is reported.
 * Launch: grid-stride over the ids. */
GK_KERNEL(embedding_keys)(GK_IN(int, ids), GK_OUT(gk_t, keys), GK_OUT(int, err), gk_i64 n, int wide, gk_i64 rows, gk_i64 padding, gk_i64 none,
                          int code)
{
    GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, keys); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 id = gk_index(ids, i, wide);
        int bad = id < 0 || id >= rows;
        if (bad) gk_report(err, code);
        keys[i] = (gk_t)(bad || id == padding ? none : id);
    }
}
#endif

#if GK_DTYPE == GK_I32
/* 16 bytes per thread that are read before the first is written. */
#define GK_EMBED_DEPTH 2

// Units: I32
/* y[i] = table[ids[i]] for rows of `row` times 16 bytes; `by` divides by `row`. An id outside [0, rows) is reported and gives zeros. Items: the
 * 16 bytes of y, less than 2^31. Launch: blocks loop over runs of GK_EMBED_DEPTH * GK_BLOCK items. Reference: F.embedding. */
GK_KERNEL(embedding_rows)(GK_IN(gk_t, table), GK_IN(int, ids), GK_OUT(gk_t, y), GK_OUT(int, err), gk_i64 items, gk_i64 rows, int row, gk_i64 by,
                          int wide, int code)
{
    GK_BIND_IN(gk_t, table); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, err);
    gk_i64 step = (gk_i64)gk_nblocks(0) * (GK_EMBED_DEPTH * GK_BLOCK);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_EMBED_DEPTH * GK_BLOCK) + gk_lid(); first < items; first += step) {
        gk_i64 from[GK_EMBED_DEPTH];
        gk_raw16 q[GK_EMBED_DEPTH];
        GK_UNROLL for (int u = 0; u < GK_EMBED_DEPTH; u++) {
            gk_u32 at = (gk_u32)(first + u * GK_BLOCK);
            from[u] = -1;
            if (first + u * GK_BLOCK < items) {
                gk_u32 i = gk_quotient(at, by);
                gk_i64 id = gk_index(ids, i, wide);
                if (id >= 0 && id < rows) from[u] = id * row + (gk_i64)(at - i * (gk_u32)row);
                else gk_report(err, code);
            }
        }
        GK_UNROLL for (int u = 0; u < GK_EMBED_DEPTH; u++) {
            q[u] = gk_make16(0u, 0u, 0u, 0u);
            if (from[u] >= 0) q[u] = gk_load16((GK_GLOBAL const void*)(table + from[u] * GK_W));
        }
        GK_UNROLL for (int u = 0; u < GK_EMBED_DEPTH; u++)
            if (first + u * GK_BLOCK < items) gk_store16((GK_GLOBAL void*)(y + (first + u * GK_BLOCK) * GK_W), q[u]);
    }
}

/* Rows of the table that a block of embedding_clear looks after. */
#define GK_CLEARED 32

/* table[r] = 0 for the rows, of `row` times 16 bytes, that are none of the n sorted keys; `by` divides by `row`. Launch: blocks loop over runs of
 * GK_CLEARED rows. */
GK_KERNEL(embedding_clear)(GK_IN(int, keys), GK_OUT(gk_t, table), gk_i64 n, gk_i64 rows, int row, gk_i64 by, int wide_keys)
{
    GK_BIND_IN(int, keys); GK_BIND_OUT(gk_t, table);
    GK_LOCAL int used[GK_CLEARED];
    int t = gk_lid();
    for (gk_i64 first = (gk_i64)gk_bid(0) * GK_CLEARED; first < rows; first += (gk_i64)gk_nblocks(0) * GK_CLEARED) {
        int have = rows - first < GK_CLEARED ? (int)(rows - first) : GK_CLEARED;
        if (t < have) {
            GK_SEEK(gk_i64, at, n, gk_index(keys, v, wide_keys) <= first + t)
            used[t] = 0;
            if (n > 0) used[t] = gk_index(keys, at, wide_keys) == first + t;
        }
        GK_BARRIER();
        for (int i = t; i < have * row; i += GK_BLOCK) {
            if (!used[gk_quotient((gk_u32)i, by)]) gk_store16((GK_GLOBAL void*)(table + (first * row + i) * GK_W), gk_make16(0u, 0u, 0u, 0u));
        }
        GK_BARRIER();
    }
}
#endif

#if GK_IS_FLOAT
/* Ids that embedding_bwd_few takes at most. */
#define GK_FEW_IDS 4096
/* Threads whose finds are counted together. */
#define GK_FEW_RUN 16

// Units: FLOATS64
/* dtable[row] (+)= sum of dy[i] over the ids i of the row, in their order, divided by their number with `mean`; `padding` (-1: there is none) has none. An
 * id outside [0, rows) is reported. Launch: blocks loop over the rows; each looks through all ids. Reference: gradient of F.embedding. */
GK_KERNEL(embedding_bwd_few)(GK_IN(gk_t, dy), GK_IN(int, ids), GK_OUT(gk_t, dtable), GK_OUT(int, err), int n, int wide, int rows, int padding,
                             gk_i64 width, int mean, int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, dtable); GK_BIND_OUT(int, err);
    GK_LOCAL int counts[GK_BLOCK];
    GK_LOCAL int runs[GK_BLOCK / GK_FEW_RUN];
    GK_LOCAL int found[GK_FEW_IDS];
    int t = gk_lid(), per = (n + GK_BLOCK - 1) / GK_BLOCK, first = t * per, last = first + per < n ? first + per : n;
    for (int row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        int count = 0, at = 0, total = 0;
        for (int i = first; i < last; i++) {
            gk_i64 id = gk_index(ids, i, wide);
            if (row == 0 && (id < 0 || id >= rows)) gk_report(err, code);
            count += id == row && row != padding;
        }
        counts[t] = count;
        GK_BARRIER();
        if (t < GK_BLOCK / GK_FEW_RUN) {
            int sum = 0;
            for (int u = 0; u < GK_FEW_RUN; u++) sum += counts[t * GK_FEW_RUN + u];
            runs[t] = sum;
        }
        GK_BARRIER();
        for (int u = 0; u < GK_BLOCK / GK_FEW_RUN; u++) {
            at += u < t / GK_FEW_RUN ? runs[u] : 0;
            total += runs[u];
        }
        for (int u = t / GK_FEW_RUN * GK_FEW_RUN; u < t; u++) at += counts[u];
        for (int i = first; count > 0 && i < last; i++)
            if (gk_index(ids, i, wide) == row) found[at++] = i;
        GK_BARRIER();
        for (gk_i64 c = t; c < width; c += GK_BLOCK) {
            gk_f sum = GK_R(0.0);
            for (int u = 0; u < total; u++) sum += gk_load(dy, found[u] * width + c);
            if (mean && total > 0) sum /= (gk_f)total;
            gk_store(dtable, row * width + c, accumulate ? gk_load(dtable, row * width + c) + sum : sum);
        }
        GK_BARRIER();
    }
}

/* For the rows of table [rows, width] with mark[row] != 0 whose p-norm exceeds `most`: row *= most / (norm + 1e-7). `kind` 0: p = 2, 1: p = 1,
 * 2: p infinite, 3: any other p. Sums in gk_f. Launch: `lanes` threads per row, a power of two; one row per run of lanes, the grid covers
 * all rows. Reference: torch.embedding_renorm_. */
GK_KERNEL(embedding_renorm)(GK_OUT(gk_t, table), GK_IN(gk_u8, mark), gk_i64 rows, gk_i64 width, int lanes, gk_f most, gk_f p, int kind)
{
    GK_BIND_OUT(gk_t, table); GK_BIND_IN(gk_u8, mark);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lane = gk_lid() & (lanes - 1);
    gk_i64 row = ((gk_i64)gk_bid(0) * GK_BLOCK + gk_lid()) / lanes;
    int live = 0;
    if (row < rows) live = mark[row] != 0;
    gk_f norm = GK_R(0.0);
    if (live) {
        for (gk_i64 c = lane; c < width; c += lanes) {
            gk_f v = gk_fabs(gk_load(table, row * width + c));
            if (kind == 0) norm += v * v;
            else if (kind == 1) norm += v;
            else if (kind == 2) norm = gk_max(norm, v);
            else norm += gk_pow(v, p);
        }
    }
    norm = kind == 2 ? gk_group_max(norm, tmp, lanes) : gk_group_sum(norm, tmp, lanes);
    if (kind == 0) norm = gk_sqrt(norm);
    else if (kind == 3) norm = gk_pow(norm, GK_R(1.0) / p);
    if (live && norm > most) {
        gk_f scale = most / (norm + GK_R(1e-7));
        for (gk_i64 c = lane; c < width; c += lanes) gk_store(table, row * width + c, gk_load(table, row * width + c) * scale);
    }
}
#endif
