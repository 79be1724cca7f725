/* Reductions of messages over the edges of each node, without the messages in memory:
 *
 *   y[v, c] = red over the entries p of v of  m,   m = A[i, c]  combined with  B[j, c / span]  and  S[v, c]
 *
 * A is read at the edge or at the other end, B likewise (one element per `span` columns), S at the node itself. A mask keeps the messages that an
 * extreme chose, a degree divides those of a mean: with them the same sums are the gradients.
 *
 * Launch: `lanes` threads, a power of two, take one stretch of entries (graph/graph.h) and lanes * w consecutive columns, w = GK_W where `wide`;
 * axis 1 of the grid covers the columns. The rows of GK_U edges are on their way at a time, and the indices of the next ones. Sums run in the
 * order of the entries, in gk_f, for GK_GRAPH_RUN of them at a time; the parts of long nodes are combined in order. One writer per output,
 * deterministic. References: torch.sparse @, index_add, scatter_reduce; DGL's copy_u, u_mul_e and so on.
 */
#include "common/prelude/coordinates.h"
#include "common/activation/activation_ops.h"
#include "graph.h"

/* GK_OP: gk_agg_any serves every message; gk_agg_copy, gk_agg_scaled and gk_agg_shared know at compile time that it is A, A times one number per edge
 * and row of A, or A divided by a degree, in whole vectors, of a sum or mean to which nothing but a bias is added: their registers hold more edges at a
 * time, and more of them fit on the device. */
#define gk_agg_any_low_register 0
#define gk_agg_copy_low_register 1
#define gk_agg_scaled_low_register 2
#define gk_agg_shared_low_register 3
#define GK_GRAPH_LOW_REGISTER GK_CAT(GK_OP, _low_register)
#if GK_GRAPH_LOW_REGISTER
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_GRAPH_LOW_REGISTER == 3 ? 5 : 4)
#endif

/* What a message is: A, with B, with the node's own row. */
#define GK_PLAIN 0
#define GK_TIMES_B 1
#define GK_PLUS_B 2
#define GK_PLUS_S 3
#define GK_MINUS_S 4
#define GK_TIMES_S 5
#define GK_DEVIATION 6
#define GK_GRAPH_IS_ZERO 7
#define GK_GRAPH_NONZERO 8

#define GK_RED_SUM 0
#define GK_RED_MEAN 1
#define GK_RED_PROD 2

/* Entries that are summed one by one: a longer sum would lose some of what each one adds, though nothing that 16-bit storage could hold. */
#define GK_GRAPH_RUN 32u
#define GK_RUN_ENDS(p, first) (GK_W <= 4 && (((p) - (first) + GK_U) & (GK_GRAPH_RUN - 1u)) == 0u)

/* acc += v, or acc *= v for a product. */
GK_FN void gk_fold(gk_vec* acc, gk_vec v, int red)
{
    GK_UNROLL for (int i = 0; i < GK_W; i++) acc->v[i] = red == GK_RED_PROD ? acc->v[i] * v.v[i] : acc->v[i] + v.v[i];
}

typedef struct {
    GK_GLOBAL const int* col;
    GK_GLOBAL const int* perm;
    GK_GLOBAL const gk_t* a;
    GK_GLOBAL const gk_t* b;
    GK_GLOBAL const int* degree;
    GK_GLOBAL const int* mask;
    GK_GLOBAL int* err;
    gk_i64 a_base, m_base, b_base;
    gk_u32 inner, b_row;
    int edges, others, b_full, wide_index, wide_saved, wide, message, a_at_edge, b_at_edge, m_at_self, code;
} gk_aggregate;

/* The other ends and the edges of entries p .. p + GK_U - 1; edge -1 where there is none or either is out of range. */
typedef struct { int other[GK_U], edge[GK_U]; } gk_ends;

GK_FN void gk_find(const gk_aggregate* g, gk_u32 p, gk_u32 end, gk_ends* e)
{
    gk_ids(g->perm, p, end, g->wide_index, g->edges, g->err, g->code, e->edge);
    GK_UNROLL for (int k = 0; k < GK_U; k++) e->other[k] = e->edge[k];
    if (g->col) {
        gk_ids(g->col, p, end, g->wide_index, g->others, g->err, g->code, e->other);
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            if (e->other[k] < 0) e->edge[k] = -1;
        }
    }
}

