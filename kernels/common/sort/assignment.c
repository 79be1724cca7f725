/* Assignment of least cost by shortest augmenting paths (Jonker and Volgenant, 1987; Crouse, 2016).
 *
 *   minimises the sum of cost[b, r, column[b, r]] with one column per row and one row per column, for the first counts[b] rows of each problem
 * As many rows get a column as the smaller side has, the others -1. A cost that is not finite forbids the pair; a row that no path reaches gets -1.
 * Launch: one block per problem (blocks loop over problems), whose threads share the columns. Arithmetic in gk_f. Deterministic: of equal paths
 * the one to the lower column. Reference: scipy.optimize.linear_sum_assignment.
 */

/* What a problem keeps, per row (the side that is searched from, n of them) and per column (m >= n). */
typedef struct {
    GK_GLOBAL gk_f *row_price, *column_price, *length;
    GK_GLOBAL int *column_of, *row_of, *from, *done;
} gk_search;

/* The search for a column for `row`: the last column of the shortest path, -1 for none; `total` its length. For the whole block. */
GK_FN int gk_shortest_path(gk_search s, GK_GLOBAL const gk_t* cost, gk_i64 by_row, gk_i64 by_column, int row, int m, GK_LOCAL_PTR gk_f* tmp, gk_f* total)
{
    gk_f reached = GK_R(0.0);
    int at = row, found = -1;
    for (int j = gk_lid(); j < m; j += GK_BLOCK) {
        s.length[j] = GK_INF;
        s.done[j] = 0;
    }
    GK_BARRIER();
    for (int step = 0; step < m && found < 0; step++) {
        gk_f base = reached - s.row_price[at], least = GK_INF;
        int nearest = m;
        for (int j = gk_lid(); j < m; j += GK_BLOCK) {
            if (s.done[j]) continue;
            gk_f c = gk_load(cost, at * by_row + j * by_column);
            gk_f through = base + c - s.column_price[j];
            if (!gk_isnan(c) && !gk_isinf(c) && through < s.length[j]) {
                s.length[j] = through;
                s.from[j] = at;
            }
            if (s.length[j] < least) {
                least = s.length[j];
                nearest = j;
            }
        }
        reached = gk_block_min(least, tmp);
        /* Numbers of columns are below 2^24: exact as floats. */
        int to = (int)gk_block_min(least == reached ? (gk_f)nearest : (gk_f)m, tmp);
        if (!(reached < GK_INF) || to >= m) break;
        if (gk_lid() == 0) s.done[to] = 1;
        at = s.row_of[to];
        if (at < 0) found = to;
        GK_BARRIER();
    }
    *total = reached;
    return found;
}

// Units: FLOATS64
/* `prices`: n + 2m per problem, `links`: n + 3m; n and m are the shorter and the longer side of `rows` x `columns`. */
GK_KERNEL(linear_assignment)(GK_IN(gk_t, cost), GK_IN(int, counts), GK_OUT(gk_f, prices), GK_OUT(int, links), GK_OUT(gk_i64, column), GK_OUT(int, err),
                             gk_i64 problems, int rows, int columns, int wide, int code)
{
    GK_BIND_IN(gk_t, cost); GK_BIND_IN(int, counts); GK_BIND_OUT(gk_f, prices); GK_BIND_OUT(int, links); GK_BIND_OUT(gk_i64, column);
    GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int shorter = rows < columns ? rows : columns, longer = rows < columns ? columns : rows, t = gk_lid();
    for (gk_i64 b = gk_bid(0); b < problems; b += gk_nblocks(0)) {
        gk_i64 given = counts ? gk_index(counts, b, wide) : rows;
        if (given < 0 || given > rows) {
            if (t == 0) gk_report(err, code);
            given = 0;
        }
        /* Searches begin on the shorter side. */
        int turned = given > columns, n = turned ? columns : (int)given, m = turned ? (int)given : columns;
        gk_i64 by_row = turned ? 1 : columns, by_column = turned ? columns : 1;
        gk_search s;
        s.row_price = prices + b * (shorter + 2 * (gk_i64)longer);
        s.column_price = s.row_price + shorter;
        s.length = s.column_price + longer;
        s.column_of = links + b * (shorter + 3 * (gk_i64)longer);
        s.row_of = s.column_of + shorter;
        s.from = s.row_of + longer;
        s.done = s.from + longer;
        for (int i = t; i < n; i += GK_BLOCK) {
            s.row_price[i] = GK_R(0.0);
            s.column_of[i] = -1;
        }
        for (int j = t; j < m; j += GK_BLOCK) {
            s.column_price[j] = GK_R(0.0);
            s.row_of[j] = -1;
        }
        GK_BARRIER();
        for (int row = 0; row < n; row++) {
            gk_f total;
            int to = gk_shortest_path(s, cost + b * rows * columns, by_row, by_column, row, m, tmp, &total);
            if (to >= 0) {
                for (int j = t; j < m; j += GK_BLOCK) {
                    if (!s.done[j]) continue;
                    gk_f less = total - s.length[j];
                    s.column_price[j] = s.column_price[j] - less;
                    if (s.row_of[j] >= 0) s.row_price[s.row_of[j]] = s.row_price[s.row_of[j]] + less;
                }
                GK_BARRIER();
                if (t == 0) {
                    s.row_price[row] = total;
                    for (int step = 0; step < n && to >= 0; step++) {
                        int owner = s.from[to], before = s.column_of[owner];
                        s.row_of[to] = owner;
                        s.column_of[owner] = to;
                        to = owner == row ? -1 : before;
                    }
                }
            }
            GK_BARRIER();
        }
        for (int r = t; r < rows; r += GK_BLOCK)
            column[b * rows + r] = r >= given ? -1 : turned ? (gk_i64)s.row_of[r] : (gk_i64)s.column_of[r];
        GK_BARRIER();
    }
}
