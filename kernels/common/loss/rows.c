/* Losses with one item per row. GK_OP names the loss; its functions stand in loss/row_ops.h and loss/row_ops_structured.h.
 *
 * A group of `lanes` threads serves a row: it collects the row's statistics in one or two passes (the second from cache), then one of them
 * writes the item, or all of them the gradient. Statistics in gk_f by a fixed tree: results repeat bit by bit. Few long rows are cut into
 * chunks (losses without a first pass): row_partial sums the chunks, the other kernels add their sums.
 * roles: four bits per input: 0 element of the row, 1 number of the row, 2 element of a vector that all rows share, 3 row modulo width, 4 row
 * divided by width; the fifth: 1 = the mask has one entry per row; the sixth: 1 = rows (runs of rows of one element) are read in vectors.
 * ids: one per row, or (classes = 0) len per row; classes < 0: none.
 */
#include "common/prelude/rows.h"
#include "row_ops.h"
#include "row_ops_structured.h"

#ifdef GK_OP

#define GK_LOSS_ROW(part) GK_CAT(GK_OP, part)
#define GK_LOSS_SUMS GK_LOSS_ROW(_sums)

/* Field k of the roles. */
#define GK_ROW_ROLE(k) ((int)(roles >> (4 * (k)) & 15))

/* Where element e of a row stands. */
GK_FN gk_i64 gk_element(gk_i64 row, gk_i64 e, gk_i64 len, gk_i64 width)
{
#if GK_LOSS_ROW(_strided)
    if (width != 1) return (row / width * len + e) * width + row % width;
#endif
    return row * len + e;
}

GK_FN GK_GLOBAL const gk_t* gk_operand(GK_GLOBAL const gk_t* x, int role, gk_i64 row, gk_i64 len, gk_i64 width)
{
    gk_i64 at = role == 0 ? gk_element(row, 0, len, width) : role == 1 ? row : role == 2 ? 0 : role == 3 ? row % width : row / width;
    return x ? x + at : x;
}

/* The operands of a row. */
GK_FN gk_rowcx gk_row_at(GK_GLOBAL const gk_t* x0, GK_GLOBAL const gk_t* x1, GK_GLOBAL const gk_t* x2, GK_GLOBAL const gk_t* x3,
                         GK_GLOBAL const gk_u8* mask, GK_GLOBAL const int* ids, int wide, gk_i64 row, gk_i64 len, gk_i64 width, gk_i64 roles,
                         gk_f p0, gk_f p1, gk_f p2, gk_f p3, int flags)
{
    gk_rowcx r;
    r.x0 = gk_operand(x0, (int)(roles & 15), row, len, width);
    r.x1 = gk_operand(x1, (int)(roles >> 4 & 15), row, len, width);
    r.x2 = gk_operand(x2, (int)(roles >> 8 & 15), row, len, width);
    r.x3 = gk_operand(x3, (int)(roles >> 12 & 15), row, len, width);
    r.mask = mask ? mask + (roles >> 16 & 15 ? row : row * len) : mask;
    r.ids = ids; r.ids_at = row * len; r.wide = wide; r.len = len; r.width = width; r.id = 0;
    r.p0 = p0; r.p1 = p1; r.p2 = p2; r.p3 = p3; r.flags = flags;
    r.at = -1; r.whole = 0;
    for (int k = 0; k < 4; k++) r.c[k] = GK_R(0.0);
    for (int k = 0; k < 3; k++) r.m[k] = GK_LOSS_ROW(_first) == 2 ? GK_R(0.0) : -GK_INF;
    for (int k = 0; k < 4; k++) r.s[k] = GK_R(0.0);
    return r;
}

/* Whether row `row` counts: its class id is in range and not ignored, and a mask of rows lets it. Bad ids are reported. */
#define GK_ROW_COUNTS(counts, r, row) \
    int counts = 1; \
    if (ids && classes > 0) { \
        (r).id = gk_index(ids, row, wide); \
        counts = (r).id != ignore && (r).id >= 0 && (r).id < classes; \
        if (!counts && (r).id != ignore) gk_report(err, code); \
    } \
    if (mask && GK_ROW_ROLE(4)) counts = counts && (r).mask[0];

