/* What is computed per edge of a graph, and the softmax over the edges of each node.
 *
 * Launch of the edge kernels: `lanes` threads, a power of two, take GK_U edges and lanes * w consecutive columns, w = GK_W where `wide`; axis 1
 * of the grid covers the columns. Arithmetic in gk_f, one writer per output, deterministic.
 * References: DGL's apply_edges and sddmm, edge_softmax; torch_scatter.
 */
#include "common/prelude/coordinates.h"
#include "graph.h"

#define GK_LEFT 0
#define GK_GRAPH_ADD 1
#define GK_GRAPH_SUB 2
#define GK_MUL 3

/* An end of edge `e`; without a list the edge itself. */
GK_FN int gk_end(GK_GLOBAL const int* ends, gk_i64 e, int wide_index, int limit, int* good)
{
    return ends ? gk_id(ends, e, wide_index, limit, good) : (int)e;
}

// Units: FLOATS64
/* out[o, e, c] (+)= alpha * (A[o, i(e), c] op B[o, j(e), c]); of A only what `mask`, an index per element of A, assigns to the edge; divided by
 * degree[i]. A without list is read at the edge. size: edges, columns (outer * inner), inner, rows of A, rows of B, log2 of lanes. */
GK_KERNEL(edge_map)(GK_IN(int, left), GK_IN(int, right), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, degree), GK_IN(int, mask), GK_OUT(gk_t, out),
                    GK_OUT(int, err), GK_DIMS(size), int op, gk_f alpha, int wide_index, int wide_saved, int wide, int accumulate, int code)
{
    GK_BIND_IN(int, left); GK_BIND_IN(int, right); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, degree); GK_BIND_IN(int, mask);
    GK_BIND_OUT(gk_t, out); GK_BIND_OUT(int, err);
    int lanes = (int)size.v[5];
    gk_i64 edges = size.v[0], columns = size.v[1], inner = size.v[2];
    gk_i64 column = (gk_i64)GK_VECTOR(lanes) * (wide ? GK_W : 1), o = inner == columns ? 0 : (gk_u32)column / (gk_u32)inner, at = column - o * inner;
    gk_i64 first = (gk_i64)GK_TEAM(lanes) * GK_U, step = (gk_i64)GK_TEAMS(lanes) * GK_U;
    if (column >= columns) edges = 0;
    /* Rows as they are. */
    if (left && op == GK_LEFT && wide && !degree && !mask && !accumulate && alpha == GK_R(1.0) && inner < 0x8000000) {
        gk_u32 bytes = (gk_u32)inner * (gk_u32)sizeof(gk_t);
        GK_GLOBAL const gk_t* from = a + o * size.v[3] * inner + at;
        GK_GLOBAL gk_t* to = out + o * size.v[0] * inner + at;
        for (; first < edges; first += step) {
            gk_raw16 x[GK_U];
            int id[GK_U];
            gk_ids(left, (gk_u32)first, (gk_u32)edges, wide_index, (int)size.v[3], err, code, id);
            GK_UNROLL for (int k = 0; k < GK_U; k++) {
                x[k] = gk_make16(0u, 0u, 0u, 0u);
                if (id[k] >= 0) x[k] = gk_row_bits(from, id[k], bytes);
            }
            GK_UNROLL for (int k = 0; k < GK_U; k++) {
                if (first + k < edges) gk_row_set(to, (int)first + k, bytes, gk_decode16(x[k]));
            }
        }
    }
    for (; first < edges; first += step) {
        gk_vec x[GK_U], y[GK_U];
        int i[GK_U], j[GK_U], good[GK_U];
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            good[k] = first + k < edges;
            i[k] = j[k] = 0;
            if (first + k < edges) {
                i[k] = gk_end(left, first + k, wide_index, (int)size.v[3], &good[k]);
                if (b) j[k] = gk_end(right, first + k, wide_index, (int)size.v[4], &good[k]);
                if (!good[k]) gk_report(err, code);
            }
        }
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            x[k] = gk_splat(GK_R(0.0));
            y[k] = gk_splat(GK_R(0.0));
            if (good[k]) {
                x[k] = gk_row_get(a, (o * size.v[3] + i[k]) * inner + at, wide);
                if (b) y[k] = gk_row_get(b, (o * size.v[4] + j[k]) * inner + at, wide);
            }
        }
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            if (first + k < edges) {
                gk_i64 to = (o * size.v[0] + first + k) * inner + at;
                gk_f d = GK_R(1.0);
                if (degree && good[k]) d = (gk_f)gk_index(degree, i[k], wide_saved);
                GK_UNROLL for (int l = 0; l < GK_W; l++) {
                    gk_f v = x[k].v[l], u = y[k].v[l];
                    if (op == GK_GRAPH_ADD) v = v + u;
                    else if (op == GK_GRAPH_SUB) v = v - u;
                    else if (op == GK_MUL) v = v * u;
                    if (degree) v = v / d;
                    if (mask && good[k] && (l == 0 || wide)) {
                        if (gk_index(mask, (o * size.v[3] + i[k]) * inner + at + l, wide_saved) != first + k) v = GK_R(0.0);
                    }
                    x[k].v[l] = alpha * v;
                }
                if (accumulate) {
                    gk_vec old = gk_row_get(out, to, wide);
                    GK_UNROLL for (int l = 0; l < GK_W; l++) x[k].v[l] = old.v[l] + x[k].v[l];
                }
                gk_row_put(out, to, x[k], wide);
            }
        }
    }
}