/* The messages of these entries, zeros where there is none. */
GK_FN void gk_messages(const gk_aggregate* g, int node, gk_vec own, const gk_ends* e, gk_vec m[GK_U])
{
    int good[GK_U];
    GK_UNROLL for (int k = 0; k < GK_U; k++) {
        good[k] = e->edge[k] >= 0;
        m[k] = gk_splat(good[k] ? GK_R(1.0) : GK_R(0.0));
        if (g->a) {
            if (good[k]) m[k] = gk_row_get(g->a, gk_at(g->a_base, g->a_at_edge ? e->edge[k] : e->other[k], g->inner), g->wide);
        }
    }
    if (g->b) {
        gk_vec b[GK_U];
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            b[k] = gk_splat(GK_R(0.0));
            if (good[k]) {
                gk_i64 from = gk_at(g->b_base, g->b_at_edge ? e->edge[k] : e->other[k], g->b_row);
                if (g->b_full) b[k] = gk_row_get(g->b, from, g->wide);
                else b[k] = gk_splat(gk_load(g->b, from));
            }
        }
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            GK_UNROLL for (int i = 0; i < GK_W; i++) m[k].v[i] = g->message == GK_PLUS_B ? m[k].v[i] + b[k].v[i] : m[k].v[i] * b[k].v[i];
        }
    }
    if (g->message >= GK_PLUS_S) {
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            GK_UNROLL for (int i = 0; i < GK_W; i++) {
                gk_f x = m[k].v[i], s = own.v[i];
                if (g->message == GK_PLUS_S) x = x + s;
                else if (g->message == GK_MINUS_S) x = x - s;
                else if (g->message == GK_TIMES_S) x = x * s;
                else if (g->message == GK_DEVIATION) x = (x - s) * (x - s);
                else if (g->message == GK_GRAPH_IS_ZERO) x = x == GK_R(0.0) ? GK_R(1.0) : GK_R(0.0);
                else if (x == GK_R(0.0)) x = GK_R(1.0);
                m[k].v[i] = x;
            }
        }
    }
    if (g->degree) {
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            if (good[k]) {
                gk_f share = gk_recip((gk_f)(int)gk_index(g->degree, e->other[k], g->wide_saved));
                GK_UNROLL for (int i = 0; i < GK_W; i++) m[k].v[i] = m[k].v[i] * share;
            }
        }
    }
    if (g->mask) {
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            gk_i64 at = gk_at(g->m_base, g->m_at_self ? node : e->other[k], g->inner);
            GK_UNROLL for (int i = 0; i < GK_W; i++) {
                int keep = 0;
                if (good[k] && (i == 0 || g->wide)) keep = gk_index(g->mask, at + i, g->wide_saved) == e->edge[k];
                if (!keep) m[k].v[i] = GK_R(0.0);
            }
        }
    }
}

