/* Rows of a matrix by groups: those of group g are offsets[g] <= r < offsets[g + 1]. */

typedef struct { gk_i64 begin, end; } gk_run;

/* The rows of group g; with -1 and `groups` those before the first and behind the last. An offset that is negative, beyond the rows or below its
 * predecessor is reported, and the group has the rows between the nearest valid ones. */
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

/* Rows of a tile, `first` and those behind it, and their group; no rows beyond the last tile, group -1 for rows of no group. */
typedef struct { gk_i64 first; int rows, group; } gk_row_tile;

/* Tile number `wanted` of all groups, whose rows make tiles of `side` rows, the last of them incomplete; the rows before the first and behind the last
 * group are groups, too. A wrong offset is reported by the first block and taken as the nearest that is valid behind those before it. */
GK_FN gk_row_tile gk_row_tile_of(gk_i64 wanted, const int side, GK_GLOBAL const int* offsets, gk_i64 total, int groups, GK_GLOBAL int* err, int code)
{
    gk_row_tile r;
    gk_i64 begin = 0;
    r.first = 0; r.rows = 0; r.group = -1;
    for (int g = -1; g <= groups; g++) {
        gk_i64 end = g < groups ? offsets[g + 1] : total;
        if (end < begin || end > total) {
            if (gk_bid(0) == 0 && gk_lid() == 0) gk_report(err, code);
            end = end < begin ? begin : total;
        }
        gk_i64 tiles = (end - begin + side - 1) / side;
        if (wanted >= 0 && wanted < tiles) {
            r.first = begin + wanted * side;
            r.rows = end - r.first < side ? (int)(end - r.first) : side;
            r.group = g < groups ? g : -1;
        }
        wanted -= tiles;
        begin = end;
    }
    return r;
}

/* Tiles of all groups: those with more than short_one of `side` rows, and the others, of which a group has one at most. */
typedef struct { int whole, halves; } gk_row_tiles;

/* Their numbers. Wrong offsets as in gk_row_tile_of. */
GK_FN gk_row_tiles gk_row_tiles_of(const int side, GK_GLOBAL const int* offsets, int total, int groups, GK_GLOBAL int* err, int code)
{
    gk_row_tiles r;
    int begin = 0;
    r.whole = 0; r.halves = 0;
    for (int g = -1; g <= groups; g++) {
        int end = g < groups ? offsets[g + 1] : total;
        if (end < begin || end > total) {
            if (gk_bid(0) == 0 && gk_lid() == 0) gk_report(err, code);
            end = end < begin ? begin : total;
        }
        int rest = (end - begin) % side;
        r.whole += (end - begin) / side + (rest > side / 2);
        r.halves += rest > 0 && rest <= side / 2;
        begin = end;
    }
    return r;
}

/* Tile number `wanted` where the `whole` ones come first. */
GK_FN gk_row_tile gk_row_tile_at(int wanted, int whole, const int side, GK_GLOBAL const int* offsets, int total, int groups)
{
    gk_row_tile r;
    int begin = 0, short_one = wanted >= whole;
    r.first = 0; r.rows = 0; r.group = -1;
    if (short_one) wanted -= whole;
    for (int g = -1; g <= groups; g++) {
        int end = g < groups ? offsets[g + 1] : total;
        end = end < begin ? begin : end > total ? total : end;
        int full = (end - begin) / side, rest = (end - begin) % side, n = short_one ? rest > 0 && rest <= side / 2 : full + (rest > side / 2);
        if (wanted >= 0 && wanted < n) {
            r.first = begin + (short_one ? full : wanted) * side;
            r.rows = end - (int)r.first < side ? end - (int)r.first : side;
            r.group = g < groups ? g : -1;
        }
        wanted -= n;
        begin = end;
    }
    return r;
}
