/* Search among vectors: scores of all pairs, the nearest points of each query without storing the scores, and distances to product codes.
 *
 *   score = |q - x|^2 (metric 0), q.x (1), or q.x / (max(|q|, eps) max(|x|, eps)) (2); the nearest have the least distance or the largest product
 *
 * distance_matrix and nearest_lists compute tiles of 16 queries and 64 points from parts of 32 elements in local memory, thread t the point t % 64 of
 * the queries t / 64 + 4 i. nearest_lists offers each tile to sorted lists of k points per query and share of the points, by one thread per query;
 * few points get into a list after the first ones. nearest_merge ranks the lists of a query by counting. Keys are scores, negated where large ones are
 * near: NaN comes last, of equal ones the lower index first.
 *   pq_tables  scores of the parts of a query against the 256 centroids of each part
 *   pq_scan    sums of the table's entries that the codes of a point name (Jegou et al., "Product quantization for nearest neighbor search", 2011)
 * Differences are taken directly. Sums in gk_f in a fixed order. Deterministic. Launch: see the kernels. References: torch.cdist and torch.topk, FAISS.
 */
#define GK_QUERIES 16
#define GK_POINTS 64
#define GK_PART 32
/* Rows of a local tile are one longer, so that its columns lie in different banks. */
#define GK_PART_PITCH (GK_PART + 1)
#define GK_SCORE_PITCH (GK_POINTS + 1)
#define GK_EACH_QUERY(i) GK_UNROLL for (int i = 0; i < 4; i++)
/* Smallest norm that is divided by. */
#define GK_LEAST_NORM GK_R(1e-8)
/* Entries of tables in local memory, and points of a thread. */
#define GK_TABLE 2048
#define GK_CODES 256
#define GK_EACH_POINT(i) GK_UNROLL for (int i = 0; i < 8; i++)

/* Rows [first, first + count) of x [rows, len] and their elements [from, from + 32) into a tile; zeros beyond. */
GK_FN void gk_part_load(GK_LOCAL_PTR gk_f* tile, GK_GLOBAL const gk_t* x, gk_i64 first, gk_i64 rows, gk_i64 len, gk_i64 from, const int count)
{
    for (int e = gk_lid(); e < count * GK_PART; e += GK_BLOCK) {
        gk_i64 r = first + e / GK_PART, c = from + e % GK_PART;
        gk_f v = GK_R(0.0);
        if (r < rows && c < len) v = gk_load(x, r * len + c);
        tile[e / GK_PART * GK_PART_PITCH + e % GK_PART] = v;
    }
}

/* Scores of a tile, negated where large ones are near, into acc. */
GK_FN void gk_score_tile(gk_f acc[4], GK_LOCAL_PTR gk_f* q, GK_LOCAL_PTR gk_f* x, GK_GLOBAL const gk_t* queries, GK_GLOBAL const gk_t* points,
                         gk_i64 first_query, gk_i64 first_point, gk_i64 count, gk_i64 n, gk_i64 len, const int metric)
{
    int point = gk_lid() % GK_POINTS * GK_PART_PITCH, row = gk_lid() / GK_POINTS;
    gk_f squares[4], square = GK_R(0.0);
    GK_EACH_QUERY(i) {
        acc[i] = GK_R(0.0);
        squares[i] = GK_R(0.0);
    }
    for (gk_i64 from = 0; from < len; from += GK_PART) {
        gk_part_load(q, queries, first_query, count, len, from, GK_QUERIES);
        gk_part_load(x, points, first_point, n, len, from, GK_POINTS);
        GK_BARRIER();
        for (int k = 0; k < GK_PART; k++) {
            gk_f v = x[point + k];
            if (metric == 2) square += v * v;
            GK_EACH_QUERY(i) {
                gk_f u = q[(row + 4 * i) * GK_PART_PITCH + k], d = u - v;
                acc[i] += metric == 0 ? d * d : u * v;
                if (metric == 2) squares[i] += u * u;
            }
        }
        GK_BARRIER();
    }
    if (metric == 0) return;
    GK_EACH_QUERY(i) {
        gk_f norms = GK_R(1.0);
        if (metric == 2) norms = gk_max(gk_sqrt(square), GK_LEAST_NORM) * gk_max(gk_sqrt(squares[i]), GK_LEAST_NORM);
        acc[i] = -acc[i] / norms;
    }
}

