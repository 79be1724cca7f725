/* What the kernels of dense linear algebra share: tiles of 32 x 32 elements in local memory, for blocks of 256 threads.
 *
 * Thread t has column t % 32 and the rows t / 32 + 8 q, q < 4, of a tile. Matrices are given by strides (a gk_dims: rows, columns, batch, and the
 * offset of element (0, 0)), which may be negative: a triangle that is solved from the back is a lower one whose rows and columns are counted
 * backwards.
 */
#define GK_NB 32
/* Rows of a tile are one longer, so that its columns lie in different banks. */
#define GK_NB_PITCH 33
#define GK_NB_TILE (GK_NB * GK_NB_PITCH)
#define gk_tile_col() (gk_lid() % GK_NB)
#define gk_tile_row(q) (gk_lid() / GK_NB + 8 * (q))
#define GK_EACH_ROW(q) GK_UNROLL for (int q = 0; q < 4; q++)

/* A matrix of a batch, in elements. */
typedef struct { gk_i64 at, rs, cs; } gk_matrix;

GK_FN gk_matrix gk_matrix_of(const gk_dims s, gk_i64 batch)
{
    gk_matrix m;
    m.rs = s.v[0];
    m.cs = s.v[1];
    m.at = s.v[3] + batch * s.v[2];
    return m;
}

/* The elements from row r and column c on. */
GK_FN gk_matrix gk_submatrix(gk_matrix m, gk_i64 r, gk_i64 c)
{
    m.at += r * m.rs + c * m.cs;
    return m;
}

/* Whether neighbours along a row are nearer in memory than those along a column. */
GK_FN int gk_by_rows(gk_matrix m) { return (m.cs < 0 ? -m.cs : m.cs) <= (m.rs < 0 ? -m.rs : m.rs); }

/* The first rows x cols elements of a matrix into a tile; zeros beyond. */
GK_FN void gk_tile_load(GK_LOCAL_PTR gk_f* tile, GK_GLOBAL const gk_t* x, gk_matrix m, gk_i64 rows, gk_i64 cols)
{
    int along = gk_by_rows(m);
    GK_EACH_ROW(q) {
        int r = along ? gk_tile_row(q) : gk_tile_col(), c = along ? gk_tile_col() : gk_tile_row(q);
        gk_f v = GK_R(0.0);
        if (r < rows && c < cols) v = gk_load(x, m.at + r * m.rs + c * m.cs);
        tile[r * GK_NB_PITCH + c] = v;
    }
}

/* The first rows x cols elements of a tile to a matrix; with `lower` those on and below the diagonal. */
GK_FN void gk_tile_store(GK_LOCAL_PTR const gk_f* tile, GK_GLOBAL gk_t* x, gk_matrix m, gk_i64 rows, gk_i64 cols, const int lower)
{
    int along = gk_by_rows(m);
    GK_EACH_ROW(q) {
        int r = along ? gk_tile_row(q) : gk_tile_col(), c = along ? gk_tile_col() : gk_tile_row(q);
        if (r < rows && c < cols && (!lower || c <= r)) gk_store(x, m.at + r * m.rs + c * m.cs, tile[r * GK_NB_PITCH + c]);
    }
}

/* acc += sign a b, or with `trans` a b^T, for the thread's elements. */
GK_FN void gk_tile_product(gk_f acc[4], GK_LOCAL_PTR const gk_f* a, GK_LOCAL_PTR const gk_f* b, const int trans, const gk_f sign)
{
    int c = gk_tile_col();
    for (int k = 0; k < GK_NB; k++) {
        gk_f v = sign * (trans ? b[c * GK_NB_PITCH + k] : b[k * GK_NB_PITCH + c]);
        GK_EACH_ROW(q) acc[q] += a[gk_tile_row(q) * GK_NB_PITCH + k] * v;
    }
}

/* acc += a^T b. */
GK_FN void gk_tile_gram(gk_f acc[4], GK_LOCAL_PTR const gk_f* a, GK_LOCAL_PTR const gk_f* b)
{
    int c = gk_tile_col();
    for (int k = 0; k < GK_NB; k++) {
        gk_f v = b[k * GK_NB_PITCH + c];
        GK_EACH_ROW(q) acc[q] += a[k * GK_NB_PITCH + gk_tile_row(q)] * v;
    }
}

GK_FN void gk_tile_get(gk_f acc[4], GK_LOCAL_PTR const gk_f* tile)
{
    GK_EACH_ROW(q) acc[q] = tile[gk_tile_row(q) * GK_NB_PITCH + gk_tile_col()];
}

GK_FN void gk_tile_put(GK_LOCAL_PTR gk_f* tile, const gk_f acc[4])
{
    GK_EACH_ROW(q) tile[gk_tile_row(q) * GK_NB_PITCH + gk_tile_col()] = acc[q];
}