#if GK_GRAPH_LOW_REGISTER
/* The sum of gk_reduce_run where the message is known: only what it takes is fetched and checked. */
GK_FN gk_vec gk_sum_run(const gk_aggregate* g, gk_u32 first, gk_u32 end)
{
    GK_GLOBAL const int* rows = g->a_at_edge ? g->perm : g->col;
    GK_GLOBAL const int* scales = g->b_at_edge ? g->perm : g->col;
    int row_limit = g->a_at_edge ? g->edges : g->others, scale_limit = g->b_at_edge ? g->edges : g->others;
    GK_GLOBAL const gk_t* a = g->a + g->a_base;
    GK_GLOBAL const gk_t* b = g->b;
    gk_u32 bytes = g->inner * (gk_u32)sizeof(gk_t);
    gk_vec acc = gk_splat(GK_R(0.0)), run = acc;
    int row[GK_U], scale[GK_U];
    if (GK_GRAPH_LOW_REGISTER == 2) b += g->b_base;
    gk_ids(rows, first, end, g->wide_index, row_limit, g->err, g->code, row);
    if (GK_GRAPH_LOW_REGISTER == 2) gk_ids(scales, first, end, g->wide_index, scale_limit, g->err, g->code, scale);
    GK_ROLLED for (gk_u32 p = first; p < end; p += GK_U) {
        gk_raw16 m[GK_U];
        gk_b s[GK_U];
        int on[GK_U], degree[GK_U];
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            on[k] = row[k] >= 0 && (GK_GRAPH_LOW_REGISTER != 2 || scale[k] >= 0);
            if (on[k]) {
                m[k] = gk_row_bits(a, row[k], bytes);
                if (GK_GRAPH_LOW_REGISTER == 2) s[k] = ((GK_GLOBAL const gk_b*)b)[gk_at(0, scale[k], g->b_row)];
                if (GK_GRAPH_LOW_REGISTER == 3) degree[k] = (int)gk_index(g->degree, row[k], g->wide_saved);
            }
        }
        gk_ids(rows, p + GK_U, end, g->wide_index, row_limit, g->err, g->code, row);
        if (GK_GRAPH_LOW_REGISTER == 2) gk_ids(scales, p + GK_U, end, g->wide_index, scale_limit, g->err, g->code, scale);
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            if (on[k]) {
                gk_vec v = gk_decode16(m[k]);
                gk_f by = GK_R(1.0);
                if (GK_GRAPH_LOW_REGISTER == 2) by = gk_value(s[k]);
                if (GK_GRAPH_LOW_REGISTER == 3) by = gk_recip((gk_f)degree[k]);
                GK_UNROLL for (int i = 0; i < GK_W; i++) run.v[i] += GK_GRAPH_LOW_REGISTER == 1 ? v.v[i] : v.v[i] * by;
            }
        }
        if (GK_RUN_ENDS(p, first)) {
            gk_fold(&acc, run, GK_RED_SUM);
            run = gk_splat(GK_R(0.0));
        }
    }
    gk_fold(&acc, run, GK_RED_SUM);
    return acc;
}
#endif

GK_FN gk_vec gk_reduce_run(const gk_aggregate* g, int node, gk_vec own, gk_u32 first, gk_u32 end, int red)
{
    gk_vec none = gk_splat(red == GK_RED_PROD ? GK_R(1.0) : GK_R(0.0)), acc = none, run = none;
    gk_ends now, next;
    gk_find(g, first, end, &now);
    GK_ROLLED for (gk_u32 p = first; p < end; p += GK_U) {
        gk_vec m[GK_U];
        gk_find(g, p + GK_U, end, &next);
        gk_messages(g, node, own, &now, m);
        GK_UNROLL for (int k = 0; k < GK_U; k++) {
            if (now.edge[k] >= 0) gk_fold(&run, m[k], red);
        }
        if (GK_RUN_ENDS(p, first)) {
            gk_fold(&acc, run, red);
            run = none;
        }
        now = next;
    }
    gk_fold(&acc, run, red);
    return acc;
}

/* Numbers of `size`: nodes, entries, columns (outer * inner), inner, rows of A, log2 of the cut, edges, rows of the other ends; of `how`: wide,
 * message, red, a_at_edge, b_at_edge, m_at_self, log2 of lanes, flags (1 indices are i64, 2 strict, 4 accumulate, 8 nodes may be long,
 * 16 degree and mask are i64). */
#define GK_NODES size.v[0]
#define GK_ENTRIES size.v[1]
#define GK_COLUMNS size.v[2]
#define GK_INNER size.v[3]
#define GK_A_ROWS size.v[4]
#define GK_CUT (int)size.v[5]
#define GK_EDGES size.v[6]
#define GK_OTHERS size.v[7]
#define GK_WIDE (int)how.v[0]
#define GK_GRAPH_LANES (int)how.v[6]
#define GK_FLAG(b) ((how.v[7] & (b)) != 0)
#define GK_CUTS (GK_FLAG(8) ? gk_cuts(GK_ENTRIES, GK_CUT) : 0u)