/* The same for a metric that the kernel got as a number. */
GK_FN void gk_score(gk_f acc[4], GK_LOCAL_PTR gk_f* q, GK_LOCAL_PTR gk_f* x, GK_GLOBAL const gk_t* queries, GK_GLOBAL const gk_t* points,
                    gk_i64 first_query, gk_i64 first_point, gk_i64 count, gk_i64 n, gk_i64 len, int metric)
{
    if (metric == 0) gk_score_tile(acc, q, x, queries, points, first_query, first_point, count, n, len, 0);
    else if (metric == 1) gk_score_tile(acc, q, x, queries, points, first_query, first_point, count, n, len, 1);
    else gk_score_tile(acc, q, x, queries, points, first_query, first_point, count, n, len, 2);
}

// Units: FLOATS64
/* y [count, n] = scores of queries [count, len] and points [n, len]. Launch: a block per tile. */
GK_KERNEL(distance_matrix)(GK_IN(gk_t, queries), GK_IN(gk_t, points), GK_OUT(gk_t, y), gk_i64 count, gk_i64 n, gk_i64 len, int metric)
{
    GK_BIND_IN(gk_t, queries); GK_BIND_IN(gk_t, points); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f q[GK_QUERIES * GK_PART_PITCH];
    GK_LOCAL gk_f x[GK_POINTS * GK_PART_PITCH];
    gk_i64 across = (n + GK_POINTS - 1) / GK_POINTS, down = (count + GK_QUERIES - 1) / GK_QUERIES;
    for (gk_i64 w = gk_bid(0); w < across * down; w += gk_nblocks(0)) {
        gk_i64 first_query = w / across * GK_QUERIES, first_point = w % across * GK_POINTS, c = first_point + gk_lid() % GK_POINTS;
        gk_f acc[4];
        gk_score(acc, q, x, queries, points, first_query, first_point, count, n, len, metric);
        GK_EACH_QUERY(i) {
            gk_i64 r = first_query + gk_lid() / GK_POINTS + 4 * i;
            if (r < count && c < n) gk_store(y, r * n + c, metric == 0 ? acc[i] : -acc[i]);
        }
    }
}

/* Whether a key comes before another; NaN comes last. */
GK_FN int gk_key_before(gk_f a, gk_f b) { return gk_isnan(b) ? !gk_isnan(a) : a < b; }

/* Puts a key into a sorted list behind those that are not after it; the last of k falls out. */
GK_FN void gk_list_insert(GK_GLOBAL gk_f* keys, GK_GLOBAL int* ids, int filled, int k, gk_f key, int id)
{
    int at = filled < k ? filled : k - 1;
    for (; at > 0 && gk_key_before(key, keys[at - 1]); at--) {
        keys[at] = keys[at - 1];
        ids[at] = ids[at - 1];
    }
    keys[at] = key;
    ids[at] = id;
}

/* keys and ids [count, splits, k]: the nearest of each share of the points, in order; NaN with the number n where there are fewer. Launch: a block per
 * 16 queries and share. */
GK_KERNEL(nearest_lists)(GK_IN(gk_t, queries), GK_IN(gk_t, points), GK_OUT(gk_f, keys), GK_OUT(int, ids), gk_i64 count, gk_i64 n, gk_i64 len,
                         int metric, int k, int splits)
{
    GK_BIND_IN(gk_t, queries); GK_BIND_IN(gk_t, points); GK_BIND_OUT(gk_f, keys); GK_BIND_OUT(int, ids);
    GK_LOCAL gk_f q[GK_QUERIES * GK_PART_PITCH];
    GK_LOCAL gk_f x[GK_POINTS * GK_PART_PITCH];
    GK_LOCAL gk_f scores[GK_QUERIES * GK_SCORE_PITCH];
    gk_i64 down = (count + GK_QUERIES - 1) / GK_QUERIES, tiles = (n + GK_POINTS - 1) / GK_POINTS;
    for (gk_i64 w = gk_bid(0); w < down * splits; w += gk_nblocks(0)) {
        gk_i64 first_query = w / splits * GK_QUERIES, share = w % splits, query = first_query + gk_lid();
        gk_i64 list = (query * splits + share) * k;
        int mine = gk_lid() < GK_QUERIES && query < count, filled = 0;
        for (gk_i64 tile = tiles * share / splits; tile < tiles * (share + 1) / splits; tile++) {
            gk_f acc[4];
            gk_score(acc, q, x, queries, points, first_query, tile * GK_POINTS, count, n, len, metric);
            GK_EACH_QUERY(i) scores[(gk_lid() / GK_POINTS + 4 * i) * GK_SCORE_PITCH + gk_lid() % GK_POINTS] = acc[i];
            GK_BARRIER();
            for (int c = 0; mine && c < GK_POINTS && tile * GK_POINTS + c < n; c++) {
                gk_f key = scores[gk_lid() * GK_SCORE_PITCH + c];
                if (filled == k && !gk_key_before(key, keys[list + k - 1])) continue;
                gk_list_insert(keys + list, ids + list, filled, k, key, (int)(tile * GK_POINTS) + c);
                if (filled < k) filled++;
            }
            GK_BARRIER();
        }
        for (; mine && filled < k; filled++) {
            keys[list + filled] = GK_NAN;
            ids[list + filled] = (int)n;
        }
    }
}

