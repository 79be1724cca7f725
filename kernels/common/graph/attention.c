/* Graph attention without anything per edge in memory (Velickovic et al., 2018; the recomputation follows FlashAttention, Dao et al., 2022):
 *
 *   l = leaky_relu(score_src[u, h] + score_dst[v, h]),  a = softmax of l over the edges into v,  y[v, h, :] = sum a x[u, h, :]
 *
 * Forward iterates over the edges into each node with a running maximum and saves lse = log sum exp l. Backward recomputes a = exp(l - lse). With
 * c = a * leaky'(.), everything is a sum of rows over edges, once by destination and once by source:
 *
 *   by destination  A = sum a x[u],  C = sum c x[u],  s = sum c:           delta = dy[v] . A,  dscore_dst = dy[v] . C - delta s
 *   by source       A = sum a dy[v], C = sum c dy[v], s = sum c delta[v]:  dx[u] = A,          dscore_src = x[u] . C - s
 *
 * Launch: as graph/aggregate.c; a thread's w columns lie in one head. Sums in gk_f in the order of the entries; one writer per output; deterministic.
 * Dims: nodes, entries, columns (heads * features), features, other ends, log2 of the cut and of lanes, flags (1 indices are i64, 2 strict,
 * 8 nodes may be long).
 */
#include "graph.h"

/* Loads in flight from many blocks hide more than registers do. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 4

#define GK_NODES size.v[0]
#define GK_ENTRIES size.v[1]
#define GK_COLUMNS size.v[2]
#define GK_FEATURES size.v[3]
#define GK_OTHERS size.v[4]
#define GK_CUT (int)size.v[5]
#define GK_GRAPH_LANES (int)size.v[6]
#define GK_FLAG(b) ((size.v[7] & (b)) != 0)
#define GK_CUTS (GK_FLAG(8) ? gk_cuts(GK_ENTRIES, GK_CUT) : 0u)

typedef struct { gk_vec acc; gk_f top, sum; } gk_heap;

GK_FN gk_f gk_leaky(gk_f z, gk_f slope) { return (z > GK_R(0.0) || gk_isnan(z)) ? z : slope * z; }

/* b is added to a; a stretch of nothing but -inf has sum 0. */
GK_FN void gk_heap_add(gk_heap* a, gk_heap b)
{
    gk_f top = gk_max(a->top, b.top), fa = GK_R(0.0), fb = GK_R(0.0);
    if (a->top != -GK_INF) fa = gk_exp(a->top - top);
    if (b.top != -GK_INF) fb = gk_exp(b.top - top);
    GK_UNROLL for (int i = 0; i < GK_W; i++) a->acc.v[i] = fa * a->acc.v[i] + fb * b.acc.v[i];
    a->sum = fa * a->sum + fb * b.sum;
    a->top = top;
}

GK_FN gk_heap gk_heap_none(void)
{
    gk_heap h;
    h.acc = gk_splat(GK_R(0.0));
    h.top = -GK_INF;
    h.sum = GK_R(0.0);
    return h;
}

GK_FN void gk_heap_finish(GK_GLOBAL gk_t* y, GK_GLOBAL gk_f* lse, gk_heap h, gk_i64 node, gk_i64 column, gk_i64 columns, gk_i64 features,
                          gk_i64 count, int wide)
{
    gk_f n = count > 0 ? h.sum : GK_R(1.0);
    GK_UNROLL for (int i = 0; i < GK_W; i++) h.acc.v[i] = h.acc.v[i] / n;
    gk_row_put(y, node * columns + column, h.acc, wide);
    gk_u32 head = (gk_u32)column / (gk_u32)features;
    if (lse && (gk_u32)column == head * (gk_u32)features)
        lse[node * ((gk_u32)columns / (gk_u32)features) + head] = count > 0 ? h.top + gk_log(h.sum) : GK_R(0.0);
}