/* Vectors of the inputs at n places. */
#define GK_ROW_DEPTH 2
typedef struct { gk_raw16 q[4][GK_ROW_DEPTH]; } gk_row_read;
#define GK_ROW_FETCH(x, k) \
    if (x && (GK_ROW_ROLE(k) == 0 || GK_ROW_ROLE(k) == 2)) { \
        GK_UNROLL for (int u = 0; u < n; u++) v.q[k][u] = gk_load16((GK_GLOBAL const void*)((x) + e + u * step)); \
    }
GK_FN gk_row_read gk_row_fetch(const gk_rowcx* r, gk_i64 roles, gk_i64 e, gk_i64 step, const int n)
{
    gk_row_read v;
    GK_UNROLL for (int k = 0; k < 4; k++)
        GK_UNROLL for (int u = 0; u < GK_ROW_DEPTH; u++) v.q[k][u] = gk_make16(0u, 0u, 0u, 0u);
    GK_ROW_FETCH(r->x0, 0)
    GK_ROW_FETCH(r->x1, 1)
    GK_ROW_FETCH(r->x2, 2)
    GK_ROW_FETCH(r->x3, 3)
    return v;
}
typedef struct { gk_vec x[4]; } gk_row_values;
GK_FN gk_row_values gk_row_decode(const gk_row_read* v, int u)
{
    gk_row_values w;
    GK_UNROLL for (int k = 0; k < 4; k++) w.x[k] = gk_decode16(v->q[k][u]);
    return w;
}
/* Makes element e, number j of the values, the current one. */
GK_FN void gk_row_set(gk_rowcx* r, const gk_row_values* w, int j, gk_i64 e)
{
    r->at = e;
    GK_UNROLL for (int k = 0; k < 4; k++) r->c[k] = w->x[k].v[j];
}

#if GK_CAT(GK_OP, _first) == 1
/* How much larger the maxima are than `old`; 0 where there were none, and the sums are still 0. */
GK_FN void gk_row_rescale(const gk_rowcx* r, const gk_f* old, gk_f* s)
{
    gk_f d[2];
    GK_UNROLL for (int k = 0; k < 2; k++) d[k] = old[k] == -GK_INF || old[k] == r->m[k] ? GK_R(0.0) : old[k] - r->m[k];
    if (d[0] != GK_R(0.0) || d[1] != GK_R(0.0)) GK_LOSS_ROW(_rescale)(r, d, s);
}
#endif

/* Takes in n vectors of a row, or element e if n = 0. pass: 0 = what NAME_first says, 1 = the sums, 2 = maxima and the sums relative to them. */
GK_FN void gk_row_take(gk_rowcx* r, gk_i64 roles, gk_i64 e, gk_i64 step, const int pass, const int n)
{
    gk_row_read v;
    if (n > 0) v = gk_row_fetch(r, roles, e, step, n);
#if GK_CAT(GK_OP, _first) != 0
    gk_f old[2];
    old[0] = r->m[0]; old[1] = r->m[1];
    if (pass != 1) {
        if (n == 0) GK_LOSS_ROW(_collect)(r, e, r->m);
        GK_UNROLL for (int u = 0; u < n; u++) {
            gk_row_values w = gk_row_decode(&v, u);
            GK_UNROLL for (int j = 0; j < GK_W; j++) { gk_row_set(r, &w, j, e + u * step + j); GK_LOSS_ROW(_collect)(r, r->at, r->m); }
        }
    }
#endif
#if GK_CAT(GK_OP, _first) == 1
    gk_f top[2];
    if (pass == 2) {
        gk_row_rescale(r, old, r->s);
        GK_UNROLL for (int k = 0; k < 2; k++) { top[k] = r->m[k]; r->m[k] = top[k] == -GK_INF ? GK_R(0.0) : top[k]; }
    }
#endif
#if GK_CAT(GK_OP, _sums) > 0
    if (pass != 0) {
        if (n == 0) GK_LOSS_ROW(_add)(r, e, r->s);
        GK_UNROLL for (int u = 0; u < n; u++) {
            gk_row_values w = gk_row_decode(&v, u);
            GK_UNROLL for (int j = 0; j < GK_W; j++) { gk_row_set(r, &w, j, e + u * step + j); GK_LOSS_ROW(_add)(r, r->at, r->s); }
        }
    }
#endif
#if GK_CAT(GK_OP, _first) == 1
    if (pass == 2) { r->m[0] = top[0]; r->m[1] = top[1]; }
#endif
    r->at = -1;
}

