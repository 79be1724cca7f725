/* Losses with one item per row. GK_OP names the loss; its functions stand in loss/row_ops.h and loss/row_ops_structured.h.
 *
 * A group of `lanes` threads serves a row: it collects the row's statistics in one or two passes (the second from cache), then one of them
 * writes the item, or all of them the gradient. Statistics in gk_f by a fixed tree: results repeat bit by bit. Few long rows are cut into
 * chunks (losses without a first pass): row_partial sums the chunks, the other kernels add their sums.
 * roles: four bits per input: 0 element of the row, 1 number of the row, 2 element of a vector that all rows share, 3 row modulo width, 4 row
 * divided by width; the fifth: 1 = the mask has one entry per row. ids: one per row, or (classes = 0) len per row; classes < 0: none.
 */
#include "row_ops.h"
#include "row_ops_structured.h"

#ifdef GK_OP

#define GK_LOSS_ROW(part) GK_CAT(GK_OP, part)
#define GK_LOSS_SUMS GK_LOSS_ROW(_sums)

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
    for (int k = 0; k < 3; k++) r.m[k] = GK_LOSS_ROW(_first) == 2 ? GK_R(0.0) : -GK_INF;
    for (int k = 0; k < 4; k++) r.s[k] = GK_R(0.0);
    return r;
}

/* Whether row `row` counts: its class id is in range and not ignored. Bad ids are reported. */
#define GK_ROW_COUNTS(counts, r, row) \
    int counts = 1; \
    if (ids && classes > 0) { \
        (r).id = gk_index(ids, row, wide); \
        counts = (r).id != ignore && (r).id >= 0 && (r).id < classes; \
        if (!counts && (r).id != ignore) gk_report(err, code); \
    }

/* Statistics of a row, in every thread of its group; all groups of the block take part. */
GK_FN void gk_row_collect(gk_rowcx* r, int active, int lane, int lanes, GK_GLOBAL const gk_f* partial, gk_i64 chunks, GK_LOCAL_PTR gk_f* tmp)
{
#if GK_CAT(GK_OP, _first) != 0
    if (active) for (gk_i64 e = lane; e < r->len; e += lanes) GK_LOSS_ROW(_collect)(r, e, r->m);
    for (int k = 0; k < 2; k++) r->m[k] = GK_LOSS_ROW(_first) == 2 ? gk_group_sum(r->m[k], tmp, lanes) : gk_group_max(r->m[k], tmp, lanes);
#endif
#if GK_CAT(GK_OP, _sums) > 0
    if (active && !partial) for (gk_i64 e = lane; e < r->len; e += lanes) GK_LOSS_ROW(_add)(r, e, r->s);
    if (active && partial)
        for (gk_i64 c = lane; c < chunks; c += lanes)
            for (int k = 0; k < GK_LOSS_SUMS; k++) r->s[k] += partial[c * 4 + k];
    for (int k = 0; k < GK_LOSS_SUMS; k++) r->s[k] = gk_group_sum(r->s[k], tmp, lanes);
#endif
}

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
    gk_i64 size = (len + chunks - 1) / chunks;
    for (gk_i64 at = gk_bid(0); at < rows * chunks; at += gk_nblocks(0)) {
        gk_i64 row = at / chunks, from = (at - row * chunks) * size, to = from + size < len ? from + size : len;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, row)
#if GK_CAT(GK_OP, _sums) > 0
        if (counts) for (gk_i64 e = from + gk_lid(); e < to; e += GK_BLOCK) GK_LOSS_ROW(_add)(&r, e, r.s);
#endif
        for (int k = 0; k < 4; k++) {
            gk_f s = gk_block_sum(r.s[k], tmp);
            if (gk_lid() == 0) partial[4 * at + k] = s;
        }
    }
}

/* Items: y in storage (reduction none) or item and weight in gk_f; partial is null for rows in one piece. */
GK_KERNEL(row_items)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                     GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                     int flags, gk_i64 chunks, GK_IN(gk_f, partial), GK_OUT(gk_t, y), GK_OUT(gk_f, item), GK_OUT(gk_f, weight),
                     GK_BY_VALUE(gk_row_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_IN(gk_f, partial); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    int lane = gk_lid() & (lanes - 1);
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes);
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows; first += groups) {
        gk_i64 row = first + gk_lid() / lanes, safe = row < rows ? row : 0;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, safe, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, safe)
        counts = counts && row < rows;
        /* Lists of ids: every one is checked. */
        if (ids && classes == 0 && row < rows)
            for (gk_i64 e = lane; e < len; e += lanes)
                if (gk_index(ids, row * len + e, wide) >= len) gk_report(err, code);
        gk_row_collect(&r, counts, lane, lanes, partial ? partial + 4 * safe * chunks : partial, chunks, tmp);
        if (row < rows && lane == 0) {
            gk_f l = counts ? GK_LOSS_ROW(_item)(&r) : GK_R(0.0), w = counts ? GK_R(1.0) : GK_R(0.0);
#if GK_CAT(GK_OP, _weight) != 0
            if (counts) w = GK_LOSS_ROW(_weigh)(&r);
#endif
            if (y) gk_store(y, row, l);
            if (item) { item[row] = l; weight[row] = w; }
        }
    }
}

