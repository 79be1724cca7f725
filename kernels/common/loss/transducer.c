/* Transducer (Graves, 2012): -ln of the probability of the labels over all paths through nodes (t, u), t steps read and u labels written. A blank
 * leads from (t, u) to (t + 1, u), the next label to (t, u + 1); the last transition is the blank of (T - 1, labels).
 *
 * rnnt_nodes reads the logits once and leaves what the lattice needs of them; rnnt_lattice has a block per sample and direction and goes from
 * diagonal to diagonal, rnnt_grad a group of threads per node. Values of nodes lie by diagonals t + u, so that those of a step are neighbours:
 * [B, T + U - 1, U], U = labels + 1. Log space, gk_f. Deterministic. Reference: torchaudio.functional.rnnt_loss.
 */
#include "common/prelude/rows.h"
#include "lattice.h"

#define GK_RNNT_DEPTH 4 /* items of a row that a thread loads before it uses them */

/* A node of [B, T, U] by its number, and where its values lie. time and labels of its sample; live: a path may pass. */
typedef struct { gk_i64 b, t, u, at, time, labels; int live; } gk_rnnt_node;
GK_FN gk_rnnt_node gk_rnnt_node_of(gk_i64 i, gk_i64 nodes, gk_i64 T, gk_i64 U, GK_GLOBAL const int* il, int wide_il, GK_GLOBAL const int* tl,
                                   int wide_tl)
{
    gk_rnnt_node n;
    gk_i64 step = i < nodes ? gk_quot(i, U) : 0;
    n.b = gk_quot(step, T);
    n.t = step - n.b * T;
    n.u = i < nodes ? i - step * U : 0;
    n.at = (n.b * (T + U - 1) + n.t + n.u) * U + n.u;
    n.time = gk_index(il, n.b, wide_il);
    n.labels = gk_index(tl, n.b, wide_tl);
    n.live = i < nodes && n.time <= T && n.labels < U && n.t < n.time && n.u <= n.labels;
    return n;
}

/* Largest of a row's logits and the sum of their powers relative to it. */
typedef struct { gk_f m, s; } gk_rnnt_sum;

/* Those of a lane's share of a row. */
GK_FN gk_rnnt_sum gk_rnnt_take(GK_GLOBAL const gk_t* x, gk_i64 C, int lane, int lanes, const int wide)
{
    const int w = wide ? GK_W : 1;
    gk_rnnt_sum r;
    r.m = -GK_INF;
    r.s = GK_R(0.0);
    gk_vec none;
    GK_UNROLL for (int k = 0; k < GK_W; k++) none.v[k] = -GK_INF;
    for (gk_i64 c = lane * w; c < C; c += GK_RNNT_DEPTH * lanes * w) {
        int left = gk_loss_left(C - c, GK_RNNT_DEPTH * GK_BLOCK * GK_W);
        gk_raw16 q[GK_RNNT_DEPTH];
        gk_vec a[GK_RNNT_DEPTH];
        gk_f m = r.m, s = GK_R(0.0);
        GK_UNROLL for (int e = 0; e < GK_RNNT_DEPTH; e++) {
            q[e] = gk_encode16(none);
            if (e * lanes * w < left) q[e] = gk_item_bits(x + c, e * lanes * w, wide);
        }
        GK_UNROLL for (int e = 0; e < GK_RNNT_DEPTH; e++) {
            a[e] = gk_decode16(q[e]);
            GK_UNROLL for (int k = 0; k < w; k++) m = gk_max(m, a[e].v[k]);
        }
        gk_f from = m == -GK_INF ? GK_R(0.0) : m;
        GK_UNROLL for (int e = 0; e < GK_RNNT_DEPTH; e++)
            GK_UNROLL for (int k = 0; k < w; k++) s += gk_loss_power(a[e].v[k] - from);
        r.s = r.s * gk_loss_power(r.m - from) + s;
        r.m = m;
    }
    return r;
}