/* y and index [count, k] = the first k of lists of `total` keys per query. Launch: a block per query. */
GK_KERNEL(nearest_merge)(GK_IN(gk_f, keys), GK_IN(int, ids), GK_OUT(gk_t, y), GK_OUT(int, index), gk_i64 count, int total, int k, int metric, int wide)
{
    GK_BIND_IN(gk_f, keys); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, index);
    for (gk_i64 query = gk_bid(0); query < count; query += gk_nblocks(0)) {
        gk_i64 at = query * total;
        for (int e = gk_lid(); e < total; e += GK_BLOCK) {
            gk_f key = keys[at + e];
            int id = ids[at + e], place = 0;
            for (int o = 0; o < total && place < k; o++) {
                gk_f other = keys[at + o];
                place += gk_key_before(other, key) || (!gk_key_before(key, other) && ids[at + o] < id);
            }
            if (place < k) {
                gk_store(y, query * k + place, metric == 0 ? key : -key);
                gk_store_index(index, query * k + place, wide, id);
            }
        }
    }
}

/* y [count, parts, 256]: scores of queries [count, parts, len] and centroids [parts, 256, len], metric 0 or 1. Launch: grid-stride over elements of y. */
GK_KERNEL(pq_tables)(GK_IN(gk_t, queries), GK_IN(gk_t, centroids), GK_OUT(gk_t, y), gk_i64 count, gk_i64 parts, gk_i64 len, int metric)
{
    GK_BIND_IN(gk_t, queries); GK_BIND_IN(gk_t, centroids); GK_BIND_OUT(gk_t, y);
    for (gk_i64 e = gk_gid(); e < count * parts * GK_CODES; e += gk_gsize()) {
        gk_i64 from = e / GK_CODES * len, to = e % (parts * GK_CODES) * len;
        gk_f sum = GK_R(0.0);
        for (gk_i64 i = 0; i < len; i++) {
            gk_f u = gk_load(queries, from + i), v = gk_load(centroids, to + i), d = u - v;
            sum += metric == 0 ? d * d : u * v;
        }
        gk_store(y, e, sum);
    }
}

/* y [count, n] = sums over parts of tables [count, parts, 256] at codes [n, parts]. Launch: a block per query and 2048 points. */
GK_KERNEL(pq_scan)(GK_IN(gk_t, tables), GK_IN(gk_u8, codes), GK_OUT(gk_t, y), gk_i64 count, gk_i64 n, gk_i64 parts)
{
    GK_BIND_IN(gk_t, tables); GK_BIND_IN(gk_u8, codes); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f table[GK_TABLE];
    gk_i64 across = (n + 8 * GK_BLOCK - 1) / (8 * GK_BLOCK), group = GK_TABLE / GK_CODES;
    for (gk_i64 w = gk_bid(0); w < count * across; w += gk_nblocks(0)) {
        gk_i64 query = w / across, first = w % across * 8 * GK_BLOCK + gk_lid();
        gk_f acc[8];
        GK_EACH_POINT(i) acc[i] = GK_R(0.0);
        for (gk_i64 from = 0; from < parts; from += group) {
            int held = (int)(parts - from < group ? parts - from : group);
            for (int e = gk_lid(); e < held * GK_CODES; e += GK_BLOCK) table[e] = gk_load(tables, (query * parts + from) * GK_CODES + e);
            GK_BARRIER();
            GK_EACH_POINT(i) {
                gk_i64 point = first + i * GK_BLOCK;
                for (int j = 0; point < n && j < held; j++) acc[i] += table[j * GK_CODES + codes[point * parts + from + j]];
            }
            GK_BARRIER();
        }
        GK_EACH_POINT(i) {
            if (first + i * GK_BLOCK < n) gk_store(y, query * n + first + i * GK_BLOCK, acc[i]);
        }
    }
}