GK_FN_CALL gk_f gk_activate(gk_f x, int act, gk_f p)
{
    if (act == 1) return gk_act_relu_fwd(x, p, p, p);
    if (act == 2) return gk_act_leaky_relu_fwd(x, p, p, p);
    if (act == 3) return gk_act_gelu_fwd(x, p, p, p);
    if (act == 4) return gk_act_gelu_tanh_fwd(x, p, p, p);
    if (act == 5) return gk_act_sigmoid_fwd(x, p, p, p);
    if (act == 6) return gk_act_tanh_fwd(x, p, p, p);
    if (act == 7) return gk_act_swish_fwd(x, p, p, p);
    if (act == 8) return gk_act_hardswish_fwd(x, p, p, p);
    return x;
}

/* The result `acc` of a whole node becomes y (+)= act(alpha * acc / count + base + bias), or goes to `stat` as it is. */
GK_FN void gk_finish_sum(GK_GLOBAL gk_t* y, GK_GLOBAL gk_f* stat, GK_GLOBAL const gk_f* base, GK_GLOBAL const gk_t* bias, gk_i64 at, gk_i64 column,
                         gk_i64 count, gk_vec acc, int red, gk_f alpha, gk_i64 bias_span, int act, gk_f slope, int accumulate, int wide)
{
    gk_vec old = gk_splat(GK_R(0.0));
    gk_f n = count > 1 ? (gk_f)count : GK_R(1.0);
    if (accumulate && !stat) old = gk_row_get(y, at, wide);
    GK_UNROLL for (int k = 0; k < GK_W; k++) {
        if (k == 0 || wide) {
            gk_f x = acc.v[k];
            if (red == GK_RED_MEAN) x = x / n;
            if (red != GK_RED_PROD) x = alpha * x;
            if (base) x += base[at + k];
            if (bias) x += gk_load(bias, (gk_i64)((gk_u32)(column + k) % (gk_u32)bias_span));
            if (act) x = gk_activate(x, act, slope);
            acc.v[k] = accumulate && !stat ? old.v[k] + x : x;
        }
    }
    if (stat) gk_part_put(stat, at, acc, wide);
    else gk_row_put(y, at, acc, wide);
}

// Units: FLOATS64 x AGGREGATES
/* Sums, means and products. `own` is S (of `own_stat` if that is given), `base` is added at the end, `parts` [2 * cuts, columns] takes the parts
 * of long nodes. */
GK_KERNEL(aggregate)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, col), GK_IN(int, perm), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, own),
                     GK_IN(gk_f, own_stat), GK_IN(int, degree), GK_IN(int, mask), GK_IN(gk_f, base), GK_IN(gk_t, bias), GK_OUT(gk_t, y),
                     GK_OUT(gk_f, stat), GK_OUT(gk_f, parts), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(how), gk_i64 b_span, gk_i64 b_row,
                     gk_i64 bias_span, int act, gk_f slope, gk_f alpha, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, col); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b);
    GK_BIND_IN(gk_t, own); GK_BIND_IN(gk_f, own_stat); GK_BIND_IN(int, degree); GK_BIND_IN(int, mask); GK_BIND_IN(gk_f, base); GK_BIND_IN(gk_t, bias);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_f, stat); GK_BIND_OUT(gk_f, parts); GK_BIND_OUT(int, err);
    int lanes = GK_GRAPH_LANES, wide = GK_GRAPH_LOW_REGISTER ? 1 : GK_WIDE;
    gk_u32 cuts = GK_CUTS, items = cuts + (gk_u32)GK_NODES, column = GK_VECTOR(lanes) * (wide ? GK_W : 1);
    gk_i64 o = GK_INNER == GK_COLUMNS ? 0 : column / (gk_u32)GK_INNER, at = column - o * GK_INNER;
    gk_aggregate g;
    g.col = col; g.perm = perm; g.a = a; g.b = b; g.degree = degree; g.mask = mask; g.err = err;
    g.edges = (int)GK_EDGES; g.others = (int)GK_OTHERS; g.inner = (gk_u32)GK_INNER;
    g.a_base = o * GK_A_ROWS * GK_INNER + at; g.m_base = column; g.b_full = b_span == 1; g.b_row = (gk_u32)b_row;
    g.b_base = b_span == 1 ? column : column / (gk_u32)b_span;
    g.wide_index = GK_FLAG(1); g.wide_saved = GK_FLAG(16); g.wide = wide; g.message = (int)how.v[1]; g.a_at_edge = (int)how.v[3];
    g.b_at_edge = (int)how.v[4];
    g.m_at_self = (int)how.v[5]; g.code = code;
