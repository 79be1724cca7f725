/* Rows of a matrix by groups: those of group g are offsets[g] <= r < offsets[g + 1]. */

typedef struct { gk_i64 begin, end; } gk_run;

/* The rows of group g; with -1 and `groups` those before the first and behind the last. An offset that is negative, beyond the rows or below its predecessor
 * is reported, and the group has the rows between the nearest valid ones. */
GK_FN gk_run gk_rows_of_group(gk_i64 g, GK_GLOBAL const int* offsets, gk_i64 rows, gk_i64 groups, GK_GLOBAL int* err, int code)
{
    gk_run r;
    r.begin = g < 0 ? 0 : offsets[g];
    r.end = g < groups ? offsets[g + 1] : rows;
    if ((r.begin < 0 || r.end < r.begin || r.end > rows) && gk_lid() == 0) gk_report(err, code);
    r.begin = r.begin < 0 ? 0 : r.begin > rows ? rows : r.begin;
    r.end = r.end < r.begin ? r.begin : r.end > rows ? rows : r.end;
    return r;
}
