/* Optimizer steps and gradient clipping over lists of tensors in one launch.
 *
 * A list travels as a table of gk_i64 in device memory: one row of GK_FIELDS numbers per tensor (first chunk, length, then the element offset
 * of each of its arrays from that array's base pointer), and one closing row whose first number is the count of chunks. Where the device has
 * plain addresses the bases are null and the offsets absolute; elsewhere the tensors of a launch share buffers.
 * Launch: one block per chunk of GK_CHUNK elements, looping. State and arithmetic in gk_f. Every element is independent, so the bits do not
 * depend on how a list is cut. Reference: torch.optim.
 */
#define GK_CHUNK (GK_BLOCK * 32)
#define GK_FIELDS 7

/* Tensor that holds chunk `chunk`: last row whose first chunk is not above it. */
GK_FN int gk_tensor_of(GK_GLOBAL const gk_i64* table, int tensors, gk_i64 chunk)
{
    int lo = 0, hi = tensors;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (table[mid * GK_FIELDS] <= chunk) lo = mid; else hi = mid;
    }
    return lo;
}

#ifdef GK_OP

/* Scalars of a step, as every element sees them. p: the rule's numbers. */
typedef struct { gk_f lr, c1, c2, p0, p1, p2, p3, p4, p5; int first, flag; } gk_step;

/* p0 = weight decay */
GK_FN gk_f gk_rule_sgd(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    return w - h.lr * (g + h.p0 * w);
}
#define gk_rule_sgd_states 0

/* p0 = momentum, p1 = 1 - dampening, p2 = weight decay, flag = Nesterov; s0 = velocity */
GK_FN gk_f gk_rule_momentum(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    g += h.p2 * w;
    *s0 = h.first ? g : h.p0 * *s0 + h.p1 * g;
    return w - h.lr * (h.flag ? g + h.p0 * *s0 : *s0);
}
#define gk_rule_momentum_states 1

/* p0 = b1, p1 = b2, p2 = eps, p3 = weight decay, p4 = 1 - b1, p5 = 1 - b2; c1 = 1 - b1^t, c2 = sqrt(1 - b2^t); s0 = m, s1 = v */
GK_FN gk_f gk_rule_adam_core(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    *s0 = h.p0 * *s0 + h.p4 * g;
    *s1 = h.p1 * *s1 + h.p5 * g * g;
    return w - h.lr / h.c1 * *s0 / (gk_sqrt(*s1) / h.c2 + h.p2);
}
GK_FN gk_f gk_rule_adam(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h) { return gk_rule_adam_core(w, g + h.p3 * w, s0, s1, h); }
#define gk_rule_adam_states 2
GK_FN gk_f gk_rule_adamw(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h) { return gk_rule_adam_core(w - h.lr * h.p3 * w, g, s0, s1, h); }
#define gk_rule_adamw_states 2

#define GK_STATES GK_CAT(GK_OP, _states)

/* GK_W elements of arithmetic type. */
GK_FN gk_vec gk_loads(GK_GLOBAL const gk_f* p, gk_i64 i)
{
    gk_vec r;
#if GK_DTYPE == GK_F64
    r.v[0] = p[i]; r.v[1] = p[i + 1];
#else
    GK_UNROLL for (int k = 0; k < GK_W; k += 4) {
        gk_raw16 q = gk_load16((GK_GLOBAL const void*)(p + i + k));
        r.v[k] = gk_as_f32(q.x); r.v[k + 1] = gk_as_f32(q.y); r.v[k + 2] = gk_as_f32(q.z); r.v[k + 3] = gk_as_f32(q.w);
    }
#endif
    return r;
}
GK_FN void gk_stores(GK_GLOBAL gk_f* p, gk_i64 i, gk_vec r)
{
#if GK_DTYPE == GK_F64
    p[i] = r.v[0]; p[i + 1] = r.v[1];
#else
    GK_UNROLL for (int k = 0; k < GK_W; k += 4)
        gk_store16((GK_GLOBAL void*)(p + i + k), gk_make16(gk_as_u32(r.v[k]), gk_as_u32(r.v[k + 1]), gk_as_u32(r.v[k + 2]), gk_as_u32(r.v[k + 3])));
#endif
}
/* The 16-bit copy: kind 1 = f16, 2 = bf16. */
#define gk_store_copy(i, v) (copy[i] = copy_kind == 1 ? gk_f32_to_f16((float)(v)) : gk_f32_to_bf16((float)(v)))

/* Gradients have the unit's storage type; parameters too, or gk_f where master is set. step and lr_dev replace the host's numbers where they
 * are not null; log1, log2 are ln b1, ln b2 for the bias corrections of a step count on the device. */