// Units: FLOATS64
/* y [nodes, columns], lse [nodes, heads]; parts [2 * cuts, columns], norms [2 * cuts, 2, columns / w]. */
GK_KERNEL(gat)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, col), GK_IN(gk_t, x), GK_IN(gk_t, score_src), GK_IN(gk_t, score_dst), GK_OUT(gk_t, y),
               GK_OUT(gk_f, lse), GK_OUT(gk_f, parts), GK_OUT(gk_f, norms), GK_OUT(int, err), GK_DIMS(size), gk_f slope, int wide, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, col); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, score_src);
    GK_BIND_IN(gk_t, score_dst);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, parts); GK_BIND_OUT(gk_f, norms); GK_BIND_OUT(int, err);
    int lanes = GK_GRAPH_LANES, w = wide ? GK_W : 1, wide_index = GK_FLAG(1), heads = (int)((gk_u32)GK_COLUMNS / (gk_u32)GK_FEATURES);
    gk_u32 cuts = GK_CUTS, items = cuts + (gk_u32)GK_NODES;
    gk_i64 vec = GK_VECTOR(lanes), column = vec * w, vecs = (gk_u32)GK_COLUMNS / (gk_u32)w;
    int head = (int)((gk_u32)column / (gk_u32)GK_FEATURES);
    if (column >= GK_COLUMNS) items = 0;
    for (gk_u32 item = GK_TEAM(lanes); item < items; item += GK_TEAMS(lanes)) {
        GK_ROLLED for (int part = 0; part < 2; part++) {
            gk_piece q;
            if (!gk_piece_of(&q, rowptr, met, GK_NODES, GK_ENTRIES, cuts, GK_CUT, item, part, wide_index, GK_FLAG(2), err, code)) continue;
            gk_f mine = gk_load(score_dst, q.node * heads + head);
            gk_heap h = gk_heap_none();
            int u[GK_U];
            gk_ids(col, q.first, q.end, wide_index, (int)GK_OTHERS, err, code, u);
            GK_ROLLED for (gk_u32 p = q.first; p < q.end; p += GK_U) {
                gk_vec v[GK_U];
                gk_f l[GK_U];
                int good[GK_U];
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    good[k] = u[k] >= 0;
                    l[k] = -GK_INF;
                    v[k] = gk_splat(GK_R(0.0));
                    if (good[k]) {
                        l[k] = gk_load(score_src, gk_at(head, u[k], (gk_u32)heads));
                        v[k] = gk_row_get(x, gk_at(column, u[k], (gk_u32)GK_COLUMNS), wide);
                    }
                }
                gk_ids(col, p + GK_U, q.end, wide_index, (int)GK_OTHERS, err, code, u);
                gk_f top = h.top;
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    if (good[k]) {
                        l[k] = gk_leaky(l[k] + mine, slope);
                        top = gk_max(top, l[k]);
                    }
                }
                if (top != -GK_INF) {
                    gk_f f = GK_R(0.0);
                    if (h.top != -GK_INF) f = gk_exp(h.top - top);
                    h.sum = f * h.sum;
                    GK_UNROLL for (int i = 0; i < GK_W; i++) h.acc.v[i] = f * h.acc.v[i];
                    GK_UNROLL for (int k = 0; k < GK_U; k++) {
                        if (good[k]) {
                            gk_f a = gk_exp(l[k] - top);
                            h.sum += a;
                            GK_UNROLL for (int i = 0; i < GK_W; i++) h.acc.v[i] += a * v[k].v[i];
                        }
                    }
                    h.top = top;
                }
            }
            if (q.slot >= 0) {
                gk_part_put(parts, q.slot * GK_COLUMNS + column, h.acc, wide);
                norms[q.slot * 2 * vecs + vec] = h.top;
                norms[(q.slot * 2 + 1) * vecs + vec] = h.sum;
            } else {
                gk_heap_finish(y, lse, h, q.node, column, GK_COLUMNS, GK_FEATURES, q.end - q.first, wide);
            }
        }
    }
}

/* Combines the parts of the long nodes. Launch: one block per GK_GRAPH_WINDOW cuts; groups of `lanes` threads take every so many parts, then the
 * first adds up. */