/* Takes in the elements from .. to of a row that fall to a lane. */
GK_FN void gk_row_pass(gk_rowcx* r, gk_i64 roles, gk_i64 from, gk_i64 to, int lane, int lanes, const int pass)
{
    gk_i64 e = from + lane;
    if (GK_ROW_ROLE(5)) {
        gk_i64 step = lanes * GK_W;
        e = from + lane * GK_W;
        for (; e + step < to; e += GK_ROW_DEPTH * step) gk_row_take(r, roles, e, step, pass, GK_ROW_DEPTH);
        for (; e < to; e += step) gk_row_take(r, roles, e, step, pass, 1);
    } else {
        for (; e < to; e += lanes) gk_row_take(r, roles, e, 0, pass, 0);
    }
}

/* Statistics of a row, in every thread of its group; all groups of the block take part. Sums relative to maxima are collected with them and made
 * relative to the row's. */
GK_FN void gk_row_collect(gk_rowcx* r, int active, gk_i64 roles, int lane, int lanes, GK_GLOBAL const gk_f* partial, gk_i64 chunks,
                          GK_LOCAL_PTR gk_f* tmp)
{
#if GK_CAT(GK_OP, _first) == 1
    gk_f own[2];
    if (active) gk_row_pass(r, roles, 0, r->len, lane, lanes, 2);
    GK_UNROLL for (int k = 0; k < GK_LOSS_ROW(_maxima); k++) {
        own[k] = r->m[k];
        r->m[k] = gk_group_max(r->m[k], tmp, lanes);
    }
    if (GK_LOSS_ROW(_maxima) < 2) own[1] = r->m[1];
    gk_row_rescale(r, own, r->s);
    for (int k = 0; k < GK_LOSS_SUMS; k++) r->s[k] = gk_group_sum(r->s[k], tmp, lanes);
    /* A row of only -inf. */
    GK_UNROLL for (int k = 0; k < GK_LOSS_ROW(_maxima); k++)
        if (r->m[k] == -GK_INF && r->len > 0) r->s[0] = r->s[1] = r->s[2] = r->s[3] = GK_NAN;
#else
#if GK_CAT(GK_OP, _first) == 2
    if (active) gk_row_pass(r, roles, 0, r->len, lane, lanes, 0);
    for (int k = 0; k < 2; k++) r->m[k] = gk_group_sum(r->m[k], tmp, lanes);
#endif
#if GK_CAT(GK_OP, _sums) > 0
    if (active && !partial) gk_row_pass(r, roles, 0, r->len, lane, lanes, 1);
    if (active && partial)
        for (gk_i64 c = lane; c < chunks; c += lanes)
            for (int k = 0; k < GK_LOSS_SUMS; k++) r->s[k] += partial[c * 4 + k];
    for (int k = 0; k < GK_LOSS_SUMS; k++) r->s[k] = gk_group_sum(r->s[k], tmp, lanes);
#endif
#endif
}

/* Elements of a chunk of a row: whole vectors. */
GK_FN gk_i64 gk_chunk_of(gk_i64 len, gk_i64 chunks) { return ((len + chunks - 1) / chunks + GK_W - 1) / GK_W * GK_W; }

/* Rows of single elements, GK_W neighbours from `row` on: their numbers. */
GK_FN gk_vec gk_row_run(GK_GLOBAL const gk_t* x, int role, gk_i64 row, gk_i64 width)
{
    gk_vec v;
    if (x && role < 2) return gk_loadv(x, row);
    GK_UNROLL for (int j = 0; j < GK_W; j++) {
        gk_i64 lead = gk_quot(row + j, width);
        v.v[j] = !x ? GK_R(0.0) : gk_load(x, role == 3 ? row + j - lead * width : lead);
    }
    return v;
}
#define GK_ROW_RUN(r, w, row) \
    gk_row_values w; \
    w.x[0] = gk_row_run(x0, GK_ROW_ROLE(0), row, width); \
    w.x[1] = gk_row_run(x1, GK_ROW_ROLE(1), row, width); \
    w.x[2] = gk_row_run(x2, GK_ROW_ROLE(2), row, width); \
    w.x[3] = gk_row_run(x3, GK_ROW_ROLE(3), row, width); \
    (r).whole = 1;

typedef struct {
    gk_f p0, p1, p2, p3;
} gk_row_args;