// Units: FLOATS64
/* lse of a node's logits, and the log-probabilities of its blank and of its label. `lanes` threads share a node; what no path passes stays unread. */
GK_KERNEL(rnnt_nodes)(GK_IN(gk_t, x), GK_IN(int, targets), int wide_t, GK_IN(int, il), int wide_il, GK_IN(int, tl), int wide_tl, gk_i64 nodes,
                      gk_i64 T, gk_i64 U, gk_i64 C, gk_i64 blank, int lanes, int wide, GK_OUT(gk_f, lse), GK_OUT(gk_f, blanks),
                      GK_OUT(gk_f, emits))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, x); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, blanks);
    GK_BIND_OUT(gk_f, emits);
    int lane = gk_lid() & (lanes - 1);
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 base = gk_bid(0) * per; base < nodes; base += gk_nblocks(0) * per) {
        gk_i64 i = base + gk_lid() / lanes;
        gk_rnnt_node n = gk_rnnt_node_of(i, nodes, T, U, il, wide_il, tl, wide_tl);
        gk_i64 row = i * C, end = n.live ? C : 0, id = n.live && n.u < n.labels ? gk_index(targets, n.b * (U - 1) + n.u, wide_t) : -1;
        gk_rnnt_sum r;
        if (wide) r = gk_rnnt_take(x + row, end, lane, lanes, 1);
        else r = gk_rnnt_take(x + row, end, lane, lanes, 0);
        /* The row is in the cache now, and its loads have not waited for the label. */
        int labelled = id >= 0 && id < C;
        gk_b b = 0, l = 0;
        if (n.live) b = ((GK_GLOBAL const gk_b*)x)[row + blank];
        if (labelled) l = ((GK_GLOBAL const gk_b*)x)[row + id];
        gk_f m = gk_group_max(r.m, tmp, lanes);
        gk_f s = gk_group_sum(r.m == -GK_INF ? GK_R(0.0) : r.s * gk_loss_power(r.m - m), tmp, lanes);
        if (n.live && lane == 0) {
            gk_f all = m + gk_log(s);
            lse[n.at] = all;
            blanks[n.at] = gk_value(b) - all;
            emits[n.at] = labelled ? gk_value(l) - all : -GK_INF;
        }
    }
}

/* A sample from its first node, or (mirror) from its last: steps diagonals. Thread position w is u, or labels - u; step k reaches its diagonal k, by
 * transitions from the nodes of the diagonal before, or of that diagonal when mirrored: `lag` steps before it.
 * first, step: where the nodes of the first diagonal from this side lie, less u, and how far those of the next ones are; out: the same of alpha or
 * beta. keep: the values of all steps stay in global memory. */
typedef struct {
    gk_i64 b, time, labels, steps, first, out, step;
    int mirror, lag, keep;
} gk_rnnt_side;

/* The u of position w, that of the last one beyond it, and where the label of the transition to u lies, with u itself where none leads there. */
GK_FN gk_i64 gk_rnnt_u(const gk_rnnt_side* o, gk_i64 w)
{
    gk_i64 k = w < o->labels ? w : o->labels;
    return o->mirror ? o->labels - k : k;
}
GK_FN gk_i64 gk_rnnt_label(const gk_rnnt_side* o, gk_i64 u) { return o->mirror || u == 0 ? u : u - 1; }

/* Log-probabilities of the transitions of the steps from k on, by blanks and by labels: any number where there is none. */
GK_FN void gk_rnnt_fetch(const gk_rnnt_side* o, GK_GLOBAL const gk_f* blanks, GK_GLOBAL const gk_f* emits, gk_i64 k, gk_f blank[GK_LOSS_AHEAD],
                         gk_f emit[GK_LOSS_AHEAD], const int slots)
{
    const int ahead = GK_LOSS_AHEAD / slots;
    gk_i64 from = k - o->lag, base = o->first + from * o->step, last = o->steps - 1 - from;
    int least = k == 0 ? o->lag : 0, most = last < ahead ? (int)last : ahead;
    GK_UNROLL for (int q = 0; q < ahead; q++) {
        gk_i64 row = base + (q < least ? least : q < most ? q : most) * o->step;
        GK_UNROLL for (int i = 0; i < slots; i++)
            if (i == 0 || i * GK_BLOCK <= o->labels) {
                gk_i64 u = gk_rnnt_u(o, gk_lid() + i * GK_BLOCK);
                blank[i * ahead + q] = blanks[row + u];
                emit[i * ahead + q] = emits[row + gk_rnnt_label(o, u)];
            }
    }
}

