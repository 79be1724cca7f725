/* Lists of tensors and the update rules of the optimizers.
 *
 * A list travels as a table of gk_i64 in device memory: one row of GK_OPTIM_FIELDS numbers per tensor (first chunk, length, then the element offset
 * of each of its arrays from that array's base pointer: w, g, three states, copy), and one closing row whose first number is the count of
 * chunks. Where the device has plain addresses the bases are null and the offsets absolute; elsewhere the tensors of a launch share buffers.
 */
#define GK_CHUNK (GK_BLOCK * 32)
#define GK_OPTIM_FIELDS 8

/* Tensor that holds chunk `chunk`: last row whose first chunk is not above it. Of a range of rows sixteen are looked at together, whose loads do not wait for
 * each other. */
GK_FN int gk_tensor_of(GK_GLOBAL const gk_i64* table, int tensors, gk_i64 chunk)
{
    int at = 0, count = tensors;
    while (count > 1) {
        int step = (count + 15) / 16, passed = 0;
        GK_UNROLL for (int k = 1; k < 16; k++)
            if (k * step < count) passed += table[(at + k * step) * GK_OPTIM_FIELDS] <= chunk;
        at += passed * step;
        count -= passed * step;
        if (count > step) count = step;
    }
    return at;
}

/* Scalars of a step, as every element sees them. t: step count; p: the rule's numbers; q: numbers that depend on the step or the tensor. */
typedef struct { gk_f lr, t, c1, c2, p0, p1, p2, p3, p4, p5, q0, q1; int first, flag; } gk_step;

/* Replaces the host's numbers of a step by those of a step count in device memory: 1 - b^t without cancellation. log1, log2 are ln b1, ln b2. */
GK_FN gk_step gk_step_at(gk_step h, gk_i64 t, gk_f log1, gk_f log2)
{
    h.first = t == 1;
    h.t = (gk_f)t;
    h.c1 = -gk_expm1((gk_f)t * log1);
    h.c2 = gk_sqrt(-gk_expm1((gk_f)t * log2));
    return h;
}

/* Replaces the host's numbers of a step by those in device memory: rate, count, corrections (the third is other kernels'), factors. */
GK_FN gk_step gk_step_numbers(gk_step h, GK_GLOBAL const gk_f* n)
{
    h.first = n[1] == GK_R(1.0);
    h.lr = n[0]; h.t = n[1]; h.c1 = n[2]; h.c2 = n[3]; h.q0 = n[5]; h.q1 = n[6];
    return h;
}

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

/* A rule takes parameter, gradient and states, changes the states and returns the new parameter; NAME_states says how many it has. */
#define GK_RULE(name) GK_FN gk_f name(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_f* s2, gk_step h)

/* p0 = weight decay */
GK_RULE(gk_rule_sgd) { return w - h.lr * (g + h.p0 * w); }
#define gk_rule_sgd_states 0

/* p0 = momentum, p1 = 1 - dampening, p2 = weight decay, flag = Nesterov; s0 = velocity */
GK_RULE(gk_rule_momentum)
{
    g += h.p2 * w;
    *s0 = h.first ? g : h.p0 * *s0 + h.p1 * g;
    return w - h.lr * (h.flag ? g + h.p0 * *s0 : *s0);
}
#define gk_rule_momentum_states 1

/* The Adam family: p0 = b1, p1 = b2, p2 = eps, p3 = weight decay, p4 = 1 - b1, p5 = 1 - b2; c1 = 1 - b1^t, c2 = sqrt(1 - b2^t); s0 = m, s1 = v */
GK_FN void gk_moments(gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    *s0 = h.p0 * *s0 + h.p4 * g;
    *s1 = h.p1 * *s1 + h.p5 * g * g;
}
GK_FN gk_f gk_rule_adam_core(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    gk_moments(g, s0, s1, h);
    return w - h.lr / h.c1 * *s0 / (gk_sqrt(*s1) / h.c2 + h.p2);
}
GK_RULE(gk_rule_adam) { return gk_rule_adam_core(w, g + h.p3 * w, s0, s1, h); }
#define gk_rule_adam_states 2
GK_RULE(gk_rule_adamw) { return gk_rule_adam_core(w * (GK_R(1.0) - h.lr * h.p3), g, s0, s1, h); }
#define gk_rule_adamw_states 2

/* s2 = largest v so far; flag = decoupled decay */
GK_RULE(gk_rule_amsgrad)
{
    if (h.flag) w *= GK_R(1.0) - h.lr * h.p3; else g += h.p3 * w;
    gk_moments(g, s0, s1, h);
    *s2 = gk_max(*s2, *s1);
    return w - h.lr / h.c1 * *s0 / (gk_sqrt(*s2) / h.c2 + h.p2);
}
#define gk_rule_amsgrad_states 3