// Units: FLOATS64 x ROW_LOSSES
/* partial[4 (row chunks + chunk) + k]: sums of one chunk of a row. A block per chunk. */
GK_KERNEL(row_partial)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                       GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                       int flags, gk_i64 chunks, GK_OUT(gk_f, partial), GK_BY_VALUE(gk_row_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, partial);
    gk_i64 size = gk_chunk_of(len, chunks);
    for (gk_i64 at = gk_bid(0); at < rows * chunks; at += gk_nblocks(0)) {
        gk_i64 row = at / chunks, from = (at - row * chunks) * size, to = from + size < len ? from + size : len;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, row)
        if (counts) gk_row_pass(&r, roles, from, to, gk_lid(), GK_BLOCK, 1);
        for (int k = 0; k < 4; k++) {
            gk_f s = gk_block_sum(r.s[k], tmp);
            if (gk_lid() == 0) partial[4 * at + k] = s;
        }
    }
}

/* Items: y in storage (reduction none), or pairs[2b], pairs[2b+1] = sums of the items and of the weights that block b met; partial is null for rows
 * in one piece. */
GK_KERNEL(row_items)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                     GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                     int flags, gk_i64 chunks, GK_IN(gk_f, partial), GK_OUT(gk_t, y), GK_OUT(gk_f, pairs), GK_BY_VALUE(gk_row_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_IN(gk_f, partial); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, pairs);
    int lane = gk_lid() & (lanes - 1);
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes), done = 0;
    gk_f sum = GK_R(0.0), count = GK_R(0.0);
#if GK_CAT(GK_OP, _first) + GK_CAT(GK_OP, _sums) + GK_CAT(GK_OP, _weight) == 0
    if (GK_ROW_ROLE(5) && len == 1) {
        done = rows / GK_W * GK_W;
        for (gk_i64 row = gk_gid() * GK_W; row < done; row += gk_gsize() * GK_W) {
            gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, 0, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
            gk_vec l;
            GK_ROW_RUN(r, w, row)
            GK_UNROLL for (int j = 0; j < GK_W; j++) {
                gk_row_set(&r, &w, j, 0);
                l.v[j] = GK_LOSS_ROW(_item)(&r);
                sum += l.v[j];
            }
            count += (gk_f)GK_W;
            if (y) gk_storev(y, row, l);
        }
    }
#endif
    for (gk_i64 first = done + (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows; first += groups) {
        gk_i64 row = first + gk_lid() / lanes, safe = row < rows ? row : 0;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, safe, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, safe)
        counts = counts && row < rows;
        /* Lists of ids: every one is checked. */
        if (ids && classes == 0 && row < rows)
            for (gk_i64 e = lane; e < len; e += lanes)
                if (gk_index(ids, row * len + e, wide) >= len) gk_report(err, code);
        gk_row_collect(&r, counts, roles, lane, lanes, partial ? partial + 4 * safe * chunks : partial, chunks, tmp);
        if (row < rows && lane == 0) {
            gk_f l = counts ? GK_LOSS_ROW(_item)(&r) : GK_R(0.0), w = counts ? GK_R(1.0) : GK_R(0.0);
#if GK_CAT(GK_OP, _weight) != 0
            if (counts) w = GK_LOSS_ROW(_weigh)(&r);
#endif
            if (y) gk_store(y, row, l);
            sum += l;
            count += w;
        }
    }
    if (pairs) {
        sum = gk_block_sum(sum, tmp);
        count = gk_block_sum(count, tmp);
        if (gk_lid() == 0) { pairs[2 * gk_bid(0)] = sum; pairs[2 * gk_bid(0) + 1] = count; }
    }
}

#define GK_ROW_STORE(out, k, role) \
    if (out && ((role) == 0 || ((role) == 1 && e == 0))) { \
        gk_i64 at = (role) == 0 ? gk_element(row, e, len, width) : row; \
        gk_store(out, at, args.acc >> k & 1 ? gk_load(out, at) + g * d[k] : g * d[k]); \
    }