/* Runs over the diagonals of a sample of up to slots * GK_BLOCK - 1 labels; nll from its beginning. */
GK_FN void gk_rnnt_held(const gk_rnnt_side* o, GK_GLOBAL const gk_f* blanks, GK_GLOBAL const gk_f* emits, GK_GLOBAL gk_f* out, GK_GLOBAL gk_f* nll,
                        GK_LOCAL_PTR gk_f* held, const int slots)
{
    const int ahead = GK_LOSS_AHEAD / slots;
    gk_f own[GK_LOSS_SLOTS], blank[GK_LOSS_AHEAD], emit[GK_LOSS_AHEAD], next_blank[GK_LOSS_AHEAD], next_emit[GK_LOSS_AHEAD];
    int begin[GK_LOSS_SLOTS], end[GK_LOSS_SLOTS];
    /* Before the first step, as if a transition of probability 1 led to position 0. */
    GK_UNROLL for (int i = 0; i < slots; i++) own[i] = gk_lid() + i * GK_BLOCK == 0 ? GK_R(0.0) : -GK_INF;
    if (o->steps > 0) gk_rnnt_fetch(o, blanks, emits, 0, next_blank, next_emit, slots);
    for (gk_i64 k = 0; k < o->steps; k += ahead) {
        GK_UNROLL for (int e = 0; e < slots * ahead; e++) { blank[e] = next_blank[e]; emit[e] = next_emit[e]; }
        gk_rnnt_fetch(o, blanks, emits, k + ahead, next_blank, next_emit, slots);
        /* Of the next steps, those that reach a position: its t is one of the sample's. */
        GK_UNROLL for (int i = 0; i < slots; i++) {
            int w = gk_lid() + i * GK_BLOCK;
            begin[i] = w <= o->labels ? gk_loss_left(w - k, ahead) : ahead;
            end[i] = gk_loss_left(w + o->time - k, ahead);
        }
        GK_UNROLL for (int q = 0; q < ahead; q++) {
            GK_LOCAL_PTR const gk_f* before = held + (1 - (q & 1)) * GK_LOSS_HELD;
            GK_UNROLL for (int i = 0; i < slots; i++) {
                int w = gk_lid() + i * GK_BLOCK;
                if (q >= begin[i] && q < end[i]) {
                    gk_f other = w > 0 ? before[w - 1] + emit[i * ahead + q] : -GK_INF;
                    own[i] = gk_lse2(q > begin[i] || k > w || o->mirror ? own[i] + blank[i * ahead + q] : own[i], other);
                    held[(q & 1) * GK_LOSS_HELD + w] = own[i];
                    if (o->keep) out[o->out + (k + q) * o->step + gk_rnnt_u(o, w)] = own[i];
                }
            }
            GK_BARRIER();
        }
    }
    GK_UNROLL for (int i = 0; i < slots; i++)
        if (gk_lid() + i * GK_BLOCK == o->labels && !o->mirror) nll[o->b] = -(own[i] + blanks[o->first + (o->steps - 1) * o->step + o->labels]);
}

/* gk_rnnt_held for any number of labels: the values of the diagonal before come from global memory. */
GK_FN void gk_rnnt_long(const gk_rnnt_side* o, GK_GLOBAL const gk_f* blanks, GK_GLOBAL const gk_f* emits, GK_GLOBAL gk_f* out, GK_GLOBAL gk_f* nll)
{
    gk_i64 to = 0;
    for (gk_i64 k = 0; k < o->steps; k++) {
        gk_i64 before = o->out + (o->keep ? k - 1 : 1 - (k & 1)) * o->step, at = o->first + (k - o->lag) * o->step;
        to = o->out + (o->keep ? k : k & 1) * o->step;
        for (gk_i64 base = 0; base <= o->labels; base += GK_BLOCK) {
            gk_i64 w = base + gk_lid(), u = gk_rnnt_u(o, w);
            if (w <= o->labels && k >= w && k < w + o->time) {
                gk_f v = k > w ? out[before + u] : w == 0 ? GK_R(0.0) : -GK_INF;
                gk_f other = w > 0 ? out[before + (o->mirror ? u + 1 : u - 1)] + emits[at + gk_rnnt_label(o, u)] : -GK_INF;
                if (k > w || o->mirror) v += blanks[at + u];
                out[to + u] = gk_lse2(v, other);
            }
        }
        GK_BARRIER();
    }
    if (gk_lid() == 0 && !o->mirror) nll[o->b] = -(out[to + o->labels] + blanks[o->first + (o->steps - 1) * o->step + o->labels]);
}

/* nll [B]. both: also alpha and, `side` behind it, beta, which is that of the rest of the path; otherwise alpha has two diagonals per sample. Lengths
 * outside [1, T] and [0, U) and ids outside [0, C) are reported; a sample with such a length has nll 0. */