GK_KERNEL(gat_combine)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(gk_f, parts), GK_IN(gk_f, norms), GK_OUT(gk_t, y), GK_OUT(gk_f, lse), GK_DIMS(size),
                       int wide)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(gk_f, parts); GK_BIND_IN(gk_f, norms); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, lse);
    GK_LOCAL gk_f tmp[GK_BLOCK * (GK_W + 2)];
    int lanes = 1 << GK_GRAPH_LANES, w = wide ? GK_W : 1, t = gk_lid(), groups = GK_BLOCK / lanes;
    gk_u32 cuts = GK_CUTS;
    gk_i64 vecs = GK_COLUMNS / w;
    gk_piece q;
    gk_u32 item = (gk_u32)gk_bid(0) * GK_GRAPH_WINDOW;
    for (gk_u32 found = gk_begins(met, cuts, item); found; found >>= 1, item++) {
        if (!(found & 1u)) continue;
        gk_long_node(&q, rowptr, met, GK_ENTRIES, GK_CUT, item, GK_FLAG(1));
        for (gk_i64 first = 0; first < vecs; first += lanes) {
            gk_i64 vec = first + t % lanes;
            gk_heap h = gk_heap_none(), b;
            if (vec < vecs) {
                for (gk_i64 k = t / lanes; k <= q.slot; k += groups) {
                    gk_i64 slot = gk_part_slot(item, k);
                    b.acc = gk_part_get(parts, slot * GK_COLUMNS + vec * w, wide);
                    b.top = norms[slot * 2 * vecs + vec];
                    b.sum = norms[(slot * 2 + 1) * vecs + vec];
                    gk_heap_add(&h, b);
                }
            }
            GK_UNROLL for (int i = 0; i < GK_W; i++) tmp[i * GK_BLOCK + t] = h.acc.v[i];
            tmp[GK_W * GK_BLOCK + t] = h.top;
            tmp[(GK_W + 1) * GK_BLOCK + t] = h.sum;
            GK_BARRIER();
            if (t < lanes && vec < vecs) {
                for (int k = 1; k < groups; k++) {
                    GK_UNROLL for (int i = 0; i < GK_W; i++) b.acc.v[i] = tmp[i * GK_BLOCK + k * lanes + t];
                    b.top = tmp[GK_W * GK_BLOCK + k * lanes + t];
                    b.sum = tmp[(GK_W + 1) * GK_BLOCK + k * lanes + t];
                    gk_heap_add(&h, b);
                }
                gk_heap_finish(y, lse, h, q.node, vec * w, GK_COLUMNS, GK_FEATURES, q.end - q.first, wide);
            }
            GK_BARRIER();
        }
    }
}

/* The sums A, C and s of a node and what becomes of them: A goes to dx or, without it, its product with the node's own row to pa; that of C to pb. */
typedef struct { gk_vec a, c; gk_f s; } gk_pull;

GK_FN void gk_pull_finish(GK_GLOBAL const gk_t* own, GK_GLOBAL gk_t* dx, GK_GLOBAL gk_f* pa, GK_GLOBAL gk_f* pb, GK_GLOBAL gk_f* ps, gk_pull r,
                          gk_i64 at, gk_i64 vec, int accumulate, int wide)
{
    gk_vec z = gk_row_get(own, at, wide);
    gk_f a = GK_R(0.0), c = GK_R(0.0);
    GK_UNROLL for (int i = 0; i < GK_W; i++) {
        if (i == 0 || wide) {
            a += z.v[i] * r.a.v[i];
            c += z.v[i] * r.c.v[i];
        }
    }
    pb[vec] = c;
    ps[vec] = r.s;
    if (pa) pa[vec] = a;
    if (dx) {
        if (accumulate) {
            gk_vec old = gk_row_get(dx, at, wide);
            GK_UNROLL for (int i = 0; i < GK_W; i++) r.a.v[i] = old.v[i] + r.a.v[i];
        }
        gk_row_put(dx, at, r.a, wide);
    }
}

/* One of the two passes of the gradient: by destination without `delta` (`row` is x, `own` dy, pa is wanted), by source with it (`row` is dy, `own`
 * x, dx is wanted). score_own belongs to the nodes, score_other to the other ends; lse to the destinations. pa, pb, ps [nodes, columns / w];
 * parts [2 * cuts, 2, columns], sums [2 * cuts, columns / w]. */
