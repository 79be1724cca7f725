/* Functions of two values: GK_BINARY(name, f(a, b; p, q), gradients (dy, a, b; p, q) into *da and *db). */
#define GK_BINARY(name, fwd, bwd_a, bwd_b) \
    GK_FN gk_f name##_fwd(gk_f a, gk_f b, gk_f p, gk_f q) { return fwd; } \
    GK_FN void name##_bwd(gk_f dy, gk_f a, gk_f b, gk_f p, gk_f q, gk_f* da, gk_f* db) { *da = bwd_a; *db = bwd_b; }
#define GK_BINARY_FLAT(name, fwd) \
    GK_FN gk_f name##_fwd(gk_f a, gk_f b, gk_f p, gk_f q) { return fwd; }

#if GK_IS_FLOAT
GK_BINARY(gk_op_add, a + p * b, dy, dy * p)
#define gk_op_add_arity 2
GK_BINARY(gk_op_mul, a * b, dy * b, dy * a)
#define gk_op_mul_arity 2
#endif