GK_KERNEL(rnnt_lattice)(GK_IN(gk_f, blanks), GK_IN(gk_f, emits), GK_IN(int, targets), int wide_t, GK_IN(int, il), int wide_il, GK_IN(int, tl),
                        int wide_tl, GK_OUT(int, err), int code, gk_i64 B, gk_i64 T, gk_i64 U, gk_i64 C, gk_i64 side, int both,
                        GK_OUT(gk_f, alpha), GK_OUT(gk_f, nll))
{
    GK_LOCAL gk_f held[2 * GK_LOSS_HELD];
    GK_BIND_IN(gk_f, blanks); GK_BIND_IN(gk_f, emits); GK_BIND_IN(int, targets); GK_BIND_IN(int, il); GK_BIND_IN(int, tl);
    GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, alpha); GK_BIND_OUT(gk_f, nll);
    for (gk_i64 e = gk_bid(0); e < (both ? 2 * B : B); e += gk_nblocks(0)) {
        gk_rnnt_side o;
        o.mirror = e >= B; o.keep = both;
        o.b = o.mirror ? e - B : e;
        o.time = gk_index(il, o.b, wide_il);
        o.labels = gk_index(tl, o.b, wide_tl);
        int ok = o.time >= 1 && o.time <= T && o.labels >= 0 && o.labels < U;
        if (!ok) { gk_report(err, code); o.time = 0; o.labels = -1; }
        o.steps = o.time + o.labels;
        o.lag = !o.mirror;
        o.step = o.mirror ? -U : U;
        o.first = o.b * (T + U - 1) * U + (o.mirror ? (o.steps - 1) * U : 0);
        o.out = both ? o.first + (o.mirror ? side : 0) : o.b * 2 * U;
        for (gk_i64 u = gk_lid(); u < o.labels; u += GK_BLOCK) {
            gk_i64 c = gk_index(targets, o.b * (U - 1) + u, wide_t);
            if (c < 0 || c >= C) gk_report(err, code);
        }
        if (!ok && gk_lid() == 0 && !o.mirror) nll[o.b] = GK_R(0.0);
        if (o.labels < GK_BLOCK) gk_rnnt_held(&o, blanks, emits, alpha, nll, held, 1);
        else if (o.labels < GK_LOSS_HELD) gk_rnnt_held(&o, blanks, emits, alpha, nll, held, GK_LOSS_SLOTS);
        else gk_rnnt_long(&o, blanks, emits, alpha, nll);
        GK_BARRIER();
    }
}

/* What the gradient of a node's logits is made of: lse, occupancies of both transitions together (0: logits are not read), the upstream gradient. */
typedef struct {
    gk_i64 C;
    gk_f lse, sum, g;
    int lane, lanes;
} gk_rnnt_flow;

/* A lane's share of a row of gradients, without what the transitions themselves take. */
GK_FN void gk_rnnt_row(const gk_rnnt_flow* o, GK_GLOBAL const gk_t* x, GK_GLOBAL gk_t* dx, const int wide, const int accumulate)
{
    const int w = wide ? GK_W : 1;
    int reads = o->sum != GK_R(0.0), step = o->lanes * w;
    for (gk_i64 c = o->lane * w; c < o->C; c += GK_RNNT_DEPTH * step) {
        int left = gk_loss_left(o->C - c, GK_RNNT_DEPTH * GK_BLOCK * GK_W);
        gk_raw16 a[GK_RNNT_DEPTH], old[GK_RNNT_DEPTH];
        GK_UNROLL for (int e = 0; e < GK_RNNT_DEPTH; e++) {
            a[e] = old[e] = gk_make16(0u, 0u, 0u, 0u);
            if (reads && e * step < left) a[e] = gk_item_bits(x + c, e * step, wide);
            if (accumulate && e * step < left) old[e] = gk_item_bits(dx + c, e * step, wide);
        }
        GK_UNROLL for (int e = 0; e < GK_RNNT_DEPTH; e++) {
            gk_vec d = gk_decode16(a[e]), to = gk_decode16(old[e]);
            GK_UNROLL for (int k = 0; k < w; k++) {
                d.v[k] = o->sum * gk_loss_power(d.v[k] - o->lse) * o->g;
                if (accumulate) d.v[k] += to.v[k];
            }
            if (e * step < left) gk_put_item(dx + c, e * step, d, wide);
        }
    }
}