/* The same for elements e ... of a row, o[k] being their derivatives: an input of role 1 has element 0's. */
#define GK_ROW_STOREV(out, k, role) \
    if (out && (role) == 0) { \
        gk_i64 at = row * len + e; \
        if (args.acc >> k & 1) { gk_vec b = gk_loadv(out, at); GK_UNROLL for (int j = 0; j < GK_W; j++) o[k].v[j] += b.v[j]; } \
        gk_storev(out, at, o[k]); \
    } else if (out && (role) == 1 && e == 0) { \
        gk_store(out, row, args.acc >> k & 1 ? gk_load(out, row) + o[k].v[0] : o[k].v[0]); \
    }
#define GK_ROW_STORE_ALL(store) \
    store(d0, 0, GK_ROW_ROLE(0)) \
    store(d1, 1, GK_ROW_ROLE(1)) \
    store(d2, 2, GK_ROW_ROLE(2)) \
    store(d3, 3, GK_ROW_ROLE(3))

typedef struct {
    gk_f p0, p1, p2, p3, factor;
    int gy_f32, acc;
} gk_row_grad_args;

/* g times the derivatives by the current vector, whose first element is e. */
GK_FN void gk_row_slopes(gk_rowcx* r, const gk_row_values* w, gk_i64 e, int stay, gk_f g, int counts, gk_vec* o)
{
    GK_UNROLL for (int j = 0; j < GK_W; j++) {
        gk_f d[4];
        gk_i64 at = stay ? e : e + j;
        d[0] = d[1] = d[2] = d[3] = GK_R(0.0);
#if !GK_LOSS_ROW(_sparse)
        gk_row_set(r, w, j, at);
#endif
        if (counts) GK_LOSS_ROW(_grad)(r, at, d);
        GK_UNROLL for (int k = 0; k < 4; k++) o[k].v[j] = g * d[k];
    }
    r->at = -1;
}

/* Vectors of a lane that are read before the first gradient is written. */
#if GK_LOSS_ROW(_ahead) && GK_W < 8
#define GK_ROW_GRADS GK_ROW_DEPTH
#else
#define GK_ROW_GRADS 1
#endif
#if GK_LOSS_ROW(_sparse)
#define GK_ROW_READS 0
#else
#define GK_ROW_READS GK_ROW_GRADS
#endif

/* Gradients of the inputs of roles 0 and 1 (null where unwanted): d (+)= gy / den * derivative of the item. acc: a bit per input. */
GK_KERNEL(row_grad)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                    GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                    int flags, gk_i64 chunks, GK_IN(gk_f, partial), GK_IN(gk_t, gy), int each, GK_IN(gk_f, den), GK_OUT(gk_t, d0), GK_OUT(gk_t, d1),
                    GK_OUT(gk_t, d2), GK_OUT(gk_t, d3), GK_BY_VALUE(gk_row_grad_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_IN(gk_f, partial); GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den);
    GK_BIND_OUT(gk_t, d0); GK_BIND_OUT(gk_t, d1); GK_BIND_OUT(gk_t, d2); GK_BIND_OUT(gk_t, d3);
    int lane = gk_lid() & (lanes - 1);
    /* A group per chunk of a row. */
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes), size = gk_chunk_of(len, chunks), done = 0;
    gk_f upstream = args.factor;
    if (!each) upstream *= args.gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0);
    if (den) upstream /= den[0];
#if GK_CAT(GK_OP, _first) + GK_CAT(GK_OP, _sums) + GK_CAT(GK_OP, _weight) == 0
    if (GK_ROW_ROLE(5) && len == 1) {
        done = rows / GK_W * GK_W;
        for (gk_i64 row = gk_gid() * GK_W; row < done; row += gk_gsize() * GK_W) {
            gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, 0, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
            gk_vec o[4];
            const gk_i64 e = 0;
            GK_ROW_RUN(r, w, row)
            gk_row_slopes(&r, &w, 0, 1, upstream, 1, o);
            if (each) {
                GK_UNROLL for (int j = 0; j < GK_W; j++) {
                    gk_f g = gk_load(gy, row + j);
                    GK_UNROLL for (int k = 0; k < 4; k++) o[k].v[j] *= g;
                }
            }
            GK_ROW_STORE_ALL(GK_ROW_STOREV)
        }
    }