#if GK_GRAPH_LOW_REGISTER
    g.b = GK_GRAPH_LOW_REGISTER == 2 ? b : 0; g.b_full = 0; g.message = GK_GRAPH_LOW_REGISTER == 2 ? GK_TIMES_B : GK_PLAIN;
    g.degree = GK_GRAPH_LOW_REGISTER == 3 ? degree : 0; g.mask = 0;
    own = 0; own_stat = 0; base = 0;
#endif
    if (column >= (gk_u32)GK_COLUMNS) items = 0;
    for (gk_u32 item = GK_TEAM(lanes); item < items; item += GK_TEAMS(lanes)) {
        GK_ROLLED for (int part = 0; part < 2; part++) {
            gk_piece q;
            if (!gk_piece_of(&q, rowptr, met, GK_NODES, GK_ENTRIES, cuts, GK_CUT, item, part, g.wide_index, GK_FLAG(2), err, code)) continue;
            gk_i64 to = (o * GK_NODES + q.node) * GK_INNER + at;
            gk_vec s = gk_splat(GK_R(0.0));
            if (own_stat) s = gk_part_get(own_stat, to, wide);
            else if (own) s = gk_row_get(own, to, wide);
#if GK_GRAPH_LOW_REGISTER
            gk_vec acc = gk_sum_run(&g, q.first, q.end);
#else
            gk_vec acc = gk_reduce_run(&g, (int)q.node, s, q.first, q.end, (int)how.v[2]);
#endif
            if (q.slot >= 0) gk_part_put(parts, q.slot * GK_COLUMNS + column, acc, wide);
            else gk_finish_sum(y, stat, base, bias, to, column, q.end - q.first, acc, (int)how.v[2], alpha, bias_span, act, slope, GK_FLAG(4), wide);
        }
    }
}

// Units: FLOATS64 x ANY_AGGREGATE
/* Combines the parts of the long nodes. Launch: one block per GK_GRAPH_WINDOW cuts; groups of `lanes` threads take every so many parts, then the
 * first adds up. */
GK_KERNEL(aggregate_combine)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(gk_f, parts), GK_IN(gk_f, base), GK_IN(gk_t, bias), GK_OUT(gk_t, y),
                             GK_OUT(gk_f, stat), GK_DIMS(size), GK_DIMS(how), gk_i64 bias_span, int act, gk_f slope, gk_f alpha)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(gk_f, parts); GK_BIND_IN(gk_f, base); GK_BIND_IN(gk_t, bias); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_f, stat);
    GK_LOCAL gk_f tmp[GK_BLOCK * GK_W];
    int lanes = 1 << GK_GRAPH_LANES, wide = GK_WIDE, w = wide ? GK_W : 1, t = gk_lid(), groups = GK_BLOCK / lanes, red = (int)how.v[2];
    gk_u32 cuts = GK_CUTS;
    gk_piece q;
    gk_u32 item = (gk_u32)gk_bid(0) * GK_GRAPH_WINDOW;
    for (gk_u32 found = gk_begins(met, cuts, item); found; found >>= 1, item++) {
        if (!(found & 1u)) continue;
        gk_long_node(&q, rowptr, met, GK_ENTRIES, GK_CUT, item, GK_FLAG(1));
        for (gk_i64 c0 = 0; c0 < GK_COLUMNS; c0 += lanes * w) {
            gk_i64 column = c0 + t % lanes * w;
            gk_f one = red == GK_RED_PROD ? GK_R(1.0) : GK_R(0.0);
            gk_vec acc = gk_splat(one);
            if (column < GK_COLUMNS) {
                for (gk_i64 k = t / lanes; k <= q.slot; k += groups) {
                    gk_fold(&acc, gk_part_get(parts, gk_part_slot(item, k) * GK_COLUMNS + column, wide), red);
                }
            }
            GK_UNROLL for (int i = 0; i < GK_W; i++) tmp[i * GK_BLOCK + t] = acc.v[i];
            GK_BARRIER();
            if (t < lanes && column < GK_COLUMNS) {
                for (int k = 1; k < groups; k++) {
                    GK_UNROLL for (int i = 0; i < GK_W; i++) {
                        gk_f v = tmp[i * GK_BLOCK + k * lanes + t];
                        acc.v[i] = red == GK_RED_PROD ? acc.v[i] * v : acc.v[i] + v;
                    }
                }
                gk_i64 o = column / GK_INNER, to = (o * GK_NODES + q.node) * GK_INNER + column - o * GK_INNER;
                gk_finish_sum(y, stat, base, bias, to, column, q.end - q.first, acc, red, alpha, bias_span, act, slope, GK_FLAG(4), wide);
            }
            GK_BARRIER();
        }
    }
}