/* The same for the edges of each node at a time (graph/graph.h), which reads the node's row once: out[o, e, c] (+)= dy[o, v, c] / count[v]; where
 * `arg` [o, v, c] is given only what it assigns to the edge. size: nodes, entries, columns (outer * inner), inner, log2 of the cut and of lanes.
 * flags: 1 indices are i64, 2 strict, 4 accumulate, 8 nodes may be long, 16 arg and count are i64. Launch: as aggregate. */
GK_KERNEL(group_spread)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, perm), GK_IN(gk_t, dy), GK_IN(int, arg), GK_IN(int, count), GK_OUT(gk_t, out),
                        GK_OUT(int, err), GK_DIMS(size), int flags, int wide, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, arg); GK_BIND_IN(int, count);
    GK_BIND_OUT(gk_t, out); GK_BIND_OUT(int, err);
    int lanes = (int)size.v[5], wide_saved = flags & 16, cut = (int)size.v[4];
    gk_i64 nodes = size.v[0], entries = size.v[1], columns = size.v[2], inner = size.v[3];
    gk_u32 cuts = (flags & 8) ? gk_cuts(entries, cut) : 0u, items = cuts + (gk_u32)nodes;
    gk_i64 column = (gk_i64)GK_VECTOR(lanes) * (wide ? GK_W : 1), o = inner == columns ? 0 : (gk_u32)column / (gk_u32)inner, at = column - o * inner;
    /* One row for all edges of a node. */
    int plain = wide && !arg && !(flags & 4) && inner < 0x8000000;
    gk_u32 bytes = (gk_u32)inner * (gk_u32)sizeof(gk_t);
    if (column >= columns) items = 0;
    for (gk_u32 item = GK_TEAM(lanes); item < items; item += GK_TEAMS(lanes)) {
        GK_ROLLED for (int part = 0; part < 2; part++) {
            gk_piece q;
            if (!gk_piece_of(&q, rowptr, met, nodes, entries, cuts, cut, item, part, flags & 1, flags & 2, err, code)) continue;
            if (q.first >= q.end) continue;
            gk_i64 from = (o * nodes + q.node) * inner + at;
            gk_vec g = gk_row_get(dy, from, wide);
            int chosen[GK_W];
            GK_UNROLL for (int i = 0; i < GK_W; i++) {
                chosen[i] = -1;
                if (arg && (i == 0 || wide)) chosen[i] = (int)gk_index(arg, from + i, wide_saved);
            }
            if (count) {
                gk_f n = (gk_f)gk_index(count, q.node, wide_saved);
                GK_UNROLL for (int i = 0; i < GK_W; i++) g.v[i] = g.v[i] / n;
            }
            gk_u32 rest = q.first;
            if (plain) {
                GK_ROLLED for (; rest < q.end; rest += 2 * GK_U) {
                    int edge[GK_U], more[GK_U];
                    gk_ids(perm, rest, q.end, flags & 1, (int)entries, err, code, edge);
                    gk_ids(perm, rest + GK_U, q.end, flags & 1, (int)entries, err, code, more);
                    GK_UNROLL for (int k = 0; k < GK_U; k++) {
                        if (edge[k] >= 0) gk_row_set(out + o * entries * inner + at, edge[k], bytes, g);
                    }
                    GK_UNROLL for (int k = 0; k < GK_U; k++) {
                        if (more[k] >= 0) gk_row_set(out + o * entries * inner + at, more[k], bytes, g);
                    }
                }
            }
            GK_ROLLED for (gk_u32 p = rest; p < q.end; p += GK_U) {
                int edge[GK_U];
                gk_ids(perm, p, q.end, flags & 1, (int)entries, err, code, edge);
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    if (edge[k] >= 0) {
                        gk_i64 to = gk_at(o * entries * inner + at, edge[k], (gk_u32)inner);
                        gk_vec v = g;
                        if (arg) {
                            GK_UNROLL for (int i = 0; i < GK_W; i++) v.v[i] = chosen[i] == edge[k] ? g.v[i] : GK_R(0.0);
                        }
                        if (flags & 4) {
                            gk_vec old = gk_row_get(out, to, wide);
                            GK_UNROLL for (int i = 0; i < GK_W; i++) v.v[i] = old.v[i] + v.v[i];
                        }
                        gk_row_put(out, to, v, wide);
                    }
                }
            }
        }
    }
}