GK_KERNEL(gat_bwd)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, col), GK_IN(gk_t, row), GK_IN(gk_t, own), GK_IN(gk_t, score_own),
                   GK_IN(gk_t, score_other), GK_IN(gk_f, lse), GK_IN(gk_f, delta), GK_OUT(gk_t, dx), GK_OUT(gk_f, pa), GK_OUT(gk_f, pb),
                   GK_OUT(gk_f, ps), GK_OUT(gk_f, parts), GK_OUT(gk_f, sums), GK_OUT(int, err), GK_DIMS(size), gk_f slope, int wide, int accumulate,
                   int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, col); GK_BIND_IN(gk_t, row); GK_BIND_IN(gk_t, own); GK_BIND_IN(gk_t, score_own);
    GK_BIND_IN(gk_t, score_other); GK_BIND_IN(gk_f, lse); GK_BIND_IN(gk_f, delta); GK_BIND_OUT(gk_t, dx); GK_BIND_OUT(gk_f, pa);
    GK_BIND_OUT(gk_f, pb);
    GK_BIND_OUT(gk_f, ps); GK_BIND_OUT(gk_f, parts); GK_BIND_OUT(gk_f, sums); GK_BIND_OUT(int, err);
    int lanes = GK_GRAPH_LANES, w = wide ? GK_W : 1, wide_index = GK_FLAG(1), heads = (int)((gk_u32)GK_COLUMNS / (gk_u32)GK_FEATURES),
        by_source = delta != 0;
    gk_u32 cuts = GK_CUTS, items = cuts + (gk_u32)GK_NODES;
    gk_i64 vec = GK_VECTOR(lanes), column = vec * w, vecs = (gk_u32)GK_COLUMNS / (gk_u32)w;
    int head = (int)((gk_u32)column / (gk_u32)GK_FEATURES);
    if (column >= GK_COLUMNS) items = 0;
    for (gk_u32 item = GK_TEAM(lanes); item < items; item += GK_TEAMS(lanes)) {
        GK_ROLLED for (int part = 0; part < 2; part++) {
            gk_piece q;
            if (!gk_piece_of(&q, rowptr, met, GK_NODES, GK_ENTRIES, cuts, GK_CUT, item, part, wide_index, GK_FLAG(2), err, code)) continue;
            gk_f mine = gk_load(score_own, q.node * heads + head), norm = GK_R(0.0);
            gk_pull r;
            r.a = r.c = gk_splat(GK_R(0.0));
            r.s = GK_R(0.0);
            if (!by_source) norm = lse[q.node * heads + head];
            int u[GK_U];
            gk_ids(col, q.first, q.end, wide_index, (int)GK_OTHERS, err, code, u);
            GK_ROLLED for (gk_u32 p = q.first; p < q.end; p += GK_U) {
                gk_vec v[GK_U];
                gk_f l[GK_U], n[GK_U], d[GK_U];
                int good[GK_U];
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    good[k] = u[k] >= 0;
                    l[k] = GK_R(0.0);
                    n[k] = norm;
                    d[k] = GK_R(1.0);
                    v[k] = gk_splat(GK_R(0.0));
                    if (good[k]) {
                        gk_i64 at = gk_at(head, u[k], (gk_u32)heads);
                        l[k] = gk_load(score_other, at);
                        if (by_source) {
                            n[k] = lse[at];
                            d[k] = delta[at];
                        }
                        v[k] = gk_row_get(row, gk_at(column, u[k], (gk_u32)GK_COLUMNS), wide);
                    }
                }
                gk_ids(col, p + GK_U, q.end, wide_index, (int)GK_OTHERS, err, code, u);
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    if (good[k]) {
                        gk_f z = l[k] + mine, a = gk_exp(gk_leaky(z, slope) - n[k]), c = z > GK_R(0.0) ? a : slope * a;
                        GK_UNROLL for (int i = 0; i < GK_W; i++) {
                            r.a.v[i] += a * v[k].v[i];
                            r.c.v[i] += c * v[k].v[i];
                        }
                        r.s += c * d[k];
                    }
                }
            }
            if (q.slot >= 0) {
                gk_part_put(parts, q.slot * 2 * GK_COLUMNS + column, r.a, wide);
                gk_part_put(parts, (q.slot * 2 + 1) * GK_COLUMNS + column, r.c, wide);
                sums[q.slot * vecs + vec] = r.s;
            } else {
                gk_pull_finish(own, dx, pa, pb, ps, r, q.node * GK_COLUMNS + column, q.node * vecs + vec, accumulate, wide);
            }
        }
    }
}

/* Combines the parts of the long nodes. Launch: one block per GK_GRAPH_WINDOW cuts; groups of `lanes` threads take every so many parts, then the
 * first adds up. */