/* ---- extremes ----------------------------------------------------------------------------------------------------------------- */

typedef struct { gk_vec v; int edge[GK_W]; } gk_best;

/* The better of two messages: the larger one (`least`: the smaller), NaN before numbers, the smaller edge of equals; edge -1 is none. */
GK_FN void gk_better(gk_best* b, int i, gk_f x, int edge, int least)
{
    gk_f old = b->v.v[i];
    int wins = least ? x < old : x > old;
    if (!wins && !(least ? x > old : x < old)) {
        /* Equal, or one is NaN. */
        int same = x == old || (gk_isnan(x) && gk_isnan(old));
        wins = same ? edge < b->edge[i] : gk_isnan(x);
    }
    if (edge >= 0 && (wins || b->edge[i] < 0)) {
        b->v.v[i] = x;
        b->edge[i] = edge;
    }
}

GK_FN gk_best gk_none(void)
{
    gk_best b;
    GK_UNROLL for (int i = 0; i < GK_W; i++) {
        b.v.v[i] = GK_R(0.0);
        b.edge[i] = -1;
    }
    return b;
}

GK_FN void gk_finish_best(GK_GLOBAL gk_t* y, GK_GLOBAL int* arg, gk_i64 at, gk_best b, gk_f none, int wide_arg, int wide)
{
    GK_UNROLL for (int i = 0; i < GK_W; i++) {
        if (b.edge[i] < 0) b.v.v[i] = none;
        if (arg && (i == 0 || wide)) gk_store_index(arg, at + i, wide_arg, b.edge[i]);
    }
    gk_row_put(y, at, b.v, wide);
}

// Units: FLOATS64 x EXTREME_AGGREGATES
/* y = the largest message of each node (`least`: the smallest), `none` where there is none, and `arg` its edge or -1. */
GK_KERNEL(aggregate_extreme)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(int, col), GK_IN(int, perm), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_IN(gk_t, own),
                          GK_OUT(gk_t, y), GK_OUT(int, arg), GK_OUT(gk_f, parts), GK_OUT(int, ids), GK_OUT(int, err), GK_DIMS(size), GK_DIMS(how),
                          gk_i64 b_span, gk_i64 b_row, int least, int wide_arg, gk_f none, int code)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(int, col); GK_BIND_IN(int, perm); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b);
    GK_BIND_IN(gk_t, own); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, arg); GK_BIND_OUT(gk_f, parts); GK_BIND_OUT(int, ids); GK_BIND_OUT(int, err);
    int lanes = GK_GRAPH_LANES, wide = GK_GRAPH_LOW_REGISTER ? 1 : GK_WIDE;
    gk_u32 cuts = GK_CUTS, items = cuts + (gk_u32)GK_NODES, column = GK_VECTOR(lanes) * (wide ? GK_W : 1);
    gk_i64 o = GK_INNER == GK_COLUMNS ? 0 : column / (gk_u32)GK_INNER, at = column - o * GK_INNER;
    gk_aggregate g;
    g.col = col; g.perm = perm; g.a = a; g.b = b; g.degree = 0; g.mask = 0; g.err = err;
    g.edges = (int)GK_EDGES; g.others = (int)GK_OTHERS; g.inner = (gk_u32)GK_INNER;
    g.a_base = o * GK_A_ROWS * GK_INNER + at; g.m_base = column; g.b_full = b_span == 1; g.b_row = (gk_u32)b_row;
    g.b_base = b_span == 1 ? column : column / (gk_u32)b_span;
    g.wide_index = GK_FLAG(1); g.wide_saved = GK_FLAG(16); g.wide = wide; g.message = (int)how.v[1]; g.a_at_edge = (int)how.v[3];
    g.b_at_edge = (int)how.v[4];
    g.m_at_self = 0; g.code = code;