/* out[e, j] (+)= sum over the `span` columns c of part j of A[i(e), c] * B[k(e), c], B = 1 without it; mask and degree as in edge_map. `stat`
 * takes the result in gk_f instead. size: edges, parts, span, rows of A, rows of B, lanes. Axis 1 of the grid covers the parts. */
GK_KERNEL(edge_dot)(GK_IN(int, left), GK_IN(int, right), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(int, degree), GK_IN(int, mask), GK_OUT(gk_t, out),
                    GK_OUT(gk_f, stat), GK_OUT(int, err), GK_DIMS(size), int wide_index, int wide_saved, int wide, int accumulate, int code)
{
    GK_BIND_IN(int, left); GK_BIND_IN(int, right); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_IN(int, degree); GK_BIND_IN(int, mask);
    GK_BIND_OUT(gk_t, out); GK_BIND_OUT(gk_f, stat); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lanes = (int)size.v[5], w = wide ? GK_W : 1, lane = gk_lid() % lanes;
    gk_i64 edges = size.v[0], parts = size.v[1], span = size.v[2], row = parts * span, per = GK_BLOCK / lanes;
    gk_i64 first = ((gk_i64)gk_bid(0) * per + gk_lid() / lanes) * GK_U;
    for (gk_i64 j = gk_bid(1); j < parts; j += gk_nblocks(1)) {
        gk_f sum[GK_U];
        int i[GK_U], k_[GK_U], good[GK_U];
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            sum[k] = GK_R(0.0);
            good[k] = first + k < edges;
            i[k] = k_[k] = 0;
            if (first + k < edges) {
                i[k] = gk_end(left, first + k, wide_index, (int)size.v[3], &good[k]);
                if (b) k_[k] = gk_end(right, first + k, wide_index, (int)size.v[4], &good[k]);
                if (!good[k]) gk_report(err, code);
            }
        }
        for (gk_i64 c = (gk_i64)lane * w; c < span; c += (gk_i64)lanes * w) {
            GK_UNROLL for (int k = 0; k < GK_U; k++) {
                if (good[k]) {
                    gk_i64 from = (gk_i64)i[k] * row + j * span + c;
                    gk_vec x = gk_row_get(a, from, wide), y = gk_splat(GK_R(1.0));
                    if (b) y = gk_row_get(b, (gk_i64)k_[k] * row + j * span + c, wide);
                    GK_UNROLL for (int l = 0; l < GK_W; l++) {
                        int keep = l == 0 || wide;
                        if (mask && keep) keep = gk_index(mask, from + l, wide_saved) == first + k;
                        if (keep) sum[k] += x.v[l] * y.v[l];
                    }
                }
            }
        }
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            gk_f v = gk_group_sum(sum[k], tmp, lanes);
            if (lane == 0 && first + k < edges) {
                gk_i64 to = (first + k) * parts + j;
                if (degree && good[k]) v = v / (gk_f)gk_index(degree, i[k], wide_saved);
                if (stat) stat[to] = v;
                else gk_store(out, to, accumulate ? gk_load(out, to) + v : v);
            }
        }
    }
}

