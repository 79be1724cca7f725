/* Update rules with up to four states and rules that keep numbers in device memory (`memory`); otherwise as optimizer/optimizer.c. GK_OP names the
 * rule.
 *
 * Launch: one block per chunk of GK_CHUNK elements, looping. State and arithmetic in gk_f. Where `partial` is given, block b leaves there the sums
 * of two numbers per element that the rule names, [b] and [b + blocks]; their tree depends on the lengths alone. adaptive_memory
 * (optimizer/adaptive_memory.c) turns them into the next memory. Deterministic. References stand in src/ops/optimizer/rules.rs.
 */
#include "adaptive_rules.h"

#define GK_STATES GK_CAT(GK_OP, _states)

/* An element of the 16-bit copy: kind 1 = f16, 2 = bf16. */
GK_FN gk_u16 gk_copy_of(gk_f v, int kind) { return kind == 1 ? gk_f32_to_f16((float)v) : gk_f32_to_bf16((float)v); }

/* The arrays of a tensor. */
typedef struct {
    GK_GLOBAL gk_t* w;
    GK_GLOBAL const gk_t* g;
    GK_GLOBAL gk_f* s0;
    GK_GLOBAL gk_f* s1;
    GK_GLOBAL gk_f* s2;
    GK_GLOBAL gk_f* s3;
    GK_GLOBAL gk_u16* copy;
} gk_arrays;

/* One element at position i of the tensor; wm: its parameters as gk_f. */
GK_FN void gk_adaptive_element(gk_arrays a, GK_GLOBAL gk_f* wm, gk_i64 i, int master, int copy_kind, gk_f unscale, gk_f* sums, gk_more h)
{
    gk_f s[4];
    s[0] = GK_STATES > 0 ? a.s0[i] : GK_R(0.0); s[1] = GK_STATES > 1 ? a.s1[i] : GK_R(0.0);
    s[2] = GK_STATES > 2 ? a.s2[i] : GK_R(0.0); s[3] = GK_STATES > 3 ? a.s3[i] : GK_R(0.0);
    gk_f r = GK_OP(master ? wm[i] : gk_load(a.w, i), gk_load(a.g, i) * unscale, s, sums, h);
    if (master) wm[i] = r; else gk_store(a.w, i, r);
    if (GK_STATES > 0) a.s0[i] = s[0];
    if (GK_STATES > 1) a.s1[i] = s[1];
    if (GK_STATES > 2) a.s2[i] = s[2];
    if (GK_STATES > 3) a.s3[i] = s[3];
    if (copy_kind) a.copy[i] = gk_copy_of(r, copy_kind);
}

typedef struct {
    gk_f lr, c1, c2, c3, log1, log2, log3, p0, p1, p2, p3, p4, p5, p6, p7;
    int maximize, first;
} gk_adaptive_step_args;

// Units: FLOATS64 x ADAPTIVE_RULES
/* Operands as of optimizer_step; log1 to log3 are the logarithms of the bases of 1 - b^t for a step count on the device. */
GK_KERNEL(adaptive_step)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, w), GK_IN(gk_t, g), GK_OUT(gk_f, s0), GK_OUT(gk_f, s1), GK_OUT(gk_f, s2),
                         GK_OUT(gk_f, s3), GK_OUT(gk_u16, copy), int master, int copy_kind, GK_IN(float, lr_dev), GK_IN(gk_i64, step),
                         GK_IN(float, inv_scale), GK_IN(float, found_inf), GK_IN(gk_f, memory), GK_OUT(gk_f, partial), GK_IN(gk_f, numbers),
                         GK_BY_VALUE(gk_adaptive_step_args, args))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, s0); GK_BIND_OUT(gk_f, s1); GK_BIND_OUT(gk_f, s2);
    GK_BIND_OUT(gk_f, s3); GK_BIND_OUT(gk_u16, copy); GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale);
    GK_BIND_IN(float, found_inf); GK_BIND_IN(gk_f, memory); GK_BIND_OUT(gk_f, partial); GK_BIND_IN(gk_f, numbers);
    int skip = 0;
    if (found_inf) skip = found_inf[0] != 0.0f;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (args.maximize) unscale = -unscale;
    gk_more h;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : args.lr;
    h.c1 = args.c1; h.c2 = args.c2; h.c3 = args.c3; h.p0 = args.p0; h.p1 = args.p1; h.p2 = args.p2; h.p3 = args.p3; h.p4 = args.p4; h.p5 = args.p5;
    h.p6 = args.p6; h.p7 = args.p7; h.first = args.first;
    if (numbers) {
        h.first = numbers[1] == GK_R(1.0);
        h.lr = numbers[0]; h.c1 = numbers[2]; h.c2 = numbers[3]; h.c3 = numbers[4];
    }
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
    gk_i64 chunks = skip ? 0 : table[tensors * GK_OPTIM_ROW];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_row_of(table, tensors, c) * GK_OPTIM_ROW;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], i = begin + gk_lid() * GK_W;
        gk_arrays at;
        at.w = w + row[2]; at.g = g + row[3]; at.s0 = s0 + row[4]; at.s1 = s1 + row[5]; at.s2 = s2 + row[6]; at.s3 = s3 + row[7];
        at.copy = copy + row[8];
        GK_GLOBAL gk_f* wm = (GK_GLOBAL gk_f*)w + row[2];
        if ((row[2] | row[3] | row[4] | row[5] | row[6] | row[7]) % GK_W == 0) {
            for (; i + GK_W <= end; i += GK_BLOCK * GK_W) {
                gk_vec a = master ? gk_loads(wm, i) : gk_loadv(at.w, i), b = gk_loadv(at.g, i), m = b, v = b, x = b, z = b;
                if (GK_STATES > 0) m = gk_loads(at.s0, i);
                if (GK_STATES > 1) v = gk_loads(at.s1, i);
                if (GK_STATES > 2) x = gk_loads(at.s2, i);
                if (GK_STATES > 3) z = gk_loads(at.s3, i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) {
                    gk_f s[4];
                    s[0] = m.v[k]; s[1] = v.v[k]; s[2] = x.v[k]; s[3] = z.v[k];
                    a.v[k] = GK_OP(a.v[k], b.v[k] * unscale, s, sums, h);
                    m.v[k] = s[0]; v.v[k] = s[1]; x.v[k] = s[2]; z.v[k] = s[3];
                }
                if (master) gk_stores(wm, i, a); else gk_storev(at.w, i, a);
                if (GK_STATES > 0) gk_stores(at.s0, i, m);
                if (GK_STATES > 1) gk_stores(at.s1, i, v);
                if (GK_STATES > 2) gk_stores(at.s2, i, x);
                if (GK_STATES > 3) gk_stores(at.s3, i, z);
                if (copy_kind) GK_UNROLL for (int k = 0; k < GK_W; k++) at.copy[i + k] = gk_copy_of(a.v[k], copy_kind);
            }
            /* What is left of the last vector: only the thread whose vector crosses the end has some. */
            for (; i < end; i++) gk_adaptive_element(at, wm, i, master, copy_kind, unscale, sums, h);
        } else {
            for (i = begin + gk_lid(); i < end; i += GK_BLOCK) gk_adaptive_element(at, wm, i, master, copy_kind, unscale, sums, h);
        }
    }
    if (partial) {
        for (int k = 0; k < 2; k++) {
            gk_f sum = gk_block_sum(sums[k], tmp);
            if (gk_lid() == 0) partial[k * gk_nblocks(0) + gk_bid(0)] = sum;
        }
    }
}
