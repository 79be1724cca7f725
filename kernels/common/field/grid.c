/* Features at positions from the corners of grids, a single one or the levels of a hash grid (Mueller et al., 2022), and their gradients.
 *
 *   y[p, l, c] = sum over the corners of the cell of level l that holds x[p] of weight * table[l, row of the corner, c]
 * x [points, axes], table [levels, rows, width], y [points, levels, width]. cells: four words per level, the cells along x, y and z (0 for an axis
 * that is none or has one corner), and whether rows are hashed. A position from 0 to 1 is at x * cells; one beyond is at the border, where its slope
 * is 0. Corner (i, j, k) has row i + j (cells_x + 1) + k (cells_x + 1) (cells_y + 1), or (i ^ 2654435761 j ^ 805459861 k) mod rows in 32 bits. A
 * position that is NaN gives NaN and takes no part in the gradient of the table.
 * Launch: grid-stride. Arithmetic in gk_f. Deterministic: one writer per element. Reference: F.grid_sample of a volume with aligned corners.
 */
#include "common/prelude/window.h"

/* Features per thread. */
#define GK_FIELD_FEATURES 4

/* The cell of a level that holds a position: its sizes, its first corner, and the part of a cell that the position lies behind it. */
typedef struct { int cells[3], first[3], hashed, bad; gk_f part[3], slope[3]; } gk_cell;

GK_FN gk_cell gk_cell_of(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_i64* level, int axes)
{
    gk_cell r;
    r.hashed = (int)level[3];
    r.bad = 0;
    GK_UNROLL for (int a = 0; a < 3; a++) {
        gk_f v = a < axes ? gk_load(x, a) : GK_R(0.0);
        int cells = (int)level[a], last = cells > 0 ? cells - 1 : 0;
        gk_f inside = v >= GK_R(0.0) ? (v <= GK_R(1.0) ? v : GK_R(1.0)) : GK_R(0.0), along = inside * (gk_f)cells;
        if (gk_isnan(v)) r.bad = 1;
        r.cells[a] = cells;
        r.first[a] = (int)along < last ? (int)along : last;
        r.part[a] = along - (gk_f)r.first[a];
        r.slope[a] = inside == v ? (gk_f)cells : GK_R(0.0);
    }
    return r;
}

/* Whether corner k is the upper one along an axis, and its share there. */
GK_FN int gk_corner_upper(int k, int axis) { return (k >> axis) & 1; }
GK_FN gk_f gk_cell_share(const gk_cell* s, int k, int axis) { return gk_corner_upper(k, axis) ? s->part[axis] : GK_R(1.0) - s->part[axis]; }

/* The weight of corner k. Along an axis that is none the lower corners have all. */
GK_FN gk_f gk_corner_weight(const gk_cell* s, int k) { return gk_cell_share(s, k, 0) * gk_cell_share(s, k, 1) * gk_cell_share(s, k, 2); }

GK_FN gk_i64 gk_corner_row(const gk_cell* s, int k, gk_i64 rows)
{
    int at[3];
    GK_UNROLL for (int a = 0; a < 3; a++) {
        int next = s->first[a] + gk_corner_upper(k, a);
        at[a] = next < s->cells[a] ? next : s->cells[a];
    }
    if (s->hashed) return (gk_i64)(((gk_u32)at[0] ^ (gk_u32)at[1] * 2654435761u ^ (gk_u32)at[2] * 805459861u) % (gk_u32)rows);
    return ((gk_i64)at[2] * (s->cells[1] + 1) + at[1]) * (s->cells[0] + 1) + at[0];
}

// Units: FLOATS64
/* Items: levels of all positions, once per group of GK_FIELD_FEATURES features. */
GK_KERNEL(grid_encode)(GK_IN(gk_t, x), GK_IN(gk_t, table), GK_IN(gk_i64, cells), GK_OUT(gk_t, y), gk_i64 n, gk_i64 levels, gk_i64 rows, gk_i64 width,
                       gk_i64 groups, int axes)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, table); GK_BIND_IN(gk_i64, cells); GK_BIND_OUT(gk_t, y);
    int corners = 1 << axes;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 at = gk_divide(i, groups), first = (i - at * groups) * GK_FIELD_FEATURES, p = gk_divide(at, levels), level = at - p * levels;
        gk_cell s = gk_cell_of(x + p * axes, cells + 4 * level, axes);
        gk_f sum[GK_FIELD_FEATURES];
        GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++) sum[u] = s.bad ? GK_NAN : GK_R(0.0);
        for (int k = 0; k < corners; k++) {
            gk_f w = gk_corner_weight(&s, k);
            GK_GLOBAL const gk_t* from = table + (level * rows + gk_corner_row(&s, k, rows)) * width + first;
            GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++)
                if (first + u < width) sum[u] += w * gk_load(from, u);
        }
        GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++)
            if (first + u < width) gk_store(y, at * width + first + u, sum[u]);
    }
}