/* ---- softmax over the edges of a node ------------------------------------------------------------------------------------------ */

/* Largest logit and sum of exp(logit - largest), as they grow. */
typedef struct { gk_vec top, sum; } gk_norm;

GK_FN void gk_norm_add(gk_norm* n, int i, gk_f top, gk_f sum)
{
    gk_f m = gk_max(n->top.v[i], top), s = GK_R(0.0);
    /* A stretch of nothing but -inf has sum 0, which makes the softmax NaN in the end unless something larger comes. */
    if (n->top.v[i] != -GK_INF) s = n->sum.v[i] * gk_exp(n->top.v[i] - m);
    if (top != -GK_INF) s += sum * gk_exp(top - m);
    n->top.v[i] = m;
    n->sum.v[i] = s;
}

GK_FN gk_norm gk_norm_none(void)
{
    gk_norm n;
    n.top = gk_splat(-GK_INF);
    n.sum = gk_splat(GK_R(0.0));
    return n;
}

/* top, sum [nodes, columns] of the logits x [edges, columns]; with z only sum, that of x * z. parts [2 * cuts, 2, columns]. 1 << v[6] neighbouring
 * threads share the edges of a node, so that a few columns fill whole groups. size: nodes, entries, columns, log2 of the cut, edges, log2 of lanes
 * and of those. flags: 1 indices are i64, 2 strict, 8 nodes may be long. Launch: GK_BLOCK >> (v[5] + v[6]) items per block. */
