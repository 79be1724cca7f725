/* Lists of edges grouped by node: what graph kernels iterate over. Indices only; exact, deterministic. The unit's type is int; `wide` says which
 * of the lists that a caller gave or gets are i64. Sorting itself is that of sort/radix.c.
 */
#include "common/prelude/coordinates.h"
#include "graph.h"

// Units: I32
/* keys[e] = index[e]; one outside [0, limit) becomes `limit`, which sorts behind all, and is reported unless it is -1 and `pad` is set.
 * Launch: grid-stride. */
GK_KERNEL(plan_keys)(GK_IN(int, index), GK_OUT(int, keys), GK_OUT(int, err), gk_i64 n, gk_i64 limit, int wide, int pad, int code)
{
    GK_BIND_IN(int, index); GK_BIND_OUT(int, keys); GK_BIND_OUT(int, err);
    for (gk_i64 e = gk_gid(); e < n; e += gk_gsize()) {
        gk_i64 i = gk_index(index, e, wide);
        int bad = i < 0 || i >= limit;
        if (bad && !(pad && i == -1)) gk_report(err, code);
        keys[e] = (int)(bad ? limit : i);
    }
}

/* rowptr[v] = number of sorted keys below v. Launch: grid-stride over nodes + 1. */
GK_KERNEL(plan_offsets)(GK_IN(int, keys), GK_OUT(int, rowptr), gk_i64 n, gk_i64 nodes, int wide)
{
    GK_BIND_IN(int, keys); GK_BIND_OUT(int, rowptr);
    for (gk_i64 v = gk_gid(); v <= nodes; v += gk_gsize()) {
        gk_i64 lo = 0, hi = n;
        while (lo < hi) {
            gk_i64 mid = lo + (hi - lo) / 2;
            if (keys[mid] < v) lo = mid + 1;
            else hi = mid;
        }
        gk_store_index(rowptr, v, wide, lo);
    }
}

/* out[p] = x[at[p]], x having `size` elements, or at[p] itself without x. Launch: grid-stride. */
GK_KERNEL(plan_gather)(GK_IN(int, x), GK_IN(int, at), GK_OUT(int, out), GK_OUT(int, err), gk_i64 n, gk_i64 size, int wide_x, int wide_at,
                       int wide_out, int code)
{
    GK_BIND_IN(int, x); GK_BIND_IN(int, at); GK_BIND_OUT(int, out); GK_BIND_OUT(int, err);
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_i64 v = gk_index(at, p, wide_at);
        if (x) {
            int bad = v < 0 || v >= size;
            if (bad) gk_report(err, code);
            v = gk_index(x, bad ? 0 : v, wide_x);
        }
        gk_store_index(out, p, wide_out, v);
    }
}

/* row[p] = the row of entry p of a CSR matrix, `rows` where none has it. Reports a rowptr that does not rise from 0 to the number of entries.
 * Launch: grid-stride over max(entries, rows + 1). */
GK_KERNEL(plan_rows)(GK_IN(int, rowptr), GK_OUT(int, row), GK_OUT(int, err), gk_i64 entries, gk_i64 rows, int wide, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_OUT(int, row); GK_BIND_OUT(int, err);
    for (gk_i64 p = gk_gid(); p < entries || p <= rows; p += gk_gsize()) {
        if (p <= rows) {
            gk_i64 here = gk_index(rowptr, p, wide), next = entries;
            if (p < rows) next = gk_index(rowptr, p + 1, wide);
            if (here > next || (p == 0 && here != 0) || (p == rows && here != entries)) gk_report(err, code);
        }
        if (p < entries && row) {
            gk_i64 lo = 0, hi = rows + 1;
            while (lo < hi) {
                gk_i64 mid = lo + (hi - lo) / 2;
                if (gk_index(rowptr, mid, wide) <= p) lo = mid + 1;
                else hi = mid;
            }
            row[p] = (int)(lo == 0 ? rows : lo - 1);
        }
    }
}

/* out[v] = entries of node v. Launch: grid-stride. */
GK_KERNEL(plan_counts)(GK_IN(int, rowptr), GK_OUT(int, out), gk_i64 nodes, int wide, int wide_out)
{
    GK_BIND_IN(int, rowptr); GK_BIND_OUT(int, out);
    for (gk_i64 v = gk_gid(); v < nodes; v += gk_gsize()) {
        gk_i64 n = gk_index(rowptr, v + 1, wide) - gk_index(rowptr, v, wide);
        gk_store_index(out, v, wide_out, n);
    }
}

/* met[2 * c + part] = the long node that cut c meets (graph/graph.h) or -1. Launch: grid-stride over the 2 * cuts. */
GK_KERNEL(plan_cuts)(GK_IN(int, rowptr), GK_OUT(int, met), gk_i64 rows, gk_i64 entries, int cut_bits, gk_i64 n, int wide)
{
    GK_BIND_IN(int, rowptr); GK_BIND_OUT(int, met);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) met[i] = gk_met(rowptr, rows, entries, cut_bits, (gk_u32)(i / 2), (int)(i & 1), wide);
}