/* q0, q1 = factors of g and m (nadam_scalars); flag = decoupled decay */
GK_RULE(gk_rule_nadam)
{
    if (h.flag) w *= GK_R(1.0) - h.lr * h.p3; else g += h.p3 * w;
    gk_moments(g, s0, s1, h);
    return w - h.lr * (h.q0 * g + h.q1 * *s0) / (gk_sqrt(*s1) / h.c2 + h.p2);
}
#define gk_rule_nadam_states 2

/* q0 = factor of Adam's step, 0 for a step along m alone; flag = decoupled decay */
GK_RULE(gk_rule_radam)
{
    if (h.flag) w *= GK_R(1.0) - h.lr * h.p3; else g += h.p3 * w;
    gk_moments(g, s0, s1, h);
    gk_f d = h.lr / h.c1 * *s0;
    return w - (h.q0 > GK_R(0.0) ? d * h.q0 * h.c2 / (gk_sqrt(*s1) + h.p2) : d);
}
#define gk_rule_radam_states 2

/* p0 = lambd, p1 = alpha, p2 = t0, p3 = weight decay; s0 = mean of the parameters */
GK_RULE(gk_rule_asgd)
{
    gk_f before = h.t - GK_R(1.0), eta = h.lr / gk_pow(GK_R(1.0) + h.p0 * h.lr * before, h.p1), n = before - h.p2;
    w = w * (GK_R(1.0) - h.p0 * eta) - eta * (g + h.p3 * w);
    *s0 = n > GK_R(1.0) ? *s0 + (w - *s0) / n : w;
    return w;
}
#define gk_rule_asgd_states 1

/* p0 = up, p1 = down, p2 and p3 = bounds of a step; s0 = gradient before, s1 = step of this element */
GK_RULE(gk_rule_rprop)
{
    gk_f same = g * *s0, size = h.first ? h.lr : *s1;
    if (same > GK_R(0.0)) size *= h.p0;
    if (same < GK_R(0.0)) { size *= h.p1; g = GK_R(0.0); }
    if (gk_isnan(same)) size = same;
    size = gk_min(gk_max(size, h.p2), h.p3);
    *s0 = g;
    *s1 = size;
    return w - (g > GK_R(0.0) ? size : g < GK_R(0.0) ? -size : g * size);
}
#define gk_rule_rprop_states 2

/* s1 = max(b2 s1, |g| + eps) */
GK_RULE(gk_rule_adamax)
{
    g += h.p3 * w;
    *s0 = h.p0 * *s0 + h.p4 * g;
    *s1 = gk_max(h.p1 * *s1, gk_fabs(g) + h.p2);
    return w - h.lr / h.c1 * *s0 / *s1;
}
#define gk_rule_adamax_states 2

/* Direction of LAMB before the trust ratio q0. */
GK_FN gk_f gk_lamb_direction(gk_f w, gk_f g, gk_f* s0, gk_f* s1, gk_step h)
{
    gk_moments(g, s0, s1, h);
    return *s0 / h.c1 / (gk_sqrt(*s1) / h.c2 + h.p2) + h.p3 * w;
}
GK_RULE(gk_rule_lamb) { return w - h.lr * h.q0 * gk_lamb_direction(w, g, s0, s1, h); }
#define gk_rule_lamb_states 2

/* p0 = momentum, p1 = weight decay, flag = Nesterov, q0 = trust ratio; s0 = velocity with the rate folded in */
GK_RULE(gk_rule_lars)
{
    gk_f d = h.lr * h.q0 * (g + h.p1 * w);
    *s0 = h.p0 * *s0 + d;
    return w - (h.flag ? h.p0 * *s0 + d : *s0);
}
#define gk_rule_lars_states 1

/* RMSprop: p0 = a, p1 = 1 - a, p2 = eps, p3 = weight decay, p4 = 1 - momentum; s0 = mean of g^2, then the mean of g, then the velocity. The functions
 * of the states return the variance. */
GK_FN gk_f gk_rms_plain(gk_f g, gk_f* s, gk_step h) { return *s = h.p0 * *s + h.p1 * g * g; }
GK_FN gk_f gk_rms_centered(gk_f g, gk_f* s, gk_f* mean, gk_step h)
{
    *s = h.p0 * *s + h.p1 * g * g;
    *mean = h.p0 * *mean + h.p1 * g;
    return gk_max(*s - *mean * *mean, GK_R(0.0));
}
GK_FN gk_f gk_rms_ratio(gk_f g, gk_f variance, gk_step h) { return g / (gk_sqrt(variance) + h.p2); }
/* The velocity b - (1 - momentum) b + g / (root + eps), rounded once. The first steps' ratios are near 1 / root(1 - a) however small g is: where they
 * cancel, roundings on the way would stand out. */
