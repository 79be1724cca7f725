/* One step of an update rule for a list of tensors in one launch; the rules and the table stand in optimizer/rules.h. GK_OP names the rule.
 *
 * Launch: `parts` blocks per chunk of GK_CHUNK elements, looping. State and arithmetic in gk_f. Every element is independent, so the bits do not
 * depend on how a list is cut. A rule with fewer states reads no more. Reference: torch.optim.
 */
#include "rules.h"

#define GK_STATES GK_CAT(GK_OP, _states)

/* The 16-bit copy: kind 1 = f16, 2 = bf16. */
#define gk_store_copy(i, v) (copy[i] = copy_kind == 1 ? gk_f32_to_f16((float)(v)) : gk_f32_to_bf16((float)(v)))

typedef struct {
    gk_f lr, t, c1, c2, log1, log2, p0, p1, p2, p3, p4, p5, q0, q1;
    int maximize, first, flag, parts;
} gk_optimizer_step_args;

// Units: FLOATS64 x RULES
/* Gradients have the unit's storage type; parameters too, or gk_f where master is set. numbers, and then step and lr_dev, replace the host's where they
 * are not null; log1, log2 are ln b1, ln b2 for the bias corrections of a step count on the device. extra: q0 of every tensor, or q0 and q1. */
GK_KERNEL(optimizer_step)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, w), GK_IN(gk_t, g), GK_OUT(gk_f, s0), GK_OUT(gk_f, s1), GK_OUT(gk_f, s2),
                          GK_OUT(gk_u16, copy), int master, int copy_kind, GK_IN(float, lr_dev), GK_IN(gk_i64, step), GK_IN(float, inv_scale),
                          GK_IN(float, found_inf), GK_IN(gk_f, extra), int per_tensor, GK_IN(gk_f, numbers),
                          GK_BY_VALUE(gk_optimizer_step_args, args))
{
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, s0); GK_BIND_OUT(gk_f, s1); GK_BIND_OUT(gk_f, s2);
    GK_BIND_OUT(gk_u16, copy); GK_BIND_IN(gk_f, extra); GK_BIND_IN(gk_f, numbers);
    GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale); GK_BIND_IN(float, found_inf);
    if (found_inf && found_inf[0] != 0.0f) return;
    GK_GLOBAL gk_f* wm = (GK_GLOBAL gk_f*)w;
    gk_step h;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : args.lr;
    h.t = args.t; h.c1 = args.c1; h.c2 = args.c2; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5;
    h.q0 = args.q0; h.q1 = args.q1; h.first = args.first; h.flag = args.flag;
    if (numbers) h = gk_step_numbers(h, numbers);
    if (step) h = gk_step_at(h, step[0], args.log1, args.log2);
    if (extra && !per_tensor) { h.q0 = extra[0]; h.q1 = extra[1]; }
    gk_i64 parts = table[tensors * GK_OPTIM_FIELDS] * args.parts, len = GK_CHUNK / args.parts;
    for (gk_i64 part = gk_bid(0); part < parts; part += gk_nblocks(0)) {
        gk_i64 c = part / args.parts;
        int at = gk_tensor_of(table, tensors, c);
        GK_GLOBAL const gk_i64* row = table + at * GK_OPTIM_FIELDS;
        if (extra && per_tensor) h.q0 = extra[at];
        gk_i64 begin = (c - row[0]) * GK_CHUNK + part % args.parts * len, end = begin + len < row[1] ? begin + len : row[1];
        gk_i64 ow = row[2], og = row[3], o0 = row[4], o1 = row[5], o2 = row[6], oc = row[7], i = begin + gk_lid() * GK_W;
        if ((ow | og | o0 | o1 | o2) % GK_W == 0) {
            for (; i + GK_W <= end; i += GK_BLOCK * GK_W) {
                gk_vec a = master ? gk_loads(wm, ow + i) : gk_loadv(w, ow + i), b = gk_loadv(g, og + i), m = b, v = b, x = b;
                if (GK_STATES > 0) m = gk_loads(s0, o0 + i);
                if (GK_STATES > 1) v = gk_loads(s1, o1 + i);
                if (GK_STATES > 2) x = gk_loads(s2, o2 + i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_OP(a.v[k], b.v[k] * unscale, &m.v[k], &v.v[k], &x.v[k], h);
                if (master) gk_stores(wm, ow + i, a); else gk_storev(w, ow + i, a);
                if (GK_STATES > 0) gk_stores(s0, o0 + i, m);
                if (GK_STATES > 1) gk_stores(s1, o1 + i, v);
                if (GK_STATES > 2) gk_stores(s2, o2 + i, x);
                if (copy_kind) GK_UNROLL for (int k = 0; k < GK_W; k++) gk_store_copy(oc + i + k, a.v[k]);
            }
            /* What is left of the last vector: only the thread whose vector crosses the end has some. */
            for (; i < end; i++) {
                gk_f m = GK_STATES > 0 ? s0[o0 + i] : GK_R(0.0), v = GK_STATES > 1 ? s1[o1 + i] : GK_R(0.0),
                    x = GK_STATES > 2 ? s2[o2 + i] : GK_R(0.0);
                gk_f a = GK_OP(master ? wm[ow + i] : gk_load(w, ow + i), gk_load(g, og + i) * unscale, &m, &v, &x, h);
                if (master) wm[ow + i] = a; else gk_store(w, ow + i, a);
                if (GK_STATES > 0) s0[o0 + i] = m;
                if (GK_STATES > 1) s1[o1 + i] = v;
                if (GK_STATES > 2) s2[o2 + i] = x;
                if (copy_kind) gk_store_copy(oc + i, a);
            }
        } else {
            for (i = begin + gk_lid(); i < end; i += GK_BLOCK) {
                gk_f m = GK_STATES > 0 ? s0[o0 + i] : GK_R(0.0), v = GK_STATES > 1 ? s1[o1 + i] : GK_R(0.0),
                    x = GK_STATES > 2 ? s2[o2 + i] : GK_R(0.0);
                gk_f a = GK_OP(master ? wm[ow + i] : gk_load(w, ow + i), gk_load(g, og + i) * unscale, &m, &v, &x, h);
                if (master) wm[ow + i] = a; else gk_store(w, ow + i, a);
                if (GK_STATES > 0) s0[o0 + i] = m;
                if (GK_STATES > 1) s1[o1 + i] = v;
                if (GK_STATES > 2) s2[o2 + i] = x;
                if (copy_kind) gk_store_copy(oc + i, a);
            }
        }
    }
}