GK_KERNEL(edge_norm)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, perm), GK_IN(gk_t, x), GK_IN(gk_t, z), GK_OUT(gk_f, top), GK_OUT(gk_f, sum),
                     GK_OUT(gk_f, parts), GK_OUT(int, err), GK_DIMS(size), int flags, int wide, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, z); GK_BIND_OUT(gk_f, top);
    GK_BIND_OUT(gk_f, sum); GK_BIND_OUT(gk_f, parts); GK_BIND_OUT(int, err);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int lanes = (int)size.v[5], ways = 1 << (int)size.v[6], way = gk_lid() & (ways - 1), bits = lanes + (int)size.v[6], cut = (int)size.v[3];
    gk_i64 nodes = size.v[0], entries = size.v[1], columns = size.v[2];
    gk_i64 column = (gk_i64)((gk_bid(1) << lanes) + (gk_lid() / ways & ((1 << lanes) - 1))) * (wide ? GK_W : 1);
    gk_u32 cuts = (flags & 8) ? gk_cuts(entries, cut) : 0u, items = cuts + (gk_u32)nodes, per = GK_BLOCK >> bits, team = (gk_u32)gk_lid() >> bits;
    for (gk_u32 first = (gk_u32)gk_bid(0) * per; first < items; first += (gk_u32)gk_nblocks(0) * per) {
        /* All threads visit the same parts, because they exchange what they found. */
        GK_ROLLED for (int part = 0; part < (first < cuts ? 2 : 1); part++) {
            gk_piece q;
            gk_norm n = gk_norm_none();
            int have = column < columns && first + team < items;
            if (have) have = gk_piece_of(&q, rowptr, met, nodes, entries, cuts, cut, first + team, part, flags & 1, flags & 2, err, code);
            if (z) n.top = gk_splat(GK_R(0.0));
            if (have) {
                int edge[GK_U];
                gk_u32 from = q.first + (gk_u32)(way * GK_U), step = (gk_u32)(ways * GK_U);
                gk_ids(perm, from, q.end, flags & 1, (int)size.v[4], err, code, edge);
                GK_ROLLED for (gk_u32 p = from; p < q.end; p += step) {
                    gk_vec v[GK_U], u[GK_U];
                    GK_UNROLL for (int k = 0; k < GK_U; k++) {
                        v[k] = u[k] = gk_splat(z ? GK_R(0.0) : -GK_INF);
                        if (edge[k] >= 0) {
                            gk_i64 at = gk_at(column, edge[k], (gk_u32)columns);
                            v[k] = gk_row_get(x, at, wide);
                            if (z) u[k] = gk_row_get(z, at, wide);
                        }
                    }
                    gk_ids(perm, p + step, q.end, flags & 1, (int)size.v[4], err, code, edge);
                    GK_UNROLL for (int i = 0; i < GK_W; i++) {
                        if (z) {
                            GK_UNROLL for (int k = 0; k < GK_U; k++) n.sum.v[i] += v[k].v[i] * u[k].v[i];
                        } else {
                            gk_f m = gk_max(gk_max(v[0].v[i], v[1].v[i]), gk_max(v[2].v[i], v[3].v[i])), s = GK_R(0.0);
                            m = gk_max(m, n.top.v[i]);
                            if (m != -GK_INF) {
                                s = n.sum.v[i] * gk_exp(n.top.v[i] - m);
                                GK_UNROLL for (int k = 0; k < GK_U; k++) s += gk_exp(v[k].v[i] - m);
                            }
                            n.top.v[i] = m;
                            n.sum.v[i] = s;
                        }
                    }
                }
            }
            if (ways > 1) {
                GK_UNROLL for (int i = 0; i < GK_W; i++) {
                    gk_f m = gk_group_max(n.top.v[i], tmp, ways), s = GK_R(0.0);
                    if (n.top.v[i] != -GK_INF) s = n.sum.v[i] * gk_exp(n.top.v[i] - m);
                    n.sum.v[i] = gk_group_sum(s, tmp, ways);
                    n.top.v[i] = m;
                }
            }
            if (!have || way > 0) continue;
            if (q.slot >= 0) {
                gk_part_put(parts, (q.slot * 2) * columns + column, n.top, wide);
                gk_part_put(parts, (q.slot * 2 + 1) * columns + column, n.sum, wide);
            } else {
                if (top) gk_part_put(top, q.node * columns + column, n.top, wide);
                gk_part_put(sum, q.node * columns + column, n.sum, wide);
            }
        }
    }
}

/* Combines the parts of the long nodes. Launch: one block per GK_GRAPH_WINDOW cuts; groups of threads, one per column, take every so many parts, then
 * the first adds up. */
GK_KERNEL(edge_norm_combine)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(gk_f, parts), GK_OUT(gk_f, top), GK_OUT(gk_f, sum), GK_DIMS(size), int flags)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(gk_f, parts); GK_BIND_OUT(gk_f, top); GK_BIND_OUT(gk_f, sum);
    GK_LOCAL gk_f tops[GK_BLOCK], sums[GK_BLOCK];
    int cut = (int)size.v[3], span = 1, t = gk_lid();
    gk_i64 entries = size.v[1], columns = size.v[2];
    gk_u32 cuts = gk_cuts(entries, cut);
    gk_piece q;
    gk_u32 item = (gk_u32)gk_bid(0) * GK_GRAPH_WINDOW;
    while (span < columns && span < GK_BLOCK) span *= 2;
    for (gk_u32 found = gk_begins(met, cuts, item); found; found >>= 1, item++) {
        if (!(found & 1u)) continue;
        gk_long_node(&q, rowptr, met, entries, cut, item, flags & 1);
        for (gk_i64 first = 0; first < columns; first += span) {
            gk_i64 column = first + t % span;
            gk_norm n = gk_norm_none();
            if (column < columns) {
                for (gk_i64 k = t / span; k <= q.slot; k += GK_BLOCK / span) {
                    gk_i64 slot = gk_part_slot(item, k);
                    gk_norm_add(&n, 0, parts[slot * 2 * columns + column], parts[(slot * 2 + 1) * columns + column]);
                }
            }
            tops[t] = n.top.v[0];
            sums[t] = n.sum.v[0];
            GK_BARRIER();
            if (t < span && column < columns) {
                for (int k = t + span; k < GK_BLOCK && k / span <= q.slot; k += span) gk_norm_add(&n, 0, tops[k], sums[k]);
                if (top) top[q.node * columns + column] = n.top.v[0];
                sum[q.node * columns + column] = n.sum.v[0];
            }
            GK_BARRIER();
        }
    }
}