#if GK_GRAPH_LOW_REGISTER
    g.b = GK_GRAPH_LOW_REGISTER == 2 ? b : 0; g.b_full = 0; g.message = GK_GRAPH_LOW_REGISTER == 2 ? GK_TIMES_B : GK_PLAIN;
    own = 0;
#endif
    if (column >= (gk_u32)GK_COLUMNS) items = 0;
    for (gk_u32 item = GK_TEAM(lanes); item < items; item += GK_TEAMS(lanes)) {
        GK_ROLLED for (int part = 0; part < 2; part++) {
            gk_piece q;
            if (!gk_piece_of(&q, rowptr, met, GK_NODES, GK_ENTRIES, cuts, GK_CUT, item, part, g.wide_index, GK_FLAG(2), err, code)) continue;
            gk_i64 to = (o * GK_NODES + q.node) * GK_INNER + at;
            gk_vec s = gk_splat(GK_R(0.0));
            if (own) s = gk_row_get(own, to, wide);
            gk_best best = gk_none();
            gk_ends now, next;
            gk_find(&g, q.first, q.end, &now);
            GK_ROLLED for (gk_u32 p = q.first; p < q.end; p += GK_U) {
                gk_vec m[GK_U];
                gk_find(&g, p + GK_U, q.end, &next);
                gk_messages(&g, (int)q.node, s, &now, m);
                GK_UNROLL for (int k = 0; k < GK_U; k++) {
                    GK_UNROLL for (int i = 0; i < GK_W; i++) gk_better(&best, i, m[k].v[i], now.edge[k], least);
                }
                now = next;
            }
            if (q.slot >= 0) {
                gk_part_put(parts, q.slot * GK_COLUMNS + column, best.v, wide);
                GK_UNROLL for (int i = 0; i < GK_W; i++) {
                    if (i == 0 || wide) ids[q.slot * GK_COLUMNS + column + i] = best.edge[i];
                }
            } else {
                gk_finish_best(y, arg, to, best, none, wide_arg, wide);
            }
        }
    }
}

// Units: FLOATS64 x ANY_AGGREGATE
/* Combines the parts of the long nodes. Launch: one block per GK_GRAPH_WINDOW cuts, a thread per column. */
GK_KERNEL(aggregate_extreme_combine)(GK_IN(int, rowptr), GK_IN(int, met), GK_IN(gk_f, parts), GK_IN(int, ids), GK_OUT(gk_t, y), GK_OUT(int, arg),
                                     GK_DIMS(size), GK_DIMS(how), int least, int wide_arg, gk_f none)
{
    GK_BIND_IN(int, rowptr); GK_BIND_IN(int, met); GK_BIND_IN(gk_f, parts); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_t, y); GK_BIND_OUT(int, arg);
    gk_u32 cuts = GK_CUTS;
    gk_piece q;
    gk_u32 item = (gk_u32)gk_bid(0) * GK_GRAPH_WINDOW;
    for (gk_u32 found = gk_begins(met, cuts, item); found; found >>= 1, item++) {
        if (!(found & 1u)) continue;
        gk_long_node(&q, rowptr, met, GK_ENTRIES, GK_CUT, item, GK_FLAG(1));
        for (gk_i64 column = gk_lid(); column < GK_COLUMNS; column += GK_BLOCK) {
            gk_best best = gk_none();
            for (gk_i64 k = 0; k <= q.slot; k++) {
                gk_i64 from = gk_part_slot(item, k) * GK_COLUMNS + column;
                gk_better(&best, 0, parts[from], ids[from], least);
            }
            gk_i64 o = column / GK_INNER;
            gk_finish_best(y, arg, (o * GK_NODES + q.node) * GK_INNER + column - o * GK_INNER, best, none, wide_arg, 0);
        }
    }
}