GK_KERNEL(optimizer_step)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, w), GK_IN(gk_t, g), GK_OUT(gk_f, s0), GK_OUT(gk_f, s1), GK_OUT(gk_u16, copy),
                          int master, int copy_kind, GK_IN(float, lr_dev), GK_IN(gk_i64, step), GK_IN(float, inv_scale), GK_IN(float, found_inf),
                          int maximize, gk_f lr, gk_f c1, gk_f c2, gk_f log1, gk_f log2, gk_f p0, gk_f p1, gk_f p2, gk_f p3, gk_f p4, gk_f p5,
                          int first, int flag)
{
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, w); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, s0); GK_BIND_OUT(gk_f, s1); GK_BIND_OUT(gk_u16, copy);
    GK_BIND_IN(float, lr_dev); GK_BIND_IN(gk_i64, step); GK_BIND_IN(float, inv_scale); GK_BIND_IN(float, found_inf);
    if (found_inf && found_inf[0] != 0.0f) return;
    GK_GLOBAL gk_f* wm = (GK_GLOBAL gk_f*)w;
    gk_step h;
    gk_f unscale = inv_scale ? (gk_f)inv_scale[0] : GK_R(1.0);
    if (maximize) unscale = -unscale;
    h.lr = lr_dev ? (gk_f)lr_dev[0] : lr;
    h.c1 = c1; h.c2 = c2; h.p0 = p0; h.p1 = p1; h.p2 = p2; h.p3 = p3; h.p4 = p4; h.p5 = p5; h.first = first; h.flag = flag;
    if (step) {
        /* 1 - b^t without cancellation */
        h.first = step[0] == 1;
        h.c1 = -gk_expm1((gk_f)step[0] * log1);
        h.c2 = gk_sqrt(-gk_expm1((gk_f)step[0] * log2));
    }
    gk_i64 chunks = table[tensors * GK_FIELDS];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        int t = gk_tensor_of(table, tensors, c);
        GK_GLOBAL const gk_i64* row = table + t * GK_FIELDS;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1];
        gk_i64 ow = row[2], og = row[3], o0 = row[4], o1 = row[5], oc = row[6], i = begin + gk_lid() * GK_W;
        if ((ow | og | o0 | o1) % GK_W == 0) {
            for (; i + GK_W <= end; i += GK_BLOCK * GK_W) {
                gk_vec a = master ? gk_loads(wm, ow + i) : gk_loadv(w, ow + i), b = gk_loadv(g, og + i), m = b, v = b;
                if (GK_STATES > 0) m = gk_loads(s0, o0 + i);
                if (GK_STATES > 1) v = gk_loads(s1, o1 + i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) a.v[k] = GK_OP(a.v[k], b.v[k] * unscale, &m.v[k], &v.v[k], h);
                if (master) gk_stores(wm, ow + i, a); else gk_storev(w, ow + i, a);
                if (GK_STATES > 0) gk_stores(s0, o0 + i, m);
                if (GK_STATES > 1) gk_stores(s1, o1 + i, v);
                if (copy_kind) GK_UNROLL for (int k = 0; k < GK_W; k++) gk_store_copy(oc + i + k, a.v[k]);
            }
            /* What is left of the last vector: only the work-item whose vector crosses the end has some. */
            for (; i < end; i++) {
                gk_f m = GK_STATES > 0 ? s0[o0 + i] : GK_R(0.0), v = GK_STATES > 1 ? s1[o1 + i] : GK_R(0.0);
                gk_f a = GK_OP(master ? wm[ow + i] : gk_load(w, ow + i), gk_load(g, og + i) * unscale, &m, &v, h);
                if (master) wm[ow + i] = a; else gk_store(w, ow + i, a);
                if (GK_STATES > 0) s0[o0 + i] = m;
                if (GK_STATES > 1) s1[o1 + i] = v;
                if (copy_kind) gk_store_copy(oc + i, a);
            }
        } else {
            for (i = begin + gk_lid(); i < end; i += GK_BLOCK) {
                gk_f m = GK_STATES > 0 ? s0[o0 + i] : GK_R(0.0), v = GK_STATES > 1 ? s1[o1 + i] : GK_R(0.0);
                gk_f a = GK_OP(master ? wm[ow + i] : gk_load(w, ow + i), gk_load(g, og + i) * unscale, &m, &v, h);
                if (master) wm[ow + i] = a; else gk_store(w, ow + i, a);
                if (GK_STATES > 0) s0[o0 + i] = m;
                if (GK_STATES > 1) s1[o1 + i] = v;
                if (copy_kind) gk_store_copy(oc + i, a);
            }
        }
    }
}

#else

/* Contribution of one value to a norm of degree p: kind 0 = |x|^p, 1 = |x|, 2 = x^2 in three ranges, 3 = maximum. The ranges (Blue, 1978) keep
 * squares of large and small values from overflowing and vanishing: s[0] holds squares times 2^-128, s[1] plain, s[2] times 2^128. */
GK_FN void gk_norm_add(gk_f* s, gk_f x, int kind, gk_f p)
{
    gk_f a = gk_fabs(x);
    if (kind == 2) {
        if (a > GK_R(1e15)) { a *= GK_R(5.42101086242752217e-20); s[0] += a * a; }
        else if (a < GK_R(1e-15)) { a *= GK_R(1.8446744073709552e19); s[2] += a * a; }
        else s[1] += a * a;
    } else if (kind == 3) s[1] = gk_max(s[1], a);
    else s[1] += kind == 1 ? a : gk_pow(a, p);
}

