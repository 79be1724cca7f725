/* How graph kernels iterate over the edges of nodes. Edges are grouped by node in CSR form: entries rowptr[v] .. rowptr[v+1] belong to node v,
 * col[p] is the other end of entry p and perm[p] the number of its edge (null: p itself).
 *
 * A node with many edges must not hold up the others: entries are cut at multiples of `cut`, and a node with more than 2 * cut of them is
 * taken apart there. Work items are the cuts first, then the nodes. The item of a node does the whole node unless that is long. The item of a
 * cut does the part of a long node that began before it (part 0), and of one that begins within it and reaches beyond (part 1); the parts are
 * combined in order by a second kernel. A cut meets at most one of either, since a long node is longer than a cut: which ones is found out once
 * (plan_cuts), `met` [2 * cuts] holds the nodes or -1.
 * Everything that is read from rowptr is held within [0, entries], so that a broken one is harmless.
 */

/* A stretch of the entries of one node; `slot` is the place of its partial result, -1 for a whole node. */
typedef struct { gk_i64 node; gk_u32 first, end; int slot; } gk_piece;

/* Groups of 1 << bits threads, numbered through the grid's axis 0: that of this thread, its place there, and how many there are. */
#define GK_TEAM(bits) ((gk_u32)gk_bid(0) * (GK_BLOCK >> (bits)) + ((gk_u32)gk_lid() >> (bits)))
#define GK_LANE(bits) ((gk_u32)gk_lid() & ((1u << (bits)) - 1u))
#define GK_TEAMS(bits) ((gk_u32)gk_nblocks(0) * (GK_BLOCK >> (bits)))
/* The vector of a row that this thread takes; axis 1 of the grid covers those of long rows. */
#define GK_VECTOR(bits) (((gk_u32)gk_bid(1) << (bits)) + GK_LANE(bits))

/* Cuts at multiples of 1 << bits. */
GK_FN gk_u32 gk_cuts(gk_i64 entries, int bits) { return (gk_u32)((entries + (1 << bits) - 1) >> bits); }
GK_FN gk_u32 gk_cut_end(gk_i64 entries, int bits, gk_u32 item)
{
    gk_i64 end = ((gk_i64)item + 1) << bits;
    return (gk_u32)(end < entries ? end : entries);
}

GK_FN gk_i64 gk_row_start(GK_GLOBAL const int* rowptr, gk_i64 v, gk_i64 entries, int wide_index)
{
    gk_i64 p = gk_index(rowptr, v, wide_index);
    return p < 0 ? 0 : p > entries ? entries : p;
}

/* The node whose entries include `p`: the last one that starts at or before it. */
GK_FN gk_i64 gk_row_of(GK_GLOBAL const int* rowptr, gk_i64 rows, gk_i64 p, int wide_index)
{
    GK_SEEK(gk_i64, row, rows, gk_index(rowptr, v, wide_index) <= p)
    return row;
}

/* The long node that part `part` of cut `item` belongs to, or -1. */
GK_FN int gk_met(GK_GLOBAL const int* rowptr, gk_i64 rows, gk_i64 entries, int bits, gk_u32 item, int part, int wide_index)
{
    gk_i64 from = (gk_i64)item << bits, to = gk_cut_end(entries, bits, item);
    gk_i64 v = gk_row_of(rowptr, rows, part ? to - 1 : from, wide_index);
    gk_i64 a = gk_row_start(rowptr, v, entries, wide_index), b = gk_row_start(rowptr, v + 1, entries, wide_index);
    if (b - a <= ((gk_i64)2 << bits) || (part ? a < from || a >= to || b <= to : a >= from || b <= from)) return -1;
    return (int)v;
}

/* Part `part` of work item `item`; 0 if there is nothing to do. `cuts` is 0 where no node can be long. Reports a rowptr that falls or leaves the
 * entries and, with `strict`, one that does not cover all of them. */
GK_FN int gk_piece_of(gk_piece* q, GK_GLOBAL const int* rowptr, GK_GLOBAL const int* met, gk_i64 rows, gk_i64 entries, gk_u32 cuts, int bits,
                      gk_u32 item, int part, int wide_index, int strict, GK_GLOBAL int* err, int code)
{
    gk_i64 v, a, b;
    if (item < cuts) {
        gk_u32 end = gk_cut_end(entries, bits, item);
        v = met[2 * (gk_i64)item + part];
        if (v < 0) return 0;
        a = gk_row_start(rowptr, v, entries, wide_index);
        b = gk_row_start(rowptr, v + 1, entries, wide_index);
        q->node = v;
        q->first = part ? (gk_u32)a : item << bits;
        q->end = (gk_u32)b < end ? (gk_u32)b : end;
        q->slot = (int)(2 * item) + part;
        return 1;
    }
    v = item - cuts;
    if (part || v >= rows) return 0;
    a = gk_index(rowptr, v, wide_index);
    b = gk_index(rowptr, v + 1, wide_index);
    if (a < 0 || b < a || b > entries || (strict && ((v == 0 && a != 0) || (v == rows - 1 && b != entries)))) {
        gk_report(err, code);
        a = gk_row_start(rowptr, v, entries, wide_index);
        b = gk_row_start(rowptr, v + 1, entries, wide_index);
        if (b < a) b = a;
    }
    if (cuts && b - a > ((gk_i64)2 << bits)) return 0;
    q->node = v;
    q->first = (gk_u32)a;
    q->end = (gk_u32)b;
    q->slot = -1;
    return 1;
}

/* Cuts that a block of a combining kernel looks through. */
#define GK_GRAPH_WINDOW 8

