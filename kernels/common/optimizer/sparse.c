/* One step of an update rule (optimizer/rules.h) for the rows of a parameter that a batch touched.
 *
 * keys, positions: ids of the gradient's rows, sorted, and where each was before; keys not below `limit` are dropped. The gradient of a row is the
 * sum of its sources in their order, in gk_f. Launch: `lanes` threads per source, a power of two; those of the first source of a run do the
 * row, the others nothing. Deterministic. Reference: torch.optim.SparseAdam; the dense rules.
 */
#include "rules.h"

#define GK_CASE(number, name) case number: return name(w, g, s, s + 1, s + 2, h);

/* Numbers as in SPARSE_RULES of src/spec/optimizer.rs. */
GK_FN gk_f gk_apply(int rule, gk_f w, gk_f g, gk_f* s, gk_step h)
{
    switch (rule) {
    GK_CASE(0, gk_rule_sgd)
    GK_CASE(1, gk_rule_momentum)
    GK_CASE(2, gk_rule_adam)
    GK_CASE(3, gk_rule_adamw)
    GK_CASE(4, gk_rule_amsgrad)
    GK_CASE(5, gk_rule_nadam)
    GK_CASE(6, gk_rule_radam)
    GK_CASE(7, gk_rule_asgd)
    GK_CASE(8, gk_rule_rprop)
    GK_CASE(9, gk_rule_adamax)
    GK_CASE(10, gk_rule_rmsprop)
    GK_CASE(11, gk_rule_rmsprop_momentum)
    GK_CASE(12, gk_rule_rmsprop_centered)
    GK_CASE(13, gk_rule_rmsprop_centered_momentum)
    GK_CASE(14, gk_rule_adagrad)
    GK_CASE(15, gk_rule_adadelta)
    GK_CASE(16, gk_rule_lion)
    GK_CASE(17, gk_rule_ftrl)
    GK_CASE(18, gk_rule_prox_elastic)
    GK_CASE(19, gk_rule_prox_box)
    }
    return w;
}

typedef struct {
    gk_f lr, t, c1, c2, log1, log2, p0, p1, p2, p3, p4, p5, q0, q1;
    int maximize, first, flag;
} gk_optimizer_sparse_rows_args;

// Units: FLOATS64
/* Operands as of optimizer_step, the tensors being [limit, width]; rows [n, width]. */
GK_KERNEL(optimizer_sparse_rows)(GK_IN(int, keys), GK_IN(gk_u32, positions), GK_OUT(gk_t, w), GK_IN(gk_t, rows), GK_OUT(gk_f, s0), GK_OUT(gk_f, s1),
                                 GK_OUT(gk_f, s2), GK_OUT(gk_u16, copy), int master, int copy_kind, GK_IN(float, lr_dev), GK_IN(gk_i64, step),
                                 GK_IN(float, inv_scale), GK_IN(float, found_inf), GK_IN(gk_f, extra), gk_i64 n, gk_i64 limit, gk_i64 width,
                                 int lanes, int wide, int rule, int states, GK_BY_VALUE(gk_optimizer_sparse_rows_args, args))
{
    GK_BIND_IN(int, keys); GK_BIND_IN(gk_u32, positions); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, rows); GK_BIND_OUT(gk_f, s0); GK_BIND_OUT(gk_f, s1);
    GK_BIND_OUT(gk_f, s2); GK_BIND_OUT(gk_u16, copy); GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale);
    GK_BIND_IN(float, found_inf); GK_BIND_IN(gk_f, extra);
    if (found_inf && found_inf[0] != 0.0f) return;
    GK_GLOBAL gk_f* wm = (GK_GLOBAL gk_f*)w;
    gk_step h;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : args.lr;
    h.t = args.t; h.c1 = args.c1; h.c2 = args.c2; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5;
    h.q0 = args.q0; h.q1 = args.q1; h.first = args.first; h.flag = args.flag;
    if (step) h = gk_step_at(h, step[0], args.log1, args.log2);
    if (extra) { h.q0 = extra[0]; h.q1 = extra[1]; }
    int lane = gk_lid() & (lanes - 1);
    gk_i64 stride = gk_gsize() / lanes;
    for (gk_i64 p = gk_gid() / lanes; p < n; p += stride) {
        gk_i64 key = gk_index(keys, p, wide);
        int skip = key < 0 || key >= limit;
        if (p > 0 && !skip) skip = gk_index(keys, p - 1, wide) == key;
        if (skip) continue;
        gk_i64 last = p + 1;
        while (last < n && gk_index(keys, last, wide) == key) last++;
        for (gk_i64 c = lane; c < width; c += lanes) {
            gk_f g = GK_R(0.0), s[3];
            for (gk_i64 q = p; q < last; q++) g += gk_load(rows, (gk_i64)positions[q] * width + c);
            gk_i64 i = key * width + c;
            s[0] = s[1] = s[2] = GK_R(0.0);
            if (states > 0) s[0] = s0[i];
            if (states > 1) s[1] = s1[i];
            if (states > 2) s[2] = s2[i];
            gk_f a;
            if (master) a = wm[i]; else a = gk_load(w, i);
            a = gk_apply(rule, a, g * unscale, s, h);
            if (master) wm[i] = a; else gk_store(w, i, a);
            if (states > 0) s0[i] = s[0];
            if (states > 1) s1[i] = s[1];
            if (states > 2) s2[i] = s[2];
            if (copy_kind) copy[i] = copy_kind == 1 ? gk_f32_to_f16((float)a) : gk_f32_to_bf16((float)a);
        }
    }
}