/* partial[3b..3b+2] of the chunks that block b takes. */
GK_KERNEL(norm_partial)(GK_IN(gk_i64, table), int tensors, GK_IN(gk_t, g), GK_OUT(gk_f, partial), int kind, gk_f p)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_i64, table); GK_BIND_IN(gk_t, g); GK_BIND_OUT(gk_f, partial);
    gk_f s[3];
    s[0] = s[1] = s[2] = GK_R(0.0);
    gk_i64 chunks = table[tensors * GK_FIELDS];
    for (gk_i64 c = gk_bid(0); c < chunks; c += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, tensors, c) * GK_FIELDS;
        gk_i64 begin = (c - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], og = row[3], i = begin;
        if (og % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_BLOCK * GK_W) {
                gk_vec v = gk_loadv(g, og + i);
                GK_UNROLL for (int k = 0; k < GK_W; k++) gk_norm_add(s, v.v[k], kind, p);
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) gk_norm_add(s, gk_load(g, og + i), kind, p);
    }
    for (int k = 0; k < 3; k++) {
        s[k] = kind == 3 ? gk_block_max(s[k], tmp) : gk_block_sum(s[k], tmp);
        if (gk_lid() == 0) partial[3 * gk_bid(0) + k] = s[k];
    }
}

/* One block: total = the norm, coef = min(1, max_norm / (total + 1e-6)). */
GK_KERNEL(norm_finish)(GK_IN(gk_f, partial), gk_i64 n, int kind, gk_f p, gk_f max_norm, GK_OUT(float, total), GK_OUT(gk_f, coef))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_OUT(float, total); GK_BIND_OUT(gk_f, coef);
    gk_f s[3];
    for (int k = 0; k < 3; k++) {
        s[k] = GK_R(0.0);
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) s[k] = kind == 3 ? gk_max(s[k], partial[3 * i + k]) : s[k] + partial[3 * i + k];
        s[k] = kind == 3 ? gk_block_max(s[k], tmp) : gk_block_sum(s[k], tmp);
    }
    if (gk_lid() == 0) {
        gk_f r = s[1];
        if (kind == 0) r = gk_pow(r, GK_R(1.0) / p);
        if (kind == 2) {
            /* Large values decide alone (the others do not reach their last bit), else plain and small ones together. */
            if (s[0] > GK_R(0.0) || gk_isnan(s[0])) r = gk_sqrt(s[0] + s[1] * GK_R(2.93873587705571877e-39)) * GK_R(1.8446744073709552e19);
            else if (s[1] > GK_R(0.0) || gk_isnan(s[1])) r = gk_sqrt(s[1] + s[2] * GK_R(2.93873587705571877e-39));
            else r = gk_sqrt(s[2]) * GK_R(5.42101086242752217e-20);
        }
        if (total) total[0] = (float)r;
        gk_f c = max_norm / (r + GK_R(1e-6));
        coef[0] = c > GK_R(1.0) ? GK_R(1.0) : c;
    }
}

/* g *= coef; nothing is written where coef is exactly 1. mode 1: g = clamp(g, -bound, bound), NaN stays. */
GK_KERNEL(grad_scale)(GK_IN(gk_i64, table), int tensors, GK_OUT(gk_t, g), GK_IN(gk_f, coef), int mode, gk_f bound)
{
    GK_BIND_IN(gk_i64, table); GK_BIND_OUT(gk_t, g); GK_BIND_IN(gk_f, coef);
    gk_f c = mode ? GK_R(0.0) : coef[0];
    if (!mode && c == GK_R(1.0)) return;
    gk_i64 chunks = table[tensors * GK_FIELDS];
    for (gk_i64 k = gk_bid(0); k < chunks; k += gk_nblocks(0)) {
        GK_GLOBAL const gk_i64* row = table + gk_tensor_of(table, tensors, k) * GK_FIELDS;
        gk_i64 begin = (k - row[0]) * GK_CHUNK, end = begin + GK_CHUNK < row[1] ? begin + GK_CHUNK : row[1], og = row[3], i = begin;
        if (og % GK_W == 0) {
            gk_i64 full = begin + (end - begin) / GK_W * GK_W;
            for (i = begin + gk_lid() * GK_W; i < full; i += GK_BLOCK * GK_W) {
                gk_vec v = gk_loadv(g, og + i);
                GK_UNROLL for (int j = 0; j < GK_W; j++) v.v[j] = mode ? gk_min(gk_max(v.v[j], -bound), bound) : v.v[j] * c;
                gk_storev(g, og + i, v);
            }
            i = full;
        }
        for (i += gk_lid(); i < end; i += GK_BLOCK) {
            gk_f v = gk_load(g, og + i);
            gk_store(g, og + i, mode ? gk_min(gk_max(v, -bound), bound) : v * c);
        }
    }
}
#endif
