/* Update rules with up to four states and rules that keep numbers in device memory (`memory`); otherwise as optimizer/optimizer.c. GK_OP names the rule.
 *
 * Launch: one block per chunk of GK_CHUNK elements, looping. State and arithmetic in gk_f. Where `partial` is given, block b leaves there the sums
 * of two numbers per element that the rule names, [b] and [b + blocks]; their tree depends on the lengths alone. adaptive_memory
 * (optimizer/adaptive_memory.c) turns them into the next memory. Deterministic. References stand in src/ops/optimizer_rules.rs.
 */
#include "adaptive_rules.h"

#define GK_STATES GK_CAT(GK_OP, _states)

/* The 16-bit copy: kind 1 = f16, 2 = bf16. */
#define gk_store_copy(i, v) (copy[i] = args.copy_kind == 1 ? gk_f32_to_f16((float)(v)) : gk_f32_to_bf16((float)(v)))

/* One element at position i of the tensor. */
#define GK_ELEMENT(i) \
    do { \
        gk_f s[4]; \
        s[0] = GK_STATES > 0 ? s0[o0 + (i)] : GK_R(0.0); s[1] = GK_STATES > 1 ? s1[o1 + (i)] : GK_R(0.0); \
        s[2] = GK_STATES > 2 ? s2[o2 + (i)] : GK_R(0.0); s[3] = GK_STATES > 3 ? s3[o3 + (i)] : GK_R(0.0); \
        gk_f r = GK_OP(args.master ? wm[ow + (i)] : gk_load(w, ow + (i)), gk_load(g, og + (i)) * unscale, s, sums, h); \
        if (args.master) wm[ow + (i)] = r; else gk_store(w, ow + (i), r); \
        if (GK_STATES > 0) s0[o0 + (i)] = s[0]; \
        if (GK_STATES > 1) s1[o1 + (i)] = s[1]; \
        if (GK_STATES > 2) s2[o2 + (i)] = s[2]; \
        if (GK_STATES > 3) s3[o3 + (i)] = s[3]; \
        if (args.copy_kind) gk_store_copy(oc + (i), r); \
    } while (0)

typedef struct {
    gk_f lr, c1, c2, c3, log1, log2, log3, p0, p1, p2, p3, p4, p5, p6, p7;
    int tensors, master, copy_kind, maximize, first;
} gk_adaptive_step_args;

// Units: FLOATS64 x ADAPTIVE_RULES
/* Operands as of optimizer_step; log1 to log3 are the logarithms of the bases of 1 - b^t for a step count on the device. */
GK_KERNEL(adaptive_step)(GK_IN(gk_i64, table), GK_OUT(gk_t, w), GK_IN(gk_t, g), GK_OUT(gk_f, s0), GK_OUT(gk_f, s1), GK_OUT(gk_f, s2),
                         GK_OUT(gk_f, s3), GK_OUT(gk_u16, copy), GK_IN(float, lr_dev), GK_IN(gk_i64, step), GK_IN(float, inv_scale),
                         GK_IN(float, found_inf), GK_IN(gk_f, memory), GK_OUT(gk_f, partial), GK_BY_VALUE(gk_adaptive_step_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, s0); GK_BIND_OUT(gk_f, s1); GK_BIND_OUT(gk_f, s2);
    GK_BIND_OUT(gk_f, s3); GK_BIND_OUT(gk_u16, copy); GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale);
    GK_BIND_IN(float, found_inf); GK_BIND_IN(gk_f, memory); GK_BIND_OUT(gk_f, partial);
    int skip = 0;
    if (found_inf) skip = found_inf[0] != 0.0f;
    GK_GLOBAL gk_f* wm = (GK_GLOBAL gk_f*)w;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    gk_more h;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : args.lr;
    h.c1 = args.c1; h.c2 = args.c2; h.c3 = args.c3; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5; h.p6 = args.p6; h.p7 = args.p7; h.first = args.first;
    if (step) {
        gk_f t = (gk_f)step[0];
        h.first = step[0] == 1;
        h.c1 = -gk_expm1(t * args.log1); h.c2 = -gk_expm1(t * args.log2); h.c3 = -gk_expm1(t * args.log3);
    }
    h.k0 = h.k2 = GK_R(0.0);
    if (memory) { h.k0 = memory[0]; if (GK_CAT(GK_OP, _memory) > 2) h.k2 = memory[2]; }
    h = GK_CAT(GK_OP, _begin)(h);
    gk_f sums[2];
    sums[0] = sums[1] = GK_R(0.0);
    gk_i64 chunks = skip ? 0 : table[args.tensors * GK_OPTIM_ROW];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_row_of(table, args.tensors, c) * GK_OPTIM_ROW;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1];
        gk_i64 ow = row[2], og = row[3], o0 = row[4], o1 = row[5], o2 = row[6], o3 = row[7], oc = row[8], i = begin + gk_lid() * GK_W;
        if ((ow | og | o0 | o1 | o2 | o3) % GK_W == 0) {
            for (; i + GK_W <= end; i += GK_BLOCK * GK_W) {
                gk_vec a = args.master ? gk_loads(wm, ow + i) : gk_loadv(w, ow + i), b = gk_loadv(g, og + i), m = b, v = b, x = b, z = b;
                if (GK_STATES > 0) m = gk_loads(s0, o0 + i);
                if (GK_STATES > 1) v = gk_loads(s1, o1 + i);
                if (GK_STATES > 2) x = gk_loads(s2, o2 + i);
                if (GK_STATES > 3) z = gk_loads(s3, o3 + i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    gk_f s[4];
                    s[0] = m.v[k]; s[1] = v.v[k]; s[2] = x.v[k]; s[3] = z.v[k];
                    a.v[k] = GK_OP(a.v[k], b.v[k] * unscale, s, sums, h);
                    m.v[k] = s[0]; v.v[k] = s[1]; x.v[k] = s[2]; z.v[k] = s[3];
                }
                if (args.master) gk_stores(wm, ow + i, a); else gk_storev(w, ow + i, a);
                if (GK_STATES > 0) gk_stores(s0, o0 + i, m);
                if (GK_STATES > 1) gk_stores(s1, o1 + i, v);
                if (GK_STATES > 2) gk_stores(s2, o2 + i, x);
                if (GK_STATES > 3) gk_stores(s3, o3 + i, z);
                if (args.copy_kind) GK_UNROLL for (int k = 0; k < GK_W; k++) gk_store_copy(oc + i + k, a.v[k]);
            }
            /* What is left of the last vector: only the work-item whose vector crosses the end has some. */
            for (; i < end; i++) GK_ELEMENT(i);
        } else {
            for (i = begin + gk_lid(); i < end; i += GK_BLOCK) GK_ELEMENT(i);
        }
    }
    if (partial) {
        for (int k = 0; k < 2; k++) {
            gk_f sum = gk_block_sum(sums[k], tmp);
            if (gk_lid() == 0) partial[k * gk_nblocks(0) + gk_bid(0)] = sum;
        }
    }
}