#define GK_SOFTMAX 0
#define GK_SOFTMAX_BWD 1
#define GK_STD_BWD 2
#define GK_PROD_BWD 3

/* out[o, e, c] (+)= f of x and z at the edge and of s, t, u at its node:
 *   softmax       exp(x - s) / t
 *   its gradient  x * (z - s), x the softmax, z its upstream gradient, s their sum of products
 *   std           u * (x - s) / (n * t), s the mean, t the standard deviation (as stored in y), u = dy, n = max(count - correction, 1)
 *   product       u * (the product of the others), s the product of what is not 0, t the number of zeros
 * s and t are gk_f, u and y as stored. `rowptr` counts the edges of a node. size: edges, columns (outer * inner), inner, nodes, log2 of lanes,
 * correction. */
GK_KERNEL(edge_apply)(GK_IN(int, node), GK_IN(gk_t, x), GK_IN(gk_t, z), GK_IN(gk_f, s), GK_IN(gk_f, t), GK_IN(gk_t, u), GK_IN(gk_t, y),
                      GK_IN(int, rowptr), GK_OUT(gk_t, out), GK_OUT(int, err), GK_DIMS(size), int what, int wide_index, int wide_rowptr, int wide,
                      int accumulate, int code)
{
    GK_BIND_IN(int, node); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_f, s); GK_BIND_IN(gk_f, t); GK_BIND_IN(gk_t, u);
    GK_BIND_IN(gk_t, y);
    GK_BIND_IN(int, rowptr); GK_BIND_OUT(gk_t, out); GK_BIND_OUT(int, err);
    int lanes = (int)size.v[4];
    gk_i64 edges = size.v[0], columns = size.v[1], inner = size.v[2], nodes = size.v[3];
    gk_i64 column = (gk_i64)GK_VECTOR(lanes) * (wide ? GK_W : 1), o = inner == columns ? 0 : (gk_u32)column / (gk_u32)inner, at = column - o * inner;
    if (column >= columns) edges = 0;
    for (gk_i64 e = GK_TEAM(lanes); e < edges; e += GK_TEAMS(lanes)) {
        int good = 1, v = gk_id(node, e, wide_index, (int)nodes, &good);
        gk_i64 here = (o * size.v[0] + e) * inner + at, there = (o * nodes + v) * inner + at;
        gk_vec a = gk_row_get(x, here, wide), r = gk_splat(GK_R(0.0));
        if (!good) gk_report(err, code);
        if (good) {
            gk_vec p = gk_part_get(s, there, wide), b = r, c = r, d = r;
            gk_f n = GK_R(1.0);
            if (z) b = gk_row_get(z, here, wide);
            if (t) c = gk_part_get(t, there, wide);
            if (y) c = gk_row_get(y, there, wide);
            if (u) d = gk_row_get(u, there, wide);
            if (what == GK_STD_BWD) n = gk_max((gk_f)(gk_index(rowptr, v + 1, wide_rowptr) - gk_index(rowptr, v, wide_rowptr) - size.v[5]),
                GK_R(1.0));
            GK_UNROLL for (int l = 0; l < GK_W; l++) {
                gk_f q = GK_R(0.0);
                if (l == 0 || wide) {
                    if (what == GK_SOFTMAX) q = gk_exp(a.v[l] - p.v[l]) / c.v[l];
                    else if (what == GK_SOFTMAX_BWD) q = a.v[l] * (b.v[l] - p.v[l]);
                    else if (what == GK_STD_BWD) q = d.v[l] * (a.v[l] - p.v[l]) / (n * c.v[l]);
                    else if (a.v[l] == GK_R(0.0)) q = c.v[l] == GK_R(1.0) ? d.v[l] * p.v[l] : GK_R(0.0);
                    else q = c.v[l] > GK_R(0.0) ? GK_R(0.0) : d.v[l] * (p.v[l] / a.v[l]);
                }
                r.v[l] = q;
            }
        }
        if (accumulate) {
            gk_vec old = gk_row_get(out, here, wide);
            GK_UNROLL for (int l = 0; l < GK_W; l++) r.v[l] = old.v[l] + r.v[l];
        }
        gk_row_put(out, here, r, wide);
    }
}