/* dx[p] (+)= sum over levels and corners of the derivative of the weight times dy . features. Items: positions. */
GK_KERNEL(grid_encode_dx)(GK_IN(gk_t, dy), GK_IN(gk_t, x), GK_IN(gk_t, table), GK_IN(gk_i64, cells), GK_OUT(gk_t, dx), gk_i64 n, gk_i64 levels,
                          gk_i64 rows, gk_i64 width, int axes, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, table); GK_BIND_IN(gk_i64, cells); GK_BIND_OUT(gk_t, dx);
    int corners = 1 << axes;
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        gk_f sum[3];
        int bad = 0;
        GK_UNROLL for (int a = 0; a < 3; a++) sum[a] = GK_R(0.0);
        for (gk_i64 level = 0; level < levels; level++) {
            gk_cell s = gk_cell_of(x + p * axes, cells + 4 * level, axes);
            GK_GLOBAL const gk_t* g = dy + (p * levels + level) * width;
            bad = s.bad;
            for (int k = 0; k < corners; k++) {
                GK_GLOBAL const gk_t* from = table + (level * rows + gk_corner_row(&s, k, rows)) * width;
                gk_f along = GK_R(0.0);
                for (gk_i64 c = 0; c < width; c++) along += gk_load(g, c) * gk_load(from, c);
                GK_UNROLL for (int a = 0; a < 3; a++) {
                    gk_f others = gk_cell_share(&s, k, a == 0 ? 1 : 0) * gk_cell_share(&s, k, a == 2 ? 1 : 2) * s.slope[a];
                    if (s.slope[a] != GK_R(0.0)) sum[a] += (gk_corner_upper(k, a) ? others : -others) * along;
                }
            }
        }
        GK_UNROLL for (int a = 0; a < 3; a++) {
            if (a < axes) {
                gk_f d = bad ? GK_NAN : sum[a];
                gk_store(dx, p * axes + a, accumulate ? gk_load(dx, p * axes + a) + d : d);
            }
        }
    }
}

/* The entries of the gradient of the table: for corner k of item i its row among those of all levels (`none` for a position that is NaN) and its
 * weight, at (i << axes) + k. Items: levels of all positions. */
GK_KERNEL(grid_encode_keys)(GK_IN(gk_t, x), GK_IN(gk_i64, cells), GK_OUT(int, keys), GK_OUT(gk_f, weights), gk_i64 n, gk_i64 levels, gk_i64 rows,
                            gk_i64 none, int wide_keys, int axes)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_i64, cells); GK_BIND_OUT(int, keys); GK_BIND_OUT(gk_f, weights);
    int corners = 1 << axes;
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 p = gk_divide(i, levels), level = i - p * levels;
        gk_cell s = gk_cell_of(x + p * axes, cells + 4 * level, axes);
        for (int k = 0; k < corners; k++) {
            gk_store_index(keys, i * corners + k, wide_keys, s.bad ? none : level * rows + gk_corner_row(&s, k, rows));
            weights[i * corners + k] = gk_corner_weight(&s, k);
        }
    }
}

/* dtable[row, c] (+)= sum of weight * dy over the entries of the row; entry e belongs to item e >> axes. Keys are sorted; positions are the entries'
 * numbers before. Items: rows of all levels, once per group of GK_FIELD_FEATURES features. */
GK_KERNEL(grid_encode_gather)(GK_IN(int, keys), GK_IN(int, positions), GK_IN(gk_f, weights), GK_IN(gk_t, dy), GK_OUT(gk_t, dtable), gk_i64 n,
                              gk_i64 entries, gk_i64 width, gk_i64 groups, int wide_keys, int axes, int accumulate)
{
    GK_BIND_IN(int, keys); GK_BIND_IN(int, positions); GK_BIND_IN(gk_f, weights); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, dtable);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 key = gk_divide(i, groups), first = (i - key * groups) * GK_FIELD_FEATURES;
        gk_f sum[GK_FIELD_FEATURES];
        GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++) sum[u] = GK_R(0.0);
        GK_SEEK(gk_i64, e, entries, gk_index(keys, v, wide_keys) < key);
        if (gk_index(keys, e, wide_keys) < key) e++;
        for (; e < entries && gk_index(keys, e, wide_keys) == key; e++) {
            gk_i64 entry = (gk_i64)(gk_u32)positions[e];
            gk_f w = weights[entry];
            GK_GLOBAL const gk_t* from = dy + (entry >> axes) * width + first;
            GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++)
                if (first + u < width) sum[u] += w * gk_load(from, u);
        }
        GK_UNROLL for (int u = 0; u < GK_FIELD_FEATURES; u++) {
            gk_i64 to = key * width + first + u;
            if (first + u < width) gk_store(dtable, to, accumulate ? gk_load(dtable, to) + sum[u] : sum[u]);
        }
    }
}

// Units: REALS
/* What the entries add to their rows: sources[e, c] = weight * dy. Items: features of all entries. */
GK_KERNEL(grid_encode_sources)(GK_IN(gk_f, weights), GK_IN(gk_t, dy), GK_OUT(gk_t, sources), gk_i64 n, gk_i64 width, int axes)
{
    GK_BIND_IN(gk_f, weights); GK_BIND_IN(gk_t, dy); GK_BIND_OUT(gk_t, sources);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 e = gk_divide(i, width);
        gk_store(sources, i, weights[e] * gk_load(dy, (e >> axes) * width + (i - e * width)));
    }
}