/* Bit i: a long node begins in cut `first` + i. */
GK_FN gk_u32 gk_begins(GK_GLOBAL const int* met, gk_u32 cuts, gk_u32 first)
{
    gk_u32 found = 0u;
    GK_UNROLL for (int i = 0; i < GK_GRAPH_WINDOW; i++) {
        if (first + i < cuts) found |= (met[2 * ((gk_i64)first + i) + 1] >= 0 ? 1u : 0u) << i;
    }
    return found;
}

/* The long node that begins in cut `item`. Its parts are numbered from 0 to q->slot, gk_part_slot says where they are. */
GK_FN void gk_long_node(gk_piece* q, GK_GLOBAL const int* rowptr, GK_GLOBAL const int* met, gk_i64 entries, int bits, gk_u32 item, int wide_index)
{
    q->node = met[2 * (gk_i64)item + 1];
    q->first = (gk_u32)gk_row_start(rowptr, q->node, entries, wide_index);
    q->end = (gk_u32)gk_row_start(rowptr, q->node + 1, entries, wide_index);
    q->slot = (int)(((q->end - 1u) >> bits) - item);
}

/* Part k of the long node that begins in cut `item`: the first is at an odd slot, the others at the even ones behind it. */
GK_FN gk_i64 gk_part_slot(gk_i64 item, gk_i64 k) { return k == 0 ? 2 * item + 1 : 2 * (item + k); }

/* Element i of an index list if it lies in [0, limit), else 0 and `good` becomes 0. */
GK_FN int gk_id(GK_GLOBAL const int* p, gk_i64 i, int wide_index, int limit, int* good)
{
    if (wide_index) {
        gk_u64 v = (gk_u64)((GK_GLOBAL const gk_i64*)p)[i];
        if (v < (gk_u64)limit) return (int)v;
    } else {
        gk_u32 v = (gk_u32)p[i];
        if (v < (gk_u32)limit) return (int)v;
    }
    *good = 0;
    return 0;
}

/* Edges that are on their way to a thread at a time. */
#define GK_U 4

/* Elements p .. p + GK_U - 1 of an index list (without one, their numbers); -1 from `end` on, and for what is not in [0, limit), which is reported.
 * Neighbours share a line of the cache, so that one is looked at before the next is loaded: that takes the fewest registers. */
GK_FN void gk_ids(GK_GLOBAL const int* list, gk_u32 p, gk_u32 end, int wide_index, int limit, GK_GLOBAL int* err, int code, int ids[GK_U])
{
    int bad = 0;
    if (!list) {
        GK_UNROLL for (int k = 0; k < GK_U; k++) ids[k] = p + k < end ? (int)(p + k) : -1;
    } else if (wide_index) {
        GK_GLOBAL const gk_i64* from = (GK_GLOBAL const gk_i64*)list + p;
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            ids[k] = -1;
            if (p + k < end) {
                gk_u64 v = (gk_u64)from[k];
                if (v < (gk_u64)limit) ids[k] = (int)v;
                else bad = 1;
            }
        }
    } else {
        GK_GLOBAL const int* from = list + p;
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            ids[k] = -1;
            if (p + k < end) {
                int v = from[k];
                if ((gk_u32)v < (gk_u32)limit) ids[k] = v;
                else bad = 1;
            }
        }
    }
    if (bad) gk_report(err, code);
}

/* Element `base` of row `id`, which is not negative. */
GK_FN gk_i64 gk_at(gk_i64 base, int id, gk_u32 row) { return base + (gk_i64)((gk_u64)(gk_u32)id * row); }

/* One element, or GK_W of them where `wide`; the unused lanes are 0. */
GK_FN gk_vec gk_row_get(GK_GLOBAL const gk_t* p, gk_i64 at, int wide)
{
    gk_vec r;
    if (wide) return gk_loadv(p, at);
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = GK_R(0.0);
    r.v[0] = gk_load(p, at);
    return r;
}

/* The vector at `p` of row `id`, which is not negative, as it lies in memory; rows are `bytes` apart. It becomes numbers when other loads are on their
 * way: a conversion beside a load, in its branch, waits for it. */
GK_FN gk_raw16 gk_row_bits(GK_GLOBAL const gk_t* p, int id, gk_u32 bytes)
{
    return gk_load16((GK_GLOBAL const void*)((GK_GLOBAL const char*)p + (gk_u64)(gk_u32)id * bytes));
}

GK_FN void gk_row_set(GK_GLOBAL gk_t* p, int id, gk_u32 bytes, gk_vec v)
{
    gk_storev_stream((GK_GLOBAL gk_t*)((GK_GLOBAL char*)p + (gk_u64)(gk_u32)id * bytes), 0, v);
}

GK_FN void gk_row_put(GK_GLOBAL gk_t* p, gk_i64 at, gk_vec v, int wide)
{
    if (wide) gk_storev(p, at, v);
    else gk_store(p, at, v.v[0]);
}

GK_FN gk_vec gk_splat(gk_f x)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) r.v[k] = x;
    return r;
}

GK_FN gk_vec gk_part_get(GK_GLOBAL const gk_f* p, gk_i64 at, int wide)
{
    gk_vec r;
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        r.v[k] = GK_R(0.0);
        if (k == 0 || wide) r.v[k] = p[at + k];
    }
    return r;
}

GK_FN void gk_part_put(GK_GLOBAL gk_f* p, gk_i64 at, gk_vec v, int wide)
{
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        if (k == 0 || wide) p[at + k] = v.v[k];
    }
}