GK_KERNEL(gat_bwd_combine)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(gk_t, own), GK_IN(gk_f, parts), GK_IN(gk_f, sums), GK_OUT(gk_t, dx),
                           GK_OUT(gk_f, pa), GK_OUT(gk_f, pb), GK_OUT(gk_f, ps), GK_DIMS(size), int wide, int accumulate)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(gk_t, own); GK_BIND_IN(gk_f, parts); GK_BIND_IN(gk_f, sums); GK_BIND_OUT(gk_t, dx);
    GK_BIND_OUT(gk_f, pa); GK_BIND_OUT(gk_f, pb); GK_BIND_OUT(gk_f, ps);
    GK_LOCAL gk_f tmp[GK_BLOCK * (2 * GK_W + 1)];
    int lanes = 1 << GK_GRAPH_LANES, w = wide ? GK_W : 1, t = gk_lid(), groups = GK_BLOCK / lanes;
    gk_u32 cuts = GK_CUTS;
    gk_i64 vecs = GK_COLUMNS / w;
    gk_piece q;
    gk_u32 item = (gk_u32)gk_bid(0) * GK_GRAPH_WINDOW;
    for (gk_u32 found = gk_begins(met, cuts, item); found; found >>= 1, item++) {
        if (!(found & 1u)) continue;
        gk_long_node(&q, rowptr, met, GK_ENTRIES, GK_CUT, item, GK_FLAG(1));
        for (gk_i64 first = 0; first < vecs; first += lanes) {
            gk_i64 vec = first + t % lanes;
            gk_pull r;
            r.a = r.c = gk_splat(GK_R(0.0));
            r.s = GK_R(0.0);
            if (vec < vecs) {
                for (gk_i64 k = t / lanes; k <= q.slot; k += groups) {
                    gk_i64 slot = gk_part_slot(item, k);
                    gk_vec a = gk_part_get(parts, slot * 2 * GK_COLUMNS + vec * w, wide), c = gk_part_get(parts,
                        (slot * 2 + 1) * GK_COLUMNS + vec * w, wide);
                    GK_UNROLL for (int i = 0; i < GK_W; i++) {
                        r.a.v[i] += a.v[i];
                        r.c.v[i] += c.v[i];
                    }
                    r.s += sums[slot * vecs + vec];
                }
            }
            GK_UNROLL for (int i = 0; i < GK_W; i++) {
                tmp[i * GK_BLOCK + t] = r.a.v[i];
                tmp[(GK_W + i) * GK_BLOCK + t] = r.c.v[i];
            }
            tmp[2 * GK_W * GK_BLOCK + t] = r.s;
            GK_BARRIER();
            if (t < lanes && vec < vecs) {
                for (int k = 1; k < groups; k++) {
                    GK_UNROLL for (int i = 0; i < GK_W; i++) {
                        r.a.v[i] += tmp[i * GK_BLOCK + k * lanes + t];
                        r.c.v[i] += tmp[(GK_W + i) * GK_BLOCK + k * lanes + t];
                    }
                    r.s += tmp[2 * GK_W * GK_BLOCK + k * lanes + t];
                }
                gk_pull_finish(own, dx, pa, pb, ps, r, q.node * GK_COLUMNS + vec * w, q.node * vecs + vec, accumulate, wide);
            }
            GK_BARRIER();
        }
    }
}

/* Per node and head, over the head's `run` vectors: delta = sum pa where pa is given; dscore (+)= sum pb - s * (delta or 1). Launch: grid-stride over
 * nodes * heads. */
GK_KERNEL(gat_scores)(GK_IN(gk_f, pa), GK_IN(gk_f, pb), GK_IN(gk_f, ps), GK_OUT(gk_f, delta), GK_OUT(gk_t, dscore), gk_i64 n, gk_i64 run,
                      int accumulate)
{
    GK_BIND_IN(gk_f, pa); GK_BIND_IN(gk_f, pb); GK_BIND_IN(gk_f, ps); GK_BIND_OUT(gk_f, delta); GK_BIND_OUT(gk_t, dscore);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_f a = GK_R(0.0), b = GK_R(0.0), d = GK_R(1.0);
        for (gk_i64 k = 0; k < run; k++) {
            if (pa) a += pa[i * run + k];
            b += pb[i * run + k];
        }
        if (pa) {
            delta[i] = a;
            d = a;
        }
        if (dscore) {
            if (run > 0) b = b - ps[i * run] * d;
            gk_store(dscore, i, accumulate ? gk_load(dscore, i) + b : b);
        }
    }
}