/* The gradient of the logit c of probability p, which a transition of occupancy `less` takes, on top of `old`: by the lane that wrote it before. */
GK_FN void gk_rnnt_take_from(const gk_rnnt_flow* o, GK_GLOBAL gk_t* dx, gk_i64 c, gk_f p, gk_f less, gk_f old, int wide)
{
    if (((wide ? c / GK_W : c) & (o->lanes - 1)) == o->lane) gk_store(dx, c, old + (o->sum * p - less) * o->g);
}

typedef struct {
    gk_i64 side;
    gk_f factor;
    int wide_t, wide_il, wide_tl, each, gy_f32;
} gk_rnnt_grad_args;

#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_DTYPE == GK_F32 ? 4 : GK_DTYPE == GK_F64 ? 2 : 3)
/* dx (+)= gy (P (e_blank + e_label) - onehots), e = occupancies of the transitions. `lanes` threads share a node. */
GK_KERNEL(rnnt_grad)(GK_IN(gk_t, x), GK_IN(gk_f, lse), GK_IN(gk_f, blanks), GK_IN(gk_f, emits), GK_IN(int, targets), GK_IN(int, il), GK_IN(int, tl),
                     gk_i64 nodes, gk_i64 T, gk_i64 U, gk_i64 C, gk_i64 blank, int lanes, int wide, int accumulate, GK_IN(gk_f, alpha),
                     GK_IN(gk_f, nll), GK_IN(gk_t, gy), GK_OUT(gk_t, dx), GK_BY_VALUE(gk_rnnt_grad_args, args))
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, lse); GK_BIND_IN(gk_f, blanks); GK_BIND_IN(gk_f, emits); GK_BIND_IN(int, targets); GK_BIND_IN(int, il);
    GK_BIND_IN(int, tl); GK_BIND_IN(gk_f, alpha); GK_BIND_IN(gk_f, nll); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dx);
    GK_GLOBAL const gk_f* beta = alpha + args.side;
    gk_i64 per = GK_BLOCK / lanes;
    for (gk_i64 base = gk_bid(0) * per; base < nodes; base += gk_nblocks(0) * per) {
        gk_i64 i = base + gk_lid() / lanes;
        gk_rnnt_node n = gk_rnnt_node_of(i, nodes, T, U, il, args.wide_il, tl, args.wide_tl);
        gk_rnnt_flow o;
        gk_i64 id = -1;
        gk_f by_blank = GK_R(0.0), by_label = GK_R(0.0), blank_logp = GK_R(0.0), label_logp = GK_R(0.0), blank_old = GK_R(0.0), label_old = GK_R(0.0);
        GK_GLOBAL const gk_t* from = x + i * C;
        GK_GLOBAL gk_t* to = dx + i * C;
        o.C = C; o.lane = gk_lid() & (lanes - 1); o.lanes = lanes; o.lse = o.g = GK_R(0.0);
        if (n.live) {
            /* All loads first. */
            int more = n.t < n.time - 1, writes = n.u < n.labels;
            gk_f start = alpha[n.at] + nll[n.b], below = more ? beta[n.at + U] : GK_R(0.0), beside = writes ? beta[n.at + U + 1] : GK_R(0.0);
            blank_logp = blanks[n.at];
            label_logp = emits[n.at];
            o.lse = lse[n.at];
            if (writes) id = gk_index(targets, n.b * (U - 1) + n.u, args.wide_t);
            o.g = gk_loss_gy(gy, n.b, args.factor, args.each, args.gy_f32);
            if (more || !writes) by_blank = gk_exp(start + blank_logp + below);
            if (writes) by_label = gk_exp(start + label_logp + beside);
        }
        int labelled = id >= 0 && id < C;
        o.sum = by_blank + by_label;
        if (n.live && accumulate) blank_old = gk_load(to, blank);
        if (labelled && accumulate) label_old = gk_load(to, id);
        if (i < nodes) {
            if (wide && accumulate) gk_rnnt_row(&o, from, to, 1, 1);
            else if (wide) gk_rnnt_row(&o, from, to, 1, 0);
            else if (accumulate) gk_rnnt_row(&o, from, to, 0, 1);
            else gk_rnnt_row(&o, from, to, 0, 0);
        }
        if (n.live) gk_rnnt_take_from(&o, to, blank, gk_loss_power(blank_logp), id == blank ? by_blank + by_label : by_blank, blank_old, wide);
        if (labelled && id != blank) gk_rnnt_take_from(&o, to, id, gk_loss_power(label_logp), by_label, label_old, wide);
    }
}
