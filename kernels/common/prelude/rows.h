/* How rows and columns of contiguous tensors are read: runs of elements with 16-byte accesses inside, sums across a block that lies over columns.
 * */
#ifndef GK_ROWS_H
#define GK_ROWS_H

/* A run of elements as one lane of `lanes` sees it: single elements up to the first 16-byte boundary (all of them unless `wide`), 16-byte items,
 * single elements after them. `phase` is the position of element 0 of the tensor within 16 bytes. */
typedef struct { gk_i64 from, items_from, items, tail_from, to; } gk_run;
GK_FN gk_run gk_run_of(gk_i64 from, gk_i64 to, int wide, int phase)
{
    gk_run r;
    gk_i64 head = wide ? -(from + phase) & (GK_W - 1) : to - from;
    if (head > to - from) head = to - from;
    r.from = from;
    r.items_from = from + head;
    r.items = (to - r.items_from) / GK_W;
    r.tail_from = r.items_from + r.items * GK_W;
    r.to = to;
    return r;
}

GK_FN gk_run gk_run_of_block(gk_i64 b, gk_i64 cols, int splits, gk_i64 chunk, int wide, int phase)
{
    gk_i64 row = b / splits, from = b % splits * chunk, to = from + chunk < cols ? from + chunk : cols;
    return gk_run_of(row * cols + from, row * cols + to, wide, phase);
}

/* Combines a value over the block's threads that differ in lid / tx only; result in all of them. */
GK_FN gk_f gk_across(gk_f v, GK_LOCAL_PTR gk_f* tmp, int tx, const int by)
{
    int t = gk_lid();
    if (tx == GK_BLOCK) return v;
    tmp[t] = v;
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m >= tx; m >>= 1) {
        if (t < m) tmp[t] = gk_fold_by(tmp[t], tmp[t + m], by);
        GK_BARRIER();
    }
    v = tmp[t & (tx - 1)];
    GK_BARRIER();
    return v;
}
#define gk_across_sum(v, tmp, tx) gk_across(v, tmp, tx, GK_BY_SUM)
#define gk_across_max(v, tmp, tx) gk_across(v, tmp, tx, GK_BY_MAX)

/* One item (an element, or GK_W neighbours; the rest 0) as it lies in memory, as a vector, and back. */
GK_FN gk_raw16 gk_item_bits(GK_GLOBAL const gk_t* p, gk_i64 i, int wide)
{
    gk_raw16 q = gk_make16(0u, 0u, 0u, 0u);
    if (wide) return gk_load16((GK_GLOBAL const void*)(p + i));
#if GK_W == 2
    gk_b b = ((GK_GLOBAL const gk_b*)p)[i];
    q.x = (gk_u32)b;
    q.y = (gk_u32)(b >> 32);
#else
    q.x = ((GK_GLOBAL const gk_b*)p)[i];
#endif
    return q;
}
GK_FN gk_vec gk_item(GK_GLOBAL const gk_t* p, gk_i64 i, int wide) { return gk_decode16(gk_item_bits(p, i, wide)); }
/* Zeros unless `live`. */
GK_FN gk_vec gk_item_if(GK_GLOBAL const gk_t* p, gk_i64 i, int wide, int live)
{
    gk_raw16 q = gk_make16(0u, 0u, 0u, 0u);
    if (live) q = gk_item_bits(p, i, wide);
    return gk_decode16(q);
}
GK_FN void gk_put_item(GK_GLOBAL gk_t* p, gk_i64 i, gk_vec r, int wide)
{
    if (wide) gk_storev(p, i, r);
    else gk_store(p, i, r.v[0]);
}

/* a / b of numbers that are not negative: 32-bit where both fit, because 64-bit division is slow. */
GK_FN gk_i64 gk_quot(gk_i64 a, gk_i64 b)
{
    if (((a | b) >> 32) == 0) return (gk_i64)((gk_u32)a / (gk_u32)b);
    return a / b;
}

#endif
