/* Functions of three values: GK_TERNARY(name, f(a, b, c; p), gradients (dy, a, b, c; p)). */
#define GK_TERNARY(name, fwd, bwd_a, bwd_b, bwd_c) \
    GK_FN gk_f name##_fwd(gk_f a, gk_f b, gk_f c, gk_f p) { return fwd; } \
    GK_FN void name##_bwd(gk_f dy, gk_f a, gk_f b, gk_f c, gk_f p, gk_f* da, gk_f* db, gk_f* dc) { *da = bwd_a; *db = bwd_b; *dc = bwd_c; }
#if GK_IS_FLOAT
GK_TERNARY(gk_op_addcmul, a + p * b * c, dy, dy * p * c, dy * p * b)
#define gk_op_addcmul_arity 3
#endif
