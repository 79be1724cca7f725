/* Embedding: the keys by which the gradient's rows are sorted, and the rescaling of rows beyond a norm. The lookup itself is index_select
 * (index.c), the gradient a sorted reduction (sort.c, index.c). Deterministic.
 */

#if GK_DTYPE == GK_I32 || GK_DTYPE == GK_I64
/* keys[i] = ids[i]; `none` for the row `padding` (-1: there is none) and for an id outside [0, rows), which is reported.
 * Launch: grid-stride over the ids. */
GK_KERNEL(embedding_keys)(GK_IN(int, ids), GK_OUT(gk_t, keys), GK_OUT(int, err), gk_i64 n, int wide, gk_i64 rows, gk_i64 padding, gk_i64 none, int code)
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

#if GK_IS_FLOAT
/* For the rows of table [rows, width] with mark[row] != 0 whose p-norm exceeds `most`: row *= most / (norm + 1e-7). `kind` 0: p = 2, 1: p = 1,
 * 2: p infinite, 3: any other p. Sums in gk_f. Launch: `lanes` work-items per row, a power of two; one row per run of lanes, the grid covers
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
