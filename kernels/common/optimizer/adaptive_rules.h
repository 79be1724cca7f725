/* Update rules with up to four states and with memory. The table is that of optimizer/rules.h with a place for the fourth state before the
 * copy's: rows of GK_OPTIM_ROW numbers.
 */
#include "rules.h"

#define GK_OPTIM_ROW 9

/* Row that holds chunk `chunk`: last one whose first chunk is not above it. */
GK_FN int gk_row_of(GK_GLOBAL const gk_i64* table, int tensors, gk_i64 chunk)
{
    GK_SEEK(int, at, tensors, table[v * GK_OPTIM_ROW] <= chunk)
    return at;
}

/* Numbers of a step. c: 1 - b^t of the rule's decays; p: the rule's numbers; k: memory of the step before; d, e: made of them by NAME_begin. */
typedef struct { gk_f lr, c1, c2, c3, p0, p1, p2, p3, p4, p5, p6, p7, k0, k2, d, e; int first; } gk_more;

/* A rule takes parameter, gradient and states, changes the states, adds what it wants summed over all elements, and returns the new parameter. */
#define GK_RULE4(name) GK_FN gk_f name(gk_f w, gk_f g, gk_f* s, gk_f* sums, gk_more h)
#define GK_BEGIN(name) GK_FN gk_more name(gk_more h)

/* p: b1, b2, b3, eps, decay, 1 - b1, 1 - b2, 1 - b3; s: m, v, n, prev */
GK_BEGIN(gk_rule_adan_begin) { h.c3 = gk_sqrt(h.c3); return h; }
GK_RULE4(gk_rule_adan)
{
    gk_f d = h.first ? GK_R(0.0) : g - s[3], u = g + h.p1 * d;
    s[0] = h.p0 * s[0] + h.p5 * g;
    s[1] = h.p1 * s[1] + h.p6 * d;
    s[2] = h.p2 * s[2] + h.p7 * u * u;
    s[3] = g;
    gk_f up = s[0] / h.c1 + h.p1 * (s[1] / h.c2);
    return (w - h.lr * up / (gk_sqrt(s[2]) / h.c3 + h.p3)) / (GK_R(1.0) + h.lr * h.p4);
}
#define gk_rule_adan_states 4
#define gk_rule_adan_memory 0

/* p: b1, gamma, eps, decay, 1 - b1; s: m, h */
GK_BEGIN(gk_rule_sophia_begin) { return h; }
GK_RULE4(gk_rule_sophia)
{
    s[0] = h.p0 * s[0] + h.p4 * g;
    gk_f q = s[0] / gk_max(h.p1 * s[1], h.p2);
    return w * (GK_R(1.0) - h.lr * h.p3) - h.lr * gk_min(gk_max(q, GK_R(-1.0)), GK_R(1.0));
}
#define gk_rule_sophia_states 2
#define gk_rule_sophia_memory 0

/* p: b2, (1 - b2) * batch; s: m, h */
GK_BEGIN(gk_rule_curvature_begin) { return h; }
GK_RULE4(gk_rule_curvature)
{
    s[1] = h.p0 * s[1] + h.p1 * g * g;
    return w;
}
#define gk_rule_curvature_states 2
#define gk_rule_curvature_memory 0

/* memory: lr, already that of this step; s: prev */
GK_BEGIN(gk_rule_hyper_begin) { return h; }
GK_RULE4(gk_rule_hyper)
{
    s[0] = g;
    return w - h.k0 * g;
}
#define gk_rule_hyper_states 1
#define gk_rule_hyper_memory 1