/* y[v, c] = sqrt(sum / max(count - correction, 1) + eps), 0 for an empty node. Launch: grid-stride over outer * nodes * inner. */
GK_KERNEL(group_std)(GK_IN(int, rowptr), GK_IN(gk_f, sum), GK_OUT(gk_t, y), gk_i64 n, gk_i64 nodes, gk_i64 inner, int wide_index, int correction,
                     gk_f eps)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(gk_f, sum); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 v = i / inner % nodes;
        gk_i64 count = gk_index(rowptr, v + 1, wide_index) - gk_index(rowptr, v, wide_index);
        gk_f d = gk_max((gk_f)(count - correction), GK_R(1.0));
        gk_store(y, i, count > 0 ? gk_sqrt(sum[i] / d + eps) : GK_R(0.0));
    }
}

/* dsrc[o, arg[o, r, c], c] (+)= dy[o, r, c] where arg >= 0: each source is the choice of one destination at most. Launch: grid-stride over dy. */
GK_KERNEL(arg_spread)(GK_IN(gk_t, dy), GK_IN(int, arg), GK_OUT(gk_t, dsrc), GK_OUT(int, err), gk_i64 n, gk_i64 nodes, gk_i64 inner, gk_i64 edges,
                      int wide_index, int accumulate, int code)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(int, arg); GK_BIND_OUT(gk_t, dsrc); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 e = gk_index(arg, i, wide_index), r = i / inner, o = r / nodes;
        if (e < -1 || e >= edges) gk_report(err, code);
        if (e >= 0 && e < edges) {
            gk_i64 to = (o * edges + e) * inner + i - r * inner;
            gk_store(dsrc, to, accumulate ? gk_load(dsrc, to) + gk_load(dy, i) : gk_load(dy, i));
        }
    }
}

/* out[p] = value[p] / sqrt(d[row] d[col]) of a square matrix, 0 where a degree is not above 0; value is 1 without a list. Launch: grid-stride over
 * the entries. */
GK_KERNEL(sym_scale)(GK_IN(int, row), GK_IN(int, col), GK_IN(gk_t, value), GK_IN(gk_f, d), GK_OUT(gk_t, out), GK_OUT(int, err), gk_i64 n, int nodes,
                     int wide_index, int code)
{
    GK_BIND_IN(int, row); GK_BIND_IN(int, col); GK_BIND_IN(gk_t, value); GK_BIND_IN(gk_f, d); GK_BIND_OUT(gk_t, out); GK_BIND_OUT(int, err);
    for (gk_i64 p = gk_gid(); p < n; p += gk_gsize()) {
        int good = 1, r = gk_id(row, p, 0, nodes, &good), c = gk_id(col, p, wide_index, nodes, &good);
        gk_f v = GK_R(0.0);
        if (!good) gk_report(err, code);
        if (good && !(d[r] <= GK_R(0.0) || d[c] <= GK_R(0.0))) {
            v = value ? gk_load(value, p) : GK_R(1.0);
            v = v / (gk_sqrt(d[r]) * gk_sqrt(d[c]));
        }
        gk_store(out, p, v);
    }
}