GK_FN gk_f gk_rms_velocity(gk_f g, gk_f variance, gk_f* b, gk_step h)
{
    gk_f root = gk_sqrt(variance), avg = root + h.p2, d = g / avg, i = GK_R(1.0) / avg;
    /* Infinity minus infinity is no number: an infinite velocity is scaled instead. */
    gk_f kept = gk_isinf(*b) ? (GK_R(1.0) - h.p4) * *b : gk_fma(-h.p4, *b, *b), sum = kept + d, part = sum - kept;
    gk_f more = (h.p2 - (avg - root)) + gk_fma(-root, root, variance) * GK_R(0.5) * i; /* avg + more and d + rest are exact to two floats */
    gk_f rest = i * (gk_fma(-d, avg, g) - d * more) + gk_fma(-h.p4, *b, *b - kept) + ((kept - (sum - part)) + (d - part));
    return *b = gk_isnan(rest) || gk_isinf(rest) ? sum : sum + rest;
}
GK_RULE(gk_rule_rmsprop) { g += h.p3 * w; return w - h.lr * gk_rms_ratio(g, gk_rms_plain(g, s0, h), h); }
#define gk_rule_rmsprop_states 1
GK_RULE(gk_rule_rmsprop_momentum) { g += h.p3 * w; return w - h.lr * gk_rms_velocity(g, gk_rms_plain(g, s0, h), s1, h); }
#define gk_rule_rmsprop_momentum_states 2
GK_RULE(gk_rule_rmsprop_centered) { g += h.p3 * w; return w - h.lr * gk_rms_ratio(g, gk_rms_centered(g, s0, s1, h), h); }
#define gk_rule_rmsprop_centered_states 2
GK_RULE(gk_rule_rmsprop_centered_momentum) { g += h.p3 * w; return w - h.lr * gk_rms_velocity(g, gk_rms_centered(g, s0, s1, h), s2, h); }
#define gk_rule_rmsprop_centered_momentum_states 3

/* p0 = decay of the rate, p1 = eps, p2 = weight decay; s0 = sum of g^2 */
GK_RULE(gk_rule_adagrad)
{
    g += h.p2 * w;
    *s0 += g * g;
    return w - h.lr / (GK_R(1.0) + (h.t - GK_R(1.0)) * h.p0) * g / (gk_sqrt(*s0) + h.p1);
}
#define gk_rule_adagrad_states 1

/* p0 = rho, p1 = 1 - rho, p2 = eps, p3 = weight decay; s0 = mean of g^2, s1 = mean of squared steps */
GK_RULE(gk_rule_adadelta)
{
    g += h.p3 * w;
    *s0 = h.p0 * *s0 + h.p1 * g * g;
    gk_f d = gk_sqrt(*s1 + h.p2) / gk_sqrt(*s0 + h.p2) * g;
    *s1 = h.p0 * *s1 + h.p1 * d * d;
    return w - h.lr * d;
}
#define gk_rule_adadelta_states 2

/* p0 = b1, p1 = b2, p3 = weight decay, p4 = 1 - b1, p5 = 1 - b2; s0 = m */
GK_RULE(gk_rule_lion)
{
    gk_f c = h.p0 * *s0 + h.p4 * g;
    *s0 = h.p1 * *s0 + h.p5 * g;
    return w * (GK_R(1.0) - h.lr * h.p3) - (c > GK_R(0.0) ? h.lr : c < GK_R(0.0) ? -h.lr : GK_R(0.0));
}
#define gk_rule_lion_states 1

/* p0 = beta, p1 = l1, p2 = l2, lr = alpha, flag = start from w; s0 = z, s1 = n */
GK_RULE(gk_rule_ftrl)
{
    gk_f old = gk_sqrt(*s1);
    /* The z whose solution is w. */
    if (h.flag && h.first) *s0 = -w * ((h.p0 + old) / h.lr + h.p2) - (w > GK_R(0.0) ? h.p1 : w < GK_R(0.0) ? -h.p1 : GK_R(0.0));
    *s1 += g * g;
    gk_f root = gk_sqrt(*s1), up = root - old;
    /* The difference of the roots without cancellation. */
    if (root > GK_R(0.0) && root < GK_INF) up = g * g / (root + old);
    *s0 += g - up / h.lr * w;
    gk_f z = *s0;
    if (gk_fabs(z) <= h.p1) return GK_R(0.0);
    return -(z - (z > GK_R(0.0) ? h.p1 : -h.p1)) / ((h.p0 + root) / h.lr + h.p2);
}
#define gk_rule_ftrl_states 2

/* p0 = l1, p1 = l2 */
GK_RULE(gk_rule_prox_elastic)
{
    gk_f v = w - h.lr * g, a = gk_fabs(v) - h.lr * h.p0;
    if (a < GK_R(0.0)) a = GK_R(0.0);
    return (v < GK_R(0.0) ? -a : a) / (GK_R(1.0) + h.lr * h.p1);
}
#define gk_rule_prox_elastic_states 0

/* p0 = lo, p1 = hi */
GK_RULE(gk_rule_prox_box) { return gk_min(gk_max(w - h.lr * g, h.p0), h.p1); }
#define gk_rule_prox_box_states 0