/* Schedule-free rules. p: b, decay, b2, eps, 1 - b2; memory: sum of lr^2; d: c of this step; s: z, v */
GK_BEGIN(gk_rule_free_begin)
{
    gk_f weight = h.lr * h.lr, sum = (h.first ? GK_R(0.0) : h.k0) + weight;
    h.d = sum > GK_R(0.0) ? weight / sum : GK_R(0.0);
    return h;
}
/* The point of evaluation moves by c towards the new z, and y follows. */
GK_FN gk_f gk_free_move(gk_f w, gk_f step, gk_f* z, gk_more h)
{
    gk_f old = h.first ? w : *z;
    *z = old - h.lr * step;
    return (GK_R(1.0) - h.d) * (w - (GK_R(1.0) - h.p0) * old) + (GK_R(1.0) - h.p0 + h.p0 * h.d) * *z;
}
#define gk_rule_free_sgd_begin gk_rule_free_begin
GK_RULE4(gk_rule_free_sgd) { return gk_free_move(w, g + h.p1 * w, s, h); }
#define gk_rule_free_sgd_states 1
#define gk_rule_free_sgd_memory 1
GK_BEGIN(gk_rule_free_adamw_begin) { h.c1 = gk_sqrt(h.c1); return gk_rule_free_begin(h); }
GK_RULE4(gk_rule_free_adamw)
{
    s[1] = h.p2 * s[1] + h.p4 * g * g;
    return gk_free_move(w, g / (gk_sqrt(s[1]) / h.c1 + h.p3) + h.p1 * w, s, h);
}
#define gk_rule_free_adamw_states 2
#define gk_rule_free_adamw_memory 1

/* p: mu, decay, d0; memory: d, r, norm; e: lr d / norm; s: s, w0; sums: <g, s>, |s|^2 */
GK_BEGIN(gk_rule_dadapt_sgd_begin)
{
    h.e = h.k2 > GK_R(0.0) ? h.lr * (h.first ? h.p2 : h.k0) / h.k2 : GK_R(0.0);
    return h;
}
GK_RULE4(gk_rule_dadapt_sgd)
{
    g += h.p1 * w;
    if (h.first) { s[0] = GK_R(0.0); s[1] = w; }
    sums[0] += g * s[0];
    s[0] += h.e * g;
    sums[1] += s[0] * s[0];
    return h.p0 * w + (GK_R(1.0) - h.p0) * (s[1] - s[0]);
}
#define gk_rule_dadapt_sgd_states 2
#define gk_rule_dadapt_sgd_memory 3

/* p: b1, b2, eps, decay, 1 - b1, 1 - b2, sqrt(b2), d0, so that 1 - sqrt(b2) = p5 / (1 + p6); e: lr d; s: m, v, s; sums: <g, s / (sqrt v + eps)>,
 * |s|_1 */
GK_BEGIN(gk_rule_dadapt_adam_begin) { h.e = h.lr * (h.first ? h.p7 : h.k0); return h; }
GK_RULE4(gk_rule_dadapt_adam)
{
    if (s[2] != GK_R(0.0)) sums[0] += g * (s[2] / (gk_sqrt(s[1]) + h.p2));
    s[0] = h.p0 * s[0] + h.e * h.p4 * g;
    s[1] = h.p1 * s[1] + h.p5 * g * g;
    s[2] = h.p6 * s[2] + h.e * (h.p5 / (GK_R(1.0) + h.p6)) * g;
    sums[1] += gk_fabs(s[2]);
    return w * (GK_R(1.0) - h.e * h.p3) - s[0] / (gk_sqrt(s[1]) + h.p2);
}
#define gk_rule_dadapt_adam_states 3
#define gk_rule_dadapt_adam_memory 2

/* p as above; d, e: d and lr d; s: m, v, s, w0; sums: <g, w0 - w>, |s|_1 */
GK_BEGIN(gk_rule_prodigy_begin)
{
    h.d = h.first ? h.p7 : h.k0;
    h.e = h.lr * h.d;
    return h;
}
GK_RULE4(gk_rule_prodigy)
{
    gk_f dg = h.d * g;
    if (h.first) s[3] = w;
    sums[0] += g * (s[3] - w);
    s[0] = h.p0 * s[0] + h.p4 * dg;
    s[1] = h.p1 * s[1] + h.p5 * dg * dg;
    s[2] = h.p6 * s[2] + h.p5 / (GK_R(1.0) + h.p6) * h.e * dg;
    sums[1] += gk_fabs(s[2]);
    return w * (GK_R(1.0) - h.e * h.p3) - h.e * s[0] / (gk_sqrt(s[1]) + h.d * h.p2);
}
#define gk_rule_prodigy_states 4
#define gk_rule_prodigy_memory 2