#define GK_ROW_STORE(out, k, role) \
    if (out && ((role) == 0 || ((role) == 1 && e == 0))) { \
        gk_i64 at = (role) == 0 ? gk_element(row, e, len, width) : row; \
        gk_store(out, at, args.acc >> k & 1 ? gk_load(out, at) + g * d[k] : g * d[k]); \
    }

typedef struct {
    gk_f p0, p1, p2, p3, factor;
    int gy_f32, acc;
} gk_row_grad_args;

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
    gk_i64 groups = (gk_i64)gk_nblocks(0) * (GK_BLOCK / lanes), size = (len + chunks - 1) / chunks;
    gk_f upstream = args.factor;
    if (!each) upstream *= args.gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0);
    if (den) upstream /= den[0];
    for (gk_i64 first = (gk_i64)gk_bid(0) * (GK_BLOCK / lanes); first < rows * chunks; first += groups) {
        gk_i64 part = first + gk_lid() / lanes, at = part < rows * chunks ? part : 0, row = at / chunks;
        gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
        GK_ROW_COUNTS(counts, r, row)
        int active = part < rows * chunks;
        gk_row_collect(&r, active && counts, lane, lanes, partial ? partial + 4 * row * chunks : partial, chunks, tmp);
        if (!active) continue;
        gk_f g = each ? upstream * gk_load(gy, row) : upstream;
        gk_i64 from = (at - row * chunks) * size, to = from + size < len ? from + size : len;
        for (gk_i64 e = from + lane; e < to; e += lanes) {
            gk_f d[4];
            d[0] = d[1] = d[2] = d[3] = GK_R(0.0);
            if (counts) GK_LOSS_ROW(_grad)(&r, e, d);
            if (!counts) g = GK_R(0.0);
            GK_ROW_STORE(d0, 0, (int)(roles & 15))
            GK_ROW_STORE(d1, 1, (int)(roles >> 4 & 15))
            GK_ROW_STORE(d2, 2, (int)(roles >> 8 & 15))
            GK_ROW_STORE(d3, 3, (int)(roles >> 12 & 15))
        }
    }
}

typedef struct {
    gk_f p0, p1, p2, p3, factor;
    int gy_f32, acc;
} gk_row_shared_args;

/* Gradient of the shared vector in place 2 (losses whose derivative there needs no statistics): sum over all rows. A block per element. */
GK_KERNEL(row_shared)(GK_IN(gk_t, x0), GK_IN(gk_t, x1), GK_IN(gk_t, x2), GK_IN(gk_t, x3), GK_IN(gk_u8, mask), GK_IN(int, ids), int wide,
                      GK_OUT(int, err), int code, gk_i64 rows, gk_i64 len, gk_i64 width, gk_i64 classes, gk_i64 ignore, gk_i64 roles, int lanes,
                      int flags, GK_IN(gk_t, gy), int each, GK_OUT(gk_t, d2), GK_BY_VALUE(gk_row_shared_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x0); GK_BIND_IN(gk_t, x1); GK_BIND_IN(gk_t, x2); GK_BIND_IN(gk_t, x3); GK_BIND_IN(gk_u8, mask); GK_BIND_IN(int, ids);
    GK_BIND_OUT(int, err); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, d2);
    gk_f upstream = args.factor;
    if (!each) upstream *= args.gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0);
    for (gk_i64 e = gk_bid(0); e < len; e += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0);
        for (gk_i64 row = gk_lid(); row < rows; row += GK_BLOCK) {
            gk_rowcx r = gk_row_at(x0, x1, x2, x3, mask, ids, wide, row, len, width, roles, args.p0, args.p1, args.p2, args.p3, flags);
            GK_ROW_COUNTS(counts, r, row)
            gk_f d[4];
            d[0] = d[1] = d[2] = d[3] = GK_R(0.0);
            if (counts) GK_LOSS_ROW(_grad)(&r, e, d);
            sum += (each ? upstream * gk_load(gy, row) : upstream) * d[2];
        }
        sum = gk_block_sum(sum, tmp);
        if (gk_lid() == 0) gk_store(d2, e, args.acc ? gk_load(d2, e) + sum : sum);
    }
}
#endif