#endif
    for (gk_i64 first = done + (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows * chunks; first += groups) {
        gk_i64 part = first + gk_lid() / lanes, at = part < rows * chunks ? part : 0, row = at / chunks;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, row)
        int active = part < rows * chunks;
        gk_row_collect(&r, active && counts, roles, lane, lanes, partial ? partial + 4 * row * chunks : partial, chunks, tmp);
        if (!active) continue;
        gk_f g = each ? upstream * gk_load(gy, row) : upstream;
        gk_i64 from = (at - row * chunks) * size, to = from + size < len ? from + size : len;
        /* Rows that a mask leaves out keep the NaN of a mean over none. */
        if (!counts) g = mask && GK_ROW_ROLE(4) ? g * GK_R(0.0) : GK_R(0.0);
#if GK_LOSS_ROW(_ready)
        if (counts) GK_LOSS_ROW(_prepare)(&r);
#endif
#if GK_LOSS_ROW(_four)
        if (lanes == 1) {
            gk_f d[4];
            GK_LOSS_ROW(_grads)(&r, d);
            GK_UNROLL for (int e = 0; e < 4; e++)
                if (d0) gk_store(d0, row * 4 + e, args.acc & 1 ? gk_load(d0, row * 4 + e) + g * d[e] : g * d[e]);
            continue;
        }
#endif
        if (GK_ROW_ROLE(5) && len > 1) {
            gk_i64 step = lanes * GK_W;
            for (gk_i64 e0 = from + lane * GK_W; e0 < to; e0 += GK_ROW_GRADS * step) {
                gk_row_read v = gk_row_fetch(&r, roles, e0, e0 + step < to ? step : 0, GK_ROW_READS);
                GK_UNROLL for (int u = 0; u < GK_ROW_GRADS; u++) {
                    gk_vec o[4];
                    gk_i64 e = e0 + u * step;
                    gk_row_values w = gk_row_decode(&v, u);
                    if (e >= to) break;
                    gk_row_slopes(&r, &w, e, 0, g, counts, o);
                    GK_ROW_STORE_ALL(GK_ROW_STOREV)
                }
            }
            continue;
        }
        for (gk_i64 e = from + lane; e < to; e += lanes) {
            gk_f d[4];
            d[0] = d[1] = d[2] = d[3] = GK_R(0.0);
            if (counts) GK_LOSS_ROW(_grad)(&r, e, d);
            GK_ROW_STORE_ALL(GK_ROW_STORE)
        }
    }
}

typedef struct {
    gk_f p0, p1, p2, p3, factor;
    int gy_f32;
} gk_row_shared_args;

/* Gradient of the shared vector in place 2 (losses whose derivative there needs no statistics), part by part: sums over runs of rows, sums [len,
 * parts]. A block per sum. */
GK_KERNEL(row_shared)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                      GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                      int flags, GK_IN(gk_t, gy), int each, gk_i64 parts, GK_OUT(gk_f, sums), GK_BY_VALUE(gk_row_shared_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_f, sums);
    gk_f upstream = args.factor;
    if (!each) upstream *= args.gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0);
    gk_i64 size = (rows + parts - 1) / parts;
    for (gk_i64 at = gk_bid(0); at < len * parts; at += gk_nblocks(0)) {
        gk_i64 e = at / parts, from = (at - e * parts) * size, to = from + size < rows ? from + size : rows;
        gk_f sum = GK_R(0.0);
        for (gk_i64 row = from + gk_lid(); row < to; row += GK_BLOCK) {
            gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
            GK_ROW_COUNTS(counts, r, row)
            gk_f d[4];
            d[0] = d[1] = d[2] = d[3] = GK_R(0.0);
            if (counts) GK_LOSS_ROW(_grad)(&r, e, d);
            sum += (each ? upstream * gk_load(gy, row) : upstream) * d[2];
        }
        sum = gk_block_sum(sum, tmp);
        if (gk_lid() == 0) sums[at] = sum;
    }
}
#else

// Units: FLOATS64
/* d (+)= the sums of all parts. A block per element. */
GK_KERNEL(row_shared_sum)(GK_IN(gk_f, sums), gk_i64 len, gk_i64 parts, GK_OUT(gk_t, d), int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, sums); GK_BIND_OUT(gk_t, d);
    for (gk_i64 e = gk_bid(0); e < len; e += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0);
        for (gk_i64 k = gk_lid(); k < parts; k += GK_BLOCK) sum += sums[e * parts + k];
        sum = gk_block_sum(sum, tmp);
        if (gk_lid() == 0) gk_store(d, e, accumulate ? gk_load(d, e) + sum : sum);
    }
}
#endif
